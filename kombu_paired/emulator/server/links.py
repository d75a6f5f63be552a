"""The links of a connection: senders, receivers, and the request links of ``$cbs`` and ``$management``.

A link turns frames into calls of the broker and answers into frames. No rule of the broker lives here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu_paired.emulator.broker.errors import Condition, Refusal
from kombu_paired.emulator.broker.messages import Outcome, delivery_of
from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.server.requests import RequestDesk, audience_of
from kombu_paired.emulator.server.sessions import AmqpSession, Link
from kombu_paired.emulator.wire import frames
from kombu_paired.emulator.wire.codec import CodecError, Described, Int, Symbol
from kombu_paired.emulator.wire.envelope import BATCH_FORMAT, Request, batch_items, read_request, write_response
from kombu_paired.emulator.wire.frames import Attach, Disposition, Flow, Transfer

__all__ = ("Receiver", "RequestLink", "ResponseLink", "Sender")

_CREDIT = 2000


class _Incoming(Link):
    """A link on which the client sends: puts the parts of messages together, and gives credit."""

    def __init__(self, session: AmqpSession, attach: Attach, address: str) -> None:
        super().__init__(session, attach, address)
        self._delivery_count = attach.initial_delivery_count or 0
        self._credit = 0
        self._first: Transfer | None = None
        self._parts: list[bytes] = []

    def give_credit(self) -> None:
        """Let the client send."""
        self._credit = _CREDIT
        self.session.flow(self.handle, self._delivery_count, self._credit)

    def on_flow(self, flow: Flow) -> None:
        if flow.echo or not flow.link_credit:
            self.give_credit()

    def on_transfer(self, transfer: Transfer) -> None:
        self.last_used = self.connection.last_heard
        if self._first is None:
            self._first = transfer
        self._parts.append(transfer.payload)
        if transfer.more and not transfer.aborted:
            return
        first, payload = self._first, b"".join(self._parts) if len(self._parts) > 1 else transfer.payload
        self._first, self._parts = None, []
        self._delivery_count = (self._delivery_count + 1) & 0xFFFFFFFF
        self._credit -= 1
        if not transfer.aborted:
            self.on_message(first, payload)
        if self._credit < _CREDIT // 2:
            self.give_credit()

    def on_message(self, transfer: Transfer, payload: bytes) -> None:
        """A whole message came in."""

    def answer(self, transfer: Transfer, outcome: Described) -> None:
        """Say what became of it, if the client wants to know."""
        if not transfer.settled and transfer.delivery_id is not None:
            self.session.send(Disposition(True, transfer.delivery_id, transfer.delivery_id, True, outcome))


class Sender(_Incoming):
    """The client sends to an entity.

    Arguments:
        limit: bytes, of one message or batch.
        store: stores messages for an address, all or none.
    """

    right = "Send"

    def __init__(
        self,
        session: AmqpSession,
        attach: Attach,
        address: str,
        limit: int,
        store: Callable[[str, list[bytes]], list[int]],
    ) -> None:
        super().__init__(session, attach, address)
        self._limit = limit
        self._store = store

    def on_message(self, transfer: Transfer, payload: bytes) -> None:
        def act() -> None:
            self._store_all(transfer, payload)
            self.answer(transfer, frames.ACCEPTED)

        def refuse(refusal: Refusal) -> None:
            self.answer(transfer, _outcome_of(refusal))

        self.connection.meet("send", self.address, act, refuse, self.detach)

    def _store_all(self, transfer: Transfer, payload: bytes) -> None:
        try:
            payloads = batch_items(payload) if transfer.message_format == BATCH_FORMAT else [payload]
            if len(payload) > self._limit:
                raise Refusal(Condition.MESSAGE_SIZE_EXCEEDED, f"{len(payload)} bytes are more than {self._limit}")
            self._store(self.address, payloads)
        except CodecError as error:
            raise Refusal(Condition.DECODE_ERROR, str(error)) from error


def _outcome_of(refusal: Refusal) -> Described:
    """How a send is refused: rejected with a reason, but for a fault on request."""
    if refusal.outcome == "released":
        return frames.RELEASED
    if refusal.outcome == "modified":
        return frames.modified(True, False)
    return frames.rejected(refusal.condition, refusal.description)


class _Outgoing(Link):
    """A link on which the client receives: keeps its credit."""

    def __init__(self, session: AmqpSession, attach: Attach, address: str) -> None:
        super().__init__(session, attach, address)
        self.credit = 0
        self._delivery_count = 0

    def on_flow(self, flow: Flow) -> None:
        self.last_used = self.connection.last_heard
        if flow.link_credit is not None:
            self.credit = (flow.delivery_count or 0) + flow.link_credit - self._delivery_count
        self.pump()
        if flow.drain:
            self._delivery_count = (self._delivery_count + max(self.credit, 0)) & 0xFFFFFFFF
            self.credit = 0
        if flow.drain or flow.echo:
            self.session.flow(self.handle, self._delivery_count, self.credit, drain=bool(flow.drain))

    def _use_credit(self) -> None:
        self.credit -= 1
        self._delivery_count = (self._delivery_count + 1) & 0xFFFFFFFF


class Receiver(_Outgoing):
    """The client receives from a queue, or from one session of it.

    Arguments:
        queue: what it receives from.
        forget: told when the link is gone.

    Attributes:
        session_id: the session that the link has locked.
    """

    def __init__(
        self, session: AmqpSession, attach: Attach, address: str, queue: Queue, forget: Callable[[Receiver], None]
    ) -> None:
        super().__init__(session, attach, address)
        self.queue = queue
        self.session_id: str | None = None
        self._forget = forget
        self._delete = attach.snd_settle_mode == 1  # settled as it is sent, instead of locked
        self._unsettled: set[int] = set()  # deliveries that the client has not settled
        self._held_up = False  # by a fault: what the client asked for comes late, or never
        queue.attached += 1

    def on_flow(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            self._held_up = False
        super().on_flow(flow)

    def wake(self) -> None:
        self._held_up = False
        self.pump()

    def pump(self) -> None:
        if self.session_id is not None and not self.queue.owns_session(self.session_id, self):
            self.detach(Refusal(Condition.SESSION_LOCK_LOST, f"the lock on the session {self.session_id!r} expired"))
            return
        if not self.connection.faults:
            self._deliver()
        elif self.credit > 0 and not self._held_up:
            self._held_up = True
            self.connection.meet("receive", self.address, self._deliver, self.detach, self.detach)

    def _deliver(self) -> None:
        self._held_up = False
        if self.session.links.get(self.handle) is not self:
            return
        while self.credit > 0 and self.session.window > 0 and not self.connection.congested:
            if self.connection.over or not self._deliver_one():
                return

    def _deliver_one(self) -> bool:
        if self._delete:
            message = self.queue.receive_and_delete(self.session_id)
            if message is None:
                return False
            self._use_credit()
            self.session.deliver(self.handle, uuid.uuid4().bytes_le, delivery_of(message), None)
            return True
        lock = self.queue.receive(self.session_id)
        if lock is None:
            return False
        self._use_credit()
        self.last_used = self.connection.now()
        payload = delivery_of(lock.message, lock)
        number = self.session.next_delivery_id
        self._unsettled.add(number)
        self.session.deliver(self.handle, lock.token.bytes_le, payload, partial(self._on_outcome, number, lock.token))
        return True

    def _on_outcome(
        self, number: int, token: uuid.UUID, outcome: Described | None, answer: Callable[[Described], None]
    ) -> None:
        """Settle, and say so."""
        self.last_used = self.connection.last_heard
        self._unsettled.discard(number)

        def act() -> None:
            self.queue.settle(token, *_read_outcome(outcome))
            plain = frames.rejected() if outcome is not None and outcome.descriptor == 0x25 else outcome
            answer(plain or frames.ACCEPTED)

        def refuse(refusal: Refusal) -> None:
            answer(frames.rejected(refusal.condition, refusal.description))

        self.connection.meet("settle", self.address, act, refuse, self.detach)

    def closed(self) -> None:
        """Locks outlive the link; what it delivered can be settled by token alone, on the management link."""
        for number in self._unsettled:
            self.session.unsettled.pop(number, None)
        self.queue.attached -= 1
        self._forget(self)
        if self.session_id is not None:
            self.queue.release_session(self.session_id, self)


def _read_outcome(outcome: Described | None) -> tuple[Outcome, str, str]:
    """What a client's outcome means, with reason and description of a dead letter."""
    code = 0x24 if outcome is None else int(outcome.descriptor)
    fields = [] if outcome is None else outcome.value
    if code == 0x25:
        error = fields[0].value if fields and fields[0] is not None else []
        info = error[2] if len(error) > 2 and error[2] else {}
        reason, description = info.get("DeadLetterReason"), info.get("DeadLetterErrorDescription")
        return Outcome.DEAD_LETTER, str(reason or ""), str(description or "")
    if code == 0x27:
        return (Outcome.DEFER if len(fields) > 1 and fields[1] else Outcome.ABANDON), "", ""
    return (Outcome.RELEASE if code == 0x26 else Outcome.COMPLETE), "", ""


class ResponseLink(_Outgoing):
    """The client receives answers to its requests."""

    def __init__(self, session: AmqpSession, attach: Attach, address: str) -> None:
        super().__init__(session, attach, address)
        self._waiting: list[bytes] = []

    def is_end_of(self, requests: RequestLink) -> bool:
        """Whether answers to requests of that link may come here."""
        return self.address.lower() == requests.address.lower()

    def respond(self, payload: bytes) -> None:
        """Send an answer, as soon as there is credit."""
        self.last_used = self.connection.now()
        self._waiting.append(payload)
        self.pump()

    def pump(self) -> None:
        while self._waiting and self.credit > 0:
            self._use_credit()
            self.session.deliver(self.handle, uuid.uuid4().bytes_le, self._waiting.pop(0), None)


class RequestLink(_Incoming):
    """The client sends requests to ``$cbs``, or to the ``$management`` of an entity."""

    def __init__(self, session: AmqpSession, attach: Attach, address: str, desk: RequestDesk) -> None:
        super().__init__(session, attach, address)
        self._desk = desk

    def on_message(self, transfer: Transfer, payload: bytes) -> None:
        self.answer(transfer, frames.ACCEPTED)
        try:
            request = read_request(payload)
        except CodecError as error:
            self.detach(Refusal(Condition.DECODE_ERROR, str(error)))
            return
        is_token = self.is_for_cbs
        operation = "token" if is_token else "request"
        entity = audience_of(request) if is_token else self.address.rpartition("/")[0]

        def act() -> None:
            answer = self._desk.put_token if is_token else self._desk.manage
            self._respond(request, *answer(self.connection, entity, request))

        def refuse(refusal: Refusal) -> None:
            self._respond(request, _status_of(refusal), refusal.description, None, refusal.condition)

        self.connection.meet(operation, entity, act, refuse, self.detach)

    def _respond(self, request: Request, status: int, description: str, body: Any, condition: str = "") -> None:
        code, text = ("status-code", "status-description")
        if not self.is_for_cbs:
            code, text = ("statusCode", "statusDescription")
        application: dict[str, Any] = {code: Int(status), text: description}
        if condition:
            application["errorCondition"] = Symbol(condition)
        payload = write_response(request.message_id, application, body)
        ends = [link for link in self.connection.links() if isinstance(link, ResponseLink) and link.is_end_of(self)]
        if ends:  # a connection may have several, of a session each
            min(ends, key=lambda link: link.session is not self.session).respond(payload)


_STATUS = {
    Condition.AUTH_FAILED: 401,
    Condition.UNAUTHORIZED_ACCESS: 401,
    Condition.ENTITY_DISABLED: 403,
    Condition.RESOURCE_LIMIT_EXCEEDED: 403,
    Condition.NOT_FOUND: 404,
    Condition.MESSAGE_NOT_FOUND: 404,
    Condition.ENTITY_ALREADY_EXISTS: 409,
    Condition.MESSAGE_LOCK_LOST: 410,
    Condition.SESSION_LOCK_LOST: 410,
    Condition.ARGUMENT_ERROR: 400,
    Condition.NOT_ALLOWED: 400,
    Condition.NOT_IMPLEMENTED: 501,
    Condition.SERVER_BUSY: 503,
    Condition.TIMEOUT: 408,
}


def _status_of(refusal: Refusal) -> int:
    return refusal.status or _STATUS.get(refusal.condition, 500)
