"""What do three hundred syphons cost a secondary, and how do they meet a primary that comes back?

    python -m tests.bench.bench_fleet [amqp|redis …] [--syphons N] [--processes N] [--messages N] [--seconds N]

Two local brokers of a kind. Syphons run in a few processes, each on a pairing of its own, as workers would. First they
are idle: connections to the secondary, memory of it and of a syphon, and what the secondary is asked (Redis: commands,
RabbitMQ: what its connections receive). Then the primary is killed, a backlog is stored, and the primary starts again:
messages that arrive there, second by second and in the most crowded tenth of one, and how long all of them take. The
same with one syphon stands beside it. Linux only: it counts in ``/proc``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kombu import Connection

from kombu_paired import pairing_of
from kombu_paired.testing import LocalBroker, LocalRedis, local_broker
from kombu_paired.testing.processes import descendants
from tests.bench.bench_priority import TARGET, fill

#: Seconds between two looks, and that a fleet may take to start, or a backlog to come home.
LOOK, PATIENCE = 0.1, 900.0
ESTABLISHED = "01"


def syphons(primary: str, secondary: str, count: int) -> None:
    """Run so many syphons until standard input ends."""
    connections = []
    for number in range(count):
        # Connections with the same settings would share one pairing.
        options = {"secondary": secondary, "enable_syphon": True, "syphon_poll": 900 + number}
        connection = Connection("paired+" + primary, transport_options=options)
        connection.connect()
        connections.append(connection)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)  # their goodbyes are not measured


@contextlib.contextmanager
def fleet(primary: str, secondary: str, count: int, processes: int) -> Iterator[list[int]]:
    """The processes' ids."""
    command = [sys.executable, "-m", "tests.bench.bench_fleet", "--run", primary, secondary]
    children = []
    for number in range(processes):
        share = (count + number) // processes
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        children.append(subprocess.Popen([*command, str(share)], **pipes))
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
        yield [child.pid for child in children]
    finally:
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
        for child in children:
            child.wait(60)


def connections_to(port: int) -> int:
    found = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            found += state == ESTABLISHED and int(local.rpartition(":")[2], 16) == port
    return found


def megabytes(pid: int) -> float:
    """Of a process with all of its children."""
    pages = 0
    for each in [pid, *descendants(pid)]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def asked(broker: Any) -> int:
    """How much the broker has been asked since it started, but for what asks here."""
    if isinstance(broker, LocalRedis):
        return int(broker.command("INFO", "stats")["total_commands_processed"]) - 1
    lines = broker.ctl("--quiet", "list_connections", "recv_cnt", timeout=120).split()
    return sum(int(line) for line in lines if line.isdigit())


def idle(secondary: Any, children: list[int], count: int, seconds: float) -> dict[str, Any]:
    """What the fleet costs when it has nothing to do."""
    deadline, connections = time.monotonic() + PATIENCE, -1
    while connections != (connections := connections_to(secondary.port)):
        assert time.monotonic() < deadline
        time.sleep(2)
    began, before = time.monotonic(), asked(secondary)
    time.sleep(seconds)
    return {
        "connections": connections,
        "asked_per_s": round((asked(secondary) - before) / (time.monotonic() - began), 1),
        "secondary_mb": round(megabytes(secondary.pid)),
        "mb_per_syphon": round(sum(map(megabytes, children)) / count, 1),
        "threads_per_syphon": round(sum(len(os.listdir(f"/proc/{each}/task")) for each in children) / count, 1),
    }


def come_back(primary: LocalBroker, secondary: LocalBroker, messages: int) -> dict[str, Any]:
    """A primary that was away comes back to a backlog."""
    with Connection(primary.url) as plain:
        plain.default_channel.queue_declare(TARGET, durable=True, auto_delete=False)
    primary.kill()
    with Connection("paired+" + primary.url, transport_options={"secondary": secondary.url}) as connection:
        connection.connect()
        fill(pairing_of(connection), messages)
        pairing_of(connection).close()
    primary.restart()
    arrived = [(time.monotonic(), 0)]
    with Connection(primary.url) as plain:
        channel = plain.default_channel
        while arrived[-1][1] < messages:
            assert time.monotonic() - arrived[0][0] < PATIENCE
            time.sleep(LOOK)
            there = int(channel.queue_declare(TARGET, durable=True, auto_delete=False).message_count)
            arrived.append((time.monotonic(), there))
        time.sleep(2)
        twice = int(channel.queue_declare(TARGET, durable=True, auto_delete=False).message_count) - messages
        channel.queue_purge(TARGET)
    return {"drain_s": round(arrived[-1][0] - arrived[0][0], 1), "twice": twice, **_rates(arrived)}


def _rates(arrived: list[tuple[float, int]]) -> dict[str, Any]:
    began = next(before for before, after in itertools.pairwise(arrived) if after[1])[0]
    by_second = [0] * 10
    most = 0.0
    for (before, had), (at, has) in itertools.pairwise(arrived):
        if began <= before < began + 10:
            by_second[int(before - began)] += has - had
            most = max(most, (has - had) / (at - before))
    return {"in_seconds": by_second, "most_per_s": round(most)}


def measure(kind: Any, count: int, processes: int, messages: int, seconds: float) -> dict[str, Any]:
    with local_broker(kind) as primary, local_broker(kind) as secondary:
        bare = megabytes(secondary.pid)
        with fleet(primary.url, secondary.url, count, processes) as children:
            found = idle(secondary, children, count, seconds)
            found.update(come_back(primary, secondary, messages))
    load = round(os.getloadavg()[0], 1)
    return {"broker": kind, "syphons": count, "secondary_mb_before": round(bare), **found, "load": load}


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        primary, secondary, count = sys.argv[2:]
        return syphons(primary, secondary, int(count))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["amqp", "redis"])
    parser.add_argument("--syphons", type=int, default=300)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10, help="for which they are idle")
    options = parser.parse_args()
    for kind in options.kinds:
        for count, processes in ((1, 1), (options.syphons, options.processes)):
            found = measure(kind, count, processes, options.messages, options.seconds)
            print(json.dumps(found), flush=True)
    return None


if __name__ == "__main__":
    main()
