"""The links that clients ask for: made, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu_paired.emulator.broker.directory import Directory
from kombu_paired.emulator.broker.errors import Condition, Refusal
from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.server.deliveries import Deliveries
from kombu_paired.emulator.server.links import Receiver, RequestLink, ResponseLink, Sender
from kombu_paired.emulator.server.requests import RequestDesk
from kombu_paired.emulator.server.sessions import AmqpSession
from kombu_paired.emulator.server.tokens import Policies, path_of
from kombu_paired.emulator.server.waiters import Waiter, Waiters
from kombu_paired.emulator.wire import frames
from kombu_paired.emulator.wire.codec import Described, Symbol
from kombu_paired.emulator.wire.frames import Attach

__all__ = ("LinkMaker",)

_SESSION_FILTER = Symbol("com.microsoft:session-filter")
_LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
_TICKS_AT_1970 = 621355968000000000


class LinkMaker:
    """Makes links.

    Arguments:
        directory: the entities.
        policies: the keys of the namespace.
        store: stores messages for a path, all or none.
        desk: answers requests.
        deliveries: told of the receivers that there are.
        waiters: the clients that wait for a session.
        max_message_size: bytes, of links that are not for sending to an entity.
    """

    def __init__(
        self,
        directory: Directory,
        policies: Policies,
        store: Callable[[str, list[bytes]], list[int]],
        desk: RequestDesk,
        deliveries: Deliveries,
        waiters: Waiters,
        max_message_size: int,
    ) -> None:
        self._directory = directory
        self._policies = policies
        self._store = store
        self._desk = desk
        self._deliveries = deliveries
        self._waiters = waiters
        self._max_message_size = max_message_size

    def attach(self, session: AmqpSession, attach: Attach) -> None:
        """Make the link that a client asks for, or refuse it."""
        terminus = attach.source if attach.role else attach.target
        if not isinstance(terminus, Described) or terminus.descriptor == 0x30 or not terminus.value:
            refusal = Refusal(Condition.NOT_IMPLEMENTED, "the emulator has no transactions and no anonymous links")
            session.refuse(attach, refusal)
            return
        path = path_of(str(terminus.value[0] or ""))
        bare = path.lower()
        if bare == "$cbs" or bare.endswith("/$management"):
            self._attach_requests(session, attach, path)
            return

        def refuse(refusal: Refusal) -> None:
            session.refuse(attach, refusal)

        make = self._attach_receiver if attach.role else self._attach_sender
        session.connection.meet("attach", path, lambda: make(session, attach, path), refuse, refuse)

    def _attach_requests(self, session: AmqpSession, attach: Attach, path: str) -> None:
        if attach.role:
            session.links[attach.handle] = ResponseLink(session, attach, path)
            self._accept(session, attach)
            return
        link = session.links[attach.handle] = RequestLink(session, attach, path, self._desk)
        self._accept(session, attach)
        link.give_credit()

    def _attach_sender(self, session: AmqpSession, attach: Attach, path: str) -> None:
        self._policies.require(session.connection.claims, "Send", path)
        limit = self._directory.sendable(path).options.max_message_size_in_kilobytes * 1024
        link = Sender(session, attach, path, limit, self._store)
        session.links[attach.handle] = link
        session.accept(attach, source=attach.source, target=attach.target, max_message_size=limit)
        link.give_credit()

    def _attach_receiver(self, session: AmqpSession, attach: Attach, path: str) -> None:
        self._policies.require(session.connection.claims, "Listen", path)
        queue = self._directory.receivable(path)
        filters = (attach.source.value + [None] * 11)[7] or {}
        if _SESSION_FILTER not in filters:
            if queue.options.requires_session:
                raise Refusal(Condition.NOT_ALLOWED, f"{path} requires sessions: receive with a session id")
            self._add(Receiver(session, attach, path, queue, self._deliveries.forget))
            self._accept(session, attach)
            return
        wanted = filters[_SESSION_FILTER]
        wanted = wanted.value if isinstance(wanted, Described) else wanted
        if not self._take_session(session, attach, path, wanted):
            self._wait_for_session(session, attach, path, queue)

    def _take_session(self, session: AmqpSession, attach: Attach, path: str, wanted: str | None) -> bool:
        queue = self._directory.receivable(path)
        link = Receiver(session, attach, path, queue, self._deliveries.forget)
        try:
            session_id = queue.accept_session(wanted, link)
        except Refusal:
            queue.attached -= 1
            raise
        if session_id is None:
            queue.attached -= 1
            return False
        link.session_id = session_id
        self._add(link)
        until = int(queue.session_lasts_until(session_id) * 10_000_000) + _TICKS_AT_1970
        source = frames.source(attach.source.value[0], {_SESSION_FILTER: session_id})
        self._accept(session, attach, source=source, properties={_LOCKED_UNTIL: until})
        return True

    def _wait_for_session(self, session: AmqpSession, attach: Attach, path: str, queue: Queue) -> None:
        milliseconds = (attach.properties or {}).get("com.microsoft:timeout") or 60_000
        waiter = Waiter(
            connection=session.connection,
            path=path,
            queue=queue,
            take=lambda: self._take_session(session, attach, path, None),
            refuse=lambda refusal: session.refuse(attach, refusal),
        )
        self._waiters.add(waiter, int(milliseconds) / 1000)

    def _accept(self, session: AmqpSession, attach: Attach, **fields: Any) -> None:
        whole = {"source": attach.source, "target": attach.target, "max_message_size": self._max_message_size}
        session.accept(attach, **{**whole, **fields})

    def _add(self, link: Receiver) -> None:
        link.session.links[link.handle] = link
        self._deliveries.add(link)
