"""Which messages of a batch a broker may have, when it breaks off: no more than were written, and not yet confirmed."""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from redis import exceptions

from kombu_paired.brokers.kombu import KombuNamespace, KombuSender
from kombu_paired.brokers.rabbitmq.sending import AmqpSender
from kombu_paired.brokers.redis.links import RedisSender
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import MAYBE_DUPLICATE, Message

MESSAGES = [Message(str(n), "", "orders") for n in range(4)]


def sender_on(scheme, make):
    return make(KombuNamespace("primary", [f"{scheme}://nowhere.invalid/"], {}, send_timeout=1))


def doubts(outcomes):
    """For each: None if the broker has it, else whether it may."""
    return [outcome and outcome.maybe_stored for outcome in outcomes]


class Connection:
    """A connection to RabbitMQ, and its socket, that breaks before it has written all of a message."""

    frame_max, bytes_sent = 131072, 0

    def __init__(self, sender, breaks_at, before=lambda: None):
        self._transport, self.written = self, []
        self._breaks_at, self._before = breaks_at, before
        sender.link.connection = self
        sender.link.channel = SimpleNamespace(connection=self, channel_id=1)

    def write(self, frames):
        if b"".join([*self.written, frames]).count(END + BODY) > self._breaks_at:
            self._before()
            raise ConnectionResetError("in the middle of the next")
        self.written.append(frames)

    def collect(self): ...


#: Where the body of a message begins: after the end of its header.
END, BODY = b"\xce", b"\x03\0\1"


@pytest.fixture
def to_rabbitmq(monkeypatch):
    sender = sender_on("amqp", AmqpSender)
    sender._last_confirm = time.monotonic()  # so that it need not knock first
    monkeypatch.setattr(sender.link, "has_arrived", lambda: False)
    return sender


@pytest.mark.parametrize("blocked", [False, True])
def test_rabbitmq_has_what_it_confirmed_and_may_have_what_was_written(monkeypatch, to_rabbitmq, blocked):
    def before():
        to_rabbitmq.link.blocked = "memory" if blocked else None
        to_rabbitmq._on_ack(1, multiple=False)

    monkeypatch.setattr("kombu_paired.brokers.rabbitmq.sending.AT_ONCE", 1)
    Connection(to_rabbitmq, 3, before)
    assert doubts(to_rabbitmq.send_batch(MESSAGES, 1)) == [None, True, True, False]


def test_of_what_is_written_at_once_rabbitmq_may_have_all_but_the_last(to_rabbitmq):
    connection = Connection(to_rabbitmq, 3)
    assert doubts(to_rabbitmq.send_batch(MESSAGES, 1)) == [True, True, True, False]
    assert connection.written == []


def test_a_message_that_was_not_written_whole_is_not_in_rabbitmq(to_rabbitmq):
    Connection(to_rabbitmq, 0)
    assert doubts(to_rabbitmq._batch_of_one(MESSAGES[0], Deadline())) == [False]


@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_what_was_encoded_before_one_that_cannot_be_is_in_doubt_only_if_it_was_written(
    monkeypatch, to_rabbitmq, at_once
):
    monkeypatch.setattr("kombu_paired.brokers.rabbitmq.sending.AT_ONCE", at_once)
    connection = Connection(to_rabbitmq, 4)
    alone = []
    monkeypatch.setattr(to_rabbitmq, "_alone", lambda message, deadline: alone.append(message))
    bad = Message(b"", "", "orders", headers={"moment": object()})
    assert doubts(to_rabbitmq.send_batch([*MESSAGES[:2], bad, MESSAGES[3]], 1)) == [None] * 4
    were_written = len(connection.written)
    assert were_written == (2 if at_once == 1 else 0)
    assert [MAYBE_DUPLICATE in each.headers for each in alone] == [each < were_written for each in range(4)]


class Pipeline(list):
    """A publish batch of Kombu's Redis transport, and the pipeline in it."""

    def __init__(self, fails_at):
        self.fails_at, self.pipeline, self.channel = fails_at, self, SimpleNamespace(_expires={})
        self.encoded = 0

    def list_and_item(self, channel, message):
        if self.fails_at == "adding" and self.encoded == 2:
            raise exceptions.ConnectionError("Connection closed by server.")
        self.encoded += 1
        return message.routing_key, message.body

    def lpush(self, *command):
        self.append(command)

    def execute(self, raise_on_error):
        if self.fails_at == "connecting":
            try:
                raise ConnectionRefusedError
            except ConnectionRefusedError:
                raise exceptions.ConnectionError("Error 111 connecting to nowhere")  # noqa: B904  so does redis-py
        raise exceptions.TimeoutError("Timeout reading from socket")

    def close(self): ...


@pytest.mark.parametrize(("fails_at", "may_have"), [("adding", False), ("connecting", False), ("reading", True)])
def test_redis_may_have_what_is_in_a_pipeline_that_was_sent(monkeypatch, fails_at, may_have):
    sender = sender_on("redis", RedisSender)
    batch = Pipeline(fails_at)
    channel = SimpleNamespace(create_publish_batch=lambda max_size: batch)
    monkeypatch.setattr(sender.link, "open", lambda timeout: channel)
    monkeypatch.setattr(sender.link, "within", without_limit)
    monkeypatch.setattr("kombu_paired.brokers.redis.links.list_and_item", batch.list_and_item)
    assert doubts(sender.send_batch(MESSAGES, 1)) == [may_have] * 4


@contextmanager
def without_limit(seconds):
    yield


@pytest.mark.parametrize("whole", [True, False])
def test_others_have_at_most_what_was_sent(monkeypatch, whole):
    sender = sender_on("memory", KombuSender)
    sent = []

    def send(message, timeout):
        sent.append(message)
        if len(sent) == 2:
            raise NamespaceFailure(
                FailureKind.TIMEOUT, "primary", TimeoutError(), maybe_stored=True, whole_namespace=whole
            )

    monkeypatch.setattr(sender.link, "open", lambda timeout: None)
    monkeypatch.setattr(sender, "send", send)
    assert doubts(sender.send_batch(MESSAGES, 1)) == [None, True, *([False] * 2 if whole else [None] * 2)]


@pytest.mark.parametrize(("scheme", "make"), [("redis", RedisSender), ("memory", KombuSender)])
def test_a_declaration_stores_no_message(monkeypatch, scheme, make):
    sender = sender_on(scheme, make)

    def queue_declare(**arguments):
        raise ConnectionResetError

    monkeypatch.setattr(sender.link, "open", lambda timeout: SimpleNamespace(queue_declare=queue_declare))
    monkeypatch.setattr(sender.link, "within", without_limit)
    with pytest.raises(NamespaceFailure) as caught:
        sender.declare([Declaration("queue_declare", {"queue": "orders"})], 1)
    assert not caught.value.maybe_stored
