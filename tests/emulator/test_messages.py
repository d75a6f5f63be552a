"""What the SDK does with messages, against the emulator."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from threading import Timer

import pytest

from kombu_paired.emulator import Emulator
from tests.emulator.conftest import connect
from tests.emulator.receiving import receive

pytest.importorskip("azure.servicebus")

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

MakeQueue = Callable[..., str]


def send(client: ServiceBusClient, queue: str, *messages: ServiceBusMessage | str) -> None:
    with client.get_queue_sender(queue) as sender:
        for message in messages:
            sender.send_messages(message if isinstance(message, ServiceBusMessage) else ServiceBusMessage(message))


def take(client: ServiceBusClient, queue: str, count: int = 10, seconds: float = 20) -> list[str]:
    """The bodies of what is in a queue now, once there is any."""
    with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        got = receiver.receive_messages(count, max_wait_time=seconds)
        while len(got) < count and (more := receiver.receive_messages(count - len(got), max_wait_time=0.4)):
            got += more
    return [str(message) for message in got]


def test_every_property_of_a_message_arrives(client: ServiceBusClient, queue: str) -> None:
    properties = {
        "text": "ä",
        "number": 7,
        "long": 2**31 - 1,
        "float": 1.5,
        "flag": True,
        "id": uuid.uuid4(),
        "raw": b"r",
    }
    sent = ServiceBusMessage(
        b"body\x00\x00",
        application_properties=dict(properties),
        session_id="session",
        time_to_live=timedelta(minutes=5),
        subject="subject",
        content_type="text/plain",
        correlation_id="correlation",
        message_id="id",
        partition_key="session",
        to="to",
        reply_to="reply",
        reply_to_session_id="reply session",
    )
    send(client, queue, sent)
    with client.get_queue_receiver(queue) as receiver:
        (got,) = receiver.receive_messages(max_wait_time=20)
        assert b"".join(got.body) == b"body\x00\x00"
        found = {key.decode(): value for key, value in got.application_properties.items()}
        assert found == {**properties, "text": "ä".encode()}
        for name in ("session_id", "subject", "content_type", "correlation_id", "message_id", "to", "reply_to"):
            assert getattr(got, name) == getattr(sent, name)
        assert got.time_to_live == timedelta(minutes=5)
        assert got.expires_at_utc - got.enqueued_time_utc == timedelta(minutes=5)
        assert (got.delivery_count, got.sequence_number, got.partition_key) == (0, 1, "session")
        assert timedelta(seconds=50) < got.locked_until_utc - datetime.now(timezone.utc) <= timedelta(seconds=61)
        receiver.complete_message(got)


def test_bodies_of_every_size_come_back(client: ServiceBusClient, queue: str) -> None:
    sizes = [0, 1, 254, 255, 256, 60_000, *range(65_400, 65_540, 20), 70_000, 131_000, 262_000]
    send(client, queue, *[ServiceBusMessage(bytes(size)) for size in sizes])
    with client.get_queue_receiver(queue) as receiver:
        got = receive(receiver, len(sizes))
        assert [b"".join(message.body) for message in got] == [bytes(size) for size in sizes]


def test_a_message_too_large_is_refused(client: ServiceBusClient, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(bytes(262_144)))
        sender.send_messages(ServiceBusMessage("still open"))
    assert take(client, queue) == ["still open"]


def test_batches(client: ServiceBusClient, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(50)])
        batch = sender.create_message_batch()
        assert batch.max_size_in_bytes == 256 * 1024
        with contextlib.suppress(MessageSizeExceededError):
            while True:
                batch.add_message(ServiceBusMessage(bytes(10_000)))
        sender.send_messages(batch)
        count = len(batch)
    with client.get_queue_receiver(queue) as receiver:
        got = receive(receiver, 50 + count) + receiver.receive_messages(max_wait_time=0.2)
    assert [str(message) for message in got[:50]] == [str(number) for number in range(50)]
    assert len(got) == 50 + count


def test_complete_abandon_and_release(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, "done", "again")
    with client.get_queue_receiver(queue) as receiver:
        done, again = receive(receiver, 2)
        receiver.complete_message(done)
        receiver.abandon_message(again)
        (got,) = receiver.receive_messages(2, max_wait_time=20)
        assert (str(got), got.delivery_count) == ("again", 1)
        receiver.complete_message(got)
    assert take(client, queue, seconds=0.4) == []


def test_a_closed_receiver_gives_prefetched_messages_back(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, *"abcdef")
    with client.get_queue_receiver(queue, prefetch_count=20) as receiver:
        (first,) = receiver.receive_messages(1, max_wait_time=20)
        receiver.complete_message(first)
    assert take(client, queue) == list("bcdef")


def test_dead_letters_say_why(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, ServiceBusMessage("bad", application_properties={"kept": 1}))
    with client.get_queue_receiver(queue) as receiver:
        (message,) = receiver.receive_messages(max_wait_time=20)
        receiver.dead_letter_message(message, reason="because", error_description="of that")
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = receiver.receive_messages(max_wait_time=20)
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("because", "of that")
        assert dead.application_properties[b"kept"] == 1
        assert dead.dead_letter_source == queue
        receiver.complete_message(dead)
        assert receiver.receive_messages(max_wait_time=0.3) == []


def test_deferred_messages(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, "later")
    with client.get_queue_receiver(queue) as receiver:
        (message,) = receiver.receive_messages(max_wait_time=20)
        receiver.defer_message(message)
        assert receiver.receive_messages(max_wait_time=0.3) == []
        (deferred,) = receiver.receive_deferred_messages(message.sequence_number)
        assert str(deferred) == "later"
        receiver.renew_message_lock(deferred)
        receiver.dead_letter_message(deferred, reason="late")
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(message.sequence_number)


def test_renewed_locks_last(client: ServiceBusClient, make_queue: MakeQueue) -> None:
    queue = make_queue(lock_duration=1.0)
    send(client, queue, "kept", "lost")
    with client.get_queue_receiver(queue) as receiver:
        kept, lost = receive(receiver, 2)
        before = kept.locked_until_utc
        until = receiver.renew_message_lock(kept)
        assert until > before
        receiver.complete_message(kept)
        lost._raw_amqp_message.annotations[b"x-opt-locked-until"] += 60_000
        (again,) = receiver.receive_messages(max_wait_time=20)
        assert (str(again), again.delivery_count) == ("lost", 1)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(lost)


def test_peeking_changes_nothing(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, "a", "b", "c")
    with client.get_queue_receiver(queue) as receiver:
        assert [str(message) for message in receiver.peek_messages(2)] == ["a", "b"]
        assert [str(message) for message in receiver.peek_messages(5, sequence_number=3)] == ["c"]
        assert receiver.peek_messages(5, sequence_number=4) == []
    assert take(client, queue) == ["a", "b", "c"]


def test_scheduled_messages_and_their_cancellation(client: ServiceBusClient, queue: str) -> None:
    soon = datetime.now(timezone.utc) + timedelta(seconds=5)
    with client.get_queue_sender(queue) as sender:
        numbers = sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], soon)
        sender.cancel_scheduled_messages(numbers[0])
        sender.send_messages(ServiceBusMessage("c", scheduled_enqueue_time_utc=soon))
        sender.send_messages(ServiceBusMessage("now"))
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(numbers[0])
    with client.get_queue_receiver(queue) as receiver:
        (now,) = receiver.receive_messages(1, max_wait_time=20)
        assert str(now) == "now"
        assert receiver.receive_messages(5, max_wait_time=0.3) == []
        got = receive(receiver, 2) + receiver.receive_messages(5, max_wait_time=0.2)
        assert [str(message) for message in got] == ["b", "c"]


def test_expired_messages(client: ServiceBusClient, make_queue: MakeQueue) -> None:
    queue = make_queue(dead_lettering_on_message_expiration=True)
    send(client, queue, ServiceBusMessage("short", time_to_live=timedelta(seconds=1)), "long")
    time.sleep(1.1)  # its life
    assert take(client, queue) == ["long"]
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = receiver.receive_messages(max_wait_time=20)
        assert dead.dead_letter_reason == "TTLExpiredException"


def test_duplicates(client: ServiceBusClient, make_queue: MakeQueue) -> None:
    queue = make_queue(requires_duplicate_detection=True)
    send(client, queue, *[ServiceBusMessage(str(number), message_id="same") for number in range(3)])
    assert take(client, queue) == ["0"]


def test_receive_and_delete(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, "a", "b")
    assert take(client, queue, 1) == ["a"]
    assert take(client, queue) == ["b"]


def test_a_waiting_receiver_is_served_at_once(client: ServiceBusClient, emulator: Emulator, queue: str) -> None:
    with client.get_queue_receiver(queue) as receiver, connect(emulator) as other, other.get_queue_sender(queue) as out:
        timer = Timer(0.3, out.send_messages, [ServiceBusMessage("hello")])
        timer.start()
        started = datetime.now()
        assert len(receiver.receive_messages(max_wait_time=30)) == 1
        assert datetime.now() - started < timedelta(seconds=15)
        timer.join()


class TestSessions:
    @pytest.fixture
    def queue(self, make_queue: MakeQueue) -> str:
        return make_queue(requires_session=True, lock_duration=5.0)

    def test_each_session_is_received_by_itself(self, client: ServiceBusClient, queue: str) -> None:
        send(client, queue, *[ServiceBusMessage(f"{s}{n}", session_id=s) for n in range(3) for s in "ab"])
        for session in "ba":
            with client.get_queue_receiver(queue, session_id=session) as receiver:
                assert receiver.session.session_id == session
                got = receive(receiver, 3)
                assert [str(message) for message in got] == [f"{session}{n}" for n in range(3)]
                for message in got:
                    receiver.complete_message(message)

    def test_state_and_renewal(self, client: ServiceBusClient, queue: str) -> None:
        send(client, queue, ServiceBusMessage("x", session_id="s"))
        with client.get_queue_receiver(queue, session_id="s") as receiver:
            assert receiver.session.get_state() is None
            receiver.session.set_state(b"half way")
            assert receiver.session.get_state() == b"half way"
            before = receiver.session.locked_until_utc
            assert receiver.session.renew_lock() > before
            (message,) = receiver.receive_messages(max_wait_time=20)
            receiver.defer_message(message)
            (deferred,) = receiver.receive_deferred_messages(message.sequence_number)
            receiver.complete_message(deferred)

    def test_sessions_are_listed(self, client: ServiceBusClient, queue: str) -> None:
        assert list(client.list_queue_sessions(queue)) == []
        send(client, queue, *[ServiceBusMessage("x", session_id=f"s{number % 3}") for number in range(5)])
        assert list(client.list_queue_sessions(queue)) == ["s0", "s1", "s2"]

    def test_one_owner(self, client: ServiceBusClient, queue: str) -> None:
        with client.get_queue_receiver(queue, session_id="s"), pytest.raises(SessionCannotBeLockedError):
            client.get_queue_receiver(queue, session_id="s").__enter__()

    def test_next_available(self, client: ServiceBusClient, queue: str) -> None:
        with pytest.raises(OperationTimeoutError):
            client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.5).__enter__()
        send(client, queue, ServiceBusMessage("x", session_id="somebody"))
        with client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20) as receiver:
            assert receiver.session.session_id == "somebody"
            assert len(receiver.receive_messages(max_wait_time=20)) == 1

    def test_a_session_whose_lock_expired_is_lost(self, client: ServiceBusClient, make_queue: MakeQueue) -> None:
        queue = make_queue(requires_session=True, lock_duration=0.4)
        send(client, queue, ServiceBusMessage("x", session_id="s"))
        with client.get_queue_receiver(queue, session_id="s") as receiver:
            (message,) = receiver.receive_messages(max_wait_time=20)
            time.sleep(0.7)
            with pytest.raises((SessionLockLostError, MessageLockLostError)):
                receiver.complete_message(message)

    def test_queues_with_and_without_sessions_are_not_mixed_up(
        self, client: ServiceBusClient, queue: str, make_queue: MakeQueue
    ) -> None:
        with pytest.raises(ServiceBusError, match="requires sessions"):
            send(client, queue, "no session")
        with pytest.raises(ServiceBusError, match="requires sessions"):
            client.get_queue_receiver(queue).__enter__()
        with pytest.raises(ServiceBusError, match="no sessions"):
            client.get_queue_receiver(make_queue(), session_id="s").__enter__()


def test_topics_and_subscriptions(client: ServiceBusClient, admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("news")
    for name in ("one", "two"):
        admin.create_subscription("news", name)
    with client.get_topic_sender("news") as sender:
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        soon = datetime.now(timezone.utc) + timedelta(seconds=0.3)
        sender.schedule_messages(ServiceBusMessage("c"), soon)
        (number,) = sender.schedule_messages(ServiceBusMessage("never"), soon)
        sender.cancel_scheduled_messages(number)
    for name in ("one", "two"):
        with client.get_subscription_receiver("news", name) as receiver:
            got = receive(receiver, 3)
            assert [str(message) for message in got] == ["a", "b", "c"]
            receiver.dead_letter_message(got[0], reason="old")
        dead = ServiceBusSubQueue.DEAD_LETTER
        with client.get_subscription_receiver("news", name, sub_queue=dead) as receiver:
            assert [str(message) for message in receiver.receive_messages(max_wait_time=20)] == ["a"]


def test_forwarding(client: ServiceBusClient, admin: ServiceBusAdministrationClient, queue: str) -> None:
    admin.create_topic("inward")
    admin.create_subscription("inward", "sub", forward_to=queue)
    with client.get_topic_sender("inward") as sender:
        sender.send_messages(ServiceBusMessage("moved on"))
    assert take(client, queue) == ["moved on"]


def test_names_with_slashes(client: ServiceBusClient, admin: ServiceBusAdministrationClient) -> None:
    name = "contoso/x-servicebus-transfer/0"
    admin.create_queue(name)
    send(client, name, "backlog")
    with client.get_queue_receiver(name) as receiver:
        assert [str(message) for message in receiver.peek_messages(1)] == ["backlog"]
    assert take(client, name) == ["backlog"]


def test_two_receivers_share_a_queue(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, *map(str, range(10)))
    with client.get_queue_receiver(queue) as one, client.get_queue_receiver(queue) as two:
        got = [receive(one, 3), receive(two, 7)]
        numbers = [int(str(message)) for messages in got for message in messages]
        assert len(numbers) == len(set(numbers)) == 10


def test_amqp_over_tls(client: ServiceBusClient, emulator: Emulator, queue: str, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text(emulator.certificate())
    secure = emulator.connection_string.replace(";UseDevelopmentEmulator=true", "")
    with ServiceBusClient.from_connection_string(
        secure,
        retry_total=0,
        custom_endpoint_address=f"sb://{emulator.host}",
        connection_verify=str(authority),
        transport_type=TransportType.Amqp,
    ) as encrypted:
        send(encrypted, queue, ServiceBusMessage(bytes(200_000)), "over TLS")
        with encrypted.get_queue_receiver(queue) as receiver:
            large, small = receive(receiver, 2)
            assert (len(b"".join(large.body)), str(small)) == (200_000, "over TLS")
            receiver.complete_message(large)
    assert emulator.status()["queues"][queue]["active"] == 1
