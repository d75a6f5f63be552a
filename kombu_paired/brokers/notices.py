"""Notices over a link of the broker's, which is kept from one look to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kombu_paired.brokers.links import Link
from kombu_paired.brokers.operating import Notices
from kombu_paired.deadline import Deadline
from kombu_paired.isolation import notices_name

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("LinkNotices",)


class LinkNotices(Notices):
    """Reads and changes them as the broker's links do.

    Arguments:
        namespace: where they are.
        primary: the name of the primary that they are about.
    """

    def __init__(self, namespace: KombuNamespace, primary: str) -> None:
        self._namespace = namespace
        self._link = namespace.link()
        self._place = notices_name(primary)

    def read(self, timeout: float, *, create: bool = True) -> dict[str, float]:
        deadline = Deadline(timeout)
        with self._open(deadline) as link:
            return link.read_notices(self._place, create, deadline.left)

    def put(self, name: str, at: float, timeout: float) -> None:
        deadline = Deadline(timeout)
        with self._open(deadline) as link:
            if name not in link.read_notices(self._place, True, deadline.left):
                link.put_notice(self._place, name, at, deadline.left)

    def take(self, name: str, timeout: float) -> None:
        deadline = Deadline(timeout)
        with self._open(deadline) as link:
            link.take_notice(self._place, name, deadline.left)

    @contextmanager
    def _open(self, deadline: Deadline) -> Iterator[Link]:
        try:
            with self._namespace.failing():
                self._link.open(deadline.left)
                yield self._link
        except BaseException:
            self._link.drop()
            raise

    def close(self) -> None:
        self._link.close()
