"""What stands in for the pipeline of a publish batch: Kombu says which lists get a message, and here is said how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kombu_paired.brokers.redis.scripts import PUT_ONCE

__all__ = ("Gathered", "Once", "refusal")

#: What the names of keys begin with that say of a message that it was put into a list, and how long (seconds) they say
#: so: its last copy may come with the backlog of a long outage.
ONCE_PREFIX, ONCE_SECONDS = "kombu-paired.once:", 24 * 3600


class Once:
    """What is put into a list is put there if no copy of it was.

    Arguments:
        key: the name of a key of ours, with Kombu's prefix: that knows its own commands alone.
        once: what the copies have in common.
    """

    def __init__(self, pipeline: Any, key: Callable[[str], str], once: str) -> None:
        self._pipeline = pipeline
        self._key = key
        self._once = once

    def lpush(self, name: str, item: str) -> None:
        keys = (self._key(name), self._key(f"{ONCE_PREFIX}{self._once}:{name}"))
        self._pipeline.eval(PUT_ONCE.text, len(keys), *keys, item, ONCE_SECONDS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)


class Gathered:
    """What goes into one list goes there in one command: that costs more than what is in it, here and in Redis.

    Of each message it is known which commands are its own, or its share of one.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._items: dict[str, list[str]] = {}
        self._expiries: dict[str, int] = {}
        #: Of each message its commands, by name or by number.
        self._parts: list[set[tuple[str, str] | int]] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def next_message(self) -> None:
        """The commands that follow are of another message."""
        self._parts.append(set())

    def lpush(self, name: str, item: str) -> None:
        self._items.setdefault(name, []).append(item)
        self._parts[-1].add(("lpush", name))

    def pexpire(self, name: str, milliseconds: int) -> None:
        """Of a queue that is deleted when nobody uses it; its list has to be there first."""
        self._expiries[name] = milliseconds
        self._parts[-1].add(("pexpire", name))

    def eval(self, *arguments: Any) -> None:
        self._parts[-1].add(len(self._pipeline))
        self._pipeline.eval(*arguments)

    def reset(self) -> None:
        self._pipeline.reset()

    def add_up(self) -> None:
        """Put what was gathered into the pipeline."""
        for name, items in self._items.items():
            self._numbers["lpush", name] = len(self._pipeline)
            self._pipeline.lpush(name, *items)
        for name, milliseconds in self._expiries.items():
            self._numbers["pexpire", name] = len(self._pipeline)
            self._pipeline.pexpire(name, milliseconds)

    def refusals(self, answers: Sequence[Any]) -> list[Exception | None]:
        """Of each message what Redis has against it, by its answers to the whole pipeline."""
        return [
            refusal([answers[each if isinstance(each, int) else self._numbers[each]] for each in parts])
            for parts in self._parts
        ]


def refusal(answers: Sequence[Any]) -> Exception | None:
    """The first of them that is an error."""
    return next((each for each in answers if isinstance(each, Exception)), None)
