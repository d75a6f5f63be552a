"""The requests that come over HTTP: whose they are, who may ask, and the faults that they meet."""

from __future__ import annotations

from collections.abc import Callable

from kombu_paired.emulator.broker.errors import Refusal
from kombu_paired.emulator.broker.faults import Faults
from kombu_paired.emulator.server.http import HttpRequest, HttpResponse
from kombu_paired.emulator.server.management import ManagementApi
from kombu_paired.emulator.server.timers import Timers
from kombu_paired.emulator.server.tokens import Policies

__all__ = ("HttpDesk",)


class HttpDesk:
    """Answers requests.

    Arguments:
        api: the management API.
        policies: the keys of the namespace.
        timers, faults: of the emulator.
        control: the emulator's own API, for tests: no rights are needed for it, and no fault concerns it.
    """

    def __init__(
        self,
        api: ManagementApi,
        policies: Policies,
        timers: Timers,
        faults: Faults,
        control: Callable[[HttpRequest], HttpResponse],
    ) -> None:
        self._api = api
        self._policies = policies
        self._timers = timers
        self._faults = faults
        self._control = control

    def answer(self, request: HttpRequest, respond: Callable[[HttpResponse | None], None]) -> None:
        """Answer, now or later; where a fault says so, never, or with None: hang up."""
        if request.path.startswith("/$emulator/"):
            respond(self._control(request))
            return
        entity = self._api.entity_of(request.path)
        fault = self._faults.take("manage", entity) if self._faults else None
        if fault is None:
            respond(self._administer(request))
        elif fault.refuses:
            respond(self._api.error(fault.http_status, fault.refusal(entity or "").description))
        elif fault.kind == "slow":
            self._timers.later(fault.seconds, lambda: respond(self._administer(request)))
        elif fault.kind == "reset":
            respond(None)
        elif fault.kind == "lost-acknowledgement":
            self._administer(request)
            respond(None)

    def _administer(self, request: HttpRequest) -> HttpResponse:
        try:
            path = self._api.entity_of(request.path) or ""
            rights = self._policies.grant(request.headers.get("authorization", ""), path).rights
        except Refusal as refusal:
            return self._api.error(401, refusal.description)
        if "Manage" not in rights:
            return self._api.error(401, "Manage,EntityRead claims required for this operation.")
        return self._api.handle(request)
