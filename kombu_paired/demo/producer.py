"""The producer of the demo: publishes numbers at an even pace, and notes what became of each call."""

from __future__ import annotations

import json
import time
from pathlib import Path

from kombu_paired.demo.app import PUBLISHED, Settings, append, make_app

__all__ = ("main", "task_id")


def task_id(number: int) -> str:
    """A task's id says its number, so that events about it can be told apart."""
    return f"demo-{number}"


def main() -> None:
    """Publish, as any application would: one call after the other, with Celery's own retry policy."""
    settings = Settings.from_environment()
    app = make_app(settings)
    record = app.tasks["demo.record"]
    began = time.monotonic()
    for number in range(settings.messages):
        due = began + settings.seconds * number / settings.messages
        time.sleep(max(due - time.monotonic(), 0))
        publish(record, number, Path(settings.folder) / PUBLISHED)


def publish(record: object, number: int, notes: Path) -> None:
    """Publish one number, and note from when to when it took (seconds since 1970, UTC) and what it raised."""
    error = None
    started, began = time.time(), time.monotonic()
    try:
        record.apply_async((number,), task_id=task_id(number))  # type: ignore[attr-defined]
    except Exception as exc:
        error = f"{type(exc).__name__}: {exc}"
    took = time.monotonic() - began
    append(notes, json.dumps({"number": number, "started": started, "took": took, "error": error}))


if __name__ == "__main__":
    main()
