"""Service Bus on two emulated namespaces, each a process of its own, through the public face.

What is where is asked past the transport: with the unmodified SDK, or the emulator's own account.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
import pytest
from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageSizeExceededError
from azure.servicebus.management import ServiceBusAdministrationClient
from kombu import Connection, Exchange, Queue

from kombu_paired import Syphon, pairing_of
from kombu_paired.brokers.kombu import new_connection
from kombu_paired.brokers.roles import Received, Receiver
from kombu_paired.brokers.servicebus import links, sending, transport
from kombu_paired.brokers.servicebus.amqp_links import SenderLink
from kombu_paired.brokers.servicebus.wire import Outgoing, encoded_size
from kombu_paired.declarations import Entity
from kombu_paired.emulator import Emulator
from kombu_paired.emulator.server.links import Receiver as ServiceSideReceiver
from kombu_paired.errors import ConfigurationError, MessageTooLarge, NamespaceUnauthorized, PairingClosed
from kombu_paired.events import Event, EventKind
from kombu_paired.message import Message
from kombu_paired.pairing.circuit import CircuitState
from kombu_paired.registration import PING_CONTENT_TYPE

POLICY, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
SEND_TIMEOUT = 3.0
LIMIT = 256 * 1024
UTC = timezone.utc


# -- two namespaces, and who uses them ----------------------------------------------------------------------------


@pytest.fixture
def primary(tmp_path) -> Iterator[Emulator]:
    """Its messages survive that it is killed."""
    with Emulator(process=True, data=tmp_path / "primary") as emulator:
        yield emulator


@pytest.fixture
def secondary() -> Iterator[Emulator]:
    with Emulator(process=True) as emulator:
        yield emulator


def url_of(emulator: Emulator, policy: str = POLICY, key: str = KEY) -> str:
    return f"azureservicebus://{policy}:{key}@{emulator.host}"


@pytest.fixture
def connect(primary, secondary) -> Iterator[Callable[..., Connection]]:
    """``connect(send_timeout=5)``: a paired connection with quick settings; its pairing is closed after the test."""
    made = []

    def make(**more: Any) -> Connection:
        options = {
            "secondary": url_of(secondary),
            "backlog_queue_count": 2,
            "failover_interval": 0,
            "ping_interval": 1,
            "send_timeout": SEND_TIMEOUT,
            "syphon_poll": 2,
            **more,
        }
        made.append(Connection(f"paired+{url_of(primary)}", transport_options=options))
        return made[-1]

    yield make
    for connection in made:
        pairing_of(connection).close()
        connection.release()


@pytest.fixture
def syphon() -> Iterator[Callable[..., Syphon]]:
    """``syphon(pairing)``: started, and stopped after the test."""
    running: list[Syphon] = []

    def start(pairing: Any, **arguments: Any) -> Syphon:
        running.append(Syphon(pairing, **arguments))
        running[-1].start()
        return running[-1]

    yield start
    for each in running:
        each.stop()


class Record(list[Event]):
    """The events of a pairing."""

    def of(self, kind: EventKind, entity: str | None = None) -> list[Event]:
        return [each for each in self if each.kind is kind and entity in (None, each.entity)]


def recorded(connection: Connection) -> Record:
    record = Record()
    pairing_of(connection).events.listen(record.append)
    return record


def publish(connection: Connection, body: Any, queue: str = "", **properties: Any) -> None:
    with connection.channel() as channel:
        kombu.Producer(channel).publish(body, **{"routing_key": queue, "retry": False, **properties})


def wait_until(condition: Callable[[], Any], timeout: float = 20.0, what: str = "it") -> Any:
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {timeout:g} s"
        time.sleep(0.05)
    return found


# -- looking past the transport -----------------------------------------------------------------------------------


def sdk(emulator: Emulator) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(emulator.connection_string, retry_total=0)


def peeked(emulator: Emulator, queue: str, **where: Any) -> list[Any]:
    """All messages of a queue, left where they are."""
    with sdk(emulator) as client, client.get_queue_receiver(queue, **where) as receiver:
        found: list[Any] = []
        while batch := receiver.peek_messages(100, sequence_number=found[-1].sequence_number + 1 if found else 0):
            found.extend(batch)
        return found


def arrived(emulator: Emulator, queue: str, **where: Any) -> list[Any]:
    """Of these, what is no ping."""
    return [each for each in peeked(emulator, queue, **where) if each.content_type != PING_CONTENT_TYPE]


def body_of(message: Any) -> Any:
    """What was published, as text or JSON, of a message in a queue of the application."""
    envelope = json.loads(b"".join(message.body))
    assert envelope["properties"]["body_encoding"] == "base64"
    body = base64.b64decode(envelope["body"]).decode()
    return json.loads(body) if message.content_type == "application/json" else body


def send_raw(emulator: Emulator, queue: str, *messages: ServiceBusMessage) -> None:
    with sdk(emulator) as client, client.get_queue_sender(queue) as sender:
        for message in messages:
            sender.send_messages(message)


def counts(emulator: Emulator, queue: str) -> dict[str, int]:
    """Active, scheduled and dead-lettered messages, as the emulator counts them."""
    found: dict[str, int] = emulator.status()["queues"].get(queue, {})
    return {kind: count for kind, count in found.items() if count}


def in_backlog(emulator: Emulator) -> int:
    queues = emulator.status()["queues"]
    return sum(sum(each.values()) for name, each in queues.items() if "x-servicebus-transfer" in name)


class _Plain(RequestsTransport):
    """Management over http: the SDK speaks https alone, to a certificate that it would have to trust."""

    def send(self, request: Any, **kwargs: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **kwargs)


@contextmanager
def administration(emulator: Emulator) -> Iterator[ServiceBusAdministrationClient]:
    with ServiceBusAdministrationClient.from_connection_string(
        emulator.connection_string, transport=_Plain()
    ) as client:
        yield client


def create(emulator: Emulator, name: str, **properties: Any) -> None:
    with administration(emulator) as admin:
        admin.create_queue(name, **properties)


# -- acceptance 2: one entity fails, others don't -----------------------------------------------------------------


def test_only_the_entity_that_fails_is_diverted_and_a_ping_restores_it(connect, primary, secondary, syphon):
    connection = connect()
    orders, mails = Queue("orders"), Queue("mails")
    news = Queue("news-of-paris", Exchange("news", type="fanout"))
    record = recorded(connection)

    def publish_all(n: int) -> None:
        publish(connection, n, "orders", declare=[orders])
        publish(connection, n, "mails", declare=[mails])
        publish(connection, n, exchange=news.exchange, declare=[news])

    publish_all(0)
    primary.fault("disabled", "orders")
    for n in range(1, 4):
        publish_all(n)

    assert [each.entity for each in record.of(EventKind.DIVERTED)] == ["orders"] * 3
    assert [each.entity for each in record.of(EventKind.FAILED_OVER)] == ["orders"]
    assert (counts(primary, "mails"), counts(primary, "news-of-paris")) == ({"active": 4}, {"active": 4})
    assert in_backlog(secondary) == 3
    wait_until(lambda: len(record.of(EventKind.PING)) >= 2, what="pings of the one that fails")
    assert {(each.entity, each.failure) for each in record.of(EventKind.PING)} == {("orders", "fault")}
    assert record.of(EventKind.RESTORED) == []

    before = len(record.of(EventKind.PING))
    primary.clear_faults()
    wait_until(lambda: record.of(EventKind.RESTORED), what="it is restored")
    # Some may have been under way when the fault was cleared, or have come just before.
    assert [each.failure for each in record.of(EventKind.PING)[before:] if each.failure != "fault"] == [None]

    publish(connection, 4, "orders")
    assert record[-1].kind is EventKind.SENT
    syphon(pairing_of(connection))
    wait_until(
        lambda: len(record.of(EventKind.SYPHONED)) == 3 and not in_backlog(secondary), what="the backlog is home"
    )
    assert sorted(map(body_of, arrived(primary, "orders"))) == [0, 1, 2, 3, 4]


def test_a_topic_that_fails_is_diverted_alone(connect, primary, secondary, syphon):
    connection = connect()
    news = Queue("news-of-paris", Exchange("news", type="fanout"))
    record = recorded(connection)
    publish(connection, 0, exchange=news.exchange, declare=[news])
    primary.fault("quota", "news")
    for n in (1, 2):
        publish(connection, n, exchange=news.exchange)
        publish(connection, n, "orders", declare=[Queue("orders")])

    assert [each.entity for each in record.of(EventKind.DIVERTED)] == ["news"] * 2
    assert counts(primary, "orders") == {"active": 2}
    wait_until(lambda: record.of(EventKind.PING, "news"), what="a ping of the topic")
    primary.clear_faults()
    wait_until(lambda: record.of(EventKind.RESTORED, "news"), what="it is restored")
    syphon(pairing_of(connection))
    wait_until(lambda: len(record.of(EventKind.SYPHONED)) == 2, what="the backlog is home")

    assert sorted(map(body_of, arrived(primary, "news-of-paris"))) == [0, 1, 2]


def test_pings_are_those_of_the_documents(connect, primary):
    """Empty, of their content type, with a second to live: seen in a queue that keeps what expires."""
    create(primary, "orders", dead_lettering_on_message_expiration=True)
    connection = connect()
    record = recorded(connection)
    primary.fault("internal-error", "orders")
    publish(connection, 1, "orders")
    primary.clear_faults()
    wait_until(lambda: record.of(EventKind.RESTORED), what="a ping that arrives")

    wait_until(lambda: counts(primary, "orders").get("dead_lettered"), what="it expires")
    [ping] = peeked(primary, "orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert ping.content_type == "application/vnd.ms-servicebus-ping"
    assert b"".join(ping.body) == b""
    assert ping.time_to_live == timedelta(seconds=1)
    assert ping.dead_letter_reason == "TTLExpiredException"


def test_a_queue_with_sessions_is_pinged_too(connect, primary):
    """It takes no message without a session id."""
    create(primary, "orders", requires_session=True)
    connection = connect()
    record = recorded(connection)
    primary.fault("internal-error", "orders")
    publish(connection, 1, "orders", session_id="paris")
    primary.clear_faults()

    wait_until(lambda: record.of(EventKind.RESTORED, "orders"), what="it is restored")


def test_a_message_without_a_session_is_refused_by_a_queue_with_sessions(connect, primary, secondary):
    """As the plain transport does: to divert it would let it go round for ever."""
    create(primary, "orders", requires_session=True)
    connection = connect()

    with pytest.raises(Exception, match="session"):
        publish(connection, 1, "orders")
    assert in_backlog(secondary) == 0
    assert pairing_of(connection).circuits.state(Entity("", "orders")) is CircuitState.HEALTHY


# -- acceptance 3: sessions, time to live, schedules --------------------------------------------------------------


def test_sessions_time_to_live_and_schedules_survive_an_outage(connect, primary, secondary, syphon):
    create(primary, "paris", requires_session=True)
    create(primary, "plain")
    connection = connect()
    pairing = pairing_of(connection)
    publish(connection, "before", "paris", session_id="a", expiration=600)
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=10)
    primary.kill()

    sent_at = time.time()
    for session in ("a", "b"):
        publish(connection, f"in {session}", "paris", session_id=session, expiration=120)
        publish(connection, f"later in {session}", "paris", session_id=session, scheduled_enqueue_time_utc=later)
    publish(connection, "all of it", "plain", session_id="c", expiration=300, scheduled_enqueue_time_utc=later)
    assert in_backlog(secondary) == 5
    assert {each for name in pairing.backlog_queue_names for each in counts(secondary, name)} == {"active"}
    primary.restart()
    syphon(pairing)
    wait_until(lambda: in_backlog(secondary) == 0, what="the backlog is home")

    for session in ("a", "b"):
        found = {body_of(each): each for each in arrived(primary, "paris", session_id=session)}
        assert set(found) == {f"in {session}", f"later in {session}"} | ({"before"} if session == "a" else set())
        assert {each.session_id for each in found.values()} == {session}
        expires = found[f"in {session}"].enqueued_time_utc + found[f"in {session}"].time_to_live
        assert expires.timestamp() == pytest.approx(sent_at + 120, abs=15)
        assert found[f"in {session}"].time_to_live < timedelta(seconds=120)
        scheduled = found[f"later in {session}"]
        assert (scheduled.state, scheduled.scheduled_enqueue_time_utc) == (ServiceBusMessageState.SCHEDULED, later)
    [one] = arrived(primary, "plain")
    assert (one.session_id, one.state) == ("c", ServiceBusMessageState.SCHEDULED)
    assert one.scheduled_enqueue_time_utc == later
    assert timedelta(seconds=240) < one.time_to_live < timedelta(seconds=300)


def test_a_consumer_gets_the_sessions_that_went_through_an_outage(connect, primary, secondary, syphon):
    create(primary, "paris", requires_session=True)
    connection = connect()
    primary.kill()
    for n in range(6):
        publish(connection, n, "paris", session_id=f"session-{n % 3}")
    primary.restart()
    syphon(pairing_of(connection))
    wait_until(lambda: in_backlog(secondary) == 0, what="the backlog is home")

    got: list[int] = []

    def take(body: int, message: Any) -> None:
        got.append(body)
        message.ack()

    with connection.clone() as consuming, kombu.Consumer(consuming, [Queue("paris")], callbacks=[take]):

        def all_is_settled() -> bool:
            with suppress(TimeoutError):
                consuming.drain_events(timeout=0.2)
            return counts(primary, "paris") == {}

        wait_until(all_is_settled, timeout=40, what="all are settled")
    assert sorted(got) == list(range(6))


def test_a_task_that_is_due_later_is_held_back_by_the_service(shop_factory, connect, primary, secondary, syphon):
    create(primary, "celery")
    options = {
        "secondary": url_of(secondary),
        "backlog_queue_count": 2,
        "send_timeout": SEND_TIMEOUT,
        "failover_interval": 0,
        "primary_options": {"schedule_eta": True},
    }
    app = shop_factory(f"paired+{url_of(primary)}", options)
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    healthy = app.record.apply_async([1], eta=later)
    primary.kill()
    diverted = app.record.apply_async([2], eta=later)
    primary.restart()
    with app.connection_for_write() as connection:
        pairing = pairing_of(connection)
        assert in_backlog(secondary) == 1
        syphon(pairing)
        wait_until(lambda: in_backlog(secondary) == 0, what="the backlog is home")
        found = {each.correlation_id: each for each in arrived(primary, "celery")}
        pairing.close()
    assert set(found) == {healthy.id, diverted.id}
    for each in found.values():
        assert (each.state, each.scheduled_enqueue_time_utc) == (ServiceBusMessageState.SCHEDULED, later)
        assert each.subject == "shop.record"


def test_what_expired_in_the_backlog_is_a_dead_letter_of_the_service(connect, primary, secondary, syphon):
    connection = connect(backlog_queue_count=1)
    pairing = pairing_of(connection)
    primary.kill()
    publish(connection, 1, "orders", expiration=1.0)
    primary.restart()
    create(primary, "orders")
    time.sleep(1.0)  # its life
    syphon(pairing)

    [backlog_queue] = pairing.backlog_queue_names
    wait_until(lambda: counts(secondary, backlog_queue) == {"dead_lettered": 1}, what="the dead letter")
    [letter] = peeked(secondary, backlog_queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert letter.dead_letter_reason == "TTLExpiredException"
    assert arrived(primary, "orders") == []


# -- acceptance 4: sizes ------------------------------------------------------------------------------------------


class Sizes:
    """Makes messages that take a given number of bytes on the wire, envelope and all.

    Arguments:
        sent: sizes of what was sent so far, the last one last.
    """

    LENGTH = 150_000  # of the body of the message that is measured
    FILLING = 8

    def __init__(self, connection: Connection, sent: list[int], compressible: bool) -> None:
        self._connection = connection
        self._bytes = (lambda length: b"x" * length) if compressible else random.Random(4).randbytes
        self._publish("measured", self.LENGTH, self.FILLING)
        self._measured = sent[-1]

    def publish(self, number: int, size: int) -> None:
        """Every three bytes of a body are four in base64; the header makes up for the rest."""
        fours, rest = divmod(size - self._measured, 4)
        self._publish(f"{number:08d}", self.LENGTH + 3 * fours, self.FILLING + rest)

    def _publish(self, number: str, length: int, filling: int) -> None:
        publish(
            self._connection,
            self._bytes(length),
            "orders",
            headers={"filling": "f" * filling},
            message_id=number,
            content_type="application/data",
            content_encoding="binary",
        )


@pytest.fixture
def sent_to_orders(monkeypatch) -> list[int]:
    """The sizes of what is sent there."""
    sizes: list[int] = []
    send = SenderLink.send

    def measure(self: SenderLink, message: Any, timeout: float) -> None:
        if isinstance(message, Outgoing) and message.properties.content_type == "application/data":
            sizes.append(encoded_size(message))
        send(self, message, timeout)

    monkeypatch.setattr(SenderLink, "send", measure)
    monkeypatch.setattr(transport, "_tag_numbers", itertools.count(10_000))  # all of one length
    return sizes


#: 255 KB, and 256 KB by the byte; in steps about the point from which a message has no room at home.
NEAR = [255 * 1024, *range(LIMIT - 560, LIMIT - 460, 4), *range(LIMIT - 20, LIMIT + 21), LIMIT + 513, LIMIT + 4096]


def taken(sizes: Sizes, first: int, wanted: list[int]) -> dict[str, int]:
    """Publish messages of these sizes; those that were taken, by message id."""
    found = {}
    for number, size in enumerate(wanted, first):
        with suppress(MessageTooLarge):
            sizes.publish(number, size)
            found[f"{number:08d}"] = size
    return found


@pytest.mark.parametrize("compressible", [True, False], ids=["compressible", "random"])
def test_a_message_near_the_limit_is_delivered_or_refused_before_anything_is_sent(
    compressible, connect, primary, secondary, syphon, sent_to_orders
):
    create(primary, "orders")
    connection = connect(send_timeout=10)
    sizes = Sizes(connection, sent_to_orders, compressible)
    healthy = taken(sizes, 1000, NEAR)

    assert list(healthy.values()) == sent_to_orders[1:] == [size for size in NEAR if size <= LIMIT]
    primary.fault("internal-error", "orders")
    with pytest.raises(MessageTooLarge):
        sizes.publish(1, LIMIT + 1)
    publish(connection, "the one that fails it over", "orders", message_id="first")
    diverted = taken(sizes, 2000, NEAR)
    assert list(diverted.values()) == [size for size in NEAR if size <= LIMIT - links.SLACK]
    assert in_backlog(secondary) == 1 + len(diverted)

    primary.clear_faults()
    syphon(pairing_of(connection))
    wait_until(lambda: in_backlog(secondary) == 0, what="the backlog is home", timeout=60)
    assert {each.message_id for each in arrived(primary, "orders")} == {"measured", "first", *healthy, *diverted}


def test_the_limit_is_the_services_to_the_byte(connect, primary, sent_to_orders, monkeypatch):
    """Without our own look the service refuses the very message that we refuse, and takes the one before."""
    create(primary, "orders")
    connection = connect(send_timeout=10)
    sizes = Sizes(connection, sent_to_orders, compressible=False)
    monkeypatch.setattr(sending.ServiceBusSender, "_require_fit", lambda *arguments: None)

    sizes.publish(1, LIMIT)
    with pytest.raises(MessageSizeExceededError):
        sizes.publish(2, LIMIT + 1)
    assert sent_to_orders[1:] == [LIMIT, LIMIT + 1]
    assert counts(primary, "orders") == {"active": 2}


def test_what_is_too_large_for_the_secondary_is_compressed_or_refused(tmp_path, secondary, syphon):
    """A Premium primary takes a megabyte, its secondary on Standard does not."""
    with Emulator(process=True, max_message_size=1024 * 1024) as premium:
        options = {
            "secondary": url_of(secondary),
            "backlog_queue_count": 1,
            "failover_interval": 0,
            "ping_interval": 1,
            "send_timeout": 10,
        }
        with Connection(f"paired+{url_of(premium)}", transport_options=options) as connection:
            pairing = pairing_of(connection)
            publish(connection, "small", "orders", declare=[Queue("orders")])
            premium.fault("internal-error", "orders")
            text = "".join(f"line {n} of a long letter\n" for n in range(20_000))
            publish(connection, text, "orders")
            with pytest.raises(MessageTooLarge, match=f"compressed.*accepts {LIMIT}"):
                publish(connection, random.Random(4).randbytes(300_000).hex(), "orders")
            assert in_backlog(secondary) == 1

            premium.clear_faults()
            syphon(pairing)
            wait_until(lambda: in_backlog(secondary) == 0, what="the backlog is home")
            assert [body_of(each) for each in arrived(premium, "orders")] == ["small", text]
            pairing.close()


# -- acceptance 5: a lost acknowledgement -------------------------------------------------------------------------


def test_a_message_whose_acknowledgement_is_lost_comes_twice_with_one_id(connect, primary, secondary, syphon):
    create(primary, "orders")
    connection = connect()
    record = recorded(connection)
    primary.fault("lost-acknowledgement", "orders", times=1)
    publish(connection, "once, I hope", "orders")

    assert counts(primary, "orders") == {"active": 1}
    [diverted] = record.of(EventKind.DIVERTED)
    assert diverted.maybe_duplicate
    wait_until(lambda: record.of(EventKind.RESTORED), what="it is restored")
    syphon(pairing_of(connection))
    wait_until(lambda: record.of(EventKind.SYPHONED), what="the copy is home")
    copies = arrived(primary, "orders")
    assert [body_of(each) for each in copies] == ["once, I hope"] * 2
    assert {each.message_id for each in copies} == {diverted.message_id}


def test_with_duplicate_detection_there_is_one_copy(connect, primary, secondary, syphon):
    create(primary, "orders", requires_duplicate_detection=True)
    connection = connect()
    record = recorded(connection)
    primary.fault("lost-acknowledgement", "orders", times=1)
    publish(connection, "once", "orders")
    wait_until(lambda: record.of(EventKind.RESTORED), what="it is restored")
    syphon(pairing_of(connection))
    wait_until(lambda: record.of(EventKind.SYPHONED) and not in_backlog(secondary), what="the copy is home")

    [copy] = arrived(primary, "orders")
    assert (body_of(copy), copy.message_id) == ("once", record.of(EventKind.SYPHONED)[0].message_id)


# -- acceptance 8: what an idle syphon costs ----------------------------------------------------------------------

DAY = 86_400.0


class IdleReceiver(Receiver):
    """Receives from empty backlog queues whose long polls take no time: it keeps a clock of its own."""

    def __init__(self, until: float) -> None:
        self.failed = {}
        self.clock = 0.0
        self.polls: list[float] = []
        self._queues: list[str] = []
        self._until = until
        self._interrupted = threading.Event()

    def receive(self, limit: int, timeout: float) -> list[Received]:
        if self.clock >= self._until:
            self._interrupted.wait()
            return []
        self.polls += [self.clock for _ in self._queues]
        self.clock += timeout
        return []

    def add(self, queue: str) -> None:
        self._queues.append(queue)

    def remove(self, queue: str) -> None:
        self._queues.remove(queue)

    def interrupt(self) -> None:
        self._interrupted.set()

    def complete(self, received: Any) -> None:
        raise AssertionError("nothing was received")

    abandon = dead_letter = complete

    def close(self) -> None:
        self._interrupted.set()


def test_an_idle_syphon_receives_as_often_as_the_documents_count(connect, secondary, syphon, monkeypatch):
    """Ten backlog queues, the default poll, thirty days on a clock that each receive moves on."""
    connection = connect(backlog_queue_count=10, syphon_poll=900)
    pairing = pairing_of(connection)
    idle = IdleReceiver(30 * DAY)

    def receiver(queues: Any, *arguments: Any) -> Receiver:
        for queue in queues:
            idle.add(queue)
        return idle

    monkeypatch.setattr(pairing.secondary, "receiver", receiver)
    record = recorded(connection)
    syphon(pairing)
    wait_until(lambda: idle.clock >= 30 * DAY, what="thirty days")

    polls = idle.polls
    wait_until(lambda: len(record.of(EventKind.POLLED)) == 28_800, what="as many in the journal")
    assert len([poll for poll in polls if poll < 3600]) == 40
    assert len([poll for poll in polls if poll < DAY]) == 960
    assert len(polls) == 28_800


def test_one_long_poll_is_one_grant_of_credit(monkeypatch, primary, syphon):
    """What the service sees of a poll, counted there, for each of ten queues; polls of 2 s in the place of 900."""
    poll = 2.0
    credits: dict[str, list[float]] = defaultdict(list)
    on_flow = ServiceSideReceiver.on_flow

    def count(self: ServiceSideReceiver, flow: Any) -> None:
        if flow.link_credit and "x-servicebus-transfer" in self.address:
            credits[self.address].append(time.monotonic())
        on_flow(self, flow)

    monkeypatch.setattr(ServiceSideReceiver, "on_flow", count)
    with Emulator() as spare:
        options = {"secondary": url_of(spare), "backlog_queue_count": 10, "send_timeout": 10, "syphon_poll": poll}
        with Connection(f"paired+{url_of(primary)}", transport_options=options) as connection:
            pairing = pairing_of(connection)
            pairing.open()
            syphon(pairing)
            wait_until(lambda: len(credits) == 10 and min(map(len, credits.values())) >= 5, what="four polls of each")
            pairing.close()
    for given in credits.values():
        _, first, *polls = given  # opening a link is the first of all
        # Two grants for a poll would be a second apart on average; only a first one that is seen late makes it less.
        assert (polls[-1] - first) / len(polls) > 0.7 * poll


def test_an_idle_consumer_asks_the_service_once(monkeypatch):
    """And again each minute, so that its link is not closed: counted at the service."""
    asked: list[float] = []
    on_flow = ServiceSideReceiver.on_flow

    def count(self: ServiceSideReceiver, flow: Any) -> None:
        if flow.link_credit and self.address == "orders":
            asked.append(time.monotonic())
        on_flow(self, flow)

    monkeypatch.setattr(ServiceSideReceiver, "on_flow", count)
    with Emulator(queues=["orders"]) as emulator, new_connection(url_of(emulator)) as connection:
        got: list[Any] = []

        def take(body: Any, message: Any) -> None:
            got.append(body)
            message.ack()

        def drain(seconds: float) -> None:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.1)

        with kombu.Consumer(connection.channel(), [Queue("orders")], callbacks=[take], prefetch_count=1):
            wait_until(lambda: asked, what="it asks")
            drain(5)
            assert len(asked) == 1
            with connection.clone() as producing:
                for n in range(3):
                    publish(producing, n, "orders")
            wait_until(lambda: drain(0.1) or len(asked) >= 4, what="it asks for each")
            drain(1)
            # One receive for each message, as none is fetched ahead, and one that waits for the next.
            assert got == [0, 1, 2]
            assert len(asked) == 4


# -- acceptance 9: half a pairing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["primary", "secondary"])
def test_half_a_pairing_is_faulted_after_five_seconds(closed, connect, syphon, caplog):
    connection = connect(primary_name=f"half-{closed}")
    pairing = pairing_of(connection)
    record = recorded(connection)
    publish(connection, 1, "orders", declare=[Queue("orders")])
    assert pairing.options.close_timeout == 5.0
    running = syphon(pairing)
    lost, survivor = (pairing.primary, pairing.secondary)[:: 1 if closed == "primary" else -1]
    started = time.monotonic()
    lost.close()
    wait_until(lambda: record.of(EventKind.FAULTED), what="it is faulted")

    assert 5.0 <= time.monotonic() - started < 10
    wait_until(lambda: pairing.closed and not running.is_running, what="it ends")
    assert survivor.closed
    [fault] = record.of(EventKind.FAULTED)
    assert fault.detail == f"{survivor.label} is faulted, since its partner was closed 5 s ago"
    assert any(fault.detail in each.getMessage() and each.levelname == "ERROR" for each in caplog.records)
    with pytest.raises(PairingClosed):
        pairing.send(Message(b"2", routing_key="orders"))
    publish(connection, 3, "orders")  # the next connection gets a whole one
    assert pairing_of(connection) is not pairing


# -- pings and workers --------------------------------------------------------------------------------------------


def ping(seconds: float = 60) -> ServiceBusMessage:
    """One that outlives the test, so that it is there to be received."""
    return ServiceBusMessage(b"", content_type=PING_CONTENT_TYPE, time_to_live=timedelta(seconds=seconds))


def test_a_consumer_never_sees_a_ping(connect, primary):
    create(primary, "orders")
    connection = connect()
    send_raw(primary, "orders", ping(), ping())
    publish(connection, 1, "orders")
    send_raw(primary, "orders", ping())
    got: list[Any] = []

    def take(body: Any, message: Any) -> None:
        got.append(body)
        message.ack()

    with connection.clone() as consuming, kombu.Consumer(consuming, [Queue("orders")], callbacks=[take]):

        def all_is_settled() -> bool:
            with suppress(TimeoutError):
                consuming.drain_events(timeout=0.2)
            return counts(primary, "orders") == {}

        wait_until(all_is_settled, what="the queue is empty, of pings too")
    assert got == [1]


def test_basic_get_never_returns_a_ping(connect, primary):
    create(primary, "orders")
    connection = connect()
    send_raw(primary, "orders", ping())
    publish(connection, 1, "orders")
    with connection.channel() as channel:
        got = [message for _ in range(3) if (message := Queue("orders")(channel).get()) is not None]
        assert [each.payload for each in got] == [1]
        got[0].ack()
    assert counts(primary, "orders") == {}


def test_a_worker_never_sees_a_ping(worker_factory, shop_factory, ledger, connect, primary, secondary):
    create(primary, "celery")
    send_raw(primary, "celery", *(ping() for _ in range(5)))
    options = {"secondary": url_of(secondary), "backlog_queue_count": 1, "send_timeout": SEND_TIMEOUT}
    app = shop_factory(f"paired+{url_of(primary)}", options)
    for n in range(10):
        app.record.delay(n)
    worker = worker_factory(f"paired+{url_of(primary)}", options, pool="solo", concurrency=1)
    ledger.wait_for(10, 30)
    wait_until(lambda: counts(primary, "celery") == {}, what="the queue is empty, of pings too")

    assert sorted(ledger.executed()) == list(range(10))
    log = worker.logs()
    assert [text for text in ("Traceback", "cannot be read", "unknown message") if text in log] == []


# -- dead letters -------------------------------------------------------------------------------------------------


def test_what_cannot_be_delivered_is_a_dead_letter_of_the_service(connect, primary, secondary, syphon):
    connection = connect(backlog_queue_count=1)
    pairing = pairing_of(connection)
    record = recorded(connection)
    pairing.open()
    [backlog_queue] = pairing.backlog_queue_names
    said = {"x-paired-form": "1", "x-ms-path": "orders"}
    send_raw(
        secondary,
        backlog_queue,
        ServiceBusMessage("who wrote this?", message_id="by hand"),
        ServiceBusMessage(b"\xff\xfe no JSON", message_id="damaged", application_properties=said),
    )
    syphon(pairing)
    wait_until(lambda: counts(secondary, backlog_queue) == {"dead_lettered": 2}, what="the dead letters")

    letters = {
        each.message_id: each for each in peeked(secondary, backlog_queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    }
    assert {name: each.dead_letter_reason for name, each in letters.items()} == {
        "by hand": "NoPath",
        "damaged": "NoPath",
    }
    assert "x-ms-path" in letters["by hand"].dead_letter_error_description
    assert b"".join(letters["damaged"].body) == b"\xff\xfe no JSON"
    assert {each.message_id for each in record.of(EventKind.DEAD_LETTERED)} == {"by hand", "damaged"}


# -- backlog queues -----------------------------------------------------------------------------------------------


def test_backlog_queues_have_the_properties_that_are_documented(connect, secondary):
    pairing = pairing_of(connect(backlog_queue_count=3))
    pairing.open()
    with administration(secondary) as admin:
        queues = {each.name: each for each in admin.list_queues()}
    assert set(queues) == set(pairing.backlog_queue_names)
    for queue in queues.values():
        assert queue.max_size_in_megabytes == 5120
        assert queue.max_delivery_count == 2_147_483_647
        assert queue.lock_duration == timedelta(minutes=1)
        assert queue.dead_lettering_on_message_expiration is True
        assert queue.enable_batched_operations is True
        for unlimited in (queue.default_message_time_to_live, queue.auto_delete_on_idle):
            assert unlimited is None or unlimited > timedelta(days=365 * 1000)
        assert (queue.requires_session, queue.requires_duplicate_detection) == (False, False)


def test_a_backlog_queue_that_is_there_is_left_as_it_is(connect, primary, secondary):
    connection = connect(backlog_queue_count=2)
    pairing = pairing_of(connection)
    first, second = pairing.backlog_queue_names
    create(secondary, first, max_delivery_count=7, lock_duration=timedelta(seconds=33), user_metadata="mine")
    create(secondary, "somebody-elses")
    pairing.open()

    with administration(secondary) as admin:
        odd = admin.get_queue(first)
        assert (odd.max_delivery_count, odd.lock_duration, odd.user_metadata) == (7, timedelta(seconds=33), "mine")
        assert admin.get_queue(second).max_delivery_count == 2_147_483_647
        assert {each.name for each in admin.list_queues()} == {first, second, "somebody-elses"}
    assert pairing.backlog_queue_count == 2


def test_backlog_queues_are_found_among_thousands(connect, primary):
    """A list of them is pages of a hundred, which take their time: each is asked for."""
    crowd = [f"queue-{number}" for number in range(5000)]
    with Emulator(process=True, queues=crowd) as crowded:
        crowded.fault("slow", on=["manage"], seconds=0.2)
        connection = connect(secondary=url_of(crowded), primary_name="contoso")
        primary.kill()
        started = time.monotonic()
        publish(connection, 1, "orders")
        assert time.monotonic() - started < 2 * SEND_TIMEOUT
        assert in_backlog(crowded) == 1


@pytest.fixture
def guarded() -> Iterator[Emulator]:
    """A namespace that checks keys: one may do everything, the other send and listen."""
    with Emulator(policies=[f"{POLICY}:{KEY}", "producer:another/key=:Send,Listen"], process=True) as emulator:
        yield emulator


def test_without_the_right_to_manage_existing_backlog_queues_are_used(connect, guarded, primary, syphon):
    options = {
        "secondary": url_of(guarded, "producer", "another/key="),
        "create_backlog_queues": False,
        "primary_name": "contoso",
    }
    connection = connect(**options)
    pairing = pairing_of(connection)
    with pytest.raises(ConfigurationError, match="create them, or let the pairing do it"):
        pairing.open()
    for name in pairing.backlog_queue_names:
        create(guarded, name)
    pairing.open()
    assert pairing.backlog_queue_count == 2
    primary.kill()
    publish(connection, 1, "orders")
    assert in_backlog(guarded) == 1
    primary.restart()
    create(primary, "orders")
    syphon(pairing)
    wait_until(lambda: in_backlog(guarded) == 0, what="it is home")
    assert [body_of(each) for each in arrived(primary, "orders")] == [1]


def test_without_the_right_to_manage_creating_says_so(connect, guarded):
    connection = connect(secondary=url_of(guarded, "producer", "another/key="))
    with pytest.raises(NamespaceUnauthorized, match=r"secondary \(option secondary\)"):
        pairing_of(connection).open()
    assert guarded.status()["queues"] == {}
