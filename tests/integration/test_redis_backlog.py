"""A backlog on a Redis that is full, a replica, or odd: what frees memory needs none; nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from kombu_paired.errors import NamespaceFailure
from kombu_paired.message import Message
from kombu_paired.namespaces import redis as room
from kombu_paired.namespaces.base import DEAD_LETTER_SUFFIX, DeadLetter, Received, Receiver
from kombu_paired.namespaces.kombu import KombuNamespace
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
        made.append(namespace.receiver(QUEUE, 100, TIMEOUT))
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
    with pytest.raises(NamespaceFailure, match="WRONGTYPE"):
        holder.abandon(held) if spoilt == QUEUE else holder.dead_letter(letters)
    assert client.hlen(QUEUE + "/$Locked") == client.zcard(QUEUE + "/$Locks") == 6
