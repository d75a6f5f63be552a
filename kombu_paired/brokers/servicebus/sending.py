"""What sends for a pairing: a message at a time, or many in few batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kombu_paired.brokers.links import KombuSender
from kombu_paired.brokers.servicebus.amqp_links import SenderLink
from kombu_paired.brokers.servicebus.kinds import AWAY, is_refusal
from kombu_paired.brokers.servicebus.links import ServiceBusLink, encoded, unreached
from kombu_paired.brokers.servicebus.wire import Outgoing, body_length, encoded_size
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration
from kombu_paired.errors import MessageTooLarge, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("ServiceBusSender",)

logger = logging.getLogger(__name__)

#: Bytes that the properties of a message of ours take at most: ids, subject and content type, aliases.
PROPERTIES = 4096
#: Seconds for which a topic of events that refuses the credentials is left alone.
REFUSAL = 300.0


class ServiceBusSender(KombuSender):
    """Sends over a link per queue or topic."""

    link: ServiceBusLink

    def __init__(self, namespace: KombuNamespace) -> None:
        super().__init__(namespace)
        self._silent: set[str] = set()
        self._refused: dict[str, float] = {}

    @property
    def is_fresh(self) -> bool:
        return not self.link.is_open or self.link.connection.outgoing.is_fresh

    def send(self, message: Message, timeout: float) -> None:
        deadline = Deadline(timeout)
        channel = self.link.open(timeout)
        try:
            targets = channel.route(message.exchange, message.routing_key, message.properties)
            outgoing = encoded(channel, message)
        except Exception as exc:
            raise self.namespace.failure(exc) from exc
        for target in targets:
            if channel.is_topic_of_events(target, message.exchange, message.is_transient):
                self._send_event(target, message, outgoing, deadline)
            else:
                self._send_to(target, message, outgoing, deadline)

    def _send_event(self, target: str, message: Message, outgoing: Outgoing, deadline: Deadline) -> None:
        """A key for one queue is refused at the topic of Celery's events. Nobody misses them, and a worker would keep
        each one that raises, for good: they are dropped, and the topic is tried again after a while.
        """
        if time.monotonic() < self._refused.get(target, 0):
            return
        try:
            self._send_to(target, message, outgoing, deadline, is_for_events=True)
        except NamespaceFailure as failure:
            if failure.kind is not FailureKind.UNAUTHORIZED:
                raise
            log = logger.debug if target in self._refused else logger.warning
            log("events are dropped: %s", failure)
            self._refused[target] = time.monotonic() + REFUSAL

    def _send_to(
        self,
        target: str,
        message: Message,
        outgoing: Outgoing,
        deadline: Deadline,
        *,
        is_for_events: bool = False,
    ) -> None:
        link = self.link.to(target, deadline, is_for_events=is_for_events)
        self._require_fit(message, outgoing, link)
        try:
            link.send(outgoing, deadline.left)
        except Exception as exc:
            raise self._failed_at(target, exc) from exc

    def declare(self, declarations: Iterable[Declaration], timeout: float) -> Any:
        """Every declaration is a call of the management, which may be away alone."""
        deadline, answer = Deadline(timeout), None
        channel = self.link.open(timeout)
        try:
            for declaration in declarations:
                self.link.bound(deadline.left)
                answer = getattr(channel, declaration.operation)(**declaration.arguments)
        except Exception as exc:
            raise unreached(self.namespace, exc, whole_namespace=not self.link.connection.entities.was_let_in) from exc
        return answer

    def _require_fit(self, message: Message, outgoing: Outgoing, link: SenderLink) -> None:
        """Raise before anything is sent: what the service says is learned from the link."""
        limit = self.namespace.max_message_size = link.max_message_size
        if body_length(outgoing) + PROPERTIES < limit:
            return
        size = encoded_size(outgoing)
        if size > limit:
            too_large = MessageTooLarge(
                f"message {message.message_id} to {message.entity.path!r} takes {size} bytes, and "
                f"{self.namespace.label} accepts {limit}"
            )
            raise self.namespace.failure(too_large, kind=FailureKind.REJECTED)

    def _failed_at(self, target: str, exc: Exception) -> NamespaceFailure:
        failure = self.namespace.failure(exc, maybe_stored=not is_refusal(exc))
        if failure.kind.counts:
            self.link.connection.outgoing.drop(target)
        elif failure.kind is FailureKind.MISSING:
            self.link.connection.outgoing.drop(target)
            self.link.connection.entities.missing(target)
        return failure

    # -- batches ------------------------------------------------------------------------------------------------

    def send_batch(self, messages: Sequence[Message], timeout: float) -> list[NamespaceFailure | None]:
        deadline = Deadline(timeout)
        outcomes: list[NamespaceFailure | None] = [None] * len(messages)
        try:
            channel = self.link.open(timeout)
        except NamespaceFailure as failure:
            return [failure] * len(messages)
        ready: list[tuple[str, str, int, Outgoing]] = []
        for index, message in enumerate(messages):
            try:
                outgoing = encoded(channel, message)
                for target in channel.route(message.exchange, message.routing_key, message.properties):
                    ready.append((target, _session_of(outgoing), index, outgoing))
            except Exception as exc:
                outcomes[index] = self.namespace.failure(exc)
        # Whoever was silent the last time comes last: it must not take the time of the others again and again.
        ready.sort(key=lambda each: (each[0] in self._silent, *each[:3]))
        for (target, _), group in groupby(ready, key=lambda each: each[:2]):
            parts = [(index, outgoing) for _, _, index, outgoing in group]
            for index, outcome in self._send_parts(target, messages, parts, deadline):
                outcomes[index] = outcomes[index] or outcome
        return outcomes

    def _send_parts(
        self,
        target: str,
        messages: Sequence[Message],
        parts: list[tuple[int, Outgoing]],
        deadline: Deadline,
    ) -> Iterator[tuple[int, NamespaceFailure | None]]:
        """Send to one entity, in as few batches as fit."""
        while parts:
            try:
                link = self.link.to(target, deadline)
                batch, count = self._filled(link, parts)
            except NamespaceFailure as refusal:
                for index, _ in parts:
                    yield index, refusal
                return
            chosen, parts = parts[: max(count, 1)], parts[max(count, 1) :]
            answers = self._send_together(target, messages, chosen, link, batch, deadline)
            yield from zip((index for index, _ in chosen), answers, strict=True)
            away = next((each for each in answers if each is not None and each.kind in AWAY), None)
            if away is None:
                self._silent.discard(target)
            else:
                self._silent.add(target)
                unsent = unreached(self.namespace, away.cause, whole_namespace=away.whole_namespace)
                yield from ((index, unsent) for index, _ in parts)
                return

    def _send_together(
        self,
        target: str,
        messages: Sequence[Message],
        chosen: Sequence[tuple[int, Outgoing]],
        link: SenderLink,
        batch: Any,
        deadline: Deadline,
    ) -> list[NamespaceFailure | None]:
        """Send as one batch; alone, one that fills a batch, and those of whom one is refused: which?"""
        if len(chosen) > 1:
            try:
                link.send(batch, min(deadline.left, self.namespace.send_timeout))
            except Exception as exc:
                refused = self._failed_at(target, exc)
                if refused.kind is not FailureKind.REJECTED:
                    return [refused] * len(chosen)
            else:
                return [None] * len(chosen)
        return [self._outcome_alone(target, messages[index], outgoing, deadline) for index, outgoing in chosen]

    def _filled(self, link: SenderLink, parts: Sequence[tuple[int, Outgoing]]) -> tuple[Any, int]:
        batch, count = link.new_batch(), 0
        for _, outgoing in parts:
            try:
                batch.add_message(outgoing)
            except Exception as exc:  # it is full; or whatever is wrong with this one shows when it goes alone
                logger.debug("a batch of %d to %s: %r", count, link.path, exc)
                break
            count += 1
        return batch, count

    def _outcome_alone(
        self, target: str, message: Message, outgoing: Outgoing, deadline: Deadline
    ) -> NamespaceFailure | None:
        try:
            self._send_to(target, message, outgoing, deadline.part(self.namespace.send_timeout))
        except NamespaceFailure as failure:
            return failure
        return None


def _session_of(outgoing: Outgoing) -> str:
    properties = outgoing.properties
    return str(properties.group_id or "") if properties else ""
