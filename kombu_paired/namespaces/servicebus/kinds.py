"""Which kind of failure an exception of the SDK is.

Source: the exceptions measured on azure-servicebus 7.15, and the reference of the service's management API. Whether the
SDK would try again (``_retryable``) is not the answer to whether it counts as an outage.
"""

from __future__ import annotations

import struct

from azure.core import exceptions as http
from azure.servicebus import exceptions as amqp

from kombu_paired.failures import FailureKind

__all__ = ("CHANNEL_ERRORS", "CONNECTION_ERRORS", "is_refusal", "kind_of")

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
    """The kind of an exception that the SDK raises; None for others."""
    if type(exc) is amqp.ServiceBusError and (getattr(exc, "_condition", None) in _REJECTIONS or _is_unencodable(exc)):
        return FailureKind.REJECTED
    for family, kind in _KINDS:
        if isinstance(exc, family):
            return kind
    if isinstance(exc, http.HttpResponseError):
        return _kind_of_answer(exc.status_code or 0, str(exc))
    if isinstance(exc, http.AzureError):
        return FailureKind.FAULT
    return None


def _is_unencodable(exc: BaseException) -> bool:
    """Whether the SDK could not put a message into bytes."""
    cause: BaseException | None = exc
    while cause is not None and not isinstance(cause, struct.error | UnicodeError):
        cause = getattr(cause, "inner_exception", None) or cause.__cause__
    return cause is not None


def is_refusal(exc: BaseException) -> bool:
    """Whether the service said that it has not stored the message."""
    return isinstance(exc, _REFUSALS)


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
