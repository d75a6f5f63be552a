"""Which kind of failure an exception of the SDK is: every class of it, and every answer of the management."""

from __future__ import annotations

import inspect
import struct
from types import SimpleNamespace

import pytest
from azure.core import exceptions as http
from azure.servicebus import exceptions as amqp
from azure.servicebus._pyamqp.error import AuthenticationException, ErrorCondition, TokenAuthFailure, TokenExpired

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.servicebus import transport
from kombu_paired.brokers.servicebus.entities import ManagementUnavailable
from kombu_paired.brokers.servicebus.kinds import is_refusal, kind_of
from kombu_paired.failures import FailureKind

UNREACHABLE, TIMEOUT, FAULT, THROTTLED, UNAUTHORIZED, REJECTED, MISSING = FailureKind

CLASSES = {
    amqp.ServiceBusError: FAULT,
    amqp.ServiceBusConnectionError: UNREACHABLE,
    amqp.ServiceBusCommunicationError: UNREACHABLE,
    amqp.ServiceBusAuthenticationError: UNAUTHORIZED,
    amqp.ServiceBusAuthorizationError: UNAUTHORIZED,
    amqp.OperationTimeoutError: TIMEOUT,
    amqp.MessageSizeExceededError: REJECTED,
    amqp.MessagingEntityNotFoundError: MISSING,
    amqp.MessagingEntityDisabledError: FAULT,
    amqp.ServiceBusQuotaExceededError: FAULT,
    amqp.ServiceBusServerBusyError: THROTTLED,
}
#: Those that a receiver or a management client meets: each of them ends the one call, and none is an outage of a send.
OF_RECEIVERS = {
    amqp.MessageAlreadySettled,
    amqp.MessageLockLostError,
    amqp.SessionLockLostError,
    amqp.SessionCannotBeLockedError,
    amqp.MessageNotFoundError,
    amqp.MessagingEntityAlreadyExistsError,
    amqp.AutoLockRenewFailed,
    amqp.AutoLockRenewTimeout,
}


@pytest.fixture
def namespace():
    return KombuNamespace("primary", ["azureservicebus://p:s3cret@contoso"], {}, send_timeout=1)


def made(family):
    return family("x") if family is amqp.ServiceBusError else family()


@pytest.mark.parametrize(("family", "kind"), CLASSES.items(), ids=lambda each: getattr(each, "__name__", str(each)))
def test_each_class_of_the_sdk(namespace, family, kind):
    exc = made(family)
    assert kind_of(exc) is kind
    failure = namespace.failure(exc, maybe_stored=True)
    assert (failure.kind, failure.maybe_stored, failure.whole_namespace) == (kind, kind.counts, False)


def test_no_class_of_the_sdk_is_forgotten():
    classes = {each for _, each in inspect.getmembers(amqp, inspect.isclass) if each.__module__ == amqp.__name__}
    assert classes == CLASSES.keys() | OF_RECEIVERS


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("amqp:internal-error", FAULT),
        ("com.microsoft:container-close", FAULT),
        ("com.microsoft:operation-cancelled", FAULT),
        ("com.microsoft:a-condition-of-tomorrow", FAULT),
        (None, FAULT),
        ("amqp:not-allowed", REJECTED),
        ("amqp:not-implemented", REJECTED),
        ("amqp:decode-error", REJECTED),
        ("amqp:invalid-field", REJECTED),
        ("com.microsoft:argument-error", REJECTED),
        ("com.microsoft:argument-out-of-range", REJECTED),
    ],
)
def test_an_answer_without_a_class_of_its_own(condition, kind):
    assert kind_of(amqp.ServiceBusError("no", condition=condition)) is kind
    assert kind_of(amqp.ServiceBusError("no", condition=condition and condition.encode())) is kind


def test_a_class_of_its_own_weighs_more_than_its_condition():
    assert kind_of(amqp.ServiceBusConnectionError(condition="amqp:not-allowed")) is UNREACHABLE
    assert kind_of(amqp.OperationTimeoutError(condition="com.microsoft:argument-error")) is TIMEOUT


@pytest.mark.parametrize("cause", [struct.error("too large"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no")])
def test_what_the_sdk_cannot_encode_is_the_messages_fault(cause):
    value = ValueError("invalid")
    value.__cause__ = cause
    for inner in (cause, value):
        assert kind_of(amqp.ServiceBusError("Handler failed: invalid.", error=inner)) is REJECTED


@pytest.mark.parametrize("family", [amqp.ServiceBusAuthenticationError, amqp.ServiceBusConnectionError])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (0, FAULT),  # the SDK's word for a token that the link to $cbs did not take
        (400, FAULT),
        (401, UNAUTHORIZED),
        (403, FAULT),
        (404, MISSING),
        (408, TIMEOUT),
        (429, THROTTLED),
        (500, FAULT),
        (503, FAULT),
    ],
)
def test_what_the_service_answers_to_a_token(family, status, kind):
    """With a custom endpoint address the SDK calls it an error of the connection."""
    assert kind_of(family(error=TokenAuthFailure(status, b"why"))) is kind


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("The namespace is being throttled. Error code: 50009. Please wait 2 seconds and try again.", 2.0),
        ("Too busy. Please wait for 1 second.", 1.0),
        ("The server is busy.", None),
    ],
)
def test_a_busy_service_may_say_how_long(namespace, text, wait):
    failure = namespace.failure(amqp.ServiceBusServerBusyError(message=text))
    assert (failure.kind, failure.wait, failure.of_nothing_stored().wait) == (THROTTLED, wait, wait)
    assert namespace.failure(amqp.ServiceBusConnectionError(message=text)).wait is None


@pytest.mark.parametrize(
    "cause",
    [
        TokenAuthFailure(ErrorCondition.ClientError, "CBS authentication link is in broken status"),
        TokenExpired(ErrorCondition.InternalError, description="CBS Authentication Expired."),
        AuthenticationException(ErrorCondition.InternalError, description="Failed to open CBS authentication link."),
        AuthenticationException(ErrorCondition.ClientError, description="Failed to authenticate: no such host"),
    ],
)
def test_a_token_without_an_answer_is_an_outage(cause):
    assert kind_of(amqp.ServiceBusAuthenticationError(error=cause)) is UNREACHABLE


def answer(status, text=""):
    return http.HttpResponseError(text, response=SimpleNamespace(status_code=status, reason=text, headers={}))


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (http.ServiceRequestError("refused"), UNREACHABLE),
        (http.ServiceRequestTimeoutError("silent at connect"), UNREACHABLE),
        (http.ServiceResponseError("the connection was closed"), TIMEOUT),
        (http.ServiceResponseTimeoutError("silent"), TIMEOUT),
        (http.ClientAuthenticationError("401"), UNAUTHORIZED),
        (http.ResourceNotFoundError("404"), MISSING),
        (answer(401), UNAUTHORIZED),
        (answer(403, "Manage,EntityRead claims are required"), UNAUTHORIZED),
        (answer(403, "Number of queues exceeds the quota"), FAULT),
        (answer(408), TIMEOUT),
        (answer(429), THROTTLED),
        (answer(400, "the name is not good"), REJECTED),
        (answer(500), FAULT),
        (answer(503), FAULT),
        (http.HttpResponseError("no answer at all"), FAULT),
        (http.DecodeError("no XML"), FAULT),
        (http.AzureError("?"), FAULT),
    ],
    ids=lambda each: repr(each) if isinstance(each, Exception) else each.name,
)
def test_answers_of_the_management(exc, kind):
    assert kind_of(exc) is kind


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (ConnectionRefusedError("refused"), UNREACHABLE),
        (TimeoutError("timed out"), TIMEOUT),
        (ManagementUnavailable("the management of contoso: 503"), UNREACHABLE),
        (transport.Unrouted("no queue is bound"), MISSING),
        (ValueError("not encodable"), REJECTED),
        (RuntimeError("what is this"), FAULT),
    ],
    ids=repr,
)
def test_what_is_not_the_sdks(namespace, exc, kind):
    assert namespace.kind_of(exc) is kind


def test_only_some_answers_say_that_the_message_was_not_stored():
    assert {family for family in CLASSES if is_refusal(made(family))} == {
        amqp.MessagingEntityDisabledError,
        amqp.ServiceBusQuotaExceededError,
    }


@pytest.mark.parametrize("family", [*CLASSES, *sorted(OF_RECEIVERS - {amqp.MessageAlreadySettled}, key=str)])
def test_kombu_knows_every_exception_of_the_sdk(family):
    """What is in none of its tuples ends a worker."""
    known = transport.Transport.connection_errors + transport.Transport.channel_errors
    assert issubclass(family, known)


@pytest.mark.parametrize(
    ("exc", "is_outage"),
    [
        (amqp.ServiceBusConnectionError(), True),
        (amqp.ServiceBusCommunicationError(), True),
        (amqp.OperationTimeoutError(), True),
        (http.ServiceRequestError("refused"), True),
        (http.ServiceResponseError("closed"), True),
        (amqp.MessagingEntityNotFoundError(), False),
        (amqp.MessagingEntityDisabledError(), False),
        (answer(400), False),
    ],
    ids=repr,
)
def test_an_outage_is_a_connection_error_and_a_wrong_entity_is_none(exc, is_outage):
    assert isinstance(exc, transport.Transport.connection_errors) is is_outage
    assert isinstance(exc, transport.Transport.channel_errors + transport.Transport.connection_errors)
