"""How fast does the syphon drain a backlog, against RabbitMQ's own shovel, in one run?

    python -m tests.bench.bench_syphon [--messages N] [--rounds N] [--pair PRIMARY+SECONDARY]

The same messages, 600 bytes of body and the headers of a Celery task, move from the secondary to the primary: by the
syphon (from its ten backlog queues), and, where both are RabbitMQ, by a dynamic shovel with ``ack-mode: on-confirm``
(from one queue), and by a plain loop that consumes, publishes, waits for the confirm and acknowledges, one message at a
time. Other pairs (``redis+redis``, ``amqp+redis``, ``redis+amqp``) have nothing to compare with but another commit.

The syphon begins slowly for the sake of a primary that has just come back, so that its rate over all messages depends
on their number; the rate of the second half, of whoever moves them, is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from amqp.exceptions import ChannelError
from kombu import Connection, Queue

from kombu_paired import Syphon, pairing_of
from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.message import Diversion, Message, to_backlog
from kombu_paired.testing import LocalBroker, LocalRabbitMQ, LocalRedis

BROKERS: dict[str, type[LocalRabbitMQ | LocalRedis]] = {"amqp": LocalRabbitMQ, "redis": LocalRedis}

TARGET = "orders"
BODY = json.dumps("x" * 598)


class Rates(NamedTuple):
    """Messages a second."""

    all: float
    second_half: float


def a_message() -> Message:
    task_id = str(uuid.uuid4())
    headers = {"lang": "py", "task": "shop.order", "id": task_id, "root_id": task_id, "retries": 0, "origin": "bench"}
    properties = {"delivery_mode": 2, "correlation_id": task_id, "message_id": task_id}
    return Message(BODY, "", TARGET, 0, "application/json", "utf-8", headers=headers, properties=properties)


def fill(url: str, queues: list[str], messages: int) -> None:
    sender = KombuNamespace("secondary", [url], {}, send_timeout=60).sender()
    why = Diversion(time.time(), time.time(), "bench/1", "unreachable: bench")
    for start in range(0, messages, 1000):
        batch = [
            to_backlog(a_message(), queues[number % len(queues)], why)
            for number in range(start, min(start + 1000, messages))
        ]
        assert not any(sender.send_batch(batch, 60))
    sender.close()


def waiting(channel: Any) -> int:
    try:
        return int(channel.queue_declare(TARGET, passive=True).message_count)
    except ChannelError:  # an empty list is none, on Redis
        return 0


def rates_until_there(primary: LocalBroker, messages: int, start: Callable[[], Any]) -> Rates:
    """From the start of something until all messages are in the target queue."""
    with Connection(primary.url) as connection:
        channel = connection.default_channel
        Queue(TARGET, durable=True)(channel).declare()
        began = time.perf_counter()
        start()
        there, half, half_time = 0, 0, began
        while there < messages:
            time.sleep(0.01)
            there = waiting(channel)
            if not half and there >= messages / 2:
                half, half_time = there, time.perf_counter()
        ended = time.perf_counter()
        channel.queue_purge(TARGET)
    return Rates(messages / (ended - began), (messages - half) / (ended - half_time))


def by_syphon(primary: LocalBroker, secondary: LocalBroker, messages: int) -> Rates:
    options = {"secondary": secondary.url, "enable_syphon": False}  # it is started below
    with Connection("paired+" + primary.url, transport_options=options) as connection:
        connection.connect()
        pairing = pairing_of(connection)
        fill(secondary.url, list(pairing.rotation.queues), messages)
        syphon = Syphon(pairing)
        rates = rates_until_there(primary, messages, syphon.start)
        syphon.stop()
        pairing.close()
    return rates


def by_shovel(primary: LocalRabbitMQ, secondary: LocalRabbitMQ, messages: int) -> Rates:
    with Connection(secondary.url) as connection:
        Queue("to-shovel", durable=True)(connection.default_channel).declare()
    fill(secondary.url, ["to-shovel"], messages)
    definition = {
        "src-protocol": "amqp091",
        "src-uri": secondary.url.rstrip("/") + "/%2f",
        "src-queue": "to-shovel",
        "src-prefetch-count": 1000,
        "dest-protocol": "amqp091",
        "dest-uri": primary.url.rstrip("/") + "/%2f",
        "dest-queue": TARGET,
        "ack-mode": "on-confirm",
    }
    rates = rates_until_there(
        primary, messages, lambda: secondary.ctl("set_parameter", "shovel", "bench", json.dumps(definition))
    )
    secondary.ctl("clear_parameter", "shovel", "bench")
    return rates


def by_loop(primary: LocalRabbitMQ, secondary: LocalRabbitMQ, messages: int) -> Rates:
    with Connection(secondary.url) as connection:
        Queue("to-loop", durable=True)(connection.default_channel).declare()
    fill(secondary.url, ["to-loop"], messages)

    def loop() -> None:
        with (
            Connection(secondary.url) as source,
            Connection(primary.url, transport_options={"confirm_publish": True}) as target,
        ):
            producer = target.Producer()

            def move(body: Any, message: Any) -> None:
                producer.publish(
                    message.body,
                    routing_key=TARGET,
                    headers=message.headers,
                    content_type=message.content_type,
                    content_encoding=message.content_encoding,
                )
                message.ack()

            with source.Consumer([Queue("to-loop", durable=True)], callbacks=[move], accept=None, prefetch_count=1000):
                for _ in range(messages):
                    source.drain_events(timeout=30)

    return rates_until_there(primary, messages, threading.Thread(target=loop).start)


def beside_the_shovel(messages: int, rounds: int) -> dict[str, list[Rates]]:
    rates: dict[str, list[Rates]] = {"syphon": [], "shovel": [], "loop": []}
    with LocalRabbitMQ() as primary, LocalRabbitMQ(plugins=["rabbitmq_shovel"]) as secondary:
        for _ in range(rounds):
            rates["syphon"].append(by_syphon(primary, secondary, messages))
            rates["shovel"].append(by_shovel(primary, secondary, messages))
            rates["loop"].append(by_loop(primary, secondary, max(messages // 10, 1)))
    return rates


def alone(primary_kind: str, secondary_kind: str, messages: int, rounds: int) -> dict[str, list[Rates]]:
    with BROKERS[primary_kind]() as primary, BROKERS[secondary_kind]() as secondary:
        return {"syphon": [by_syphon(primary, secondary, messages) for _ in range(rounds)]}


def medians(rates: dict[str, list[Rates]]) -> dict[str, Rates]:
    return {name: Rates(*map(statistics.median, zip(*each, strict=True))) for name, each in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    pairs = [f"{primary}+{secondary}" for primary in BROKERS for secondary in BROKERS]
    parser.add_argument("--pair", choices=pairs, default="amqp+amqp")
    options = parser.parse_args()
    if options.pair == "amqp+amqp":
        rates = beside_the_shovel(options.messages, options.rounds)
    else:
        primary, secondary = options.pair.split("+")
        rates = alone(primary, secondary, options.messages, options.rounds)
    found = medians(rates)
    result: dict[str, Any] = {"pair": options.pair}
    for name, each in found.items():
        quartiles = statistics.quantiles([rate.all for rate in rates[name]], n=4) if options.rounds > 1 else []
        result[name] = {
            "per_s": round(each.all),
            "quartiles": [round(quartile) for quartile in quartiles[::2]],
            "second_half_per_s": round(each.second_half),
            "of_shovel_percent": round(100 * each.all / found["shovel"].all) if "shovel" in found else None,
        }
    print(json.dumps({**result, "load": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main()
