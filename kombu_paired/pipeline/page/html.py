"""``report.html``: one file that says what the outage did. No script, no network; all text in it is escaped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kombu_paired.pipeline.page.facts import BINS, Facts, Outage, Row
from kombu_paired.pipeline.page.markup import Markup, element, joined
from kombu_paired.pipeline.page.plots import bar, legend, settings_plot, timeline
from kombu_paired.pipeline.page.style import COLOURS, STYLE
from kombu_paired.pipeline.page.words import count, counted, day_and_clock, duration, money

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("page", "write_page")

#: Nothing is loaded, and nothing runs, whatever a journal says.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

FATES = {
    "direct": ("went straight", "The primary took it."),
    "recovered": ("came home", "It took the detour through the backlog, and the syphon brought it to the primary."),
    "stood-in": ("ran meanwhile", "Workers that stood in ran it, while the primary was away."),
    "waiting": ("wait in the backlog", "Stored in a backlog queue, and not brought home yet. A syphon will."),
    "dead-lettered": ("dead letters", "They can never be delivered; they are in the dead letters of a backlog queue."),
    "expired": ("expired", "Their own time to live ran out in the backlog."),
    "duplicated": ("delivered twice", "More copies arrived than were sent. Tasks that must run once should check."),
    "unknown": ("not accepted", "The caller got an error, or the journal that knew more is not there."),
}
#: Those of which a journal tells.
STAGE_WORDS = {
    "send_to_primary": "sends straight to the primary",
    "send_to_backlog": "sends to a backlog queue",
    "receive_from_backlog": "receives by the syphon",
    "complete_in_backlog": "completes by the syphon",
    "send_home": "sends home by the syphon",
    "receive_from_primary": "receives by workers",
    "complete_at_primary": "completes by workers",
    "lock_renewal": "lock renewals by workers",
    "ping": "pings of what was down",
    "heartbeat": "heartbeats of workers",
    "idle_receive": "polls of empty backlog queues",
}
PROBLEMS = {
    "truncated": "lines that end in the middle: a process was killed while it wrote",
    "malformed": "lines that are no events",
    "unknown_version": "lines of a later version of the format: update kombu-paired to read them",
    "empty": "files without a line",
    "unreadable": "files that cannot be read, or end too early: nothing of them is in this report",
    "missing_events": "events that are missing in a process's numbers: what they said is not in this report",
    "duplicate_events": "events that were there twice, and count once",
    "clock_skew": "messages with an effect before its cause: clocks differ",
}


def page(facts: Facts) -> str:
    """The whole file."""
    body = element(
        "body",
        element("header", element("h1", "What the outage did"), _balance(facts)),
        element("main", _outages(facts), _time_in_backlog(facts), _cost(facts), _what_if(facts), _quality(facts)),
        element("footer", element("p", "Made by kombu-paired report. Times are in UTC.", class_="soft")),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"What the outage did: {_sentence(facts)}"),
        element("style", Markup(STYLE)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def write_page(spark: SparkSession, text: str, out: str) -> str:
    """Write the page as ``report.html`` into a report's folder.

    Where only Spark can write, it is a folder of this name with the page as its one file.

    Returns:
        Its path or URL.
    """
    place = f"{out.rstrip('/')}/report.html"
    if "://" in out and not out.startswith("file://"):
        spark.createDataFrame([(text,)], "value string").coalesce(1).write.mode("overwrite").text(place)
    else:
        Path(place.removeprefix("file://")).write_text(text, encoding="utf-8")
    return place


def _section(name: str, title: str, *parts: object, class_: str | None = None) -> Markup:
    heading = element("h2", title, id=name)
    return element("section", heading, *parts, aria_labelledby=name, class_=class_)


def _paragraph(*parts: object, class_: str | None = None) -> Markup:
    return element("p", *parts, class_=class_)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "", class_: str = "") -> Markup:
    """The first cell of each row names it; on a phone the others are listed under it."""
    named = [element("th", columns[0], scope="col")]
    named += [element("th", name, scope="col", class_=None if name == "" else "number") for name in columns[1:]]
    head = element("thead", element("tr", *named))
    lines = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(
                element("td", cell, data_label=name, class_="plot" if name == "" else "number")
                for name, cell in zip(columns[1:], row[1:], strict=True)
            ),
        )
        for row in rows
    ]
    title = element("caption", caption) if caption else ""
    return element("table", title, head, element("tbody", *lines), class_=class_)


# -- the balance ------------------------------------------------------------------------------------------------------


def _numbers(facts: Facts) -> list[tuple[int, str]]:
    balance = facts.balance
    numbers = [(balance["accepted"], "sent"), (balance["diverted"], "diverted"), (facts.came_home, "recovered")]
    if balance["ran_meanwhile"]:
        numbers.append((balance["ran_meanwhile"], "ran meanwhile"))
    if balance["waiting"]:
        numbers.append((balance["waiting"], "still in the backlog"))
    return [*numbers, (balance["lost"], "lost")]


def _sentence(facts: Facts) -> str:
    return ", ".join(f"{count(number)} {word}" for number, word in _numbers(facts))


def _balance(facts: Facts) -> Markup:
    lost = facts.balance["lost"]
    *before, last = [element("b", f"{count(number)} {word}") for number, word in _numbers(facts)]
    last = element("span", last, class_="bad" if lost else "good")
    line = joined(*(joined(each, ", ") for each in before), last)
    when = ""
    if facts.since is not None and facts.until is not None:
        when = _paragraph(f"From {day_and_clock(facts.since)} to {day_and_clock(facts.until)}, UTC.", class_="soft")
    return joined(_paragraph(line, class_="balance"), when, _caveat(facts), _fates(facts))


def _caveat(facts: Facts) -> Markup | str:
    missing = facts.problems.get("missing_events", (0, 0, None))[0]
    unread = sum(facts.problems.get(name, (0, 0, None))[0] for name in ("unreadable", "unknown_version"))
    if not missing and not unread:
        return ""
    return _paragraph(
        f"The journals have holes: {counted(missing, 'event')} missing, {count(unread)} lines or files unread. "
        "What they knew is not counted. See ",
        element("a", "the journals", href="#quality"),
        ".",
    )


def _fates(facts: Facts) -> Markup:
    total = max(facts.balance["messages"], 1)
    rows = [
        (words, bar(facts.balance[fate] / total), count(facts.balance[fate]), meaning)
        for fate, (words, meaning) in FATES.items()
        if facts.balance[fate] or fate in ("direct", "recovered")
    ]
    lines = [
        element(
            "tr",
            element("th", words, element("div", meaning, class_="meaning"), scope="row"),
            element("td", plot, class_="plot"),
            element("td", number, class_="number"),
        )
        for words, plot, number, meaning in rows
    ]
    refused = facts.balance["refused"]
    note = f" Of those that were not accepted, {count(refused)} gave the caller an error." if refused else ""
    caption = element("caption", f"What became of {counted(facts.balance['messages'], 'message')}.{note}")
    return element("table", caption, element("tbody", *lines), class_="bars")


# -- outages ----------------------------------------------------------------------------------------------------------


def _outages(facts: Facts) -> Markup:
    if not facts.outages_all:
        return _section("outages", "Outages", _paragraph("No queue failed in this time."))
    whole = counted(facts.outages_all, "outage")
    text = f"{whole} of a namespace; in them, queues failed {counted(facts.outages_of_entities, 'time')}."
    if len(facts.outages) < facts.outages_all:
        text += f" These are the {len(facts.outages)} with the most messages."
    colours = legend(
        ("suspect", "failing, each message is tried first"),
        ("failed_over", "failed over, messages go to the backlog"),
        ("draining", "works again, the backlog drains"),
    )
    cards = element("div", *map(_outage, facts.outages), class_="outages")
    return _section("outages", "Outages", _paragraph(text), colours, cards)


def _outage(outage: Outage) -> Markup:
    row = outage.row
    length = (row["ended_at"] - row["first_failure_at"]) / 1e6
    processes = counted(row["processes_saw"], "process", "processes")
    unaffected = row["processes_unaffected"]
    seen = f"{processes} saw it, {count(unaffected)} sent all the while" if unaffected else f"{processes} saw it"
    kinds = ", ".join(row["failure_kinds"]) or "not known"
    hidden = row["entities"] - len({each["entity"] for each in outage.entities})
    more = _paragraph(f"and {counted(hidden, 'queue')} more", class_="soft") if hidden > 0 else ""
    facts = (
        ("to fail over", duration(row["detect_s"]) if row["failed_over_at"] else "never did"),
        ("to come back", duration(row["restore_s"]) if row["restored_at"] else "not seen"),
        ("then to drain", "not yet" if row["messages_waiting"] else duration(row["drain_s"])),
        ("diverted", count(row["messages_diverted"])),
        ("recovered", count(row["messages_recovered"])),
        ("dead letters", count(row["messages_dead_lettered"])),
        *((("waiting", count(row["messages_waiting"])),) if row["messages_waiting"] else ()),
        *_ran_meanwhile(row),
    )
    return element(
        "article",
        element("h3", f"{row['pairing']}: {day_and_clock(row['first_failure_at'])}, {duration(length)}"),
        _paragraph(f"{counted(row['entities'], 'queue')}; {seen}. Failures: {kinds}.", class_="soft"),
        timeline(outage),
        more,
        element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in facts)),
    )


def _ran_meanwhile(row: Row) -> tuple[tuple[str, str], ...]:
    """Where workers stood in."""
    if not row["messages_ran_meanwhile"]:
        return ()
    late = f"{duration(row['late_median_s'])} (95 of 100: {duration(row['late_p95_s'])})"
    return (("ran meanwhile", count(row["messages_ran_meanwhile"])), ("these were done after", late))


# -- time in the backlog ----------------------------------------------------------------------------------------------


def _time_in_backlog(facts: Facts) -> Markup:
    total = sum(facts.in_backlog)
    if not total:
        return _section("backlog", "Time in the backlog", _paragraph("No message has left the backlog."))
    known = facts.backlog_s
    text = (
        f"Half of the {counted(total, 'message')} that left the backlog did so within {duration(known['median'])}, "
        f"95 of 100 within {duration(known['p95'])}. The longest stay was {duration(known['longest'])}."
    )
    lower = ("", *(duration(each) for each in BINS))
    names = [f"under {lower[1]}", *(f"{lower[place]} to {lower[place + 1]}" for place in range(1, len(BINS)))]
    names.append(f"{lower[-1]} and more")
    most = max(facts.in_backlog)
    rows = [
        (name, bar(number / most, COLOURS["backlog"]), count(number))
        for name, number in zip(names, facts.in_backlog, strict=True)
    ]
    table = _table(("time", "", "messages"), rows, "", "bars")
    return _section("backlog", "Time in the backlog", _paragraph(text), _standing_in(facts), table)


def _standing_in(facts: Facts) -> Markup | str:
    """How late the tasks were that did not wait for the primary."""
    number, late = facts.balance["ran_meanwhile"], facts.late_s
    if not number:
        return ""
    return _paragraph(
        f"{counted(number, 'task')} ran while the primary was away, on workers that stood in: half within "
        f"{duration(late['median'])} of being sent, 95 of 100 within {duration(late['p95'])}, the last after "
        f"{duration(late['longest'])}."
    )


# -- cost -------------------------------------------------------------------------------------------------------------


def _cost(facts: Facts) -> Markup:
    total = sum(operations for operations, _ in facts.stages.values())
    most = max((operations for operations, _ in facts.stages.values()), default=0) or 1
    sheet = facts.sheet
    rows = []
    for stage, words in STAGE_WORDS.items():
        operations, paid = facts.stages.get(stage, (0, None))
        row = [words, bar(operations / most), count(operations)]
        rows.append([*row, money(paid or 0.0, "")] if sheet else row)
    columns = ["stage", "", "operations", *([sheet.currency] if sheet else [])]
    text = (
        f"{counted(total, 'operation')} of Azure Service Bus, in steps of 64 KB, as the journals tell them. "
        "On other brokers nothing is charged by the message."
    )
    return _section("cost", "Cost by stage", _paragraph(text), _table(columns, rows, "", "bars"), _prices(facts))


def _prices(facts: Facts) -> Markup:
    sheet = facts.sheet
    if sheet is None:
        return _paragraph("For money, give a price sheet: --prices FILE.", class_="soft")
    paid = sum(amount or 0.0 for _, amount in facts.stages.values())
    included = "" if paid else f": {count(sheet.included_operations)} operations a month are in it"
    return _paragraph(
        f"Together {money(paid, sheet.currency)}, without the base fee of {money(sheet.base_fee, sheet.currency)} a "
        f"month{included}. A month that the journals do not cover is taken to go on like these days. "
        f"Prices: {sheet.name}, {sheet.date.isoformat()}, {sheet.source}.",
        class_="soft",
    )


# -- what if ----------------------------------------------------------------------------------------------------------


def _what_if(facts: Facts) -> Markup:
    title = "Which settings would have done better"
    if not facts.settings:
        return _section("what-if", title, _paragraph("Nothing failed, so there is nothing to replay."))
    text = (
        f"The recorded failures, replayed under {count(facts.settings_all)} settings. "
        "Shown are those that no other one beats in everything."
    )
    best = next((row for row in facts.settings if row["is_recommended"]), None)
    advice = ""
    if best is not None:
        advice = element(
            "div", _paragraph(element("b", _named(best), ".")), _paragraph(best["reason"]), class_="advice"
        )
    plot = element(
        "figure",
        settings_plot(facts.settings),
        element(
            "figcaption",
            "Each dot is a setting; further down and to the left is better. "
            "The large green one is recommended, the red ring is the closest to what was set.",
        ),
    )
    return _section("what-if", title, _paragraph(text), advice, plot, _settings(facts))


def _named(row: Row) -> str:
    return (
        f"failover_interval {row['failover_interval']:g}, ping_interval {row['ping_interval']:g}, "
        f"backlog_queue_count {row['backlog_queues']}"
    )


def _settings(facts: Facts) -> Markup:
    """Some of the front that stand for something."""
    front = [row for row in facts.settings if row["is_on_front"]]
    chosen: dict[str, tuple[list[str], Row]] = {}

    def choose(why: str, row: Row) -> None:
        chosen.setdefault(_named(row), ([], row))[0].append(why)

    for row in facts.settings:
        if row["is_recommended"]:
            choose("recommended", row)
        if row["is_recorded"]:
            choose("closest to what was set", row)
    for why, aim in (
        ("fewest diverted", "messages_diverted"),
        ("shortest wait", "waited_s"),
        ("soonest noticed", "notice_s"),
        ("soonest drained", "drain_s"),
        ("cheapest", "operations"),
    ):
        if front:
            choose(why, min(front, key=functools.partial(_value, aim)))
    columns = ["setting", "diverted", "callers waited", "noticed after", "drained in", "pings", "operations"]
    sheet = facts.sheet
    rows = [
        [
            joined(element("b", _upper(", ".join(why))), element("div", name, class_="meaning")),
            joined(
                count(row["messages_diverted"]),
                element("div", _between(row, "messages_diverted", count), class_="soft"),
            ),
            joined(count(row["callers_waiting"]), element("div", duration(row["waited_s"]), class_="soft")),
            joined(duration(row["notice_s"]), element("div", _between(row, "notice", duration, "_s"), class_="soft")),
            duration(row["drain_s"]),
            count(row["pings"]),
            joined(
                count(row["operations"]),
                element("div", money(row["money"], sheet.currency), class_="soft") if sheet else "",
            ),
        ]
        for name, (why, row) in chosen.items()
    ]
    caption = (
        "In grey, the least and the most that it can be: the primary recovered at some time between the last failed "
        "ping and the first good one. Operations are those that the setting causes: detours, pings, idle polls."
    )
    return _table(columns, rows, caption, "stack")


def _value(aim: str, row: Row) -> tuple[float, float]:
    return (row[aim] or 0.0, row["operations"])


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _between(row: Row, name: str, words: Callable[[Any], str], unit: str = "") -> str:
    least, most = row[f"{name}_least{unit}"], row[f"{name}_most{unit}"]
    return "" if least is None or most is None else f"{words(least)} to {words(most)}"


# -- quality ----------------------------------------------------------------------------------------------------------


def _quality(facts: Facts) -> Markup:
    if not facts.problems:
        text = "Every line of every file is an event, none is missing, none is there twice, and no clock is behind."
        return _section("quality", "The journals", _paragraph(text), class_="box")
    rows = []
    for problem, meaning in PROBLEMS.items():
        if problem not in facts.problems:
            continue
        number, places, seconds = facts.problems[problem]
        worst = f", by {duration(seconds)} at most" if seconds is not None else ""
        rows.append((f"{meaning}{worst}", "" if problem == "clock_skew" else count(places), count(number)))
    parts = [_table(("problem", "files or processes", "how many"), rows, "", "stack")]
    if facts.files:
        named = [(each["file"], each["problem"].replace("_", " "), count(each["count"])) for each in facts.files]
        parts.append(_table(("file", "problem", "how many"), named, "Files with the most of them.", "stack"))
    text = "Counted and kept, and left out of the other figures. The table quality has every file and process."
    return _section("quality", "The journals", _paragraph(text), *parts, class_="box")
