"""Emulators of Service Bus, as the tests of workers use them."""

from __future__ import annotations

from kombu_paired.emulator import Emulator


def url_of(emulator: Emulator) -> str:
    """What Kombu connects to."""
    return f"azureservicebus://RootManageSharedAccessKey:SAS_KEY_VALUE@{emulator.host}"


def left_in(emulator: Emulator, queue: str) -> int:
    """How many messages are in a queue, whatever their state."""
    return sum(emulator.status()["queues"][queue].values())
