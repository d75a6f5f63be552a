"""With --data, what was acknowledged survives SIGKILL."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from kombu_paired.emulator import Emulator
from kombu_paired.emulator.broker.entities import QueueOptions, SubscriptionOptions, TopicOptions
from kombu_paired.emulator.broker.messages import Outcome
from kombu_paired.emulator.broker.namespace import Namespace
from kombu_paired.emulator.broker.rules import NONE, Rule
from kombu_paired.emulator.broker.store import Store
from tests.emulator.conftest import connect
from tests.emulator.receiving import receive
from tests.emulator.test_queues import Clock, bodies, message

pytest.importorskip("azure.servicebus")

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue


def test_messages_survive_a_kill(tmp_path: Path) -> None:
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    with Emulator(["q"], data=tmp_path, process=True) as emulator:
        with connect(emulator) as client, client.get_queue_sender("q") as sender:
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(200)])
            sender.schedule_messages(ServiceBusMessage("scheduled"), later)
            with client.get_queue_receiver("q") as receiver:
                done, dead, locked = receive(receiver, 3)
                receiver.complete_message(done)
                receiver.dead_letter_message(dead, reason="why")
                emulator.kill()
        emulator.restart()
        assert emulator.status()["queues"]["q"] == {"active": 198, "deferred": 0, "scheduled": 1, "dead_lettered": 1}
        with connect(emulator) as client:
            with client.get_queue_receiver("q") as receiver:
                got = receive(receiver, 198)
                assert [str(each) for each in got] == [str(number) for number in range(2, 200)]
                assert got[0].sequence_number == locked.sequence_number
            with client.get_queue_receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
                (dead,) = receiver.receive_messages(max_wait_time=20)
                assert (str(dead), dead.dead_letter_reason) == ("1", "why")


def test_everything_else_survives_too(tmp_path: Path) -> None:
    clock = Clock()
    store = Store.open(str(tmp_path))
    before = Namespace(clock, store)
    options = QueueOptions(
        requires_session=True, requires_duplicate_detection=True, default_message_time_to_live=50, lock_duration=7
    )
    queue = before.create_queue("Shop/q", options)
    before.create_topic("t", TopicOptions())
    rules = {"none": NONE, "red": Rule.sql("color = 'red'"), "one": Rule.correlation({"label": "1"}, {"size": 7})}
    before.create_subscription("t", "s", SubscriptionOptions(forward_to="shop/q"))
    before.set_rules("t", "s", rules)
    before.create_queue("deleted", QueueOptions())
    before.delete("deleted")
    before.send("shop/q", [message(b"1", message_id="1", session="s"), message(b"2", message_id="2", session="s")])
    owner = object()
    queue.accept_session("s", owner)
    queue.set_session_state("s", b"state")
    lock = queue.receive("s")
    assert lock is not None
    queue.settle(lock.token, Outcome.DEFER)
    last = before.send("shop/q", [message(b"3", message_id="3", session="s")])[0]
    store.close()

    after = Namespace(clock, Store.open(str(tmp_path)))
    after.journal.load(after)  # type: ignore[attr-defined]
    queue = after.queue("shop/q")
    assert (queue.path, queue.options) == ("Shop/q", options)
    assert set(after.queues) == {"shop/q"}
    assert after.subscription("t", "s").rules == rules
    assert [each.state.name for each in queue.peek(1, 9)] == ["DEFERRED", "ACTIVE", "ACTIVE"]
    assert after.send("shop/q", [message(b"3", message_id="3", session="s")]) == [0]
    assert after.send("shop/q", [message(b"4", message_id="4", session="s")])[0] > last
    queue.accept_session("s", owner)
    assert queue.session_state("s") == b"state"
    assert bodies(queue, "s") == [b"2", b"3", b"4"]
    clock.now += 51
    after.tick()
    assert queue.counts().total == 0


def test_a_refused_batch_leaves_nothing(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    namespace = Namespace(Clock(), store)
    namespace.create_queue("q", QueueOptions(max_message_size_in_kilobytes=1))
    with pytest.raises(Exception, match="more than"), store.together():
        namespace.send("q", [message(), message(bytes(2000))])
    assert namespace.queue("q").counts().total == 0


def test_a_folder_belongs_to_one_emulator(tmp_path: Path) -> None:
    Store.open(str(tmp_path))
    with pytest.raises(OSError, match="another emulator"):
        Store.open(str(tmp_path))


def test_after_a_reset_there_is_nothing_but_what_it_was_started_with(tmp_path: Path) -> None:
    with Emulator(["q"], data=tmp_path, process=True) as emulator:
        with connect(emulator) as client:
            with client.get_queue_sender("q") as sender:
                sender.send_messages(ServiceBusMessage("x"))
            emulator.fault("disabled", "q")
            emulator.reset()
        for _ in ("at once", "and for good"):
            empty = {"active": 0, "deferred": 0, "scheduled": 0, "dead_lettered": 0}
            assert (emulator.status()["queues"], emulator.status()["faults"]) == ({"q": empty}, [])
            emulator.restart()
