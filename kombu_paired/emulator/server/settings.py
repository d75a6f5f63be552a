"""How an emulator runs."""

from __future__ import annotations

from dataclasses import dataclass

from kombu_paired.emulator.server.tokens import Policy

__all__ = ("Settings",)


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
        token_life: seconds that a token is good for after it was shown, at most; 0: as long as it says.
        latency: seconds that everything takes on its way to the emulator, and as many on its way back.
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
    token_life: float = 0.0
    latency: float = 0.0
    name: str = "emulator"
    queues: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
