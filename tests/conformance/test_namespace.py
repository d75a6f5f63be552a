"""Namespaces: backlog queues, probes, and that nothing takes longer than it should."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, DeadLetter
from kombu_paired.declarations import Declaration, Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from tests.conformance.sites import TIMEOUT
from tests.conformance.waiting import wait_until
from tests.support.noise import Stopwatch
from tests.support.receiving import open_receiver

ORDERS = Entity("", "orders")
#: Seconds by which a call may exceed its timeout on a busy machine; a step with one of its own would add all of that.
GRACE = 2.0


def failing(call):
    with pytest.raises(NamespaceFailure) as caught:
        call()
    return caught.value


@contextmanager
def lasting(limit, what=""):
    watch = Stopwatch()
    yield
    took = watch.seconds
    assert took <= limit, f"{what} took {took:.2f} s, not {limit:g}"


# -- backlog queues ---------------------------------------------------------------------------------------------


def test_backlog_queues_are_made_once(site, opened):
    namespace, names = opened(site.namespace()), site.names(3)

    assert namespace.ensure_backlog_queues(names[:1], True, 10) == names[:1]
    namespace.sender().send(Message(b"x", routing_key=names[0]), TIMEOUT)
    assert namespace.ensure_backlog_queues(names, True, 10) == names

    assert site.stored(names[0]) == 1
    assert [depth.messages for depth in namespace.backlog_depths(names, TIMEOUT)] == [1, 0, 0]


@pytest.mark.needs("missing_queues")
def test_only_those_that_are_there_are_usable_when_none_may_be_made(site, opened):
    namespace, names = opened(site.namespace()), site.names(3)
    namespace.ensure_backlog_queues(names[1:2], True, 10)

    assert namespace.ensure_backlog_queues(names, False, 10) == names[1:2]
    assert namespace.ensure_backlog_queues(names[2:], False, 10) == []
    assert [depth.messages for depth in namespace.backlog_depths(names, TIMEOUT)] == [None, 0, None]


@pytest.mark.needs("keeps_unsettled")
def test_a_queue_that_is_there_is_left_as_its_owner_made_it(site, opened):
    namespace, names = opened(site.namespace()), site.names(2)
    look = site.make_odd_queue(names[0])
    before = look()

    assert namespace.ensure_backlog_queues(names, True, 10) == names

    assert look() == before
    assert before


# -- probes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entity", [None, ORDERS, Entity("shop", "new")], ids=str)
def test_a_probe_of_a_broker_that_works_says_so_and_stores_nothing(site, namespace, sender, queue, entity):
    sender.declare(
        [
            Declaration("exchange_declare", {"exchange": "shop", "type": "topic", "durable": True}),
            Declaration("queue_declare", {"queue": "orders", "durable": True, "auto_delete": False}),
            Declaration("queue_bind", {"queue": "orders", "exchange": "shop", "routing_key": "new"}),
        ],
        TIMEOUT,
    )
    sender.send(Message(b"x", routing_key=queue), TIMEOUT)

    for _ in range(3):
        namespace.probe(entity, TIMEOUT)

    if "pings" in site.abilities:
        wait_until(lambda: site.stored("orders") == 0)
    assert site.stored("orders") == 0
    assert site.stored("orders" + DEAD_LETTER_SUFFIX) == 0
    assert site.stored("kombu-paired.ping") == 0
    assert site.stored(queue) == 1  # and takes nothing away


@pytest.mark.parametrize("entity", [ORDERS, Entity("shop", "new")], ids=str)
def test_a_missing_entity_of_a_broker_that_works_is_no_failure(namespace, entity):
    """The next send declares it."""
    namespace.probe(entity, TIMEOUT)


@pytest.mark.needs("process")
def test_a_probe_of_a_dead_broker(site, namespace):
    site.kill()
    with lasting(TIMEOUT + GRACE):
        failure = failing(lambda: namespace.probe(ORDERS, TIMEOUT))
    assert (failure.kind, failure.whole_namespace) == (FailureKind.UNREACHABLE, True)
    site.restart()
    namespace.probe(ORDERS, 10)


@pytest.mark.needs("process")
def test_a_probe_of_a_frozen_broker(site, namespace):
    site.freeze()
    with lasting(TIMEOUT + GRACE):
        failure = failing(lambda: namespace.probe(ORDERS, TIMEOUT))
    assert (failure.kind, failure.whole_namespace) == (FailureKind.UNREACHABLE, True)
    site.thaw()
    namespace.probe(ORDERS, 10)


@pytest.mark.needs("full")
@pytest.mark.parametrize("entity", [None, ORDERS], ids=str)
def test_a_probe_of_a_full_broker(site, namespace, entity):
    site.fill()
    with lasting(TIMEOUT + GRACE):
        failure = failing(lambda: namespace.probe(entity, TIMEOUT))
    assert failure.kind is FailureKind.FAULT
    site.unfill()
    namespace.probe(entity, TIMEOUT)


@pytest.mark.needs("full_queues")
def test_a_probe_of_a_full_queue(site, namespace, sender, queue):
    sender.declare([Declaration("queue_declare", {"queue": "orders", "durable": True, "auto_delete": False})], TIMEOUT)
    site.fill_queue("orders")

    failure = failing(lambda: namespace.probe(ORDERS, TIMEOUT))

    assert (failure.kind, failure.whole_namespace) == (FailureKind.FAULT, False)
    namespace.probe(Entity("", queue), TIMEOUT)
    namespace.probe(None, TIMEOUT)
    site.unfill_queue("orders")
    namespace.probe(ORDERS, TIMEOUT)


@pytest.mark.needs("password")
def test_a_probe_with_the_wrong_password(site, opened):
    namespace = opened(site.namespace(password="wr0ng"))
    failure = failing(lambda: namespace.probe(ORDERS, TIMEOUT))
    assert (failure.kind, failure.whole_namespace) == (FailureKind.UNAUTHORIZED, False)
    assert "wr0ng" not in str(failure)


@pytest.mark.needs("password")
def test_every_way_in_needs_the_right_password(site, opened, queue):
    namespace = opened(site.namespace(password="wr0ng"))
    for call in (
        lambda: namespace.sender().send(Message(b"x", routing_key=queue), TIMEOUT),
        lambda: open_receiver(namespace, queue, 10, TIMEOUT),
        lambda: namespace.ensure_backlog_queues([queue], True, TIMEOUT),
        lambda: namespace.backlog_depths([queue], TIMEOUT),
    ):
        assert failing(call).kind is FailureKind.UNAUTHORIZED
    [answer] = namespace.sender().send_batch([Message(b"x", routing_key=queue)], TIMEOUT)
    assert answer.kind is FailureKind.UNAUTHORIZED


# -- time -------------------------------------------------------------------------------------------------------


def suffer(site, how):
    {
        "refuses": site.kill if "process" in site.abilities else None,
        "is frozen": site.freeze,
        "is cut off": site.cut,
        "accepts and stays silent": site.blackhole,
    }[how]()


def recover(site, how):
    {"refuses": site.restart, "is frozen": site.thaw, "is cut off": site.heal, "accepts and stays silent": site.heal}[
        how
    ]()


HOW = ["refuses", "is frozen", "is cut off", "accepts and stays silent"]


def measured(*chains):
    """Make the calls of each chain in turn, and the chains side by side; name -> (seconds, what came of it)."""
    answers = {}

    def make(calls):
        for name, call in calls.items():
            watch = Stopwatch()
            try:
                outcome = call()
            except NamespaceFailure as failure:
                outcome = failure
            answers[name] = (watch.seconds, outcome)

    with ThreadPoolExecutor(len(chains)) as threads:
        list(threads.map(make, chains))
    return answers


@pytest.mark.needs("process", "network")
@pytest.mark.parametrize("how", HOW)
def test_a_new_link_never_waits_longer_than_its_timeout(site, queue, how, opened):
    namespace = opened(site.namespace(proxied=True))
    namespace.ensure_backlog_queues([queue], True, 10)
    message = Message(b"x", routing_key=queue)
    declaration = Declaration("queue_declare", {"queue": "orders", "durable": True, "auto_delete": False})
    suffer(site, how)

    answers = measured(
        {"send": lambda: namespace.sender().send(message, TIMEOUT)},
        {"send_batch": lambda: namespace.sender().send_batch([message] * 10, TIMEOUT)[0]},
        {"declare": lambda: namespace.sender().declare([declaration], TIMEOUT)},
        {"receiver": lambda: open_receiver(namespace, queue, 10, TIMEOUT)},
        {"probe": lambda: namespace.probe(ORDERS, TIMEOUT)},
        {"ensure_backlog_queues": lambda: namespace.ensure_backlog_queues(site.names(10), True, TIMEOUT)},
        {"backlog_depths": lambda: namespace.backlog_depths(site.names(10), TIMEOUT)},
    )
    goodbye = measured({"close": namespace.close})

    recover(site, how)
    assert too_long(answers | goodbye) == {}
    assert {name: outcome.kind for name, (_, outcome) in answers.items()} == dict.fromkeys(
        answers, FailureKind.UNREACHABLE
    )


def too_long(answers):
    return {name: took for name, (took, _) in answers.items() if took > TIMEOUT + GRACE}


@pytest.mark.needs("process", "network")
@pytest.mark.parametrize("how", HOW)
def test_an_open_link_never_waits_longer_than_its_timeout(site, queue, how, opened):
    namespace = opened(site.namespace(proxied=True))
    namespace.ensure_backlog_queues([queue], True, 10)
    message = Message(b"x" * 100_000, routing_key=queue)
    declaration = Declaration("queue_declare", {"queue": "orders", "durable": True, "auto_delete": False})
    senders = [opened(namespace.sender()) for _ in range(4)]
    for sender in senders:
        sender.send_batch([message] * 2, 10)
    receivers = [open_receiver(namespace, queue, 2, TIMEOUT) for _ in range(4)]
    held = [receiver.receive(1, 20) for receiver in receivers]
    assert all(held)
    suffer(site, how)

    answers = measured(
        {"send": lambda: senders[0].send(message, TIMEOUT)},
        {"send_batch": lambda: senders[1].send_batch([message] * 100, TIMEOUT)[0]},
        {"declare": lambda: senders[2].declare([declaration], TIMEOUT)},
        {"close a sender": senders[3].close},
        {
            "complete": lambda: receivers[0].complete(held[0]),
            "receive": lambda: receivers[0].receive(10, TIMEOUT),
        },
        {"abandon": lambda: receivers[1].abandon(held[1])},
        {"dead_letter": lambda: receivers[2].dead_letter([DeadLetter(held[2][0], "NoPath", "x")])},
        {"close a receiver": receivers[3].close},
    )
    goodbye = measured(
        {
            "close the others": lambda: [receiver.close() for receiver in receivers[:3]] and None,
            "close": namespace.close,
        }
    )

    recover(site, how)
    assert too_long(answers | goodbye) == {}
    assert [isinstance(answers[name][1], NamespaceFailure) for name in ("send", "send_batch", "declare")] == [True] * 3
    assert answers["send"][1].kind.counts


@pytest.mark.alone
@pytest.mark.needs("process", "network")
def test_a_broker_that_freezes_in_mid_batch_is_found_out_in_time(site, queue, opened):
    """More than the sockets' buffers hold: writing, not reading, must not wait for ever."""
    namespace = opened(site.namespace(proxied=True))
    namespace.ensure_backlog_queues([queue], True, 10)
    sender = opened(namespace.sender())
    big = Message(b"x" * site.large, routing_key=queue)
    sender.send(big, 10)
    site.freeze()

    with lasting(TIMEOUT + GRACE, "a batch of 30 MB"):
        answers = sender.send_batch([big] * (30_000_000 // site.large), TIMEOUT)

    site.thaw()
    assert all(answer is not None and answer.kind.counts for answer in answers)
    doubts = [answer.maybe_stored for answer in answers]
    assert doubts[0]
    assert doubts == sorted(doubts, reverse=True), "what was never written is in no doubt"
