"""Where a Celery worker's own code runs, without a worker."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from celery.worker.worker import WorkController

for each in ("heartbeat", "pidbox"):  # a real worker has imported them
    import_module(f"celery.worker.{each}")


class _Blueprint:
    """In the place of a worker's own: does one thing when the worker starts."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action
        self.answer: Any = None

    def start(self, parent: Any) -> None:
        self.answer = self.action()


def in_worker(action: Callable[[], Any], kind: type[WorkController] = WorkController) -> Any:
    """What an action answers that is done where a worker's consumer runs."""
    worker = object.__new__(kind)
    worker.blueprint = _Blueprint(action)
    worker.ready_callback = lambda **kwargs: None
    WorkController.start(worker)
    return worker.blueprint.answer
