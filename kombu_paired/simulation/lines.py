"""Lines that are no events, and what is wrong with a line."""

from __future__ import annotations

import json
import random

from kombu_paired.journal.format import JOURNAL_FIELDS, JOURNAL_VERSION, known_events

__all__ = ("garbage", "problem_of", "torn")

_EVENTS = frozenset(known_events())
_REQUIRED = tuple(each.name for each in JOURNAL_FIELDS if each.required)
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "text": (str,),
    "boolean": (bool,),
}
_TYPE_OF = {each.name: each.type for each in JOURNAL_FIELDS}
_LARGEST = 2**63

_STAMP = '"time":1772409600000000,"host":"host-0","pid":1,"seq":1'
_GARBAGE = (
    "Traceback (most recent call last):",
    "\x00\x00\x00\x00\x00\x00",
    "2026-03-02 00:00:00,000 ERROR a log line that went astray",
    "\udcff\udcfe\udc00 no UTF-8 \udc80".replace("\udc00", ""),
    f'{{"v":1,{_STAMP},"event":"sent","pairing":"main","message_id":"\udcff\udcfe"}}',
    '{"v":1,"time":"noon","host":"host-0","pid":1,"seq":1,"event":"sent","pairing":"main"}',
    f'{{"v":1,"time":{10**30},"host":"host-0","pid":1,"seq":1,"event":"sent","pairing":"main"}}',
    f'{{"v":1,{_STAMP},"event":"sent","pairing":"main","bytes":"many"}}',
    f'{{"v":1,{_STAMP},"event":"teleported","pairing":"main"}}',
    '{"v":1,"time":1772409600000000,"host":"host-0","pid":1,"event":"sent","pairing":"main"}',
    "{}",
    '{"message":"JSON, and no journal"}',
    f'{{"v":1,{_STAMP},"event":"sen',
    '{"v":1,"time":17724096',
)


def garbage(rng: random.Random) -> str:
    """A line that is no event; bytes that are no UTF-8 are in it as surrogates."""
    return rng.choice(_GARBAGE)


def torn(line: str, rng: random.Random) -> str:
    """The beginning of a line of an event: what a process leaves that is killed in mid-write."""
    return line[: rng.randrange(1, len(line.rstrip()) - 1)]


def problem_of(line: bytes) -> str | None:
    """What is wrong with a line: ``truncated``, ``malformed``, ``unknown_version``; None for an event.

    Written apart from the pipeline, to hold it against.
    """
    text = line.strip()
    try:
        found = json.loads(text.decode())
    except ValueError:
        return "truncated" if text.startswith(b"{") and not text.endswith(b"}") else "malformed"
    if not isinstance(found, dict):
        return "malformed"
    version = found.get("v")
    if version is None or not _fits(version, "integer") or version < 1:
        return "malformed"
    if version > JOURNAL_VERSION:
        return "unknown_version"
    if not all(_fits(found.get(name), kind) for name, kind in _TYPE_OF.items()):
        return "malformed"
    if any(found.get(name) is None for name in _REQUIRED) or found["event"] not in _EVENTS:
        return "malformed"
    return None


def _fits(value: object, kind: str) -> bool:
    if value is None:
        return True
    if isinstance(value, bool) and kind != "boolean":
        return False
    return isinstance(value, _TYPES[kind]) and not (kind == "integer" and abs(int(str(value))) >= _LARGEST)
