"""What a worker's sign of life is, and what is none."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from kombu_paired import Syphon, stopping
from kombu_paired.contrib import liveness
from kombu_paired.contrib.liveness import SILENCE, LivenessStep, Vitals
from kombu_paired.testing import ManualClock
from tests.unit.syphon.trip import Trip


@pytest.fixture
def patient() -> Any:
    made = SimpleNamespace(clock=ManualClock(), waited=math.inf, syphon=True)
    made.vitals = Vitals(lambda: made.syphon, lambda: made.waited, made.clock)
    return made


def test_a_loop_that_beats_is_alive_and_one_that_stands_still_is_not(patient: Any) -> None:
    patient.clock.now += SILENCE
    assert patient.vitals.ailment is None
    patient.clock.now += 0.1
    assert "stood still" in patient.vitals.ailment
    patient.vitals.beat()
    assert patient.vitals.ailment is None


def test_a_worker_that_waits_for_its_primary_is_alive(patient: Any) -> None:
    patient.clock.now += 10 * SILENCE
    patient.waited = SILENCE
    assert patient.vitals.ailment is None


def test_a_syphon_that_lost_a_thread_is_not(patient: Any) -> None:
    patient.syphon = False
    assert "syphon" in patient.vitals.ailment


def test_a_wait_for_the_primary_is_noted() -> None:
    stopping.sleep_unless_worker_stops(0.01)
    assert stopping.seconds_since_wait() < 60


def test_a_syphon_knows_whether_its_threads_live() -> None:
    syphon = Syphon(Trip().pairing)
    assert syphon.lives  # not started
    gone = threading.Thread(target=int)
    gone.start()
    gone.join()
    syphon._threads = [threading.current_thread(), gone]
    assert not syphon.lives
    syphon.stop()
    assert syphon.lives  # it need not


def test_the_file_is_touched_while_all_is_well_and_not_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(liveness, "LOOK", 0.01)
    app = liveness.setup(Celery("shop", set_as_current=False), str(tmp_path / "%n.alive"))
    [step_class] = [each for each in app.steps["worker"] if issubclass(each, LivenessStep)]
    timer = SimpleNamespace(call_repeatedly=lambda seconds, beat: SimpleNamespace(cancel=lambda: None))
    worker = SimpleNamespace(hostname="orders@here", timer=timer, steps=[])
    step, path = step_class(worker), tmp_path / "orders.alive"
    step.start(worker)

    def is_touched(seconds: float) -> bool:
        path.touch()
        os.utime(path, (1, 1))
        until = time.monotonic() + seconds
        while path.stat().st_mtime == 1 and time.monotonic() < until:
            time.sleep(0.01)
        return path.stat().st_mtime > 1

    assert is_touched(20)
    monkeypatch.setattr(Vitals, "ailment", "it is asleep")
    is_touched(0.2)  # a touch may be under way
    assert not is_touched(0.2)
    step.stop(worker)
    assert caplog.text.count("does not look alive: it is asleep") == 1
