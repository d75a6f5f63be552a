"""Pieces of work on Spark side by side: while one is planned, the tasks of another run."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ("side_by_side",)

#: Seconds between two tries to end what goes on after one has failed: it may just be between two jobs.
AGAIN = 0.1
#: Spark's names for what jobs are told apart by.
POOL = "spark.scheduler.pool"


def side_by_side(spark: SparkSession, work: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What each of them returns, by name.

    Each has a thread, and a pool of Spark's scheduler, of its own, which share the cores fairly. When one raises, or
    this thread is interrupted, the jobs of the others are cancelled, and once all have ended it is raised as it was.
    None of them may change the session's settings. With Spark Connect they are done one after the other.
    """
    context = getattr(spark, "_sc", None)  # Spark Connect has none
    if context is None:
        return {name: do() for name, do in work.items()}
    tag, ended = f"kombu-paired-{uuid.uuid4().hex}", SimpleQueue[tuple[str, Any, BaseException | None]]()
    threads = [
        threading.Thread(target=_run, args=(context, tag, name, do, ended), name=f"kombu-paired-{name}", daemon=True)
        for name, do in work.items()
    ]
    results = {}
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            name, result, error = ended.get()
            if error is not None:
                raise error
            results[name] = result
    except BaseException:
        _end(context, tag, threads)
        raise
    return {name: results[name] for name in work}


def _run(
    context: SparkContext,
    tag: str,
    name: str,
    do: Callable[[], Any],
    ended: SimpleQueue[tuple[str, Any, BaseException | None]],
) -> None:
    # A thread of Java is behind each one of Python, and has none of these from the one that started it.
    result, error = None, None
    try:
        context.addJobTag(tag)
        context.setLocalProperty(POOL, name)
        result = do()
    except BaseException as exc:  # it is raised by who waits
        error = exc
    ended.put((name, result, error))


def _end(context: SparkContext, tag: str, threads: Sequence[threading.Thread]) -> None:
    while running := [each for each in threads if each.is_alive()]:
        try:
            context.cancelJobsWithTag(tag)
        except Py4JError:  # Spark is gone, and what runs ends with it
            return
        running[0].join(AGAIN)
