"""A session of an AMQP connection, and what all its links have in common.

Both know of their connection only what :class:`Carrier` says, and a session knows of its links only :class:`Link`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kombu_paired.emulator.broker.errors import Refusal, idle
from kombu_paired.emulator.broker.faults import Faults
from kombu_paired.emulator.server.tokens import Claims
from kombu_paired.emulator.wire import frames
from kombu_paired.emulator.wire.codec import Described
from kombu_paired.emulator.wire.frames import Attach, Begin, Detach, Disposition, Flow, Transfer

__all__ = ("WINDOW", "AmqpSession", "Carrier", "Link", "OnOutcome")

#: As much as a window can be: what is sent is limited by credit alone.
WINDOW = 2**31 - 1

# Called with the client's outcome of a delivery, and with what tells the client what became of it.
OnOutcome = Callable[[Any, Callable[[Described], None]], None]


class Carrier(Protocol):
    """The connection, as its sessions and links know it.

    Attributes:
        claims: what the tokens that the client put allow it.
        faults: those of the emulator.
        peer_frame_size: bytes, the largest frame that the client takes.
        last_heard: when something came in, seconds since 1970.
        over: whether it has ended.
    """

    claims: Claims
    faults: Faults
    peer_frame_size: int
    last_heard: float
    over: bool

    @property
    def congested(self) -> bool: ...
    def now(self) -> float: ...
    def send(self, channel: int, performative: Any) -> None: ...
    def send_raw(self, data: bytes) -> None: ...
    def links(self) -> list[Link]: ...
    def meet(
        self,
        operation: str,
        entity: str,
        act: Callable[[], None],
        refuse: Callable[[Refusal], None],
        detach: Callable[[Refusal], None] | None = None,
    ) -> None: ...


class AmqpSession:
    """A session of a connection: its links, and the deliveries that its client has not settled."""

    def __init__(self, connection: Carrier, channel: int, begin: Begin) -> None:
        self.connection = connection
        self.channel = channel
        self.links: dict[int, Link] = {}
        self.unsettled: dict[int, OnOutcome] = {}
        self.next_incoming_id = begin.next_outgoing_id
        self.window = begin.incoming_window
        self.next_outgoing_id = 0
        self.next_delivery_id = 0

    def send(self, performative: Any) -> None:
        """Send a frame on this session's channel."""
        self.connection.send(self.channel, performative)

    def flow(self, handle: int | None, delivery_count: int | None, credit: int | None, drain: bool = False) -> None:
        """Tell the client our windows, and a link's credit."""
        self.send(
            Flow(
                next_incoming_id=self.next_incoming_id,
                incoming_window=WINDOW,
                next_outgoing_id=self.next_outgoing_id,
                outgoing_window=WINDOW,
                handle=handle,
                delivery_count=delivery_count,
                link_credit=credit,
                drain=drain or None,
            )
        )

    def deliver(self, handle: int, tag: bytes, payload: bytes, on_outcome: OnOutcome | None) -> None:
        """Send a message; settled when nobody waits for its outcome."""
        delivery_id = self.next_delivery_id
        self.next_delivery_id = (delivery_id + 1) & 0xFFFFFFFF
        if on_outcome is not None:
            self.unsettled[delivery_id] = on_outcome
        size = self.connection.peer_frame_size
        encoded = frames.encode_transfers(self.channel, handle, delivery_id, tag, on_outcome is None, payload, size)
        self.window -= len(encoded)
        self.next_outgoing_id = (self.next_outgoing_id + len(encoded)) & 0xFFFFFFFF
        self.connection.send_raw(b"".join(encoded))

    def accept(self, attach: Attach, **fields: Any) -> None:
        """Answer the client's attach with ours."""
        self.send(
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

    def refuse(self, attach: Attach, refusal: Refusal) -> None:
        """Answer with a link that has no terminus, and end it: the way the service refuses one."""
        self.send(
            Attach(
                name=attach.name,
                handle=attach.handle,
                role=not attach.role,
                source=None if attach.role else attach.source,
                target=attach.target if attach.role else None,
                initial_delivery_count=0 if attach.role else None,
            )
        )
        self.send(Detach(attach.handle, True, frames.amqp_error(refusal.condition, refusal.description)))

    def on_transfer(self, transfer: Transfer) -> None:
        self.next_incoming_id = (self.next_incoming_id + 1) & 0xFFFFFFFF
        if transfer.handle in self.links:
            self.links[transfer.handle].on_transfer(transfer)

    def on_detach(self, detach: Detach) -> None:
        link = self.links.pop(detach.handle, None)
        if link is not None:
            link.closed()
            self.send(Detach(detach.handle, True))

    def on_flow(self, flow: Flow) -> None:
        self.next_incoming_id = flow.next_outgoing_id
        self.window = (flow.next_incoming_id or 0) + flow.incoming_window - self.next_outgoing_id
        if flow.handle is None:
            for link in list(self.links.values()):
                link.pump()
        elif flow.handle in self.links:
            self.links[flow.handle].on_flow(flow)

    def on_disposition(self, disposition: Disposition) -> None:
        """The client says what it made of deliveries."""
        if not disposition.role:
            return
        last = disposition.first if disposition.last is None else disposition.last
        if last == disposition.first:
            concerned = [last] if last in self.unsettled else []
        else:
            concerned = [number for number in self.unsettled if disposition.first <= number <= last]
        for delivery_id in concerned:
            self._settle(delivery_id, disposition)

    def _settle(self, delivery_id: int, disposition: Disposition) -> None:
        if disposition.state is None and not disposition.settled:
            return

        def answer(outcome: Described) -> None:
            if not disposition.settled:
                self.send(Disposition(False, delivery_id, delivery_id, True, outcome))

        self.unsettled.pop(delivery_id)(disposition.state, answer)

    def ended(self) -> None:
        """The client ended it, or is gone."""
        for link in list(self.links.values()):
            link.closed()
        self.links.clear()
        self.unsettled.clear()


class Link:
    """What all links have in common.

    Attributes:
        address: the path that the client attached to.
        right: what one must be allowed to do there.
    """

    right = "Listen"

    def __init__(self, session: AmqpSession, attach: Attach, address: str) -> None:
        self.session = session
        self.connection = session.connection
        self.handle = attach.handle
        self.address = address
        self.last_used = self.connection.now()

    def on_transfer(self, transfer: Transfer) -> None:
        """A message, or a part of one, came in."""

    def on_flow(self, flow: Flow) -> None:
        """The client gives credit, or asks for ours."""

    def pump(self) -> None:
        """Send what can be sent."""

    def wake(self) -> None:
        """No fault is on any more: go on with what was held up."""

    def closed(self) -> None:
        """The client ended the link, or is gone."""

    def detach(self, refusal: Refusal) -> None:
        """End the link, and say why."""
        if self.session.links.pop(self.handle, None) is not None:
            self.closed()
            error = frames.amqp_error(refusal.condition, refusal.description)
            self.session.send(Detach(self.handle, True, error))

    @property
    def is_for_cbs(self) -> bool:
        """Whether tokens are shown on it."""
        return self.address.lower() == "$cbs"

    @property
    def is_for_requests(self) -> bool:
        """Whether it is a link to ``$cbs`` or to the ``$management`` of an entity."""
        return self.address.lower().rpartition("/")[2] in ("$cbs", "$management")

    def is_of(self, path: str) -> bool:
        """Whether it is a link to an entity, its dead letters, its management or a subscription of it."""
        mine, path = self.address.lower(), path.lower().strip("/")
        return mine == path or mine.startswith((f"{path}/$", f"{path}/subscriptions/"))

    def keep_house(self, now: float, patience: float) -> None:
        """End the link to an entity when it has been idle for more than so many seconds; 0: never.

        Messages that its client works on do not keep it alive, nor does credit, nor the renewal of locks.
        """
        if not self.is_for_cbs and patience and now - self.last_used > patience:
            self.detach(idle(self.address, patience))
