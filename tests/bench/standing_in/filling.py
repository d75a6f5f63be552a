"""A large backlog in seconds: tasks as an application would have diverted them, sent to the secondary in batches."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from kombu_paired.brokers.roles import Sender
from kombu_paired.declarations import Declaration
from kombu_paired.message import Diversion, Message, to_backlog
from kombu_paired.pairing import Pairing
from tests.bench.standing_in.figures import Sent

#: Messages of one batch, and seconds that it may take.
BATCH, PATIENCE = 1000, 120.0


def fill(pairing: Pairing, queue: str, numbers: Iterable[int]) -> dict[str, Sent]:
    """Put tasks that write these numbers into the backlog, as if they had been sent to this queue; by their ids."""
    now, sent = time.time(), {}
    declared = {"queue": queue, "durable": True, "exclusive": False, "auto_delete": False, "arguments": {}}
    why = Diversion(now, now, "bench/1", "unreachable: bench", declarations=(Declaration("queue_declare", declared),))
    names, sender = pairing.backlog_queue_names, pairing.secondary.sender()
    batch: list[Message] = []
    for number in numbers:
        task_id = f"filled-{number}"
        sent[task_id] = Sent(number, now)
        batch.append(to_backlog(_task(number, task_id, queue), names[number % len(names)], why))
        if len(batch) == BATCH:
            _send(sender, batch)
            batch.clear()
    _send(sender, batch)
    sender.close()
    return sent


def _task(number: int, task_id: str, queue: str) -> Message:
    embedded = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    headers = {"lang": "py", "task": "shop.record", "id": task_id, "root_id": task_id, "parent_id": None, "retries": 0}
    headers |= {"eta": None, "expires": None, "group": None, "timelimit": [None, None], "ignore_result": True}
    properties = {"delivery_mode": 2, "correlation_id": task_id, "message_id": task_id}
    body = json.dumps([[number], {}, embedded])
    return Message(body, "", queue, 0, "application/json", "utf-8", headers=headers, properties=properties)


def _send(sender: Sender, batch: list[Message]) -> None:
    failures = [each for each in sender.send_batch(batch, PATIENCE) if each is not None] if batch else []
    if failures:
        raise failures[0]
