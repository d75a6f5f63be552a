"""A connection to the secondary that a worker has come home from, while it holds messages that are not settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.stopping import tags_that_run
from kombu_paired.transport.consumed import Consumed
from kombu_paired.transport.stand_in_channel import StandInChannel

__all__ = ("LeftBehind",)


class LeftBehind:
    """It consumes nothing any more, and lives until what was consumed over it is settled.

    Arguments:
        consumed: the connection.
        channels: those over which somebody consumed, their consumers cancelled.
    """

    def __init__(self, consumed: Consumed, channels: Sequence[StandInChannel | None]) -> None:
        self.consumed = consumed
        self._channels = [channel for channel in channels if channel is not None]

    @property
    def unsettled(self) -> int:
        """How many messages are held."""
        return sum(len(channel.unsettled) for channel in self._channels)

    def keep_what_runs(self) -> bool:
        """Give back all but the messages of tasks that run, which will settle them; whether there are any.

        A worker that connects anew has forgotten those that it had fetched and not begun.
        """
        for channel in self._channels:
            running = tags_that_run(channel)
            for tag in channel.unsettled - running:
                with letting_go("a message that was fetched and not begun"):
                    channel.basic_reject(tag, requeue=True)
        return self.unsettled > 0

    def keep_alive(self) -> None:
        """Read and write what keeps the connection open, where the broker wants to hear of it."""
        driver, connection = self.consumed.driver, self.consumed.connection
        if not driver.supports_heartbeats:
            return
        with letting_go("a connection that is left behind"):
            with suppress(TimeoutError):
                driver.drain_events(connection, timeout=0)
            driver.heartbeat_check(connection)

    def when_settled(self, step: Callable[[], None]) -> None:
        """Do something when nothing is held any more, in whichever thread settles the last message."""

        def settled() -> None:
            if not self.unsettled:
                step()

        for channel in self._channels:
            channel.when_settled = settled
        settled()
