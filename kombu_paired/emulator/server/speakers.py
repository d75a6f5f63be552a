"""Who speaks on a wire. The first bytes tell AMQP, TLS and HTTP apart."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kombu_paired.emulator.broker.faults import Faults
from kombu_paired.emulator.server.http import HttpConnection, HttpRequest, HttpResponse
from kombu_paired.emulator.server.timers import Timers
from kombu_paired.emulator.wire.ends import Speaker, Wire
from kombu_paired.emulator.wire.tls import Certificate, TlsLayer

__all__ = ("Sniffer", "Speakers")

logger = logging.getLogger(__name__)

_TLS = b"\x16"


class Speakers:
    """Makes who speaks.

    Arguments:
        host: where the emulator listens: its certificate is good for that.
        timers, faults: of the emulator.
        amqp: makes who speaks AMQP.
        answer: answers HTTP requests, as :class:`.HttpConnection` has it.
    """

    def __init__(
        self,
        host: str,
        timers: Timers,
        faults: Faults,
        amqp: Callable[[Wire], Speaker],
        answer: Callable[[HttpRequest, Callable[[HttpResponse | None], None]], None],
    ) -> None:
        self.timers = timers
        self.faults = faults
        self.amqp = amqp
        self._host = host
        self._answer = answer
        self._certificate: Certificate | None = None

    def http(self, wire: Wire) -> HttpConnection:
        """A client that speaks HTTP."""
        return HttpConnection(wire, self._answer)

    def tls(self, wire: Wire) -> TlsLayer | None:
        """A client that speaks TLS; what is inside is found out again."""
        try:
            return TlsLayer(wire, self.certificate().context, lambda inner: Sniffer(self, inner))
        except OSError as error:
            logger.error("no TLS: %s", error)
            return None

    def certificate(self) -> Certificate:
        """The self-signed certificate of this emulator, made when first needed.

        Raises:
            OSError: there is no ``openssl`` program, or it made none.
        """
        if self._certificate is None:
            self._certificate = Certificate.make(self._host)
        return self._certificate

    def close(self) -> None:
        """Forget the certificate."""
        if self._certificate is not None:
            self._certificate.remove()


class Sniffer:
    """Tells from the first bytes who speaks, and hands the rest to it."""

    def __init__(self, speakers: Speakers, wire: Wire) -> None:
        self._speakers = speakers
        self._wire = wire
        self._early = b""
        self._deaf = False
        self._speaker: Speaker | None = None

    def feed(self, data: bytes) -> None:
        """Take what came in."""
        if self._speaker is not None:
            self._speaker.feed(data)
            return
        self._early += data
        if self._deaf or (len(self._early) < 4 and self._early[:1] != _TLS):
            return
        fault = None if self._is_http() else self._speakers.faults.take("connect", None)
        if fault is None:
            self._begin()
        elif fault.kind in ("silent", "slow"):
            self._deaf = True
            if fault.kind == "slow":
                self._speakers.timers.later(fault.seconds, self._begin)
        else:
            self._wire.abort()

    def _is_http(self) -> bool:
        return self._early[:1] != _TLS and self._early[:4] != b"AMQP"

    def _begin(self) -> None:
        """Make the speaker, and give it what came in so far."""
        if self._early[:1] == _TLS:
            self._speaker = self._speakers.tls(self._wire)
        elif self._is_http():
            self._speaker = self._speakers.http(self._wire)
        else:
            self._speaker = self._speakers.amqp(self._wire)
        early, self._early = self._early, b""
        if self._speaker is None:
            self._wire.close()
        else:
            self._speaker.feed(early)

    def lost(self) -> None:
        """The client is gone."""
        if self._speaker is not None:
            self._speaker.lost()
