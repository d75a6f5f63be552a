"""What can go wrong, drawn once.

::

    PairedError
    ├── ConfigurationError      a setting is wrong; start-up stops here      (also ValueError)
    ├── MalformedBacklogMessage a stored message that cannot be translated back
    │   └── ExpiredInBacklog    its time to live ran out before it could go home
    ├── NamespaceFailure        one attempt on one namespace failed; FailureKind says how
    └── SendError               what a caller of publish() may see           (also OperationalError)
        ├── BacklogUnavailable      the primary failed, and no backlog queue took the message
        ├── NamespaceUnauthorized   wrong key or no rights: diverting would hide it
        ├── MessageTooLarge         fits neither the primary nor, compressed, the backlog
        ├── PrimaryUnavailable      the primary is away, and this may not wait: a transient message, or a question to it
        ├── ResultsUnavailable      the result backend is away, and this call cannot do without it
        └── PairingClosed           the pairing was closed or faulted

``SendError`` is a :class:`kombu.exceptions.OperationalError`, which is what Celery promises to raise from
``delay()``. A message the primary itself refuses (``FailureKind.REJECTED`` and ``MISSING``) raises what the plain
transport would raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError

if TYPE_CHECKING:
    from kombu_paired.failures import FailureKind

__all__ = (
    "BacklogUnavailable",
    "ConfigurationError",
    "ExpiredInBacklog",
    "MalformedBacklogMessage",
    "MessageTooLarge",
    "NamespaceFailure",
    "NamespaceUnauthorized",
    "PairedError",
    "PairingClosed",
    "PrimaryUnavailable",
    "ResultsUnavailable",
    "SendError",
)


class PairedError(Exception):
    """Base of every error of this package."""


class ConfigurationError(PairedError, ValueError):
    """A setting is missing, misspelt or out of bounds. The text names it and says what to write."""


class MalformedBacklogMessage(PairedError):
    """A message in a backlog queue that this package did not write, or that was damaged.

    Arguments:
        reason: one word for the dead-letter queue's ``DeadLetterReason``.
        description: a sentence for its ``DeadLetterErrorDescription``.
    """

    def __init__(self, reason: str, description: str) -> None:
        super().__init__(f"{reason}: {description}")
        self.reason = reason
        self.description = description


class ExpiredInBacklog(MalformedBacklogMessage):
    """The message's time to live ran out while it waited: delivering it late would be wrong."""


class NamespaceFailure(PairedError):
    """One attempt on one namespace failed.

    Never reaches an application as it is: the pairing reads :attr:`kind` and acts on it.

    Attributes:
        kind: what the failure means for the send.
        namespace: ``primary`` or ``secondary``, and its URI without secrets.
        cause: the driver's own exception.
        detail: the text of that.
        maybe_stored: the broker may have stored the message (the request was under way when it failed).
        whole_namespace: the namespace could not be reached at all, so every entity in it shares the failure.
        advice: what to do about it, where that is known; also the end of the text.
        wait: seconds for which a broker that is busy asks to be left in peace; None if it does not say.
    """

    def __init__(
        self,
        kind: FailureKind,
        namespace: str,
        cause: BaseException,
        *,
        maybe_stored: bool = False,
        whole_namespace: bool = False,
        advice: str = "",
        wait: float | None = None,
    ) -> None:
        self.detail = f"{type(cause).__name__}: {cause}"
        text = f"{namespace}: {kind.value}: {self.detail}"
        super().__init__(f"{text.rstrip('.')}. {advice}" if advice else text)
        self.kind = kind
        self.namespace = namespace
        self.cause = cause
        self.maybe_stored = maybe_stored
        self.whole_namespace = whole_namespace
        self.advice = advice
        self.wait = wait

    def of_nothing_stored(self) -> NamespaceFailure:
        """The same failure as it concerns a message that was never sent: it is certainly not stored."""
        if not self.maybe_stored:
            return self
        return NamespaceFailure(
            self.kind,
            self.namespace,
            self.cause,
            whole_namespace=self.whole_namespace,
            advice=self.advice,
            wait=self.wait,
        )


class SendError(PairedError, OperationalError):  # type: ignore[misc]
    """A message could not be sent. The caller still has it."""


class BacklogUnavailable(SendError):
    """The primary did not take the message and neither did any backlog queue; the text names both failures."""


class NamespaceUnauthorized(SendError):
    """A namespace refused the credentials; the text says which one."""


class MessageTooLarge(SendError):
    """The message does not fit; the text names its size and the limit, in bytes."""


class PrimaryUnavailable(SendError):
    """The primary is away, so a transient message was not sent, or a question that only it can answer has no answer."""


class ResultsUnavailable(SendError):
    """The result backend is away, and this call (a chord, a look at a state) cannot do without it."""


class PairingClosed(SendError):
    """The pairing was closed, or one of its namespaces was, so nothing can be sent through it any more."""
