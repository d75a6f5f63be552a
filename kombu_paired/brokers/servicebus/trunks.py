"""The connections that links of this process share: one for each namespace, credentials, and way there."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable, Mapping, Sequence
from time import monotonic
from typing import Any

from kombu_paired.brokers.bell import Bell
from kombu_paired.brokers.servicebus.trunk import DEPUTY, Station, Trunk, Wire
from kombu_paired.process import at_fork

__all__ = ("board", "wait_for_any")

_trunks: dict[Hashable, list[Trunk]] = {}
_lock = threading.Lock()


def board(key: Hashable, wire: Wire) -> Station | None:
    """A place for a link on the connection of this process.

    Arguments:
        key: of the namespace, the credentials, and the way there.
        wire: connects, if there is none yet.
    """
    with _lock:
        trunks = [each for each in _trunks.get(key, ()) if not each.is_over]
        station = next(filter(None, (each.board() for each in trunks)), None)
        if station is None:
            trunks.append(Trunk(wire))
            station = trunks[-1].board()
        _trunks[key] = trunks
        return station


def _start_clean_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for trunk in itertools.chain.from_iterable(_trunks.values()):
        trunk.abandon()
    _trunks.clear()


at_fork(in_child=_start_clean_after_fork)


def wait_for_any(socks: Sequence[Any], seconds: float, bell: Bell) -> bool:
    """Wait for something to come on one of these sockets and stations, or until somebody rings; whether it has."""
    shared: dict[Trunk, list[Station]] = {}
    for sock in socks:
        if isinstance(sock, Station):
            shared.setdefault(sock.trunk, []).append(sock)
    own = [sock for sock in socks if not isinstance(sock, Station)]
    if not shared:
        return bell.wait(seconds, *own)
    if len(shared) == 1 and not own:
        [(trunk, stations)] = shared.items()
        return trunk.wait_for(stations, seconds, bell)
    return _wait_for_several(shared, own, seconds, bell)


def _wait_for_several(
    shared: Mapping[Trunk, Sequence[Station]], own: Sequence[Any], seconds: float, bell: Bell
) -> bool:
    """The same over several connections: some links were opened before the others' was lost, or silent."""
    until = monotonic() + seconds
    while True:
        if any(trunk.wait_for(stations, 0.0) for trunk, stations in shared.items()):
            return True
        left = until - monotonic()
        if bell.wait(max(min(left, DEPUTY), 0.0), *own):
            return True
        if bell.rang or left <= 0:
            return False
