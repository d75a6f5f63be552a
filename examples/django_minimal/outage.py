#!/usr/bin/env python
"""An outage of this project, from beginning to end: ``python outage.py``.

Starts two Redis servers, the web process, a worker and beat in a temporary folder; kills the primary; places orders
over HTTP meanwhile; starts the primary again, and sees that every order was processed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from kombu_paired.testing import HOST, LocalRedis, free_port, spawn, stop_tree

HERE = Path(__file__).resolve().parent
#: Seconds within which whatever has to happen happens, also on a machine with too much to do.
PATIENCE = 180.0


class Shop:
    """The processes of the project. Leaving the ``with`` block ends them all, and removes their folder."""

    def __init__(self) -> None:
        with ExitStack() as exits:
            self.folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="outage-")))
            self.primary = exits.enter_context(LocalRedis(self.folder / "primary"))
            self.secondary = exits.enter_context(LocalRedis(self.folder / "secondary"))
            self.address = f"http://{HOST}:{free_port()}"
            self.env = os.environ | {
                "PRIMARY_URL": self.primary.url,
                "SECONDARY_URL": self.secondary.url,
                "DATABASE_FILE": str(self.folder / "db.sqlite3"),
                "SEND_TIMEOUT": "30",  # a dead broker is found out at once; the living one may have a busy machine
            }
            self._exits = exits.pop_all()

    def __enter__(self) -> "Shop":
        self.manage("migrate", "--verbosity", "0")
        self.start("web", "manage.py", "runserver", "--noreload", self.address.removeprefix("http://"))
        self.start("worker", "-m", "celery", "-A", "proj", "worker", "--concurrency", "1")
        schedule = str(self.folder / "schedule")
        self.start("beat", "-m", "celery", "-A", "proj", "beat", "--loglevel", "INFO", "--schedule", schedule)
        return self

    def __exit__(self, *error: object) -> None:
        self._exits.close()

    def start(self, name: str, *command: str) -> None:
        log = self.folder / f"{name}.log"
        process = spawn([sys.executable, *command], env=self.env, log=log, cwd=HERE)
        self._exits.callback(stop_tree, process)

    def manage(self, *command: str) -> str:
        """What ``manage.py`` prints. ``paired_status`` exits with 1 where something is to be seen."""
        call = [sys.executable, "manage.py", *command]
        done = subprocess.run(call, env=self.env, cwd=HERE, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
        return done.stdout

    def get(self, path: str) -> dict:
        with urlopen(self.address + path, timeout=PATIENCE) as answer:
            return json.load(answer)

    def order(self, card: str = "good") -> int:
        """The status of the answer."""
        try:
            with urlopen(f"{self.address}/orders/", f"article=socks&card={card}".encode(), timeout=PATIENCE) as answer:
                return answer.status
        except HTTPError as refusal:
            return refusal.code

    def sent_by_beat(self) -> int:
        return (self.folder / "beat.log").read_text().count("Sending due task stocktaking")

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not answers(condition):
            if time.monotonic() > deadline:
                words = "\n".join(f"-- {log.name}\n{log.read_text()[-2000:]}" for log in self.folder.glob("*.log"))
                sys.exit(f"{words}\nafter {PATIENCE:g} s still waiting for: {what}")
            time.sleep(0.2)


def answers(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except OSError:  # the process is not there yet
        return False


def tell(text: str) -> None:
    print(f"\n== {text}\n", flush=True)


def place(shop: Shop, count: int) -> None:
    """Place orders, and say what each got. Every fifth customer's card is refused, and nothing may be sent for it."""
    slowest, statuses = 0.0, []
    for number in range(count):
        began = time.monotonic()
        statuses.append(shop.order("refused" if number % 5 == 4 else "good"))
        slowest = max(slowest, time.monotonic() - began)
    accepted, refused = statuses.count(201), statuses.count(402)
    print(f"orders accepted: {accepted}, cards refused: {refused}, slowest answer: {slowest:.2f} s")
    if accepted + refused != count:
        sys.exit(f"a request failed: {statuses}")


def main() -> None:
    with Shop() as shop:
        tell("two Redis servers, the web process, a worker and beat start")
        shop.wait_for("the web process", lambda: shop.get("/health/")["ok"])
        place(shop, 5)
        shop.wait_for("the first orders", lambda: not shop.get("/orders/summary/")["not_done"])
        tell("the primary is killed")
        shop.primary.kill()
        sent_before = shop.sent_by_beat()
        place(shop, 25)
        shop.wait_for("beat", lambda: shop.sent_by_beat() > sent_before)
        tell("manage.py paired_status")
        print(shop.manage("paired_status"))
        print("GET /health/", json.dumps(shop.get("/health/")))
        tell("the primary is started again")
        shop.primary.restart()
        place(shop, 5)
        shop.wait_for("every order", lambda: not shop.get("/orders/summary/")["not_done"])
        sent = shop.sent_by_beat()
        shop.wait_for("what beat sent", lambda: shop.get("/orders/summary/")["stocktakings"] >= sent)
        tell("manage.py paired_status")
        print(shop.manage("paired_status"))
        found = shop.get("/orders/summary/")
        tell(json.dumps(found))
        print(f"All {found['orders']} orders were processed, and so was all that beat sent.")


if __name__ == "__main__":
    main()
