"""One AMQP connection: headers, SASL, frames. What happens on a session is in ``sessions``, on a link in ``links``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kombu_paired.emulator.broker.errors import Condition, Refusal, token_expired
from kombu_paired.emulator.broker.faults import Fault, Faults
from kombu_paired.emulator.server.sessions import WINDOW, AmqpSession, Link
from kombu_paired.emulator.server.settings import Settings
from kombu_paired.emulator.server.timers import Timers
from kombu_paired.emulator.server.tokens import Claims
from kombu_paired.emulator.wire import frames
from kombu_paired.emulator.wire.codec import Array, CodecError, Symbol
from kombu_paired.emulator.wire.ends import Wire
from kombu_paired.emulator.wire.frames import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer

__all__ = ("AmqpConnection",)

logger = logging.getLogger(__name__)

_MAX_FRAME_SIZE = 65536
_PATIENT_BUFFER = 1 << 20


class AmqpConnection:
    """One client. Fed with bytes; writes to its wire.

    Arguments:
        wire: where its bytes go.
        settings: of the emulator.
        timers: of the emulator.
        faults: of the emulator.
        attach: makes the link that the client asks for on a session, or refuses it.

    Attributes:
        claims: what the tokens that the client put allow it.
        over: whether it has ended.
    """

    def __init__(
        self,
        wire: Wire,
        settings: Settings,
        timers: Timers,
        faults: Faults,
        attach: Callable[[AmqpSession, Attach], None],
    ) -> None:
        self.now = timers.now
        self.faults = faults
        self.claims = Claims(timers.now)
        self.peer_frame_size = 512
        self.last_heard = self.now()
        self.over = False
        self._wire = wire
        self._settings = settings
        self._timers = timers
        self._attach = attach
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._feeding = False
        self._flush_asked = False
        self._sessions: dict[int, AmqpSession] = {}
        self._peer_patience: float | None = None
        self._last_sent = self.now()

    # --------------------------------------------------------------------------------------------------------- bytes

    def feed(self, data: bytes) -> None:
        """Take what came in."""
        self.last_heard = self.now()
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
            self._timers.soon(self.flush)

    def flush(self) -> None:
        """Write what waits."""
        self._flush_asked = False
        if self._out:
            self._last_sent = self.now()
            self._wire.write(b"".join(self._out))
            self._out.clear()

    @property
    def congested(self) -> bool:
        """Whether the client reads more slowly than it is sent to."""
        return self._wire.waiting() > _PATIENT_BUFFER

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
            self.send(channel, Begin(channel, 0, WINDOW, WINDOW, 255))
        elif isinstance(performative, Close):
            self.send(0, Close())
            self.flush()
            self._end()

    def _on_open(self, opened: Open) -> None:
        self.peer_frame_size = max(512, min(opened.max_frame_size or 512, _MAX_FRAME_SIZE))
        if opened.idle_timeout:
            self._peer_patience = opened.idle_timeout / 1000
        patience = self._settings.connection_idle
        self.send(
            0,
            Open(
                container_id=self._settings.name,
                max_frame_size=_MAX_FRAME_SIZE,
                channel_max=4999,
                idle_timeout=int(patience * 1000) if patience else None,
            ),
        )

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
        self._wire.abort()
        self.lost()

    def _end(self) -> None:
        self.over = True
        self._wire.close()
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
        patience = self._settings.connection_idle
        if patience and now - self.last_heard > patience:
            self.close(
                Refusal(Condition.CONNECTION_FORCED, f"The connection was inactive for more than {patience:g} s.")
            )
            return
        if self._peer_patience and now - self._last_sent > self._peer_patience / 3:
            self.send_raw(frames.EMPTY_FRAME)
        for link in self.links():
            if not link.is_for_cbs and self.claims.have_expired(link.address):
                link.detach(token_expired(link.address, link.right))
            else:
                link.keep_house(now, self._settings.link_idle)

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
        fault = self.faults.take(operation, entity) if self.faults else None
        if fault is None:
            _attempt(act, refuse)
        elif fault.refuses:
            refuse(fault.refusal(entity))
        else:
            self._suffer(fault, fault.refusal(entity), act, refuse, detach)

    def _suffer(
        self,
        fault: Fault,
        forced: Refusal,
        act: Callable[[], None],
        refuse: Callable[[Refusal], None],
        detach: Callable[[Refusal], None] | None,
    ) -> None:
        if fault.kind == "slow":
            self._timers.later(fault.seconds, lambda: None if self.over else _attempt(act, refuse))
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
    Transfer: lambda connection, session, transfer: session.on_transfer(transfer),
    Flow: lambda connection, session, flow: session.on_flow(flow),
    Disposition: lambda connection, session, disposition: session.on_disposition(disposition),
    Attach: lambda connection, session, attach: connection._attach(session, attach),
    Detach: lambda connection, session, detach: session.on_detach(detach),
    End: AmqpConnection._on_end,
}
