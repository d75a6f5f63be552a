"""A secondary that workers stand in at keeps stand-in queues, and knows their names."""

from __future__ import annotations

import threading

import pytest

from kombu_paired.message import Message
from kombu_paired.stand_in import stand_in_name
from tests.conformance.sites import TIMEOUT

pytestmark = pytest.mark.needs("stands_in")


@pytest.fixture
def primary(site):
    """The name of a primary that no other test has."""
    return f"main-{site.number}"


@pytest.fixture
def make(namespace, primary):
    def make(*names, **arguments):
        for name in names:
            namespace.ensure_stand_in_queue(primary, stand_in_name(primary, name), arguments, TIMEOUT)

    return make


def test_whoever_asks_is_told_which_there_are_however_often_they_were_made(namespace, primary, make):
    assert namespace.stand_in_queues(primary, TIMEOUT) == []
    make("a", "b")
    make("b")
    expected = [stand_in_name(primary, "a"), stand_in_name(primary, "b")]
    assert namespace.stand_in_queues(primary, TIMEOUT) == expected
    assert namespace.stand_in_queues(primary, TIMEOUT) == expected, "to ask takes nothing away"
    assert namespace.stand_in_queues(primary + "-2", TIMEOUT) == [], "those of another primary are its own"


def test_many_who_make_and_ask_at_once_lose_no_name(namespace, primary, make):
    names = [f"q{number}" for number in range(8)]
    make(names[0])  # a quorum queue that was just made may have no leader yet
    threads = [threading.Thread(target=make, args=(name,)) for name in names]
    threads += [threading.Thread(target=namespace.stand_in_queues, args=(primary, TIMEOUT)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert namespace.stand_in_queues(primary, TIMEOUT) == sorted(stand_in_name(primary, name) for name in names)


def test_what_is_put_into_one_comes_out_as_from_a_backlog_queue(namespace, primary, make, sender, opened):
    make("orders")
    queue = stand_in_name(primary, "orders")
    message = Message(b"x", "", queue, headers={"x-paired-exchange": "", "own": "1"}, properties={"message_id": "a"})
    assert sender.send_batch([message], TIMEOUT) == [None]
    [depth] = namespace.backlog_depths([queue], TIMEOUT)
    assert depth.messages == 1
    receiver = opened(namespace.receiver([queue], 10, TIMEOUT))
    [received] = receiver.receive(1, TIMEOUT)
    assert (received.message.body, received.message.headers["own"], received.queue) == (b"x", "1", queue)
    receiver.complete([received])
    assert namespace.backlog_depths([queue], TIMEOUT)[0].messages == 0


def test_one_that_holds_something_is_not_removed(namespace, primary, make, sender):
    make("orders")
    queue = stand_in_name(primary, "orders")
    message = Message(b"x", "", queue, headers={"x-paired-exchange": ""}, properties={"message_id": "a"})
    assert sender.send_batch([message], TIMEOUT) == [None]
    assert namespace.forget_stand_in_queue(primary, queue, TIMEOUT) is False
    assert namespace.stand_in_queues(primary, TIMEOUT) == [queue]
    assert namespace.backlog_depths([queue], TIMEOUT)[0].messages == 1


def test_one_that_is_removed_can_be_made_again(namespace, primary, make):
    make("orders")
    queue = stand_in_name(primary, "orders")
    was_removed = namespace.forget_stand_in_queue(primary, queue, TIMEOUT)
    assert namespace.stand_in_queues(primary, TIMEOUT) == ([] if was_removed else [queue])
    make("orders")
    assert namespace.stand_in_queues(primary, TIMEOUT) == [queue]


@pytest.mark.needs("priority")
def test_it_delivers_by_priority_where_the_queue_at_home_does(namespace, primary, make, sender, opened, site):
    make("orders", **{"x-max-priority": 10})
    queue = stand_in_name(primary, "orders")
    for priority in (3, 0, 9, 6):
        message = Message(str(priority).encode(), "", queue, priority, headers={"x-paired-exchange": ""})
        assert sender.send_batch([message], TIMEOUT) == [None]
    receiver = opened(namespace.receiver([queue], 10, TIMEOUT))
    got = []
    while len(got) < 4:
        got += [int(each.message.body) for each in receiver.receive(4, TIMEOUT)]
    first_comes = {"amqp": [9, 6, 3, 0], "redis": [0, 3, 6, 9]}  # on Redis, Kombu's low numbers go first
    assert got == first_comes.get(site.scheme, [3, 0, 9, 6])
