"""An emulator that is far away: everything takes its time on the way, and much is on its way at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import urllib.request
from collections.abc import Callable

import pytest

from kombu_paired.emulator import Emulator
from kombu_paired.emulator.server.distance import Road
from kombu_paired.emulator.server.server import Server
from kombu_paired.emulator.server.settings import Settings
from kombu_paired.emulator.server.timers import Timers
from kombu_paired.emulator.wire.frames import Begin, Disposition, Transfer
from tests.emulator.by_hand import MESSAGE, PATIENCE, Client, is_accepted

LATENCY = 0.1


class Loop(Timers):
    """An event loop whose time passes when it is told to."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.passed = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.passed

    def later(self, seconds: float, action: Callable[[], None]) -> None:  # type: ignore[override]
        self.due.append((self.passed + seconds, action))

    def run(self, seconds: float) -> None:
        self.passed += seconds
        due, self.due = self.due, []
        for when, action in due:
            if when <= self.passed:
                action()
            else:
                self.due.append((when, action))


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def arrived() -> list[str]:
    return []


def test_no_distance_is_no_delay(loop: Loop, arrived: list[str]) -> None:
    Road(loop, 0.0).send(lambda: arrived.append("a"))
    assert arrived == ["a"]


def test_what_is_sent_together_arrives_together_and_in_order(loop: Loop, arrived: list[str]) -> None:
    road = Road(loop, 1.0)
    for each in "abc":
        road.send(lambda each=each: arrived.append(each))
    loop.run(0.5)
    road.send(lambda: arrived.append("d"))
    assert arrived == []
    loop.run(0.5)
    assert arrived == ["a", "b", "c"]
    loop.run(0.5)
    assert arrived == ["a", "b", "c", "d"]


def test_what_is_under_way_waits_where_nobody_reads(loop: Loop, arrived: list[str]) -> None:
    road = Road(loop, 1.0)
    road.send(lambda: arrived.append("a"))
    road.pause(True)
    loop.run(2.0)
    assert arrived == []
    road.pause(False)
    loop.run(0.0)
    assert arrived == ["a"]


def test_what_is_under_way_when_the_road_closes_never_arrives(loop: Loop, arrived: list[str]) -> None:
    road = Road(loop, 1.0)
    road.send(lambda: arrived.append("a"))
    road.close()
    loop.run(2.0)
    assert arrived == []


@pytest.mark.parametrize("process", [False, True])
def test_each_answer_takes_there_and_back(process: bool) -> None:
    with Emulator(["q"], latency=LATENCY, process=process) as emulator, contextlib.closing(Client(emulator)) as client:
        started = time.monotonic()
        assert client.open().next(Begin, PATIENCE) is not None
        assert time.monotonic() - started >= 2 * LATENCY
        started = time.monotonic()
        with urllib.request.urlopen(f"{emulator.url}/q", timeout=PATIENCE):
            assert time.monotonic() - started >= 2 * LATENCY


def test_many_sends_are_under_way_at_once() -> None:
    with Emulator(["q"], latency=LATENCY) as emulator, contextlib.closing(Client(emulator).open()) as client:
        assert client.attach("q", 0, receives=False, seconds=PATIENCE)
        started = time.monotonic()
        for number in range(50):
            client.send(Transfer(0, number, b"tag", 0, False), MESSAGE)
        for _ in range(50):
            assert is_accepted(client.next(Disposition, PATIENCE))
        assert time.monotonic() - started < 50 * 2 * LATENCY / 2


def test_whoever_hangs_up_has_said_what_is_under_way() -> None:
    with Emulator(["q"], latency=LATENCY) as emulator:
        client = Client(emulator).open()
        assert client.attach("q", 0, receives=False, seconds=PATIENCE)
        client.transfer(0, MESSAGE)
        client.close()
        deadline = time.monotonic() + PATIENCE
        while not emulator.status()["queues"]["q"]["active"]:
            assert time.monotonic() < deadline


def test_who_waits_in_vain_is_cut_off_at_the_end() -> None:
    with Emulator(latency=PATIENCE) as emulator:
        client = socket.create_connection(("127.0.0.1", emulator.port), 5)
        client.sendall(b"AMQP\x00\x01\x00\x00")
    with contextlib.closing(client):
        client.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionError):
            assert client.recv(100) == b""


@pytest.mark.parametrize("turns", range(6))
def test_who_is_on_the_doorstep_when_it_stops_is_cut_off(turns: int) -> None:
    async def stop_while_somebody_comes_in() -> socket.socket:
        server = Server(Settings(port=0))
        await server.start()
        client = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        for _ in range(turns):  # the loop takes some to let a client in
            await asyncio.sleep(0)
        await server.stop()
        return client

    with contextlib.closing(asyncio.run(stop_while_somebody_comes_in())) as client:
        client.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionError):
            assert client.recv(100) == b""
