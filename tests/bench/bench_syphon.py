"""How fast does the syphon drain a backlog, against RabbitMQ's own shovel, in one run?

    python -m tests.bench.bench_syphon [--messages N] [--rounds N] [--redis]

Two RabbitMQ nodes; or two Redis servers, which have nothing to compare with but another commit. The same messages,
600 bytes of body and the headers of a Celery task, move from the one to the other: by the syphon (from its ten backlog
queues), by a dynamic shovel with ``ack-mode: on-confirm`` (from one queue), and by a plain loop that consumes,
publishes, waits for the confirm and acknowledges, one message at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

from amqp.exceptions import ChannelError
from kombu import Connection, Queue

from kombu_paired import Syphon, pairing_of
from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.message import Diversion, Message, to_backlog
from kombu_paired.testing import LocalRabbitMQ, LocalRedis

TARGET = "orders"
BODY = json.dumps("x" * 598)


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


def seconds_until_there(primary: LocalRabbitMQ | LocalRedis, messages: int, start: Callable[[], Any]) -> float:
    """From the start of something until all messages are in the target queue."""
    with Connection(primary.url) as connection:
        channel = connection.default_channel
        Queue(TARGET, durable=True)(channel).declare()
        began = time.perf_counter()
        start()
        while waiting(channel) < messages:
            time.sleep(0.01)
        took = time.perf_counter() - began
        channel.queue_purge(TARGET)
    return took


def by_syphon(primary: LocalRabbitMQ | LocalRedis, secondary: LocalRabbitMQ | LocalRedis, messages: int) -> float:
    options = {"secondary": secondary.url, "enable_syphon": False}  # it is started below
    with Connection("paired+" + primary.url, transport_options=options) as connection:
        connection.connect()
        pairing = pairing_of(connection)
        fill(secondary.url, list(pairing.rotation.queues), messages)
        syphon = Syphon(pairing)
        took = seconds_until_there(primary, messages, syphon.start)
        syphon.stop()
        pairing.close()
    return took


def by_shovel(primary: LocalRabbitMQ, secondary: LocalRabbitMQ, messages: int) -> float:
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
    took = seconds_until_there(
        primary, messages, lambda: secondary.ctl("set_parameter", "shovel", "bench", json.dumps(definition))
    )
    secondary.ctl("clear_parameter", "shovel", "bench")
    return took


def by_loop(primary: LocalRabbitMQ, secondary: LocalRabbitMQ, messages: int) -> float:
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

    return seconds_until_there(primary, messages, loop)


def on_redis(messages: int, rounds: int) -> None:
    with LocalRedis() as primary, LocalRedis() as secondary:
        rates = [messages / by_syphon(primary, secondary, messages) for _ in range(rounds)]
    print(json.dumps({"syphon_per_s": round(statistics.median(rates)), "load": round(os.getloadavg()[0], 2)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--redis", action="store_true")
    options = parser.parse_args()
    if options.redis:
        on_redis(options.messages, options.rounds)
        return
    few = max(options.messages // 10, 1)
    rates: dict[str, list[float]] = {"syphon": [], "shovel": [], "loop": []}
    with LocalRabbitMQ() as primary, LocalRabbitMQ(plugins=["rabbitmq_shovel"]) as secondary:
        for _ in range(options.rounds):
            rates["syphon"].append(options.messages / by_syphon(primary, secondary, options.messages))
            rates["shovel"].append(options.messages / by_shovel(primary, secondary, options.messages))
            rates["loop"].append(few / by_loop(primary, secondary, few))
            print(json.dumps({name: round(each[-1]) for name, each in rates.items()}), flush=True)
    medians = {name: statistics.median(each) for name, each in rates.items()}
    result = {f"{name}_per_s": round(rate) for name, rate in medians.items()}
    result["syphon_of_shovel_percent"] = round(100 * medians["syphon"] / medians["shovel"])
    result["loop_of_shovel_percent"] = round(100 * medians["loop"] / medians["shovel"])
    print(json.dumps({**result, "load": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main()
