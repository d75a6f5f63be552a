"""Makes Kombu know the transport ``paired``, with and without an import by the application.

Kombu has no entry points for transports, but it loads those for serializers as soon as anything is to be published.
So the package installs one, for the content type that really is its own: that of a ping. Loading it registers the
transport too, and ``broker_url = "paired+…"`` in a settings file is enough.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from kombu_paired.showing import teach_kombu

__all__ = ("PING_CONTENT_TYPE", "PING_SERIALIZER", "register_transport")

#: What a ping says it is, in the documents of paired namespaces.
PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"


def register_transport() -> None:
    """Add ``paired`` to Kombu's transport aliases, and let Kombu show no secrets of it."""
    TRANSPORT_ALIASES["paired"] = "kombu_paired.transport:Transport"
    teach_kombu()


def _encode_ping(payload: object) -> bytes:
    return b""


def _decode_ping(body: object) -> None:
    return None


#: Arguments of :func:`kombu.serialization.register`, after the name: a ping has no content.
PING_SERIALIZER = (_encode_ping, _decode_ping, PING_CONTENT_TYPE, "binary")
