"""The command line on real brokers, as an operator meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kombu import Connection, Queue

from kombu_paired.cli import main
from kombu_paired.demo.pairs import PAIRS
from kombu_paired.testing import descendants, process_state
from kombu_paired.transport import pairing_of
from tests.conftest import require_broker
from tests.support.brokers import BrokerNode
from tests.support.ledger import Ledger
from tests.support.nodes import ROOT
from tests.support.shop import shop_environment

COMMAND = [sys.executable, "-m", "kombu_paired.cli"]
#: Few backlog queues and short limits (seconds) make quick tests.
OPTIONS = {"backlog_queue_count": 3, "send_timeout": 3, "primary_name": "shop"}
QUEUE = Queue("orders")


class Operator:
    """Somebody with two URLs in the environment."""

    def __init__(self, primary: BrokerNode, secondary: BrokerNode) -> None:
        self.primary, self.secondary = primary, secondary
        self.environment = {
            "KOMBU_PAIRED_PRIMARY": primary.url,
            "KOMBU_PAIRED_SECONDARY": secondary.url,
            "KOMBU_PAIRED_OPTION": " ".join(f"{key}={value}" for key, value in OPTIONS.items()),
        }

    def run(self, *arguments: str) -> Result:
        result = CliRunner().invoke(main, arguments, env=self.environment)
        assert "Traceback" not in result.output
        return result

    def report(self, command: str, exit_code: int) -> dict[str, Any]:
        result = self.run(command, "--json")
        assert result.exit_code == exit_code, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=os.environ | self.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def divert(self, count: int) -> None:
        """Publish while the primary is dead; it stays so."""
        self.primary.kill()
        options = {"secondary": self.secondary.url, **OPTIONS}
        with Connection(f"paired+{self.primary.url}", transport_options=options) as connection:
            producer = connection.Producer()
            for number in range(count):
                producer.publish({"number": number}, routing_key=QUEUE.name, declare=[QUEUE])
            pairing_of(connection).close()

    def put_into_backlog(self, body: str) -> None:
        """Something that no pairing has put there."""
        self.secondary.put("shop/x-servicebus-transfer/1", (body, {}))

    def home(self) -> int:
        """How many messages are in the queue on the primary."""
        return self.primary.depth(QUEUE.name) or 0


@pytest.fixture
def operator(primary: BrokerNode, secondary: BrokerNode) -> Operator:
    return Operator(primary, secondary)


# -- check --------------------------------------------------------------------------------------------------------


def test_check_finds_or_creates_the_backlog_queues_and_says_which(operator: Operator) -> None:
    queues = operator.report("check", 0)["backlog_queues"]
    names = [f"shop/x-servicebus-transfer/{number}" for number in range(3)]
    assert queues["usable"] == queues["wanted"] == 3
    assert queues["created"] == (names if operator.secondary.misses_queues else [])  # Redis needs no creating
    again = operator.run("check")
    assert again.exit_code == 0
    assert "3 of 3" in again.output
    assert operator.report("check", 0)["backlog_queues"]["found"] == names


def test_check_creates_nothing_when_it_may_not(operator: Operator) -> None:
    if not operator.secondary.misses_queues:
        pytest.skip("on Redis there is nothing to create")
    result = operator.run("check", "--option", "create_backlog_queues=false")
    assert result.exit_code == 1
    assert "create_backlog_queues is False" in " ".join(result.output.split())
    assert operator.report("status", 0)["totals"]["missing_queues"] == 3


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_check_names_the_side_that_is_down(operator: Operator, side: str) -> None:
    getattr(operator, side).kill()
    finding = operator.report("check", 1)
    assert {each: finding[each]["reachable"] for each in ("primary", "secondary")} == {
        each: each != side for each in ("primary", "secondary")
    }
    assert f"The {side} " in finding["problems"][0]


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_check_names_the_side_that_refuses_the_password(operator: Operator, side: str) -> None:
    getattr(operator, side).set_password("another")
    finding = operator.report("check", 1)
    assert finding[side]["failure"] == "unauthorized"
    assert "password" in " ".join(finding["problems"])
    assert "another" not in json.dumps(finding)


def test_check_takes_an_application_s_own_settings(operator: Operator, tmp_path: Path) -> None:
    options = {"secondary": operator.secondary.url, **OPTIONS, "ping_interval": 7, "enable_syphon": True}
    operator.environment = shop_environment(f"paired+{operator.primary.url}", options, ledger=Ledger(tmp_path))
    process = operator.start("check", "-A", "tests.support.shop:app", "--json")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert json.loads(output)["settings"]["ping_interval"] == 7.0


# -- status -------------------------------------------------------------------------------------------------------


def test_status_shows_the_backlog_while_the_primary_is_down(operator: Operator) -> None:
    operator.divert(7)
    report = operator.report("status", 1)
    assert report["primary"]["reachable"] is False
    assert report["totals"]["messages"] == 7
    assert 0 <= report["totals"]["oldest_age_s"] < 30
    shown = operator.run("status")
    assert "7 messages waiting" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80


def test_status_works_while_the_secondary_is_down_or_both_are(operator: Operator) -> None:
    operator.secondary.kill()
    report = operator.report("status", 1)
    assert (report["primary"]["reachable"], report["secondary"]["reachable"]) == (True, False)
    assert report["totals"] is None
    operator.primary.kill()
    report = operator.report("status", 1)
    assert (report["primary"]["reachable"], report["secondary"]["reachable"]) == (False, False)
    assert operator.run("status").exit_code == 1


def test_status_of_two_silent_brokers_takes_no_longer_than_one_time_limit(operator: Operator) -> None:
    for broker in (operator.primary, operator.secondary):
        broker.freeze()
    began = time.monotonic()
    assert operator.run("status").exit_code == 1
    assert time.monotonic() - began < 1.9 * OPTIONS["send_timeout"]  # type: ignore[operator]


def test_status_changes_nothing(operator: Operator) -> None:
    assert operator.report("status", 0) == operator.report("status", 0)
    missing = operator.report("status", 0)["totals"]["missing_queues"]
    assert missing == (3 if operator.secondary.misses_queues else 0)


# -- syphon -------------------------------------------------------------------------------------------------------


def test_syphon_once_brings_all_home_and_ends(operator: Operator) -> None:
    operator.divert(700)
    operator.primary.restart()
    result = operator.run("syphon", "--once")
    assert result.exit_code == 0, result.output
    assert "700 messages moved home" in result.output
    assert operator.home() == 700
    assert operator.report("status", 0)["totals"]["messages"] == 0
    again = operator.run("syphon", "--once")
    assert again.exit_code == 0
    assert "0 messages moved home" in again.output


def test_syphon_once_tells_dead_letters_and_so_does_status(operator: Operator) -> None:
    operator.divert(5)
    operator.put_into_backlog("nobody knows where this should go")
    operator.primary.restart()
    result = operator.run("syphon", "--once")
    assert result.exit_code == 1
    assert "5 messages moved home, 1 dead letter (1 NoPath)" in result.output
    report = operator.report("status", 1)
    assert report["totals"]["dead_letters"] == 1
    assert [each["dead_letter_reason"] for each in report["backlog"]] == [None, "NoPath", None]


def test_syphon_once_ends_at_once_when_nothing_could_be_moved(operator: Operator) -> None:
    operator.divert(5)
    began = time.monotonic()
    result = operator.run("syphon", "--once")
    assert result.exit_code == 1
    assert "primary namespace" in result.output
    assert time.monotonic() - began < 5


def test_syphon_once_gives_up_on_what_does_not_move(operator: Operator) -> None:
    operator.divert(5)
    operator.primary.restart()
    operator.primary.fill()
    result = operator.run("syphon", "--once", "--patience", "2")
    assert result.exit_code == 1
    operator.primary.unfill()
    began = time.monotonic()
    result = operator.run("syphon", "--once")
    assert result.exit_code == 0, result.output
    assert operator.home() == 5
    assert time.monotonic() - began < 20  # the first one gave back what it held: no lock had to end


@pytest.fixture
def pumping(operator: Operator) -> Iterator[subprocess.Popen[str]]:
    """A running ``kombu-paired syphon`` that has moved something."""
    operator.divert(20)
    operator.primary.restart()
    process = operator.start("syphon")
    deadline = time.monotonic() + 60
    while operator.home() < 20 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert operator.home() == 20
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


@pytest.mark.alone
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_syphon_cleanly(pumping: subprocess.Popen[str], which: signal.Signals) -> None:
    began = time.monotonic()
    pumping.send_signal(which)
    output, _ = pumping.communicate(timeout=10)
    assert time.monotonic() - began < 2
    assert pumping.returncode == 0
    assert "20 messages moved home" in output
    assert "Traceback" not in output


@pytest.mark.alone
def test_a_signal_ends_a_syphon_whatever_its_brokers_do(pumping: subprocess.Popen[str], operator: Operator) -> None:
    operator.primary.freeze()
    operator.secondary.freeze()
    began = time.monotonic()
    pumping.terminate()
    pumping.communicate(timeout=10)
    assert time.monotonic() - began < 2.5  # two of them, and an interpreter that exits


# -- demo ---------------------------------------------------------------------------------------------------------


def demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"TMPDIR": str(folder)}
    return subprocess.Popen(
        [*COMMAND, "demo", "--json", *arguments],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("pair", [each for each in PAIRS if each != "amqp+spool"])
def test_the_demo_loses_nothing_and_leaves_nothing(tmp_path: Path, pair: str) -> None:
    require_broker(PAIRS[pair].kind)
    process = demo(tmp_path, "--pair", pair, "--messages", "300", "--seconds", "8", "--outage", "3")
    output, story = process.communicate(timeout=600)
    assert process.returncode == 0, story + output
    balance = json.loads(output)
    expected = {"published": 300, "publish_errors": 0, "executed": 300, "lost": 0, "stranded": 0}
    assert {key: balance[key] for key in expected} == expected
    assert balance["duplicates"] <= 10  # what workers held, but had not acknowledged, when the primary died
    assert balance["longest_publish_s"] < 8  # two times its send_timeout, and a busy machine
    assert 0 < balance["failover_s"] < 8
    assert 0 <= balance["drain_s"] < 40
    assert list(balance) == [
        "published",
        "publish_errors",
        "executed",
        "lost",
        "duplicates",
        "stranded",
        "longest_publish_s",
        "failover_s",
        "drain_s",
        "ran_during_outage",
    ]
    for happened in ("killed", "suspect", "failed_over", "diverted", "syphoned"):
        assert happened in story
    assert list(tmp_path.iterdir()) == []


def test_a_demo_shows_tasks_that_run_during_the_outage(tmp_path: Path) -> None:
    require_broker(PAIRS["redis"].kind)
    process = demo(tmp_path, "--stand-in", "--pair", "redis", "--messages", "40", "--seconds", "3", "--outage", "3")
    output, story = process.communicate(timeout=600)
    assert process.returncode == 0, story + output
    balance = json.loads(output)
    assert (balance["executed"], balance["stranded"]) == (40, 0)
    assert balance["ran_during_outage"] > 0
    for happened in ("standing in", "handed out", "came home"):
        assert happened in story


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, which: signal.Signals) -> None:
    process = demo(tmp_path)
    assert process.stderr is not None
    while "publish" not in (line := process.stderr.readline()):
        assert line, "it ended before it was interrupted"
    family = descendants(process.pid)
    assert len(family) >= 4  # two brokers, a worker, a producer
    process.send_signal(which)
    process.communicate(timeout=60)
    assert process.returncode == 1
    deadline = time.monotonic() + 30  # a pool's process ends when it notices that its worker has
    while left := [pid for pid in family if process_state(pid) not in ("", "Z")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []
