"""Two brokers, workers that may stand in, and applications that send: what a row is played on."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from kombu_paired.stand_in import STAND_IN_ROUTE, stand_in_register
from kombu_paired.testing import Kind, LocalRedis
from kombu_paired.transport import pairing_of
from tests.bench.standing_in.figures import Duplicates, Finding, Harm, Sent, duplicates, lost
from tests.support.brokers import BrokerNode, new_node
from tests.support.ledger import Ledger
from tests.support.nodes import LocalTestWorker
from tests.support.shop import make_app, shop_environment

STANDS_IN = "this worker stands in"
IS_BACK = "the primary is back, and this worker"
LOST = re.compile(r"^\[([-\d]+ [:\d]+),.*consumer: Connection to broker lost", re.MULTILINE)
#: The primary's name, and seconds without it after which a worker stands in.
NAME, STAND_IN_AFTER = "shop", 1
#: Threads that call: one alone would wait for each answer.
CALLERS = 4
#: Seconds after which a Redis gives back what a worker did not acknowledge.
HELD = 20
#: Seconds that anything may take that only guards against hanging.
PATIENCE = 120.0
#: Seconds for all queues to be empty.
EMPTIED = 100.0
#: Seconds in which nothing more may come of what was sent.
QUIET = 3.0


class Stage:
    """A pair of brokers that are up and empty.

    Arguments:
        pair: the kinds of primary and secondary.
        folder: for all that is written.
        options: further settings of the pairing.

    Attributes:
        sent: tasks that were sent, by their ids.
        raised: what calls raised.
        longest_call: seconds that one took.
        harms: what was hit.
    """

    def __init__(self, pair: tuple[Kind, Kind], folder: Path, options: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.primary, self.secondary = (
            new_node(kind, folder / side) for kind, side in zip(pair, ("primary", "secondary"), strict=True)
        )
        self.ledger = Ledger(folder / "ledger")
        self.sent: dict[str, Sent] = {}
        self.raised: list[Exception] = []
        self.longest_call = 0.0
        self.harms: list[Harm] = []
        self.workers: list[LocalTestWorker] = []
        self._may_keep_events: set[BrokerNode] = set()
        self._apps: list[Celery] = []
        self._more = options or {}
        self._ids = itertools.count(1)

    def __enter__(self) -> Stage:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(_start, (self.primary, self.secondary)))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.teardown()
        for app in self._apps:
            with app.connection_for_write() as connection:
                pairing_of(connection).close()
            app.close()
        for node in (self.primary, self.secondary):
            node.teardown()

    @property
    def options(self) -> dict[str, Any]:
        return {
            "secondary": self.secondary.url,
            "primary_name": NAME,
            "backlog_queue_count": 4,
            "send_timeout": 2,
            "failover_interval": 1,
            "ping_interval": 1,
            "syphon_poll": 5,
            "stand_in_after": STAND_IN_AFTER,
            "journal": str(self.folder / "journal"),
            "primary_options": _gives_back_soon(self.primary),
            "secondary_options": _gives_back_soon(self.secondary),
            **self._more,
        }

    # -- who takes part -----------------------------------------------------------------------------------------

    def shop(self, url: str | None = None) -> Celery:
        """An application in this process."""
        environment = shop_environment(
            f"paired+{url or self.primary.url}", self.options, ledger=self.ledger, setup=False
        )
        app = make_app(environment)
        self._apps.append(app)
        return app

    def worker(
        self, url: str | None = None, conf: dict[str, Any] | None = None, *, wait: bool = True, **arguments: Any
    ) -> LocalTestWorker:
        """One that may stand in."""
        url = f"paired+{url or self.primary.url}"
        return self._started(shop_environment(url, self.options, ledger=self.ledger, conf=conf), wait, arguments)

    def stranger(self, ledger: Ledger, **arguments: Any) -> tuple[Celery, LocalTestWorker]:
        """Another application, whose broker is our secondary, and its worker."""
        conf = dict(self.secondary.plain_conf)
        environment = shop_environment(self.secondary.url, ledger=ledger, setup=False, conf=conf)
        return make_app(environment), self._started(environment, True, arguments)

    def _started(self, environment: dict[str, str], wait: bool, arguments: dict[str, Any]) -> LocalTestWorker:
        worker = LocalTestWorker(self.folder, env=environment, **{"concurrency": 4, **arguments})
        self.workers.append(worker)
        if wait:
            worker.ready(PATIENCE)
        return worker

    # -- what happens -------------------------------------------------------------------------------------------

    def send(self, task: Any, number: int, *args: Any, runs: int = 1, **how: Any) -> None:
        """Call a task that writes a number; what is raised is kept, and the task is not counted as sent."""
        at, task_id = time.time(), f"task-{next(self._ids)}"
        try:
            task.apply_async((number, *args), task_id=task_id, **how)
        except Exception as exc:
            self.raised.append(exc)
        else:
            self.sent[task_id] = Sent(number, at, runs)
        self.longest_call = max(self.longest_call, time.time() - at)

    @contextmanager
    def traffic(self, task: Any, rate: float, numbers: Iterator[int], *args: Any, **how: Any) -> Iterator[None]:
        """Call it so many times a second meanwhile, as regularly as it lets us, from a few threads."""
        stop = threading.Event()

        def call(first: int) -> None:
            for count in itertools.count(first, CALLERS):
                if stop.wait(max(began + count / rate - time.monotonic(), 0.0)):
                    return
                self.send(task, next(numbers), *args, **how)

        began = time.monotonic()
        threads = [threading.Thread(target=call, args=(first,)) for first in range(CALLERS)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            stop.set()
            for each in threads:
                each.join()

    def hit(self, node: BrokerNode, harm: str = "kill") -> float:
        """Kill or freeze a broker; when it was done."""
        getattr(node, harm)()
        self._may_keep_events.add(node)
        return self.harmed("primary" if node is self.primary else "secondary")

    def harmed(self, side: str) -> float:
        """Workers have just lost what they held of that side; when that was."""
        self.harms.append(Harm(time.time(), side))
        return self.harms[-1].at

    def kill(self, worker: LocalTestWorker) -> None:
        """Kill one that stands in."""
        self._may_keep_events.add(self.secondary)
        worker.kill()
        self.harmed("secondary")

    def mend(self, node: BrokerNode) -> float:
        """Let it run again; when it was done."""
        node.revive()
        return time.time()

    def wait_for(self, condition: Callable[[], Any], timeout: float = PATIENCE) -> bool:
        """Wait for it; whether it came true in time."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    # -- what came of it ----------------------------------------------------------------------------------------

    def has_run(self, *numbers: int) -> bool:
        ran = self.ledger.counts()
        return all(number in ran for number in numbers)

    def missing(self) -> list[int]:
        return lost(self.sent, self.ledger.entries())

    def left(self, *sides: str) -> dict[str, int]:
        """What is in any queue of either side, or of those named, but for the names of the stand-in queues.

        Where a connection was lost, Kombu's Redis keeps the queue with which its worker heard of events.
        """
        return {
            f"{side}:{queue}": size
            for side, node in (("primary", self.primary), ("secondary", self.secondary))
            if not sides or side in sides
            for queue, size in node.depths().items()
            if size and queue != stand_in_register(NAME)
            if not (node.kind == "redis" and node in self._may_keep_events and "celeryev." in queue)
        }

    def _duplicates(self) -> Duplicates:
        """The runs that are too many, by the ledger, and what the journals of all processes say of them."""
        marks: set[str] = set()
        sides: dict[str, list[str]] = defaultdict(list)
        for line in sorted(self._journal(), key=lambda line: line["time"]):
            if line.get("maybe_duplicate") and "message_id" in line:
                marks.add(line["message_id"])
            if line["event"] == "consumed":
                sides[line["message_id"]].append("primary" if line.get("route") != STAND_IN_ROUTE else "secondary")
        return duplicates(self.sent, self.ledger.entries(), sides, marks, [*self.harms, *self._losses()])

    def _journal(self) -> Iterator[dict[str, Any]]:
        for file in (self.folder / "journal").iterdir():
            content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            yield from (json.loads(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n"))

    def _losses(self) -> list[Harm]:
        """When workers lost the primary, by their logs: on a busy machine one loses it that nobody has hit."""
        stamps = {found[1] for each in self.workers for found in LOST.finditer(each.logs())}
        times = [time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M:%S")) for stamp in stamps]
        return [Harm(at + 0.5, "primary") for at in times]

    def settle(self, finding: Finding, workers: Sequence[LocalTestWorker], timeout: float = PATIENCE) -> None:
        """Wait until all has run and nothing is left, and note what has not, and what is; the workers are stopped."""
        self.wait_for(lambda: not self.missing(), timeout)
        self.wait_for(lambda: not self.left(), EMPTIED)
        self.ledger.wait_until_quiet(QUIET, 30)
        alive = [each.alive() for each in workers]
        for each in workers:
            each.stop(60)
        is_missing, left = self.missing(), self.left()
        twice = self._duplicates()
        finding.figures |= {
            "sent": len(self.sent),
            "raised": len(self.raised),
            "lost": len(is_missing),
            "left": sum(left.values()),
            "marked": twice.marked,
            "held": twice.held,
            "unmarked": len(twice.unexplained),
        }
        finding.require(not is_missing, f"lost {is_missing[:20]}")
        finding.require(not left, f"left {left}")
        finding.require(not twice.unexplained, f"ran twice without a mark: {sorted(twice.unexplained)[:20]}")
        finding.require(all(alive), "a worker ended")


def _gives_back_soon(node: BrokerNode) -> dict[str, Any]:
    return {"visibility_timeout": HELD} if node.kind == "redis" else {}


def _start(node: BrokerNode) -> None:
    node.broker.start()
    node.broker.wait_ready()
    if isinstance(node.broker, LocalRedis):  # the disk is not what is measured; a kill loses nothing that was written
        node.broker.command("CONFIG", "SET", "appendfsync", "everysec")


def load() -> float:
    return round(os.getloadavg()[0], 1)
