"""The driver of a spool."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kombu_paired.brokers.driver import Driver
from kombu_paired.brokers.roles import Receiver, Sender
from kombu_paired.brokers.spool.address import SpoolAddress
from kombu_paired.brokers.turn import Turn
from kombu_paired.errors import ConfigurationError
from kombu_paired.failures import FailureKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kombu_paired.brokers.kombu import KombuNamespace
    from kombu_paired.brokers.links import Link

__all__ = ("Spool",)


class Spool(Driver):
    """A folder on the local disk."""

    routed = True
    keeps_unsettled = True
    keeps_notices = True
    may_be_primary = False
    syphons_by_itself = True
    tested = True
    transport = "kombu_paired.brokers.spool.transport:Transport"

    @property
    def is_installed(self) -> bool:
        """SQLite comes with Python, and the locks with every system but Windows."""
        return sys.platform != "win32"

    def load(self) -> None:
        import_module("kombu_paired.brokers.spool.receiving")

    def link(self, namespace: KombuNamespace) -> Link:
        from kombu_paired.brokers.spool.links import SpoolLink

        return SpoolLink(namespace)

    def sender(self, namespace: KombuNamespace) -> Sender:
        from kombu_paired.brokers.spool.links import SpoolSender

        return SpoolSender(namespace)

    def receiver(self, namespace: KombuNamespace, queues: Sequence[str], prefetch: int, timeout: float) -> Receiver:
        from kombu_paired.brokers.spool.receiving import SpoolReceiver

        return SpoolReceiver(namespace, queues, timeout)

    def turn(self, url: str, primary: str) -> Turn:
        from kombu_paired.brokers.spool.turn import SpoolTurn

        return SpoolTurn(SpoolAddress.of(url).folder, primary)

    def kind_of(self, exc: BaseException) -> FailureKind | None:
        from kombu_paired.brokers.spool.kinds import kind_of

        return kind_of(exc)

    def concerns_all(self, exc: BaseException) -> bool:
        from kombu_paired.brokers.spool.kinds import concerns_all

        return concerns_all(exc)

    def limit_answers(self, connection: Any, seconds: float) -> None:
        """Nobody consumes from a spool."""

    # -- its URLs -----------------------------------------------------------------------------------------------

    def address_of(self, url: str) -> tuple[Any, ...]:
        return (socket.gethostname(), "spool", SpoolAddress.of(url).folder)

    def shown(self, url: str) -> str:
        return f"{super().shown(url)} on {socket.gethostname()}"

    def check_options(self, url: str, options: Mapping[str, Any]) -> None:
        SpoolAddress.of(url)
        for name in options:
            raise ConfigurationError(f"a spool has no options, and {name!r} is none: what it may say is in its URL")
