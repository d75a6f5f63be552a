"""A page of the admin: how both namespaces are, what waits in the backlog, and its dead letters.

To look at it changes nothing, and takes about ``send_timeout`` at most for each of two looks, whatever the brokers do.
Dead letters are put back, or thrown away, by a POST of somebody who may.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path

from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, BacklogDepth
from kombu_paired.cli.isolate import since
from kombu_paired.cli.peek import find
from kombu_paired.cli.printing import counted, duration
from kombu_paired.cli.sides import Look, look_at
from kombu_paired.contrib.django.applications import the_application
from kombu_paired.contrib.django.models import Backlog
from kombu_paired.contrib.results import result_queue_of
from kombu_paired.dead_letters import Chosen, delete, requeue
from kombu_paired.errors import ConfigurationError, NamespaceFailure
from kombu_paired.pairing import Pairing
from kombu_paired.transport import pairing_of

__all__ = ("BacklogAdmin",)

#: Dead letters that are shown, and may be chosen, at a time: the oldest ones.
SHOWN = 100

TEMPLATES = "admin/kombu_paired/backlog"


@dataclass(frozen=True)
class Action:
    """What can be done with dead letters."""

    act: Callable[..., int]
    permission: str
    done: str


ACTIONS = {
    "requeue": Action(requeue, "change", "put back into the backlog"),
    "delete": Action(delete, "delete", "thrown away"),
}


class BacklogAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """The page instead of a list of objects."""

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self.changelist_view), name=name)]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._act(request)
        try:
            known = as_context(*_look())
        except ConfigurationError as exc:
            known = {"problem": str(exc)}
        allowed = {name: self._may(request, action) for name, action in ACTIONS.items()}
        return self._page(request, "change_list", {"may": allowed, **known, **(extra_context or {})})

    def _act(self, request: HttpRequest) -> HttpResponse:
        name, ids = request.POST.get("action"), request.POST.getlist("id")
        action = ACTIONS.get(name)
        if action is None:
            return HttpResponseBadRequest("no such action")
        if not self._may(request, action):
            raise PermissionDenied
        if ids and action.act is delete and "confirmed" not in request.POST:
            return self._page(request, "confirm", {"ids": ids})
        try:
            pairing, look = _look()
            queues = [each.queue for each in _every(look) if each.dead_letters]
            chosen = Chosen(frozenset(ids))
            count = action.act(pairing.secondary, queues, chosen, pairing.options.send_timeout) if ids else 0
        except (ConfigurationError, NamespaceFailure) as exc:
            self.message_user(request, str(exc), messages.ERROR)
        else:
            what = f"{counted(count, 'dead letter')} of {pairing.name} {action.done}"
            self.message_user(request, f"{what}.", messages.SUCCESS if count else messages.WARNING)
            if count:
                self.log_change(request, Backlog(queue=pairing.name), f"{what}: {', '.join(sorted(ids))}")
        return HttpResponseRedirect(request.path)

    def _may(self, request: HttpRequest, action: Action) -> bool:
        return bool(request.user.has_perm(f"{self.opts.app_label}.{action.permission}_{self.opts.model_name}"))

    def _page(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        around = {**self.admin_site.each_context(request), "title": "Backlog", "opts": self.opts}
        return TemplateResponse(request, f"{TEMPLATES}/{name}.html", {**around, **context})


def _look() -> tuple[Pairing, Look]:
    app = the_application()
    with app.connection_for_write() as connection:
        pairing = pairing_of(connection)
    return pairing, look_at(pairing, result_queue_of(app, pairing.name))


def _every(look: Look) -> list[BacklogDepth]:
    return [*look.depths, *look.stand_ins, *([look.results] if look.results else [])]


def as_context(pairing: Pairing, look: Look) -> dict[str, Any]:
    """What the template shows."""
    every, now = _every(look), time.time()
    return {
        "pairing": pairing.name,
        "sides": (look.primary, look.secondary),
        "is_diverting": look.primary.failure is not None,
        "entities": {entity.path: state.value for entity, state in pairing.circuits.states().items()},
        "isolated": {name: since(at) for name, at in sorted(look.isolated.notices.items())},
        "is_known": look.secondary.failure is None,
        "queues": [
            ("Backlog queues", _rows(look.depths, now)),
            ("Stand-in queues", _rows(look.stand_ins, now)),
            ("Results that wait for their server", _rows([look.results] if look.results else [], now)),
        ],
        "waiting": sum(each.messages or 0 for each in every),
        "dead": sum(each.dead_letters for each in every),
        **_dead_letters(pairing, [each.queue + DEAD_LETTER_SUFFIX for each in every if each.dead_letters]),
    }


def _dead_letters(pairing: Pairing, queues: list[str]) -> dict[str, Any]:
    try:
        return {"dead_letters": find(pairing, queues, SHOWN) if queues else []}
    except (ConfigurationError, NamespaceFailure) as exc:
        return {"not_shown": str(exc)}


def _rows(depths: Iterable[BacklogDepth], now: float) -> list[dict[str, Any]]:
    return [
        {
            "depth": each,
            "oldest": None if each.oldest_diverted_at is None else duration(now - each.oldest_diverted_at),
        }
        for each in depths
    ]


admin.site.register(Backlog, BacklogAdmin)
