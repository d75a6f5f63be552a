"""What a connection consumes from: a connection of one namespace's own transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kombu.transport import base

from kombu_paired.brokers.compat import collect
from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.brokers.roles import Consumes
from kombu_paired.errors import PrimaryUnavailable

__all__ = ("Consumed",)


@dataclass(eq=False)
class Consumed:
    """A connection of a namespace's own transport.

    Attributes:
        namespace: which.
        driver: its transport.
        connection: as that transport has it.
        stands_in: it is one to the secondary.
        is_lost: whoever consumes from it is told, or about to be, that it is of no use any more.
    """

    namespace: Consumes
    driver: base.Transport
    connection: Any
    stands_in: bool = False
    is_lost: bool = False

    @property
    def heartbeat(self) -> float:
        """Seconds in which the broker wants to hear of its client; 0 if it does not."""
        return float(self.driver.get_heartbeat_interval(self.connection) or 0)

    def new_channel(self, connection_errors: tuple[type[BaseException], ...]) -> Any:
        """A channel of that transport.

        Arguments:
            connection_errors: what is raised as it is.

        Raises:
            PrimaryUnavailable: the namespace refuses everything for now, as a Redis whose disk is full does. A worker
                connects again then, and waits.
        """
        try:
            return self.driver.create_channel(self.connection)
        except connection_errors:
            raise
        except Exception as exc:
            if not self.namespace.kind_of(exc).counts:
                raise
            raise PrimaryUnavailable(f"{self.namespace.label} opens no channel: {type(exc).__name__}: {exc}") from exc

    def close(self, patience: float) -> None:
        """Close it; raises nothing.

        Arguments:
            patience: seconds per answer of the broker.
        """
        with letting_go("a consumer's connection"):
            self.namespace.limit_answers(self.connection, patience)
            self.driver.close_connection(self.connection)

    def collect(self, patience: float) -> None:
        """Let go without a goodbye where the transport can; raises nothing."""
        with letting_go("a consumer's connection"):
            self.namespace.limit_answers(self.connection, patience)
            collect(self.driver, self.connection)
