from celery import shared_task
from django.conf import settings


@shared_task
def send_receipt(order: int) -> None:
    """Write the order's number down. A real one would send a mail."""
    with open(settings.ORDERS_FILE, "a") as file:
        file.write(f"{order}\n")
