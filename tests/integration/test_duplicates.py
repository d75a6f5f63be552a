"""Every copy too many that a syphon makes is marked: `syphoned` of whoever brings it home says so."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from celery import chain
from kombu import Connection, Queue

from kombu_paired import Pairing, Syphon, pairing_of
from kombu_paired.brokers.redis import receiving as redis_room
from kombu_paired.events import Event, EventKind
from kombu_paired.message import Diversion, Message, to_backlog
from tests.support.brokers import BrokerNode
from tests.support.nodes import ROOT
from tests.support.traffic import assert_backlog_empties, heard, wait_for

ORDERS = Queue("orders")
#: It writes the ids that it marks to its standard output.
A_SYPHON = """
import os, sys, time
from kombu import Connection
from kombu_paired import Syphon, pairing_of
from kombu_paired.events import EventKind, everywhere
def tell(event):
    if event.kind is EventKind.SYPHONED and event.maybe_duplicate:
        os.write(1, f"{event.message_id}\\n".encode())
everywhere.listen(tell)
connection = Connection(sys.argv[1], transport_options=eval(sys.argv[2]))
connection.connect()
Syphon(pairing_of(connection)).start()
time.sleep(60)
"""


@pytest.fixture
def pairing(primary: BrokerNode, options: dict[str, Any]) -> Iterator[Pairing]:
    options.update(failover_interval=0, backlog_queue_count=2)
    with Connection(f"paired+{primary.url}", transport_options=options) as connection:
        ORDERS(connection.default_channel).declare()
        yield pairing_of(connection)
        pairing_of(connection).close()


def fill(pairing: Pairing, count: int) -> None:
    """So many messages wait in the backlog."""
    sender = pairing.secondary.sender()
    why = Diversion(time.time(), time.time(), "web-1/1", "unreachable")
    names = pairing.backlog_queue_names
    messages = [
        Message('"x"', "", "orders", None, "application/json", "utf-8", properties={"message_id": f"m{number}"})
        for number in range(count)
    ]
    stored = [to_backlog(each, names[number % len(names)], why) for number, each in enumerate(messages)]
    assert not any(sender.send_batch(stored, 20))
    sender.close()


def arrived(primary: BrokerNode) -> Counter[str]:
    """How often each message is in the queue, by its id."""
    found: list[str] = []
    with primary.plain() as channel:
        while (message := ORDERS(channel).get(no_ack=True)) is not None:
            found.append(message.properties["message_id"])
    return Counter(found)


def assert_all_marked(copies: Counter[str], syphoned: list[Event], elsewhere: Iterable[str] = ()) -> None:
    """Every message with a copy too many is marked, here or elsewhere; a syphon says so after the backlog is empty."""
    twice = {name for name, times in copies.items() if times > 1}.difference(elsewhere)
    wait_for(
        lambda: twice <= {event.message_id for event in list(syphoned) if event.maybe_duplicate},
        30,
        lambda: f"unmarked: {twice - {event.message_id for event in syphoned if event.maybe_duplicate}}",
    )


@pytest.mark.parametrize("broker_kind", ["amqp"], indirect=True)
def test_an_alarm_while_the_syphon_waits_doubles_nothing_that_it_sends(pairing, primary, secondary):
    syphon = Syphon(pairing)
    syphon.start()
    wait_for(lambda: syphon.primary_works, 30, "the syphon does not start")
    primary.fill()
    fill(pairing, 10)
    wait_for(lambda: not syphon.primary_works, 30, "the syphon does not see the alarm")
    primary.unfill()
    assert_backlog_empties(secondary, 20)
    assert arrived(primary) == Counter({f"m{number}": 1 for number in range(10)})


@pytest.mark.parametrize("broker_kind", ["amqp"], indirect=True)
def test_an_alarm_in_the_middle_of_a_stream(pairing, primary, secondary):
    fill(pairing, 6000)
    syphon = Syphon(pairing)
    with heard(EventKind.SYPHONED) as syphoned:
        syphon.start()
        wait_for(lambda: len(syphoned) > 100, 30, "nothing comes home")
        primary.fill()
        wait_for(lambda: not syphon.primary_works, 30, "the syphon does not see the alarm")
        assert len(syphoned) < 6000
        primary.unfill()
        assert_backlog_empties(secondary, 30)
        copies = arrived(primary)
        assert len(copies) == 6000
        assert_all_marked(copies, syphoned)


@pytest.mark.parametrize("broker_kind", ["amqp", "redis"], indirect=True)
def test_a_syphon_that_is_killed_between_sending_and_settling(
    pairing, primary, secondary, options, monkeypatch, tmp_path
):
    monkeypatch.setattr(redis_room, "LOCK_SECONDS", 3)
    fill(pairing, 3000)
    program = secondary.shorten_locks([]) + A_SYPHON
    victim = subprocess.Popen(
        [sys.executable, "-c", program, f"paired+{primary.url}", repr(options)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=(tmp_path / "marked").open("w"),
    )
    try:
        wait_for(lambda: (primary.depth("orders") or 0) > 100, 30, "nothing comes home")
    finally:
        victim.kill()
        victim.wait()
    assert secondary.backlog() > 0
    with heard(EventKind.SYPHONED) as syphoned:
        Syphon(pairing).start()
        assert_backlog_empties(secondary, 30)
        copies = arrived(primary)
        assert len(copies) == 3000
        assert_all_marked(copies, syphoned, (tmp_path / "marked").read_text().split())
    assert len(syphoned) > sum(event.maybe_duplicate for event in syphoned)  # not all of them


@pytest.mark.parametrize("broker_kind", ["redis"], indirect=True)
def test_a_task_knows_that_there_may_be_two_of_it_and_so_do_its_retries_and_what_follows(
    paired_shop, paired_worker, primary, secondary, ledger
):
    shop = paired_shop()
    shop.record.delay(1000)  # so that there is a link, on which a frozen broker gets something
    primary.freeze()
    twice = chain(shop.tell_marks.si(0, 1), shop.tell_marks.si(100, 0)).apply_async()
    once = shop.tell_marks.delay(200, 0)
    primary.thaw()
    wait_for(lambda: primary.depth("celery") == 2, 30, "the frozen primary did not store what it was sent")
    paired_worker()

    wait_for(lambda: len(ledger.entries()) == 1 + 6 + 1, 30, lambda: f"ran: {ledger.entries()}")
    runs = Counter((number, task_id) for number, _, task_id in ledger.entries() if number != 1000)
    first, then = twice.parent.id, twice.id
    straight, detour = {(0, first): 2, (100, then): 1}, {(3, first): 2, (101, then): 1}
    assert runs == {**straight, **detour, (202, once.id): 1}
