"""Reports of real outages: what the journals add up to is what independent ledgers say."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kombu_paired import journal
from kombu_paired.demo.pairs import PAIRS
from tests.conftest import require_broker
from tests.support.nodes import ROOT
from tests.support.side_by_side import side_by_side
from tests.support.spark import require_spark
from tests.support.traffic import publish_through_an_outage

pytestmark = pytest.mark.spark
COMMAND = [sys.executable, "-m", "kombu_paired.cli"]


@pytest.fixture(autouse=True)
def _spark() -> None:
    require_spark()


def run(*arguments: str | Path, timeout: float = 600) -> dict[str, Any]:
    """A command, as somebody runs it; what it printed as JSON."""
    command = [*COMMAND, *map(str, arguments), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def told_by_the_ledger(
    primary: Any,
    secondary: Any,
    paired_shop: Any,
    paired_worker: Any,
    ledger: Any,
    options: dict[str, Any],
    tmp_path: Path,
) -> Counter[str]:
    """A worker and its producer live through an outage and write journals; how often each of 600 messages ran."""
    options["journal"] = str(tmp_path / "journals" / "shop")
    worker = paired_worker()
    published, traffic = publish_through_an_outage(paired_shop(), primary, secondary, ledger)
    ledger.wait_until_quiet(0.5, timeout=10)
    worker.stop()
    journal.close_all()
    runs = Counter(task_id for _, _, task_id in ledger.entries())
    assert traffic.errors == []
    assert runs.keys() == published.keys()
    return runs


# The demos show that a report is right about each kind of broker.
@pytest.mark.slow
@pytest.mark.parametrize("broker_kind", ["redis"], indirect=True)
def test_one_report_of_an_outage_and_of_all_demos_says_what_ran(
    told_by_the_ledger: Counter[str], tmp_path: Path
) -> None:
    """A demo of each kind of broker, a worker, and one report: Spark takes as long for one journal as for four."""
    for played in PAIRS.values():
        require_broker(played.kind)
    sizes = ("--messages", "300", "--seconds", "8", "--outage", "3")
    demos = [partial(run, "demo", "--pair", pair, *sizes, "--journal", tmp_path / pair) for pair in PAIRS]
    told = dict(zip(PAIRS, side_by_side(*demos), strict=True))
    for pair in PAIRS:
        with_ids_of_its_own(tmp_path / pair, tmp_path / "journals" / pair, pair)

    made = run("report", "--journal", tmp_path / "journals", "--out", tmp_path / "report")
    everything = pq.read_table(tmp_path / "report" / "messages").to_pylist()
    for pair, counted in told.items():
        messages = [row for row in everything if row["message_id"].startswith(f"{pair}-")]
        assert len(messages) == sum(row["sends"] >= 1 for row in messages) == counted["published"] == 300
        assert sum(row["consumed_at"] is not None for row in messages) == counted["executed"]
        fates = Counter(row["fate"] for row in messages)
        assert (fates["unknown"], counted["lost"], counted["publish_errors"]) == (0, 0, 0)
        assert fates["waiting"] == counted["stranded"] == 0
        assert fates["duplicated"] == sum(row["copies_delivered"] > 1 for row in messages)
        # One message may have run three times.
        assert sum(row["copies_delivered"] - 1 for row in messages) == counted["duplicates"]
        assert fates["direct"] + fates["recovered"] + fates["duplicated"] == 300
        assert fates["recovered"] <= sum(row["diverted_at"] is not None for row in messages) > 0
    assert_agrees(everything, told_by_the_ledger)
    balance, total = made["balance"], 300 * len(told) + len(told_by_the_ledger)
    assert balance["messages"] == balance["accepted"] == balance["consumed"] == len(everything) == total
    assert balance["direct"] + balance["recovered"] + balance["duplicated"] == total
    assert balance["lost"] == balance["refused"] == balance["waiting"] == balance["unknown"] == 0
    assert balance["diverted"] == sum(row["diverted_at"] is not None for row in everything)
    assert balance["duplicated"] == sum(row["copies_delivered"] > 1 for row in everything)
    assert made["outages"]["namespace"] == len(told) + 1
    assert made["problems"].get("malformed") is made["problems"].get("missing_events") is None
    assert f"{total:,}" in Path(made["page"]).read_text()


def assert_agrees(everything: list[dict[str, Any]], runs: Counter[str]) -> None:
    """The rows of the worker's messages are what its ledger says."""
    messages = [row for row in everything if row["message_id"] in runs]
    assert len(messages) == sum(row["consumed_at"] is not None for row in messages) == 600
    fates = Counter(row["fate"] for row in messages)
    assert fates["duplicated"] == sum(count > 1 for count in runs.values())
    assert fates["direct"] + fates["recovered"] + fates["duplicated"] == 600
    assert sum(row["diverted_at"] is not None for row in messages) >= 400


def with_ids_of_its_own(folder: Path, out: Path, name: str) -> None:
    """Its journals, as if its messages were not called as those of any other demo."""
    out.mkdir(parents=True)
    for file in folder.iterdir():
        with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
            text = lines.read().replace('"message_id":"demo-', f'"message_id":"{name}-')
        (out / file.name.removesuffix(".gz")).write_text(text)
