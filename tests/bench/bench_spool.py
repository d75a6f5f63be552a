"""What does a spool cost, beside a Redis as the secondary that syncs each write too, and beside an outbox?

    python -m tests.bench.bench_spool [divert|drain|healthy …] [--rounds N] [--seconds S] [--messages N]

What is compared is measured in short blocks, in turn, in one run.

* ``divert``: calls of ``delay()`` a second while the primary refuses connections, of one process and of eight together.
  With django-celery-outbox installed also what that stores in SQLite, in its best mode: WAL, each commit synced.
* ``drain``: how fast a syphon brings home to Redis and to RabbitMQ what lies in a spool, and in a Redis.
* ``healthy``: ``delay()`` while the primary works, with a spool and with a Redis as the secondary; what this process
  wrote to any disk meanwhile, and which files of the spool are not as they were.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kombu_paired import pairing_of
from kombu_paired.testing import HOST, LocalRedis, free_port, local_broker
from tests.bench.bench_delay import make_app, seconds_of
from tests.bench.bench_syphon import by_syphon

OUTBOX = "django_celery_outbox"
#: Bytes of a task's argument.
TEXT = "x" * 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["divert", "drain", "healthy"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="that a block of divert lasts")
    parser.add_argument("--messages", type=int, default=10_000, help="of each drain")
    options = parser.parse_args()
    for what in options.what:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            if what == "divert":
                for processes in (1, 8):
                    report(divert(Path(folder, str(processes)), processes, options.rounds, options.seconds))
            elif what == "drain":
                for kind in ("redis", "amqp"):
                    primary = stack.enter_context(local_broker(kind))
                    report({"what": f"drain to {kind}"} | drain(primary, folder, options.rounds, options.messages))
            else:
                report(healthy(Path(folder), options.rounds))


def report(found: Mapping[str, Any]) -> None:
    print(json.dumps({**found, "load": round(os.getloadavg()[0], 1)}), flush=True)


def quartiles(numbers: Sequence[float], digits: int = 0) -> list[float]:
    return [round(each, digits) for each in statistics.quantiles(numbers, n=4, method="inclusive")]


def in_turn(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure each side once a round; the one that begins is another one each time."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            found[name].append(sides[name]())
    return found


def compared(found: Mapping[str, Sequence[float]], digits: int = 0) -> dict[str, Any]:
    """Quartiles of each side, and of the ratios of a spool to the others, block by block."""
    ratios = {
        f"spool_to_{name}": quartiles([a / b for a, b in zip(found["spool"], figures, strict=True)], 2)
        for name, figures in found.items()
        if name != "spool"
    }
    return {name: quartiles(figures, digits) for name, figures in found.items()} | ratios


# -- divert ---------------------------------------------------------------------------------------------------------


def divert(folder: Path, processes: int, rounds: int, seconds: float) -> dict[str, Any]:
    folder.mkdir()
    nobody = f"redis://{HOST}:{free_port()}/0"
    with local_broker("redis") as redis, ExitStack() as stack:
        places = {"spool": f"spool://{folder}/spool", "redis": redis.url}
        if importlib.util.find_spec(OUTBOX):
            places[OUTBOX] = str(folder / "outbox.sqlite")
            migrate(places[OUTBOX])
        producers = {
            name: [stack.enter_context(producer(name, place, nobody)) for _ in range(processes)]
            for name, place in places.items()
        }
        for many in producers.values():
            assert [said(each) for each in many] == ["ready\n"] * processes
        sides = {name: lambda many=many: sum(rates_of(many, seconds)) for name, many in producers.items()}
        for side in sides.values():
            side()  # it has found out that the primary is away
        return {"what": "divert, a second", "processes": processes} | compared(in_turn(sides, rounds))


@contextmanager
def producer(name: str, place: str, primary: str) -> Iterator[subprocess.Popen[str]]:
    """A process that sends for so many seconds, whenever it is told how many, and says how many it sent a second."""
    program = "import sys; from tests.bench.bench_spool import produce; produce(*sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", program, name, place, primary],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def rates_of(producers: Sequence[subprocess.Popen[str]], seconds: float) -> list[float]:
    for each in producers:
        assert each.stdin is not None
        print(seconds, file=each.stdin, flush=True)
    return [float(said(each)) for each in producers]


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def produce(name: str, place: str, primary: str) -> None:
    """What a producer does."""
    delay = outbox_delay(place) if name == OUTBOX else paired_delay(place, primary)
    print("ready", flush=True)
    for line in sys.stdin:
        count, started = 0, time.perf_counter()
        while time.perf_counter() - started < float(line):
            delay()
            count += 1
        print(count / (time.perf_counter() - started), flush=True)


def paired_delay(secondary: str, primary: str) -> Callable[[], Any]:
    options = {"secondary": secondary, "primary_name": "bench", "failover_interval": 0}
    task = make_app("paired+" + primary, options)
    return lambda: task.delay(1, TEXT)


def outbox_delay(file: str) -> Callable[[], Any]:
    with_django(file)
    from django.db import transaction
    from django_celery_outbox import OutboxCelery

    app = OutboxCelery("bench", broker="memory://", set_as_current=False)

    @app.task(name="bench.nothing", shared=False)
    def nothing(number: int, text: str) -> None:
        """The task that is stored and never run."""

    def delay() -> None:
        with transaction.atomic():
            nothing.delay(1, TEXT)

    return delay


def with_django(file: str) -> None:
    import django
    from django.conf import settings

    best = {
        "timeout": 30,
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;",
    }
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "OPTIONS": best}
    settings.configure(DATABASES={"default": database}, INSTALLED_APPS=[OUTBOX], USE_TZ=True)
    django.setup()


def migrate(file: str) -> None:
    program = (
        "import sys; from tests.bench.bench_spool import with_django; with_django(sys.argv[1])\n"
        "from django.core.management import call_command; call_command('migrate', verbosity=0, skip_checks=True)"
    )
    subprocess.run([sys.executable, "-c", program, file], check=True)


# -- drain ----------------------------------------------------------------------------------------------------------


class Folder:
    """What a syphon's bench asks of a secondary."""

    def __init__(self, path: str) -> None:
        self.url = f"spool://{path}"


def drain(primary: Any, folder: str, rounds: int, messages: int) -> dict[str, Any]:
    with LocalRedis() as redis:
        places = {"spool": Folder(f"{folder}/spool"), "redis": redis}
        sides = {name: lambda place=place: by_syphon(primary, place, messages).all for name, place in places.items()}
        return {"messages": messages} | compared(in_turn(sides, rounds))


# -- healthy --------------------------------------------------------------------------------------------------------


def healthy(folder: Path, rounds: int, calls: int = 200) -> dict[str, Any]:
    spool = folder / "spool"
    with local_broker("redis") as primary, local_broker("redis") as secondary:
        tasks = {
            "spool": make_app("paired+" + primary.url, {"secondary": f"spool://{spool}", "primary_name": "a"}),
            "redis": make_app("paired+" + primary.url, {"secondary": secondary.url, "primary_name": "b"}),
        }
        for task in tasks.values():
            seconds_of(task, calls)
        time.sleep(2)  # what opening a pairing writes is written
        written, files = bytes_written(), look_of(spool)
        sides = {name: lambda task=task: 1e6 * seconds_of(task, calls) / calls for name, task in tasks.items()}
        found = in_turn(sides, rounds)
        changed = sorted(name for name, look in look_of(spool).items() if files.get(name) != look)
        disk = {"bytes_written": bytes_written() - written, "files_changed": changed}
        for task in tasks.values():
            with task.app.connection_for_write() as connection:
                pairing_of(connection).close()
    return {"what": "healthy, µs a call"} | compared(found) | disk


def bytes_written() -> int:
    """What this process has had written to any disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def look_of(folder: Path) -> dict[str, tuple[int, int]]:
    found = {each.name: each.stat() for each in folder.iterdir()}
    return {name: (each.st_size, each.st_mtime_ns) for name, each in found.items()}


if __name__ == "__main__":
    main()
