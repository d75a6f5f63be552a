"""Who waits for a Redis that is silent hears of it when another thread says so, and does not wait anew."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

import pytest
import redis

from kombu_paired.brokers.redis.connections import limit_answers, sever


def test_a_read_ends_in_another_thread():
    ours, theirs = socket.socketpair()
    answers = []
    reader = threading.Thread(target=lambda: answers.append(ours.recv(1)), daemon=True)
    reader.start()
    held = [SimpleNamespace(_sock=None), SimpleNamespace(_sock=ours)]
    channel = SimpleNamespace(_pool=SimpleNamespace(_available_connections=[], _in_use_connections=held))
    sever(SimpleNamespace(channels=[channel]))
    reader.join(20)
    assert answers == [b""]
    ours.close()
    theirs.close()


def test_what_somebody_uses_does_not_wait_for_long_when_it_connects_anew():
    """Who acknowledges asks once for each message, and redis-py connects for each."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        used = redis.Connection(host, port, password="x", socket_timeout=30, socket_connect_timeout=30)
        pool = SimpleNamespace(_available_connections=[], _in_use_connections=[used], connection_kwargs={})
        limit_answers(SimpleNamespace(channels=[SimpleNamespace(_pool=pool)]), 0.05)
        started = time.monotonic()
        with pytest.raises((redis.TimeoutError, redis.ConnectionError)):
            used.connect()
        assert time.monotonic() - started < 15
        used.disconnect()
