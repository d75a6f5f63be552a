"""A result backend whose server does what a test says; it counts chords as Celery's caches do."""

from __future__ import annotations

from typing import Any

from celery.backends.base import KeyValueStoreBackend


def away() -> None:
    raise ConnectionRefusedError("nobody there")


class Drawer(KeyValueStoreBackend):
    """``answer`` may raise, or not return; what is in it outlives that."""

    __module__ = "celery.backends.drawer"
    implements_incr = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: dict[Any, Any] = {}
        self.writes: list[Any] = []

    def answer(self) -> None:
        """All is well."""

    def get(self, key: Any) -> Any:
        self.answer()
        return self.kept.get(key)

    def mget(self, keys: Any) -> Any:
        return [self.get(key) for key in keys]

    def set(self, key: Any, value: Any) -> None:
        self.answer()
        self.writes.append(key)
        self.kept[key] = value

    def delete(self, key: Any) -> None:
        self.answer()
        self.kept.pop(key, None)

    def incr(self, key: Any) -> int:
        self.answer()
        self.kept[key] = self.kept.get(key, 0) + 1
        return int(self.kept[key])

    def expire(self, key: Any, value: Any) -> None:
        """Nothing is forgotten."""
