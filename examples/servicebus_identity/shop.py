"""A Celery application on two namespaces of Azure Service Bus, without a key.

It is configured by environment variables:

PRIMARY       the namespace that it works with, e.g. contoso
SECONDARY     the namespace that stores what the first one cannot take, e.g. contoso-dr
IDENTITY      who it is: DefaultAzureCredential (the default), ManagedIdentityCredential, or
              ManagedIdentityCredential:CLIENT_ID where a machine has several
ORDERS_FILE   the file to which the task writes, so that you can see what ran (default: orders.txt)
"""

import os

from celery import Celery

import kombu_paired

identity = os.environ.get("IDENTITY", "DefaultAzureCredential")
primary, secondary = os.environ.get("PRIMARY", "contoso"), os.environ.get("SECONDARY", "contoso-dr")

app = Celery("shop", broker=f"paired+azureservicebus://{identity}@{primary}")
app.conf.broker_transport_options = {"secondary": f"azureservicebus://{identity}@{secondary}"}
app.conf.broker_connection_retry_on_startup = True
app.conf.task_ignore_result = True
kombu_paired.setup(app)  # workers run the syphon


@app.task
def send_receipt(order: int) -> None:
    """Write the order's number down. A real one would send a mail."""
    with open(os.environ.get("ORDERS_FILE", "orders.txt"), "a") as file:
        file.write(f"{order}\n")
