from celery import shared_task

from orders.models import Done


@shared_task
def send_receipt(order: int) -> None:
    """A real one would send a mail."""
    Done.objects.create(task="receipt", order=order)


@shared_task
def pack_parcel(order: int) -> None:
    Done.objects.create(task="parcel", order=order)


@shared_task
def take_stock() -> None:
    """Beat sends it."""
    Done.objects.create(task="stocktaking")
