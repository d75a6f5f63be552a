"""The Celery application: workers run ``celery -A shop worker``, and ``web.py`` publishes."""

import os

from celery import Celery

import kombu_paired

app = Celery("shop", broker="paired+" + os.environ.get("PRIMARY_URL", "redis://localhost:6379/0"))
app.conf.broker_transport_options = {
    "secondary": os.environ.get("SECONDARY_URL", "redis://localhost:6380/0"),
    # A request should not wait 10 seconds for a broker that is silent.
    "send_timeout": float(os.environ.get("SEND_TIMEOUT", "3")),
}
app.conf.broker_connection_retry_on_startup = True
app.conf.task_ignore_result = True
kombu_paired.setup(app)  # workers run the syphon


@app.task
def send_receipt(order: int) -> None:
    """Write the order's number down. A real one would send a mail."""
    with open(os.environ.get("ORDERS_FILE", "orders.txt"), "a") as file:
        file.write(f"{order}\n")
