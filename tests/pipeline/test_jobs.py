"""Work side by side: all of it, each on its own, and all ended when one of them fails."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from kombu_paired.pipeline.jobs import POOL, side_by_side
from kombu_paired.pipeline.session import share_done

#: Rows that nobody counts in the time of a test.
ENDLESS = 10**13


def count_for_ever(spark):
    return spark.range(ENDLESS).selectExpr("sum(hash(id))").collect()


def ours():
    return [each for each in threading.enumerate() if each.name.startswith("kombu-paired-")]


def no_jobs(spark):
    deadline = time.monotonic() + 20
    while spark.sparkContext.statusTracker().getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not spark.sparkContext.statusTracker().getActiveJobsIds()


def test_each_is_done_and_they_are_under_way_at_once(spark):
    meeting = threading.Barrier(3, timeout=30)

    def of(number):
        meeting.wait()
        return spark.range(number).count()

    found = side_by_side(spark, {"c": lambda: of(3), "a": lambda: of(1), "b": lambda: of(2)})
    assert list(found.items()) == [("c", 3), ("a", 1), ("b", 2)]
    assert ours() == []


def test_each_has_a_pool_of_its_own_and_who_waits_keeps_his(spark):
    context = spark.sparkContext

    def pool():
        return context.getLocalProperty(POOL), sorted(context.getJobTags())

    context.setLocalProperty(POOL, "mine")
    try:
        found = side_by_side(spark, {"one": pool, "two": pool})
        assert pool() == ("mine", [])
    finally:
        context.setLocalProperty(POOL, None)
    assert [found[name][0] for name in ("one", "two")] == ["one", "two"]
    assert found["one"][1] == found["two"][1] != []


def test_what_one_raises_ends_all_others_and_is_raised_as_it_was(spark):
    error, begun = ZeroDivisionError("as it was"), threading.Event()
    ended = []

    def fail():
        assert begun.wait(30)
        raise error

    def go_on():
        begun.set()
        try:
            count_for_ever(spark)
        finally:
            ended.append("cancelled")

    with pytest.raises(ZeroDivisionError) as caught:
        side_by_side(spark, {"fails": fail, "goes on": go_on, "goes on, too": go_on})
    assert caught.value is error
    assert ended == ["cancelled"] * 2
    assert ours() == []
    assert no_jobs(spark)


def test_what_is_between_two_jobs_when_another_fails_is_ended_in_its_next(spark):
    failed = threading.Event()

    def fail():
        failed.set()
        raise ZeroDivisionError

    def think_and_go_on():
        assert failed.wait(30)
        time.sleep(0.5)
        count_for_ever(spark)

    with pytest.raises(ZeroDivisionError):
        side_by_side(spark, {"fails": fail, "thinks": think_and_go_on})
    assert ours() == []
    assert no_jobs(spark)


def test_jobs_of_others_go_on(spark):
    """Only what is side by side with what failed is ended."""
    done, begun = [], threading.Event()

    def other():
        begun.set()
        done.append(spark.range(30_000_000).selectExpr("sum(hash(id))").collect())

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(30)
    with pytest.raises(ZeroDivisionError):
        side_by_side(spark, {"fails": lambda: 1 / 0, "goes on": lambda: count_for_ever(spark)})
    thread.join(60)
    assert len(done) == 1


def test_an_interrupt_ends_all(spark):
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        side_by_side(spark, {"one": lambda: count_for_ever(spark), "two": lambda: count_for_ever(spark)})
    assert ours() == []
    assert no_jobs(spark)


def test_progress_is_of_all_that_is_under_way(spark):
    begun = threading.Barrier(3, timeout=30)

    def count():
        begun.wait()
        return spark.range(0, 20_000_000, numPartitions=16).selectExpr("sum(hash(id))").collect()

    def look():
        begun.wait()
        shares = []
        while len(shares) < 3:
            share = share_done(spark)
            if share is not None:
                shares.append(share)
            time.sleep(0.01)
        return shares

    found = side_by_side(spark, {"one": count, "two": count, "look": look})
    assert all(0 <= share <= 1 for share in found["look"])


def test_through_spark_connect_they_are_done_one_after_the_other():
    """Its session has no context, and the settings of a thread do not reach its server."""
    order = []
    names = ("c", "a", "b")
    work = {name: lambda name=name: order.append((name, threading.current_thread())) or name for name in names}
    assert side_by_side(SimpleNamespace(), work) == {name: name for name in names}
    assert order == [(name, threading.current_thread()) for name in names]
