"""The Celery application of the demo: ``celery -A kombu_paired.demo.app worker``, and of its producer.

An ordinary application, configured by one environment variable. Besides, each process notes the events that happen in
it, for the live view; and each task writes its number into the ledger, which alone decides the balance.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready

import kombu_paired
from kombu_paired import events
from kombu_paired.events import Event, EventKind

__all__ = ("ENVIRONMENT", "EVENTS", "LEDGER", "PUBLISHED", "Settings", "append", "make_app")

#: Where the settings are, as JSON.
ENVIRONMENT = "KOMBU_PAIRED_DEMO"

#: Files in the demo's folder, one line per fact.
LEDGER, PUBLISHED, EVENTS = "ledger", "published", "events"

_TOLD = (
    EventKind.SUSPECT,
    EventKind.FAILED_OVER,
    EventKind.RESTORED,
    EventKind.DIVERTED,
    EventKind.BACKLOG_UNAVAILABLE,
    EventKind.SYPHONED,
    EventKind.DEAD_LETTERED,
    EventKind.STANDING_IN,
    EventKind.HANDED_OUT,
    EventKind.CAME_HOME,
)


@dataclass(frozen=True)
class Settings:
    """What a process of the demo has to know.

    Attributes:
        folder: where all files are.
        broker_url, transport_options: as an application gives them to Celery.
        messages: how many to publish.
        seconds: over how long.
    """

    folder: str
    broker_url: str
    transport_options: dict[str, Any] = field(default_factory=dict)
    messages: int = 0
    seconds: float = 0.0

    def as_environment(self) -> dict[str, str]:
        return {ENVIRONMENT: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Settings:
        return cls(**json.loads(os.environ[ENVIRONMENT]))


def append(path: Path, line: str) -> None:
    """Add a line in one write, so that processes do not mix and a killed one leaves a whole line or none."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def make_app(settings: Settings) -> Celery:
    """The application; its task is ``app.tasks["demo.record"]``."""
    app = Celery("demo", broker=settings.broker_url, set_as_current=False)
    app.conf.update(
        broker_transport_options=settings.transport_options,
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
    )
    kombu_paired.setup(app)
    folder = Path(settings.folder)

    @app.task(name="demo.record")  # type: ignore[untyped-decorator]
    def record(number: int) -> None:
        """Write the number into the ledger."""
        append(folder / LEDGER, f"{number} {time.time():.6f}")

    def tell(event: Event) -> None:
        facts = {"kind": event.kind.value, "time": event.time, "id": event.message_id, "failure": event.failure}
        append(folder / EVENTS, json.dumps(facts))

    def tell_ready(**kwargs: Any) -> None:
        append(folder / EVENTS, json.dumps({"kind": "worker_ready", "time": time.time()}))

    events.everywhere.listen(tell, _TOLD)
    worker_ready.connect(tell_ready, weak=False)
    return app


def __getattr__(name: str) -> Any:
    """``app``, made when ``celery -A`` asks for it: the producer, which imports this too, makes its own."""
    if name == "app":
        globals()["app"] = make_app(Settings.from_environment())
        return globals()["app"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
