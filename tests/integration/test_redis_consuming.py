"""A consumer on Redis: what is taken out of a queue is noted in Redis, whoever dies in between."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis
from kombu import Connection, Consumer, Exchange, Producer, Queue

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.redis import taking, transport
from kombu_paired.events import EventKind
from kombu_paired.transport import pairing_of
from tests.bench import bench_idle_kills
from tests.support.brokers import RedisNode
from tests.support.traffic import Traffic, heard, wait_for

QUEUE = "orders"


@pytest.fixture
def broker_kind() -> str:
    return "redis"


@pytest.fixture
def client(primary: RedisNode) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(primary.url, decode_responses=True) as client:
        yield client


class Taker:
    """A consumer in this process; nothing is acknowledged by itself."""

    def __init__(self, connection: Connection, *queues: Any, no_ack: bool = False) -> None:
        self.connection = connection
        self.messages: list[Any] = []
        self.channel = connection.channel()
        names = [queue if isinstance(queue, Queue) else Queue(queue, routing_key=queue) for queue in queues or (QUEUE,)]
        self.consumer = Consumer(self.channel, names, on_message=self.messages.append, no_ack=no_ack)
        self.consumer.consume()

    @property
    def bodies(self) -> list[Any]:
        return [message.payload for message in self.messages]

    def drain(self, timeout: float = 1.5) -> None:
        """Until nothing came for so long."""
        try:
            while True:
                self.connection.drain_events(timeout=timeout)
        except TimeoutError:
            pass

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.messages) < count and time.monotonic() < deadline:
            try:
                self.connection.drain_events(timeout=0.5)
            except TimeoutError:
                continue
        assert len(self.messages) == count


@pytest.fixture
def take(primary: RedisNode) -> Iterator[Callable[..., Taker]]:
    """Make a consumer on the transport that a pairing gives its consumers, without the pairing."""
    connections = []

    def make(*queues: Any, no_ack: bool = False, **options: Any) -> Taker:
        namespace = KombuNamespace("primary", [primary.url], dict(primary.gives_back_soon, **options), send_timeout=2)
        connections.append(namespace.consumer_client(heartbeat=None, connect_timeout=None))
        return Taker(connections[-1], *queues, no_ack=no_ack)

    yield make
    for connection in connections:
        connection.collect(0.1)


@pytest.fixture
def pair(primary: RedisNode, options: dict[str, Any]) -> Iterator[Connection]:
    with Connection(f"paired+{primary.url}", transport_options=options) as connection:
        yield connection
        pairing_of(connection).close()


def consuming_channel(taker: Taker) -> Any:
    channel = taker.channel
    return channel.primary_channel() if hasattr(channel, "primary_channel") else channel


def waits(taker: Taker, patience: int = 60) -> None:
    """Let the consumer find nothing and wait for the next message, for as long as the test takes."""
    channel = consuming_channel(taker)
    channel.brpop_timeout = patience
    wait_for(lambda: _waits_after_a_look(taker, channel), 30, "the consumer does not wait")


def _waits_after_a_look(taker: Taker, channel: Any) -> bool:
    with pytest.raises(TimeoutError):
        taker.connection.drain_events(timeout=0.03)
    return not channel._in_poll and any(wait.since is not None for wait in channel._waits.values())


@contextmanager
def before_it_is_noted(taker: Taker, monkeypatch: pytest.MonkeyPatch, happen: Callable[[], Any]) -> Iterator[None]:
    """Let something happen when ``BRPOP`` has answered, and the message is not noted yet."""
    channel = consuming_channel(taker)
    note = channel._note_late

    def note_too_late(*args: Any) -> None:
        happen()
        note(*args)

    with monkeypatch.context() as patch:
        patch.setattr(channel, "_note_late", note_too_late)
        yield


@contextmanager
def as_a_replica(client: redis.Redis) -> Iterator[None]:
    """Of a place where nobody is: it keeps its data and refuses every write."""
    client.replicaof("127.0.0.1", 1)
    try:
        yield
    finally:
        client.replicaof("NO", "ONE")


@contextmanager
def as_another_process() -> Iterator[None]:
    """Consumers of one process share their own lists."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taking, "_taker", lambda pid: 32 * "b")
        yield


@pytest.fixture
def no_moves(primary: RedisNode, client: redis.Redis) -> Iterator[None]:
    """As on a server whose access list forbids them: ``BRPOP`` hands over a message before it is noted."""
    client.acl_setuser("default", enabled=True, reset_passwords=False, commands=["-blmove", "-brpoplpush"])
    yield
    primary.revive()
    client.acl_setuser("default", enabled=True, reset_passwords=False, categories=["+@all"])


def noted(client: redis.Redis) -> Any:
    """What is left of notes, under whatever prefix."""
    return client.keys("*unacked") + client.keys("*unacked_index")


def fails(taker: Taker) -> None:
    with pytest.raises(taker.connection.connection_errors):
        taker.connection.drain_events(timeout=20)


# -- taken and noted in one step -----------------------------------------------------------------------------------


def test_what_was_answered_to_a_consumer_that_died_unread_comes_back(primary, client, take):
    primary.put(QUEUE, ("one", {}))
    dead = take(visibility_timeout=1)
    dead.connection.transport.cycle.on_poll_start()  # the consumer asks, and never reads the answer
    wait_for(lambda: not client.exists(QUEUE), 30, "nothing was taken")
    assert client.hlen("unacked") == client.zcard("unacked_index") == 1

    alive = take(visibility_timeout=1)
    alive.wait_for(1)
    assert alive.bodies == ["one"]
    alive.messages[0].ack()
    assert noted(client) == []


def test_what_becomes_overdue_comes_to_one_who_has_been_waiting_without_an_event_loop(primary, client, take):
    """As workers with gevent or eventlet do: they wait two seconds, and are answered after one."""
    alive = take(visibility_timeout=2)
    with pytest.raises(TimeoutError):
        alive.connection.drain_events(timeout=2)
    client.hset("unacked", "tag", json.dumps([_as_it_lies(primary, client), "", QUEUE]))
    client.zadd("unacked_index", {"tag": time.time()})

    deadline = time.monotonic() + 30
    while not alive.messages and time.monotonic() < deadline:
        with suppress(TimeoutError):
            alive.connection.drain_events(timeout=2)
    assert alive.bodies == ["one"]


def _as_it_lies(primary: RedisNode, client: redis.Redis) -> Any:
    """A message in the form in which it lies in a queue."""
    primary.put("elsewhere", ("one", {}))
    return json.loads(client.rpop("elsewhere"))


def test_one_who_died_while_it_gave_back_keeps_nobody_from_it_for_long(primary, client, take):
    primary.put(QUEUE, ("one", {}))
    dead = take(visibility_timeout=1)
    dead.connection.transport.cycle.on_poll_start()
    wait_for(lambda: not client.exists(QUEUE), 30, "nothing was taken")
    nine_seconds_later = dead.channel.unacked_mutex_expire - 9
    client.set("unacked_mutex", "of a dead consumer", ex=nine_seconds_later)

    take(visibility_timeout=1).wait_for(1)


def test_a_worker_killed_while_it_waits_for_its_slots_loses_nothing(primary, client, take):
    """Kombu leaves an answer unread while the prefetch count is exhausted: for as long as a task takes."""
    program = (
        "import sys, time\n"
        "from kombu_paired.brokers.kombu import KombuNamespace\n"
        "from tests.integration.test_redis_consuming import Taker\n"
        "namespace = KombuNamespace('primary', [sys.argv[1]], {}, send_timeout=2)\n"
        "taker = Taker(namespace.consumer_client(None, None))\n"
        "taker.connection.transport.cycle.on_poll_start()\n"
        "time.sleep(60)\n"
    )
    primary.put(QUEUE, ("one", {}))
    worker = subprocess.Popen([sys.executable, "-c", program, primary.url])
    try:
        wait_for(lambda: not client.exists(QUEUE), 30, "nothing was taken")
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(20)

    alive = take(visibility_timeout=1)
    alive.wait_for(1)
    assert alive.bodies == ["one"]


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_a_message_is_noted_until_it_is_acknowledged(primary, client, take, prefix):
    taker = take(global_keyprefix=prefix)
    with Connection(primary.url, transport_options={"global_keyprefix": prefix}) as plain:
        producer = Producer(plain.channel())
        for number in range(3):
            producer.publish({"n": number}, routing_key=QUEUE)
    taker.wait_for(3)
    assert [body["n"] for body in taker.bodies] == [0, 1, 2]
    notes = client.hgetall(f"{prefix}unacked")
    assert set(notes) == {message.delivery_tag for message in taker.messages}
    assert {tuple(json.loads(note)[1:]) for note in notes.values()} == {("", QUEUE)}

    taker.messages[0].ack()
    taker.messages[1].reject()
    taker.messages[2].requeue()
    assert noted(client) == []
    taker.wait_for(4)
    assert taker.bodies[3] == {"n": 2}
    assert taker.messages[3].headers["redelivered"] is True


def test_no_client_is_made_for_a_message(primary, client, take, monkeypatch):
    """Kombu makes one for each acknowledgement, which takes as long as the rest of it."""
    taker, made, make = take(), [], redis.Redis.__init__
    with Connection(primary.url) as plain:
        for number in range(4):
            Producer(plain.channel()).publish(number, routing_key=QUEUE)
    taker.wait_for(4)
    monkeypatch.setattr(redis.Redis, "__init__", lambda self, **how: (made.append(self), make(self, **how))[1])
    for message in taker.messages:
        message.ack()
    assert noted(client) == []
    assert len(made) <= 1, "one for all, at the first"


def test_a_message_that_came_while_the_consumer_waited_is_noted_too(primary, client, take):
    taker = take()
    waits(taker)
    primary.put(QUEUE, ("one", {}))
    taker.wait_for(1)
    assert list(client.hgetall("unacked")) == [taker.messages[0].delivery_tag]
    taker.messages[0].ack()
    assert noted(client) == []


def test_a_worker_on_the_stock_transport_gives_back_what_one_of_ours_held(primary, take):
    primary.put(QUEUE, ("one", {}))
    take().wait_for(1)
    time.sleep(1.1)
    with Connection(primary.url, transport_options={"visibility_timeout": 1}) as stock, stock.channel() as channel:
        channel.qos.restore_visible(interval=1)
    assert primary.take_all(QUEUE) == ["one"]


def test_a_message_of_a_topic_goes_back_to_its_own_queue_alone(primary, take):
    topic = Exchange("news", type="topic")
    queues = [Queue(name, topic, routing_key="sport.#") for name in ("a", "b")]
    with Connection(primary.url) as plain, plain.channel() as channel:
        for queue in queues:
            queue(channel).declare()
        Producer(channel).publish("goal", exchange="news", routing_key="sport.football")
    taker = take(queues[0])
    taker.wait_for(1)
    taker.messages[0].requeue()
    taker.consumer.cancel()
    assert [primary.depth(name) for name in ("a", "b")] == [1, 1]


def test_what_needs_no_acknowledgement_is_not_noted(primary, client, take):
    taker = take("replies", no_ack=True)
    primary.put("replies", ("one", {}))
    taker.wait_for(1)
    waits(taker)
    primary.put("replies", ("two", {}))
    taker.wait_for(2)
    assert taker.bodies == ["one", "two"]
    assert noted(client) == []


def test_queues_are_served_in_turn_and_urgent_messages_first(primary, take):
    with Connection(primary.url) as plain:
        producer = Producer(plain.channel())
        for queue in ("a", "b"):
            for number in range(3):
                producer.publish(f"{queue}{number}", routing_key=queue)
        producer.publish("urgent", routing_key="a", priority=0)
        producer.publish("idle", routing_key="a", priority=9)
    taker = take("a", "b")
    taker.wait_for(8)
    assert taker.bodies[-1] == "idle"
    assert sorted(taker.bodies[:2]) == ["a0", "b0"]
    assert sorted(taker.bodies[2:4]) == ["a1", "b1"]


# -- waiting without taking ----------------------------------------------------------------------------------------


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LEASE", 0.5)


def own_lists(client: redis.Redis) -> dict[str, int]:
    """What was moved for consumers that wait, and is not taken yet."""
    return {key: client.llen(key) for key in client.keys("*unacked_taken:*")}


def dies_with_an_answer_unread(taker: Taker) -> None:
    """As a process that is killed, frozen or cut off: its lease is not extended any more."""
    for wait in consuming_channel(taker)._waits.values():
        wait.connection.disconnect()


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_what_was_moved_for_a_consumer_that_died_goes_to_others(primary, client, take, monkeypatch, prefix):
    monkeypatch.setattr(transport, "LEASE", 2.5)  # until then the other one must have taken the rest
    dead = take(global_keyprefix=prefix)
    waits(dead, patience=1)
    with Connection(primary.url, transport_options={"global_keyprefix": prefix}) as plain:
        for number in range(3):
            Producer(plain.channel()).publish(str(number), routing_key=QUEUE)
    wait_for(lambda: list(own_lists(client).values()) == [1], 30, "nothing was moved")
    dies_with_an_answer_unread(dead)

    with as_another_process():
        alive = take(global_keyprefix=prefix)
        alive.wait_for(2)
        assert alive.bodies == ["1", "2"]
        alive.wait_for(3)
        assert alive.bodies[2] == "0"


def test_what_was_moved_is_given_back_to_the_front_and_in_order(primary, client, take, short_lease):
    primary.put(QUEUE, *[(str(number), {}) for number in range(5)])
    own = f"unacked_taken:{32 * 'a'}:{QUEUE}"
    for _ in range(3):
        client.lmove(QUEUE, own, "RIGHT", "LEFT")
    client.zadd("unacked_takers", {f"0{own}": 1})
    taker = take()
    taker.wait_for(5)
    assert taker.bodies == ["0", "1", "2", "3", "4"]


def test_a_move_that_comes_to_pass_when_the_lease_is_long_over_is_found_too(primary, client, take):
    own = f"unacked_taken:{32 * 'a'}:{QUEUE}"
    client.zadd("unacked_takers", {f"0{own}": 1})
    taker = take()
    waits(taker, patience=1)
    looks_again = [name for name in client.zrange("unacked_takers", 0, -1) if name.endswith(own)]
    assert looks_again == [f"1{own}"]
    assert client.zscore("unacked_takers", f"1{own}") > 1000 * (time.time() + 50)

    primary.put("aside", ("late", {}))
    client.lmove("aside", own, "RIGHT", "LEFT")
    client.zadd("unacked_takers", {f"1{own}": 1})
    taker.wait_for(1)
    assert taker.bodies == ["late"]


def test_a_consumer_that_was_away_for_long_finds_its_list_empty_and_goes_on(primary, client, take, short_lease):
    late = take()
    waits(late, patience=1)
    primary.put(QUEUE, ("one", {}))
    wait_for(lambda: sum(own_lists(client).values()) == 1, 30, "nothing was moved")
    with as_another_process():
        alive = take()
        alive.wait_for(1)
    late.drain(0.3)
    assert late.bodies == []

    primary.put(QUEUE, ("two", {}), ("three", {}))
    late.wait_for(1)


def test_one_message_is_the_business_of_one_consumer(primary, client, take):
    takers = [take(unacked_restore_throttle=1000) for _ in range(50)]  # its lock is a script, too
    for taker in takers:
        waits(taker)
    before = scripts_run(client)
    primary.put(QUEUE, ("one", {}))
    wait_for(lambda: sum(own_lists(client).values()) == 1, 30, "nothing was moved")
    for taker in takers:
        taker.drain(0.02)
    assert [taker.bodies for taker in takers if taker.messages] == [["one"]]
    assert scripts_run(client) - before <= 2  # takes it, and finds no other


def scripts_run(client: redis.Redis) -> int:
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


def test_a_consumer_that_may_not_take_more_gives_back_at_once(primary, client, take):
    busy, idle = take("a", "b"), take("b")
    busy.channel.basic_qos(0, 1, False)
    waits(busy)
    primary.put("a", ("one", {}))
    wait_for(lambda: len(busy.messages) or _drained(busy), 30, "nothing came")
    primary.put("b", ("two", {}))
    wait_for(lambda: sum(own_lists(client).values()) == 1, 30, "nothing was moved")
    busy.drain(0.3)
    assert busy.bodies == ["one"]
    idle.wait_for(1)
    busy.messages[0].ack()
    primary.put("a", ("three", {}))
    busy.wait_for(2)


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_who_stops_consuming_gives_back_what_was_moved(primary, client, take, end):
    taker = take()
    waits(taker)
    primary.put(QUEUE, ("one", {}))
    wait_for(lambda: sum(own_lists(client).values()) == 1, 30, "nothing was moved")
    taker.consumer.cancel() if end == "cancel" else taker.channel.close()
    assert client.llen(QUEUE) == 1
    assert own_lists(client) == {}


def test_a_priority_that_was_seen_is_waited_for(primary, client, take):
    taker = take()
    waits(taker, patience=1)
    with Connection(primary.url) as plain:
        producer = Producer(plain.channel())
        producer.publish("first", routing_key=QUEUE, priority=9)
        taker.wait_for(1)  # found by the look that comes every second
        waits(taker)
        producer.publish("second", routing_key=QUEUE, priority=9)
    taker.wait_for(2)
    taker.messages[1].ack()
    assert client.hlen("unacked") == 1


def test_more_queues_than_a_consumer_can_wait_on_are_served(primary, take):
    queues = [f"q{number}" for number in range(12)]
    taker = take(*queues)
    waits(taker, patience=1)
    assert len(consuming_channel(taker)._waits) == taking.MOST_LISTS
    for queue in queues:
        primary.put(queue, (queue, {}))
    taker.wait_for(12)
    assert sorted(taker.bodies) == sorted(queues)


def test_a_redis_that_grants_no_further_connection_is_looked_at(primary, client, take, caplog):
    taker = take("a", "b", "c", max_connections=2)
    waits(taker, patience=1)
    assert caplog.text.count("refuses to give a consumer a further connection") == 1
    for queue in "abc":
        primary.put(queue, (queue, {}))
    taker.wait_for(3)


def test_a_message_that_a_redis_hands_over_in_the_moment_in_which_it_is_full_is_noted(primary, client, take):
    taker = take()
    waits(taker)
    primary.put("aside", ("one", {}))
    with client.pipeline(transaction=True) as pipe:
        pipe.rpoplpush("aside", QUEUE).config_set("maxmemory", 1).execute()
    taker.wait_for(1)
    assert list(client.hgetall("unacked")) == [taker.messages[0].delivery_tag]
    taker.drain(0.5)
    primary.broker.unfill()
    primary.put(QUEUE, ("two", {}))
    taker.wait_for(2)


def test_an_older_command_moves_as_well(primary, client, take):
    client.acl_setuser("default", enabled=True, reset_passwords=False, commands=["-blmove"])
    try:
        taker = take()
        waits(taker)
        primary.put(QUEUE, ("one", {}))
        wait_for(lambda: sum(own_lists(client).values()) == 1, 30, "nothing was moved")
        taker.wait_for(1)
        assert client.hlen("unacked") == 1
    finally:
        client.acl_setuser("default", enabled=True, reset_passwords=False, categories=["+@all"])


def test_a_message_that_is_asked_for_is_noted_too(primary, client, take):
    channel = take("elsewhere").channel
    garbage = primary.put_garbage(QUEUE)
    primary.put(QUEUE, ("one", {}), ("two", {}))
    message = channel.basic_get(QUEUE)
    assert message.payload == "one"
    assert list(client.hgetall("unacked")) == [message.delivery_tag]
    message.ack()
    assert noted(client) == []
    assert primary.take_dead_letters(QUEUE) == {"MalformedMessage": garbage}
    assert channel.basic_get(QUEUE, no_ack=True).payload == "two"
    assert channel.basic_get(QUEUE) is None


def test_nothing_is_lost_when_idle_consumers_are_killed_frozen_and_cut_off():
    """A few of the two hundred that ``python -m tests.bench.bench_idle_kills`` harms."""
    result = bench_idle_kills.measure("paired", 4, celery=False, seed=1)
    assert (result["lost"], result["rounds"]) == (0, 4)
    assert result["published"] > 20


# -- what cannot be noted ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["kill", "freeze"])
def test_a_message_taken_just_when_redis_died_or_froze_is_diverted_and_marked(
    primary, secondary, pair, no_moves, monkeypatch, caplog, harm
):
    taker = Taker(pair)
    waits(taker)
    primary.put(QUEUE, ("one", {"id": "7"}))
    with before_it_is_noted(taker, monkeypatch, getattr(primary, harm)), heard(EventKind.DIVERTED) as diverted:
        fails(taker)
    assert taker.messages == []
    assert [(event.entity, event.message_id, event.maybe_duplicate) for event in diverted] == [(QUEUE, "7", True)]
    assert secondary.backlog() == 1
    assert "a message of orders was just being taken" in caplog.text


def test_when_both_are_dead_it_waits_in_the_process(primary, secondary, pair, no_moves, monkeypatch, caplog):
    def catastrophe() -> None:
        primary.kill()
        secondary.kill()

    taker = Taker(pair)
    waits(taker)
    primary.put(QUEUE, ("one", {}))
    with before_it_is_noted(taker, monkeypatch, catastrophe):
        fails(taker)
    assert "1 messages that were just being taken wait in this process" in caplog.text

    primary.restart()
    with pair.clone() as again:
        taker = Taker(again)
        taker.wait_for(1)
        assert taker.bodies == ["one"]


def test_what_neither_takes_is_sent_again_soon_though_nobody_connects_anew(
    primary, secondary, pair, no_moves, monkeypatch, caplog
):
    def both_are_full() -> None:
        primary.broker.fill()
        secondary.broker.fill()

    taker = Taker(pair)
    waits(taker)
    with before_it_is_noted(taker, monkeypatch, both_are_full):
        primary.put(QUEUE, ("one", {}))
        taker.drain()
    assert taker.messages == []
    assert "1 messages that were just being taken wait in this process" in caplog.text

    primary.broker.unfill()
    taker.wait_for(1)
    assert taker.bodies == ["one"]


def test_a_full_redis_that_cannot_note_does_not_end_the_consumer(primary, secondary, pair, no_moves, monkeypatch):
    taker = Taker(pair)
    waits(taker)
    with before_it_is_noted(taker, monkeypatch, primary.broker.fill):
        primary.put(QUEUE, ("one", {}))
        taker.drain()
    assert taker.messages == []
    assert secondary.backlog() == 1

    primary.broker.unfill()
    primary.put(QUEUE, ("two", {}))
    taker.wait_for(1)
    assert taker.bodies == ["two"]


def test_a_full_redis_takes_everything_back(primary, client, take):
    primary.put(QUEUE, *[(str(number), {}) for number in range(6)])
    vanished = take(visibility_timeout=1)
    vanished.wait_for(3)
    taker = take(visibility_timeout=1)
    taker.wait_for(3)
    primary.broker.fill()
    taker.messages[0].ack()
    taker.messages[1].reject()
    taker.messages[2].requeue()
    taker.wait_for(4)
    assert taker.bodies == ["3", "4", "5", "5"]
    taker.messages[3].ack()

    taker.wait_for(7)  # what vanished held
    assert sorted(taker.bodies[4:]) == ["0", "1", "2"]
    taker.connection.collect(0.5)
    assert client.llen(QUEUE) == 3
    assert noted(client) == []

    got = take().channel.basic_get(QUEUE)
    assert got.payload in {"0", "1", "2"}
    assert client.hlen("unacked") == 1
    got.ack()


def test_a_consumer_outlives_a_redis_that_became_a_replica(primary, client, take, caplog):
    primary.put(QUEUE, *[(str(number), {}) for number in range(3)])
    taker = take(visibility_timeout=1)
    taker.wait_for(3)
    with as_a_replica(client):
        taker.messages[0].ack()
        taker.messages[1].reject()
        taker.drain(0.5)
        assert caplog.text.count("refuses to let a message be taken") == 1
        assert caplog.text.count("refuses to take an acknowledgement") == 1

    taker.wait_for(6)  # none of the three was settled
    assert sorted(taker.bodies) == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.parametrize(("pool", "waiting"), [("prefork", 100), ("threads", 0)])
def test_workers_outlive_a_redis_that_is_a_replica_for_a_while(
    primary, secondary, client, paired_shop, paired_worker, ledger, pool, waiting
):
    """A worker that waits is let go of with another error than one that is served."""
    shop, traffic = paired_shop(), Traffic()
    worker = paired_worker(pool=pool)
    traffic.publish(lambda n: shop.slow_record.delay(n, 0.02), range(waiting))
    ledger.wait_for(min(5, waiting), timeout=60)
    with as_a_replica(client):
        traffic.publish(shop.record.delay, range(waiting, waiting + 50), pace=0.04)
        assert secondary.backlog() == 50

    ledger.wait_for(waiting + 50, timeout=60)
    assert traffic.errors == []
    assert worker.alive()


# -- odd things ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comes", ["before", "while it waits"])
def test_garbage_becomes_a_dead_letter_and_the_consumer_goes_on(primary, client, take, caplog, comes):
    taker = take()
    if comes != "before":
        waits(taker)
    count = primary.put_garbage(QUEUE)
    primary.put(QUEUE, ("one", {}))
    taker.wait_for(1)
    assert taker.bodies == ["one"]
    assert primary.take_dead_letters(QUEUE) == {"MalformedMessage": count}
    assert caplog.text.count("is no message") == count
    taker.messages[0].ack()
    assert noted(client) == []


def test_garbage_whose_consumer_died_does_not_stand_in_the_way_of_others(primary, client, take):
    count = primary.put_garbage(QUEUE)
    primary.put(QUEUE, ("one", {}))
    for _ in range(count + 1):
        dead = take(visibility_timeout=1)
        dead.connection.transport.cycle.on_poll_start()
    wait_for(lambda: client.hlen("unacked") == count + 1, 30, "not all were taken")

    alive = take(visibility_timeout=1)
    alive.wait_for(1)
    assert alive.bodies == ["one"]
    assert primary.take_dead_letters(QUEUE)["MalformedMessage"] > 0
    alive.messages[0].ack()
    wait_for(lambda: not _drained(alive) and noted(client) == [], 30, "something is noted for ever")


def _drained(taker: Taker) -> int:
    taker.drain(0.1)
    return len(taker.messages) - 1


def test_a_consumer_that_fails_is_not_taken_for_garbage(primary, client, take):
    def fail(message: Any) -> None:
        raise KeyError("a bug of the application")

    primary.put(QUEUE, ("one", {}))
    taker = take()
    taker.consumer.on_message = fail
    with pytest.raises(KeyError, match="a bug of the application"):
        taker.connection.drain_events(timeout=20)
    assert client.hlen("unacked") == 1
    assert primary.dead_letters() == 0


def test_a_redis_that_forgot_the_script_learns_it_again(primary, client, take):
    taker = take()
    for number in range(3):
        client.script_flush()
        primary.put(QUEUE, (str(number), {}))
        taker.wait_for(number + 1)
    assert taker.bodies == ["0", "1", "2"]
    assert client.hlen("unacked") == 3


def test_where_scripts_are_forbidden_messages_are_noted_in_a_second_step(primary, client, take, caplog):
    client.acl_setuser("default", enabled=True, reset_passwords=False, categories=["+@all", "-@scripting"])
    try:
        with caplog.at_level(logging.WARNING):
            taker = take()
            primary.put(QUEUE, ("one", {}), ("two", {}))
            taker.wait_for(2)
        assert taker.bodies == ["one", "two"]
        assert client.hlen("unacked") == 2
        assert caplog.text.count("Allow EVAL, EVALSHA and BLMOVE") == 1
    finally:
        client.acl_setuser("default", enabled=True, reset_passwords=False, categories=["+@all"])
