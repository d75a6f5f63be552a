"""A message of which one copy is enough is kept once by Redis, however often it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.errors import NamespaceFailure
from kombu_paired.message import ONCE, Message
from tests.support.brokers import RedisNode

QUEUE = "orders"
TIMEOUT = 2.0


@pytest.fixture
def broker_kind() -> str:
    return "redis"


@pytest.fixture
def client(primary: RedisNode) -> Iterator[redis.Redis]:
    with primary.client() as client:
        yield client


def namespace_at(url: str, **options: str) -> KombuNamespace:
    return KombuNamespace("primary", [url], options, send_timeout=TIMEOUT)


def body(token: str = "a-run", retries: int = 0) -> Message:
    headers = {ONCE: token, "id": "a-body", "retries": retries}
    return Message("[]", routing_key=QUEUE, content_type="application/json", content_encoding="utf-8", headers=headers)


def one_by_one(sender, messages: list[Message]) -> list[NamespaceFailure | None]:
    outcomes: list[NamespaceFailure | None] = []
    for each in messages:
        try:
            sender.send(each, TIMEOUT)
        except NamespaceFailure as failure:
            outcomes.append(failure)
        else:
            outcomes.append(None)
    return outcomes


def together(sender, messages: list[Message]) -> list[NamespaceFailure | None]:
    return sender.send_batch(messages, TIMEOUT)


Way = Callable[..., list[NamespaceFailure | None]]
either_way = pytest.mark.parametrize("send", [one_by_one, together])


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_of_copies_one_is_kept_and_none_of_other_messages(primary, client, prefix):
    others = [body("another run"), body(retries=1), Message("[]", routing_key=QUEUE), Message("[]", routing_key=QUEUE)]
    first, second = (namespace_at(primary.url, global_keyprefix=prefix).sender() for _ in range(2))
    assert one_by_one(first, [body(), body()]) == [None, None]
    assert client.llen(prefix + QUEUE) == 1
    assert together(second, [body(), *others, body()]) == [None] * 6
    assert client.llen(prefix + QUEUE) == 5
    [*keys] = client.scan_iter(f"{prefix}kombu-paired.once:*")
    assert len(keys) == 3
    assert all(0 < client.ttl(each) <= 24 * 3600 for each in keys)


@either_way
@pytest.mark.parametrize("harm", ["fill", "spoil"])
def test_what_was_refused_is_not_taken_for_kept(primary, client, send: Way, harm):
    sender = namespace_at(primary.url).sender()
    mend = primary.spoil(QUEUE) if harm == "spoil" else primary.fill() or primary.unfill
    [failure] = send(sender, [body()])
    assert failure is not None
    assert failure.kind.counts
    mend()
    assert send(sender, [body(), body()]) == [None, None]
    assert client.llen(QUEUE) == 1


@either_way
def test_where_scripts_are_forbidden_each_copy_is_kept(primary, client, send: Way):
    client.execute_command("ACL", "SETUSER", "clerk", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
    sender = namespace_at(primary.url.replace("redis://", "redis://clerk:pw@")).sender()
    try:
        assert send(sender, [body(), body()]) == [None, None]
    finally:
        client.execute_command("ACL", "DELUSER", "clerk")
    assert client.llen(QUEUE) == 2
