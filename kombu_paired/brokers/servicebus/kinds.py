"""Which kind of failure an exception is, that the SDK raises, or the transport on it.

Source: the exceptions measured on azure-servicebus 7.15, and the reference of the service's management API. Whether the
SDK would try again (``_retryable``) is not the answer to whether it counts as an outage.

What the SDK calls an authentication error is what ``$cbs`` answers to a token, whatever that is: 404 for an entity
that does not exist (azure-service-bus#304, #451, and the SDK's own live tests), 500 when it is out of order. The status
behind the error decides. Where there is none, the SDK had no answer: its link to ``$cbs`` broke, the token ran out
meanwhile, or the name of a host that is reached by web sockets could not be resolved.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from azure.core import exceptions as http
from azure.servicebus import exceptions as amqp

from kombu_paired.brokers.servicebus.compat import GIVEN_BACK, condition_of, is_link_error
from kombu_paired.failures import FailureKind

__all__ = (
    "AWAY",
    "CHANNEL_ERRORS",
    "CONNECTION_ERRORS",
    "Unrouted",
    "is_refusal",
    "kind_of",
    "refused_token",
    "token_status",
    "wait_of",
    "wants_a_session",
    "was_refused_as_link",
)


class Unrouted(LookupError):
    """No queue is bound for the message."""


#: From the special to the general: the first that fits decides.
_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (amqp.ServiceBusServerBusyError, FailureKind.THROTTLED),
    (amqp.OperationTimeoutError, FailureKind.TIMEOUT),
    (amqp.ServiceBusAuthenticationError, FailureKind.UNAUTHORIZED),
    (amqp.ServiceBusAuthorizationError, FailureKind.UNAUTHORIZED),
    (amqp.MessagingEntityNotFoundError, FailureKind.MISSING),
    (amqp.MessageSizeExceededError, FailureKind.REJECTED),
    (amqp.MessagingEntityDisabledError, FailureKind.FAULT),
    (amqp.ServiceBusQuotaExceededError, FailureKind.FAULT),
    (amqp.ServiceBusConnectionError, FailureKind.UNREACHABLE),
    (amqp.ServiceBusCommunicationError, FailureKind.UNREACHABLE),
    (amqp.ServiceBusError, FailureKind.FAULT),
    (http.ClientAuthenticationError, FailureKind.UNAUTHORIZED),
    (http.ResourceNotFoundError, FailureKind.MISSING),
    (http.ServiceRequestError, FailureKind.UNREACHABLE),
    (http.ServiceResponseTimeoutError, FailureKind.TIMEOUT),
    (http.ServiceResponseError, FailureKind.TIMEOUT),
)

#: What ``$cbs`` answers to a token. Of others it is not known what they mean: they count, so that nothing is lost.
_TOKEN_STATUSES = {
    401: FailureKind.UNAUTHORIZED,
    404: FailureKind.MISSING,
    408: FailureKind.TIMEOUT,
    429: FailureKind.THROTTLED,
}

#: Answers of the service that say that it does not have the message.
_REFUSALS = (amqp.MessagingEntityDisabledError, amqp.ServiceBusQuotaExceededError)

#: Conditions of an answer that says that the message itself is at fault (the service's and AMQP's own).
_REJECTIONS = frozenset(
    {
        "amqp:decode-error",
        "amqp:invalid-field",
        "amqp:not-allowed",
        "amqp:not-implemented",
        "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range",
    }
)

#: "... Please wait 2 seconds and try again." Management says it in a header of HTTP, whose text the SDK does not show.
_WAIT = re.compile(r"\bwait (?:for )?(\d+) seconds?\b", re.IGNORECASE)

#: Kinds of failure of a service that does not answer: its connection is of no use any more. What is unanswered when
#: connecting was not sent.
AWAY = frozenset({FailureKind.UNREACHABLE, FailureKind.TIMEOUT})

#: What a connection cannot go on after. A worker connects again.
CONNECTION_ERRORS: tuple[type[Exception], ...] = (
    amqp.ServiceBusConnectionError,
    amqp.ServiceBusCommunicationError,
    amqp.OperationTimeoutError,
    amqp.ServiceBusServerBusyError,
    amqp.ServiceBusAuthenticationError,
    amqp.ServiceBusAuthorizationError,
    http.ClientAuthenticationError,
    http.ServiceRequestError,
    http.ServiceResponseError,
    ConnectionError,
    TimeoutError,
)

#: What concerns one entity or one message.
CHANNEL_ERRORS: tuple[type[Exception], ...] = (amqp.ServiceBusError, http.HttpResponseError)


def kind_of(exc: BaseException) -> FailureKind | None:
    """The kind of an exception that the SDK, or the transport on it, raises; None for others."""
    if isinstance(exc, Unrouted):
        return FailureKind.MISSING
    if wants_a_session(exc) or _is_the_messages_fault(exc):
        return FailureKind.REJECTED
    status = token_status(exc)
    if status is not None:
        return _TOKEN_STATUSES.get(status, FailureKind.FAULT)
    if isinstance(exc, amqp.ServiceBusAuthenticationError) and exc.inner_exception is not None:
        return FailureKind.UNREACHABLE
    for family, kind in _KINDS:
        if isinstance(exc, family):
            return kind
    if isinstance(exc, http.HttpResponseError):
        return _kind_of_answer(exc.status_code or 0, str(exc))
    if isinstance(exc, http.AzureError):
        return FailureKind.FAULT
    return None


def wait_of(exc: BaseException) -> float | None:
    """Seconds for which the service asks to be left in peace: it writes them into its answers of a busy server."""
    found = _WAIT.search(str(exc))
    return float(found[1]) if found else None


def token_status(exc: BaseException) -> int | None:
    """What ``$cbs`` answered to a token, if that is what failed."""
    refusal = exc.inner_exception if isinstance(exc, amqp.ServiceBusError) else None
    status = getattr(refusal, "status_code", None)
    return status if isinstance(status, int) else None


def refused_token(exc: BaseException, path: str) -> amqp.ServiceBusAuthenticationError:
    """The error of a token that ``$cbs`` refused, with its answer; the SDK's own says nothing of it.

    Arguments:
        exc: an error with a :func:`token_status`.
        path: the queue or topic that the token was for.
    """
    refusal = getattr(exc, "inner_exception", None)
    answer = getattr(refusal, "status_description", None) or ""
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
    message = f"the token for {path} was answered with {token_status(exc)}: {text or 'no reason'}"
    return amqp.ServiceBusAuthenticationError(message=message, error=refusal)


def wants_a_session(exc: BaseException) -> bool:
    """A queue with sessions refuses a message without a session id."""
    text = str(exc).lower()
    return isinstance(exc, amqp.ServiceBusError) and "not-allowed" in text and "session" in text


def _is_the_messages_fault(exc: BaseException) -> bool:
    """Whether the service found fault with a message, or the SDK could not put it into bytes."""
    if type(exc) is not amqp.ServiceBusError:
        return False
    is_unencodable = any(isinstance(each, struct.error | UnicodeError) for each in _causes(exc))
    return condition_of(exc) in _REJECTIONS or is_unencodable


def is_refusal(exc: BaseException) -> bool:
    """Whether the service said that it has not stored the message."""
    return isinstance(exc, _REFUSALS) or condition_of(exc) == GIVEN_BACK


def was_refused_as_link(exc: BaseException) -> bool:
    """Whether the service refused a link, and not the connection."""
    return any(is_link_error(each) for each in _causes(exc))


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """An exception, and what it came of."""
    cause: BaseException | None = exc
    while cause is not None:
        yield cause
        cause = getattr(cause, "inner_exception", None) or cause.__cause__


def _kind_of_answer(status: int, text: str) -> FailureKind:
    if status == 429:
        return FailureKind.THROTTLED
    if status == 403 and "quota" in text.lower():
        return FailureKind.FAULT
    if status in (401, 403):
        return FailureKind.UNAUTHORIZED
    if status == 408:
        return FailureKind.TIMEOUT
    return FailureKind.FAULT if status >= 500 or not status else FailureKind.REJECTED
