"""The fetchers of one channel: what they hold together, and what becomes of it."""

from __future__ import annotations

import queue as queues
import threading
import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusConnectionError, ServiceBusServerBusyError

from kombu_paired.brokers.servicebus.fetchers import FETCH_AHEAD, Fetchers
from kombu_paired.brokers.servicebus.fetching import Fetcher
from kombu_paired.brokers.servicebus.settling import ABANDON, COMPLETE, dead_letter
from kombu_paired.brokers.servicebus.wire import to_envelope

SECONDS = 10


class Link:
    """A link to a queue that is a list; settles as the service does."""

    path = "orders"
    credit = 0
    refused = ()

    def __init__(self, waiting):
        self.waiting = waiting
        self.settled = queues.SimpleQueue()
        self.limits = queues.SimpleQueue()
        self.is_dropped = threading.Event()
        self.refusals = {}
        self.breaks = threading.Event()
        self.breaks_with = ServiceBusConnectionError()
        self.links = queues.SimpleQueue()  # those that came after it

    def open(self, timeout):
        if self.refused:
            raise self.refused.pop()

    def opened(self):
        return SimpleNamespace(
            dead_letter_message=lambda message, **why: self.settled.put((message.message_id, why["reason"])),
        )

    def begin_settling(self, message, operation):
        self.settled.put((message.message_id, operation))
        return {"settled": True}

    def end_settling(self, message, operation, answer):
        if message.message_id in self.refusals:
            raise self.refusals.pop(message.message_id)

    def settle_by_token(self, message, operation, arguments):
        self.settled.put((message.message_id, f"{operation} by token"))

    def keep_what_comes(self):
        pass

    def ask_for(self, count):
        self.credit = count
        if count:
            self.limits.put(count)

    def fetch(self, wait, bell):
        if self.breaks.is_set():
            raise self.breaks_with
        taken = [self.waiting.pop(0) for _ in self.waiting[: self.credit]]
        self.credit -= len(taken)
        if not taken:
            bell.wait(min(wait, 0.01))
        return taken

    def drop(self):
        self.is_dropped.set()

    close = drop


def message(number):
    raw = {"body": "", "headers": {}, "properties": {"delivery_info": {}, "message_id": str(number)}}
    sent = to_envelope(raw)
    return SimpleNamespace(
        body=b"".join(each if isinstance(each, bytes) else each.encode() for each in sent.body),
        message_id=str(number),
        content_type=None,
        delivery_count=0,
        locked_until_utc=None,
    )


@pytest.fixture
def fetchers():
    """At most five messages are held together."""
    made = Fetchers(lambda: 5)
    yield made
    made.drop()


@pytest.fixture
def consume(fetchers):
    """Consumes a queue; its link, and where its messages come out."""

    def consume(*waiting, no_ack=False):
        given = [each if isinstance(each, SimpleNamespace) else message(each) for each in waiting]
        link, delivered = Link(given), queues.SimpleQueue()
        links = [link]

        def new_link(session):
            if links:
                return links.pop()
            link.links.put(another := Link([]))
            return another

        fetcher = Fetcher(
            "orders",
            new_link,
            room=fetchers.room,
            hand_out=fetchers.hand_out,
            deliver=lambda fetcher, raw, tag: delivered.put((fetcher, tag)),
            fail=delivered.put,
            missing=lambda queue: None,
            no_ack=no_ack,
        )
        fetchers.start(fetcher)
        return link, delivered

    return consume


def take_over(delivered):
    """The tag of the next message, which the consumer takes over."""
    fetcher, tag = delivered.get(timeout=SECONDS)
    assert fetcher.take_over(tag)
    return tag


def test_each_message_is_settled_as_it_is_told(fetchers, consume):
    link, delivered = consume(1, 2, 3)
    for outcome in (COMPLETE, ABANDON, dead_letter("Rejected", "no")):
        assert fetchers.settle(take_over(delivered), outcome)
    assert [link.settled.get(timeout=SECONDS) for _ in range(3)] == [
        ("1", "complete"),
        ("2", "abandon"),
        ("3", "Rejected"),
    ]
    assert not fetchers.settle("nobody's", COMPLETE)


def test_a_settlement_that_is_refused_is_made_by_token_while_the_lock_lasts(fetchers, consume):
    link, delivered = consume(1)
    link.refusals["1"] = ServiceBusServerBusyError()
    fetchers.settle(take_over(delivered), COMPLETE)
    assert link.settled.get(timeout=SECONDS) == ("1", "complete")
    assert link.settled.get(timeout=SECONDS) == ("1", "complete by token")


def test_one_whose_lock_is_lost_is_not(fetchers, consume, caplog):
    link, delivered = consume(1, 2)
    link.refusals["1"] = MessageLockLostError()
    fetchers.settle(take_over(delivered), COMPLETE)
    assert link.settled.get(timeout=SECONDS) == ("1", "complete")
    fetchers.settle(take_over(delivered), COMPLETE)
    assert link.settled.get(timeout=SECONDS) == ("2", "complete")
    fetchers.stop(SECONDS)
    assert link.settled.empty()
    assert len([each for each in caplog.records if "is refused" in each.message]) == 1


def locked_for(seconds, number):
    found = message(number)
    found.locked_until_utc = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    return found


#: Longer than the locks of these tests.
BUSY = ServiceBusServerBusyError(message="The namespace is being throttled. Please wait 30 seconds and try again.")


def test_a_settlement_that_the_service_asks_to_wait_with_is_made_before_the_lock_ends(fetchers, consume):
    link, delivered = consume(locked_for(3, 1))
    link.refusals["1"] = BUSY
    fetchers.settle(take_over(delivered), COMPLETE)
    assert link.settled.get(timeout=SECONDS) == ("1", "complete")
    assert link.settled.get(timeout=SECONDS) == ("1", "complete by token")


def test_a_link_that_the_service_refuses_is_made_again_before_a_lock_ends(fetchers, consume, monkeypatch):
    held = locked_for(4, 1)
    link, delivered = consume(held)
    tag = take_over(delivered)
    monkeypatch.setattr(Link, "refused", [BUSY] * 3)
    link.breaks_with = BUSY
    link.breaks.set()
    fetchers.settle(tag, COMPLETE)
    links = [link.links.get(timeout=SECONDS) for _ in range(4)]
    assert links[-1].settled.get(timeout=SECONDS) == ("1", "complete by token")
    assert datetime.now(timezone.utc) < held.locked_until_utc


def test_what_was_read_after_its_lock_had_ended_is_not_delivered(consume, caplog):
    link, delivered = consume(locked_for(-1, 1), locked_for(-1, 2), locked_for(60, 3))
    take_over(delivered)
    assert delivered.empty()
    assert link.settled.empty()
    assert [each.args[0] for each in caplog.records if "beyond its lock" in each.message] == ["1"], "said once"


def test_what_waited_for_the_consumer_beyond_its_lock_is_not_taken_over(fetchers, consume):
    waiting = locked_for(60, 1)
    _, delivered = consume(waiting)
    fetcher, tag = delivered.get(timeout=SECONDS)
    waiting.locked_until_utc = datetime.now(timezone.utc)
    assert not fetcher.take_over(tag)
    assert not fetchers.settle(tag, COMPLETE), "it is somebody else's by now"


def test_what_came_over_a_link_that_is_gone_is_settled_by_token_over_the_next_one(fetchers, consume):
    link, delivered = consume(1)
    tag = take_over(delivered)
    link.breaks.set()
    next_link = link.links.get(timeout=SECONDS)
    assert fetchers.settle(tag, COMPLETE)
    assert next_link.settled.get(timeout=SECONDS) == ("1", "complete by token")


def test_the_fetchers_of_a_channel_hold_no_more_than_its_prefetch_count_together(fetchers, consume):
    _, first = consume(1, 2, 3)
    tags = [take_over(first) for _ in range(3)]
    link, second = consume(4, 5, 6)
    for _ in range(2):
        tags.append(take_over(second))
    assert link.limits.get(timeout=SECONDS) == 2
    assert [each.message_id for each in link.waiting] == ["6"]

    fetchers.settle(tags[0], COMPLETE)
    take_over(second)
    assert link.waiting == []


class Fast:
    """The pace of a consumer that is fast, and far away."""

    def __init__(self, ahead):
        self.is_ahead_by = ahead

    def ahead(self, lock):
        return self.is_ahead_by

    def settled(self):
        pass

    def answered(self, seconds):
        pass


@pytest.fixture
def ahead(monkeypatch):
    """Three more messages are fetched than there is room for."""
    pace = Fast(3)
    monkeypatch.setattr("kombu_paired.brokers.servicebus.holding.Pace", lambda: pace)
    return pace


def until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_is_fetched_ahead_is_handed_out_when_there_is_room(ahead, fetchers, consume):
    link, delivered = consume(*range(20))
    tags = [take_over(delivered) for _ in range(5)]
    until(lambda: len(link.waiting) == 12)
    assert delivered.empty(), "the consumer has its five"

    fetchers.settle(tags[0], COMPLETE)

    take_over(delivered)
    until(lambda: len(link.waiting) == 11)


def test_what_was_fetched_ahead_for_a_consumer_that_has_become_slow_is_given_back(
    ahead, fetchers, consume, monkeypatch
):
    monkeypatch.setattr("kombu_paired.brokers.servicebus.holding.KEEP_AHEAD", 0.0)
    link, delivered = consume(*range(8))
    ahead.is_ahead_by = 0
    assert {link.settled.get(timeout=SECONDS) for _ in range(3)} == {(str(each), "release") for each in (5, 6, 7)}
    for _ in range(5):
        take_over(delivered)


def test_what_was_fetched_ahead_is_given_back_at_the_end(ahead, fetchers, consume):
    link, delivered = consume(*range(8))
    until(lambda: not link.waiting)
    for _ in range(5):
        fetchers.settle(take_over(delivered), COMPLETE)
    fetchers.stop(SECONDS)
    settled = {link.settled.get(timeout=SECONDS) for _ in range(8)}
    assert {each for each, outcome in settled if outcome == "release"} == {"5", "6", "7"}


def test_what_was_fetched_ahead_is_not_handed_out_once_its_lock_has_ended(ahead, fetchers, consume):
    late = [locked_for(60, number) for number in (5, 6, 7)]
    link, delivered = consume(*range(5), *late)
    tags = [take_over(delivered) for _ in range(5)]
    until(lambda: not link.waiting)
    for each in late:
        each.locked_until_utc = datetime.now(timezone.utc)
    for tag in tags:
        fetchers.settle(tag, COMPLETE)
    assert delivered.empty()


def test_a_queue_gets_its_turn_beside_one_that_is_fetched_ahead_from(ahead, fetchers, consume):
    busy, first = consume(*range(1000))
    until(lambda: len(busy.waiting) == 992)
    _, second = consume("other")

    def settle_one():
        fetchers.settle(take_over(first), COMPLETE)
        return not second.empty()

    until(settle_one)
    assert len(busy.waiting) > 500


def test_without_acknowledgements_there_is_room_for_what_the_consumer_took_over(consume):
    link, delivered = consume(1, no_ack=True)
    assert link.limits.get(timeout=SECONDS) == FETCH_AHEAD
    fetcher, tag = delivered.get(timeout=SECONDS)
    assert tag is None
    assert fetcher.buffered == 1
    assert fetcher.take_over(tag)
    assert fetcher.buffered == 0


def test_what_was_delivered_before_a_queue_was_cancelled_can_be_settled_after_it_is_consumed_again(fetchers, consume):
    link, delivered = consume(1, 2)
    first = take_over(delivered)
    delivered.get(timeout=SECONDS)  # the second one waits for the consumer still
    fetchers.cancel("orders")
    assert link.settled.get(timeout=SECONDS) == ("2", "release")
    consume()

    assert fetchers.settle(first, COMPLETE)
    assert link.settled.get(timeout=SECONDS) == ("1", "complete")
    assert link.is_dropped.wait(SECONDS)


def test_at_the_end_what_is_not_settled_is_given_back(fetchers, consume):
    link, delivered = consume(1)
    take_over(delivered)
    fetchers.stop(SECONDS)
    assert link.settled.get(timeout=SECONDS) == ("1", "release")
    assert link.is_dropped.is_set()


def test_of_a_queue_that_is_deleted_nothing_is_settled(fetchers, consume):
    link, delivered = consume(1)
    tag = take_over(delivered)
    fetchers.end("orders")
    assert link.is_dropped.is_set()
    assert not fetchers.settle(tag, COMPLETE)
