"""The simulator: its journals look like the real ones, and its truth is what the rules make of the journals.

The rules are worked out here once more, from the files alone and by sorting and grouping, as the pipeline does it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kombu_paired.cli import main
from kombu_paired.events import EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.journal.format import JOURNAL_FIELDS, JOURNAL_VERSION
from kombu_paired.simulation import OUTAGE_KINDS, FleetSettings, lines, simulate
from kombu_paired.simulation.lines import garbage, problem_of, torn
from kombu_paired.simulation.spool import Spool
from kombu_paired.simulation.truth import Happened, OutageTruth, message_row

SECOND = 1_000_000
SMALL = FleetSettings(
    processes=9,
    days=0.4,
    outages=5,
    messages=9_000,
    pairings=2,
    garbage=0.02,
    duplicated=0.01,
    retried=0.02,
    odd_failures=0.01,
    waiting=0.01,
    dead_lettered=0.02,
    expired=0.02,
    holes=4,
    copies=4,
    lost_restored=4,
    restarts=3,
    killed=3,
    secondary_outages=2,
    pulled=4,
    stand_in_after=30,
    left_behind=0.1,
    empty=2,
    seed=3,
)


# -- reading the journals ---------------------------------------------------------------------------------------------


def lines_of(path):
    data = path.read_bytes()
    if path.suffix == ".gz" and data:
        try:
            data = gzip.decompress(data)
        except gzip.BadGzipFile:
            return None
    return [line for line in data.split(b"\n") if line.strip()]


class Read:
    """All that can be read in a folder of journals: events once each, and what is wrong."""

    def __init__(self, folder):
        self.problems = Counter()
        self.copies = Counter()
        self.files = {}
        events = {}
        for path in sorted(folder.iterdir()):
            lines = lines_of(path)
            if lines is None:
                self.problems[path.name, None, None, "unreadable"] = 1
                continue
            if not lines:
                self.problems[path.name, None, None, "empty"] = 1
            self.files[path.name] = found = []
            for line in lines:
                problem = problem_of(line)
                if problem:
                    self.problems[path.name, None, None, problem] += 1
                    continue
                event = json.loads(line)
                found.append(event)
                identity = (event["host"], event["pid"], event["seq"], event["time"])
                if identity in events:
                    self.copies[event["host"], event["pid"]] += 1
                events[identity] = event
        self.events = list(events.values())


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulated")
    outcome = simulate(SMALL, folder / "journals", folder / "truth")
    return folder, outcome, Read(folder / "journals")


def truth_messages(folder):
    with gzip.open(folder / "truth" / "truth-messages.jsonl.gz", "rt", encoding="utf-8") as file:
        return {row["message_id"]: row for row in map(json.loads, file)}


# -- the rules once more ----------------------------------------------------------------------------------------------


def least(values):
    return min((value for value in values if value is not None), default=None)


def greatest(*values):
    return max((value for value in values if value is not None), default=None)


def fate(n, there, handed, sends, copies, letters, expired, maybe):
    owed = max(sends, 1)
    back = there["syphoned"] + there["dead_lettered"]
    rules = [
        ("duplicated", copies > owed),
        ("waiting", n["diverted"] > n["syphoned"] + letters + handed - back and (maybe or copies < sends)),
        ("dead-lettered", letters > expired and copies < owed),
        ("expired", expired > 0 and copies < owed),
        ("stood-in", there["consumed"] > 0 or (handed > back and not n["consumed"])),
        ("recovered", n["diverted"] + n["syphoned"] + handed > 0),
        ("direct", n["sent"] > 0),
    ]
    return next((name for name, holds in rules if holds), "unknown")


def grouped_message(message_id, events):
    n = Counter(event["event"] for event in events)
    there = Counter(event["event"] for event in events if event.get("route") == "stand-in")
    handed = max(n["handed_out"], there["consumed"] + there["syphoned"] + there["dead_lettered"])
    first = least(event.get("first_attempt") for event in events)

    def at(kind):
        return least(event["time"] for event in events if event["event"] == kind)

    def of(kinds, key):
        return [event[key] for event in events if event["event"] in kinds]

    destination = ("sent", "send_failed", "diverted", "backlog_unavailable", "syphoned", "handed_out")
    named = [(e["pairing"], e["entity"]) for e in events if e["event"] in destination]
    named = named or [(e["pairing"], e["entity"]) for e in events if e["event"] == "consumed"]
    pairing, entity = min(named, default=(None, None))
    size = least(of(("sent", "send_failed", "backlog_unavailable"), "bytes"))
    if size is None:
        size = least(of(("diverted", "syphoned", "handed_out"), "bytes"))
    detour = handed + sum(n[k] for k in ("diverted", "received_from_backlog", "abandoned", "syphoned", "dead_lettered"))
    diverted, maybe = at("diverted"), any(event.get("maybe_duplicate") for event in events)
    syphoned = greatest(at("syphoned"), diverted, first) if n["syphoned"] else None
    dead = greatest(at("dead_lettered"), diverted, first) if n["dead_lettered"] else None
    handed_out = greatest(at("handed_out"), diverted, first) if n["handed_out"] else None
    ran_there = least(e["time"] for e in events if e["event"] == "consumed" and e.get("route") == "stand-in")
    delivered = least((at("sent"), syphoned, handed_out))
    consumed = greatest(at("consumed"), first, None if maybe else delivered) if n["consumed"] else None
    out = least((syphoned, handed_out))
    out = dead if out is None else out
    sends, arrived = n["sent"] + n["diverted"], n["sent"] + n["syphoned"] - there["syphoned"] + handed
    copies = max(arrived - there["dead_lettered"], n["consumed"])
    expired = of(("dead_lettered",), "detail").count("TTLExpiredException")
    ways = (
        (diverted, at("syphoned")),
        (diverted, at("handed_out")),
        (diverted, at("dead_lettered")),
        (first, at("consumed")),
    )
    skews = [cause - effect for cause, effect in ways if cause is not None and effect is not None]
    return {
        "message_id": message_id,
        "pairing": pairing,
        "entity": entity,
        "first_sent_at": first,
        "bytes": size,
        "route": {(1, 0): "primary", (0, 1): "stand-in" if handed else "backlog", (1, 1): "both"}.get(
            (bool(n["sent"]), bool(detour))
        ),
        "backlog_queue": least(int(e["route"][8:]) for e in events if e.get("route", "").startswith("backlog/")),
        "diverted_at": diverted,
        "syphoned_at": syphoned,
        "handed_out_at": handed_out,
        "dead_lettered_at": dead,
        "delivered_at": delivered,
        "consumed_at": consumed,
        "backlog_s": None if diverted is None or out is None else (out - diverted) / 1e6,
        "late_s": None if None in (ran_there, first) else (greatest(ran_there, first, handed_out) - first) / 1e6,
        "sends": sends,
        "copies_delivered": copies,
        "failed_tries": n["send_failed"],
        "caller_errors": n["backlog_unavailable"],
        "maybe_duplicate": maybe,
        "skew_s": max([0, *skews]) / 1e6,
        "fate": fate(n, there, handed, sends, copies, n["dead_lettered"], expired, maybe),
    }


def evidence(event):
    """Bad, good, or nothing about an outage."""
    kind, failure = event["event"], event.get("failure")
    if kind in ("suspect", "failed_over") or (kind == "ping" and failure):
        return "bad"
    if kind == "send_failed":
        return "bad" if FailureKind(failure).counts else None
    return "good" if kind in ("restored", "ping") else None


def intervals(events):
    """Of each process and entity, as dicts."""
    found = []
    of = defaultdict(list)
    for event in events:
        if evidence(event):
            of[event["pairing"], event["entity"], event["host"], event["pid"]].append(event)
    for (pairing, entity, host, pid), those in of.items():
        those.sort(key=lambda event: event["seq"])
        numbers, number = [], 0
        for before, event in zip([None, *those], those, strict=False):
            is_new = before is None or evidence(before) == "good" or event["time"] - before["time"] > 3600 * SECOND
            number += evidence(event) == "bad" and is_new
            numbers.append(number)
        for number in sorted(set(numbers) - {0}):
            part = [event for event, its in zip(those, numbers, strict=True) if its == number]
            bad = [event for event in part if evidence(event) == "bad"]
            good = least(event["time"] for event in part if evidence(event) == "good")
            found.append(
                {
                    "where": (pairing, entity),
                    "process": (host, pid),
                    "start": min(event["time"] for event in bad),
                    "end": good if good is not None else max(event["time"] for event in bad),
                    "good": good,
                    "over": least(event["time"] for event in part if event["event"] == "failed_over"),
                    "kinds": {event["failure"] for event in bad if "failure" in event},
                }
            )
    return found


def islands(rows, start, end):
    """Rows in lists; a list ends where more than 10 s pass before the next begins."""
    groups = []
    for row in sorted(rows, key=start):
        if groups and start(row) <= max(map(end, groups[-1])) + 10 * SECOND:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def grouped_outages(events, messages):
    minutes = defaultdict(list)
    for event in events:
        if event["event"] == "sent":
            key = (event["pairing"], event["entity"], event["host"], event["pid"], event["time"] // (60 * SECOND))
            minutes[key].append(event["time"])
    of_entity = defaultdict(list)
    for interval in intervals(events):
        of_entity[interval["where"]].append(interval)
    entities = []
    for where, those in of_entity.items():
        for group in islands(those, lambda each: each["start"], lambda each: each["end"]):
            row = {"where": where, "intervals": group, "messages": []}
            row["first"], row["end"] = min(i["start"] for i in group), max(i["end"] for i in group)
            entities.append(row)
    for message in messages:
        if message["diverted_at"] is None:
            continue
        where, at = (message["pairing"], message["entity"]), message["diverted_at"]
        before = [row for row in entities if row["where"] == where and row["first"] <= at]
        latest = max(before, key=lambda row: row["first"], default=None)
        if latest and at <= latest["end"] + 3600 * SECOND:
            latest["messages"].append(message)
    rows = [outage_row("entity", [row], minutes) for row in entities]
    for pairing in {row["where"][0] for row in entities}:
        its = [row for row in entities if row["where"][0] == pairing]
        for group in islands(its, lambda row: row["first"], lambda row: row["end"]):
            rows.append(outage_row("namespace", group, minutes))
    return sorted(rows, key=lambda r: (r["scope"], r["pairing"], r["entity"] or "", r["first_failure_at"]))


def outage_row(scope, parts, minutes):
    its = [interval for part in parts for interval in part["intervals"]]
    messages = [message for part in parts for message in part["messages"]]
    first, end = min(part["first"] for part in parts), max(part["end"] for part in parts)
    restored, over = greatest(*(i["good"] for i in its)), least(i["over"] for i in its)
    ways_out = ("syphoned_at", "dead_lettered_at", "handed_out_at")
    left_by = [next((name for name in ways_out if m[name] is not None), None) for m in messages]
    outs = [m[name] if name else None for m, name in zip(messages, left_by, strict=True)]
    late = sorted(m["late_s"] for m in messages if m["late_s"] is not None)
    drained = max(outs) if outs and None not in outs else None
    wheres, saw = {part["where"] for part in parts}, {i["process"] for i in its}
    went_on = {
        key[2:4]
        for key, times in minutes.items()
        if key[:2] in wheres and max(times) >= first and min(times) <= end and key[2:4] not in saw
    }
    return {
        "scope": scope,
        "pairing": parts[0]["where"][0],
        "entity": parts[0]["where"][1] if scope == "entity" else None,
        "entities": len(wheres),
        "first_failure_at": first,
        "failed_over_at": over,
        "restored_at": restored,
        "ended_at": end,
        "drained_at": drained,
        "detect_s": None if over is None else (over - first) / 1e6,
        "restore_s": None if restored is None else (restored - first) / 1e6,
        "drain_s": None if drained is None or restored is None else max(0, drained - restored) / 1e6,
        "failure_kinds": sorted(set().union(*(i["kinds"] for i in its))),
        "messages_diverted": len(messages),
        "messages_recovered": left_by.count("syphoned_at"),
        "messages_stood_in": left_by.count("handed_out_at"),
        "messages_dead_lettered": left_by.count("dead_lettered_at"),
        "messages_waiting": outs.count(None),
        "messages_ran_meanwhile": len(late),
        "late_median_s": late[-(-len(late) // 2) - 1] if late else None,
        "late_p95_s": late[-(-len(late) * 95 // 100) - 1] if late else None,
        "processes_saw": len(saw),
        "processes_unrestored": len({i["process"] for i in its if i["good"] is None}),
        "processes_unaffected": len(went_on),
    }


# -- the truth --------------------------------------------------------------------------------------------------------


def test_the_rows_of_messages_are_what_the_journals_say(simulated):
    folder, _, read = simulated
    of = defaultdict(list)
    for event in read.events:
        if "message_id" in event:
            of[event["message_id"]].append(event)
    known = truth_messages(folder)
    assert known.keys() == of.keys()
    for message_id, events in of.items():
        assert known[message_id] == grouped_message(message_id, events)


def test_the_rows_of_outages_are_what_the_journals_say(simulated):
    folder, outcome, read = simulated
    text = (folder / "truth" / "truth-outages.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    assert rows == outcome.outages
    assert rows == grouped_outages(read.events, truth_messages(folder).values())


def test_the_rows_of_quality_are_what_the_files_say(simulated):
    folder, outcome, read = simulated
    rows = json.loads((folder / "truth" / "truth-quality.json").read_text(encoding="utf-8"))
    assert rows == outcome.quality
    found = Counter(read.problems)
    for process, count in read.copies.items():
        found[(None, *process, "duplicate_events")] = count
    numbers = defaultdict(set)
    for event in read.events:
        numbers[event["host"], event["pid"]].add(event["seq"])
    for process, seqs in numbers.items():
        if missing := max(seqs) - min(seqs) + 1 - len(seqs):
            found[(None, *process, "missing_events")] = missing
    skews = [row["skew_s"] for row in truth_messages(folder).values() if row["skew_s"] > 0]
    found[None, None, None, "clock_skew"] = len(skews)
    assert {(row["file"], row["host"], row["pid"], row["problem"]): row["count"] for row in rows} == found
    [skew] = [row["seconds"] for row in rows if row["problem"] == "clock_skew"]
    assert skew == max(skews)


def test_the_balance_adds_up(simulated):
    folder, outcome, read = simulated
    balance = json.loads((folder / "truth" / "truth-balance.json").read_text())
    rows = list(truth_messages(folder).values())
    fates = Counter(row["fate"] for row in rows)
    assert balance == outcome.balance
    assert balance["messages"] == len(rows)
    assert {name: balance[name] for name in fates} == fates
    assert balance["diverted"] == sum(row["diverted_at"] is not None for row in rows)
    assert balance["consumed"] == sum(row["consumed_at"] is not None for row in rows)
    assert balance["lost"] == 0
    assert outcome.events == len(read.events)


# -- what is in it ----------------------------------------------------------------------------------------------------


def test_every_fate_and_every_problem_is_in_it(simulated):
    _, outcome, _ = simulated
    fates = ("direct", "recovered", "waiting", "dead-lettered", "expired", "duplicated", "unknown")
    assert all(outcome.balance[name] > 0 for name in (*fates, "refused"))
    problems = {row["problem"] for row in outcome.quality}
    assert problems == {
        "clock_skew",
        "duplicate_events",
        "empty",
        "malformed",
        "missing_events",
        "truncated",
        "unknown_version",
        "unreadable",
    }


def test_every_kind_of_event_and_failure_is_in_it(simulated):
    *_, read = simulated
    assert {event["event"] for event in read.events} == {kind.value for kind in EventKind}
    failures = {event["failure"] for event in read.events if "failure" in event}
    assert failures == {kind.value for kind in FailureKind}
    pings = Counter("failure" in event for event in read.events if event["event"] == "ping")
    assert pings[True]
    assert pings[False]


def test_outages_are_partial_and_overlap(simulated):
    _, outcome, _ = simulated
    entities = [row for row in outcome.outages if row["scope"] == "entity"]
    namespaces = [row for row in outcome.outages if row["scope"] == "namespace"]
    assert any(row["processes_unaffected"] and row["failed_over_at"] for row in entities)
    assert any(row["entities"] > 1 for row in namespaces)
    assert any(row["entities"] == 1 for row in namespaces)
    assert any(row["processes_unrestored"] for row in entities)
    assert sum(row["entities"] for row in namespaces) == len(entities)
    assert {row["pairing"] for row in namespaces} == {"main", "main-1"}


def test_a_message_can_come_home_before_it_was_diverted_by_the_clocks_alone(simulated):
    folder, _, read = simulated
    times = defaultdict(dict)
    for event in read.events:
        if event["event"] in ("diverted", "syphoned"):
            times[event["message_id"]].setdefault(event["event"], event["time"])
    assert any(each.get("syphoned", 2**62) < each.get("diverted", 0) for each in times.values())
    rows = truth_messages(folder).values()
    assert all(r["syphoned_at"] >= r["diverted_at"] for r in rows if r["syphoned_at"] and r["diverted_at"])


# -- the form ---------------------------------------------------------------------------------------------------------

FIELDS = {each.name: each for each in JOURNAL_FIELDS}
TYPES = {"integer": int, "number": (int, float), "text": str, "boolean": bool}


def test_lines_have_the_fields_of_the_journal_in_their_order(simulated):
    *_, read = simulated
    order = list(FIELDS)
    required = {name for name, each in FIELDS.items() if each.required}
    for event in read.events:
        assert list(event) == sorted(event, key=order.index)
        assert required <= event.keys()
        assert event["v"] == JOURNAL_VERSION
        assert all(isinstance(value, TYPES[FIELDS[name].type]) for name, value in event.items())
        assert None not in event.values()


def test_files_are_named_after_their_hour_and_process_and_numbered_by_time(simulated):
    *_, read = simulated
    pattern = re.compile(r"(\d{8}T\d\d)-(host-\d+)-(\d+)-(\d{16})\.(jsonl\.gz|jsonl\.part|jsonl|copy\.jsonl\.gz)")
    for name, events in read.files.items():
        if not events:
            continue
        hour, host, pid, start, _ = pattern.fullmatch(name).groups()
        assert {(event["host"], event["pid"]) for event in events} == {(host, int(pid))}
        assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
        assert [event["time"] for event in events] == sorted(event["time"] for event in events)
        assert int(start) <= events[0]["time"]
        assert {event["time"] // (3600 * SECOND) for event in events} == {events[0]["time"] // (3600 * SECOND)}
        assert hour[9:] == f"{events[0]['time'] // (3600 * SECOND) % 24:02}"


def test_a_killed_process_leaves_a_torn_line_at_the_end_of_a_part(simulated):
    folder, *_ = simulated
    parts = [path for path in (folder / "journals").iterdir() if path.suffix == ".part"]
    assert len(parts) == SMALL.killed
    for part in parts:
        assert not part.read_bytes().endswith(b"\n")
        assert problem_of(lines_of(part)[-1]) == "truncated"


def test_events_of_one_message_agree_with_each_other(simulated):
    *_, read = simulated
    for event in read.events:
        if event["event"] in ("received_from_backlog", "abandoned", "dead_lettered", "polled"):
            is_there = event.get("route") == "stand-in"
            kept = r"x-paired-standin/.+" if is_there else r"x-servicebus-transfer/\d"
            assert re.fullmatch(rf"main(-1)?/{kept}", event["entity"])
        if event["event"] in ("diverted", "syphoned", "handed_out"):
            assert re.fullmatch(
                r"backlog/\d" if event["event"] != "syphoned" else r"backlog/\d|stand-in", event["route"]
            )
            assert event["first_attempt"] > 0
        if event["event"] == "diverted":
            assert event["time"] - event["first_attempt"] == pytest.approx(1000 * event["ms"], abs=1)
    polled = Counter()
    for event in read.events:
        if event["event"] == "polled":
            polled["polled"] += int(event["detail"].removesuffix(" messages"))
        polled[event["event"] == "received_from_backlog" and event["route"] != "stand-in"] += 1
    lost = SMALL.holes * 200
    assert abs(polled["polled"] - polled[True]) < lost


# -- settings ---------------------------------------------------------------------------------------------------------


def test_the_same_settings_write_the_same_bytes(tmp_path):
    settings = replace(SMALL, messages=1_500, processes=3, days=0.05, outages=2)
    for name in ("once", "again"):
        simulate(settings, tmp_path / name, tmp_path / f"truth-{name}")
    for first, second in (("once", "again"), ("truth-once", "truth-again")):
        contents = [{p.name: p.read_bytes() for p in (tmp_path / each).iterdir()} for each in (first, second)]
        assert contents[0] == contents[1]
    simulate(replace(settings, seed=99), tmp_path / "other")
    assert {p.name: p.read_bytes() for p in (tmp_path / "other").iterdir()} != contents[0]


def test_workers_stand_in_while_the_whole_primary_is_away_and_only_if_they_are_told_to(tmp_path):
    settings = replace(QUIET, outage_kinds=("namespace", "entity"), outages=2, pairings=1, stand_in_after=60)
    settings = replace(settings, left_behind=0.2)
    outcome = simulate(settings, tmp_path / "journals")
    n = Counter(event["event"] for event in Read(tmp_path / "journals").events)
    workers = settings.processes // 2
    assert n["standing_in"] == n["came_home"] == workers
    main = [each for each in outcome.outages if each["scope"] == "namespace"]
    row, entity = sorted(main, key=lambda each: each["first_failure_at"])
    assert row["messages_recovered"] > 0 < row["messages_ran_meanwhile"] == row["messages_stood_in"]
    assert 0 < row["late_median_s"] <= row["late_p95_s"] <= 120
    assert entity["messages_ran_meanwhile"] == 0, "of an entity alone no worker knows"
    assert outcome.balance["stood-in"] == outcome.balance["ran_meanwhile"] > 0
    assert n["handed_out"] > outcome.balance["stood-in"], "some are left behind, and come home"

    simulate(replace(settings, stand_in_after=0), tmp_path / "never")
    told = {event["event"] for event in Read(tmp_path / "never").events}
    assert not told & {"standing_in", "came_home", "handed_out"}


def test_without_faults_every_message_is_accounted_for(tmp_path):
    settings = replace(SMALL, messages=3_000, odd_failures=0, secondary_outages=0).without_faults()
    outcome = simulate(settings, tmp_path / "journals")
    assert outcome.quality == []
    assert outcome.balance["messages"] == outcome.balance["accepted"] == 3_000
    assert outcome.balance["unknown"] == outcome.balance["refused"] == 0
    assert outcome.balance["recovered"] > 0


QUIET = replace(
    SMALL, messages=1_000, processes=5, days=0.1, odd_failures=0, duplicated=0, waiting=0, secondary_outages=0
).without_faults()


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ({"skew": 3.0}, {"clock_skew"}),
        ({"holes": 3}, {"missing_events"}),
        ({"copies": 1}, {"duplicate_events"}),
        ({"killed": 1}, {"truncated"}),
        ({"garbage": 0.05}, {"malformed", "truncated"}),
        ({"future": 2}, {"unknown_version"}),
        ({"empty": 1}, {"empty"}),
        ({"binary": 2}, {"malformed", "unreadable"}),
        ({"lost_restored": 2}, {"missing_events"}),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
def test_each_fault_can_be_switched_on_alone(tmp_path, fault, problem):
    outcome = simulate(replace(QUIET, **fault), tmp_path / "journals")
    assert {row["problem"] for row in outcome.quality} == problem


@pytest.mark.parametrize("kind", OUTAGE_KINDS)
def test_each_kind_of_outage_alone(tmp_path, kind):
    settings = replace(QUIET, outage_kinds=(kind,), outages=2, messages=4_000, pairings=1)
    outcome = simulate(settings, tmp_path / "journals")
    namespaces = [row for row in outcome.outages if row["scope"] == "namespace"]
    assert namespaces
    entities = max(row["entities"] for row in namespaces)
    assert entities == {"entity": 1, "overlapping": 2}.get(kind, entities)
    if kind != "blip":
        assert any(row["processes_unaffected"] for row in namespaces) == (kind == "partial")
        assert all(row["failed_over_at"] for row in namespaces)


def test_a_blip_under_dense_traffic_is_over_before_anything_is_failed_over(tmp_path):
    settings = replace(QUIET, outage_kinds=("blip",), outages=1, messages=8_000, days=0.01, processes=2, entities=1)
    [entity, namespace] = simulate(settings, tmp_path / "journals").outages
    for row in (entity, namespace):
        assert row["failed_over_at"] is None
        assert 0 < row["restore_s"] < settings.failover_interval
        assert row["messages_diverted"] == row["messages_recovered"] + row["messages_dead_lettered"] > 0


def test_no_outage_no_row(tmp_path):
    outcome = simulate(replace(QUIET, outages=0), tmp_path / "journals")
    assert outcome.outages == []
    assert outcome.balance["direct"] == outcome.balance["messages"] == 1_000


def test_the_tight_loop_writes_what_the_long_way_writes(tmp_path):
    """Messages that go straight, in a time without outages: each by both ways."""
    settings = replace(QUIET, outages=0, messages=2_000, skew=3.0)
    folder = tmp_path / "journals"
    simulate(settings, folder, tmp_path / "truth")
    rows, forms = truth_messages(tmp_path), defaultdict(set)
    for event in Read(folder).events:
        if "message_id" in event:
            forms[event["message_id"], event["event"]].add(tuple(event))
    fields = "v time first_attempt host pid seq event pairing entity message_id route bytes ms"
    assert {form for (_, kind), those in forms.items() if kind == "sent" for form in those} == {tuple(fields.split())}
    assert all(row["fate"] == "direct" for row in rows.values())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"processes": 0}, "processes must be at least 1"),
        ({"days": 0}, "days must be above 0"),
        ({"garbage": -0.1}, "garbage must be at least 0"),
        ({"garbage": 2.0}, "not be more than 1"),
        ({"waiting": 0.6, "expired": 0.6}, "not be more than 1 together"),
        ({"outage_kinds": ("flood",)}, "flood"),
        ({"outage_kinds": ()}, "none"),
    ],
)
def test_a_setting_out_of_bounds_is_said(change, said):
    with pytest.raises(ValueError, match=said):
        FleetSettings(**change)


def test_a_setting_is_changed_by_its_name():
    settings = (
        FleetSettings().changed("garbage", "0.25").changed("killed", "7").changed("outage_kinds", "blip, partial")
    )
    assert (settings.garbage, settings.killed, settings.outage_kinds) == (0.25, 7, ("blip", "partial"))
    with pytest.raises(ValueError, match="did you mean garbage"):
        settings.changed("garbge", "1")
    with pytest.raises(ValueError, match="killed must be a whole number, not 'few'"):
        settings.changed("killed", "few")


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    tmp_path.joinpath("mine").write_text("x")
    with pytest.raises(FileExistsError, match="not empty"):
        simulate(QUIET, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# -- the parts --------------------------------------------------------------------------------------------------------


def test_garbage_is_garbage_and_a_torn_line_is_truncated():
    rng = random.Random(1)
    kinds = {problem_of(garbage(rng).encode(errors="surrogateescape")) for _ in range(300)}
    assert kinds == {"malformed", "truncated"}
    line = '{"v":1,"time":1,"host":"h","pid":1,"seq":1,"event":"sent","pairing":"main"}\n'
    assert problem_of(line.encode()) is None
    assert {problem_of(torn(line, rng).encode()) for _ in range(300)} == {"truncated"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"v": JOURNAL_VERSION + 1}, "unknown_version"),
        ({"v": JOURNAL_VERSION + 1, "time": "noon", "event": "entangled"}, "unknown_version"),
        ({"v": None}, "malformed"),
        ({"v": "1"}, "malformed"),
        ({"v": 1.0}, "malformed"),
        ({"v": True}, "malformed"),
        ({"v": 0}, "malformed"),
        ({"v": 2**63}, "malformed"),
        ({"time": 1.5}, "malformed"),
        ({"time": 2**63}, "malformed"),
        ({"seq": None}, "malformed"),
        ({"event": "teleported"}, "malformed"),
        ({"bytes": None}, None),
        ({"bytes": True}, "malformed"),
        ({"more": "is no harm"}, None),
    ],
)
def test_what_is_wrong_with_a_line(changes, problem):
    line = {"v": 1, "time": 1, "host": "h", "pid": 1, "seq": 1, "event": "sent", "pairing": "main", **changes}
    assert problem_of(json.dumps(line).encode()) == problem


def test_a_line_of_an_earlier_version_is_an_event(monkeypatch):
    monkeypatch.setattr(lines, "JOURNAL_VERSION", JOURNAL_VERSION + 1)
    line = {"time": 1, "host": "h", "pid": 1, "seq": 1, "event": "sent", "pairing": "main"}
    problems = [problem_of(json.dumps(line | {"v": version}).encode()) for version in range(JOURNAL_VERSION + 3)]
    assert problems == ["malformed", *[None] * (JOURNAL_VERSION + 1), "unknown_version"]


def test_the_spool_gives_back_what_it_got_from_memory_and_disk_in_order():
    rng = random.Random(5)
    records = [(rng.randrange(4), number, "", None if number % 7 == 0 else str(number)) for number in range(500)]
    expected = defaultdict(list)
    with Spool(limit=64) as spool:
        for record in records:
            spool.add(record[0], record)
            expected[record[0]].append(record)
        assert {number: list(spool.take(number)) for number in range(4)} == expected
        assert all(not list(spool.take(number)) for number in range(4))


ENTITY = ("main", "orders")


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([("sent", 5)], "direct"),
        ([("sent", 5), ("consumed", 9)], "direct"),
        ([("sent", 5), ("consumed", 9), ("consumed", 12)], "duplicated"),
        ([("sent", 5), ("consumed", 9), ("sent", 12), ("consumed", 14)], "direct"),
        ([("diverted", 5)], "waiting"),
        ([("diverted", 5), ("syphoned", 9)], "recovered"),
        ([("diverted", 5), ("syphoned", 9), ("syphoned", 12)], "duplicated"),
        ([("sent", 1), ("diverted", 5)], "waiting"),
        ([("sent", 1), ("diverted", 5), ("consumed", 6), ("consumed", 7)], "recovered"),
        ([("diverted", 5), ("dead_lettered", 9)], "dead-lettered"),
        ([("diverted", 5), ("dead_lettered", 9, "TTLExpiredException")], "expired"),
        ([("diverted", 5), ("syphoned", 6), ("dead_lettered", 9)], "recovered"),
        ([("send_failed", 5), ("diverted", 6, None, True), ("consumed", 7)], "waiting"),
        ([("diverted", 6, None, True), ("consumed", 7), ("syphoned", 9), ("consumed", 10)], "duplicated"),
        ([("backlog_unavailable", 5)], "unknown"),
        ([("consumed", 5)], "unknown"),
        ([("syphoned", 5)], "recovered"),
    ],
    ids=lambda each: each if isinstance(each, str) else "-".join(event[0] for event in each),
)
def test_fates(history, expected):
    happened = []
    for event, time, *rest in history:
        detail, maybe = (*rest, None, False)[:2] if len(rest) < 2 else rest
        happened.append(Happened(event, time, ENTITY, 1, 10, None, bool(maybe), detail))
    assert message_row("m", happened)["fate"] == expected


def test_a_lost_restored_event_ends_an_outage_with_its_last_ping_and_a_silence_begins_a_new_one():
    truth = OutageTruth()
    hour = 3600 * SECOND
    for start in (0, hour // 2, 3 * hour):
        for time in range(start, start + 300 * SECOND, 60 * SECOND):
            truth.bad(1, *ENTITY, time, "unreachable")
    rows = [row for row in truth.rows() if row["scope"] == "entity"]
    assert [row["first_failure_at"] for row in rows] == [0, 3 * hour]
    assert [row["restored_at"] for row in rows] == [None, None]
    assert [row["ended_at"] for row in rows] == [hour // 2 + 240 * SECOND, 3 * hour + 240 * SECOND]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_outages_of_processes_are_joined_whatever_the_order_in_which_they_are_told(order):
    truth = OutageTruth()
    windows = [(0, 50), (59, 70), (85, 90)]
    for process in order:
        begin, end = windows[process]
        truth.bad(process, *ENTITY, begin * SECOND, "timeout")
        truth.good(process, *ENTITY, end * SECOND)
    rows = [row for row in truth.rows() if row["scope"] == "entity"]
    assert [(row["first_failure_at"], row["ended_at"], row["processes_saw"]) for row in rows] == [
        (0, 70 * SECOND, 2),
        (85 * SECOND, 90 * SECOND, 1),
    ]


# -- the command ------------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def test_the_command_writes_journals_and_truth(tmp_path):
    out, truth = tmp_path / "journals", tmp_path / "truth"
    done = run("--fleet", 3, "--days", 0.1, "--outages", 1, "--messages", 500, "--out", out, "--truth", truth)
    assert done.exit_code == 0, done.output
    assert "outages of entities" in done.stdout
    assert {path.name for path in truth.iterdir()} == {
        "truth-balance.json",
        "truth-messages.jsonl.gz",
        "truth-outages.jsonl",
        "truth-quality.json",
        "truth-simulation.json",
    }
    assert len(Read(out).events) > 500
    contents = json.loads((truth / "truth-simulation.json").read_text())
    assert contents["settings"]["processes"] == 3
    assert [outage["kind"] for outage in contents["planned_outages"]] == ["namespace"]


def test_the_command_in_json_with_settings_and_without_faults(tmp_path):
    done = run(
        "--messages", 400, "--clean", "--set", "outages=0", "--set", "empty=1", "--json", "--out", tmp_path / "j"
    )
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["balance"]["messages"] == 400
    assert (tmp_path / "j" / "empty-0.jsonl").stat().st_size == 0
    assert facts["files"] == len(list((tmp_path / "j").iterdir()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fleet", "0"], "processes must be at least 1"),
        (["--set", "garbge=1"], "did you mean garbage"),
        (["--set", "garbage"], "NAME=VALUE"),
        (["--set", "killed=some"], "killed must be a whole number"),
        (["--truth", "{out}/truth"], "must not lie in --out"),
    ],
)
def test_wrong_usage_of_the_command(tmp_path, arguments, said):
    done = run("--out", tmp_path / "out", *(each.format(out=tmp_path / "out") for each in arguments))
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


def test_the_command_says_which_settings_there_are():
    done = run("--list-settings")
    assert done.exit_code == 0
    assert "garbage=0.001" in done.output.splitlines()
    assert "outage_kinds=namespace,entity,partial,overlapping,blip" in done.output.splitlines()


def test_the_command_leaves_a_used_folder_alone(tmp_path):
    tmp_path.joinpath("mine").touch()
    done = run("--out", tmp_path)
    assert done.exit_code == 1
    assert "not empty" in done.output
