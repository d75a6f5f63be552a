"""Senders: one at a time and many, routed, declared, and what a broken broker does to them."""

from __future__ import annotations

from collections import Counter

import pytest

from kombu_paired import maybe_duplicate
from kombu_paired.declarations import Declaration, DeclarationBook, Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from tests.conformance.sites import TIMEOUT

EXCHANGE = Declaration("exchange_declare", {"exchange": "shop", "type": "direct", "durable": True})
QUEUE = Declaration("queue_declare", {"queue": "orders", "durable": True, "auto_delete": False, "exclusive": False})
BINDING = Declaration("queue_bind", {"queue": "orders", "exchange": "shop", "routing_key": "new"})
ROUTE = [EXCHANGE, QUEUE, BINDING]


def message(n, queue="orders", exchange="", **properties):
    properties = {"message_id": f"m-{n}", "delivery_mode": 2, **properties}
    return Message(b"%d" % n, exchange=exchange, routing_key=queue, properties=properties)


def failing(call):
    """The failure that a call ends in."""
    with pytest.raises(NamespaceFailure) as caught:
        call()
    return caught.value


def test_a_sender_connects_when_it_is_first_used_and_knows_it(sender, site, queue):
    assert sender.is_fresh
    sender.send(message(1, queue), TIMEOUT)
    assert not sender.is_fresh
    sender.drop()
    assert sender.is_fresh
    sender.send(message(2, queue), TIMEOUT)
    assert site.stored(queue) == 2


@pytest.mark.needs("confirmed")
def test_what_was_sent_is_in_the_broker_when_send_returns(sender, site, queue):
    for n in range(1, 6):
        sender.send(message(n, queue), TIMEOUT)
        assert site.stored(queue) == n


def test_what_is_declared_can_be_sent_to_at_once(sender, site):
    sender.declare(ROUTE, TIMEOUT)

    sender.send(message(1, "new", "shop"), TIMEOUT)
    sender.send(message(2, "orders"), TIMEOUT)

    assert site.stored("orders") == 2
    sender.declare(ROUTE, TIMEOUT)
    assert site.stored("orders") == 2


def test_declarations_of_an_entity_are_repeated_once_per_link(sender, site, monkeypatch):
    book = DeclarationBook()
    for each in ROUTE:
        book.note(each.operation, each.arguments)
    made = []
    declare = type(sender).declare
    monkeypatch.setattr(
        type(sender), "declare", lambda self, all, timeout: (made.append(len(list(all))), declare(self, all, timeout))
    )
    entity = Entity("shop", "new")

    for _ in range(3):
        sender.ensure_declared(entity, book, TIMEOUT)
        sender.send(message(1, "new", "shop"), TIMEOUT)
    assert made == [3]
    sender.drop()
    sender.ensure_declared(entity, book, TIMEOUT)
    sender.forget_declared(entity)
    sender.ensure_declared(entity, book, TIMEOUT)

    assert made == [3, 3, 3]
    assert site.stored("orders") == 3


def test_a_binding_can_be_declared_over_a_link_that_never_saw_its_exchange(namespace, opened, site):
    """Threads that declare at once each take a link: Kombu's virtual transports keep exchanges per connection."""
    book = DeclarationBook()
    exchange, queue, binding = (book.note(each.operation, each.arguments) for each in ROUTE)
    one, other = opened(namespace.sender()), opened(namespace.sender())

    one.declare_one(exchange, book, TIMEOUT)
    other.declare_one(queue, book, TIMEOUT)
    other.declare_one(binding, book, TIMEOUT)
    for link in (one, other):
        link.ensure_declared(Entity("shop", "new"), book, TIMEOUT)
        link.send(message(1, "new", "shop"), TIMEOUT)

    assert site.stored("orders") == 2


def test_a_batch_has_an_answer_for_each_message(sender, site, queue):
    assert sender.send_batch([], TIMEOUT) == []
    assert sender.send_batch([message(n, queue) for n in range(300)], 10) == [None] * 300
    assert sender.send_batch([message(301, queue)], TIMEOUT) == [None]
    assert site.stored(queue) == 301


@pytest.mark.needs("routed")
def test_an_unroutable_message_in_a_batch_is_missing_and_its_neighbours_arrive(sender, site):
    sender.declare(ROUTE, TIMEOUT)
    batch = [message(n, "new" if n % 3 else "nobody", "shop") for n in range(9)]

    answers = sender.send_batch(batch, TIMEOUT)

    assert [answer and answer.kind for answer in answers] == 3 * [FailureKind.MISSING, None, None]
    assert site.stored("orders") == 6
    assert sender.send_batch([message(9, "new", "shop")], TIMEOUT) == [None]


@pytest.mark.needs("routed", "exchanges")
def test_a_missing_exchange_in_a_batch_is_missing_and_its_neighbours_arrive(namespace, sender, site, opened):
    sender.declare(ROUTE, TIMEOUT)
    batch = [message(n, "new", "shop" if n != 3 else "nowhere") for n in range(6)]

    answers = sender.send_batch(batch, TIMEOUT)

    assert [answer and answer.kind for answer in answers] == [None] * 3 + [FailureKind.MISSING] + [None] * 2
    assert site.stored("orders") >= 5  # again rather than never
    found, receiver = [], opened(namespace.receiver(["orders"], 100, TIMEOUT))
    while batch := receiver.receive(10, 1.0):
        found += [each.message for each in batch]
    copies = Counter(each.message_id for each in found)
    twice = {each for each, times in copies.items() if times > 1}
    assert twice <= {each.message_id for each in found if maybe_duplicate(each)}


@pytest.mark.needs("missing_queues")
def test_a_mandatory_message_to_a_missing_queue_is_missing(sender, site):
    lost = Message(b"x", routing_key="nobody", mandatory=True, properties={"message_id": "m"})

    failure = failing(lambda: sender.send(lost, TIMEOUT))

    assert (failure.kind, failure.maybe_stored, failure.whole_namespace) == (FailureKind.MISSING, False, False)
    sender.declare([Declaration("queue_declare", {"queue": "nobody", "durable": True, "auto_delete": False})], TIMEOUT)
    sender.send(lost, TIMEOUT)
    assert site.stored("nobody") == 1


@pytest.mark.needs("confirmed", "spoils")
def test_a_queue_that_refuses_messages_does_not_harm_its_neighbours(sender, site, queue):
    site.spoil_queue("spoiled")

    failure = failing(lambda: sender.send(message(1, "spoiled"), TIMEOUT))
    answers = sender.send_batch([message(n, "spoiled" if n == 2 else queue) for n in range(5)], TIMEOUT)

    assert not failure.whole_namespace
    assert not failure.maybe_stored
    assert [answer is None for answer in answers] == [True, True, False, True, True]
    assert site.stored(queue) == 4


@pytest.mark.needs("encodes")
def test_a_message_that_cannot_be_encoded_is_rejected_and_its_neighbours_arrive(sender, site, queue):
    broken = Message(b"x", routing_key=queue, headers={"what": object()})

    failure = failing(lambda: sender.send(broken, TIMEOUT))
    answers = sender.send_batch([message(0, queue), broken, message(2, queue)], TIMEOUT)

    assert failure.kind is FailureKind.REJECTED
    assert [answer and answer.kind for answer in answers] == [None, FailureKind.REJECTED, None]
    assert site.stored(queue) >= 2


@pytest.mark.needs("process", "outlives_restart")
def test_stored_messages_survive_that_the_broker_is_killed(namespace, sender, site, queue):
    assert sender.send_batch([message(n, queue) for n in range(50)], 10) == [None] * 50

    site.kill()
    site.restart()

    receiver = namespace.receiver([queue], 100, 10)
    got = []
    while len(got) < 50 and (batch := receiver.receive(100, 20)):
        got += [each.message.message_id for each in batch]
        receiver.complete(batch)
    receiver.close()
    assert sorted(got) == sorted(f"m-{n}" for n in range(50))


def send_as_the_pairing_does(sender, message):
    """One more try, on a fresh link, if it is sure that the broker saw nothing."""
    failure = None
    try:
        sender.send(message, TIMEOUT)
    except NamespaceFailure as caught:
        failure = caught
    if failure is not None:
        assert (failure.kind, failure.maybe_stored) == (FailureKind.UNREACHABLE, False)
        assert not failure.whole_namespace
        assert sender.is_fresh
        sender.send(message, TIMEOUT)


@pytest.mark.needs("process", "outlives_restart")
def test_a_sender_whose_connection_died_in_its_sleep_works_again_with_one_more_try(sender, site, queue):
    sender.send(message(1, queue), TIMEOUT)
    site.kill()
    site.restart()
    assert not sender.is_fresh

    send_as_the_pairing_does(sender, message(2, queue))

    assert site.stored(queue) == 2


@pytest.mark.needs("network")
def test_a_sender_whose_connection_was_reset_while_idle_works_again_with_one_more_try(site, queue, opened):
    namespace = opened(site.namespace(proxied=True))
    namespace.ensure_backlog_queues([queue], True, 10)
    sender = opened(namespace.sender())
    sender.send(message(1, queue), TIMEOUT)
    site.cut()
    site.heal()

    send_as_the_pairing_does(sender, message(2, queue))

    assert site.stored(queue) == 2


@pytest.mark.needs("network")
def test_a_message_whose_answer_is_lost_may_have_been_stored(site, queue, opened):
    namespace = opened(site.namespace(proxied=True))
    namespace.ensure_backlog_queues([queue], True, 10)
    sender = opened(namespace.sender())
    sender.send(message(1, queue), TIMEOUT)
    site.blackhole()

    failure = failing(lambda: sender.send(message(2, queue), TIMEOUT))
    [answer] = sender.send_batch([message(3, queue)], TIMEOUT)

    assert (failure.kind, failure.maybe_stored) == (FailureKind.TIMEOUT, True)
    assert answer.kind is FailureKind.UNREACHABLE  # a fresh link: silent at connect, nothing was sent
    assert (answer.maybe_stored, answer.whole_namespace) == (False, True)
    site.heal()
    assert sender.send_batch([message(4, queue)], TIMEOUT) == [None]


@pytest.mark.needs("full")
def test_a_full_broker_is_a_fault_of_the_whole_and_takes_messages_again_when_there_is_room(sender, site, queue):
    sender.send(message(1, queue), TIMEOUT)
    site.fill()

    failure = failing(lambda: [sender.send(message(n, queue), TIMEOUT) for n in (2, 3)])
    answers = sender.send_batch([message(4, queue), message(5, queue)], TIMEOUT)

    assert failure.kind is FailureKind.FAULT
    assert {answer.kind for answer in answers} == {FailureKind.FAULT}
    site.unfill()
    sender.send(message(6, queue), TIMEOUT)


@pytest.mark.needs("full_queues")
def test_a_full_queue_is_its_own_fault_and_takes_messages_again_when_there_is_room(sender, site, queue):
    sender.declare([QUEUE], TIMEOUT)
    sender.send(message(1), TIMEOUT)
    site.fill_queue("orders")

    failure = failing(lambda: sender.send(message(2), TIMEOUT))
    answers = sender.send_batch([message(3), message(4, queue), message(5)], TIMEOUT)

    assert (failure.kind, failure.maybe_stored, failure.whole_namespace) == (FailureKind.FAULT, False, False)
    assert [answer and answer.kind for answer in answers] == [FailureKind.FAULT, None, FailureKind.FAULT]
    assert (site.stored("orders"), site.stored(queue)) == (1, 1)
    site.unfill_queue("orders")
    sender.send(message(6), TIMEOUT)
    assert site.stored("orders") == 2
