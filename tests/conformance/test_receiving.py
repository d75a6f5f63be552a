"""Receivers: messages are held under lock until they are settled."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import pytest

from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message, marked_maybe_duplicate
from kombu_paired.namespaces.base import DEAD_LETTER_SUFFIX, DeadLetter
from tests.conformance.sites import TIMEOUT
from tests.conformance.waiting import wait_until


def put(sender, queue, *numbers):
    for n in numbers:
        properties = {"message_id": f"m-{n}", "delivery_mode": 2}
        sender.send(Message(b"%d" % n, routing_key=queue, properties=properties), TIMEOUT)
        time.sleep(0.002)  # the filesystem orders by milliseconds


def ids(batch):
    return [each.message.message_id for each in batch]


def receive_all(receiver, count, timeout=5.0):
    """So many messages, in as many batches as it takes; not settled."""
    got = []
    deadline = time.monotonic() + timeout
    while len(got) < count and time.monotonic() < deadline:
        got += receiver.receive(count - len(got), 0.5)
    return got


def test_an_empty_queue_is_waited_for_and_no_longer_than_that(receiver):
    started = time.monotonic()
    assert receiver.receive(10, 0.5) == []
    assert 0.4 <= time.monotonic() - started <= 1.5


def test_a_waiting_receiver_gets_what_arrives(receiver, sender, queue):
    timer = threading.Timer(0.3, put, (sender, queue, 1))
    timer.start()
    assert ids(receiver.receive(10, 10)) == ["m-1"]
    timer.join(5)


def test_a_waiting_receiver_can_be_interrupted(receiver):
    threading.Timer(0.3, receiver.interrupt).start()
    started = time.monotonic()
    assert receiver.receive(10, 30) == []
    assert time.monotonic() - started < 10  # of 30; what polls its broker each second hears of it at the next


def test_completed_messages_are_gone_and_the_others_are_not(namespace, receiver, sender, queue, site, opened):
    put(sender, queue, 1, 2, 3, 4, 5)
    held = receive_all(receiver, 5)

    receiver.complete([held[1], held[3]])
    receiver.abandon([held[0], held[2], held[4]])
    receiver.close()

    second = opened(namespace.receiver(queue, 100, TIMEOUT))
    back = receive_all(second, 3)
    assert sorted(ids(back)) == ["m-1", "m-3", "m-5"]
    second.complete(back)
    assert second.receive(10, 0.2) == []
    wait_until(lambda: site.stored(queue) == 0)


def test_an_abandoned_message_comes_again_unharmed_behind_the_others(receiver, sender, queue, site):
    headers = {"n": 1, "nested": {"list": [None, "x"]}}
    properties = {"message_id": "m-1", "correlation_id": "c", "delivery_mode": 2}
    sender.send(Message(b"\xff\x00", routing_key=queue, headers=headers, properties=properties), TIMEOUT)
    [first] = receiver.receive(1, 5)
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
    corpses = namespace.receiver(queue + DEAD_LETTER_SUFFIX, 10, TIMEOUT)
    got = [each.message for each in receive_all(corpses, 2)]
    corpses.close()
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

    for _ in range(3):
        [depth] = namespace.backlog_depths([queue], TIMEOUT)
        assert depth.messages == 2
        assert depth.oldest_diverted_at in ((1000.5,) if "keeps_order" in site.abilities else (1000.5, 2000.5))


@pytest.mark.needs("missing_queues")
def test_a_missing_queue_has_no_depth_and_no_receiver(namespace, queue):
    depths = namespace.backlog_depths([queue, "nobody"], TIMEOUT)
    assert [depth.messages for depth in depths] == [0, None]

    with pytest.raises(NamespaceFailure) as caught:
        namespace.receiver("nobody", 10, TIMEOUT)
    assert caught.value.kind is FailureKind.MISSING


@pytest.mark.needs("returns_on_close")
def test_what_a_receiver_holds_when_it_closes_goes_back(namespace, receiver, sender, queue, opened):
    put(sender, queue, 1, 2, 3)
    held = receive_all(receiver, 3)
    receiver.complete(held[:1])

    receiver.close()

    second = opened(namespace.receiver(queue, 100, TIMEOUT))
    assert sorted(ids(receive_all(second, 2))) == ["m-2", "m-3"]
    assert second.receive(10, 0.2) == []


@pytest.mark.needs("keeps_unsettled")
def test_what_a_receiver_holds_is_nobody_elses(namespace, receiver, sender, queue, opened):
    put(sender, queue, 1)
    held = receive_all(receiver, 1)
    second = opened(namespace.receiver(queue, 100, TIMEOUT))

    assert second.receive(10, 0.5) == []

    receiver.complete(held)


def _hold_and_say_so(site, queue, said):
    receiver = site.namespace().receiver(queue, 100, 5)
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
    second = opened(namespace.receiver(queue, 100, TIMEOUT))
    back = receive_all(second, 3, timeout=10)
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
    second = namespace.receiver(queue, 100, 10)
    assert sorted(ids(receive_all(second, 2, timeout=10))) == ["m-1", "m-2"]
    second.close()


@pytest.mark.needs("missing_queues")
def test_a_queue_that_is_deleted_under_a_receiver_is_missing(receiver, queue, site):
    site.delete_queue(queue)

    with pytest.raises(NamespaceFailure) as caught:
        receiver.receive(10, 5)
    assert caught.value.kind is FailureKind.MISSING
