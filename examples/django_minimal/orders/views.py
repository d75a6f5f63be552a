from collections import Counter

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from orders.models import Done, Order
from orders.tasks import pack_parcel, send_receipt


class CardRefused(Exception):
    pass


def charge(card: str) -> None:
    if card == "refused":
        raise CardRefused


@csrf_exempt  # so that curl can try it; a real form keeps the check
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Accept an order. The broker may be down: nothing here knows or needs to."""
    try:
        with transaction.atomic():
            order = Order.objects.create(article=request.POST["article"])
            send_receipt.delay_on_commit(order.pk)  # two ways to say the same
            transaction.on_commit(lambda: pack_parcel.delay(order.pk))
            charge(request.POST["card"])
    except CardRefused:
        return JsonResponse({"order": None}, status=402)
    return JsonResponse({"order": order.pk}, status=201)


@require_GET
def summary(request: HttpRequest) -> JsonResponse:
    """How often each task ran: once for each order is right."""
    orders = set(Order.objects.values_list("pk", flat=True))
    ran = {task: Counter(Done.objects.filter(task=task).values_list("order", flat=True)) for task in _FOR_AN_ORDER}
    return JsonResponse(
        {
            "orders": len(orders),
            "not_done": sorted(order for order in orders if not all(ran[task][order] for task in _FOR_AN_ORDER)),
            "done_twice": sorted({order for counts in ran.values() for order, count in counts.items() if count > 1}),
            "stocktakings": Done.objects.filter(task="stocktaking").count(),
        }
    )


_FOR_AN_ORDER = ("receipt", "parcel")
