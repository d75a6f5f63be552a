"""``kombu-paired cost``: what is asked, what is refused, what is shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.cli import main
from kombu_paired.cli.cost import MEANING, cost, seconds_of
from kombu_paired.pipeline.costs import prices
from kombu_paired.pipeline.costs.charges import STAGES

EXAMPLE = Path(__file__).parents[2] / "examples" / "prices" / "servicebus-standard.toml"


def run(*arguments):
    return CliRunner().invoke(main, ["cost", *map(str, arguments)])


def report(*arguments):
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_figures_of_the_documents():
    found = report("--messages-per-day", 0, "--backlog-queues", 10, "--poll", "15m")
    assert found["idle_receives"] == {"hour": 40, "day": 960, "month": 28_800}
    both = found["operations_of_a_message"]
    assert (sum(both["direct"].values()), sum(both["diverted"].values())) == (3, 6)
    assert found["operations"]["idle_receive"] == 28_800
    assert found["idle_hour"] == {"heartbeat": 1800, "idle_consume": 120, "idle_receive": 40}
    assert found["total"] == 720 * 1960


def test_operations_by_stage_add_up_and_money_is_that_of_the_sheet():
    found = report("--messages-per-day", 1_000_000, "--outage", "1h", "--prices", EXAMPLE)
    assert tuple(found["operations"]) == STAGES
    assert found["total"] == sum(found["operations"].values())
    money = found["money"]
    assert money["operations"] == pytest.approx((found["total"] - 13e6) / 1e6 * 0.80)
    assert money["total"] == pytest.approx(money["operations"] + 9.81)
    assert sum(money["by_stage"].values()) == pytest.approx(money["operations"], abs=1e-4)
    assert money["prices"]["source"] == "list price, USD, check yours"


def test_what_the_options_change():
    base = report("--messages-per-day", 86_400, "--outage", "10m")
    assert base["messages_diverted"] == 610  # failed over after 10 s, back with the 10th ping
    assert base["operations"]["ping"] == 10
    assert (
        report("--messages-per-day", 86_400, "--outage", "10m", "--outages-per-month", 3)["messages_diverted"] == 1830
    )
    larger = report("--messages-per-day", 86_400, "--outage", "10m", "--size", 64 * 1024 + 1)
    assert larger["operations"]["send_home"] == 2 * base["operations"]["send_home"]
    many = report("--messages-per-day", 86_400, "--outage", "10m", "--entities", 3, "--processes", 4)
    assert many["operations"]["ping"] == 120
    often = report("--messages-per-day", 86_400, "--outage", "10m", "--ping-interval", "5s")
    assert often["operations"]["ping"] == 118
    late = report("--messages-per-day", 86_400, "--outage", "10m", "--failover-interval", "1h")
    assert late["operations"]["ping"] == 0
    syphons = report("--messages-per-day", 86_400, "--syphons", 5, "--backlog-queues", 2, "--poll", "1h")
    assert syphons["operations"]["idle_receive"] == 5 * 2 * 720
    assert report("--messages-per-day", 10, "--renewals", 2)["operations"]["lock_renewal"] == 600


def test_what_idle_workers_do():
    workers = ("--messages-per-day", 0, "--workers", 20)
    assert report(*workers)["idle_hour"] == {"heartbeat": 36_000, "idle_consume": 2400, "idle_receive": 800}
    quiet = report(*workers, "--heartbeat", 0, "--no-remote-control", "--queues", 3, "--syphons", 1)
    assert quiet["idle_hour"] == {"heartbeat": 0, "idle_consume": 3600, "idle_receive": 40}
    assert "celery worker --without-heartbeat" in run(*workers).output
    assert "--without-heartbeat" not in run(*workers, "--heartbeat", "0").output


def test_it_is_shown_to_people_with_the_date_and_source_of_the_prices():
    done = run("--messages-per-day", "1e6", "--outage", "90s", "--prices", EXAMPLE)
    assert done.exit_code == 0
    for stage in STAGES:
        assert stage.replace("_", " ") in done.output
    assert "2026-01-01: list price, USD, check yours" in done.output
    assert "40 times an hour, 960 a day, 28,800 in 30 days" in done.output
    assert max(map(len, done.output.splitlines())) <= 80
    without = run("--messages-per-day", 5)
    assert "--prices FILE" in without.output
    assert "USD" not in without.output


def test_every_stage_is_explained():
    assert tuple(MEANING) == STAGES


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing option '--messages-per-day'"),
        (["--messages-per-day", "-1"], "not in the range"),
        (["--messages-per-day", "nan"], "messages_per_day must not be negative"),
        (["--messages-per-day", "1", "--outage", "soon"], "'soon' is no duration: write e.g. 90s, 15m, 2h or 1h30m"),
        (["--messages-per-day", "1", "--outage", "-5m"], "is no duration"),
        (["--messages-per-day", "1", "--poll", "0"], "poll must be above 0"),
        (["--messages-per-day", "1", "--ping-interval", "0s"], "ping_interval must be above 0"),
        (["--messages-per-day", "1", "--backlog-queues", "0"], "not in the range"),
        (["--messages-per-day", "1", "--workers", "-1"], "not in the range"),
        (["--messages-per-day", "1", "--prices", "no/such.toml"], "price sheet no/such.toml: No such file"),
    ],
)
def test_wrong_usage_says_what_is_wrong(arguments, said):
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("15min", 900),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h 30 min", 5400),
        ("1.5h", 5400),
        ("1d", 86_400),
        ("0", 0),
    ],
)
def test_durations(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "1h-3m", "1h 30", "-1", "1,5h", "ten minutes"])
def test_no_durations(text):
    with pytest.raises(ValueError, match="is no duration"):
        seconds_of(text)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_hours_minutes_and_seconds_add_up(hours, minutes, seconds):
    assert seconds_of(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


DOCS = Path(__file__).parents[2] / "docs" / "cost.md"


def test_the_page_about_cost_names_every_stage_and_option():
    text = DOCS.read_text()
    described = re.findall(r"^\| `(\w+)` \|", text, re.M)
    assert sorted(described) == sorted(STAGES)
    table = text.split("## What the options say")[1].split("##")[0]
    options = {option for each in cost.params for option in each.opts if each.name != "as_json"}
    assert set(re.findall(r"`(--[\w-]+)`", table)) == options


def test_the_price_sheet_of_the_page_is_one(tmp_path):
    [text] = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.S)
    path = tmp_path / "prices.toml"
    path.write_text(text)
    sheet = prices.read(path)
    assert sheet.of_month(14_000_000) == pytest.approx(9.81 + 0.80)


def test_it_needs_no_spark():
    program = (
        "import sys; import kombu_paired.cli.cost, kombu_paired.pipeline; "
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert {"pyspark", "pandas", "pyarrow"}.isdisjoint(done.stdout.split())
