"""A worker's connection changes sides, between two brokers that fail as they are told to."""

from __future__ import annotations

import pytest
from kombu import Connection, Consumer, Queue

from kombu_paired import connection_settings
from kombu_paired.brokers.generic import Unknown
from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.errors import PrimaryUnavailable
from kombu_paired.events import EventKind
from kombu_paired.message import Diversion, Message, to_backlog
from kombu_paired.stand_in import stand_in_exchange, stand_in_name
from kombu_paired.testing import scripted_transport
from kombu_paired.transport import pairing_of, primary_for_consuming, sides, transport
from kombu_paired.transport.sides import sides_of
from tests.unit.transport.asking import in_thread

NAME = "shop"
STAND_IN = stand_in_name(NAME, "orders")


@pytest.fixture(autouse=True)
def scripted_brokers_can_be_stood_in_at(monkeypatch):
    monkeypatch.setattr(Unknown, "stands_in", True)


@pytest.fixture
def worker(monkeypatch):
    """Whoever consumes is a Celery worker itself, and waits for nothing."""
    for module in (primary_for_consuming, transport):
        monkeypatch.setattr(module, "is_worker_itself", lambda: True)
    monkeypatch.setattr(primary_for_consuming, "sleep_unless_worker_stops", lambda seconds: None)
    monkeypatch.setattr(sides.Sides, "_watch", lambda self, connection: self._connections.add(connection))


@pytest.fixture
def connection(primary, secondary, monkeypatch):
    """A paired connection whose workers stand in at once; a scripted queue is there when it is used."""
    monkeypatch.setattr(KombuNamespace, "ensure_stand_in_queue", lambda *_: None)
    monkeypatch.setattr(Unknown, "stands_in", True)
    options = secondary.as_secondary(
        backlog_queue_count=1, failover_interval=0, ping_interval=1800, stand_in_after=1e-6, primary_name=NAME
    )
    with Connection(f"paired+{primary.uri}", transport_options=options, connect_timeout=0.1) as connection:
        connection.connect()
        yield connection
        pairing_of(connection).close()


class Worker:
    """Consumes ``orders``, and acknowledges nothing by itself."""

    def __init__(self, connection):
        self.connection = connection
        self.channel = connection.channel()
        self.pairing = pairing_of(connection)
        self.got = []
        self.told = []
        self.pairing.events.listen(self.told.append)
        self.channel.basic_qos(0, 5, False)
        self.consumer = Consumer(
            self.channel, [Queue("orders")], callbacks=[lambda body, message: self.got.append(message)]
        )
        self.consumer.consume()

    def drain(self, messages):
        while len(self.got) < messages:
            self.connection.drain_events(timeout=5)

    def look(self):
        """What the watch does, once."""
        in_thread(sides_of(self.pairing)._look)

    @property
    def own(self):
        return self.connection.connection

    def kinds(self):
        return [each.kind for each in self.told if each.kind in (EventKind.STANDING_IN, EventKind.CAME_HOME)]


def put(secondary, *names, queue=STAND_IN):
    why = Diversion(1.0, 1.0, "web-1/1", "unreachable")
    for name in names:
        message = Message(name, "", "orders", properties={"message_id": name}, content_type="text/plain")
        secondary.put(queue, to_backlog(message, queue, why))


def test_it_consumes_from_the_stand_in_of_its_queue_while_the_primary_is_away(worker, connection, primary, secondary):
    primary.go_away()
    put(secondary, "a")
    secondary.put("orders", Message("somebody else's", "", "orders", content_type="text/plain"))
    it = Worker(connection)
    it.drain(1)
    [message] = it.got
    assert message.payload == "a"
    assert message.delivery_info["routing_key"] == "orders"
    assert [name for name in message.headers if name.startswith("x-")] == ["x-paired-diverted-at"]
    assert secondary.asked_for("consume") == [STAND_IN]
    assert len(secondary.queues["orders"]) == 1, "plain queues are not touched"
    assert it.kinds() == [EventKind.STANDING_IN]
    assert it.pairing.stand_in.is_active
    message.ack()
    assert secondary.queues[STAND_IN] == []


def test_it_comes_home_with_all_that_it_had_asked_for(worker, connection, primary, secondary):
    primary.go_away()
    it = Worker(connection)
    primary.come_back()
    it.look()
    primary.put("orders", Message("b", "", "orders", content_type="text/plain"))
    it.drain(1)
    assert it.got[0].payload == "b"
    assert primary.asked_for("consume") == ["orders"]
    assert primary.asked_for("qos") == ["5"]
    assert len(secondary.asked_for("cancel")) == 1
    assert it.kinds() == [EventKind.STANDING_IN, EventKind.CAME_HOME]
    assert not it.pairing.stand_in.is_active
    assert it.own.left_behind == [], "nothing is held there"


def test_a_queue_of_events_ends_when_it_comes_home_and_nobody_elses(worker, connection, primary, secondary):
    """Kombu's Redis remembers which queues end with their consumers, and removes those of a fanout alone."""
    primary.go_away()
    it = Worker(connection)
    it.channel.exchange_declare("celeryev", "topic", durable=False)
    for queue, durable in (("celeryev.1", False), ("answers", True)):
        it.channel.queue_declare(queue, durable=durable, auto_delete=True)
        it.channel.queue_bind(queue, "celeryev", "worker.#")
        it.channel.basic_consume(queue, no_ack=True, callback=it.got.append, consumer_tag=queue)
    stands_in = it.channel.primary_channel()
    stands_in.channel.auto_delete_queues = {stand_in_name(NAME, "celeryev.1"), stand_in_name(NAME, "answers")}
    primary.come_back()
    it.look()
    it.own.do_what_was_left()
    assert secondary.asked_for("delete") == [stand_in_name(NAME, "celeryev.1")]


def test_what_it_holds_of_the_secondary_is_settled_there(worker, connection, primary, secondary):
    primary.go_away()
    put(secondary, "a", "b")
    it = Worker(connection)
    it.drain(2)
    primary.come_back()
    it.look()
    primary.put("orders", Message("c", "", "orders", content_type="text/plain"))
    it.drain(3)
    [left] = it.own.left_behind
    closed = len(secondary.asked_for("close connection"))
    it.got[0].ack()
    assert left.unsettled == 1
    assert len(secondary.asked_for("close connection")) == closed
    it.got[1].ack()
    assert secondary.asked_for("acknowledge") == ["", ""]
    assert it.own.left_behind == []
    assert len(secondary.asked_for("close connection")) == closed + 1
    it.got[2].ack()
    assert primary.asked_for("acknowledge") == [""]


def test_a_connection_that_is_lost_at_home_gives_back_what_it_left_behind(worker, connection, primary, secondary):
    primary.go_away()
    put(secondary, "a")
    it = Worker(connection)
    it.drain(1)
    primary.come_back()
    it.look()
    it.own.do_what_was_left()
    it.own.collect()
    assert [each.message_id for each in secondary.queues[STAND_IN]] == ["a"], "no task runs that would settle it"


def test_a_task_that_runs_keeps_its_message_though_the_connection_is_lost(
    worker, connection, primary, secondary, monkeypatch
):
    primary.go_away()
    put(secondary, "a", "b")
    it = Worker(connection)
    it.drain(2)
    primary.come_back()
    it.look()
    it.own.do_what_was_left()
    (runs, _), own = it.got, it.own
    monkeypatch.setattr("kombu_paired.transport.left_behind.tags_that_run", lambda channel: {runs.delivery_tag})
    own.collect()
    assert [each.message_id for each in secondary.queues[STAND_IN]] == ["b"]
    assert len(own.left_behind) == 1
    runs.ack()
    assert [each.message_id for each in secondary.queues[STAND_IN]] == ["b"]
    assert own.left_behind == []


def test_what_a_lost_connection_has_left_behind_is_kept_alive_by_the_next_one(
    worker, connection, primary, secondary, monkeypatch
):
    primary.go_away()
    put(secondary, "a")
    it = Worker(connection)
    it.drain(1)
    primary.come_back()
    it.look()
    it.own.do_what_was_left()
    [runs], [left] = it.got, it.own.left_behind
    monkeypatch.setattr("kombu_paired.transport.left_behind.tags_that_run", lambda channel: {runs.delivery_tag})
    connection.collect()
    again = Worker(connection)
    assert again.own.left_behind == [left]
    kept_alive = []
    monkeypatch.setattr(left, "keep_alive", lambda: kept_alive.append(left))
    connection.heartbeat_check()
    assert kept_alive == [left]
    runs.ack()
    assert again.own.left_behind == []
    assert secondary.queues[STAND_IN] == []


def test_a_primary_that_is_silent_is_left(worker, connection, primary, secondary):
    it = Worker(connection)
    primary.go_away()
    it.look()
    it.look()
    assert len(it.own._left_to_do) == 1, "it is told once"
    with pytest.raises(PrimaryUnavailable, match="has not been reached for long"):
        it.connection.drain_events(timeout=1)
    assert isinstance(PrimaryUnavailable("x"), it.connection.connection_errors), "Celery connects again"


def test_one_that_is_lost_is_not_waited_for_once_more(worker, connection, primary, secondary, monkeypatch):
    it = Worker(connection)
    primary.go_away()
    it.look()
    it.look()
    limits = []
    monkeypatch.setattr(KombuNamespace, "limit_answers", lambda self, of, seconds: limits.append(seconds))
    connection.collect()
    assert max(limits) <= 0.05, "it is known that no answer comes"


def test_events_do_not_ask_a_primary_of_which_the_watch_knows_that_it_is_away(worker, connection, primary, secondary):
    it = Worker(connection)
    it.channel.exchange_declare("celeryev", "topic", durable=False)
    primary.go_away()
    it.look()
    asked = len(primary.asked_for("connect")) + len(primary.asked_for("send"))
    message = it.channel.prepare_message("offline", content_type="text/plain", properties={"delivery_mode": 1})
    it.channel.basic_publish(message, exchange="celeryev", routing_key="worker.offline")
    assert len(primary.asked_for("connect")) + len(primary.asked_for("send")) == asked
    assert [each.exchange for each in secondary.stored] == [stand_in_exchange(NAME, "celeryev")]


def test_when_both_are_away_it_waits_for_either(worker, connection, primary, secondary, caplog):
    primary.go_away()
    secondary.go_away()
    it = connection.channel()
    calls = []

    def come_back(seconds):
        calls.append(seconds)
        if len(calls) == 3:
            secondary.come_back()

    primary_for_consuming.sleep_unless_worker_stops = come_back
    Consumer(it, [Queue("orders")]).consume()
    assert secondary.asked_for("consume") == [STAND_IN]
    assert sum("nobody can stand in" in each.getMessage() for each in caplog.records) == 1


def test_what_cannot_be_restored_stays_and_keeps_no_other(worker, connection, primary, secondary, caplog):
    primary.go_away()
    secondary.put(STAND_IN, Message("x", "", STAND_IN, headers={"x-paired-exchange": ""}, content_type="text/plain"))
    put(secondary, "a")
    it = Worker(connection)
    it.drain(1)
    assert it.got[0].payload == "a"
    assert "a message in a stand-in queue stays there" in caplog.text
    it.got[0].ack()
    primary.come_back()
    it.look()
    it.own.do_what_was_left()
    assert it.own.left_behind == []
    assert len(secondary.queues[STAND_IN]) == 1, "it is for the syphon to find out what is wrong with it"


def test_whoever_is_no_worker_asks_at_the_secondary_and_does_not_wait(connection, primary, secondary):
    primary.go_away()
    channel = connection.channel()
    channel.exchange_declare("reply.celery.pidbox", "direct", durable=False)
    channel.queue_declare("q.reply.celery.pidbox", auto_delete=True, durable=False)
    channel.queue_bind("q.reply.celery.pidbox", "reply.celery.pidbox", "q")
    assert secondary.asked_for("bind") == [stand_in_name(NAME, "q.reply.celery.pidbox")]
    assert stand_in_exchange(NAME, "reply.celery.pidbox") in secondary.asked_for("declare")
    assert not pairing_of(connection).stand_in.is_active, "no worker stands in"


def test_remote_control_goes_over_the_secondary_while_the_primary_is_away(connection, primary, secondary):
    channel = connection.channel()
    channel.exchange_declare("celery.pidbox", "fanout", durable=False)
    primary.go_away()
    message = channel.prepare_message("ping", content_type="text/plain", properties={"delivery_mode": 1})
    channel.basic_publish(message, exchange="celery.pidbox")
    [sent] = secondary.stored
    assert (sent.exchange, sent.body) == (stand_in_exchange(NAME, "celery.pidbox"), b"ping")


@pytest.mark.parametrize(
    ("is_asynchronous", "stand_in_after", "answer"), [(True, 1, True), (False, 1, False), (False, None, True)]
)
def test_a_worker_has_an_event_loop_if_both_sides_can_be_read_in_one(
    primary, secondary, monkeypatch, is_asynchronous, stand_in_after, answer
):
    class Asynchronous(scripted_transport.Transport):
        implements = scripted_transport.Transport.implements.extend(asynchronous=True)

    monkeypatch.setattr(Unknown, "stands_in", True)
    classes = {"primary": Asynchronous, "secondary": Asynchronous if is_asynchronous else scripted_transport.Transport}
    monkeypatch.setattr(connection_settings, "transport_class", lambda side, url: classes[side])
    options = secondary.as_secondary(stand_in_after=stand_in_after)
    assert Connection(f"paired+{primary.uri}", transport_options=options).transport.implements.asynchronous is answer


def test_brokers_hear_of_it_wherever_it_is(worker, connection, primary, secondary, monkeypatch):
    beats = []

    class Beating(scripted_transport.Transport):
        implements = scripted_transport.Transport.implements.extend(heartbeats=True)

    monkeypatch.setattr(scripted_transport.Transport, "implements", Beating.implements)
    monkeypatch.setattr(scripted_transport.Transport, "get_heartbeat_interval", lambda self, connection: 10)
    monkeypatch.setattr(
        scripted_transport.Transport, "heartbeat_check", lambda self, connection, rate=2: beats.append(self.broker)
    )
    primary.go_away()
    put(secondary, "a")
    it = Worker(connection)
    it.drain(1)
    it.look()
    it.own.do_what_was_left()
    assert beats == [secondary]
    assert 0 < sides_of(it.pairing)._pause() < 10 / 3
    primary.come_back()
    it.look()
    it.own.do_what_was_left()
    beats.clear()
    it.look()
    it.own.do_what_was_left()
    assert beats == [secondary, primary], "what it holds of the secondary, too"


def test_who_waits_for_an_answer_of_a_silent_primary_waits_no_more(worker, connection, primary, monkeypatch):
    severed = []
    monkeypatch.setattr(KombuNamespace, "sever", lambda self, of: severed.append((self.side, of)))
    it = Worker(connection)
    at_home = it.own.primary
    primary.go_away()
    it.look()
    it.look()
    assert severed[0] == ("primary", at_home)
