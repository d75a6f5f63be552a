"""What may explain that a message ran once more: the mark, or a rule that ``docs/duplicates.md`` lists. Pure.

A rule is a function ``(record, id, runs, extra) -> evidence``: ``extra`` is the index of the run to be explained, at
least 1, in ``runs``, all runs of the id in their order. The evidence is a sentence; none is the empty text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.battle.ledger import Harm, Record, Run

#: Seconds in which what was read before a connection broke may still be begun, or an acknowledgement be under way.
UNDER_WAY = 2.0
#: Seconds of a journal that die with its process: it is written five times a second, on a busy machine less often.
UNWRITTEN = 1.0

Rule = Callable[[Record, str, Sequence[Run], int], str]


def marked(record: Record, id: str, runs: Sequence[Run], extra: int) -> str:
    """The product says itself that the message may be stored twice."""
    for entry in record.entries_of(id):
        if entry.maybe_duplicate:
            return f"{entry.event} with the mark"
    return ""


def redelivered(record: Record, id: str, runs: Sequence[Run], extra: int) -> str:
    """A worker held it when the worker, its primary or the way between them was hit: the primary gives it once more."""
    for run in runs[:extra]:
        until = (record_end(record) if run.ended is None else run.ended) + UNDER_WAY
        for harm in record.harms:
            if (
                _ends_a_hold(harm, run)
                and harm.overlaps(run.received, until, UNDER_WAY)
                and harm.begun < runs[extra].began
            ):
                return f"{run.actor} held it from {run.received:.2f} on, {harm.kind} {harm.target} at {harm.begun:.2f}"
    return ""


def _ends_a_hold(harm: Harm, run: Run) -> bool:
    if harm.target == run.actor:
        return harm.kind in ("kill", "stop", "kill child", "exit")
    return harm.hits("primary", "worker")


def held_too_long(record: Record, id: str, runs: Sequence[Run], extra: int) -> str:
    """A worker held it for longer than a Redis primary's ``visibility_timeout``."""
    limit = record.visibility_timeout
    for run in runs[:extra] if limit else ():
        ended = run.ended if run.ended is not None else runs[extra].received
        if min(ended, runs[extra].received) - run.received >= limit:
            return f"{run.actor} held it for {ended - run.received:.1f} s"
    return ""


def clock_of_a_worker(record: Record, id: str, runs: Sequence[Run], extra: int) -> str:
    """A worker's clock was wrong while another held the message, and a Redis primary measures the hold by it."""
    if record.visibility_timeout is None:
        return ""
    for run in runs[:extra]:
        until = record_end(record) if run.ended is None else run.ended
        for harm in record.harms:
            is_wrong = harm.kind == "clock" and harm.target.startswith("worker")
            if is_wrong and harm.overlaps(run.received, until, UNDER_WAY) and harm.begun < runs[extra].began:
                return f"{run.actor} held it, and the clock of {harm.target} went wrong at {harm.begun:.2f}"
    return ""


def syphon_killed(record: Record, id: str, runs: Sequence[Run], extra: int) -> str:
    """A syphon was killed after it had sent the message home, and before it could remove it from the backlog."""
    for life in record.lives:
        was_killed = life.how in ("killed", "itself", "hung") and life.ended < runs[extra].began
        if was_killed and _held_in_backlog(record, id, life.pid, life.ended):
            return f"{life.actor} held it in the backlog when it was killed at {life.ended:.2f}"
    return ""


def secondary_lost(record: Record, id: str, runs: Sequence[Run], extra: int) -> str:
    """The secondary, or the way to it, was hit after the message had gone home, and before it was removed there."""
    receipts = [entry for entry in record.entries_of(id) if entry.event == "received_from_backlog"]
    for receipt in receipts:
        again = [other.at for other in receipts if other.at > receipt.at]
        if not again:
            continue
        for harm in record.harms:
            if harm.hits("secondary", "worker") and harm.overlaps(receipt.at - UNDER_WAY, again[0], UNDER_WAY):
                return f"a syphon held it at {receipt.at:.2f}, {harm.kind} {harm.target} at {harm.begun:.2f}"
    return ""


def lock_expired(record: Record, id: str, runs: Sequence[Run], extra: int) -> str:
    """A syphon stood still for longer than a lock lasts, and another one took over what it held."""
    receipts = [entry for entry in record.entries_of(id) if entry.event == "received_from_backlog"]
    for harm in record.harms:
        if harm.kind == "freeze" and harm.healed - harm.begun >= record.lock_seconds:
            before = any(entry.at <= harm.begun + UNWRITTEN for entry in receipts)
            if before and any(entry.at > harm.begun + record.lock_seconds / 2 for entry in receipts):
                return f"{harm.target} stood still for {harm.healed - harm.begun:.0f} s"
    return ""


def _held_in_backlog(record: Record, id: str, pid: int, at: float) -> bool:
    """A process had taken the message from the backlog, had not settled it, and was gone at that moment."""
    entries = record.entries_of(id)
    of_it = [entry for entry in entries if entry.pid == pid and entry.at <= at + UNWRITTEN]
    taken = [entry for entry in of_it if entry.event == "received_from_backlog"]
    settled = [entry for entry in of_it if entry.event in ("syphoned", "abandoned", "dead_lettered")]
    taken_again = any(
        entry.event == "received_from_backlog" and entry.pid != pid and entry.at >= at for entry in entries
    )
    if not taken_again:
        return False
    if len(taken) > len(settled):
        return True
    # What it took in its last moments, it could not write down any more; then somebody else wrote that it was there.
    was_there = any(entry.event == "diverted" and entry.at <= at for entry in entries)
    went_home = any(run.received >= at - UNWRITTEN - UNDER_WAY for run in record.runs_by_id()[id][:1])
    return not taken and was_there and went_home


def record_end(record: Record) -> float:
    return max((life.ended for life in record.lives), default=float("inf"))


#: Which rules there are. ``marked`` alone is the product's own word; each of the others is proved by the ledger.
RULES: tuple[Rule, ...] = (
    marked,
    redelivered,
    held_too_long,
    clock_of_a_worker,
    syphon_killed,
    secondary_lost,
    lock_expired,
)


def explanation(record: Record, id: str, runs: Sequence[Run], extra: int) -> tuple[str, str]:
    """Which rule explains this run, and its evidence; two empty texts if none does."""
    for rule in RULES:
        if evidence := rule(record, id, runs, extra):
            return rule.__name__, evidence
    return "", ""
