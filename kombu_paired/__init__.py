"""A Celery queue that survives its broker.

Importing this package registers the Kombu transport ``paired``. The names below are loaded when they are used, so
that an application pays for what it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kombu_paired.registration import register_transport

if TYPE_CHECKING:
    from kombu_paired.contrib.celery import SyphonStep, setup
    from kombu_paired.errors import (
        BacklogUnavailable,
        ConfigurationError,
        MessageTooLarge,
        NamespaceUnauthorized,
        PairedError,
        PairingClosed,
        PrimaryUnavailable,
        SendError,
    )
    from kombu_paired.events import Event, EventKind
    from kombu_paired.failures import FailureKind
    from kombu_paired.health_check import Health, health
    from kombu_paired.marks import maybe_duplicate, was_diverted
    from kombu_paired.options import PairedNamespaceOptions
    from kombu_paired.pairing import Pairing
    from kombu_paired.syphon import Syphon
    from kombu_paired.transport import Transport, pairing_of

__version__ = "0.1.0"

__all__ = (
    "BacklogUnavailable",
    "ConfigurationError",
    "Event",
    "EventKind",
    "FailureKind",
    "Health",
    "MessageTooLarge",
    "NamespaceUnauthorized",
    "PairedError",
    "PairedNamespaceOptions",
    "Pairing",
    "PairingClosed",
    "PrimaryUnavailable",
    "SendError",
    "Syphon",
    "SyphonStep",
    "Transport",
    "health",
    "maybe_duplicate",
    "pairing_of",
    "setup",
    "was_diverted",
)

_ROOMS = {
    "contrib.celery": ("SyphonStep", "setup"),
    "errors": (
        "BacklogUnavailable",
        "ConfigurationError",
        "MessageTooLarge",
        "NamespaceUnauthorized",
        "PairedError",
        "PairingClosed",
        "PrimaryUnavailable",
        "SendError",
    ),
    "events": ("Event", "EventKind"),
    "failures": ("FailureKind",),
    "health_check": ("Health", "health"),
    "marks": ("maybe_duplicate", "was_diverted"),
    "options": ("PairedNamespaceOptions",),
    "pairing": ("Pairing",),
    "syphon": ("Syphon",),
    "transport": ("Transport", "pairing_of"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

register_transport()


def __getattr__(name: str) -> Any:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{room}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
