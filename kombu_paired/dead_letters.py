"""What an operator does with dead letters: back into their queue with them, or away.

A dead letter is a message that can never be delivered (docs/architecture.md, rule 20), in the dead-letter queue of a
backlog queue, or of a stand-in queue.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, Received, Secondary, Sender
from kombu_paired.message import Message

__all__ = ("DESCRIPTION", "REASON", "Chosen", "delete", "requeue")

#: Headers of a dead letter: why it is one, in a word and in a sentence. They are those of Azure Service Bus.
REASON, DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"

#: Messages that are settled at a time.
BATCH = 100
#: Seconds to wait for more of them, when fewer came than there should be: others may have taken them.
PATIENCE = 1.0


@dataclass(frozen=True)
class Chosen:
    """Which dead letters are meant.

    Attributes:
        ids: message ids; none: whatever its id.
        reason: none: whatever its reason.
    """

    ids: Collection[str] = field(default_factory=frozenset)
    reason: str | None = None

    def has(self, message: Message) -> bool:
        is_meant = not self.ids or message.message_id in self.ids
        return is_meant and (self.reason is None or message.headers.get(REASON) == self.reason)


def requeue(secondary: Secondary, queues: Sequence[str], chosen: Chosen, timeout: float) -> int:
    """Put dead letters back into the queues that they come from, so that the syphon takes them up again.

    First the copy, confirmed, then the dead letter goes: a crash in between doubles it and never loses it.

    Arguments:
        queues: backlog queues and stand-in queues.
        timeout: seconds that each step may take.

    Returns:
        How many.

    Raises:
        NamespaceFailure: the secondary failed; what was not put back is a dead letter still.
    """
    with closing(secondary.sender()) as sender:
        return sum(_settle(secondary, queue, chosen, timeout, sender) for queue in queues)


def delete(secondary: Secondary, queues: Sequence[str], chosen: Chosen, timeout: float) -> int:
    """Throw dead letters away; returns how many.

    Raises:
        NamespaceFailure: the secondary failed.
    """
    return sum(_settle(secondary, queue, chosen, timeout, None) for queue in queues)


def _settle(secondary: Secondary, queue: str, chosen: Chosen, timeout: float, sender: Sender | None) -> int:
    """Those of one queue that are there now; the others are held meanwhile, and go back to where they were."""
    [depth] = secondary.backlog_depths([queue], timeout)
    if not depth.dead_letters:
        return 0
    settled = seen = 0
    with ExitStack() as stack:
        receiver = secondary.receiver([queue + DEAD_LETTER_SUFFIX], depth.dead_letters, timeout)
        stack.callback(receiver.close)
        while seen < depth.dead_letters:
            received = receiver.receive(min(BATCH, depth.dead_letters - seen), min(PATIENCE, timeout))
            receiver.raise_failure()
            if not received:
                break
            seen += len(received)
            meant = [each for each in received if chosen.has(each.message)]
            if sender is not None:
                _put_back(sender, queue, meant, timeout)
            receiver.complete(meant)
            receiver.raise_failure()
            settled += len(meant)
    return settled


def _put_back(sender: Sender, queue: str, received: Sequence[Received], timeout: float) -> None:
    copies = [_revived(each.message, queue) for each in received]
    for failure in sender.send_batch(copies, timeout) if copies else ():
        if failure is not None:
            raise failure


def _revived(message: Message, queue: str) -> Message:
    """As it was before it was a dead letter."""
    headers = {name: value for name, value in message.headers.items() if name not in (REASON, DESCRIPTION)}
    return replace(message, exchange="", routing_key=queue, headers=headers)
