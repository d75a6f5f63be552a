"""Failure kinds of Service Bus: every line of the SDK's exception table, provoked through the namespace.

A line is what happens, the kind, whether the message may have been stored, and whether the namespace as a whole is
concerned. No call may take longer than its timeout and a moment.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager

import pytest

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, DeadLetter
from kombu_paired.declarations import Declaration, Entity
from kombu_paired.emulator import Emulator
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from tests.support.noise import Stopwatch
from tests.support.proxy import Proxy
from tests.support.side_by_side import side_by_side

pytest.importorskip("azure.servicebus")

from kombu_paired.brokers.servicebus import compat
from tests.support.receiving import open_receiver, receive_from

UNREACHABLE, TIMEOUT, FAULT, THROTTLED, UNAUTHORIZED, REJECTED, MISSING = FailureKind
SECONDS = 3.0
#: Seconds by which a call may exceed its timeout on a busy machine.
GRACE = 2.5
POLICIES = ["main:a/+=key==", "sender:k:Send", "listener:k:Listen"]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared():
    """One emulator for all faults that an entity can have for itself."""
    with Emulator(policies=POLICIES) as running:
        yield running


@pytest.fixture
def emulator(shared):
    yield shared
    shared.clear_faults()


@pytest.fixture
def own(tmp_path):
    """An emulator that may die: in a process of its own, with its messages on disk."""
    with Emulator(process=True, data=tmp_path / "data", policies=POLICIES) as running:
        yield running


def on(emulator, user="main", key="a/+=key==", port=None):
    url = f"azureservicebus://{user}:{key}@127.0.0.1:{port or emulator.port}"
    return KombuNamespace("primary", [url], {}, send_timeout=SECONDS)


def queue(name):
    return Declaration("queue_declare", {"queue": name, "durable": True, "auto_delete": False})


def message(name, body=b"x", **properties):
    return Message(body, routing_key=name, properties={"message_id": f"m-{next(_numbers)}", **properties})


def make_queue(emulator):
    name = f"queue-{next(_numbers)}"
    sender = on(emulator).sender()
    sender.declare([queue(name)], 10)
    sender.close()
    return name


@pytest.fixture
def name(emulator):
    """A queue that is there."""
    return make_queue(emulator)


@pytest.fixture
def sender(emulator):
    made = on(emulator).sender()
    yield made
    made.close()


def stored(emulator, name):
    return emulator.status()["queues"][name]["active"]


def line(failure):
    return failure.kind, failure.maybe_stored, failure.whole_namespace


@contextmanager
def in_time(seconds=SECONDS):
    watch = Stopwatch()
    yield
    took = watch.seconds
    assert took <= seconds + GRACE, f"it took {took:.2f} s"


def failing(call, seconds=SECONDS):
    """The failure that a call ends in, in time."""
    with in_time(seconds), pytest.raises(NamespaceFailure) as caught:
        call()
    assert "a/+=key" not in str(caught.value)
    return caught.value


# -- while a message is sent ------------------------------------------------------------------------------------

REFUSALS = [
    ("server-busy", THROTTLED, False),
    ("timeout", TIMEOUT, True),
    ("size", REJECTED, False),
    ("quota", FAULT, False),
    ("disabled", FAULT, False),
    ("internal-error", FAULT, True),
    ("container-close", FAULT, True),
    ("operation-cancelled", FAULT, True),
    ("reset", UNREACHABLE, True),
    ("detach", UNREACHABLE, True),
    ("close", UNREACHABLE, True),
    ("detach com.microsoft:server-busy", UNREACHABLE, True),
    ("detach amqp:unauthorized-access", UNREACHABLE, True),
    ("close com.microsoft:server-busy", UNREACHABLE, True),
    ("close amqp:connection:forced", UNREACHABLE, True),
    ("lost-acknowledgement", UNREACHABLE, True),
    ("silent", TIMEOUT, True),
    ("released", FAULT, False),
    ("modified", FAULT, False),
]


@pytest.mark.parametrize(("what", "kind", "maybe_stored"), REFUSALS, ids=[each[0] for each in REFUSALS])
def test_a_send_that_fails(emulator, sender, name, what, kind, maybe_stored):
    fault, _, condition = what.partition(" ")
    sender.send(message(name), SECONDS)
    emulator.fault(fault, name, on=["send"], times=1, condition=condition or None)

    failure = failing(lambda: sender.send(message(name), SECONDS))

    assert line(failure) == (kind, maybe_stored, False)
    sender.send(message(name), SECONDS)
    assert stored(emulator, name) == (3 if fault == "lost-acknowledgement" else 2)


def test_an_outcome_that_nobody_can_read_ends_with_the_time_of_the_send(emulator, sender, name, monkeypatch):
    """The SDK waits for ever then. What it cannot read today is read here; another outcome may be of tomorrow."""
    monkeypatch.setattr(compat, "read_every_outcome", lambda raw: None)
    emulator.fault("released", name, times=1)
    assert line(failing(lambda: sender.send(message(name), SECONDS))) == (TIMEOUT, True, False)
    sender.send(message(name), SECONDS)


@pytest.mark.parametrize(("what", "kind", "maybe_stored"), REFUSALS, ids=[each[0] for each in REFUSALS])
def test_a_batch_that_fails_and_its_neighbour(emulator, sender, name, what, kind, maybe_stored):
    fault, _, condition = what.partition(" ")
    neighbour = make_queue(emulator)
    # A batch that is rejected for one of its messages is taken apart, and each of them is refused for itself.
    emulator.fault(fault, name, on=["send"], times=3 if kind is REJECTED else 1, condition=condition or None)

    with in_time(4 * SECONDS):
        answers = sender.send_batch([message(name), message(neighbour), message(name)], 4 * SECONDS)

    failed = (kind, maybe_stored, False)
    assert [answer and line(answer) for answer in answers] == [failed, None, failed]
    assert stored(emulator, neighbour) == 1
    assert sender.send_batch([message(name), message(neighbour)], 4 * SECONDS) == [None, None]


def test_an_entity_that_is_silent_takes_the_time_of_the_others_only_once(emulator, sender):
    """A syphon's batches go to many entities, and have one timeout."""
    names = sorted(make_queue(emulator) for _ in range(3))
    emulator.fault("silent", names[0], on=["send"])
    batch = [message(name) for name in names]

    with in_time():
        first = sender.send_batch(batch, SECONDS)
    with in_time():
        second = sender.send_batch(batch, SECONDS)

    assert line(first[0]) == (TIMEOUT, True, False)
    assert not any(each.whole_namespace for each in first if each is not None)
    assert second[1:] == [None, None]
    emulator.clear_faults()
    assert sender.send_batch(batch, SECONDS) == [None] * 3


@pytest.mark.parametrize("what", ["server-busy", "timeout", "quota", "disabled", "internal-error", "reset", "silent"])
def test_a_ping_fails_as_a_message_would(emulator, name, what):
    kind = {each[0]: each[1] for each in REFUSALS}[what]
    neighbour, namespace = make_queue(emulator), on(emulator)
    emulator.fault(what, name, on=["send"])

    failure = failing(lambda: namespace.probe(Entity("", name), SECONDS))

    assert (failure.kind, failure.whole_namespace) == (kind, False)
    namespace.probe(Entity("", neighbour), SECONDS)
    namespace.probe(None, SECONDS)
    emulator.clear_faults()
    namespace.probe(Entity("", name), SECONDS)


def test_a_message_that_is_too_large_is_rejected_before_it_is_sent(emulator, sender, name):
    failure = failing(lambda: sender.send(message(name, b"x" * 300_000), SECONDS))

    assert line(failure) == (REJECTED, False, False)
    assert "400" in str(failure)
    assert "262144" in str(failure)
    sender.send(message(name), SECONDS)


@pytest.mark.parametrize("condition", ["amqp:not-allowed", "com.microsoft:argument-error", "amqp:decode-error"])
def test_a_message_that_the_service_calls_wrong_is_rejected(emulator, sender, name, condition):
    emulator.fault("internal-error", name, times=1, condition=condition)
    assert line(failing(lambda: sender.send(message(name), SECONDS))) == (REJECTED, False, False)


def test_a_session_id_that_is_too_long_is_rejected(emulator, sender, name):
    failure = failing(lambda: sender.send(message(name, session_id="s" * 129), SECONDS))
    assert line(failure) == (REJECTED, False, False)
    sender.send(message(name), SECONDS)


def test_with_duplicate_detection_a_lost_acknowledgement_leaves_one_copy(emulator):
    name, sent = f"queue-{next(_numbers)}", message("x")
    emulator_queue(emulator, name, requires_duplicate_detection=True)
    sent.routing_key = name
    sender = on(emulator).sender()
    emulator.fault("lost-acknowledgement", name, times=1)

    failure = failing(lambda: sender.send(sent, SECONDS))
    sender.send(sent, SECONDS)
    sender.close()

    assert line(failure) == (UNREACHABLE, True, False)
    assert stored(emulator, name) == 1


def emulator_queue(emulator, name, **properties):
    """Make a queue that a declaration would not make."""
    namespace = on(emulator)
    channel = namespace.new_client(namespace.urls[0]).transport
    with channel.clients.administration(10) as administration:
        administration.create_queue(name, **properties)


# -- while a link is opened -------------------------------------------------------------------------------------

LINKS = [
    ("disabled", FAULT),
    ("unauthorized", UNAUTHORIZED),
    ("not-found", MISSING),
    ("server-busy", THROTTLED),
    ("internal-error", FAULT),
    ("timeout", UNREACHABLE),
    ("detach", UNREACHABLE),
    ("silent", UNREACHABLE),
]


@pytest.mark.parametrize(("fault", "kind"), LINKS, ids=[each[0] for each in LINKS])
def test_a_link_that_is_refused_is_its_entitys_own(emulator, sender, name, fault, kind):
    """Nothing was sent, and the service is there: no other entity has to share this."""
    neighbour = make_queue(emulator)
    emulator.fault(fault, name, on=["attach"])

    failure = failing(lambda: sender.send(message(name), SECONDS))
    received = failing(lambda: open_receiver(on(emulator), name, 10, SECONDS))

    assert line(failure) == (kind, False, False)
    assert line(received) == (kind, False, False)
    sender.send(message(neighbour), SECONDS)
    emulator.clear_faults()
    sender.send(message(name), SECONDS)


@pytest.mark.parametrize(
    ("fault", "operation", "whole_namespace"),
    [("silent", "token", True), ("silent", "connect", True), ("reset", "token", True), ("close", "token", True)],
)
def test_a_service_that_lets_nobody_in_concerns_all(emulator, sender, name, fault, operation, whole_namespace):
    emulator.fault(fault, on=[operation])

    failures = side_by_side(
        lambda: failing(lambda: sender.send(message(name), SECONDS)),
        lambda: failing(lambda: open_receiver(on(emulator), name, 10, SECONDS)),
        lambda: failing(lambda: on(emulator).probe(Entity("", name), SECONDS)),
        lambda: failing(lambda: on(emulator).probe(None, SECONDS)),
    )

    assert [line(each) for each in failures] == [(UNREACHABLE, False, whole_namespace)] * 4
    emulator.clear_faults()
    sender.send(message(name), SECONDS)


TOKENS = [
    (400, FAULT),
    (401, UNAUTHORIZED),
    (403, FAULT),
    (404, MISSING),
    (408, UNREACHABLE),  # a link without an answer
    (429, THROTTLED),
    (500, FAULT),
    (503, FAULT),
]


@pytest.mark.parametrize(("status", "kind"), TOKENS)
def test_a_token_that_is_refused(emulator, sender, name, status, kind):
    emulator.fault("token", on=["token"], status=status)
    failures = [
        failing(lambda: sender.send(message(name), SECONDS)),
        failing(lambda: open_receiver(on(emulator), name, 10, SECONDS)),
    ]
    assert [(each.kind, each.maybe_stored) for each in failures] == [(kind, False)] * 2
    emulator.clear_faults()
    sender.send(message(name), SECONDS)


def test_an_entity_that_nobody_has_is_missing_though_the_sdk_speaks_of_authentication(emulator, sender):
    nobody = f"nobody-{next(_numbers)}"
    for call in (
        lambda: sender.send(message(nobody), SECONDS),
        lambda: open_receiver(on(emulator), nobody, 10, SECONDS),
    ):
        assert line(failing(call)) == (MISSING, False, False)
    on(emulator).probe(None, SECONDS)  # of an entity that nobody has
    assert on(emulator).ensure_backlog_queues([nobody], False, SECONDS) == []


@pytest.mark.parametrize(("user", "key"), [("main", "wr0ng"), ("nobody", "s3cret")])
def test_a_key_that_is_wrong(emulator, name, user, key):
    stranger = on(emulator, user, key)
    for call in (
        lambda: stranger.sender().send(message(name), SECONDS),
        lambda: open_receiver(stranger, name, 10, SECONDS),
        lambda: stranger.probe(None, SECONDS),
        lambda: stranger.probe(Entity("", name), SECONDS),
        lambda: stranger.backlog_depths([name], SECONDS),
        lambda: stranger.ensure_backlog_queues([name], True, SECONDS),
        lambda: stranger.ensure_backlog_queues([name], False, SECONDS),
    ):
        failure = failing(call)
        assert line(failure) == (UNAUTHORIZED, False, False)
        assert key not in str(failure)


def test_a_key_that_may_only_send(emulator, name):
    clerk = on(emulator, "sender", "k")
    sender = clerk.sender()
    sender.declare([queue(name)], SECONDS)
    sender.send(message(name), SECONDS)
    clerk.probe(Entity("", name), SECONDS)
    clerk.probe(None, SECONDS)
    assert clerk.ensure_backlog_queues([name], False, SECONDS) == [name]
    assert failing(lambda: open_receiver(clerk, name, 10, SECONDS)).kind is UNAUTHORIZED
    sender.close()


def test_a_key_that_may_only_listen(emulator, name):
    clerk = on(emulator, "listener", "k")
    open_receiver(clerk, name, 10, SECONDS).close()
    clerk.probe(None, SECONDS)
    assert line(failing(lambda: clerk.sender().send(message(name), SECONDS))) == (UNAUTHORIZED, False, False)


# -- the management ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [{"kind": "silent"}, {"kind": "internal-error", "status": 503}])
def test_management_that_is_away_stops_nothing_that_is_there(emulator, sender, name, fault):
    from kombu_paired.brokers.servicebus import transport

    transport._known.clear()
    emulator.fault(**fault, on=["manage"])

    with in_time():
        sender.declare([queue(name)], SECONDS)
    sender.send(message(name), SECONDS)
    later = f"queue-{next(_numbers)}"
    missing, *failures = side_by_side(
        lambda: failing(lambda: sender.declare([queue(later)], SECONDS)),
        lambda: failing(lambda: on(emulator).ensure_backlog_queues([name], True, SECONDS)),
        lambda: failing(lambda: on(emulator).backlog_depths([name], SECONDS)),
    )

    assert line(missing) == (UNREACHABLE, False, False)
    assert [each.kind for each in failures] == [UNREACHABLE] * 2
    emulator.clear_faults()
    sender.declare([queue(later)], SECONDS)


@pytest.mark.parametrize(("status", "kind"), [(429, THROTTLED), (400, REJECTED)])
def test_management_that_refuses(emulator, sender, status, kind):
    emulator.fault("internal-error", on=["manage"], status=status, times=1)
    name = f"queue-{next(_numbers)}"
    assert line(failing(lambda: sender.declare([queue(name)], SECONDS))) == (kind, False, False)
    sender.declare([queue(name)], SECONDS)


@pytest.mark.parametrize("status", [401, 403])
def test_without_the_right_to_manage_others_have_to(emulator, sender, name, status, caplog):
    from kombu_paired.brokers.servicebus import transport

    transport._known.clear()
    emulator.fault("internal-error", on=["manage"], status=status)
    sender.declare([queue(name)], SECONDS)
    sender.send(message(name), SECONDS)
    assert "no right to manage" in caplog.text


def test_a_queue_that_is_there_already_and_one_that_is_not(emulator, sender, name):
    from kombu_paired.brokers.servicebus import transport

    transport._known.clear()
    sender.declare([queue(name)], SECONDS)
    assert line(failing(lambda: sender.send(message("nobody"), SECONDS))) == (MISSING, False, False)
    [answer] = sender.send_batch([message("nobody")], SECONDS)
    assert line(answer) == (MISSING, False, False)
    assert [each.messages for each in on(emulator).backlog_depths(["nobody", name], SECONDS)] == [None, 0]


# -- the whole service ------------------------------------------------------------------------------------------


def every_way_in(namespace, name):
    """The failures of all calls on links of their own."""
    return side_by_side(
        lambda: failing(lambda: namespace.sender().send(message(name), SECONDS)),
        lambda: namespace.sender().send_batch([message(name)], SECONDS)[0],
        lambda: failing(lambda: namespace.sender().declare([queue(f"queue-{next(_numbers)}")], SECONDS)),
        lambda: failing(lambda: open_receiver(namespace, name, 10, SECONDS)),
        lambda: failing(lambda: namespace.probe(Entity("", name), SECONDS)),
        lambda: failing(lambda: namespace.probe(None, SECONDS)),
        lambda: failing(lambda: namespace.ensure_backlog_queues([name], True, SECONDS)),
        lambda: failing(lambda: namespace.ensure_backlog_queues([name], False, SECONDS)),
        lambda: failing(lambda: namespace.backlog_depths([name], SECONDS)),
    )


def test_nobody_listens(own):
    name = make_queue(own)
    own.kill()
    watch = Stopwatch()
    failures = every_way_in(on(own), name)
    assert watch.seconds < SECONDS  # a refusal is known at once
    assert [line(each) for each in failures] == [(UNREACHABLE, False, True)] * len(failures)


def test_no_such_host():
    away = KombuNamespace("primary", ["azureservicebus://p:k@no-such-host.invalid"], {}, send_timeout=SECONDS)
    failures = every_way_in(away, "orders")
    assert [line(each) for each in failures] == [(UNREACHABLE, False, True)] * len(failures)


def test_frozen_at_connect(own):
    name = make_queue(own)
    own.freeze()
    failures = every_way_in(on(own), name)
    own.thaw()
    assert [line(each) for each in failures] == [(UNREACHABLE, False, True)] * len(failures)
    on(own).probe(Entity("", name), 10)


def test_something_else_listens(broker_pool):
    """Nothing answers in the service's tongue."""
    other = broker_pool.pair("redis")[0]
    failure = failing(lambda: on(None, port=other.port).probe(None, SECONDS))
    assert line(failure) == (UNREACHABLE, False, True)


def test_killed_while_idle(own):
    name, sender = make_queue(own), on(own).sender()
    sender.send(message(name), SECONDS)
    own.kill()

    failure = failing(lambda: sender.send(message(name), SECONDS))

    assert line(failure) == (UNREACHABLE, False, True)
    own.restart()
    sender.send(message(name), SECONDS)
    assert stored(own, name) == 2


def test_killed_while_idle_and_restarted_is_no_failure(own):
    name, sender = make_queue(own), on(own).sender()
    sender.send(message(name), SECONDS)
    own.kill()
    own.restart()

    sender.send(message(name), SECONDS)
    assert sender.send_batch([message(name), message(name)], SECONDS) == [None, None]

    assert stored(own, name) == 4


@pytest.mark.parametrize("idle", ["link_idle", "connection_idle"])
def test_what_the_service_closes_for_being_idle_is_no_failure(idle):
    with Emulator(policies=POLICIES, **{idle: 1.0}) as emulator:
        name, sender = make_queue(emulator), on(emulator).sender()
        for sent in range(1, 4):
            sender.send(message(name), SECONDS)
            assert stored(emulator, name) == sent
            deadline = time.monotonic() + 30
            while sender.link.connection.outgoing._links[name].is_alive():
                assert time.monotonic() < deadline
                time.sleep(0.05)
        sender.close()


def test_killed_in_a_send(own):
    name, sender = make_queue(own), on(own).sender()
    sender.send(message(name), SECONDS)
    own.fault("silent", name, on=["send"])
    timer = threading.Timer(SECONDS / 2, own.kill)
    timer.start()

    failure = failing(lambda: sender.send(message(name), SECONDS))

    timer.join()
    assert line(failure) == (UNREACHABLE, True, False)


@pytest.mark.parametrize(("size", "kinds"), [(1, {TIMEOUT}), (190_000, {TIMEOUT, UNREACHABLE})])
def test_frozen_in_a_send(own, size, kinds):
    """What is larger than the sockets' buffers cannot even be written."""
    name, sender = make_queue(own), on(own).sender()
    sender.send(message(name), SECONDS)
    own.freeze()

    failure = failing(lambda: sender.send(message(name, b"x" * size), SECONDS))
    again = failing(lambda: sender.send(message(name), SECONDS))

    assert failure.kind in kinds
    assert (failure.maybe_stored, failure.whole_namespace) == (True, False)
    assert line(again) == (UNREACHABLE, False, True)
    own.thaw()
    sender.send(message(name), SECONDS)


def test_the_network_goes_silent(own):
    name = make_queue(own)
    with Proxy(own.port) as proxy:
        sender = on(own, port=proxy.port).sender()
        sender.send(message(name), SECONDS)
        proxy.blackhole()
        assert line(failing(lambda: sender.send(message(name), SECONDS))) == (TIMEOUT, True, False)
        assert line(failing(lambda: sender.send(message(name), SECONDS))) == (UNREACHABLE, False, True)
        proxy.heal()
        sender.send(message(name), SECONDS)
    assert stored(own, name) == 2


def test_too_little_time_says_nothing_about_the_namespace(emulator, name):
    """A link takes nine answers to open: who has no time for them is no witness."""
    with Proxy(emulator.port) as proxy:
        proxy.slow(0.1)
        sender = on(emulator, port=proxy.port).sender()
        failure = failing(lambda: sender.send(message(name), 0.1), 0.1)
        assert line(failure) == (UNREACHABLE, False, False)
        proxy.heal()
        sender.send(message(name), SECONDS)


@pytest.mark.real_naps
def test_a_link_opens_as_fast_as_the_service_answers(emulator, name):
    """The SDK naps for half a second meanwhile, which is all that a link may take of a ``send_timeout`` of one."""
    fastest = SECONDS
    for _ in range(20):  # others may have the processor just now; nobody's nap is ever shorter
        sender = on(emulator).sender()
        started = time.monotonic()
        sender.send(message(name), SECONDS)
        fastest = min(fastest, time.monotonic() - started)
        sender.close()
        if fastest < 0.35:
            break
    assert fastest < 0.35


# -- receivers --------------------------------------------------------------------------------------------------


@pytest.fixture
def receiver(emulator, name, sender):
    assert sender.send_batch([message(name, b"%d" % n) for n in range(3)], 10) == [None] * 3
    made = open_receiver(on(emulator), name, 10, SECONDS)
    yield made
    made.close()


def receive(receiver, count):
    got = []
    deadline = time.monotonic() + 30
    while len(got) < count:
        assert time.monotonic() < deadline
        got += receiver.receive(count - len(got), 1.0)
    return got


def test_a_lock_that_is_lost_at_complete_is_no_failure(emulator, name, receiver):
    """The message comes again, and goes home twice with one message id."""
    held = receive(receiver, 3)
    emulator.fault("lock-lost", name, times=1)

    receiver.complete(held)

    assert stored(emulator, name) == 1


@pytest.mark.parametrize("operation", ["complete", "abandon", "dead_letter"])
def test_a_settlement_that_is_not_answered(emulator, name, receiver, operation):
    held = receive(receiver, 3)
    emulator.fault("silent", name, on=["settle", "request"])

    def settle():
        if operation == "dead_letter":
            receiver.dead_letter([DeadLetter(each, "NoPath", "x") for each in held])
        else:
            getattr(receiver, operation)(held)
            receive_from(receiver, 10, SECONDS)

    failure = failing(settle, 2 * SECONDS)

    assert line(failure) == (TIMEOUT, False, False)
    with in_time(GRACE):
        receiver.close()


@pytest.mark.parametrize(
    ("fault", "kind"), [("disabled", FAULT), ("not-found", MISSING), ("unauthorized", UNAUTHORIZED)]
)
def test_a_receiver_that_is_shown_the_door(emulator, name, receiver, fault, kind):
    held = receive(receiver, 3)
    receiver.complete(held)
    threading.Timer(0.5, emulator.fault, (fault, name), {"on": ["attach", "receive"]}).start()

    failure = failing(lambda: receive_from(receiver, 10, 10), 3)

    assert (failure.kind, failure.maybe_stored, failure.whole_namespace) == (kind, False, False)


def test_a_receiver_whose_connection_is_cut_while_it_waits(emulator, receiver):
    receiver.complete(receive(receiver, 3))
    threading.Timer(0.5, emulator.drop_connections).start()
    assert line(failing(lambda: receive_from(receiver, 10, 10), 3)) == (UNREACHABLE, False, False)


def test_a_receiver_whose_service_is_killed_while_it_holds(own):
    name = make_queue(own)
    sender = on(own).sender()
    assert sender.send_batch([message(name) for _ in range(3)], 10) == [None] * 3
    receiver = open_receiver(on(own), name, 10, SECONDS)
    held = receive(receiver, 3)
    own.kill()

    assert failing(lambda: receiver.complete(held)).kind.counts
    with in_time(GRACE):
        receiver.close()
    own.restart()
    assert stored(own, name) == 3


@pytest.mark.parametrize("calls", [1, 3])
def test_a_receiver_whose_service_is_frozen_while_it_holds(own, calls):
    name = make_queue(own)
    sender = on(own).sender()
    assert sender.send_batch([message(name) for _ in range(3)], 10) == [None] * 3
    receiver = open_receiver(on(own), name, 10, SECONDS)
    held = receive(receiver, 3)
    own.freeze()

    for _ in range(calls):
        assert failing(lambda: receiver.complete(held)).kind.counts
    with in_time(GRACE):
        receiver.close()
    own.thaw()


def test_a_hundred_settlements_are_one_round_trip(own):
    """Through a network that takes its time: one answer after the other would take a hundred times as long."""
    name = make_queue(own)
    assert on(own).sender().send_batch([message(name) for _ in range(100)], 10) == [None] * 100
    receiver = open_receiver(on(own), name, 100, SECONDS)
    held = receive(receiver, 100)
    own.fault("slow", name, on=["settle"], seconds=0.3)

    with in_time(SECONDS):
        receiver.complete(held)

    assert stored(own, name) == 0
    assert own.status()["queues"][name]["dead_lettered"] == 0
    receiver.close()


def test_dead_letters_of_a_dead_letter_queue_can_be_received(emulator, name, receiver):
    receiver.dead_letter([DeadLetter(each, "NoPath", "x") for each in receive(receiver, 3)])
    dead = open_receiver(on(emulator), name + DEAD_LETTER_SUFFIX, 10, SECONDS)
    got = receive(dead, 3)
    assert {each.message.headers["DeadLetterReason"] for each in got} == {"NoPath"}
    dead.complete(got)
    dead.close()
