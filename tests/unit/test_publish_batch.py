"""Publish batches, as Kombu's producer uses them: kept until they are full or end, then sent together."""

from __future__ import annotations

import pytest
from kombu import Connection, Producer
from kombu.exceptions import BatchPublishError

from kombu_paired.transport import pairing_of


@pytest.fixture
def connection():
    with Connection("paired+redis://main/0", transport_options={"secondary": "redis://spare/0"}) as connection:
        yield connection
        pairing_of(connection).close()


@pytest.fixture
def channel(connection):
    """A channel; nothing of the pairing is asked whether it is there."""
    pairing_of(connection).open = lambda: None
    return connection.channel()


@pytest.fixture
def sent(channel, monkeypatch):
    """What was sent together, batch by batch."""
    batches = []
    monkeypatch.setattr(channel, "send_together", batches.append)
    return batches


def bodies(batches):
    return [[message.body for message in batch] for batch in batches]


def test_a_batch_is_sent_when_it_is_full_and_when_it_ends(channel, sent):
    producer = Producer(channel)
    with producer.batch(max_size=2):
        for number in "123":
            producer.publish(number, routing_key="orders", content_type="text/plain", content_encoding="utf-8")
        assert bodies(sent) == [[b"1", b"2"]]
    assert bodies(sent) == [[b"1", b"2"], [b"3"]]
    assert {(message.exchange, message.routing_key) for batch in sent for message in batch} == {("", "orders")}


def test_what_was_not_sent_when_the_block_failed_is_not_sent(channel, sent):
    producer = Producer(channel)

    def publish_and_fail():
        with producer.batch(max_size=9):
            producer.publish("1", routing_key="orders")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        publish_and_fail()
    assert sent == []


def test_a_batch_that_failed_says_so_and_is_of_no_use_any_more(channel, monkeypatch):
    def fail(messages):
        raise ConnectionError("neither namespace took the message")

    monkeypatch.setattr(channel, "send_together", fail)
    batch = channel.create_publish_batch(max_size=1)
    with pytest.raises(BatchPublishError, match=r"delivery is uncertain: neither namespace") as caught:
        batch.publish(channel.prepare_message("1"), routing_key="orders")
    assert isinstance(caught.value.__cause__, ConnectionError)
    with pytest.raises(BatchPublishError, match="the publish batch is failed: open another one"):
        batch.publish(channel.prepare_message("2"), routing_key="orders")


def test_what_a_batch_keeps_goes_to_the_pairing(connection, channel, monkeypatch):
    sent = []
    monkeypatch.setattr(pairing_of(connection), "send_batch", sent.append)
    batch = channel.create_publish_batch(max_size=9)
    batch.flush()
    batch.publish(channel.prepare_message("1"), exchange="shop", routing_key="orders", mandatory=True)
    assert sent == []
    batch.flush()
    [[message]] = sent
    assert (message.exchange, message.routing_key, message.mandatory) == ("shop", "orders", True)
    batch.close()
    with pytest.raises(BatchPublishError, match="closed"):
        batch.flush()
