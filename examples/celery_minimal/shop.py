"""A Celery application whose queue survives its broker.

It is configured by environment variables:

PRIMARY_URL     the broker it works with (default: RabbitMQ on this machine)
SECONDARY_URL   the broker that stores what the first one cannot take (default: another RabbitMQ, one port up)
ORDERS_FILE     the file to which the task writes, so that you can see what ran (default: orders.txt)
"""

import os

from celery import Celery

import kombu_paired

app = Celery("shop", broker="paired+" + os.environ.get("PRIMARY_URL", "amqp://guest:guest@localhost:5672//"))
app.conf.broker_transport_options = {
    "secondary": os.environ.get("SECONDARY_URL", "amqp://guest:guest@localhost:5673//"),
}
app.conf.broker_connection_retry_on_startup = True
app.conf.task_ignore_result = True
kombu_paired.setup(app)  # workers run the syphon


@app.task
def send_receipt(order: int) -> None:
    """Write the order's number down. A real one would send a mail."""
    with open(os.environ.get("ORDERS_FILE", "orders.txt"), "a") as file:
        file.write(f"{order}\n")
