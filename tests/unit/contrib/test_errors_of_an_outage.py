"""What an error tracker makes of an outage: an event for each entity that is failed over, and none for messages."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest
from celery.worker.consumer import consumer

from kombu_paired.contrib import once
from kombu_paired.contrib.once import OncePerOutage
from kombu_paired.testing import ManualClock
from tests.support.nodes import ROOT

#: Sentry changes the whole process, so it has one of its own. It prints the texts of its events.
AN_OUTAGE = """
import json
import sentry_sdk
from sentry_sdk.transport import Transport

events = []

class Collect(Transport):
    def capture_envelope(self, envelope):
        events.extend(item.payload.json for item in envelope.items if item.headers.get("type") == "event")

sentry_sdk.init(dsn="https://key@example.invalid/1", transport=Collect)

import logging
from celery import Celery
from celery.worker.consumer import consumer
import kombu_paired
from kombu_paired import BacklogUnavailable
from kombu_paired.testing import ScriptedBroker

logging.getLogger().setLevel(logging.INFO)
primary, secondary = ScriptedBroker("primary"), ScriptedBroker("secondary")
app = Celery("shop", broker=f"paired+{primary.uri}")
app.conf.update(
    broker_transport_options=secondary.as_secondary(failover_interval=0, ping_interval=1800),
    task_ignore_result=True,
    task_publish_retry=False,
)
kombu_paired.setup(app)

@app.task
def work():
    pass

def publish(times, *queues):
    for queue in queues:
        for _ in range(times):
            work.apply_async(queue=queue)

publish(1, "orders", "news")
primary.go_away()
publish(5, "orders", "news")
assert sum(len(each) for each in secondary.queues.values()) == 10
for _ in range(3):
    consumer.error(consumer.CONNECTION_ERROR, "paired+redis://main/0", "refused", "Trying again")
secondary.go_away()
try:
    work.apply_async(queue="orders")
except BacklogUnavailable:
    pass
else:
    raise AssertionError
primary.come_back()
secondary.come_back()
with app.connection_for_write() as connection:
    pairing = kombu_paired.pairing_of(connection)
    pairing.primary_was_reached()
    for entity in pairing.circuits.failed_over():
        pairing.mark_healthy(entity)
    publish(1, "orders", "news")
    primary.go_away()
    publish(2, "orders")
print(json.dumps([each["logentry"]["formatted"] for each in events]))
"""


def test_each_entity_that_is_failed_over_is_one_event_and_a_diverted_message_is_none() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", AN_OUTAGE], env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr[-2000:]
    told = [text.partition(": ")[2].partition(" to ")[0] for text in json.loads(run.stdout.splitlines()[-1])]
    assert told == [
        "orders is failed over",
        "news is failed over",
        "Cannot connect",  # a worker, that it cannot consume: once, too
        "orders is failed over",  # in another outage
    ]


@pytest.fixture
def said() -> Any:
    """What a worker says that it cannot connect, by level; and the clock."""
    clock = ManualClock()
    made = OncePerOutage(clock)

    def say(url: str = "paired+redis://main/0", text: str = consumer.CONNECTION_ERROR) -> str:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, text, (url, "refused", "Trying again"), None)
        assert made.filter(record)
        return record.levelname

    return say, clock


def test_the_first_time_of_an_outage_is_an_error_and_the_others_are_warnings(said: Any) -> None:
    say, clock = said
    levels = []
    for _ in range(4):
        levels.append(say())
        clock.now += 91
    assert levels == ["ERROR", "WARNING", "WARNING", "WARNING"]
    clock.now += once.QUIET
    assert say() == "ERROR"


def test_other_brokers_and_other_lines_are_left_alone(said: Any) -> None:
    say, _ = said
    assert [say("redis://main/0") for _ in range(2)] == ["ERROR", "ERROR"]
    assert [say(text="%s %s %s") for _ in range(2)] == ["ERROR", "ERROR"]


def test_the_line_is_still_the_one_of_celery_and_so_is_its_logger() -> None:
    assert consumer.CONNECTION_ERROR.startswith(once.CANNOT_CONNECT)
    assert consumer.logger.name == once.LOGGER
