"""What Kombu and Celery see, on a broker that fails as it is told to: sending, declaring, consuming, and their ends."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from types import SimpleNamespace

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.pools import connections, producers
from kombu.transport.virtual.base import queue_declare_ok_t

from kombu_paired import transport
from kombu_paired.errors import BacklogUnavailable, PairingClosed, PrimaryUnavailable
from kombu_paired.failures import FailureKind
from kombu_paired.message import MAYBE_DUPLICATE, Message, diversion_of, from_backlog
from kombu_paired.testing import ManualClock, ScriptedBroker
from kombu_paired.testing.scripted import ScriptedError, ScriptedRefusal
from kombu_paired.transport import pairing_of


@pytest.fixture
def log():
    """What both brokers were asked, in turn."""
    return []


@pytest.fixture
def primary(log):
    return ScriptedBroker("primary", log=log)


@pytest.fixture
def secondary(log):
    return ScriptedBroker("secondary", log=log)


@pytest.fixture
def connection(primary, secondary):
    """A paired connection, connected as Kombu connects it."""
    options = secondary.as_secondary(backlog_queue_count=1, failover_interval=0, ping_interval=1800)
    with Connection(f"paired+{primary.uri}", transport_options=options, connect_timeout=5) as connection:
        connection.connect()
        yield connection
        pairing_of(connection).close()


@pytest.fixture
def channel(connection):
    return connection.channel()


@pytest.fixture
def clock(monkeypatch):
    """The time on which a transport waits for its primary."""
    clock = ManualClock()
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    return clock


def publish(channel, body="x", *, exchange="", routing_key="orders", **more):
    properties = {"delivery_mode": more.pop("delivery_mode", 2)}
    message = channel.prepare_message(body, content_type="text/plain", properties=properties)
    channel.basic_publish(message, exchange=exchange, routing_key=routing_key, **more)


def consume(channel, queue="orders", tag="tag"):
    channel.basic_consume(queue=queue, no_ack=False, callback=lambda message: None, consumer_tag=tag)


def in_thread(step):
    thread = threading.Thread(target=step)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def told(log, *words):
    """What the primary was asked of these kinds."""
    return [(each.what, each.about) for each in log if each.side == "primary" and each.what in words]


# -- sending ----------------------------------------------------------------------------------------------------------


def test_a_message_goes_to_the_primary_and_nobody_consumes_for_it(connection, channel, primary, secondary):
    publish(channel, "hello", exchange="", routing_key="orders")
    [message] = primary.stored
    assert (message.body, message.routing_key, message.content_type) == (b"hello", "orders", "text/plain")
    assert message.properties["delivery_mode"] == 2
    assert secondary.stored == []
    assert connection.connection.primary is None
    assert len(primary.asked_for("connect")) == 1, "that of the link that sends"


def test_while_the_primary_is_away_it_goes_to_the_secondary_and_the_caller_sees_nothing(channel, primary, secondary):
    primary.go_away()
    publish(channel, "hello")
    [stored] = secondary.stored
    back = from_backlog(stored, 0)
    assert (back.body, back.exchange, back.routing_key) == (b"hello", "", "orders")
    assert primary.stored == []


def test_what_the_primary_refuses_is_raised_as_the_plain_transport_raises_it(channel, primary, secondary):
    primary.fail(FailureKind.REJECTED)
    with pytest.raises(ScriptedRefusal, match="primary rejected"):
        publish(channel)
    assert secondary.stored == []


def test_a_transient_message_is_raised_too(channel, primary, secondary):
    primary.go_away()
    with pytest.raises(ScriptedError, match="primary unreachable"):
        publish(channel, delivery_mode=1)
    assert secondary.stored == []


@pytest.mark.parametrize("given", ["a text", SimpleNamespace(body="a text", properties={"priority": 3})])
def test_celerys_command_line_publishes_a_text_or_a_message_of_py_amqp(channel, primary, given):
    channel.basic_publish(given, routing_key="orders")
    [message] = primary.stored
    assert (message.body, message.routing_key, message.content_encoding) == (b"a text", "orders", "utf-8")
    assert message.priority == (0 if given == "a text" else 3)


def test_a_mandatory_message_that_nobody_gets_is_returned_to_who_wants_it(channel, primary):
    returned = []
    primary.always = primary.failure(FailureKind.MISSING)
    with pytest.raises(ScriptedRefusal):
        publish(channel, mandatory=True)
    channel.events["basic_return"].add(lambda *facts: returned.append(facts))
    publish(channel, "back", exchange="shop", routing_key="nobody", mandatory=True)
    [(error, exchange, routing_key, message)] = returned
    assert isinstance(error, ScriptedRefusal)
    assert (exchange, routing_key, message.body, message.mandatory) == ("shop", "nobody", "back", True)


def test_an_outage_is_no_returned_message(channel, primary, secondary):
    channel.events["basic_return"].add(lambda *facts: pytest.fail("nothing came back"))
    primary.go_away()
    secondary.go_away()
    with pytest.raises(BacklogUnavailable):
        publish(channel, mandatory=True)


def test_who_connects_to_try_again_is_told_that_both_are_away(connection, channel, primary, secondary):
    """Kombu pauses between two tries of a send only if it cannot connect in between."""
    primary.go_away()
    secondary.go_away()
    with pytest.raises(BacklogUnavailable):
        publish(channel)
    paired = connection.transport
    assert paired.establish_connection().connected, "a first try"
    paired._collect(connection.connection)
    with pytest.raises(BacklogUnavailable, match="neither namespace took the message"):
        paired.establish_connection()
    assert paired.establish_connection().connected


# -- declaring --------------------------------------------------------------------------------------------------------


def test_declarations_come_before_the_message_that_needs_them(connection, log):
    news = Exchange("news", "topic")
    Producer(connection).publish(
        "x", exchange=news, routing_key="eu", declare=[Queue("readers", news, routing_key="eu")]
    )
    asked = [what for what, about in told(log, "declare", "bind", "send")]
    assert asked[-1] == "send"
    assert {"declare", "bind"} <= set(asked[:-1])


def test_while_the_primary_is_away_they_are_noted_and_go_with_the_message(connection, primary, secondary):
    primary.go_away()
    news = Exchange("news", "topic")
    queue = Queue("readers", news, routing_key="eu")
    Producer(connection).publish("x", exchange=news, routing_key="eu", declare=[queue])
    [stored] = secondary.stored
    carried = [(each.operation, each.name) for each in diversion_of(stored).declarations]
    assert carried == [("exchange_declare", "news"), ("queue_declare", "readers"), ("queue_bind", "readers")]


def test_what_was_deleted_and_unbound_goes_with_no_message(connection, channel, primary, secondary):
    channel.exchange_declare("news", "topic")
    for queue in ("readers", "writers"):
        channel.queue_declare(queue)
        channel.queue_bind(queue, "news", "eu")
    channel.queue_delete("readers")
    channel.queue_unbind("writers", "news", "eu")
    primary.go_away()
    publish(channel, exchange="news", routing_key="eu")
    assert [each.name for each in diversion_of(secondary.stored[0]).declarations] == ["news"]
    primary.come_back()
    channel.exchange_delete("news")
    primary.go_away()
    publish(channel, exchange="news", routing_key="eu")
    assert diversion_of(secondary.stored[1]).declarations == ()


def test_a_queue_has_an_answer_while_the_primary_is_away_and_a_question_has_none(channel, primary):
    primary.go_away()
    assert channel.queue_declare("orders") == queue_declare_ok_t("orders", 0, 0)
    with pytest.raises(PrimaryUnavailable, match="cannot be asked for the queue 'orders'"):
        channel.queue_declare("orders", passive=True)


def test_a_declaration_that_is_refused_is_raised(channel, primary):
    primary.always = primary.failure(FailureKind.REJECTED)
    with pytest.raises(ScriptedRefusal):
        channel.queue_declare("orders")


@pytest.mark.parametrize("arguments", [{"queue": ""}, {"queue": "mine", "exclusive": True}])
def test_a_queue_of_ones_own_is_declared_where_it_will_be_consumed(connection, channel, arguments):
    channel.queue_declare(**arguments)
    assert connection.connection.primary is not None
    assert list(pairing_of(connection).book.lasting()) == []


def test_what_was_declared_before_the_channel_consumes_is_repeated_where_it_does(channel, primary, log):
    channel.exchange_declare("news", "topic")
    channel.queue_declare("readers")
    channel.queue_declare("readers", passive=True)
    channel.queue_bind("readers", "news", "eu")
    log.clear()
    consume(channel, "readers")
    asked = told(log, "connect", "declare", "bind", "consume")
    assert asked == [
        ("connect", ""),
        ("declare", "news"),
        ("declare", "readers"),
        ("bind", "readers"),
        ("consume", "readers"),
    ]
    log.clear()
    consume(channel, "readers", "another")
    assert told(log, "connect", "declare") == []


def test_a_channel_that_consumes_declares_there_and_has_it_noted(connection, channel, primary, secondary, log):
    consume(channel)
    log.clear()
    channel.queue_declare("mails")
    assert told(log, "connect", "declare") == [("declare", "mails")]
    primary.go_away()
    publish(channel, routing_key="mails")
    assert [each.name for each in diversion_of(secondary.stored[0]).declarations] == ["mails"]


def test_a_full_primary_that_declares_nothing_is_there_to_be_emptied(channel, primary, caplog):
    channel.primary_channel()
    primary.always = primary.failure(FailureKind.FAULT)
    assert channel.queue_declare("orders") == queue_declare_ok_t("orders", 0, 0)
    assert "refuses queue_declare (primary fault), and is consumed from without" in caplog.text
    primary.always = primary.failure(FailureKind.REJECTED)
    with pytest.raises(ScriptedRefusal):
        channel.queue_declare("orders")


# -- consuming --------------------------------------------------------------------------------------------------------

CONSUMER_CALLS = {
    "basic_consume": consume,
    "basic_get": lambda channel: channel.basic_get("orders"),
    "basic_qos": lambda channel: channel.basic_qos(0, 7, False),
    "queue_purge": lambda channel: channel.queue_purge("orders"),
    "basic_recover": lambda channel: channel.basic_recover(requeue=True),
}
consumer_calls = pytest.mark.parametrize("call", CONSUMER_CALLS.values(), ids=CONSUMER_CALLS)


@consumer_calls
def test_the_first_call_of_a_consumer_connects_and_no_other(connection, channel, log, call):
    assert told(log, "connect") == []
    call(channel)
    call(channel)
    assert told(log, "connect") == [("connect", "")]
    call(connection.channel())
    assert told(log, "connect") == [("connect", "")], "all channels of a connection share it"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("basic_ack", ("tag",)),
        ("basic_reject", ("tag",)),
        ("basic_get", ("orders",)),
        ("basic_recover", (True,)),
        ("basic_consume", ("orders", True, print, "tag")),
        ("exchange_unbind", ("mails", "news", "eu")),
        ("flow", (False,)),
        ("get_bindings", ()),
        ("queue_purge", ("orders",)),
    ],
)
def test_a_call_of_a_consumer_is_that_of_the_primarys_own_channel(channel, monkeypatch, name, arguments):
    called = []
    monkeypatch.setattr(
        channel.primary_channel(), name, lambda *args, **more: called.append((args, more)) or "answer", raising=False
    )
    assert getattr(channel, name)(*arguments, nowait=True) == "answer"
    assert called == [(arguments, {"nowait": True})]


def test_a_consumer_gets_what_was_sent(connection, channel):
    publish(channel, "hello")
    taken = []
    with Consumer(channel, [Queue("orders")], on_message=taken.append):
        connection.drain_events(timeout=1)
    [message] = taken
    assert message.body == b"hello"
    message.ack()


def test_an_attribute_never_connects(channel, log):
    """Celery asks a dead channel for this and that while it cleans up."""
    with pytest.raises(AttributeError, match="before it consumes"):
        channel.qos  # noqa: B018
    assert told(log, "connect") == []
    channel.primary_channel()
    assert channel.qos is channel.primary_channel().qos


def test_who_is_no_worker_has_the_patience_of_a_plain_connection(channel, primary, clock):
    primary.go_away()
    with pytest.raises(PrimaryUnavailable, match="is away: ScriptedError: primary unreachable"):
        consume(channel)
    assert len(primary.asked_for("connect")) == 3  # at once, and every PAUSE of 2 seconds within connect_timeout, 5
    assert clock.now == 1004.0


def test_a_callers_own_time_limit_is_shorter(connection, primary, clock):
    primary.go_away()
    with pytest.raises(PrimaryUnavailable):
        connection.drain_events(timeout=3)
    assert clock.now == 1002.0


def test_a_primary_that_comes_back_meanwhile_is_consumed_from(channel, primary, clock, monkeypatch):
    primary.go_away()
    monkeypatch.setattr(clock, "sleep", lambda seconds: primary.come_back())
    transport.time.sleep = clock.sleep
    consume(channel)
    assert primary.asked_for("consume") == ["orders"]


@pytest.mark.parametrize("worker", [True, False])
def test_a_primary_that_refuses_the_credentials_is_waited_for_by_nobody(channel, primary, clock, monkeypatch, worker):
    monkeypatch.setattr(transport, "is_worker_itself", lambda: worker)
    monkeypatch.setattr(transport, "sleep_unless_worker_stops", clock.sleep)
    primary.refuse()
    with pytest.raises(ScriptedError, match="primary unauthorized"):
        consume(channel)
    assert (clock.now, len(primary.asked_for("connect"))) == (1000.0, 1)


class Nap:
    """A worker's pauses; something happens in one of them."""

    def __init__(self, monkeypatch, when, what):
        self.pauses, self._when, self._what = [], when, what
        monkeypatch.setattr(transport, "is_worker_itself", lambda: True)
        monkeypatch.setattr(transport, "sleep_unless_worker_stops", self)

    def __call__(self, seconds):
        self.pauses.append(seconds)
        if len(self.pauses) == self._when:
            self._what()


def test_a_worker_waits_until_the_primary_is_back_and_says_so_once(channel, primary, monkeypatch, caplog):
    primary.go_away()
    nap = Nap(monkeypatch, 4, primary.come_back)
    consume(channel)
    assert len(nap.pauses) == 4
    assert all(0 <= pause <= 0.5 * 2**number for number, pause in enumerate(nap.pauses))
    assert len([each for each in caplog.records if "consuming waits for it" in each.message]) == 1
    assert len(primary.asked_for("connect")) == 5


def test_a_worker_that_is_told_to_stop_waits_no_longer(channel, primary, monkeypatch):
    primary.go_away()
    stops = []
    nap = Nap(monkeypatch, 2, lambda: stops.append(True))
    monkeypatch.setattr(transport, "worker_is_told_to_stop", lambda: bool(stops))
    with pytest.raises(ScriptedError):
        consume(channel)
    assert len(nap.pauses) == 2


def test_a_consumer_that_connected_is_news_for_senders(connection, channel, primary, secondary):
    primary.go_away()
    publish(channel)
    assert pairing_of(connection)._primary_route.reach.fresh_failure
    primary.come_back()
    consume(channel)
    assert not pairing_of(connection)._primary_route.reach.fresh_failure


@pytest.mark.parametrize(("kind", "marked"), [(FailureKind.TIMEOUT, True), (FailureKind.FAULT, True)])
def test_a_message_that_was_just_being_taken_is_diverted(channel, primary, secondary, kind, marked):
    """Only a channel of ours for Redis knows of such: it is told whom to hand it to."""
    channel.primary_channel().on_stranded(Message("x", "", "orders"), primary.failure(kind).cause)
    [stored] = secondary.stored
    assert from_backlog(stored, 0).routing_key == "orders"
    assert (MAYBE_DUPLICATE in stored.headers) is marked


# -- its ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["it never consumed", "it was closed"])
def test_there_is_nothing_to_cancel(channel, log, state):
    if state == "it was closed":
        consume(channel)
        channel.close()
    log.clear()
    assert channel.basic_cancel("tag") is None
    assert log == []


def test_a_consumer_is_cancelled(channel, primary):
    consume(channel)
    channel.basic_cancel("tag")
    assert primary.asked_for("cancel") == ["tag"]


@consumer_calls
def test_a_channel_that_is_closed_says_so_as_plain_ones_do(channel, log, call):
    channel.close()
    log.clear()
    with pytest.raises(ConnectionError, match="the channel is closed"):
        call(channel)
    assert log == []


def test_a_channel_that_is_closed_closes_that_of_the_primary_and_sends_on(connection, channel, primary):
    consume(channel)
    channel.close()
    assert primary.asked_for("close channel") == [""]
    assert not channel.is_open
    publish(channel)  # Kombu's pools keep producers whose channel somebody closed
    assert len(primary.stored) == 1


def test_a_closed_connection_is_closed_for_all_its_channels(connection, channel, primary):
    consume(channel)
    other, own = connection.channel(), connection.connection
    own.close()
    own.close()
    assert primary.asked_for("close connection") == [""]
    assert (own.connected, own.primary, channel.is_open, other.is_open) == (False, None, False, False)


def test_whatever_a_goodbye_meets_it_ends_and_raises_nothing(connection, channel, monkeypatch):
    def fail(*args):
        raise OSError("Bad file descriptor")

    consume(channel)
    own = connection.connection
    monkeypatch.setattr(connection.transport.primary_transport, "close_connection", fail)
    own.close()
    assert not own.connected


def test_a_worker_that_stops_waits_once_for_a_primary_that_does_not_answer(connection, channel, primary, monkeypatch):
    consume(channel)
    own, hurried = connection.connection, []
    pairing = pairing_of(connection)
    monkeypatch.setattr(pairing.primary, "hurry", lambda raw, seconds: hurried.append(seconds))
    monkeypatch.setattr(transport, "worker_is_told_to_stop", lambda: True)
    primary.go_away()
    with pytest.raises(ScriptedError):
        channel.basic_cancel("tag")
    assert hurried == [transport.GOODBYE, transport.NO_PATIENCE]
    assert not own.connected
    assert channel.basic_cancel("tag") is None, "nothing is left to be waited for"


def test_a_pairing_that_was_closed_is_followed_by_a_whole_one(connection, channel, primary):
    before = pairing_of(connection)
    before.close()
    with pytest.raises(PairingClosed):
        before.send(Message("x", "", "orders"))
    publish(channel)
    assert len(primary.stored) == 1
    assert pairing_of(connection) is not before


def test_a_connection_that_is_closed_while_a_message_is_on_its_way_loses_nothing(
    connection, channel, primary, monkeypatch
):
    under_way, go_on = threading.Event(), threading.Event()
    take = primary.take

    def slowly(*args):
        under_way.set()
        go_on.wait(30)
        take(*args)

    monkeypatch.setattr(primary, "take", slowly)
    errors = []

    def send():
        try:
            publish(channel)
        except Exception as exc:
            errors.append(exc)

    thread = threading.Thread(target=send)
    thread.start()
    assert under_way.wait(30)
    connection.connection.close()
    go_on.set()
    thread.join(30)
    assert errors == []
    assert len(primary.stored) == 1


def test_no_heart_beats_for_a_connection_that_does_not_consume(connection, log):
    own = connection.connection
    assert connection.transport.heartbeat_check(own) is None
    assert connection.transport.get_heartbeat_interval(own) == 0
    assert told(log, "connect") == []


def test_it_looks_like_the_primarys_own_transport(connection, primary):
    own = ScriptedBroker()
    plain = Connection(own.uri).transport
    paired = connection.transport
    assert paired.implements == plain.implements
    assert (paired.driver_type, paired.driver_name) == (plain.driver_type, plain.driver_name)
    assert connection.as_uri() == f"paired+{primary.uri}"


# -- who shares a pairing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "another", [Connection.clone, lambda connection: pickle.loads(pickle.dumps(connection))], ids=["clone", "pickle"]
)
def test_a_clone_and_a_pickle_share_it_in_any_weather(connection, primary, secondary, another):
    with another(connection) as other:
        assert pairing_of(other) is pairing_of(connection)
        publish(other.channel(), "1")
        primary.go_away()
        publish(other.channel(), "2")
    assert [message.body for message in primary.stored + secondary.stored] == [b"1", b"2"]


def test_so_do_connections_of_the_same_settings_and_no_others(connection, primary, secondary):
    options = dict(connection.transport_options)
    same = Connection(f"paired+{primary.uri}", transport_options={**options, "max_retries": 3})  # Celery's, of a call
    other = Connection(f"paired+{primary.uri}", transport_options={**options, "primary_name": "another"})
    assert pairing_of(same) is pairing_of(connection)
    assert pairing_of(other) is not pairing_of(connection)
    assert pairing_of(other).name == "another"


def test_pools_of_kombus_send_in_any_weather(connection, primary, secondary):
    with producers[connection].acquire(block=True) as producer:
        producer.publish("1", routing_key="orders", declare=[Queue("orders")])
    primary.go_away()
    with connections[connection].acquire(block=True) as pooled:
        publish(pooled.channel(), "2")
    with producers[connection].acquire(block=True) as producer:
        producer.publish("3", routing_key="orders", declare=[Queue("orders")])
    assert [message.body for message in primary.stored + secondary.stored] == [b"1", b"2", b"3"]


# -- forks ------------------------------------------------------------------------------------------------------------


def seen_by_a_child(connection, own, primary):
    """What a child process sees of a connection that its parent consumes from, and what it leaves."""
    inherited = (own.connected, own.primary, connection.transport._consumer_client)
    primary.log.clear()
    own.close()
    touched = list(primary.log)
    with connection.clone() as fresh:
        publish(fresh.channel(), "from the child")
        return inherited, touched, [message.body for message in primary.stored], pairing_of(fresh)


def test_a_child_touches_nothing_of_what_it_inherited(connection, channel, primary):
    consume(channel)
    own, parents = connection.connection, pairing_of(connection)
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()

    def child():
        *seen, pairing = seen_by_a_child(connection, own, primary)
        theirs.send((*seen, pairing is pairing_of(connection), pairing is parents))

    process = fork.Process(target=child)
    process.start()
    assert ours.poll(30)
    inherited, touched, stored, is_shared, is_the_parents = ours.recv()
    process.join(30)
    assert inherited == (False, None, None)
    assert touched == []
    assert stored == [b"from the child"]
    assert is_shared, "all connections of the child share one"
    assert not is_the_parents
    assert own.connected
    assert primary.asked_for("close connection") == []
