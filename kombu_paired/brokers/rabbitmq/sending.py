"""Sends to RabbitMQ with publisher confirms.

A confirm comes after the broker has taken responsibility for a message, and a ``basic.return`` before its confirm
(RabbitMQ's documentation of confirms). Since a broker in alarm takes what is written to it without a word, a link that
was not in use just now knocks, with a message that nobody gets, before it writes many.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from amqp.exceptions import MessageNacked, RecoverableConnectionError

from kombu_paired.brokers.rabbitmq.compat import write_frames
from kombu_paired.brokers.rabbitmq.encoding import publish_frames
from kombu_paired.brokers.rabbitmq.kinds import BrokerBlocked
from kombu_paired.brokers.rabbitmq.links import NOWHERE, AmqpLink
from kombu_paired.brokers.roles import Sender
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message, marked_maybe_duplicate

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("AmqpSender",)

#: Seconds that the message which finds out about an alarm may take to be confirmed.
BLOCKED_GRACE = 1.0
#: Seconds after its last confirm for which a link is known to take messages.
IN_USE = 1.0
#: Octets that are written at once, about; between two such writes it is seen whether the broker is in alarm.
AT_ONCE = 32 << 10


class AmqpSender(Sender):
    """Publishes with confirms of its own counting, so that many messages can be under way at once."""

    def __init__(self, namespace: KombuNamespace) -> None:
        super().__init__()
        self.namespace = namespace
        self.link = AmqpLink(namespace)
        self._sequence = 0
        self._last_confirm = -math.inf
        #: Sequence number -> message that awaits its confirm, in the order of publishing.
        self._awaited: dict[int, Message] = {}
        self._outcomes: dict[int, NamespaceFailure] = {}

    @property
    def is_fresh(self) -> bool:
        return not self.link.is_open

    def send(self, message: Message, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        channel = self._open(timeout)
        until = self.link.until
        number = None  # while it is None, the broker cannot have got the whole of the message
        try:
            until.at = deadline
            self.link.require_flow()
            number = self._begin(channel, message, message.mandatory)
            self._await_confirms()
        except Exception as exc:
            raise self._broken(exc, maybe_stored=number is not None, of_peer=number is not None) from exc
        finally:
            until.at = math.inf
        if self._outcomes:
            failure = self._outcomes.pop(number, None)
            if failure is not None:
                raise failure

    def send_batch(self, messages: Sequence[Message], timeout: float) -> list[NamespaceFailure | None]:
        return self.send_batch_while(messages, timeout, lambda: None)

    def send_batch_while(
        self, messages: Sequence[Message], timeout: float, meanwhile: Callable[[], object]
    ) -> list[NamespaceFailure | None]:
        deadline = Deadline(timeout)
        numbers: list[int] = []
        self.maybe_twice.clear()
        try:
            channel = self._open(timeout)
            with self.link.until.within(deadline.left):
                self._write(channel, messages, numbers)
                meanwhile()
                self._await_confirms()
            if len(numbers) < len(messages):
                raise BrokerBlocked(self.link.blocked or "was in alarm")
        except NamespaceFailure as failure:
            return [failure] * len(messages)
        except Exception as exc:
            return self._after_broken_batch(exc, messages, numbers, deadline)
        outcomes, self._outcomes = self._outcomes, {}
        return [outcomes.get(number) for number in numbers] if outcomes else [None] * len(numbers)

    def _write(self, channel: Any, messages: Sequence[Message], numbers: list[int]) -> None:
        """Write until the broker is in alarm, and note the numbers of what it may have got whole."""
        if time.monotonic() > self._last_confirm + IN_USE:
            self._knock(channel)
        rest = iter(messages)
        while some := list(self._some(channel, rest)):
            self.link.read_what_is_there()
            if self.link.blocked:
                return
            *before, last = (message for message, _ in some)
            numbers += map(self._number, before)
            write_frames(self.link.connection, b"".join(frames for _, frames in some))
            numbers.append(self._number(last))

    def _some(self, channel: Any, messages: Iterator[Message]) -> Iterator[tuple[Message, bytes]]:
        """The next of them, with their frames: as many as are written at once."""
        size = 0
        for message in messages:
            frames = self._frames(channel, message, True)
            yield message, frames
            size += len(frames)
            if size >= AT_ONCE:
                return

    def _knock(self, channel: Any) -> None:
        """Find out whether the broker takes messages, with one that nobody gets."""
        self.link.require_flow()
        number = self._begin(channel, Message(b"", routing_key=NOWHERE), False)
        while number in self._awaited:
            self.link.connection.drain_events()
            if self.link.blocked:
                raise BrokerBlocked(self.link.blocked)

    def _after_broken_batch(
        self, exc: Exception, messages: Sequence[Message], numbers: list[int], deadline: Deadline
    ) -> list[NamespaceFailure | None]:
        """Confirmed ones are done. If one message broke the channel, the others go singly, to find out which."""
        awaited, outcomes = set(self._awaited), dict(self._outcomes)
        failure = self._broken(exc, maybe_stored=True, of_peer=len(numbers) == len(messages))
        results: list[NamespaceFailure | None] = []
        for index, message in enumerate(messages):
            number = numbers[index] if index < len(numbers) else None
            if number is not None and number not in awaited:
                results.append(outcomes.get(number))
            elif failure.kind.counts:
                results.append(failure if number is not None else failure.of_nothing_stored())
            else:
                was_written = number is not None
                results.append(self._alone(marked_maybe_duplicate(message) if was_written else message, deadline))
                if was_written and results[-1] is None:
                    self.maybe_twice.add(message.message_id)
        return results

    def _alone(self, message: Message, deadline: Deadline) -> NamespaceFailure | None:
        try:
            self._require_exchange(message, deadline)
            [outcome] = self._batch_of_one(message, deadline)
            return outcome
        except NamespaceFailure as failure:
            return failure

    def _batch_of_one(self, message: Message, deadline: Deadline) -> list[NamespaceFailure | None]:
        number = None
        try:
            channel = self._open(deadline.left)
            with self.link.until.within(deadline.left):
                self.link.require_flow()
                number = self._begin(channel, message, True)
                self._await_confirms()
        except NamespaceFailure as failure:
            return [failure]
        except Exception as exc:
            return [self._broken(exc, maybe_stored=number is not None)]
        return [self._outcomes.pop(number, None)]

    def _require_exchange(self, message: Message, deadline: Deadline) -> None:
        if message.exchange:
            passive = Declaration("exchange_declare", {"exchange": message.exchange, "type": "direct", "passive": True})
            self.declare([passive], deadline.left)

    def declare(self, declarations: Iterable[Declaration], timeout: float) -> Any:
        answer = None
        deadline = Deadline(timeout)
        channel = self._open(timeout)
        try:
            with self.link.within(deadline.left):
                for declaration in declarations:
                    answer = getattr(channel, declaration.operation)(**declaration.arguments)
        except Exception as exc:
            raise self._broken(exc, maybe_stored=False) from exc
        return answer

    def close(self) -> None:
        self.link.close()
        self._forget()

    def _open(self, timeout: float) -> Any:
        link = self.link
        if link.channel is not None:
            return link.channel
        deadline = Deadline(timeout)
        channel = link.open(timeout)
        self._forget()
        try:
            with link.within(deadline.left):
                channel.confirm_select()
        except Exception as exc:
            raise self._broken(exc, maybe_stored=False) from exc
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        return channel

    def _begin(self, channel: Any, message: Message, mandatory: bool) -> int:
        """Write a message. The deadline is that of the link: a time limit of py-amqp's costs each frame anew."""
        write_frames(self.link.connection, self._frames(channel, message, mandatory))
        return self._number(message)

    def _frames(self, channel: Any, message: Message, mandatory: bool) -> bytes:
        connection = channel.connection
        if connection is None:  # and no number of a channel either
            raise RecoverableConnectionError("the connection was closed")
        return publish_frames(channel.channel_id, message, mandatory, connection.frame_max)

    def _number(self, message: Message) -> int:
        self._sequence += 1
        self._awaited[self._sequence] = message
        return self._sequence

    def _await_confirms(self) -> None:
        connection = self.link.connection
        while self._awaited:
            if self.link.blocked:
                self._await_confirms_while_blocked()
                return
            connection.drain_events()  # until the deadline of the link

    def _await_confirms_while_blocked(self) -> None:
        deadline = self.link.until.part(BLOCKED_GRACE)
        try:
            while self._awaited:
                self.link.connection.drain_events(timeout=deadline.left)
        except TimeoutError as exc:
            raise BrokerBlocked(self.link.blocked or "was in alarm") from exc

    def _on_ack(self, number: int, multiple: bool) -> None:
        self._confirmed(number, multiple, None)

    def _on_nack(self, number: int, multiple: bool) -> None:
        refused = MessageNacked("the broker refused the message (basic.nack), e.g. its queue is full")
        self._confirmed(number, multiple, self.namespace.failure(refused))

    def _confirmed(self, number: int, multiple: bool, outcome: NamespaceFailure | None) -> None:
        self._last_confirm = time.monotonic()
        awaited = self._awaited
        numbers = [number]
        if multiple:
            numbers = []
            for each in awaited:  # in order
                if each > number:
                    break
                numbers.append(each)
        for each in numbers:
            awaited.pop(each, None)
            if outcome is not None:
                self._outcomes.setdefault(each, outcome)

    def _on_return(self, exc: Exception, exchange: str, routing_key: str, returned: Any) -> None:
        message_id = returned.properties.get("message_id")
        failure = self.namespace.failure(exc)
        for number, message in self._awaited.items():
            same_place = message.exchange == exchange and message.routing_key == routing_key
            if same_place and message.properties.get("message_id") == message_id:
                self._outcomes[number] = failure

    def _broken(self, exc: Exception, *, maybe_stored: bool, of_peer: bool = False) -> NamespaceFailure:
        """Drop the link: after an error its confirms cannot be told apart any more.

        Arguments:
            of_peer: all was written, so that no message of ours is at fault.
        """
        failure = exc
        if not isinstance(failure, NamespaceFailure):
            is_garbage = of_peer and isinstance(exc, LookupError | TypeError | ValueError | struct.error)
            kind = FailureKind.UNREACHABLE if is_garbage else None
            failure = self.namespace.failure(exc, kind=kind, maybe_stored=maybe_stored, url=self.link.url)
        self.link.blame(failure)
        self.drop()
        return failure

    def drop(self) -> None:
        self.link.drop()
        self._forget()

    def _forget(self) -> None:
        self._forget_all_declared()
        self._awaited.clear()
        self._outcomes.clear()
        self._sequence = 0
        self._last_confirm = -math.inf
