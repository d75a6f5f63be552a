"""A backlog on a Redis that is full, a replica, or odd: what frees memory needs none; nothing is lost or doubled."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.redis import receiving as room
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, DeadLetter, Received, Receiver
from kombu_paired.errors import NamespaceFailure
from kombu_paired.message import Message
from tests.support.brokers import RedisNode

QUEUE = "shop/x-servicebus-transfer/0"
TIMEOUT = 2.0


@pytest.fixture
def broker_kind() -> str:
    return "redis"


@pytest.fixture
def client(secondary: RedisNode) -> Iterator[redis.Redis]:
    with secondary.client() as client:
        yield client


@pytest.fixture
def namespace(secondary: RedisNode) -> KombuNamespace:
    return KombuNamespace("secondary", [secondary.url], {}, send_timeout=TIMEOUT)


@pytest.fixture
def receiver(namespace: KombuNamespace) -> Iterator[Callable[[], Receiver]]:
    made: list[Receiver] = []

    def make() -> Receiver:
        made.append(namespace.receiver([QUEUE], 100, TIMEOUT))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def backlog(namespace: KombuNamespace) -> None:
    """Of six messages, one of which is urgent."""
    sender = namespace.sender()
    for n in range(6):
        properties = {"message_id": f"m-{n}", "delivery_mode": 2}
        sender.send(Message(b"%d" % n, priority=0 if n else 9, routing_key=QUEUE, properties=properties), TIMEOUT)
    sender.close()


@pytest.fixture
def full(backlog: None, secondary: RedisNode) -> None:
    secondary.broker.fill()


def ids(batch: list[Received]) -> list[str]:
    return [str(each.message.message_id) for each in batch]


def test_a_full_redis_lets_every_step_pass_that_empties_it(full, namespace, receiver, monkeypatch):
    first = receiver()
    held = first.receive(6, 1)
    assert sorted(ids(held)) == [f"m-{n}" for n in range(6)]
    first.complete(held[:2])
    first.abandon(held[2:3])
    first.dead_letter([DeadLetter(held[3], "NoPath", "nobody knows where")])
    first.close()  # with two unsettled

    again = receiver()
    back = again.receive(6, 1)
    assert ids(back) == ids([held[4], held[5], held[2]])  # to the front of the others, in order
    assert ids(back)[-1] == ids(held)[2]  # behind them
    [depth] = namespace.backlog_depths([QUEUE], TIMEOUT)
    assert (depth.messages, depth.dead_letters, depth.dead_letter_reason) == (3, 1, "NoPath")

    monkeypatch.setattr(room, "LOCK_SECONDS", 0)
    last = receiver().receive(6, 1)
    assert sorted(ids(last)) == sorted(ids(back))


def test_who_settles_after_its_lock_ran_out_doubles_nothing(full, client, receiver, monkeypatch):
    slow, other = receiver(), receiver()
    held = slow.receive(6, 1)
    monkeypatch.setattr(room, "LOCK_SECONDS", 0)
    taken = other.receive(6, 1)
    slow.abandon(held[:2])
    slow.dead_letter([DeadLetter(held[2], "NoPath", "nobody knows where")])
    slow.close()
    assert client.llen(QUEUE) == client.llen(QUEUE + DEAD_LETTER_SUFFIX) == 0
    other.complete(taken)
    assert not [key for key in client.keys("*") if b"transfer" in key]


def test_what_came_home_while_redis_refused_to_settle_it_does_not_come_again(backlog, client, receiver, monkeypatch):
    held = receiver().receive(4, 1)
    refused = receiver()
    client.replicaof("127.0.0.1", 1)
    with pytest.raises(NamespaceFailure, match="ReadOnlyError"):
        refused.complete(held)
    client.replicaof("NO", "ONE")

    monkeypatch.setattr(room, "LOCK_SECONDS", 0)
    rest = receiver().receive(6, 1)
    assert len(rest) == 2
    assert not set(ids(rest)) & set(ids(held))


@pytest.mark.parametrize("spoilt", [QUEUE, QUEUE + DEAD_LETTER_SUFFIX])
def test_a_list_that_is_none_takes_no_message_with_it(backlog, client, receiver, spoilt):
    holder = receiver()
    held = holder.receive(6, 1)
    client.set(spoilt, "not a list")
    letters = [DeadLetter(each, "NoPath", "nobody knows where") for each in held]
    holder.abandon(held) if spoilt == QUEUE else holder.dead_letter(letters)
    assert "WRONGTYPE" in str(holder.failed[QUEUE])
    assert client.hlen(QUEUE + "/$Locked") == client.zcard(QUEUE + "/$Locks") == 6


OTHER = "shop/x-servicebus-transfer/1"


@pytest.mark.parametrize("key", ["", "/$Locks", "/$Locked"])
def test_a_spoilt_queue_does_not_keep_the_others_waiting(backlog, client, namespace, key):
    both = namespace.receiver([OTHER, QUEUE], 100, TIMEOUT)
    waits = client.lpush(OTHER, "found") if key else 0
    client.set(OTHER + key, "something else")
    assert len(both.receive(6, 1)) == 6
    assert "WRONGTYPE" in str(both.failed[OTHER])
    assert both.receive(6, 0.1) == []
    client.delete(OTHER + key)
    both.add(OTHER)
    client.lpush(OTHER, "again")
    assert [each.message.body for each in both.receive(6, 1)] == [b"found", b"again"][1 - waits :]
    assert both.failed == {}
    both.close()
    assert client.llen(OTHER) == 1 + waits


def test_what_is_owed_for_a_spoilt_queue_is_settled_when_it_is_not_any_more(backlog, client, receiver, monkeypatch):
    holder = receiver()
    held = holder.receive(4, 1)
    client.rename(QUEUE + "/$Locks", "aside")
    client.set(QUEUE + "/$Locks", "something else")
    holder.complete(held)
    assert "WRONGTYPE" in str(holder.failed[QUEUE])
    client.rename("aside", QUEUE + "/$Locks")
    holder.close()

    monkeypatch.setattr(room, "LOCK_SECONDS", 0)
    rest = receiver().receive(6, 1)
    assert len(rest) == 2
    assert not set(ids(rest)) & set(ids(held))


def test_what_is_diverted_wakes_a_receiver_at_once_and_leaves_no_bell(client, namespace, receiver):
    waiting, sender = receiver(), namespace.sender()
    sent: list[float] = []

    def send(n: int) -> None:
        sender.send(Message(b"%d" % n, routing_key=QUEUE, properties={"message_id": f"m-{n}"}), TIMEOUT)
        sent.append(time.monotonic())

    delays = []
    for n in range(10):
        timer = threading.Timer(0.3, send, [n])
        timer.start()
        held = waiting.receive(10, 20)
        now = time.monotonic()
        timer.join()
        delays.append(now - sent[-1])
        waiting.complete(held)
        assert ids(held) == [f"m-{n}"]
    assert statistics.median(delays) < 2, "of the five seconds after which it would look anyway"

    client.lpush(QUEUE, b"by somebody who does not ring")
    waiting.complete(waiting.receive(10, 20))
    send(10)  # nobody hears it
    waiting.complete(waiting.receive(10, 20))
    assert [key for key in client.keys("*") if b"transfer" in key] == []
    sender.close()


def asked(client: redis.Redis) -> int:
    return int(client.info("stats")["total_commands_processed"])


def test_a_receiver_that_finds_nothing_hardly_asks(client, namespace):
    waiting = namespace.receiver([f"shop/x-servicebus-transfer/{n}" for n in range(10)], 100, TIMEOUT)
    try:
        assert waiting.receive(10, 1) == []
        before, began = asked(client), time.monotonic()
        assert waiting.receive(10, 6) == []
        assert (asked(client) - before) / (time.monotonic() - began) < 4, "commands per second"
    finally:
        waiting.close()


def test_what_others_put_there_without_a_ring_is_found_by_a_look(client, receiver):
    waiting = receiver()
    assert waiting.receive(10, 0.5) == []
    message = Message(b"1", routing_key=QUEUE, properties={"message_id": "m-1"})
    item = room.item_of_message(waiting.link.channel, message)
    threading.Timer(0.3, client.lpush, [QUEUE, item]).start()
    assert ids(waiting.receive(10, 30)) == ["m-1"]


def test_what_was_asked_for_ahead_for_too_long_is_not_received_when_somebody_else_has_it(
    backlog: None, receiver: Callable[[], Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a process that was frozen, and a syphon that was not."""
    monkeypatch.setattr(room, "FRESH", 0.0)
    frozen, other = receiver(), receiver()
    frozen.complete(frozen.receive(1, TIMEOUT))
    frozen.fetch(5)
    with monkeypatch.context() as patch:
        patch.setattr(room, "LOCK_SECONDS", 0)
        time.sleep(0.01)
        taken = other.receive(5, TIMEOUT)

    assert len(taken) == 5
    assert frozen.receive(5, 0.2) == []
    other.complete(taken)
    assert other.receive(5, 0.2) == []


def test_what_was_asked_for_ahead_for_too_long_comes_again_once(
    backlog: None, receiver: Callable[[], Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "FRESH", 0.0)
    slow = receiver()
    got = slow.receive(1, TIMEOUT)
    slow.fetch(5)
    got += slow.receive(5, TIMEOUT)
    assert sorted(ids(got)) == [f"m-{n}" for n in range(6)]
    slow.complete(got)
    assert slow.receive(5, 0.2) == []


def test_thousands_cost_redis_a_handful_of_commands_and_come_in_order(namespace, receiver, client):
    sender = namespace.sender()
    letters = [{"priority": 9 * (n % 2), "properties": {"message_id": f"m-{n}"}} for n in range(2400)]
    sent = [Message(b"", routing_key=QUEUE, **each) for each in letters]
    assert not any(sender.send_batch(sent, TIMEOUT))
    sender.close()
    client.config_resetstat()
    holder = receiver()
    first, rest = holder.receive(2300, 1), holder.receive(2300, 1)
    steps = [f"m-{n}" for n in (*range(0, 2400, 2), *range(1, 2400, 2))]
    assert ids(first + rest) == steps
    holder.complete(first)
    holder.abandon(rest)
    assert ids(holder.receive(200, 1)) == ids(rest)
    assert max(int(each["calls"]) for name, each in client.info("commandstats").items() if "lpush" not in name) <= 110


def test_a_batch_lies_where_kombu_puts_each_of_its_messages_and_in_the_same_form(namespace, client):
    letters = [
        Message("t\u00e9xt", content_type="text/plain", content_encoding="utf-8", headers={"id": "1", "kept": b"\xff"}),
        Message(b"\x00\xff", priority=9, properties={"delivery_mode": 2, "expiration": "5000"}),
        Message(b"", priority=3, properties={"priority": 6}),
        Message(b"", priority=12),
    ]
    sent = [replace(each, routing_key="orders") for each in letters]
    sender = namespace.sender()

    def found() -> dict[bytes, list[object]]:
        lists = {key: [json.loads(item) for item in client.lrange(key, 0, -1)] for key in client.keys("orders*")}
        client.delete(*lists)
        tags = {item["properties"].pop("delivery_tag") for items in lists.values() for item in items}
        assert len(tags) == len(sent)
        return lists

    for each in sent:
        sender.send(each, TIMEOUT)
    by_kombu = found()
    assert not any(sender.send_batch(sent, TIMEOUT))
    assert found() == by_kombu
    assert len(by_kombu) == 3  # one for each step that was used
    sender.close()
