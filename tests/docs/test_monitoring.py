"""The alerts and the dashboard are about metrics that there are, and the alerts go off when they should."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kombu_paired.contrib.measuring import COUNTERS, GAUGES, TIMERS
from kombu_paired.contrib.prometheus import PREFIX
from kombu_paired.contrib.prometheus.backlog import BACKLOG
from tests.docs.reading import DOCS, ROOT, code, section, table

EXAMPLES = ROOT / "examples" / "prometheus"
RULES = EXAMPLES / "rules.yaml"
#: Metric -> its labels, as Prometheus shows them.
METRICS = {
    **{f"{PREFIX}{each.name}_total": set(each.labels) for each in COUNTERS},
    **{f"{PREFIX}{each.name}_seconds": set(each.labels) for each in TIMERS},
    **{f"{PREFIX}{each.name}": set(each.labels) for each in GAUGES},
    **{PREFIX + name: set(labels) for name, (_, labels) in BACKLOG.items()},
}


def named_in(text: str) -> set[str]:
    found = re.findall(rf"\b{PREFIX}\w+", text)
    return {re.sub(r"(?<=_seconds)_(bucket|count|sum)$", "", each) for each in found}


def promtool(*arguments: str) -> None:
    """Skipped where it is not installed; where CI is set that fails."""
    program = shutil.which("promtool")
    if program is None:
        missing = "promtool is not installed (apt-get install prometheus)"
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    done = subprocess.run([program, *arguments], cwd=EXAMPLES, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_what_is_watched_exists(path: Path) -> None:
    assert named_in(path.read_text()) <= set(METRICS)


def test_the_dashboard_shows_every_metric() -> None:
    dashboard = json.loads((EXAMPLES / "dashboard.json").read_text())
    shown = {each for panel in dashboard["panels"] for target in panel["targets"] for each in named_in(target["expr"])}
    assert shown == set(METRICS)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_every_alert_is_tested() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    assert alerts == set(re.findall(r"alertname: (\w+)", (EXAMPLES / "rules_test.yaml").read_text()))


def test_the_rules_are_rules() -> None:
    promtool("check", "rules", RULES.name)


def test_the_alerts_go_off_when_they_should() -> None:
    promtool("test", "rules", "rules_test.yaml")


def test_the_metrics_of_the_documents_are_those_of_the_code() -> None:
    rows = table(section(DOCS / "monitoring.md", "All metrics"))
    assert {code(row["metric"])[0]: set(code(row["labels"])) for row in rows} == METRICS
