"""Kombu's poller of Redis connections, with those on which a channel of ours waits."""

from __future__ import annotations

import time
from typing import Any

from kombu.transport import redis

from kombu_paired.brokers.redis.compat import socket_of
from kombu_paired.brokers.redis.taking import Wait

__all__ = ("Poller",)


class Poller(redis.MultiChannelPoller):  # type: ignore[misc]
    """Kombu's poller, which also looks after the connections on which channels wait."""

    _restored_at = float("-inf")

    def watch(self, channel: Any, wait: Wait) -> None:
        """Tell the channel when this connection has an answer; connects first if need be."""
        sock = socket_of(wait.connection)
        if sock is None or self._chan_to_sock.get((channel, wait, wait)) is not sock:
            self._register(channel, wait, wait)

    def forget(self, channel: Any, wait: Wait) -> None:
        sock = self._chan_to_sock.pop((channel, wait, wait), None)
        for fd, watched in list(self._fd_to_chan.items()):
            if watched == (channel, wait):
                self._unregister_from_poll(fd)
                del self._fd_to_chan[fd]
        if sock is not None:
            self.poller.unregister(sock)

    def on_readable(self, fileno: int) -> Any:
        channel, wait = self._fd_to_chan.get(fileno, (None, None))
        if isinstance(wait, Wait):
            return channel.answered(wait)  # even if it may not consume: what comes now is given back
        return super().on_readable(fileno)

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        self._restore_now_and_then()
        # A channel that may not consume has nothing under way, so nothing would tell of its new credit.
        return super().get(callback, 1.0 if timeout is None else timeout)

    def _restore_now_and_then(self) -> None:
        """Give back what vanished consumers held, as the timer of an event loop does.

        Without one, Kombu does so when a poll ends without an answer. Whoever waits is answered once a second.
        """
        consuming = next((channel for channel in self._channels if channel.active_queues), None)
        if consuming is not None and time.monotonic() - self._restored_at >= consuming.unacked_restore_interval:
            self._restored_at = time.monotonic()
            self.maybe_restore_messages()

    def maybe_check_brpop_health(self) -> None:
        super().maybe_check_brpop_health()
        for channel in list(self._channels):
            channel.check_waits()
