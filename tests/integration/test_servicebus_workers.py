"""Workers on Service Bus: remote control, events, locks, sessions, and a fleet that is half on the stock transport."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import kombu
import pytest

from kombu_paired.emulator import Emulator
from tests.support.servicebus import url_of
from tests.support.shop import make_app, shop_environment
from tests.support.stock import stock_url


@pytest.fixture
def primary() -> Iterator[Emulator]:
    with Emulator(process=True) as emulator:
        yield emulator


@pytest.fixture
def secondary() -> Iterator[Emulator]:
    with Emulator(process=True) as emulator:
        yield emulator


@pytest.fixture
def environment(primary, secondary, ledger) -> Callable[..., dict[str, str]]:
    """The variables of a shop on the pair; ``primary_options`` and further settings on request."""

    def make(*, primary_options=None, setup=True, **conf) -> dict[str, str]:
        options = {"secondary": url_of(secondary), "backlog_queue_count": 2, "primary_options": primary_options or {}}
        return shop_environment(f"paired+{url_of(primary)}", options, ledger=ledger, setup=setup, conf=conf)

    return make


def wait_for(condition, timeout, what):
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.05)
    return found


# -- acceptance 6 -------------------------------------------------------------------------------------------------


def test_remote_control_answers_and_leaves_nothing_behind(primary, environment, start_worker):
    worker = start_worker(environment())
    shop = make_app(environment())

    assert shop.control.inspect(timeout=20, limit=1).ping() == {worker.hostname(): {"ok": "pong"}}
    stats = shop.control.inspect(timeout=20, limit=1).stats()[worker.hostname()]
    assert stats["pool"]["max-concurrency"] == 2
    assert shop.control.rate_limit("shop.record", "5/m", reply=True, timeout=20, limit=1) == [
        {worker.hostname(): {"ok": "new rate limit set successfully"}}
    ]

    assert list(primary.status()["topics"]["celery.pidbox"]) == [f"{worker.worker_name}_local.celery.pidbox"]
    worker.stop()
    status = primary.status()
    assert set(status["queues"]) == {"celery"}  # no reply queue
    assert "celery.pidbox" not in status["topics"]


def test_remote_control_reaches_every_worker(environment, start_worker):
    workers = [start_worker(environment()) for _ in range(2)]
    replies = make_app(environment()).control.ping(timeout=20, limit=2)
    assert sorted(name for reply in replies for name in reply) == sorted(each.hostname() for each in workers)


def test_events_reach_a_receiver_and_its_subscription_goes_with_it(primary, environment, start_worker, ledger):
    start_worker(environment(), args=["-E"])
    shop = make_app(environment())
    seen: list[str] = []
    done = threading.Event()

    def note(event):
        seen.append(event["type"])
        if event["type"] == "task-succeeded":
            done.set()

    with shop.connection_for_read() as connection:
        receiver = shop.events.Receiver(connection, handlers={"*": note})

        def capture() -> None:
            while not done.is_set():
                try:
                    receiver.capture(limit=None, timeout=1, wakeup=False)
                except TimeoutError:
                    continue

        thread = threading.Thread(target=capture, daemon=True)
        thread.start()
        wait_for(lambda: primary.status()["topics"].get("celeryev"), 30, "nobody listens")
        shop.record.delay(1)
        assert done.wait(20), seen
        thread.join(5)

    assert {"task-received", "task-started", "task-succeeded"} <= set(seen)
    assert ledger.executed() == [1]
    wait_for(lambda: not primary.status()["topics"]["celeryev"], 30, "the subscription is still there")


# -- acceptance 7 -------------------------------------------------------------------------------------------------


def test_producers_on_ours_and_workers_on_stock(primary, environment, start_worker, ledger):
    shop = make_app(environment())
    start_worker(shop_environment(stock_url(url_of(primary)), ledger=ledger, setup=False), module="tests.support.stock")
    for n in range(50):
        shop.record.delay(n)
    ledger.wait_for(50, timeout=60)
    assert ledger.duplicates() == {}


def test_producers_on_stock_and_workers_on_ours(primary, environment, start_worker, ledger):
    stock = make_app(shop_environment(stock_url(url_of(primary)), ledger=ledger, setup=False))
    start_worker(environment())
    for n in range(50):
        stock.record.delay(n)
    ledger.wait_for(50, timeout=60)
    assert ledger.duplicates() == {}


def test_queue_names_with_punctuation_are_the_stock_ones(primary, environment, start_worker, ledger):
    stock = make_app(shop_environment(stock_url(url_of(primary)), ledger=ledger, setup=False))
    worker = start_worker(environment(), queue="orders:high@eu")
    stock.record.apply_async((1,), queue="orders:high@eu")
    make_app(environment()).record.apply_async((2,), queue="orders:high@eu")
    wait_for(lambda: sorted(ledger.executed()) == [1, 2], 30, worker.logs)
    assert "orders_high_eu" in primary.status()["queues"]


# -- acceptance 13 ------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.real_naps
def test_a_worker_of_two_queues_stops_promptly(environment, start_worker, ledger):
    worker = start_worker(environment(), queue="celery,other")
    shop = make_app(environment())
    shop.record.delay(1)
    shop.record.apply_async((2,), queue="other")
    ledger.wait_for(2, timeout=60)
    code, seconds = worker.stop()
    assert code == 0
    # Celery's own part is 1.8 to 2.9 s: its timer and the pool's handlers are asleep. Ours is less than half a second.
    assert seconds < 5


# -- locks, sessions, bad input -----------------------------------------------------------------------------------


def test_the_lock_of_a_message_is_renewed_while_its_task_runs(environment, start_worker, ledger):
    late = environment(primary_options={"peek_lock_seconds": 5}, task_acks_late=True)
    worker = start_worker(late)
    make_app(late).slow_record.delay(1, 8.0)
    wait_for(lambda: ledger.executed(), 30, worker.logs)
    ledger.wait_until_quiet(quiet=4, timeout=10)
    assert ledger.executed() == [1]
    assert "is lost" not in worker.logs()


def test_what_a_killed_worker_held_is_run_by_another(environment, start_worker, ledger):
    late = environment(primary_options={"peek_lock_seconds": 5}, task_acks_late=True)
    victim = start_worker(late)
    make_app(late).slow_record.delay(1, 60.0)
    make_app(late).record.delay(2)
    wait_for(lambda: ledger.executed() == [2], 30, victim.logs)
    victim.kill()
    other = start_worker(late)
    wait_for(lambda: "slow_record" in other.logs(), 30, other.logs)


def test_a_rejected_task_is_a_dead_letter_with_a_reason(primary, environment):
    with (
        kombu.Connection(f"paired+{url_of(primary)}", transport_options=_options(environment())) as connection,
        connection.channel() as channel,
    ):
        queue = kombu.Queue("orders")(channel)
        queue.declare()
        kombu.Producer(channel).publish({"n": 1}, routing_key="orders", serializer="json")
        message = wait_for(lambda: queue.get(), 30, "nothing came")
        message.reject()
        wait_for(lambda: primary.status()["queues"]["orders"]["dead_lettered"] == 1, 30, "no dead letter")


def test_what_comes_again_says_so(primary, environment):
    with (
        kombu.Connection(f"paired+{url_of(primary)}", transport_options=_options(environment())) as connection,
        connection.channel() as channel,
    ):
        queue = kombu.Queue("orders")(channel)
        queue.declare()
        seen = []

        def take(body, message):
            seen.append(message.delivery_info["redelivered"])
            message.reject(requeue=True) if len(seen) == 1 else message.ack()

        with kombu.Consumer(channel, [queue], callbacks=[take]):
            kombu.Producer(channel).publish({"n": 1}, routing_key="orders", serializer="json")
            while len(seen) < 2:
                connection.drain_events(timeout=10)
    assert seen == [False, True]


def test_a_consumer_that_leaves_takes_no_shared_auto_delete_queue_with_it(primary, environment):
    queue = kombu.Queue("shared", auto_delete=True)
    bodies = []
    url, options = f"paired+{url_of(primary)}", _options(environment())
    with kombu.Connection(url, transport_options=options) as stays:
        leaves = kombu.Connection(url, transport_options=options)
        with kombu.Consumer(leaves.channel(), [queue]):
            kombu.Producer(stays.channel()).publish("one", routing_key="shared")
        leaves.release()
        with kombu.Consumer(stays.channel(), [queue], callbacks=[lambda body, message: bodies.append(body)]):
            stays.drain_events(timeout=10)
    assert bodies == ["one"]


def test_a_message_that_is_no_task_is_a_dead_letter_and_the_worker_goes_on(primary, environment, start_worker, ledger):
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    worker = start_worker(environment())
    with (
        ServiceBusClient.from_connection_string(primary.connection_string) as client,
        client.get_queue_sender("celery") as sender,
    ):
        sender.send_messages(ServiceBusMessage(b"\xff not an envelope"))
        sender.send_messages(ServiceBusMessage("[1, 2]"))
    make_app(environment()).record.delay(1)
    ledger.wait_for(1, timeout=60)
    wait_for(lambda: primary.status()["queues"]["celery"]["dead_lettered"] == 2, 30, worker.logs)
    assert worker.alive()


def test_a_queue_with_sessions_is_consumed_session_by_session(environment, start_worker, ledger, secondary, tmp_path):
    with Emulator(queues=["celery?requires_session=true"], process=True) as primary:
        options = {"secondary": url_of(secondary), "backlog_queue_count": 2}
        variables = shop_environment(f"paired+{url_of(primary)}", options, ledger=ledger)
        worker = start_worker(variables, concurrency=1)
        shop = make_app(variables)
        for n in range(12):
            shop.record.apply_async((n,), session_id=f"customer-{n % 3}")
        wait_for(lambda: len(ledger.executed()) == 12, 40, worker.logs)
        assert ledger.duplicates() == {}
        for session in range(3):
            mine = [n for n in ledger.executed() if n % 3 == session]
            assert mine == sorted(mine)


def test_a_deleted_queue_is_made_again_under_its_consumer(primary, environment, start_worker, ledger):
    from kombu_paired.brokers.servicebus.address import Address
    from kombu_paired.brokers.servicebus.clients import Clients
    from kombu_paired.brokers.servicebus.settings import ServiceBusSettings

    worker = start_worker(environment())
    with Clients(Address.parse(url_of(primary)), ServiceBusSettings()).administration(5) as admin:
        admin.delete_queue("celery")
    shop = make_app(environment())
    wait_for(lambda: "celery" in primary.status()["queues"], 30, worker.logs)
    shop.record.delay(1)
    ledger.wait_for(1, timeout=60)
    assert worker.alive()


@pytest.mark.parametrize("fault", ["silent", "internal-error"])
def test_a_new_worker_and_a_new_producer_do_without_the_management(primary, environment, start_worker, ledger, fault):
    first = make_app(environment())
    first.record.delay(1)  # the queue is there
    primary.fault(fault, on=["manage"])
    environment = environment(primary_options={"send_timeout": 1.5})
    worker = start_worker(environment, wait=180)
    second = make_app(environment)

    second.record.delay(2)

    wait_for(lambda: sorted(ledger.executed()) == [1, 2], 30, worker.logs)


def _options(environment: dict[str, str]) -> dict[str, object]:
    import json

    found: dict[str, object] = json.loads(environment["SHOP_TRANSPORT_OPTIONS"])
    return found
