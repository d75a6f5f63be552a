"""The page of a report: what it says, that it is sound HTML, and that it looks right in a real browser."""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kombu_paired.pipeline.costs.prices import PriceSheet, Tier
from kombu_paired.pipeline.page.facts import BINS, CURVE, Facts, Outage
from kombu_paired.pipeline.page.html import STAGE_WORDS, page, write_page
from kombu_paired.pipeline.page.words import clock, count, day_and_clock, duration, money, shortened

NASTY = "</title><script>alert('1')</script>\"&\x00\u202eevil"
SECOND = 1_000_000
NOON = int(datetime.datetime(2026, 3, 2, 12, tzinfo=datetime.timezone.utc).timestamp()) * SECOND
BALANCE = {
    "messages": 1_204_400,
    "accepted": 1_204_331,
    "diverted": 88_210,
    "consumed": 1_204_000,
    "refused": 7,
    "lost": 0,
    "ran_meanwhile": 0,
    "direct": 1_116_121,
    "recovered": 88_210,
    "stood-in": 0,
    "waiting": 0,
    "dead-lettered": 0,
    "expired": 0,
    "duplicated": 0,
    "unknown": 69,
}
SHEET = PriceSheet(NASTY, datetime.date(2026, 1, 1), NASTY, "EUR", 9.81, 0, (Tier(None, 0.8),))


def outage(name="orders", **values):
    row = {
        "scope": "namespace",
        "pairing": "main",
        "entity": None,
        "entities": 1,
        "first_failure_at": NOON,
        "failed_over_at": NOON + 10 * SECOND,
        "restored_at": NOON + 600 * SECOND,
        "ended_at": NOON + 600 * SECOND,
        "drained_at": NOON + 700 * SECOND,
        "detect_s": 10.0,
        "restore_s": 600.0,
        "drain_s": 100.0,
        "failure_kinds": ["timeout", "unreachable"],
        "messages_diverted": 88_210,
        "messages_recovered": 88_210,
        "messages_dead_lettered": 0,
        "messages_waiting": 0,
        "messages_ran_meanwhile": 0,
        "processes_saw": 12,
        "processes_unrestored": 0,
        "processes_unaffected": 0,
    }
    whole = Outage(row | values, until=NOON + 700 * SECOND, backlog=[*range(CURVE), 0])
    whole.entities = [whole.row | {"scope": "entity", "entity": name}]
    return whole


def setting(**values):
    row = {
        "failover_interval": 10.0,
        "ping_interval": 60.0,
        "backlog_queues": 10,
        "messages_diverted": 88_000,
        "messages_diverted_least": 87_000,
        "messages_diverted_most": 89_000,
        "callers_waiting": 12,
        "waited_s": 120.0,
        "pings": 120,
        "pings_least": 119,
        "pings_most": 121,
        "notice_s": 30.0,
        "notice_least_s": 1.0,
        "notice_most_s": 60.0,
        "drain_s": 90.0,
        "backlog_queues_left": 9,
        "operations": 300_000,
        "money": 0.24,
        "is_recorded": True,
        "is_on_front": True,
        "is_recommended": False,
        "reason": None,
    }
    return row | values


def facts(**values):
    best = setting(ping_interval=15.0, notice_s=7.0, is_recorded=False, is_recommended=True, reason=f"best {NASTY}")
    whole = Facts(
        balance=BALANCE,
        since=NOON - 3600 * SECOND,
        until=NOON + 3600 * SECOND,
        came_home=88_210,
        in_backlog=[5, 10, 0, 88_195, 0, 0, 0, 0, 0],
        backlog_s={"median": 200.0, "p95": 280.0, "longest": 299.9},
        outages=[outage(NASTY), outage("emails", pairing=NASTY, messages_waiting=3, processes_unaffected=4)],
        outages_all=2,
        outages_of_entities=2,
        stages={stage: (1000 * number, 0.1) for number, stage in enumerate(STAGE_WORDS)},
        settings=[best, setting()],
        settings_all=150,
        problems={"malformed": (203, 20, None), "missing_events": (3, 1, None), "clock_skew": (7, 1, 2.5)},
        files=[{"file": NASTY, "host": None, "pid": None, "problem": "malformed", "count": 9, "seconds": None}],
        sheet=SHEET,
    )
    return dataclasses.replace(whole, **values)


def nothing():
    return Facts(balance=dict.fromkeys(BALANCE, 0))


class Reader(HTMLParser):
    """Checks that every element is closed in order, and keeps what it sees."""

    VOID = frozenset({"meta", "br"})
    WITHIN_A_LINE = frozenset({"a", "b", "span"})

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert len({name for name, _ in attributes}) == len(attributes)
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag not in self.WITHIN_A_LINE:
            self.text.append(" ")

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.seen if name == tag]

    def words(self):
        return " ".join("".join(self.text).replace("\xa0", " ").split())


# -- what it says -----------------------------------------------------------------------------------------------------


def test_the_balance_comes_first_in_plain_words():
    words = Reader(page(facts())).words()
    sentence = "1,204,331 sent, 88,210 diverted, 88,210 recovered, 0 lost"
    assert words.startswith(f"What the outage did: {sentence}")  # the title
    assert words.count(sentence) == 2
    assert words.index("What the outage did " + sentence) < words.index("Outages")


def test_what_is_lost_or_left_stands_out():
    balance = BALANCE | {"waiting": 13, "lost": 2}
    text = page(facts(balance=balance, came_home=88_195))
    assert "88,195 recovered, 13 still in the backlog, 2 lost" in Reader(text).words()
    assert '<span class="bad"><b>2 lost</b></span>' in text
    assert '<span class="good"><b>0 lost</b></span>' in page(facts())


def test_it_says_how_many_tasks_ran_during_the_outage_and_how_late_they_were():
    balance = BALANCE | {"recovered": 210, "stood-in": 88_000, "ran_meanwhile": 88_000}
    ran = outage(messages_ran_meanwhile=88_000, late_median_s=0.4, late_p95_s=31.0)
    late = {"median": 0.4, "p95": 31.0, "longest": 33.0}
    words = Reader(page(facts(balance=balance, came_home=210, late_s=late, outages=[ran]))).words()
    assert "88,210 diverted, 210 recovered, 88,000 ran meanwhile, 0 lost" in words
    assert "88,000 tasks ran while the primary was away, on workers that stood in: half within" in words
    assert "Workers that stood in ran it" in words
    assert "these were done after" in words


def test_where_nobody_stood_in_it_says_nothing_of_it():
    assert "stood in" not in Reader(page(facts())).words()


def test_holes_in_the_journals_are_said_beside_the_balance():
    assert "The journals have holes: 3 events missing" in Reader(page(facts())).words()
    assert "have holes" not in page(facts(problems={"clock_skew": (7, 1, 2.5)}))


def test_of_a_later_version_of_the_journal_the_page_says_that_kombu_paired_is_to_be_updated():
    words = Reader(page(facts(problems={"unknown_version": (20, 1, None)}))).words()
    assert "The journals have holes: 0 events missing, 20 lines or files unread." in words
    assert "lines of a later version of the format: update kombu-paired to read them" in words


def test_each_section_is_there_and_says_its_figures():
    words = Reader(page(facts())).words()
    for said in (
        "2 outages of a namespace; in them, queues failed 2 times.",
        "2 March 2026, 12:00:00, 10 min",
        "12 processes saw it, 4 sent all the while. Failures: timeout, unreachable.",
        "messages in the backlog, at most 59",
        "Half of the 88,210 messages that left the backlog did so within 3 min 20 s",
        "1 min to 5 min 88,195",
        "55,000 operations of Azure Service Bus",
        "Together 1.10 EUR, without the base fee of 9.81 EUR a month.",
        "replayed under 150 settings",
        "failover_interval 10, ping_interval 15, backlog_queue_count 10.",
        "Closest to what was set",
        "87,000 to 89,000",
        "messages with an effect before its cause: clocks differ, by 2.5 s at most",
    ):
        assert said in words, said


def test_outages_that_are_left_out_are_counted():
    assert "31 outages of a namespace" in page(facts(outages_all=31))
    assert "These are the 2 with the most messages." in page(facts(outages_all=31))


def test_without_prices_there_is_no_money_and_a_word_on_how_to_get_it():
    words = Reader(page(facts(sheet=None))).words()
    assert "For money, give a price sheet: --prices FILE." in words
    assert "EUR" not in words


def test_a_report_of_nothing_is_a_whole_page():
    words = Reader(page(nothing())).words()
    assert "0 sent, 0 diverted, 0 recovered, 0 lost" in words
    assert "No queue failed in this time." in words
    assert "No message has left the backlog." in words
    assert "there is nothing to replay" in words
    assert "Every line of every file is an event" in words


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_it_is_written_into_the_folder_of_the_report(tmp_path, prefix):
    assert write_page(None, "<p>ü", f"{prefix}{tmp_path}/") == f"{prefix}{tmp_path}/report.html"
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "<p>ü"


# -- what it is -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [facts, nothing])
def test_it_is_one_file_that_loads_and_runs_nothing(made):
    text = page(made())
    reader = Reader(text)
    tags = {tag for tag, _ in reader.seen}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base", "form", "image", "use"})
    assert not re.search(r"https?:|//[a-z]|url\(|@import", text)
    for _, attributes in reader.seen:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset")]
        assert attributes.get("href", "#").startswith("#")
    [policy] = [each["content"] for each in reader.of("meta") if "http-equiv" in each]
    assert policy.startswith("default-src 'none'")
    assert {each["href"][1:] for each in reader.of("a")} <= {each["id"] for _, each in reader.seen if "id" in each}


def test_what_comes_from_journals_is_text_and_nothing_else():
    text = page(facts())
    reader = Reader(text)
    assert "<script" not in text
    assert "\x00" not in text
    assert "\u202e" not in text
    assert reader.words().count("<script>alert('1')</script>\"&\ufffd\ufffdevil") >= 4  # prices, reason, file, pairing


def test_it_has_landmarks_a_language_and_names_for_its_plots():
    reader = Reader(page(facts()))
    assert reader.of("html")[0]["lang"] == "en"
    assert [len(reader.of(tag)) for tag in ("header", "main", "footer", "h1", "title")] == [1] * 5
    assert "width=device-width" in next(each["content"] for each in reader.of("meta") if each.get("name") == "viewport")
    headings = {each["id"] for each in reader.of("h2")}
    assert {each["aria-labelledby"] for each in reader.of("section")} == headings
    assert headings == {"outages", "backlog", "cost", "what-if", "quality"}
    for each in reader.of("svg"):
        assert each.get("aria-hidden") == "true" or each["aria-label"]


def test_a_bar_is_as_long_as_its_share():
    text = page(facts(in_backlog=[50, 100, 0, 0, 0, 0, 0, 0, 0]))
    section = text[text.index('id="backlog"') : text.index('id="cost"')]
    assert re.findall(r'<rect x="0" y="0" width="([\d.]+)"', section) == ["50.00", "100.00", *["0.00"] * 7]


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "not known"),
        (0, "0 s"),
        (0.26, "0.3 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (485, "8 min 5 s"),
        (3599.9, "1 h"),
        (7800, "2 h 10 min"),
        (86400, "1 day"),
        (273600, "3 days 4 h"),
    ],
)
def test_durations(seconds, said):
    assert duration(seconds).replace("\xa0", " ") == said


def test_other_words():
    assert count(1_204_331) == "1,204,331"
    assert (clock(NOON), day_and_clock(NOON)) == ("12:00:00", "2 March 2026, 12:00:00")
    assert (money(1234.5, "USD"), money(0.00123, "USD"), money(0.0, "USD")) == (
        "1,234.50 USD",
        "0.0012 USD",
        "0.00 USD",
    )
    assert shortened("abcdefghij", 5) == "ab…ij"
    assert shortened("abcde", 5) == "abcde"


# -- in a browser -----------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --force-device-scale-factor=1"
)


@pytest.fixture
def browser(tmp_path):
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed: apt-get install chromium")
        pytest.skip("chromium is not installed")

    def run(*arguments):
        command = [CHROMIUM, *OPTIONS.split(), f"--user-data-dir={tmp_path / 'profile'}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def colours(file: Path):
    """Red, green and blue of every pixel of a PNG of 8 bits per channel, each colour once."""
    data, at, compressed = file.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", data[at + 8 : at + 18])
        elif kind == b"IDAT":
            compressed += data[at + 8 : at + 8 + length]
        at += length + 12
    channels = {2: 3, 6: 4}[colour]
    raw, row, seen = zlib.decompress(compressed), bytes(width * channels), set()
    for start in range(0, height * (len(row) + 1), len(row) + 1):
        row = _row(raw[start], raw[start + 1 : start + 1 + len(row)], row, channels)
        seen.update(zip(row[0::channels], row[1::channels], row[2::channels], strict=True))
    return seen


def _row(kind, line, above, channels):
    """What a line of a PNG stands for. In one loop, without calls: there are a million steps."""
    if kind == 0:
        return line
    if kind == 2:
        return bytes((here + up) & 255 for here, up in zip(line, above, strict=True))
    row = bytearray(channels)
    for here, up, corner in zip(line, above, bytes(channels) + above[:-channels], strict=True):
        left = row[-channels]
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + up) // 2
        else:
            to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
            guess = left if to_left <= to_up and to_left <= to_corner else up if to_up <= to_corner else corner
        row.append((here + guess) & 255)
    return bytes(row[channels:])


WIDTHS = (360, 390, 1200)
PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  document.title = [...document.querySelectorAll("iframe")].map(measured).join(", ");
}, 300));
function measured(frame) {
  const inside = frame.contentDocument, width = frame.clientWidth;
  const wide = [...inside.querySelectorAll("body *")].filter(each => each.getBoundingClientRect().right > width + 1);
  const tiny = [...inside.querySelectorAll("p, td, th, dt, dd, li, h2, h3")]
    .filter(each => each.innerText.trim().length > 20 && each.getBoundingClientRect().width < 60);
  return [inside.documentElement.scrollWidth, wide.length, tiny.length,
    inside.querySelectorAll("svg").length].join(" ");
}</script>"""


def test_nothing_sticks_out_and_nothing_is_squeezed(browser, tmp_path):
    """Measured by the browser, in frames as wide as phones: a window of its own cannot be so narrow."""
    (tmp_path / "report.html").write_text(page(facts()), encoding="utf-8")
    frames = [f'<iframe src="report.html" style="border:0;width:{each}px;height:9000px"></iframe>' for each in WIDTHS]
    (tmp_path / "frame.html").write_text("".join(frames) + PROBE, encoding="utf-8")
    dumped = browser(
        "--allow-file-access-from-files",
        "--virtual-time-budget=3000",
        "--window-size=1200,1000",
        "--dump-dom",
        f"file://{tmp_path}/frame.html",
    )
    [found] = re.findall(r"<title>(.*?)</title>", dumped)
    for width, measured in zip(WIDTHS, found.split(", "), strict=True):
        wide, sticking_out, squeezed, plots = map(int, measured.split())
        assert (wide, sticking_out, squeezed) == (width, 0, 0)
        assert plots > 20


def test_it_is_dark_on_light_and_its_plots_are_drawn(browser, tmp_path):
    (tmp_path / "report.html").write_text(page(facts()), encoding="utf-8")
    picture = tmp_path / "report.png"
    browser("--window-size=600,1500", f"--screenshot={picture}", f"file://{tmp_path}/report.html")
    wanted = ("ffffff", "1d2430", "c8452f", "f2c14e", "5b8fd6", "5577a8")
    assert {tuple(bytes.fromhex(each)) for each in wanted} <= colours(picture)


# -- the facts, from tables -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gathered(spark, fleet_with_outages, tried):
    from kombu_paired.pipeline.page.facts import gather
    from tests.pipeline.tables import SHEET

    fleet = fleet_with_outages
    quality = spark.createDataFrame(
        [("a.jsonl", None, None, "malformed", 3, None), (None, "h", 1, "missing_events", 2, None)],
        "file string, host string, pid bigint, problem string, count bigint, seconds double",
    )
    tables = {
        "messages": fleet.messages,
        "outages": fleet.outages,
        "quality": quality,
        "cost": tried.cost,
        "what_if": tried.what_if,
    }
    return fleet, gather(tables, SHEET)


def test_the_facts_are_those_of_the_truth(gathered):
    fleet, found = gathered
    truth = fleet.truth_messages()
    diverted = [row for row in truth if row["diverted_at"] is not None]
    left = [row["backlog_s"] for row in diverted if row["backlog_s"] is not None]
    assert found.balance["messages"] == len(truth)
    assert found.came_home == sum(row["syphoned_at"] is not None for row in diverted)
    bins = [0] * (len(BINS) + 1)
    for seconds in left:
        bins[sum(seconds >= end for end in BINS)] += 1
    assert found.in_backlog == bins
    assert found.backlog_s["longest"] == max(left)
    assert (found.balance["ran_meanwhile"], set(found.late_s.values())) == (0, {None}), "nobody stood in"
    assert found.since == min(row["first_sent_at"] for row in truth if row["first_sent_at"] is not None)
    times = ("delivered_at", "consumed_at", "diverted_at", "syphoned_at", "handed_out_at", "dead_lettered_at")
    assert found.until == max(row[name] for row in truth for name in times if row[name] is not None)


def test_the_outages_are_those_of_the_truth_with_their_queues_and_what_was_in_the_backlog(gathered):
    fleet, found = gathered
    rows = [row.asDict() for row in fleet.outages.collect()]
    whole = [row for row in rows if row["scope"] == "namespace"]
    assert (found.outages_all, found.outages_of_entities) == (len(whole), len(rows) - len(whole))
    assert [each.row["messages_diverted"] for each in found.outages] == [
        row["messages_diverted"] for row in sorted(whole, key=lambda row: row["first_failure_at"])
    ]
    for each in found.outages:
        assert len(each.entities) == each.row["entities"]
        assert sum(row["messages_diverted"] for row in each.entities) == each.row["messages_diverted"]
        assert len(each.backlog) == CURVE + 1
        assert max(each.backlog) <= each.row["messages_diverted"]
        assert each.row["first_failure_at"] > 10**15  # microseconds
    assert max(max(each.backlog) for each in found.outages) > 100
    assert found.outages[0].backlog[-1] >= found.outages[0].row["messages_waiting"] > 0


def test_the_other_facts(gathered):
    fleet, found = gathered
    sent = [line for line in fleet.lines if line["event"] == "consumed"]
    assert found.stages["complete_at_primary"][0] == len(sent)
    assert found.stages["complete_at_primary"][1] > 0
    assert found.settings_all == 12
    assert found.settings[0]["is_recommended"]
    assert found.problems == {"malformed": (3, 1, None), "missing_events": (2, 1, None)}
    assert [each["file"] for each in found.files] == ["a.jsonl"]
    Reader(page(found))
