"""The verdict on an episode: which promises were broken, from the facts alone. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.battle import rules
from tests.battle.ledger import Call, Harm, Life, Record

#: Seconds that a call may take beyond ``send_timeout`` on both sides, and that Celery pauses between its tries.
MARGIN, PAUSES = 1.0, 0.6
#: Seconds after a fault in which a side need not take a message yet, beyond ``send_timeout``.
RECOVERY = 2.0
#: Seconds in which a worker must have ended that was asked to, when nothing is wrong (any more).
STOP_LIMIT = 20.0
#: Seconds in which a producer must have ended that has nothing left to do.
EXIT_LIMIT = 5.0
#: What a call may raise when neither side can take it, and nothing else.
MAY_RAISE = ("OperationalError", "BacklogUnavailable")
#: Exits that a plain worker of Celery shows as well, by what its last traceback says. Each was seen on one.
CELERYS_OWN: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Broken:
    """A promise that was broken, and the proof."""

    promise: str
    proof: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.proof}"


@dataclass
class Verdict:
    broken: list[Broken] = field(default_factory=list)
    n_calls: int = 0
    n_raised: int = 0
    n_ran: int = 0
    #: Extra runs, by what explains them: the name of a rule, or "unexplained".
    duplicates: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    celerys_own_exits: int = 0
    #: Seconds in which the machine itself stood still.
    stalled: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.broken


def judge(record: Record) -> Verdict:
    verdict = Verdict(
        n_calls=len(record.calls),
        n_raised=sum(call.error is not None for call in record.calls),
        n_ran=len(record.runs_by_id()),
        longest=max((_lasted(record, call) for call in record.calls), default=0.0),
    )
    verdict.stalled = sum(harm.healed - harm.begun for harm in record.harms if harm.target == "machine")
    verdict.broken += _lost(record)
    verdict.broken += _raised(record)
    verdict.broken += _late(record)
    verdict.broken += _ended(record, verdict)
    verdict.broken += _left_behind(record)
    verdict.broken += _ran_again(record, verdict)
    return verdict


def _lost(record: Record) -> Iterator[Broken]:
    ran = record.runs_by_id().keys()
    for call in record.calls:
        if call.returned and call.id not in ran:
            yield Broken("lost", f"{call.id}, sent at {call.at:.2f}, never ran")


def _raised(record: Record) -> Iterator[Broken]:
    for call in record.calls:
        if call.error is None:
            continue
        name = call.error.partition("(")[0].rpartition(".")[2]
        well = [side for side in ("primary", "secondary") if not _was_hit(record, side, call)]
        if well:
            yield Broken("raised", f"{call.id} at {call.at:.2f}, and {' and '.join(well)} was well: {call.error}")
        elif name not in MAY_RAISE:
            yield Broken("raised", f"{call.id} at {call.at:.2f}, and not an OperationalError: {call.error}")


def _was_hit(record: Record, side: str, call: Call) -> bool:
    """Whether this side was under a fault, for the caller, at some moment of the call."""
    until = call.at + (call.seconds or 0.0)
    grace = record.send_timeout + RECOVERY

    def hit(harm: Harm) -> bool:
        if harm.target == "machine":  # a short one is no reason to give up, and it leaves nothing to recover from
            return harm.healed - harm.begun >= record.send_timeout / 2 and harm.overlaps(call.at, until)
        return harm.hits(side, call.actor) and harm.overlaps(call.at, until, grace)

    return any(map(hit, record.harms))


def _noise(record: Record, call: Call) -> float:
    """Seconds of a call that were the machine's: of the caller's process, or of all of them."""
    until = call.at + (call.seconds or 0.0)
    stalls = (harm for harm in record.harms if harm.target == "machine")
    return max(call.noise, sum(max(min(harm.healed, until) - max(harm.begun, call.at), 0.0) for harm in stalls))


def _lasted(record: Record, call: Call) -> float:
    """Seconds of a call that are its own."""
    return max((call.seconds or 0.0) - _noise(record, call), 0.0)


def _late(record: Record) -> Iterator[Broken]:
    for call in record.calls:
        is_tried_again = record.tries > 1 and all(_was_hit(record, side, call) for side in ("primary", "secondary"))
        once = 2 * record.send_timeout
        budget = (once * record.tries + PAUSES if is_tried_again else once) + MARGIN
        lasted, noise = _lasted(record, call), _noise(record, call)
        if lasted > budget:
            also = f" (and {noise:.2f} s were the machine's)" if noise else ""
            yield Broken("late", f"{call.id} at {call.at:.2f} took {lasted:.2f} s of {budget:g}{also}")


def _ended(record: Record, verdict: Verdict) -> Iterator[Broken]:
    for life in record.lives:
        if life.how == "hung":
            yield Broken("hung", f"{life.actor} ({life.pid}) did not end in {life.seconds:.0f} s, and was killed")
        elif life.how == "stopped" and _stopped_late(record, life):
            yield Broken("hung", f"{life.actor} ({life.pid}) took {life.seconds:.1f} s to end")
        elif life.how == "itself":
            if is_celerys_own(life.last_words):
                verdict.celerys_own_exits += 1
            else:
                yield Broken("exited", f"{life.actor} ({life.pid}) with {life.code} at {life.ended:.2f}: {_last(life)}")
    for actor in record.idle:
        yield Broken("idle", f"{actor} consumed nothing after all was healed")


def _stopped_late(record: Record, life: Life) -> bool:
    """Whether it took too long to end, counted from the last fault that was over before it did."""
    asked = life.ended - life.seconds
    limit = STOP_LIMIT if life.actor.startswith("worker") else EXIT_LIMIT + 2 * record.send_timeout + MARGIN
    since = max([asked, *(harm.healed for harm in record.harms if harm.overlaps(asked, life.ended))])
    return life.ended - since > limit


def is_celerys_own(last_words: str) -> bool:
    """Whether a plain worker ends like this, too: no line of its last traceback is ours, or it is a known one."""
    traceback = last_words.rpartition("Traceback (most recent call last)")[2]
    if not traceback:
        return False
    if any(re.search(frame, traceback) and re.search(error, traceback) for frame, error in CELERYS_OWN):
        return True
    return "kombu_paired" not in traceback


def _last(life: Life) -> str:
    lines = [line for line in life.last_words.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "without a word"


def _left_behind(record: Record) -> Iterator[Broken]:
    for queue, size in record.left.items():
        if size:
            yield Broken("stranded", f"{size} in {queue} at the end")


def _ran_again(record: Record, verdict: Verdict) -> Iterator[Broken]:
    for id, runs in record.runs_by_id().items():
        for extra in range(1, len(runs)):
            rule, _ = rules.explanation(record, id, runs, extra)
            verdict.duplicates[rule or "unexplained"] += 1
            if not rule:
                times = ", ".join(f"{run.actor} at {run.began:.2f}" for run in runs)
                yield Broken("unexplained", f"{id} ran {len(runs)} times: {times}")
