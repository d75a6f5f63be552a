"""A health page: whether this process can accept work, for whoever decides that it gets requests."""

from __future__ import annotations

import threading
import time
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from kombu_paired.contrib.django.applications import the_application
from kombu_paired.health_check import Health
from kombu_paired.health_check import health as ask
from kombu_paired.pairing.circuit import CircuitState

__all__ = ("facts", "health")

#: Seconds for which an answer of the brokers serves all requests: whoever may ask must not be able to keep them busy.
FRESH = 1.0


def facts(found: Health) -> dict[str, Any]:
    """What everybody may know of the health of a pairing: its name, the names of entities, and no address."""
    diverts = any(CircuitState(each).diverts for each in found.entities.values()) or bool(found.isolated)
    return {
        "ok": found.ok,
        "accepts_work": found.accepts_work,
        "diverting": found.accepts_work and (diverts or not found.primary.reachable),
        "pairing": found.pairing,
        "primary": {"reachable": found.primary.reachable},
        "secondary": {"reachable": found.secondary.reachable},
        "entities": dict(found.entities),
        "isolated": sorted(found.isolated),
    }


@never_cache  # type: ignore[untyped-decorator]
@require_safe  # type: ignore[untyped-decorator]
def health(request: HttpRequest) -> HttpResponse:
    """Both namespaces, as JSON. The status is 200 while ``delay()`` returns, so also while it diverts; else 503.

    It takes ``send_timeout`` at most, whatever the brokers do.

    Raises:
        ConfigurationError: no Celery application has a paired broker, or a setting is wrong.
    """
    found = _latest.ask()
    return JsonResponse(facts(found), status=200 if found.accepts_work else 503)


#: For Django's LoginRequiredMiddleware: who looks after processes has no account.
health.login_required = False


class _Latest:
    """One answer for all who ask at about the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Health | None = None
        self._until = 0.0

    def ask(self) -> Health:
        with self._lock:
            if self._known is None or time.monotonic() >= self._until:
                self._known = ask(the_application())
                self._until = time.monotonic() + FRESH
            return self._known


_latest = _Latest()
