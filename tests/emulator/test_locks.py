"""Locks, delivery counts and settlements, where the service is other than one would think."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kombu_paired.emulator import Emulator
from tests.emulator.conftest import connect
from tests.emulator.receiving import receive

pytest.importorskip("azure.servicebus")

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus._pyamqp.error import AMQPLinkError
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

MakeQueue = Callable[..., str]
Give = Callable[[ServiceBusReceiver, ServiceBusReceivedMessage], Any]

pytestmark = pytest.mark.real_naps

#: Seconds.
PATIENCE = 30


def send(client: ServiceBusClient, queue: str, *bodies: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(body) for body in bodies or ("x",)])


def take(receiver: ServiceBusReceiver, seconds: float = PATIENCE) -> ServiceBusReceivedMessage:
    (message,) = receiver.receive_messages(max_wait_time=seconds)
    return message


def release(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
    """The SDK gives back so what it has not shown to anybody."""
    receiver._handler.settle_messages(message._delivery_id, message._delivery_tag, "released")


def modify(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
    receiver._handler.settle_messages(message._delivery_id, message._delivery_tag, "modified", delivery_failed=False)


def settle_by_token(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
    receiver._settle_message_via_mgmt_link("completed", [message.lock_token])


def settle_on_the_link(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
    """Past the SDK's own look at the clock."""
    receiver._do_retryable_operation(
        receiver._settle_message, timeout=None, message=message, settle_operation="complete"
    )


def until_detached(receiver: ServiceBusReceiver) -> str:
    """What the service says when it ends the link."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            receiver._handler._connection.listen(wait=0.2)
            receiver._handler._link.get_state()
        except AMQPLinkError as said:
            return str(said)
    return "nothing"


def left(emulator: Emulator, queue: str) -> int:
    return int(emulator.status()["queues"][queue]["active"])


class TestDeliveryCount:
    @pytest.mark.parametrize(
        ("give", "counted"),
        [(ServiceBusReceiver.abandon_message, True), (modify, True), (release, False)],
    )
    def test_a_message_that_is_given_back(
        self, client: ServiceBusClient, queue: str, give: Give, counted: bool
    ) -> None:
        send(client, queue)
        with client.get_queue_receiver(queue) as receiver:
            give(receiver, take(receiver))
            assert take(receiver).delivery_count == int(counted)

    def test_a_lock_that_expires_is_a_delivery(self, client: ServiceBusClient, make_queue: MakeQueue) -> None:
        queue = make_queue(lock_duration=5.0)
        send(client, queue)
        with client.get_queue_receiver(queue) as receiver:
            assert take(receiver).delivery_count == 0
            assert take(receiver).delivery_count == 1

    @pytest.mark.parametrize("end", ["close", "drop", "idle"])
    def test_the_end_of_a_link_gives_nothing_back(
        self, emulator: Emulator, client: ServiceBusClient, make_queue: MakeQueue, end: str
    ) -> None:
        """The message stays locked, and when the lock expires that is a delivery."""
        queue = make_queue(lock_duration=8.0)  # links are opened and closed meanwhile
        send(client, queue)
        with connect(emulator) as other:
            receiver = other.get_queue_receiver(queue)
            with receiver:
                take(receiver)
                if end == "drop":
                    emulator.drop_connections()
                elif end == "idle":
                    emulator.detach_links(queue)
        with connect(emulator) as another, another.get_queue_receiver(queue) as successor:
            assert successor.receive_messages(max_wait_time=1) == []
            assert take(successor).delivery_count == 1

    def test_what_waits_unread_in_the_sdk_is_released_when_it_closes(
        self, client: ServiceBusClient, queue: str
    ) -> None:
        send(client, queue, "shown", "waiting")
        with client.get_queue_receiver(queue, prefetch_count=10) as receiver:
            receiver.complete_message(take(receiver))
        with client.get_queue_receiver(queue) as successor:
            assert take(successor).delivery_count == 0

    @pytest.mark.parametrize("limit", [1, 2])
    def test_too_many_deliveries_make_a_dead_letter(
        self, client: ServiceBusClient, make_queue: MakeQueue, limit: int
    ) -> None:
        queue = make_queue(max_delivery_count=limit)
        send(client, queue)
        with client.get_queue_receiver(queue) as receiver:
            for _ in range(limit):
                receiver.abandon_message(take(receiver))
        with client.get_queue_receiver(queue, sub_queue="deadletter") as dead:
            message = take(dead)
        assert message.dead_letter_reason == "MaxDeliveryCountExceeded"
        assert message.dead_letter_error_description == (
            f"Message could not be consumed after {limit} delivery attempts."
        )


class TestALockThatExpired:
    @pytest.fixture
    def two(self, emulator: Emulator, make_queue: MakeQueue) -> Iterator[tuple[ServiceBusReceiver, ServiceBusReceiver]]:
        """A receiver whose message was handed to another one, which has it now."""
        queue = make_queue(lock_duration=5.0)
        with connect(emulator) as one, connect(emulator) as another:
            send(one, queue)
            with one.get_queue_receiver(queue) as first, another.get_queue_receiver(queue) as second:
                yield first, second

    def test_another_gets_the_message_and_the_first_is_refused(
        self, two: tuple[ServiceBusReceiver, ServiceBusReceiver]
    ) -> None:
        first, second = two
        stale = take(first)
        fresh = take(second)
        assert fresh.delivery_count == 1
        assert fresh.lock_token != stale.lock_token
        for settle in (settle_on_the_link, settle_by_token):
            with pytest.raises(MessageLockLostError, match="lock supplied is invalid"):
                settle(first, stale)
        with pytest.raises(MessageLockLostError):
            first._renew_locks(stale.lock_token)
        second.complete_message(fresh)


class TestCredit:
    def test_no_more_is_handed_out_than_was_asked_for(self, client: ServiceBusClient, queue: str) -> None:
        send(client, queue, "one", "two", "three")
        with client.get_queue_receiver(queue) as first, client.get_queue_receiver(queue) as second:
            assert len(first.receive_messages(max_message_count=1, max_wait_time=PATIENCE)) == 1
            assert len(receive(second, 2)) == 2
            assert second.receive_messages(max_wait_time=0.2) == []

    def test_what_was_asked_for_and_not_read_is_locked(self, client: ServiceBusClient, queue: str) -> None:
        send(client, queue, "one", "two", "three")
        with client.get_queue_receiver(queue, prefetch_count=10) as greedy, client.get_queue_receiver(queue) as late:
            take(greedy)
            assert late.receive_messages(max_wait_time=1) == []

    def test_a_drained_link_gets_nothing_more(self, client: ServiceBusClient, queue: str) -> None:
        with client.get_queue_receiver(queue, prefetch_count=10) as greedy, client.get_queue_receiver(queue) as late:
            assert greedy.receive_messages(max_wait_time=1) == []
            greedy._handler._link.flow(link_credit=0, drain=True)
            greedy._handler._connection.listen(wait=0.2)
            send(client, queue)
            assert str(take(late)) == "x"


class TestACompletionThatIsRefused:
    @pytest.mark.parametrize(
        ("kind", "raised"),
        [
            ("server-busy", ServiceBusServerBusyError),
            ("internal-error", ServiceBusError),
            ("timeout", OperationTimeoutError),
        ],
    )
    def test_the_lock_lasts_and_it_can_be_tried_again(
        self, client: ServiceBusClient, emulator: Emulator, queue: str, kind: str, raised: type[Exception]
    ) -> None:
        send(client, queue)
        with client.get_queue_receiver(queue) as receiver:
            message = take(receiver)
            emulator.fault(kind, queue, on=["settle"], times=1)
            with pytest.raises(raised):
                receiver.complete_message(message)
            assert left(emulator, queue) == 1
            settle_by_token(receiver, message)  # the delivery is settled on the link; the message is not
            assert left(emulator, queue) == 0

    @pytest.mark.parametrize("again", [False, True])
    def test_an_idle_link_is_gone_and_the_token_is_good(
        self, client: ServiceBusClient, emulator: Emulator, queue: str, again: bool
    ) -> None:
        send(client, queue)
        with client.get_queue_receiver(queue) as receiver:
            message = take(receiver)
            emulator.detach_links(queue)
            if again:  # another link in its place, which knows nothing of the delivery
                with pytest.raises(ServiceBusConnectionError, match="IdleTimerExpired"):
                    receiver.receive_messages(max_wait_time=1)
                assert receiver.receive_messages(max_wait_time=1) == []
            assert left(emulator, queue) == 1
            settle_by_token(receiver, message)
            assert left(emulator, queue) == 0

    def test_a_management_link_that_is_gone_shuts_the_receiver(
        self, client: ServiceBusClient, emulator: Emulator, queue: str
    ) -> None:
        send(client, queue)
        with client.get_queue_receiver(queue) as receiver:
            message = take(receiver)
            receiver.renew_message_lock(message)
            emulator.detach_links(queue)
            receiver.renew_message_lock(message)
            emulator.detach_links(f"{queue}/$management")
            with pytest.raises(ServiceBusError, match="Management Operation error occurred"):
                receiver.renew_message_lock(message)
            with pytest.raises(ValueError, match="already been shutdown"):
                receiver.renew_message_lock(message)

    def test_the_token_is_good_on_any_connection(
        self, client: ServiceBusClient, emulator: Emulator, queue: str
    ) -> None:
        send(client, queue)
        with client.get_queue_receiver(queue) as receiver:
            message = take(receiver)
        with connect(emulator) as other, other.get_queue_receiver(queue) as another:
            settle_by_token(another, message)
        assert left(emulator, queue) == 0

    def test_neither_work_nor_renewal_keeps_a_link_alive(self) -> None:
        with (
            Emulator(["q"], link_idle=2.0) as emulator,
            connect(emulator, retry_total=3) as client,
            client.get_queue_receiver("q") as receiver,
        ):
            send(client, "q")
            message = take(receiver)
            receiver.renew_message_lock(message)
            assert "IdleTimerExpired: Idle timeout: 00:00:02" in until_detached(receiver)
            with connect(emulator, retry_total=3) as other, other.get_queue_receiver("q") as another:
                settle_by_token(another, message)
            assert left(emulator, "q") == 0
