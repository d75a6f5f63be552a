"""Sockets and links that keep to the deadline of a call, whatever the peer does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque

import pytest

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.sockets import TimelySocket, look_up
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.testing.processes import wait_until
from tests.support.peers import (
    NONSENSE,
    SILENCE,
    TRICKLING,
    peer,
    rabbitmq,
    redis_server,
    stay_silent,
    trickle,
    unused_port,
)

TIMEOUT = 0.6
#: Seconds by which a call may exceed its timeout, and what a busy machine adds.
GRACE, BUSY = 0.3, 3.0


@contextlib.contextmanager
def lasting(timeout):
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < timeout + GRACE + BUSY, f"took {took:.2f} s"


# -- sockets ----------------------------------------------------------------------------------------------------


class Counted:
    """A socket that counts how often its time limit is set."""

    def __init__(self, sock):
        self.sock, self.limits = sock, []

    def __getattr__(self, name):
        return getattr(self.sock, name)

    def settimeout(self, seconds):
        self.limits.append(seconds)
        self.sock.settimeout(seconds)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Counted(ours), theirs


def test_a_read_ends_at_the_deadline_however_long_its_own_limit(pair):
    ours, _ = pair
    until = Deadline()
    sock = TimelySocket(ours, until)
    sock.settimeout(60)
    until.at = time.monotonic() + 0.1

    with lasting(0.1), pytest.raises(TimeoutError):
        sock.recv(1)


def test_a_time_limit_that_is_over_is_a_timeout(pair):
    ours, _ = pair
    sock = TimelySocket(ours, Deadline())
    sock.settimeout(-0.1)  # what a driver has left, on a machine that stood still

    with pytest.raises(TimeoutError):
        sock.recv(1)


@pytest.mark.parametrize("scheme", ["amqp", "redis"])
def test_a_connection_that_is_begun_too_late_is_an_outage(monkeypatch, scheme):
    def stalled(step, timeout, what, **kwargs):
        time.sleep(max(timeout, 0) + 0.02)
        return step()

    monkeypatch.setattr("kombu_paired.brokers.links.bounded", stalled)
    with peer(stay_silent) as port:
        sender = KombuNamespace("primary", [f"{scheme}://127.0.0.1:{port}"], {}, send_timeout=0.2).sender()
        with pytest.raises(NamespaceFailure) as caught:
            sender.send(Message(b"x", routing_key="orders"), 0.2)
    assert (caught.value.kind, caught.value.maybe_stored) == (FailureKind.UNREACHABLE, False)


def test_a_peer_that_trickles_does_not_put_the_deadline_off(pair):
    ours, theirs = pair
    until = Deadline(0.2)
    sock = TimelySocket(ours, until)
    sock.settimeout(60)
    ended = threading.Event()

    def send():
        while not ended.wait(0.01):
            theirs.sendall(b"x")

    threading.Thread(target=send, daemon=True).start()
    with lasting(0.2), pytest.raises(TimeoutError):
        deque(iter(lambda: sock.recv(1), None), maxlen=0)  # for ever
    ended.set()


def test_after_the_deadline_nothing_is_written(pair):
    ours, theirs = pair
    sock = TimelySocket(ours, Deadline(-1))
    with pytest.raises(TimeoutError):
        sock.sendall(b"x")
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)


def test_a_peer_that_does_not_read_is_found_out_at_the_deadline(pair):
    ours, _ = pair
    sock = TimelySocket(ours, Deadline(0.2))
    with lasting(0.2), pytest.raises(TimeoutError):
        sock.sendall(b"x" * 30_000_000)


def test_a_read_that_must_not_wait_does_not_even_after_the_deadline(pair):
    ours, theirs = pair
    sock = TimelySocket(ours, Deadline(-1))
    sock.settimeout(0)
    with pytest.raises(BlockingIOError):
        sock.recv(1)
    with pytest.raises(TimeoutError):
        sock.read(1)
    theirs.sendall(b"x")
    assert sock.recv(1) == b"x"


def test_a_socket_knows_whether_there_is_something_to_read(pair):
    ours, theirs = pair
    sock = TimelySocket(ours, Deadline())
    assert sock.is_quiet()
    theirs.sendall(b"x")
    assert not sock.is_quiet()
    assert sock.recv(1) == b"x"
    assert sock.is_quiet()
    theirs.close()
    assert not sock.is_quiet()


@pytest.mark.parametrize("patched", ["gevent", "eventlet"])
def test_a_patched_poll_is_not_asked_whether_there_is_something(pair, monkeypatch, patched):
    ours, theirs = pair
    if patched == "gevent":  # it would take a turn of the event loop for each message
        monkeypatch.setattr("select.poll", lambda: pytest.fail("gevent's"))
    else:
        monkeypatch.delattr("select.poll")
    sock = TimelySocket(ours, Deadline())
    assert sock.is_quiet()
    theirs.sendall(b"x")
    assert not sock.is_quiet()


@pytest.mark.parametrize("can_poll", [True, False], ids=["poll", "no-poll"])
def test_looking_whether_something_has_arrived_takes_nothing_away(pair, monkeypatch, can_poll):
    ours, theirs = pair
    if not can_poll:  # as over TLS, where what has arrived need not be for the driver
        monkeypatch.setattr("kombu_paired.brokers.sockets.system_poll", None)
    sock = TimelySocket(ours, Deadline(5))
    assert not sock.has_arrived()
    theirs.sendall(b"frame")
    assert sock.has_arrived()
    assert sock.has_arrived()
    assert sock.read(1) == b"frame"
    assert not sock.has_arrived()

    threading.Timer(0.05, theirs.sendall, [b"late"]).start()
    assert sock.read(1) == b"late"  # it waits as ever

    theirs.close()
    assert sock.has_arrived()
    assert sock.read(1) == b""


def test_a_time_limit_costs_a_system_call_only_when_it_changed(pair):
    ours, theirs = pair
    until = Deadline()
    sock = TimelySocket(ours, until)
    for _ in range(100):
        sock.settimeout(10)  # as py-amqp does before and after each frame
        until.at = time.monotonic() + 10
        theirs.sendall(b"x")
        assert sock.recv(1) == b"x"
        until.at = float("inf")
        sock.settimeout(None)
        assert sock.gettimeout() is None
    assert ours.limits == [pytest.approx(10, abs=0.1)]


def test_a_closed_socket_has_no_limit_to_put_back_and_says_so_only_when_it_is_used(pair):
    ours, _ = pair
    sock = TimelySocket(ours, Deadline())
    ours.close()
    sock.settimeout(3)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sock.recv(1)


# -- resolving --------------------------------------------------------------------------------------------------


@pytest.fixture
def resolver(monkeypatch):
    """``getaddrinfo`` of a resolver that hangs until it is told to go on; the hosts that it was asked for."""
    asked, go_on, resolve = [], threading.Event(), socket.getaddrinfo

    def hang(host, *args, **kwargs):
        asked.append(host)
        go_on.wait(10)
        return resolve("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    yield asked
    go_on.set()


def test_a_resolver_that_hangs_is_asked_once_and_waited_for_in_time(resolver):
    for _ in range(5):
        with lasting(0.05), pytest.raises(TimeoutError, match=r"the address of hanging\.example"):
            look_up("hanging.example", 0.05)
    assert resolver == ["hanging.example"]


# -- links ------------------------------------------------------------------------------------------------------

DECLARATION = Declaration("queue_declare", {"queue": "orders", "durable": True, "auto_delete": False})


def a_call(urls, timeout=TIMEOUT):
    """What a fresh sender does for a call: declare and send with what is left."""
    sender = KombuNamespace("primary", urls, {}, send_timeout=timeout).sender()
    deadline = Deadline(timeout)
    sender.declare([DECLARATION], deadline.left)
    sender.send(Message(b"x", routing_key="orders"), deadline.left)


KINDS = ["amqp", "redis"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["refuses", "stays silent", "trickles"])
def test_a_peer_that_lets_nobody_in_takes_no_longer_than_the_timeout(kind, how):
    behave = stay_silent if how == "stays silent" else trickle(kind)
    with peer(behave) as port, lasting(TIMEOUT), pytest.raises(NamespaceFailure) as caught:
        a_call([f"{kind}://127.0.0.1:{unused_port() if how == 'refuses' else port}"])
    assert (caught.value.kind, caught.value.whole_namespace) == (FailureKind.UNREACHABLE, True)
    assert not caught.value.maybe_stored


@pytest.mark.parametrize("kind", [*KINDS, "sentinel"])
def test_a_link_to_a_host_whose_name_is_not_resolved_in_time(kind, resolver):
    options = {"master_name": "m"} if kind == "sentinel" else {}
    namespace = KombuNamespace("primary", [f"{kind}://{kind}.unresolved.example"], options, send_timeout=TIMEOUT)
    before = threading.active_count()

    for _ in range(4):
        with lasting(TIMEOUT), pytest.raises(NamespaceFailure) as caught:
            namespace.sender().send(Message(b"x", routing_key="orders"), TIMEOUT)
        assert (caught.value.kind, caught.value.whole_namespace) == (FailureKind.UNREACHABLE, True)

    assert resolver == [f"{kind}.unresolved.example"]
    assert threading.active_count() <= before + 1


def test_a_receiver_that_waits_for_a_peer_that_trickles_can_be_interrupted():
    behave = rabbitmq({(60, 20): TRICKLING}, and_answer=True)
    with peer(behave) as port:
        namespace = KombuNamespace("secondary", [f"amqp://127.0.0.1:{port}"], {}, send_timeout=5)
        receiver = namespace.receiver(["orders"], 10, 5)
        threading.Timer(0.2, receiver.interrupt).start()
        with lasting(10):  # a second; far from the 60 that it would wait
            assert receiver.receive(10, 60) == []
        receiver.link.drop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_trickles_leaves_no_thread_behind(kind):
    with peer(trickle(kind)) as port:
        for _ in range(3):
            with pytest.raises(NamespaceFailure):
                a_call([f"{kind}://127.0.0.1:{port}"], 0.2)
        deadline = time.monotonic() + 20
        while any("connecting" in each.name for each in threading.enumerate()):
            assert time.monotonic() < deadline, threading.enumerate()
            time.sleep(0.02)


@pytest.mark.parametrize("how", [SILENCE, TRICKLING])
@pytest.mark.parametrize("at", ["declare", "send"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_lets_us_in_and_then_keeps_us_waiting(kind, at, how):
    if kind == "amqp":
        behave = rabbitmq({{"declare": (50, 10), "send": (60, 40)}[at]: how})
    else:
        behave = redis_server({{"declare": b"LLEN", "send": b"LPUSH"}[at]: how})
    with peer(behave) as port:
        for timeout in (TIMEOUT, 4 * TIMEOUT, 10 * TIMEOUT):  # a busy machine may take the shortest to connect
            with lasting(timeout), pytest.raises(NamespaceFailure) as caught:
                a_call([f"{kind}://127.0.0.1:{port}"], timeout)
            if caught.value.kind is not FailureKind.UNREACHABLE:
                break
    assert caught.value.kind is FailureKind.TIMEOUT
    assert caught.value.maybe_stored == (at == "send")


@pytest.mark.parametrize("step", ["connect", "send"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_talks_nonsense_is_at_fault_and_not_the_message(kind, step):
    if kind == "amqp":
        behave = rabbitmq({{"connect": (20, 10), "send": (60, 40)}[step]: NONSENSE})
    else:
        behave = redis_server({{"connect": b"PING", "send": b"LPUSH"}[step]: NONSENSE})
    with peer(behave) as port, lasting(TIMEOUT), pytest.raises(NamespaceFailure) as caught:
        a_call([f"{kind}://127.0.0.1:{port}"])
    assert caught.value.kind.counts


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_names_the_address_that_failed(kind):
    urls = [f"{kind}://:geheim@127.0.0.1:{unused_port()}", f"{kind}://:geheim@127.0.0.1:{unused_port()}"]
    with pytest.raises(NamespaceFailure) as caught:
        a_call(urls)
    assert str(caught.value).startswith(f"primary namespace {urls[1].replace('geheim', '**')}: unreachable")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_done_after_a_call_that_was_in_time_is_not_late(kind):
    with peer({"amqp": rabbitmq, "redis": redis_server}[kind]()) as port:
        namespace = KombuNamespace("primary", [f"{kind}://127.0.0.1:{port}"], {}, send_timeout=20)
        sender = namespace.sender()
        sender.declare([DECLARATION], 2.0)
        time.sleep(2.1)
        sender.send(Message(b"x", routing_key="orders"), 20)
        sender.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_connected_too_late_is_closed(kind, monkeypatch):
    go_on, closed = threading.Event(), threading.Event()

    def serve(connection):
        go_on.wait(30)
        {"amqp": rabbitmq, "redis": redis_server}[kind]()(connection)
        closed.set()  # by the client: there is nothing more to read

    with peer(serve) as port:
        link = KombuNamespace("primary", [f"{kind}://127.0.0.1:{port}"], {}, send_timeout=TIMEOUT).link()
        with monkeypatch.context() as patience:
            patience.setattr(link, "make_timely", lambda transport, until: None)  # a driver that waits for ever
            patience.setattr(link, "connect_options", lambda patience: {})
            with lasting(TIMEOUT), pytest.raises(NamespaceFailure):
                link.open(TIMEOUT)
        go_on.set()
        assert closed.wait(30)
    assert not link.is_open


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_name_that_cannot_be_one_is_not_the_messages_fault(kind):
    with pytest.raises(NamespaceFailure) as caught:
        a_call([f"{kind}://{'x' * 70}.example"])
    assert isinstance(caught.value.cause, UnicodeError)
    assert caught.value.kind is FailureKind.UNREACHABLE


# -- several addresses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_all_addresses_are_tried_in_one_call_and_a_silent_one_gets_a_share(kind):
    tried = []

    def silent(name):
        return lambda connection: tried.append(name) or stay_silent(connection)

    with peer(silent("first")) as first, peer(silent("second")) as second:
        urls = [f"{kind}://127.0.0.1:{port}" for port in (first, unused_port(), second)]
        with lasting(4 * TIMEOUT), pytest.raises(NamespaceFailure) as caught:
            a_call(urls, 4 * TIMEOUT)
    wait_until(lambda: len(tried) > 1, 30, lambda: f"only {tried}")  # a peer may be slower than who gives it up
    assert tried == ["first", "second"]
    assert caught.value.whole_namespace


def test_two_threads_that_fail_on_one_address_do_not_come_back_to_it():
    namespace = KombuNamespace("primary", ["amqp://a", "amqp://b", "amqp://c"], {}, send_timeout=1)

    namespace.put_behind("amqp://a")
    namespace.put_behind("amqp://a")

    assert namespace.urls == ("amqp://b", "amqp://c", "amqp://a")


def test_a_consumers_failure_is_counted_against_the_address_that_it_was_made_for():
    namespace = KombuNamespace("primary", ["amqp://a", "amqp://b"], {}, send_timeout=1)
    clients = [namespace.consumer_client(None, 1) for _ in range(2)]

    for client in clients:
        assert namespace.try_next_url(client) == 2

    assert namespace.consumer_client(None, 1).hostname == "b"


@pytest.mark.parametrize("kind", KINDS)
def test_a_password_that_one_address_refuses_is_not_tried_on_the_others(kind, monkeypatch):
    namespace = KombuNamespace("primary", [f"{kind}://a", f"{kind}://b"], {}, send_timeout=1)
    link, tried = namespace.link(), []

    def refuse(url, patience):
        tried.append(url)
        raise PermissionError("no")

    monkeypatch.setattr(link, "_connect", refuse)
    with pytest.raises(NamespaceFailure) as caught:
        link.open(1)
    assert caught.value.kind is FailureKind.UNAUTHORIZED
    assert tried == [f"{kind}://a"]
