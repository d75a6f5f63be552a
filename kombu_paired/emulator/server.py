"""The emulator at work: one port for AMQP, TLS and HTTP, and what ties connections to the broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kombu_paired.emulator import frames
from kombu_paired.emulator.broker import Namespace
from kombu_paired.emulator.codec import Described, Symbol
from kombu_paired.emulator.connection import AmqpConnection, AmqpSession, Wire
from kombu_paired.emulator.control import control
from kombu_paired.emulator.doors import Door, Sniffer
from kombu_paired.emulator.envelope import Request
from kombu_paired.emulator.errors import Condition, Refusal
from kombu_paired.emulator.faults import Faults
from kombu_paired.emulator.frames import Attach
from kombu_paired.emulator.http import HttpRequest, HttpResponse
from kombu_paired.emulator.links import Receiver, RequestLink, ResponseLink, Sender, refuse_attach
from kombu_paired.emulator.management import ManagementApi
from kombu_paired.emulator.queues import Queue
from kombu_paired.emulator.requests import RequestDesk
from kombu_paired.emulator.store import Store
from kombu_paired.emulator.tls import Certificate, TlsLayer
from kombu_paired.emulator.tokens import Policies, Policy

__all__ = ("Server", "Settings")

logger = logging.getLogger(__name__)

_TICK = 0.05
_SESSION_FILTER = Symbol("com.microsoft:session-filter")
_LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
_TICKS_AT_1970 = 621355968000000000


@dataclass(frozen=True)
class Settings:
    """How an emulator runs.

    Attributes:
        host, port: where it listens; port 0 takes a free one.
        data: the folder that keeps its messages; None: they are forgotten.
        policies: the keys that are checked; none: every client may do everything.
        max_message_size: bytes, of one message or batch.
        connection_idle: seconds until a silent connection is closed; 0: never.
        link_idle: seconds until an unused link is closed; 0: never.
        name: of the namespace.
        queues, topics: what is there from the start, as :class:`.Emulator` takes them.
    """

    host: str = "127.0.0.1"
    port: int = 0
    data: str | None = None
    policies: tuple[Policy, ...] = ()
    max_message_size: int = 256 * 1024
    connection_idle: float = 240.0
    link_idle: float = 600.0
    name: str = "emulator"
    queues: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()


@dataclass
class _WaitingSession:
    """A client that waits for the next free session of a queue."""

    session: AmqpSession
    attach: Attach
    path: str
    queue: Queue


class Server:
    """One namespace on one port.

    Arguments:
        settings: how it runs.
        clock: seconds since 1970.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock
        self.faults = Faults()
        self.doors: set[Door] = set()
        self.frozen = False
        self.port = settings.port
        self.connections: set[AmqpConnection] = set()
        self._policies = Policies(settings.policies, clock)
        self._store = Store.open(settings.data) if settings.data is not None else None
        self.namespace = Namespace(clock, self._store, self._ready, self._gone)
        self._desk = RequestDesk(self._request_queue, self.send)
        self._api = ManagementApi(self.namespace, settings.name, settings.max_message_size)
        self._certificate: Certificate | None = None
        self._receivers: dict[int, list[Receiver]] = {}
        self._dirty: dict[int, Queue] = {}
        self._waiting: list[_WaitingSession] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_round = 0.0

    # ---------------------------------------------------------------------------------------------------- life cycle

    async def start(self) -> None:
        """Listen. Entities that the settings name are there from then on."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._start(self._loop)
        except BaseException:
            self.stop()
            raise

    async def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._store is not None:
            self._store.load(self.namespace)
        self._make_settled()
        self._listener = await loop.create_server(
            lambda: Door(self), self.settings.host, self.port, reuse_address=True, backlog=512
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._tick()

    def _make_settled(self) -> None:
        """Make what the settings name."""
        for name in self.settings.queues:
            self._api.ensure_queue(name)
        for spec in self.settings.topics:
            self._api.ensure_topic(spec)

    def stop(self) -> None:
        """Hang up on everybody, at once, and stop listening."""
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        for door in list(self.doors):
            door.abort()
        if self._store is not None:
            self._store.close()
        if self._certificate is not None:
            self._certificate.remove()

    def drop_connections(self) -> None:
        """Hang up on everybody, and go on listening."""
        for door in list(self.doors):
            door.abort()

    def reset(self) -> None:
        """Be as new: without entities, messages and faults; and hang up on everybody."""
        self.faults.clear(None)
        for path in [*self.namespace.queues, *self.namespace.topics]:
            self.namespace.delete(path)
        self._make_settled()
        self.soon(self.drop_connections)

    def freeze(self, frozen: bool) -> None:
        """Stop reading, as a machine that hangs; new clients are accepted and hear nothing."""
        self.frozen = frozen
        for door in list(self.doors):
            door.pause(frozen)
        if not frozen:
            self.pump_all()

    def soon(self, action: Callable[[], None]) -> None:
        """Run it when the event loop comes round."""
        if self._loop is not None:
            self._loop.call_soon(action)

    def later(self, seconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Run it after a while."""
        assert self._loop is not None
        return self._loop.call_later(seconds, action)

    def _tick(self) -> None:
        self._timer = self.later(_TICK, self._tick)
        if self.frozen:
            return
        self.namespace.tick()
        now = self.clock()
        if now - self._last_round > 0.5:
            self._last_round = now
            for connection in list(self.connections):
                connection.keep_house(now)

    # ------------------------------------------------------------------------------------------------------ speakers

    def amqp(self, wire: Wire) -> AmqpConnection:
        """A client that speaks AMQP."""
        connection = AmqpConnection(self, wire)
        self.connections = {each for each in self.connections if not each.over} | {connection}
        return connection

    def tls(self, wire: Wire) -> TlsLayer | None:
        """A client that speaks TLS; what is inside is found out again."""
        try:
            return TlsLayer(wire, self.certificate().context, lambda inner: Sniffer(self, inner))
        except OSError as error:
            logger.error("no TLS: %s", error)
            return None

    def certificate(self) -> Certificate:
        """The self-signed certificate of this server, made when first needed."""
        if self._certificate is None:
            self._certificate = Certificate.make(self.settings.host)
        return self._certificate

    def http(self, request: HttpRequest, respond: Callable[[HttpResponse | None], None]) -> None:
        """Answer an HTTP request, now or later; where a fault says so, never, or with None: hang up."""
        if request.path.startswith("/$emulator/"):
            respond(self._control(request))
            return
        fault = self.faults.take("manage", self._api.entity_of(request.path)) if self.faults else None
        if fault is None:
            respond(self._administer(request))
        elif fault.refusal() is not None:
            respond(self._api.error(fault.status, f"{fault.description} (fault on request)"))
        elif fault.kind == "slow":
            self.later(fault.seconds, lambda: respond(self._administer(request)))
        elif fault.kind == "reset":
            respond(None)
        elif fault.kind == "lost-acknowledgement":
            self._administer(request)
            respond(None)

    def _administer(self, request: HttpRequest) -> HttpResponse:
        try:
            rights = self._policies.rights(request.headers.get("authorization", ""))
        except Refusal as refusal:
            return self._api.error(401, refusal.description)
        if "Manage" not in rights:
            return self._api.error(403, "Unauthorized: Manage,EntityRead claims are required for this operation.")
        return self._api.handle(request)

    def _control(self, request: HttpRequest) -> HttpResponse:
        """The emulator's own API, for tests: faults, dropping connections, a certificate to trust."""
        return control(self, request)

    # --------------------------------------------------------------------------------------------------------- links

    def attach(self, session: AmqpSession, attach: Attach) -> None:
        """Make the link that a client asks for, or refuse it."""
        terminus = attach.source if attach.role else attach.target
        if not isinstance(terminus, Described) or terminus.descriptor == 0x30 or not terminus.value:
            refusal = Refusal(Condition.NOT_IMPLEMENTED, "the emulator has no transactions and no anonymous links")
            refuse_attach(session, attach, refusal)
            return
        path = path_of(str(terminus.value[0] or ""))
        bare = path.lower()
        if bare == "$cbs" or bare.endswith("/$management"):
            self._attach_requests(session, attach, path)
            return

        def detach(refusal: Refusal) -> None:
            refuse_attach(session, attach, refusal)

        make = self._attach_receiver if attach.role else self._attach_sender
        session.connection.meet("attach", path, lambda: make(session, attach, path), detach, detach)

    def _attach_requests(self, session: AmqpSession, attach: Attach, path: str) -> None:
        kind = ResponseLink if attach.role else RequestLink
        link = session.links[attach.handle] = kind(session, attach, path)
        self._accept(session, attach, source=attach.source, target=attach.target)
        if isinstance(link, RequestLink):
            link.give_credit()

    def _attach_sender(self, session: AmqpSession, attach: Attach, path: str) -> None:
        self._require(session.connection, "Send")
        limit = self.namespace.sendable(path).options.max_message_size_in_kilobytes * 1024
        link = Sender(session, attach, path, limit)
        session.links[attach.handle] = link
        self._accept(session, attach, source=attach.source, target=attach.target, max_message_size=limit)
        link.give_credit()

    def _attach_receiver(self, session: AmqpSession, attach: Attach, path: str) -> None:
        self._require(session.connection, "Listen")
        queue = self.namespace.receivable(path)
        filters = (attach.source.value + [None] * 11)[7] or {}
        if _SESSION_FILTER not in filters:
            if queue.options.requires_session:
                raise Refusal(Condition.NOT_ALLOWED, f"{path} requires sessions: receive with a session id")
            self._add_receiver(Receiver(session, attach, path, queue, attach.snd_settle_mode == 1))
            self._accept(session, attach, source=attach.source, target=attach.target)
            return
        wanted = filters[_SESSION_FILTER]
        wanted = wanted.value if isinstance(wanted, Described) else wanted
        if not self._take_session(session, attach, path, wanted):
            self._wait_for_session(_WaitingSession(session, attach, path, queue))

    def _take_session(self, session: AmqpSession, attach: Attach, path: str, wanted: str | None) -> bool:
        queue = self.namespace.receivable(path)
        link = Receiver(session, attach, path, queue, attach.snd_settle_mode == 1)
        try:
            session_id = queue.accept_session(wanted, link)
        except Refusal:
            queue.attached -= 1
            raise
        if session_id is None:
            queue.attached -= 1
            return False
        link.session_id = session_id
        self._add_receiver(link)
        until = int(queue.session_lasts_until(session_id) * 10_000_000) + _TICKS_AT_1970
        source = frames.source(attach.source.value[0], {_SESSION_FILTER: session_id})
        self._accept(session, attach, source=source, target=attach.target, properties={_LOCKED_UNTIL: until})
        return True

    def _wait_for_session(self, waiting: _WaitingSession) -> None:
        self._waiting.append(waiting)
        milliseconds = (waiting.attach.properties or {}).get("com.microsoft:timeout") or 60_000
        too_late = Refusal(Condition.TIMEOUT, "no session with messages became free in time")
        self.later(int(milliseconds) / 1000, lambda: self._give_up(waiting, too_late))

    def _give_up(self, waiting: _WaitingSession, refusal: Refusal) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            refuse_attach(waiting.session, waiting.attach, refusal)

    def _accept(self, session: AmqpSession, attach: Attach, **fields: Any) -> None:
        fields.setdefault("max_message_size", self.settings.max_message_size)
        session.send(
            Attach(
                name=attach.name,
                handle=attach.handle,
                role=not attach.role,
                snd_settle_mode=attach.snd_settle_mode,
                rcv_settle_mode=attach.rcv_settle_mode,
                initial_delivery_count=0 if attach.role else None,
                **fields,
            )
        )

    def _add_receiver(self, link: Receiver) -> None:
        link.session.links[link.handle] = link
        self._receivers.setdefault(id(link.queue), []).append(link)

    def forget(self, link: Receiver) -> None:
        """A receiver is gone."""
        receivers = self._receivers.get(id(link.queue), [])
        if link in receivers:
            receivers.remove(link)

    # ------------------------------------------------------------------------------------------------------ messages

    def send(self, path: str, payloads: list[bytes]) -> list[int]:
        """Store messages: on disk, if there is one, before this returns."""
        if self._store is None:
            return self.namespace.send(path, payloads)
        with self._store.together():
            return self.namespace.send(path, payloads)

    def _ready(self, queue: Queue) -> None:
        if not self._dirty:
            self.soon(self._pump_dirty)
        self._dirty[id(queue)] = queue

    def _pump_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        if self.frozen:
            return
        for queue in dirty.values():
            receivers = self._receivers.get(id(queue), [])
            for link in list(receivers):
                link.pump()
            if len(receivers) > 1:
                receivers.append(receivers.pop(0))  # the next one comes first next time
            if queue.options.requires_session:
                self._offer_sessions(queue)

    def _offer_sessions(self, queue: Queue) -> None:
        for waiting in list(self._waiting):
            if waiting.session.connection.over:
                self._waiting.remove(waiting)
            elif waiting.queue is queue:
                try:
                    if self._take_session(waiting.session, waiting.attach, waiting.path, None):
                        self._waiting.remove(waiting)
                except Refusal as refusal:
                    self._give_up(waiting, refusal)

    def pump_all(self) -> None:
        """Let every link send what it can."""
        for connection in list(self.connections):
            for link in connection.links():
                link.pump()

    def wake_all(self) -> None:
        """Let every link go on with what a fault has held up."""
        for connection in list(self.connections):
            for link in connection.links():
                link.wake()

    def detach_all(self, path: str, refusal: Refusal) -> None:
        """End every link to an entity."""
        key = path.lower().strip("/")
        for connection in list(self.connections):
            for link in connection.links():
                mine = link.address.lower()
                if mine == key or mine.startswith((f"{key}/$", f"{key}/subscriptions/")):
                    link.detach(refusal)

    def _gone(self, path: str) -> None:
        gone = Refusal(Condition.NOT_FOUND, f"The messaging entity {path!r} was deleted.")
        self.detach_all(path, gone)
        for waiting in [each for each in self._waiting if each.path.lower() == path.lower()]:
            self._give_up(waiting, gone)

    # ------------------------------------------------------------------------------------------------------ requests

    def put_token(self, connection: AmqpConnection, entity: str, request: Request) -> tuple[int, str, Any]:
        """A client shows a token to ``$cbs``."""
        token = request.body
        text = token.decode() if isinstance(token, bytes) else str(token)
        connection.rights = connection.rights | self._policies.rights(text)
        return 202, "Accepted", None

    def manage(self, connection: AmqpConnection, entity: str, request: Request) -> tuple[int, str, Any]:
        """A client asks the ``$management`` of an entity."""
        self._require(connection, self._desk.required_right(request))
        return self._desk.answer(entity, request)

    def _request_queue(self, path: str) -> Queue:
        found = self.namespace.find(path)
        return found if isinstance(found, Queue) else found.inbox

    def _require(self, connection: AmqpConnection, right: str) -> None:
        if not self._policies.open_to_all and right not in connection.rights:
            raise Refusal(Condition.UNAUTHORIZED_ACCESS, f"Unauthorized access. '{right}' claim(s) are required.")


def path_of(address: str) -> str:
    """The entity of an address: ``amqps://host:port/entity/path`` or just ``entity/path``."""
    if "://" in address:
        address = address.split("://", 1)[1].partition("/")[2]
    return address.strip("/")
