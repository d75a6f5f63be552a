"""Reports of real outages: what the journals add up to is what independent ledgers say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kombu_paired import journal
from kombu_paired.cli.demo import PAIRS
from tests.conftest import require_broker
from tests.support.nodes import ROOT
from tests.support.spark import require_spark
from tests.support.traffic import publish_through_an_outage

pytestmark = pytest.mark.spark
COMMAND = [sys.executable, "-m", "kombu_paired.cli"]


@pytest.fixture(autouse=True)
def _spark() -> None:
    require_spark()


def run(*arguments: str | Path, timeout: float = 180) -> dict[str, Any]:
    """A command, as somebody runs it; what it printed as JSON."""
    command = [*COMMAND, *map(str, arguments), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("pair", list(PAIRS))
def test_the_report_of_the_demo_says_what_the_demo_counted(tmp_path: Path, pair: str) -> None:
    require_broker(PAIRS[pair].kind)
    told = run(
        "demo",
        "--pair",
        pair,
        "--messages",
        "300",
        "--seconds",
        "8",
        "--outage",
        "3",
        "--journal",
        tmp_path / "journal",
    )
    made = run("report", "--journal", tmp_path / "journal", "--out", tmp_path / "report")
    balance = made["balance"]
    assert balance["messages"] == balance["accepted"] == told["published"] == 300
    assert balance["consumed"] == told["executed"]
    assert (balance["lost"], balance["refused"]) == (told["lost"], told["publish_errors"]) == (0, 0)
    assert balance["waiting"] == told["stranded"] == 0
    copies = pq.read_table(tmp_path / "report" / "messages", columns=["copies_delivered"])[
        "copies_delivered"
    ].to_pylist()
    assert balance["duplicated"] == sum(each > 1 for each in copies)
    assert sum(each - 1 for each in copies) == told["duplicates"]  # one message may have run three times
    assert balance["direct"] + balance["recovered"] + balance["duplicated"] == 300
    assert balance["recovered"] <= balance["diverted"] > 0
    assert made["outages"]["namespace"] == 1
    assert made["problems"].get("malformed") is made["problems"].get("missing_events") is None
    assert "300" in Path(made["page"]).read_text()


def test_the_report_of_an_outage_says_what_ran(
    primary: Any,
    secondary: Any,
    paired_shop: Any,
    paired_worker: Any,
    ledger: Any,
    options: dict[str, Any],
    tmp_path: Path,
) -> None:
    options["journal"] = str(tmp_path / "journal")
    worker = paired_worker()
    published, traffic = publish_through_an_outage(paired_shop(), primary, secondary, ledger)
    ledger.wait_until_quiet(0.5, timeout=10)
    worker.stop()
    journal.close_all()

    made = run("report", "--journal", tmp_path / "journal", "--out", tmp_path / "report")
    runs = [task_id for _, _, task_id in ledger.entries()]
    balance = made["balance"]
    assert (traffic.errors, balance["lost"], balance["refused"], balance["unknown"]) == ([], 0, 0, 0)
    assert balance["messages"] == balance["accepted"] == len(published) == 600
    assert balance["consumed"] == len(set(runs)) == 600
    assert balance["duplicated"] == sum(runs.count(each) > 1 for each in set(runs))
    assert balance["direct"] + balance["recovered"] + balance["duplicated"] == 600
    assert balance["diverted"] >= 400
    assert made["problems"].get("missing_events") is None
