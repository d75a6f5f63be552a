"""Receivers: messages are held under lock until they are settled."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import pytest

from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, DeadLetter
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message, marked_maybe_duplicate
from tests.conformance.sites import TIMEOUT
from tests.conformance.waiting import wait_until
from tests.support.receiving import open_receiver, receive_from


def put(sender, queue, *numbers):
    for n in numbers:
        properties = {"message_id": f"m-{n}", "delivery_mode": 2}
        sender.send(Message(str(n).encode(), routing_key=queue, properties=properties), TIMEOUT)
        time.sleep(0.002)  # the filesystem orders by milliseconds


def ids(batch):
    return [each.message.message_id for each in batch]


def receive_all(receiver, count, timeout=20.0):
    """So many messages, in as many batches as it takes; not settled."""
    got = []
    deadline = time.monotonic() + timeout
    while len(got) < count and time.monotonic() < deadline:
        got += receiver.receive(count - len(got), 0.5)
    return got


def test_an_empty_queue_is_waited_for_and_no_longer_than_that(receiver):
    started = time.monotonic()
    assert receiver.receive(10, 0.5) == []
    assert 0.4 <= time.monotonic() - started <= TIMEOUT + 2


def test_a_waiting_receiver_gets_what_arrives(receiver, sender, queue):
    timer = threading.Timer(0.3, put, (sender, queue, 1))
    timer.start()
    assert ids(receiver.receive(10, 30)) == ["m-1"]
    timer.join(5)


def test_a_waiting_receiver_can_be_interrupted(receiver):
    threading.Timer(0.3, receiver.interrupt).start()
    started = time.monotonic()
    assert receiver.receive(10, 30) == []
    assert time.monotonic() - started < 10  # of 30; what polls its broker each second hears of it at the next


def test_what_was_taken_in_meanwhile_is_received_once(namespace, receiver, sender, queue, site, opened):
    put(sender, queue, *range(5))
    receiver.fetch(3)
    first = receive_all(receiver, 2)
    receiver.fetch(3)
    rest = receive_all(receiver, 3)
    assert sorted(ids(first + rest)) == [f"m-{n}" for n in range(5)]
    receiver.complete(first + rest)
    receiver.fetch(3)
    assert receiver.receive(5, 0.2) == []


@pytest.mark.needs("process", "outlives_restart")
def test_what_is_taken_in_of_a_broker_that_died_is_nothing_and_no_error_before_the_next_call(
    receiver, sender, queue, site
):
    put(sender, queue, 1)
    assert ids(receive_all(receiver, 1)) == ["m-1"]
    site.kill()
    try:
        receiver.fetch(3)
        with pytest.raises(NamespaceFailure):
            receive_all(receiver, 1, timeout=10)
    finally:
        site.restart()


def test_completed_messages_are_gone_and_the_others_are_not(namespace, receiver, sender, queue, site, opened):
    put(sender, queue, 1, 2, 3, 4, 5)
    held = receive_all(receiver, 5)

    receiver.complete([held[1], held[3]])
    receiver.abandon([held[0], held[2], held[4]])
    receiver.close()

    second = opened(namespace.receiver([queue], 100, TIMEOUT))
    back = receive_all(second, 3)
    assert sorted(ids(back)) == ["m-1", "m-3", "m-5"]
    second.complete(back)
    assert second.receive(10, 0.2) == []
    wait_until(lambda: site.stored(queue) == 0)


def test_an_abandoned_message_comes_again_unharmed_behind_the_others(receiver, sender, queue, site):
    headers = {"n": 1, "nested": {"list": [None, "x"]}}
    properties = {"message_id": "m-1", "correlation_id": "c", "delivery_mode": 2}
    sender.send(Message(b"\xff\x00", routing_key=queue, headers=headers, properties=properties), TIMEOUT)
    [first] = receiver.receive(1, 20)
    put(sender, queue, 2)
    receiver.abandon([first])

    got = receive_all(receiver, 2)

    if "keeps_unsettled" in site.abilities:
        assert ids(got) == ["m-2", "m-1"]
    again = next(each for each in got if each.message.message_id == "m-1")
    assert again.message == first.message
    receiver.complete(got)
    assert receiver.receive(10, 0.2) == []


@pytest.mark.needs("marks_backlog")
def test_a_message_that_goes_back_in_doubt_says_so_from_then_on(receiver, sender, queue):
    put(sender, queue, 1, 2)
    held = receive_all(receiver, 2)
    receiver.abandon(held[:1], maybe_duplicate=True)
    receiver.abandon(held[1:])

    again = {each.message.message_id: each.message for each in receive_all(receiver, 2)}

    assert again["m-1"] == marked_maybe_duplicate(held[0].message)
    assert again["m-2"] == held[1].message


@pytest.mark.needs("stores_backlog")
def test_a_dead_letter_is_moved_with_its_reason(namespace, receiver, sender, queue, site):
    put(sender, queue, 1, 2, 3)
    held = receive_all(receiver, 3)

    receiver.dead_letter([DeadLetter(held[0], "NoPath", "nobody knows where"), DeadLetter(held[1], "Rejected", "no ☃")])
    receiver.complete([held[2]])

    wait_until(lambda: site.stored(queue) == 0)
    assert site.stored(queue + DEAD_LETTER_SUFFIX) == 2
    [depth] = namespace.backlog_depths([queue], TIMEOUT)
    assert (depth.queue, depth.messages, depth.dead_letters) == (queue, 0, 2)
    if "keeps_unsettled" in site.abilities:  # the others cannot look without taking
        assert depth.dead_letter_reason == "NoPath"
    dead = namespace.receiver([queue + DEAD_LETTER_SUFFIX], 10, TIMEOUT)
    got = [each.message for each in receive_all(dead, 2)]
    dead.close()
    assert [each.headers["DeadLetterReason"] for each in got] == ["NoPath", "Rejected"]
    assert [each.headers["DeadLetterErrorDescription"] for each in got] == ["nobody knows where", "no ☃"]
    assert [each.message_id for each in got] == ["m-1", "m-2"]


def test_depths_are_what_waits(namespace, sender, queue):
    put(sender, queue, 1, 2, 3)

    [depth] = namespace.backlog_depths([queue], TIMEOUT)

    assert (depth.messages, depth.dead_letters, depth.dead_letter_reason) == (3, 0, None)


@pytest.mark.needs("keeps_unsettled")
def test_depths_say_since_when_the_oldest_waits_and_leave_it_there(namespace, sender, receiver, queue, site):
    sender.send(Message(b"1", routing_key=queue, headers={"x-paired-diverted-at": "1000.5"}), TIMEOUT)
    sender.send(Message(b"2", routing_key=queue, headers={"x-paired-diverted-at": "2000.5"}), TIMEOUT)
    receiver.close()
    wait_until(lambda: namespace.backlog_depths([queue], TIMEOUT)[0].messages == 2)

    for _ in range(3):
        [depth] = namespace.backlog_depths([queue], TIMEOUT)
        assert depth.messages == 2
        assert depth.oldest_diverted_at in ((1000.5,) if "keeps_order" in site.abilities else (1000.5, 2000.5))


@pytest.mark.needs("missing_queues")
def test_a_missing_queue_has_no_depth_and_no_receiver(namespace, queue):
    depths = namespace.backlog_depths([queue, "nobody"], TIMEOUT)
    assert [depth.messages for depth in depths] == [0, None]

    with pytest.raises(NamespaceFailure) as caught:
        open_receiver(namespace, "nobody", 10, TIMEOUT)
    assert caught.value.kind is FailureKind.MISSING


@pytest.mark.needs("returns_on_close")
def test_what_a_receiver_holds_when_it_closes_goes_back(namespace, receiver, sender, queue, opened):
    put(sender, queue, 1, 2, 3)
    held = receive_all(receiver, 3)
    receiver.complete(held[:1])

    receiver.close()

    second = opened(namespace.receiver([queue], 100, TIMEOUT))
    assert sorted(ids(receive_all(second, 2))) == ["m-2", "m-3"]
    assert second.receive(10, 0.2) == []


@pytest.mark.needs("returns_on_close")
def test_what_was_taken_in_and_not_received_goes_back_when_it_closes(namespace, receiver, sender, queue, opened):
    put(sender, queue, 1, 2, 3)
    receiver.complete(receive_all(receiver, 1))
    receiver.fetch(2)

    receiver.close()

    second = opened(namespace.receiver([queue], 100, TIMEOUT))
    assert sorted(ids(receive_all(second, 2))) == ["m-2", "m-3"]


@pytest.mark.needs("keeps_unsettled")
def test_what_was_taken_in_of_a_queue_that_is_left_goes_back(namespace, sender, queues, opened):
    receiver = opened(namespace.receiver(queues[:2], 100, TIMEOUT))
    put_into(sender, queues[:2])
    held = receive_all(receiver, 2)
    receiver.fetch(6)

    receiver.remove(queues[0])

    kept = [each for each in held if each.queue == queues[1]]
    rest = receive_all(receiver, 4 - len(kept))
    receiver.complete([*kept, *rest])
    other = opened(namespace.receiver(queues, 100, TIMEOUT))
    back = receive_all(other, 4)
    assert {each.queue for each in rest} == {queues[1]}
    assert {each.queue for each in back} == {queues[0]}
    assert sorted(ids(back)) == ["m-00", "m-01", "m-02", "m-03"]
    assert other.receive(10, 0.2) == []


@pytest.mark.needs("returns_on_close", "keeps_unsettled")
def test_what_came_to_a_receiver_and_was_not_given_out_goes_back_when_it_closes(
    namespace, receiver, sender, queue, opened
):
    put(sender, queue, 1)
    assert ids(receiver.receive(10, 20)) == ["m-1"]
    put(sender, queue, 2, 3, 4)
    time.sleep(0.3)  # where a receiver may fetch ahead, they are there

    receiver.close()

    second = opened(namespace.receiver([queue], 100, TIMEOUT))
    assert sorted(ids(receive_all(second, 4))) == ["m-1", "m-2", "m-3", "m-4"]


@pytest.mark.needs("keeps_unsettled")
def test_what_a_receiver_holds_is_nobody_elses(namespace, receiver, sender, queue, opened):
    put(sender, queue, 1)
    held = receive_all(receiver, 1)
    second = opened(namespace.receiver([queue], 100, TIMEOUT))

    assert second.receive(10, 0.5) == []

    receiver.complete(held)


def _hold_and_say_so(site, queue, said):
    receiver = site.namespace().receiver([queue], 100, 5)
    said.send(ids(receive_all(receiver, 3)))
    time.sleep(600)


@pytest.mark.needs("keeps_unsettled")
def test_what_a_killed_process_held_comes_back(short_locks, namespace, sender, queue, site, opened, monkeypatch):
    put(sender, queue, 1, 2, 3)
    fork = multiprocessing.get_context("fork")
    hear, said = fork.Pipe(duplex=False)
    process = fork.Process(target=_hold_and_say_so, args=(site, queue, said))
    process.start()
    try:
        assert hear.poll(20)
        assert hear.recv() == ["m-1", "m-2", "m-3"]
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)

    site.shorten_locks(monkeypatch)
    second = opened(namespace.receiver([queue], 100, TIMEOUT))
    back = receive_all(second, 3, timeout=30)
    assert sorted(ids(back)) == ["m-1", "m-2", "m-3"]
    second.complete(back)
    assert site.stored(queue) == 0


@pytest.mark.needs("process", "outlives_restart", "keeps_unsettled")
def test_what_was_held_when_the_broker_was_killed_comes_back(namespace, receiver, sender, queue, site, monkeypatch):
    put(sender, queue, 1, 2)
    assert len(receive_all(receiver, 2)) == 2
    site.kill()
    with pytest.raises(NamespaceFailure) as caught:
        receive_all(receiver, 1, timeout=10)
    assert caught.value.kind.counts
    site.restart()

    site.shorten_locks(monkeypatch)
    second = namespace.receiver([queue], 100, 10)
    assert sorted(ids(receive_all(second, 2, timeout=30))) == ["m-1", "m-2"]
    second.close()


# -- several queues -----------------------------------------------------------------------------------------------


@pytest.fixture
def queues(site, namespace):
    """The names of three queues."""
    names = site.names(3)
    namespace.ensure_backlog_queues(names, True, 10)
    return names


def put_into(sender, queues):
    for number, name in enumerate(queues):
        put(sender, name, *(f"{number}{n}" for n in range(4)))


def test_one_receiver_has_the_messages_of_all_its_queues_and_settles_each_where_it_lies(
    namespace, sender, queues, site, opened
):
    receiver = opened(namespace.receiver(queues, 100, TIMEOUT))
    put_into(sender, queues)
    held = receive_all(receiver, 12)
    assert {(each.message.message_id, each.queue) for each in held} == {
        (f"m-{number}{n}", name) for number, name in enumerate(queues) for n in range(4)
    }
    done, back, dead = ([each for each in held if each.message.message_id[-1] in "0123"[i::3]] for i in range(3))
    receiver.complete(done)
    receiver.abandon(back)
    if "stores_backlog" in site.abilities:
        receiver.dead_letter([DeadLetter(each, "NoPath", "nobody knows where") for each in dead])
    else:
        receiver.complete(dead)
    again = receive_all(receiver, len(back))
    assert sorted((each.message.message_id, each.queue) for each in again) == sorted(
        (each.message.message_id, each.queue) for each in back
    )
    receiver.complete(again)
    assert receiver.receive(10, 0.2) == []
    if "stores_backlog" in site.abilities:
        wait_until(lambda: [site.stored(name + DEAD_LETTER_SUFFIX) for name in queues] == [1, 1, 1])
    wait_until(lambda: [site.stored(name) for name in queues] == [0, 0, 0])


def test_a_long_queue_does_not_keep_the_others_waiting(namespace, sender, queues, opened):
    long, *others = queues
    put(sender, long, *range(100))
    for name in others:
        put(sender, name, name)
    receiver = opened(namespace.receiver(queues, 20, TIMEOUT))
    seen = []
    while set(seen) != set(queues):
        held = receiver.receive(5, 5)
        time.sleep(0.03)  # sending them
        seen += [each.queue for each in held]
        receiver.complete(held)
    assert len(seen) < 100


def test_a_queue_comes_and_goes_while_others_are_received_from(namespace, sender, queues, opened):
    first, second, third = queues
    receiver = opened(namespace.receiver([first], 100, TIMEOUT))
    assert receiver.receive(10, 0.2) == []
    put_into(sender, queues)
    receiver.add(second)
    held = receive_all(receiver, 8)
    assert {each.queue for each in held} == {first, second}

    receiver.remove(first)

    receiver.complete([each for each in held if each.queue == second])
    assert receiver.receive(10, 0.2) == []
    receiver.add(third)
    assert {each.queue for each in receive_all(receiver, 4)} == {third}
    assert receiver.failed == {}


@pytest.mark.needs("keeps_unsettled")
def test_what_was_held_of_a_queue_that_is_left_goes_back(namespace, sender, queues, opened):
    receiver = opened(namespace.receiver(queues, 100, TIMEOUT))
    put_into(sender, queues)
    held = receive_all(receiver, 12)

    receiver.remove(queues[0])

    other = opened(namespace.receiver(queues, 100, TIMEOUT))
    back = receive_all(other, 4)
    assert {each.queue for each in back} == {queues[0]}
    other.complete(back)
    receiver.complete([each for each in held if each.queue != queues[0]])
    assert other.receive(10, 0.2) == []


@pytest.mark.needs("missing_queues")
def test_a_missing_queue_does_not_keep_the_others_waiting_and_can_be_added_when_it_is_there(
    namespace, sender, queues, site, opened
):
    first, second, third = queues
    site.delete_queue(second)
    receiver = opened(namespace.receiver(queues, 100, TIMEOUT))
    assert {name: failure.kind for name, failure in receiver.failed.items()} == {second: FailureKind.MISSING}
    put(sender, first, "a")
    put(sender, third, "b")
    held = receive_all(receiver, 2)
    assert {each.queue for each in held} == {first, third}

    site.delete_queue(third)  # with what is held of it

    wait_until(lambda: receiver.receive(10, 0.5) or third in receiver.failed)
    assert receiver.failed.keys() == {second, third}
    receiver.complete(held)
    namespace.ensure_backlog_queues([second, third], True, 10)
    for name in (second, third):
        receiver.add(name)
    assert receiver.failed == {}
    put_into(sender, queues)
    assert {each.queue for each in receive_all(receiver, 12)} == set(queues)


def test_a_receiver_of_nothing_waits_until_it_gets_something_to_receive_from(namespace, sender, queue, opened):
    receiver = opened(namespace.receiver([], 100, TIMEOUT))
    started = time.monotonic()
    assert receiver.receive(10, 0.5) == []
    assert time.monotonic() - started >= 0.4
    put(sender, queue, 1)
    receiver.add(queue)
    assert ids(receive_all(receiver, 1)) == ["m-1"]


@pytest.mark.needs("missing_queues")
def test_a_queue_that_is_deleted_under_a_receiver_is_missing(receiver, queue, site):
    site.delete_queue(queue)

    with pytest.raises(NamespaceFailure) as caught:
        receive_from(receiver, 10, 5)
    assert caught.value.kind is FailureKind.MISSING
