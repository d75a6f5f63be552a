"""A batch on its way to the primary: first what its senders had declared, then the messages, confirmed and routed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kombu_paired.brokers.roles import Sender, Sends
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.marks import marked
from kombu_paired.message import DECLARE, LARGEST_GROWTH, Message
from kombu_paired.syphon.pace import Pace
from kombu_paired.syphon.parcel import Parcel
from kombu_paired.syphon.teller import Teller

__all__ = ("Delivery",)


class Delivery:
    """One link to the primary, and what was declared on it.

    Arguments:
        primary: where parcels go.
        timeout: seconds that a step may take.
        teller: is told of declarations that were refused.
        pace: is told how long the primary took.
    """

    def __init__(self, primary: Sends, timeout: float, teller: Teller, pace: Pace) -> None:
        self._primary = primary
        self._timeout = timeout
        self._teller = teller
        self._pace = pace
        self._sender: Sender | None = None
        self._declared: set[str] = set()

    def deliver(self, parcels: Sequence[Parcel], meanwhile: Callable[[], object]) -> list[NamespaceFailure | None]:
        """Send them; one answer each. What was sent twice is marked as maybe a duplicate.

        Arguments:
            meanwhile: what may be done while the primary's answers are awaited.
        """
        if not parcels:
            return []
        if self._sender is None:
            self._sender = self._primary.sender()
        sender = self._sender
        failures: list[NamespaceFailure | None] = self._declare(parcels, sender)
        began = time.time()
        for parcel in parcels:
            parcel.began = began
        ready = [index for index, failure in enumerate(failures) if failure is None]
        outcomes = self._send([self._marked(parcels[index]) for index in ready], sender, meanwhile) if ready else []
        twice = sender.maybe_twice.copy() if ready else set()
        for index, outcome in zip(ready, outcomes, strict=True):
            if outcome is not None and outcome.kind is FailureKind.MISSING:
                outcome = self._declare_and_send_again(parcels[index], sender, outcome)
            failures[index] = outcome
        for parcel in parcels if twice else ():
            parcel.maybe_duplicate |= parcel.message.message_id in twice
        return failures

    def _send(
        self, messages: Sequence[Message], sender: Sender, meanwhile: Callable[[], object]
    ) -> list[NamespaceFailure | None]:
        """Send them. How long that took counts, unless the link had to connect first."""
        is_fresh = sender.is_fresh
        began = self._pace.clock()
        outcomes = sender.send_batch_while(messages, self._timeout, meanwhile)
        taken = [message for message, failure in zip(messages, outcomes, strict=True) if failure is None]
        if taken and not is_fresh:
            load = len(taken) + sum(len(message.body) for message in taken) / 1000
            self._pace.sent(len(taken), load, began)
        return outcomes

    def close(self) -> None:
        """Let go of the link; the next batch gets another one."""
        sender, self._sender = self._sender, None
        self._declared.clear()
        if sender is not None:
            sender.close()

    def _declare(self, parcels: Sequence[Parcel], sender: Sender) -> list[NamespaceFailure | None]:
        """What the senders declared, once per link."""
        if sender.is_fresh:
            self._declared.clear()
        failed: dict[str, NamespaceFailure] = {}
        failures: list[NamespaceFailure | None] = []
        for parcel in parcels:
            text = str(parcel.received.message.headers.get(DECLARE, ""))
            if text and text not in self._declared and text not in failed:
                failure = self._declare_one(parcel, sender)
                if failure is None:
                    self._declared.add(text)
                else:
                    failed[text] = failure
            failures.append(failed.get(text))
        return failures

    def _declare_one(self, parcel: Parcel, sender: Sender) -> NamespaceFailure | None:
        try:
            sender.declare(parcel.diversion.declarations, self._timeout)
        except NamespaceFailure as failure:
            if failure.kind is not FailureKind.REJECTED:
                return failure
            # It is there, declared in another way by somebody who has his reasons: the send will tell.
            self._teller.declarations_refused(parcel.entity, failure)
        return None

    def _declare_and_send_again(
        self, parcel: Parcel, sender: Sender, missing: NamespaceFailure
    ) -> NamespaceFailure | None:
        if not parcel.diversion.declarations:
            return missing
        failure = self._declare_one(parcel, sender)
        if failure is not None:
            return failure
        [outcome] = sender.send_batch([self._marked(parcel)], self._timeout)
        return outcome

    def _marked(self, parcel: Parcel) -> Message:
        """The message as its task is to see it. Where the marks would make it too large it goes without them."""
        message = marked(parcel.message, parcel.diversion.at, parcel.maybe_duplicate)
        limit = self._primary.max_message_size
        if limit is None or LARGEST_GROWTH * message.size < limit or self._primary.encoded_size(message) <= limit:
            return message
        return parcel.message
