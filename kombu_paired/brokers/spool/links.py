"""Links to a spool, and what sends over them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu_paired.brokers.compat import queues_of
from kombu_paired.brokers.links import KombuSender, Link
from kombu_paired.brokers.spool import rows
from kombu_paired.brokers.spool.address import SpoolAddress
from kombu_paired.brokers.spool.kinds import NotSynced, SpoolBusy
from kombu_paired.brokers.spool.sharing import borrow, give_back
from kombu_paired.brokers.spool.store import Store
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.isolation import as_notice, notice_in
from kombu_paired.message import Message

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("SpoolLink", "SpoolSender")


#: Notices that are read.
MOST_NOTICES = 1000


def _notice(message: Message) -> tuple[str, float] | None:
    return notice_in(str(message.body))


class SpoolLink(Link):
    """A way to the file, which all links of the process share."""

    def __init__(self, namespace: KombuNamespace) -> None:
        super().__init__(namespace)
        self.address = SpoolAddress.of(namespace.urls[0])

    @property
    def store(self) -> Store:
        """Of a link that is open."""
        store: Store = self.connection.store
        return store

    def _make(self, url: str, patience: float, until: Deadline) -> tuple[Any, Any, Any]:
        client = self.namespace.new_client("spool://")
        transport = client.transport
        transport.store = borrow(self.address.folder)
        try:
            transport.store.open(until)
            channel = transport.create_channel(transport)
        except BaseException:
            give_back(transport.store)
            raise
        channel.until = until
        return client, transport, channel

    def close_at_once(self, client: Any, connection: Any, channel: Any) -> None:
        give_back(connection.store)

    def ensure_backlog_queues(self, names: Sequence[str], create: bool, timeout: float) -> list[str]:
        """All of them are there, as soon as the folder is."""
        self.open(timeout)
        return list(names)

    def has_queue(self, name: str, timeout: float) -> bool:
        return True

    def count(self, name: str, timeout: float) -> int | None:
        return self.store.read(partial(rows.count, queue=name), Deadline(timeout))

    def peek(self, name: str, timeout: float) -> Message | None:
        found = self.look_into(name, 1, timeout)
        return found[0] if found else None

    def look_into(self, name: str, limit: int, timeout: float) -> list[Message]:
        return list(self._oldest(name, limit, timeout).values())

    def _oldest(self, name: str, limit: int, timeout: float) -> dict[int, Message]:
        return self.store.read(partial(rows.oldest, queue=name, limit=limit), Deadline(timeout))

    # -- notices of what is isolated, each of them a message in a queue that nobody receives from -------------------

    def read_notices(self, place: str, create: bool, timeout: float) -> dict[str, float]:
        return dict(filter(None, map(_notice, self.look_into(place, MOST_NOTICES, timeout))))

    def put_notice(self, place: str, name: str, at: float, timeout: float) -> None:
        row = rows.row_of(Message(as_notice(name, at)), place)
        self.store.write(partial(rows.put, rows=[row], address=self.address), Deadline(timeout))

    def take_notice(self, place: str, name: str, timeout: float) -> None:
        deadline = Deadline(timeout)
        found = self._oldest(place, MOST_NOTICES, deadline.left)
        ids = [number for number, message in found.items() if (_notice(message) or (name,))[0] == name]
        if ids:
            self.store.write(partial(rows.remove, ids=ids), deadline)

    def probe(self, entity: Entity | None, timeout: float) -> None:
        """Begin to write, and write nothing."""
        self.store.write(partial(rows.require_room, address=self.address), Deadline(timeout))


class SpoolSender(KombuSender):
    """Sends in transactions, which it shares with other threads."""

    link: SpoolLink

    def send(self, message: Message, timeout: float) -> None:
        deadline = Deadline(timeout)
        self.link.open(timeout)
        try:
            self._put(self._rows(message), deadline)
        except Exception as exc:
            raise self._failed(exc) from exc

    def send_batch(self, messages: Sequence[Message], timeout: float) -> list[NamespaceFailure | None]:
        deadline = Deadline(timeout)
        outcomes: list[NamespaceFailure | None] = []
        stored: list[rows.Row] = []
        try:
            self.link.open(timeout)
            for message in messages:
                try:
                    self.require_route(message)
                    stored += self._rows(message)
                    outcomes.append(None)
                except Exception as exc:
                    outcomes.append(self._failed(exc))
            if stored:
                self._put(stored, deadline)
        except Exception as exc:
            broken = self._failed(exc)
            outcomes += [None] * (len(messages) - len(outcomes))
            return [outcome or broken for outcome in outcomes]
        return outcomes

    def _rows(self, message: Message) -> list[rows.Row]:
        """One for each queue that gets it."""
        queues = [message.routing_key]
        if message.exchange:
            queues = queues_of(self.link.channel, message.exchange, message.routing_key)
        return [rows.row_of(message, queue) for queue in queues]

    def _put(self, stored: Sequence[rows.Row], deadline: Deadline) -> None:
        self.link.store.write(partial(rows.put, rows=stored, address=self.link.address), deadline, rings=True)

    def _failed(self, exc: Exception) -> NamespaceFailure:
        if isinstance(exc, NamespaceFailure):
            return exc
        is_unsure = isinstance(exc, NotSynced) or (isinstance(exc, SpoolBusy) and exc.is_under_way)
        failure = self.link.namespace.failure(exc, maybe_stored=is_unsure)
        if failure.kind.counts and failure.kind is not FailureKind.TIMEOUT:
            self.drop()
        return failure
