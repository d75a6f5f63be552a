from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from orders.tasks import send_receipt


@csrf_exempt  # so that curl can try it; a real form keeps the check
@require_POST
def place_order(request: HttpRequest, order: int) -> JsonResponse:
    """Accept an order. The broker may be down: nothing here knows or needs to."""
    result = send_receipt.delay(order)
    return JsonResponse({"order": order, "task": result.id}, status=202)
