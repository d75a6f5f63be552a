"""A queue on a clock of its own: nothing waits."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kombu_paired.emulator.broker.entities import QueueOptions, SubscriptionOptions, TopicOptions, check_name
from kombu_paired.emulator.broker.errors import Condition, Refusal
from kombu_paired.emulator.broker.messages import Outcome
from kombu_paired.emulator.broker.namespace import Namespace
from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.broker.rules import NONE
from kombu_paired.emulator.wire.codec import Described, Symbol, Timestamp, UInt, ULong, encode


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def namespace(clock: Clock) -> Namespace:
    return Namespace(clock)


def message(
    body: bytes = b"x",
    message_id: str | None = None,
    session: str | None = None,
    ttl: float | None = None,
    at: float | None = None,
) -> bytes:
    sections: list[tuple[int, Any]] = [] if ttl is None else [(0x70, [None, None, UInt(int(ttl * 1000))])]
    if at is not None:
        sections.append((0x72, {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(int(at * 1000))}))
    properties: list[Any] = [message_id, *[None] * 9, session]
    sections += [(0x73, properties), (0x75, body)]
    return b"".join(encode(Described(ULong(code), value)) for code, value in sections)


def bodies(queue: Queue, session: str | None = None) -> list[bytes]:
    """Receive and delete all there is."""
    found = []
    while (received := queue.receive_and_delete(session)) is not None:
        found.append(received.envelope.bare[-1:])
    return found


def refused(condition: str) -> Any:
    return pytest.raises(Refusal, match=condition)


def test_a_lock_hides_a_message_until_it_expires_and_counts(namespace: Namespace, clock: Clock) -> None:
    queue = namespace.create_queue("q", QueueOptions(lock_duration=30))
    namespace.send("q", [message()])
    lock = queue.receive()
    assert lock is not None
    assert queue.receive() is None
    clock.now += 20
    queue.renew(lock.token)
    clock.now += 20
    assert queue.receive() is None
    clock.now += 20
    with refused(Condition.MESSAGE_LOCK_LOST):
        queue.settle(lock.token, Outcome.COMPLETE)
    again = queue.receive()
    assert again is not None
    assert again.message.delivery_count == 1


def test_order_is_kept_when_a_message_comes_back(namespace: Namespace) -> None:
    queue = namespace.create_queue("q", QueueOptions())
    namespace.send("q", [message(b"1"), message(b"2"), message(b"3")])
    locks = [queue.receive(), queue.receive()]
    for lock in reversed(locks):
        assert lock is not None
        queue.settle(lock.token, Outcome.RELEASE)
    assert bodies(queue) == [b"1", b"2", b"3"]


def test_too_many_deliveries_make_a_dead_letter(namespace: Namespace) -> None:
    queue = namespace.create_queue("q", QueueOptions(max_delivery_count=2))
    namespace.send("q", [message()])
    for outcome in (Outcome.RELEASE, Outcome.ABANDON, Outcome.ABANDON):
        lock = queue.receive()
        assert lock is not None
        queue.settle(lock.token, outcome)
    dead = namespace.receivable("q/$DeadLetterQueue").receive()
    assert dead is not None
    assert dead.message.envelope.application_properties()["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert dead.message.dead_letter_source == "q"


@pytest.mark.parametrize("dead_lettering", [True, False])
def test_time_to_live_is_the_shorter_of_message_and_queue(
    namespace: Namespace, clock: Clock, dead_lettering: bool
) -> None:
    options = QueueOptions(default_message_time_to_live=10, dead_lettering_on_message_expiration=dead_lettering)
    queue = namespace.create_queue("q", options)
    namespace.send("q", [message(b"1", ttl=5), message(b"2", ttl=500), message(b"3")])
    clock.now += 6
    namespace.tick()
    assert queue.counts().active == 2
    clock.now += 6
    assert bodies(queue) == []
    assert queue.counts().dead_lettered == (3 if dead_lettering else 0)


def test_a_locked_message_does_not_expire_in_its_receivers_hands(namespace: Namespace, clock: Clock) -> None:
    queue = namespace.create_queue("q", QueueOptions())
    namespace.send("q", [message(ttl=5), message(ttl=5)])
    first, second = queue.receive(), queue.receive()
    assert first is not None
    assert second is not None
    clock.now += 6
    queue.settle(first.token, Outcome.COMPLETE)
    queue.settle(second.token, Outcome.RELEASE)
    assert queue.receive() is None
    assert queue.size == 0


def test_scheduled_messages_wait_and_get_a_new_number(namespace: Namespace, clock: Clock) -> None:
    queue = namespace.create_queue("q", QueueOptions())
    numbers = namespace.send("q", [message(b"1", at=clock.now + 60), message(b"2", at=clock.now + 60), message(b"3")])
    assert [each.state.name for each in queue.peek(1, 10)] == ["SCHEDULED", "SCHEDULED", "ACTIVE"]
    queue.cancel_scheduled(numbers[1:2])
    with refused(Condition.MESSAGE_NOT_FOUND):
        queue.cancel_scheduled(numbers[1:2])
    assert bodies(queue) == [b"3"]
    clock.now += 60
    received = queue.receive()
    assert received is not None
    assert received.message.sequence > numbers[2]
    assert received.message.enqueued == clock.now


def test_duplicates_are_dropped_inside_the_window(namespace: Namespace, clock: Clock) -> None:
    options = QueueOptions(requires_duplicate_detection=True, duplicate_detection_history_time_window=30)
    queue = namespace.create_queue("q", options)
    for _ in range(3):
        namespace.send("q", [message(message_id="a")])
    assert len(bodies(queue)) == 1
    namespace.send("q", [message(message_id="a"), message(message_id="b")])
    assert len(bodies(queue)) == 1
    clock.now += 31
    namespace.send("q", [message(message_id="a")])
    assert len(bodies(queue)) == 1


def test_deferred_messages_come_by_number_only(namespace: Namespace) -> None:
    queue = namespace.create_queue("q", QueueOptions())
    namespace.send("q", [message()])
    lock = queue.receive()
    assert lock is not None
    queue.settle(lock.token, Outcome.DEFER)
    assert queue.receive() is None
    (again,) = queue.receive_deferred([1], delete=False, session=None)
    with refused(Condition.MESSAGE_NOT_FOUND):
        queue.receive_deferred([1], delete=False, session=None)
    queue.settle(again.token, Outcome.ABANDON)
    assert queue.receive() is None
    queue.receive_deferred([1], delete=True, session=None)
    assert queue.counts().total == 0


def test_a_session_has_one_owner_and_its_own_order(namespace: Namespace, clock: Clock) -> None:
    queue = namespace.create_queue("q", QueueOptions(requires_session=True, lock_duration=10))
    with refused(Condition.NOT_ALLOWED):
        namespace.send("q", [message()])
    namespace.send("q", [message(b"1", session="b"), message(b"2", session="a"), message(b"3", session="b")])
    me, you = object(), object()
    assert queue.accept_session(None, me) == "b"
    with refused(Condition.SESSION_CANNOT_BE_LOCKED):
        queue.accept_session("b", you)
    assert queue.accept_session(None, you) == "a"
    assert queue.accept_session(None, object()) is None
    first = queue.receive("b")
    assert first is not None
    queue.set_session_state("b", b"state")
    queue.release_session("b", me)
    with refused(Condition.MESSAGE_LOCK_LOST):
        queue.settle(first.token, Outcome.COMPLETE)
    assert queue.accept_session("b", me) == "b"
    assert queue.session_state("b") == b"state"
    assert bodies(queue, "b") == [b"1", b"3"]
    clock.now += 11
    assert not queue.owns_session("b", me)
    with refused(Condition.SESSION_LOCK_LOST):
        queue.renew_session("b")


def test_an_expired_session_lock_counts_a_released_one_does_not(namespace: Namespace, clock: Clock) -> None:
    queue = namespace.create_queue("q", QueueOptions(requires_session=True, lock_duration=10))
    namespace.send("q", [message(session="s")])
    counts = []
    for wait in (0, 11, 0):
        queue.accept_session("s", self_ := object())
        lock = queue.receive("s")
        assert lock is not None
        counts.append(lock.message.delivery_count)
        clock.now += wait
        namespace.tick()
        queue.release_session("s", self_)
    assert counts == [0, 0, 1]


def test_limits(namespace: Namespace) -> None:
    namespace.create_queue("q", QueueOptions(max_message_size_in_kilobytes=1, max_size_in_megabytes=1))
    with refused(Condition.MESSAGE_SIZE_EXCEEDED):
        namespace.send("q", [message(b"x" * 1025)])
    with refused(Condition.ARGUMENT_ERROR):
        namespace.send("q", [message(message_id="i" * 129)])
    with refused(Condition.RESOURCE_LIMIT_EXCEEDED):
        for _ in range(1200):
            namespace.send("q", [message(b"x" * 900)])


def test_a_topic_copies_into_its_subscriptions(namespace: Namespace, clock: Clock) -> None:
    namespace.create_topic("t", TopicOptions(requires_duplicate_detection=True))
    for name in ("one", "two", "none"):
        namespace.create_subscription("t", name, SubscriptionOptions())
    namespace.set_rules("t", "none", {"$Default": NONE})
    namespace.send("t", [message(b"1", message_id="1"), message(b"1", message_id="1"), message(b"2", at=clock.now + 5)])
    one, two = (namespace.receivable(f"t/Subscriptions/{name}") for name in ("one", "two"))
    assert bodies(one) == bodies(two) == [b"1"]
    clock.now += 6
    namespace.tick()
    assert bodies(one) == bodies(two) == [b"2"]
    assert bodies(namespace.receivable("T/subscriptions/NONE")) == []


def test_messages_are_forwarded_and_dead_lettered_where_they_cannot_be(namespace: Namespace) -> None:
    namespace.create_queue("end", QueueOptions())
    namespace.create_queue("graves", QueueOptions())
    namespace.create_queue("start", QueueOptions(forward_to="sb://host/end"))
    namespace.create_topic("t", TopicOptions())
    options = SubscriptionOptions(forward_to="start", forward_dead_lettered_messages_to="graves")
    namespace.create_subscription("t", "s", options)
    namespace.send("t", [message(b"1")])
    assert bodies(namespace.receivable("end")) == [b"1"]
    with refused(Condition.NOT_ALLOWED):
        namespace.receivable("start")
    namespace.delete("start")
    namespace.send("t", [message(b"2")])
    assert bodies(namespace.receivable("graves")) == [b"2"]


def test_forwarding_in_a_circle_ends(namespace: Namespace) -> None:
    namespace.create_queue("a", QueueOptions())
    namespace.create_queue("b", QueueOptions(forward_to="a"))
    namespace.update_queue("a", QueueOptions(forward_to="b"))
    namespace.send("a", [message()])
    assert sum(queue.counts().dead_lettered for queue in namespace.queues.values()) == 1


def test_status_and_idle_deletion(namespace: Namespace, clock: Clock) -> None:
    namespace.create_queue("q", QueueOptions(status="Disabled", auto_delete_on_idle=300))
    for use in (namespace.sendable, namespace.receivable):
        with refused(Condition.ENTITY_DISABLED):
            use("q")
    clock.now += 301
    namespace.delete_idle()
    with refused(Condition.NOT_FOUND):
        namespace.find("q")


@pytest.mark.parametrize("name", ["a", "contoso/x-servicebus-transfer/0", "A.b-c_d/9", "x" * 260])
def test_names_of_the_service(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "-a", "a/", "/a", "a b", "a//b", "ä", "x" * 261, "a$b"])
def test_names_the_service_refuses(name: str) -> None:
    with refused(Condition.ARGUMENT_ERROR):
        check_name(name)


@pytest.mark.parametrize(
    "options",
    [
        QueueOptions(lock_duration=301),
        QueueOptions(auto_delete_on_idle=10),
        QueueOptions(requires_duplicate_detection=True, duplicate_detection_history_time_window=10),
        QueueOptions(status="Sleepy"),
        QueueOptions(max_delivery_count=0),
        QueueOptions(forward_to="nowhere"),
        QueueOptions(forward_to="q"),
    ],
)
def test_properties_out_of_bounds(namespace: Namespace, options: QueueOptions) -> None:
    with refused(Condition.ARGUMENT_ERROR):
        namespace.create_queue("q", options)


def test_an_unknown_lock_is_lost(namespace: Namespace) -> None:
    queue = namespace.create_queue("q", QueueOptions())
    with refused(Condition.MESSAGE_LOCK_LOST):
        queue.settle(uuid.uuid4(), Outcome.COMPLETE)
