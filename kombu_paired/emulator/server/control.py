"""The emulator's own HTTP API, under ``/$emulator/``: no entity can have such a name.

===========================  =====================================================================
``GET status``               name, entities with their counts, connections, links, faults
``POST faults``              let something go wrong: a JSON object as :class:`.faults.Fault` has it
``GET faults``               what is going wrong
``DELETE faults``            let all be well; ``?entity=NAME``: of one entity
``POST drop``                hang up on every client
``POST detach``              end all links, ``?entity=NAME``: to one entity, as those that are idle
``POST reset``               be as new: without entities, messages and faults, and without clients
``GET certificate``          the certificate to trust, in PEM
===========================  =====================================================================
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from kombu_paired.emulator.broker.faults import Fault, Faults
from kombu_paired.emulator.broker.namespace import Namespace
from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.server.connections import Connections
from kombu_paired.emulator.server.http import HttpRequest, HttpResponse, json_response
from kombu_paired.emulator.server.settings import Settings
from kombu_paired.emulator.server.timers import Timers
from kombu_paired.emulator.wire.tls import Certificate

__all__ = ("Controlled", "control")


class Controlled(Protocol):
    """What the API shows and does of a server."""

    settings: Settings
    port: int
    faults: Faults
    timers: Timers
    connections: Connections
    namespace: Namespace

    def certificate(self) -> Certificate: ...
    def drop_connections(self) -> None: ...
    def reset(self) -> None: ...


def control(server: Controlled, request: HttpRequest) -> HttpResponse:
    """Answer a request to the emulator itself."""
    asked = (request.method, request.path.removeprefix("/$emulator/"))
    if asked == ("GET", "status"):
        return json_response(_status(server))
    if asked == ("POST", "faults"):
        return _add_fault(server, request)
    if asked == ("GET", "faults"):
        return json_response([fault.as_dict() for fault in server.faults])
    if asked == ("DELETE", "faults"):
        server.faults.clear(request.query.get("entity"))
        server.timers.soon(server.connections.wake)
        return json_response([])
    if asked == ("POST", "drop"):
        server.timers.soon(server.drop_connections)
        return json_response({})
    if asked == ("POST", "detach"):
        server.connections.detach_idle(request.query.get("entity"))
        return json_response({})
    if asked == ("POST", "reset"):
        server.reset()
        return json_response({})
    if asked == ("GET", "certificate"):
        try:
            return HttpResponse(200, server.certificate().path.read_bytes(), "application/x-pem-file")
        except OSError as error:
            return json_response({"error": str(error)}, 501)
    return json_response({"error": f"nothing at {request.method} {request.path}"}, 404)


def _add_fault(server: Controlled, request: HttpRequest) -> HttpResponse:
    try:
        spec = json.loads(request.body or b"{}")
        fault = Fault.parse(spec)
    except (ValueError, TypeError) as error:
        return json_response({"error": str(error)}, 400)
    server.faults.add(fault)
    server.timers.soon(server.connections.pump)  # a client that waits for messages meets it now
    return json_response(fault.as_dict(), 201)


def _status(server: Controlled) -> dict[str, Any]:
    return {
        "name": server.settings.name,
        "port": server.port,
        "connections": len(server.connections),
        "links": dict(server.connections.addresses),
        "faults": [fault.as_dict() for fault in server.faults],
        "queues": {queue.path: _counts(queue) for queue in server.namespace.queues.values()},
        "topics": {
            topic.name: {each.name: _counts(each.queue) for each in topic.subscriptions.values()}
            for topic in server.namespace.topics.values()
        },
    }


def _counts(queue: Queue) -> dict[str, int]:
    counts = queue.counts()
    return {
        "active": counts.active,
        "deferred": counts.deferred,
        "scheduled": counts.scheduled,
        "dead_lettered": counts.dead_lettered,
    }
