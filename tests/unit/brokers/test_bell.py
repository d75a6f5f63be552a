"""Who waits for a socket is woken by what comes there, and by whoever rings."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kombu_paired.brokers.bell import Bell, is_readable

LONG = 20.0


@pytest.fixture
def bell() -> Iterator[Bell]:
    made = Bell()
    yield made
    made.close()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_who_waits_is_woken(bell):
    started = time.monotonic()
    threading.Timer(0.05, bell.ring).start()
    assert not bell.wait(LONG)
    assert time.monotonic() - started < LONG / 2


def test_what_rang_before_ends_the_next_wait_once(bell, sockets):
    for _ in range(3):
        bell.ring()
    started = time.monotonic()
    bell.wait(LONG, sockets[0])
    assert time.monotonic() - started < LONG / 2
    bell.wait(0.05)
    assert time.monotonic() - started >= 0.05


def test_a_socket_that_can_be_read_ends_it_too_and_that_is_said(bell, sockets):
    here, there = sockets
    assert not bell.wait(0.01, here)
    there.send(b"x")
    assert bell.wait(LONG, here)
    bell.ring()
    assert bell.wait(LONG, here)


def test_a_socket_that_is_shut_ends_it(bell, sockets):
    sockets[0].shutdown(socket.SHUT_RDWR)
    assert bell.wait(LONG, sockets[0])


def test_one_that_is_closed_is_silent():
    bell = Bell()
    bell.close()
    bell.ring()


def test_without_poll_it_is_the_same(bell, sockets, monkeypatch):
    monkeypatch.delattr("select.poll")
    here, there = sockets
    bell.ring()
    assert not bell.wait(LONG, here)
    assert not is_readable(here)
    there.send(b"x")
    assert is_readable(here)
    assert bell.wait(LONG, here)


def test_any_of_several_sockets_ends_the_wait(bell, sockets):
    here, there = sockets
    idle, other = socket.socketpair()
    with idle, other:
        threading.Timer(0.05, there.send, [b"x"]).start()
        assert bell.wait(LONG, idle, here)
        assert not bell.wait(0.0, idle)
