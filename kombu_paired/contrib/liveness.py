"""A file that is touched as long as a worker is alive, for a probe that looks at its age.

::

    liveness.setup(app, "/tmp/%n.alive")

A worker whose primary is away is alive: it waits for it, and to start it anew would help nobody. It is not when its
consumer's loop stands still, or when a thread of its syphon is gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery, bootsteps
from celery.utils.nodenames import node_format

from kombu_paired.contrib.celery import SyphonStep
from kombu_paired.stopping import seconds_since_wait

__all__ = ("LivenessStep", "Vitals", "setup")

logger = logging.getLogger(__name__)

#: Seconds between two beats of the consumer's loop, and between two looks at them.
BEAT, LOOK = 1.0, 5.0
#: Seconds without a beat, and without a wait for the primary, after which the consumer counts as dead. Celery itself
#: waits for half a minute at most, between two rounds of trying to connect.
SILENCE = 60.0


class Vitals:
    """The signs of life of a worker.

    Arguments:
        syphon_lives: whether its syphon does.
        since_wait: seconds since it last waited for the primary.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        syphon_lives: Callable[[], bool],
        since_wait: Callable[[], float] = seconds_since_wait,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._syphon_lives = syphon_lives
        self._since_wait = since_wait
        self._clock = clock
        self._beat_at = clock()

    def beat(self) -> None:
        """The consumer's loop does what it should."""
        self._beat_at = self._clock()

    @property
    def ailment(self) -> str | None:
        """What is wrong; None if the worker is alive."""
        if min(self._clock() - self._beat_at, self._since_wait()) > SILENCE:
            return f"its consumer has stood still for {SILENCE:g} s"
        return None if self._syphon_lives() else "a thread of its syphon is gone"


class LivenessStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Worker bootstep that touches the file.

    Attributes:
        path: of the file; ``%n`` and its like are the worker's name, as in Celery's ``--pidfile``.
    """

    requires = ("celery.worker.components:Timer", SyphonStep)
    label = "Liveness"
    path = ""

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        self._stopping = threading.Event()
        self._timer: Any = None
        super().__init__(worker, **kwargs)

    def start(self, worker: Any) -> None:
        syphons = [each for each in worker.steps if isinstance(each, SyphonStep)]
        vitals = Vitals(lambda: all(each.lives for each in syphons))
        # With an event loop its timer is the loop's own; the other pools have a thread for it.
        self._timer = worker.timer.call_repeatedly(BEAT, vitals.beat)
        arguments = (Path(node_format(self.path, worker.hostname)), vitals)
        threading.Thread(target=self._run, args=arguments, name="kombu-paired-liveness", daemon=True).start()

    def _run(self, path: Path, vitals: Vitals) -> None:
        told: str | None = None
        while not self._stopping.is_set():
            trouble = vitals.ailment
            if trouble is None:
                try:
                    path.touch()
                except OSError as exc:
                    trouble = f"{path} cannot be touched: {exc}"
            if trouble is not None and trouble != told:
                logger.error("this worker does not look alive: %s", trouble)
            told = trouble
            self._stopping.wait(LOOK)

    def stop(self, worker: Any) -> None:
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()

    terminate = stop


def setup(app: Celery, path: str) -> Celery:
    """Let the workers of an application touch a file while they are alive; returns the application.

    Arguments:
        path: of the file. ``%n`` is the worker's name without its host, ``%h`` all of it.
    """
    app.steps["worker"].add(type("LivenessStep", (LivenessStep,), {"path": path}))
    return app
