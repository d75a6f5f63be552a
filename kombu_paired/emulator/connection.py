"""One AMQP connection: headers, SASL, frames, sessions. What happens on a link is in ``links``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kombu_paired.emulator import frames
from kombu_paired.emulator.codec import Array, CodecError, Described, Symbol
from kombu_paired.emulator.errors import Condition, Refusal
from kombu_paired.emulator.faults import Fault
from kombu_paired.emulator.frames import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer

if TYPE_CHECKING:
    from kombu_paired.emulator.links import Link
    from kombu_paired.emulator.server import Server

__all__ = ("AmqpConnection", "AmqpSession", "Wire")

logger = logging.getLogger(__name__)

_MAX_FRAME_SIZE = 65536
_WINDOW = 2**31 - 1
_PATIENT_BUFFER = 1 << 20


# Called with the client's outcome of a delivery, and with what tells the client what became of it.
OnOutcome = Callable[[Any, Callable[[Described], None]], None]


class Wire(Protocol):
    """Where bytes go: a socket, or TLS on one."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def waiting(self) -> int: ...


class AmqpSession:
    """A session of a connection: its links, and the deliveries that its client has not settled."""

    def __init__(self, connection: AmqpConnection, channel: int, begin: Begin) -> None:
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
                incoming_window=_WINDOW,
                next_outgoing_id=self.next_outgoing_id,
                outgoing_window=_WINDOW,
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


class AmqpConnection:
    """One client. Fed with bytes; writes to its wire.

    Attributes:
        rights: what the tokens that the client put allow it.
    """

    def __init__(self, server: Server, wire: Wire) -> None:
        self.server = server
        self.wire = wire
        self.rights: frozenset[str] = frozenset()
        self.peer_frame_size = 512
        self.last_heard = server.clock()
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._feeding = False
        self._flush_asked = False
        self._sessions: dict[int, AmqpSession] = {}
        self._peer_patience: float | None = None
        self._last_sent = server.clock()
        self.over = False

    # --------------------------------------------------------------------------------------------------------- bytes

    def feed(self, data: bytes) -> None:
        """Take what came in."""
        self.last_heard = self.server.clock()
        self._buffer += data
        self._feeding = True
        try:
            self._consume()
        except CodecError as error:
            logger.warning("a client sent something that is not AMQP: %s", error)
            self.close(Refusal(Condition.DECODE_ERROR, str(error)))
        except Exception as error:  # a mistake of ours, or a frame with the wrong things in it: one client's business
            logger.exception("a frame could not be handled")
            self.close(Refusal(Condition.INTERNAL_ERROR, f"{type(error).__name__}: {error}"))
        finally:
            self._feeding = False
        self.flush()

    def _consume(self) -> None:
        buffer = self._buffer
        while len(buffer) >= 8 and not self.over:
            if buffer[:4] == b"AMQP":
                header = bytes(buffer[:8])
                del buffer[:8]
                self._on_header(header)
                continue
            size = int.from_bytes(buffer[:4], "big")
            if size < 8 or size > 2 * _MAX_FRAME_SIZE:
                raise CodecError(f"a frame of {size} bytes")
            if len(buffer) < size:
                return
            frame = bytes(buffer[:size])
            del buffer[:size]
            channel, performative = frames.decode_frame(frame)
            if performative is not None:
                self._dispatch(channel, performative)

    def _on_header(self, header: bytes) -> None:
        if header == frames.SASL_HEADER:
            mechanisms = Array(Symbol(name) for name in ("ANONYMOUS", "PLAIN", "EXTERNAL", "MSSBCBS"))
            self.send_raw(frames.SASL_HEADER + frames.encode_frame(0, frames.SaslMechanisms(mechanisms)))
        elif header == frames.AMQP_HEADER:
            self.send_raw(frames.AMQP_HEADER)
        else:
            self.send_raw(frames.AMQP_HEADER)
            self.flush()
            self._end()

    def send(self, channel: int, performative: Any) -> None:
        """Send a frame, at the latest when the event loop comes round."""
        self.send_raw(frames.encode_frame(channel, performative))

    def send_raw(self, data: bytes) -> None:
        """Send bytes, at the latest when the event loop comes round."""
        if self.over:
            return
        self._out.append(data)
        if not self._feeding and not self._flush_asked:
            self._flush_asked = True
            self.server.soon(self.flush)

    def flush(self) -> None:
        """Write what waits."""
        self._flush_asked = False
        if self._out:
            self._last_sent = self.server.clock()
            self.wire.write(b"".join(self._out))
            self._out.clear()

    @property
    def congested(self) -> bool:
        """Whether the client reads more slowly than it is sent to."""
        return self.wire.waiting() > _PATIENT_BUFFER

    # -------------------------------------------------------------------------------------------------- performatives

    def _dispatch(self, channel: int, performative: Any) -> None:
        if isinstance(performative, Transfer | Flow | Disposition | Attach | Detach | End):
            session = self._sessions.get(channel)
            if session is not None:  # a detach may come after the end of its session
                _SESSION_HANDLERS[type(performative)](self, session, performative)
        elif isinstance(performative, frames.SaslInit):
            self.send(0, frames.SaslOutcome(0))
        elif isinstance(performative, Open):
            self._on_open(performative)
        elif isinstance(performative, Begin):
            self._sessions[channel] = AmqpSession(self, channel, performative)
            self.send(channel, Begin(channel, 0, _WINDOW, _WINDOW, 255))
        elif isinstance(performative, Close):
            self.send(0, Close())
            self.flush()
            self._end()

    def _on_open(self, opened: Open) -> None:
        self.peer_frame_size = max(512, min(opened.max_frame_size or 512, _MAX_FRAME_SIZE))
        if opened.idle_timeout:
            self._peer_patience = opened.idle_timeout / 1000
        patience = self.server.settings.connection_idle
        self.send(
            0,
            Open(
                container_id=self.server.settings.name,
                max_frame_size=_MAX_FRAME_SIZE,
                channel_max=4999,
                idle_timeout=int(patience * 1000) if patience else None,
            ),
        )

    def _on_transfer(self, session: AmqpSession, transfer: Transfer) -> None:
        session.next_incoming_id = (session.next_incoming_id + 1) & 0xFFFFFFFF
        if transfer.handle in session.links:
            session.links[transfer.handle].on_transfer(transfer)

    def _on_attach(self, session: AmqpSession, attach: Attach) -> None:
        self.server.attach(session, attach)

    def _on_detach(self, session: AmqpSession, detach: Detach) -> None:
        link = session.links.pop(detach.handle, None)
        if link is not None:
            link.closed()
            session.send(Detach(detach.handle, True))

    def _on_end(self, session: AmqpSession, end: End) -> None:
        del self._sessions[session.channel]
        session.ended()
        self.send(session.channel, End())

    # ------------------------------------------------------------------------------------------------------- the end

    def close(self, refusal: Refusal) -> None:
        """Say why, and hang up."""
        self.send(0, Close(frames.amqp_error(refusal.condition, refusal.description)))
        self.flush()
        self._end()

    def reset(self) -> None:
        """Hang up without a word."""
        self.over = True
        self._out.clear()
        self.wire.abort()
        self.lost()

    def _end(self) -> None:
        self.over = True
        self.wire.close()
        self.lost()

    def lost(self) -> None:
        """The client is gone."""
        self.over = True
        for session in list(self._sessions.values()):
            session.ended()
        self._sessions.clear()

    def links(self) -> list[Link]:
        """All its links."""
        return [link for session in self._sessions.values() for link in session.links.values()]

    def keep_house(self, now: float) -> None:
        """Close what has been idle for too long; stay alive for a client that wants to see it."""
        patience = self.server.settings.connection_idle
        if patience and now - self.last_heard > patience:
            self.close(Refusal("amqp:connection:forced", f"The connection was inactive for more than {patience:g} s."))
            return
        if self._peer_patience and now - self._last_sent > self._peer_patience / 3:
            self.send_raw(frames.EMPTY_FRAME)
        for link in self.links():
            link.keep_house(now)

    # -------------------------------------------------------------------------------------------------------- faults

    def meet(
        self,
        operation: str,
        entity: str,
        act: Callable[[], None],
        refuse: Callable[[Refusal], None],
        detach: Callable[[Refusal], None] | None = None,
    ) -> None:
        """Do something, unless a fault is on that says otherwise."""
        fault = self.server.faults.take(operation, entity) if self.server.faults else None
        if fault is None:
            _attempt(act, refuse)
        elif fault.refusal() is not None:
            refuse(fault.refusal() or Refusal(Condition.INTERNAL_ERROR, ""))
        else:
            self._suffer(fault, act, refuse, detach)

    def _suffer(
        self,
        fault: Fault,
        act: Callable[[], None],
        refuse: Callable[[Refusal], None],
        detach: Callable[[Refusal], None] | None,
    ) -> None:
        forced = Refusal(fault.condition or Condition.DETACH_FORCED, "fault on request")
        if fault.kind == "slow":
            self.server.later(fault.seconds, lambda: None if self.over else _attempt(act, refuse))
        elif fault.kind == "reset":
            self.reset()
        elif fault.kind == "close":
            self.close(forced)
        elif fault.kind == "detach" and detach is not None:
            detach(forced)
        elif fault.kind == "lost-acknowledgement":
            _attempt(act, refuse)
            self.reset()


def _attempt(act: Callable[[], None], refuse: Callable[[Refusal], None]) -> None:
    try:
        act()
    except Refusal as refusal:
        refuse(refusal)


_SESSION_HANDLERS: dict[type[Any], Callable[[AmqpConnection, AmqpSession, Any], None]] = {
    Transfer: AmqpConnection._on_transfer,
    Flow: lambda connection, session, flow: session.on_flow(flow),
    Disposition: lambda connection, session, disposition: session.on_disposition(disposition),
    Attach: AmqpConnection._on_attach,
    Detach: AmqpConnection._on_detach,
    End: AmqpConnection._on_end,
}
