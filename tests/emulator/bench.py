"""Messages per second of one SDK client and an emulator in a process of its own: ``python -m tests.emulator.bench``."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver, ServiceBusSender

from kombu_paired.emulator import Emulator

BODY = b"x" * 256


def rate(count: int, action: Callable[[], object]) -> int:
    started = time.perf_counter()
    action()
    return round(count / (time.perf_counter() - started))


def sending(sender: ServiceBusSender, count: int) -> dict[str, float]:
    times: list[float] = []

    def singly() -> None:
        for _ in range(count):
            started = time.perf_counter()
            sender.send_messages(ServiceBusMessage(BODY))
            times.append(time.perf_counter() - started)

    def in_lists() -> None:
        for _ in range(count // 100):
            sender.send_messages([ServiceBusMessage(BODY) for _ in range(100)])

    found: dict[str, float] = {"send": rate(count, singly), "batched send": rate(count, in_lists)}
    batch = sender.create_message_batch()
    for _ in range(500):
        batch.add_message(ServiceBusMessage(BODY))
    found["prebuilt batches"] = rate(5000, lambda: [sender.send_messages(batch) for _ in range(10)])
    return {**found, "send p50 ms": round(statistics.median(times) * 1000, 2)}


def receiving(receiver: ServiceBusReceiver, count: int, at_once: int) -> int:
    def receive() -> None:
        left = count
        while left > 0:
            for message in receiver.receive_messages(min(at_once, left), max_wait_time=5):
                receiver.complete_message(message)
                left -= 1

    return rate(count, receive)


def main(count: int = 2000) -> None:
    for kept in (False, True):
        with (
            tempfile.TemporaryDirectory() as folder,
            Emulator(["q"], process=True, data=folder if kept else None) as emulator,
            ServiceBusClient.from_connection_string(emulator.connection_string) as client,
        ):
            with client.get_queue_sender("q") as sender:
                found = sending(sender, count)
            with client.get_queue_receiver("q") as receiver:
                found["receive(1)+complete"] = receiving(receiver, count, 1)
                found["receive(100)+complete"] = receiving(receiver, count, 100)
            print(json.dumps({"data": kept, **found}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
