"""What exists in a namespace: looked up, created, deleted, through the administration client.

Nothing that is there is ever changed: its owner has reasons. What is known to exist is not asked for again; who finds
it missing says so (:meth:`Entities.forget`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from kombu_paired.brokers.servicebus.bounded import bounded
from kombu_paired.brokers.servicebus.clients import Clients
from kombu_paired.brokers.servicebus.kinds import kind_of
from kombu_paired.brokers.servicebus.settings import ServiceBusSettings
from kombu_paired.deadline import Deadline
from kombu_paired.failures import FailureKind

__all__ = ("BACKLOG_PROPERTIES", "Entities", "ManagementUnavailable", "is_away")

logger = logging.getLogger(__name__)

#: Of a backlog queue (docs/architecture.md, rule 2). Times without an end are left unset: the service refuses the SDK's
#: encoding of them.
BACKLOG_PROPERTIES: dict[str, Any] = {
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2_147_483_647,
    "lock_duration": timedelta(minutes=1),
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
}
#: Part of its time that a declaration waits for the management; the rest is for looking without it.
MANAGEMENT_SHARE = 0.6
#: Queues that are looked for side by side.
LOOKS_AT_ONCE = 10
#: The shortest time that the service lets an idle entity live.
SHORTEST_IDLE = timedelta(minutes=5)

Answer = TypeVar("Answer")


class ManagementUnavailable(ConnectionError):
    """The management of a namespace answers that it cannot answer. Messages may well flow."""


class Entities:
    """The queues, topics and subscriptions of one namespace.

    Arguments:
        clients: how to reach it.
        settings: of the transport: properties of what is created for an application.
        known: paths that are known to exist, shared by all that look at this namespace.

    Attributes:
        was_let_in: the last call failed since the management is away alone: links to the namespace are let in.
    """

    def __init__(self, clients: Clients, settings: ServiceBusSettings, known: set[str]) -> None:
        self._clients = clients
        self._settings = settings
        self._known = known
        self.was_let_in = False
        self._has_warned = False

    # -- an application's ---------------------------------------------------------------------------------------

    def ensure_queue(self, name: str, timeout: float, *, idle: float | None = None) -> None:
        """Make sure that a queue exists.

        Arguments:
            idle: seconds after which the service may delete it when nobody uses it; None: never.
        """
        short_lived = {**self._settings.properties, "auto_delete_on_idle": _idle(idle or 0)}
        properties = self._settings.queue_properties if idle is None else short_lived
        self._ensure(name, timeout, lambda admin: admin.create_queue(name, **properties))

    def ensure_topic(self, name: str, timeout: float) -> None:
        """Make sure that a topic exists."""
        self._ensure(name, timeout, lambda admin: admin.create_topic(name))

    def ensure_subscription(
        self, topic: str, name: str, timeout: float, *, idle: float | None = None, forward_to: str | None = None
    ) -> None:
        """Make sure that a subscription exists, and its topic.

        Arguments:
            idle: as for a queue.
            forward_to: the queue that gets what the subscription gets.
        """
        deadline = Deadline(timeout)
        self.ensure_topic(topic, timeout)
        options = self._settings.properties | ({} if idle is None else {"auto_delete_on_idle": _idle(idle)})
        if forward_to is not None:
            options["forward_to"] = forward_to

        def create(admin: Any) -> None:
            admin.create_subscription(topic, name, **options)

        path = f"{topic}/Subscriptions/{name}"
        try:
            self._ensure(path, deadline.left, create)
        except ResourceNotFoundError:  # somebody deleted the topic since
            self.forget(topic)
            self.ensure_topic(topic, deadline.left)
            self._ensure(path, deadline.left, create)

    def delete_queue(self, name: str, timeout: float) -> None:
        """Delete a queue, if it is there."""
        self.forget(name)
        self._delete(lambda admin: admin.delete_queue(name), timeout)

    def delete_subscription(self, topic: str, name: str, timeout: float) -> None:
        """Delete a subscription, if it is there."""
        self.forget(f"{topic}/Subscriptions/{name}")
        self._delete(lambda admin: admin.delete_subscription(topic, name), timeout)

    def delete_topic_if_unused(self, topic: str, timeout: float) -> None:
        """Delete a topic that nobody is subscribed to any more."""

        def delete(admin: Any) -> None:
            if next(iter(admin.list_subscriptions(topic)), None) is None:
                admin.delete_topic(topic)
                self.forget(topic)

        self._delete(delete, timeout)

    def has_queue(self, name: str, timeout: float) -> bool:
        """Whether a queue exists."""
        return self._ask(lambda admin: _has_queue(admin, name), timeout)

    def counts(self, name: str, timeout: float) -> tuple[int, int] | None:
        """How many messages wait in a queue, and how many dead letters; None if there is no such queue."""
        try:
            found = self._ask(lambda admin: admin.get_queue_runtime_properties(name), timeout)
        except ResourceNotFoundError:
            return None
        return int(found.active_message_count or 0), int(found.dead_letter_message_count or 0)

    def forget(self, *paths: str) -> None:
        """These are gone, or may be."""
        self._known.difference_update(paths)

    def missing(self, path: str) -> None:
        """It turned out to be missing. If it was known to exist, nobody knows what else went with it."""
        if path in self._known:
            self._known.clear()

    # -- backlog queues -----------------------------------------------------------------------------------------

    def existing(self, names: Iterable[str], timeout: float) -> set[str]:
        """Which of these queues exist; each is asked for, since a list of all is pages of a hundred."""
        wanted = list(names)

        def look(admin: Any) -> set[str]:
            with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
                answers = pool.map(lambda name: _has_queue(admin, name), wanted)
                return {name for name, is_there in zip(wanted, answers, strict=True) if is_there}

        return self._ask(look, timeout)

    def create_backlog_queue(self, name: str, timeout: float) -> None:
        """Create a backlog queue, unless somebody just did."""
        try:
            self._ask(lambda admin: admin.create_queue(name, **BACKLOG_PROPERTIES), timeout)
        except ResourceExistsError:
            logger.debug("%s was created by another process", name)

    # -- how ----------------------------------------------------------------------------------------------------

    def _ensure(self, path: str, timeout: float, create: Callable[[Any], Any]) -> None:
        if path in self._known:
            return
        deadline = Deadline(timeout)
        try:
            self._ask(create, timeout * MANAGEMENT_SHARE)
        except ResourceExistsError:
            logger.debug("%s is there", path)
        except Exception as exc:
            if kind_of(exc) is FailureKind.UNAUTHORIZED:
                self._warn_once(path)
            elif is_away(exc):
                self._require(path, deadline.left, exc)
            else:
                raise
        self._known.add(path)

    def _require(self, path: str, timeout: float, why: Exception) -> None:
        """Raise, unless messages can be sent to it: management can be away alone, and must not stop what works."""
        link = self._clients.sender(path)
        try:
            link.open(timeout)
        except Exception as exc:
            logger.debug("neither could a link to %s be opened: %r", path, exc)
            self.was_let_in = link.was_let_in or not is_away(exc)
            raise why from exc
        finally:
            link.close()
        logger.warning("the management of %s is away; %s is there", self._clients.address.place, path)

    def _warn_once(self, path: str) -> None:
        """Without the right to manage, others create: whether the entity is there will show."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s was not created: the credentials for %s have no right to manage the namespace. It must be there",
                path,
                self._clients.address.place,
            )

    def _delete(self, delete: Callable[[Any], None], timeout: float) -> None:
        try:
            self._ask(delete, timeout)
        except ResourceNotFoundError:
            logger.debug("it is gone")

    def _ask(self, question: Callable[[Any], Answer], timeout: float) -> Answer:
        deadline = Deadline(timeout)
        self.was_let_in = False

        def ask() -> Answer:
            with self._clients.administration(deadline.left) as admin:
                return question(admin)

        try:
            return bounded(ask, timeout, "the management of the namespace")
        except HttpResponseError as exc:
            kind = kind_of(exc)
            if kind is None or not kind.counts:
                raise
            raise ManagementUnavailable(f"the management of {self._clients.address.place}: {exc}") from exc


def is_away(exc: BaseException) -> bool:
    """Whether an exception says that the management cannot be asked at the moment."""
    kind = kind_of(exc)
    return isinstance(exc, ManagementUnavailable) or (kind is not None and kind.counts)


def _has_queue(admin: Any, name: str) -> bool:
    try:
        admin.get_queue(name)
    except ResourceNotFoundError:
        return False
    return True


def _idle(seconds: float) -> timedelta:
    return max(timedelta(seconds=seconds), SHORTEST_IDLE)
