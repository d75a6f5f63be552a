"""Links that share a connection: what the service sees of them, and what each of them sees."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kombu_paired.brokers.bell import Bell
from kombu_paired.brokers.servicebus import trunk as room
from kombu_paired.brokers.servicebus import trunks
from kombu_paired.brokers.servicebus.frames import BEGIN, CLOSE, END, OPEN, code_of, empty, split
from kombu_paired.brokers.servicebus.trunk import Trunk
from kombu_paired.brokers.servicebus.trunks import board, wait_for_any

HEADER = b"AMQP\0\1\0\0"
EMPTY = b"\0\0\0\x08\2\0\0\0"
#: Any other frame of a session.
FLOW = 0x13
LONG = 30.0


class Service:
    """The other side of a connection, and what connects to it."""

    def __init__(self):
        self.sock, self.end = socket.socketpair()
        self.connected = 0
        self._rest = b""
        self.end.settimeout(LONG)

    def connect(self):
        self.connected += 1

    def read(self, count):
        """So many frames: (channel, code)."""
        frames = []
        while len(frames) < count:
            found = self.end.recv(1 << 16)
            assert found, "the connection was closed"
            more, self._rest = split(self._rest + found)
            frames += more
        assert len(frames) == count
        return [(int.from_bytes(each[6:8], "big"), code_of(each)) for each in frames]

    def say(self, *frames):
        self.end.sendall(b"".join(frames))

    def is_quiet(self):
        self.end.setblocking(False)
        try:
            return not self.end.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self.end.settimeout(LONG)


def begin(channel, answers):
    """A session of the service's, that answers to one of ours."""
    body = bytes((0, 0x53, BEGIN, 0xC0, 5, 1, 0x60)) + answers.to_bytes(2, "big")
    return (8 + len(body)).to_bytes(4, "big") + b"\2\0" + channel.to_bytes(2, "big") + body


@pytest.fixture
def service():
    made = Service()
    yield made
    made.end.close()
    made.sock.close()


@pytest.fixture
def trunk(service):
    return Trunk(service)


def greet(station):
    station.settimeout(LONG)
    station.connect()
    station.write(HEADER)
    station.write(empty(0, OPEN))


def stations(trunk, service, count):
    """Links with a session each; the service numbers them from 11."""
    found = [trunk.board() for _ in range(count)]
    for station in found:
        greet(station)
        station.write(empty(station.number, BEGIN))
    service.read(2 + count)
    service.say(HEADER, empty(0, OPEN), *(begin(10 + each.number, each.number) for each in found))
    for station in found:
        assert [code_of(station.read()) for _ in range(3)] == [0, OPEN, BEGIN]
    return found


def test_the_service_is_greeted_once_and_every_link_is_told_what_it_answered(trunk, service):
    first, second = trunk.board(), trunk.board()
    greet(first)
    greet(second)
    assert [code for _, code in service.read(2)] == [0, OPEN]
    service.say(HEADER, empty(0, OPEN))
    for station in (second, first):
        assert station.read() == HEADER
        assert code_of(station.read()) == OPEN
    late = trunk.board()
    greet(late)
    assert [code_of(late.read()) for _ in range(2)] == [0, OPEN]
    assert service.is_quiet()
    assert service.connected == 1


def test_each_link_gets_what_comes_for_its_session_whoever_reads_it(trunk, service):
    first, second = stations(trunk, service, 2)
    service.say(empty(12, FLOW), EMPTY, empty(11, FLOW)[:5])
    first.settimeout(0.05)
    with pytest.raises(TimeoutError):
        first.read()
    first.settimeout(LONG)
    assert second.has_input()
    assert code_of(second.read()) == FLOW
    service.say(empty(11, FLOW)[5:])
    assert code_of(first.read()) == FLOW


@pytest.mark.parametrize("is_patient", [True, False])
def test_who_waits_while_another_reads_is_woken_with_what_is_his(trunk, service, is_patient):
    first, second = stations(trunk, service, 2)
    second.is_patient = is_patient
    with ThreadPoolExecutor(2) as threads:
        reads = threads.submit(first.has_input, LONG)
        time.sleep(0.05)
        waits = threads.submit(second.read)
        time.sleep(0.05)
        service.say(empty(12, FLOW))
        assert code_of(waits.result(LONG)) == FLOW
        service.say(empty(11, FLOW))
        assert reads.result(LONG)


def test_who_waits_for_an_answer_reads_as_soon_as_the_other_has_stopped(trunk, service):
    first, second = stations(trunk, service, 2)
    with ThreadPoolExecutor(2) as threads:
        reads = threads.submit(first.read)
        time.sleep(0.05)
        waits = threads.submit(second.read)
        time.sleep(0.05)
        service.say(empty(11, FLOW))
        assert code_of(reads.result(LONG)) == FLOW  # and it reads no more
        service.say(empty(12, FLOW))
        assert code_of(waits.result(LONG / 2)) == FLOW


@pytest.fixture
def bell():
    made = Bell()
    yield made
    made.close()


@pytest.mark.parametrize("another_reads", [True, False])
def test_who_waits_for_a_bell_besides_is_woken_by_either(trunk, service, bell, another_reads):
    first, second = stations(trunk, service, 2)
    first.is_patient = second.is_patient = True
    with ThreadPoolExecutor(2) as threads:
        reads = threads.submit(first.has_input, LONG) if another_reads else None
        time.sleep(0.05)
        waits = threads.submit(wait_for_any, [second], LONG, bell)
        time.sleep(0.1)
        bell.ring()
        assert waits.result(LONG) is False
        waits = threads.submit(wait_for_any, [second], LONG, bell)
        time.sleep(0.05)
        service.say(empty(12, FLOW))
        assert waits.result(LONG) is True
        service.say(empty(11, FLOW))
        assert reads is None or reads.result(LONG)


def test_what_comes_for_others_ends_no_waiting_for_a_bell(trunk, service, bell):
    first, second = stations(trunk, service, 2)
    service.say(empty(11, FLOW))
    assert wait_for_any([second], 0.05, bell) is False
    assert first.inbox


def test_one_thread_waits_for_several_links(trunk, service, bell):
    first, second, third = stations(trunk, service, 3)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(wait_for_any, [first, second], LONG, bell)
        time.sleep(0.05)
        service.say(empty(13, FLOW), empty(12, FLOW))
        assert waits.result(LONG) is True
    assert [len(each.inbox) for each in (first, second, third)] == [0, 1, 1]


def test_also_for_links_of_several_connections_and_for_sockets(trunk, service, bell):
    other = Service()
    [here], [there] = stations(trunk, service, 1), stations(Trunk(other), other, 1)
    near, far = socket.socketpair()
    with near, far, ThreadPoolExecutor(1) as threads:
        for ring in (lambda: service.say(empty(11, FLOW)), lambda: other.say(empty(11, FLOW)), lambda: far.send(b"x")):
            waits = threads.submit(wait_for_any, [here, there, near], LONG, bell)
            time.sleep(0.05)
            ring()
            assert waits.result(LONG) is True
            here.inbox.clear()
            there.inbox.clear()
        near.recv(1)
        waits = threads.submit(wait_for_any, [here, there, near], LONG, bell)
        bell.ring()
        assert waits.result(LONG) is False
        assert wait_for_any([here, there, near], 0.0, bell) is False


def test_to_let_go_of_one_ends_its_session_and_wakes_who_waits_on_it_and_the_others_go_on(trunk, service):
    first, second = stations(trunk, service, 2)
    with ThreadPoolExecutor(2) as threads:
        reads, waits = threads.submit(second.has_input, LONG), None
        time.sleep(0.05)
        waits = threads.submit(first.read)
        time.sleep(0.05)
        first.shutdown()
        with pytest.raises(ConnectionError):
            waits.result(LONG)
        assert service.read(1) == [(1, END)]
        service.say(empty(12, FLOW))
        assert reads.result(LONG)
    with pytest.raises(ConnectionError):
        first.write(empty(1, FLOW))
    second.write(empty(2, FLOW))
    assert service.read(1) == [(2, FLOW)]


def test_a_session_s_number_is_free_when_the_service_has_heard_of_its_end(trunk, service):
    first, second = stations(trunk, service, 2)
    first.write(empty(1, END))
    first.leave()
    assert trunk.board().number == 3
    service.say(empty(11, FLOW), empty(11, END))
    assert not second.has_input(0.05)
    assert trunk.board().number == 1


def test_the_last_to_leave_closes_the_connection(trunk, service):
    first, second = stations(trunk, service, 2)
    first.leave()
    assert service.read(1) == [(1, END)]
    assert not trunk.is_over
    second.write(empty(0, CLOSE))  # the SDK says that of its own connection
    second.leave()
    assert service.read(2) == [(2, END), (0, CLOSE)]
    assert service.end.recv(1) == b""
    assert trunk.is_over
    assert trunk.board() is None


def test_every_link_is_told_when_the_service_closes_the_connection(trunk, service):
    both = stations(trunk, service, 2)
    service.say(empty(0, CLOSE))
    assert [code_of(each.read()) for each in both] == [CLOSE, CLOSE]
    assert service.read(1) == [(0, CLOSE)]
    assert trunk.board() is None
    service.end.close()
    for each in both:
        assert each.has_input(LONG)
        with pytest.raises(ConnectionError):
            each.read()


def test_every_link_finds_out_that_the_connection_is_gone(trunk, service):
    first, second = stations(trunk, service, 2)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(each.read) for each in (first, second)]
        time.sleep(0.05)
        service.end.close()
        for each in waiting:
            with pytest.raises(ConnectionError):
                each.result(LONG)
    for each in (first, second):
        with pytest.raises(ConnectionError):
            each.write(empty(each.number, FLOW))


def test_a_service_that_takes_nothing_loses_all_of_them(trunk, service, monkeypatch):
    monkeypatch.setattr(room, "WRITE_PATIENCE", 0.1)
    first, second = stations(trunk, service, 2)

    def fill():
        while True:
            first.write(empty(1, FLOW) + bytes(4096))

    with pytest.raises(ConnectionError):
        fill()
    with pytest.raises(ConnectionError):
        second.read()


def test_to_let_go_while_another_writes_to_a_stuck_service_takes_no_longer_than_that(trunk, service, monkeypatch):
    monkeypatch.setattr(room, "WRITE_PATIENCE", 30.0)
    first, second = stations(trunk, service, 2)

    def fill():
        while True:
            first.write(empty(1, FLOW) + bytes(4096))

    with ThreadPoolExecutor(1) as threads:
        filling = threads.submit(fill)
        time.sleep(0.2)
        before = time.monotonic()
        second.shutdown()
        assert time.monotonic() - before < 10
        with pytest.raises(ConnectionError):
            filling.result(LONG)


def test_one_that_was_silent_when_a_link_failed_takes_no_further_links(trunk, service, monkeypatch):
    first, second, third = stations(trunk, service, 3)
    first.shutdown()
    assert trunk.board() is not None  # it was heard just now
    monkeypatch.setattr(room, "SILENCE", -1.0)
    second.shutdown()
    assert trunk.board() is None
    third.write(empty(3, FLOW))
    assert service.read(3) == [(1, END), (2, END), (3, FLOW)]


def test_nor_does_one_that_was_silent_for_long(trunk, service, monkeypatch):
    stations(trunk, service, 1)
    assert trunk.board() is not None
    monkeypatch.setattr(room, "FRESH", -1.0)
    assert trunk.board() is None


class Refusing:
    sock = None

    def connect(self):
        raise ConnectionRefusedError("nobody there")


def test_who_connects_is_told_why_it_failed_and_so_is_who_waited_for_that():
    trunk = Trunk(Refusing())
    first, second = trunk.board(), trunk.board()
    with pytest.raises(ConnectionRefusedError):
        first.connect()
    with pytest.raises(ConnectionError, match="nobody there"):
        second.connect()
    assert trunk.board() is None


class Slow(Service):
    def __init__(self):
        super().__init__()
        self.may = threading.Event()

    def connect(self):
        self.may.wait(LONG)


def test_who_waits_for_another_to_connect_can_be_let_go():
    service = Slow()
    trunk = Trunk(service)
    first, second = trunk.board(), trunk.board()
    with ThreadPoolExecutor(2) as threads:
        connecting = threads.submit(first.connect)
        time.sleep(0.05)
        waiting = threads.submit(second.connect)
        time.sleep(0.05)
        second.shutdown()
        with pytest.raises(ConnectionError):
            waiting.result(LONG)
        service.may.set()
        connecting.result(LONG)


def test_the_links_of_a_process_to_one_place_share_one_and_a_child_process_has_its_own():
    service, other = Service(), Service()
    first, second = board("there", service), board("there", other)
    greet(first)
    greet(second)
    assert (service.connected, other.connected) == (1, 0)
    greet(board("elsewhere", other))
    assert other.connected == 1
    trunks._start_clean_after_fork()
    child = Service()
    greet(board("there", child))
    assert child.connected == 1
    with pytest.raises(ConnectionError):
        first.write(empty(1, BEGIN))
    assert len(service.read(2)) == 2
    assert service.is_quiet()
