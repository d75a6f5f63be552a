"""Which kind of failure an exception of a driver is: the exceptions are made the way the drivers make them."""

from __future__ import annotations

import errno
import socket
import ssl
import struct

import amqp
import pytest
from amqp.exceptions import MessageNacked, error_for_code
from kombu.exceptions import ChannelError, EncodeError, OperationalError

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.rabbitmq.kinds import BrokerBlocked
from kombu_paired.failures import FailureKind

UNREACHABLE, TIMEOUT, FAULT, THROTTLED, UNAUTHORIZED, REJECTED, MISSING = FailureKind


def namespace(url, classify=None):
    return KombuNamespace("primary", [url], {}, send_timeout=1, classify=classify)


def kind(url, exc, classify=None):
    return namespace(url, classify).failure(exc).kind


# -- RabbitMQ ---------------------------------------------------------------------------------------------------

BASIC_PUBLISH, BASIC_RETURN, QUEUE_DECLARE, CONNECTION_OPEN = (60, 40), (60, 50), (50, 10), (10, 40)

AMQP = [
    (311, "CONTENT_TOO_LARGE", BASIC_PUBLISH, amqp.ChannelError, REJECTED),
    (312, "NO_ROUTE", BASIC_RETURN, amqp.ChannelError, MISSING),
    (313, "NO_CONSUMERS", BASIC_RETURN, amqp.ChannelError, MISSING),
    (320, "CONNECTION_FORCED - broker forced connection closure", (0, 0), amqp.ConnectionError, UNREACHABLE),
    (402, "INVALID_PATH - vhost shop not found", CONNECTION_OPEN, amqp.ConnectionError, UNAUTHORIZED),
    (403, "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused", QUEUE_DECLARE, amqp.ChannelError, UNAUTHORIZED),
    (404, "NOT_FOUND - no exchange 'orders' in vhost '/'", BASIC_PUBLISH, amqp.ChannelError, MISSING),
    (405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q'", QUEUE_DECLARE, None, REJECTED),
    (406, "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q'", QUEUE_DECLARE, None, REJECTED),
    (406, "PRECONDITION_FAILED - message size 300 is larger than configured max size 200", (60, 40), None, REJECTED),
    (501, "FRAME_ERROR - type 1, all octets = <<>>", (0, 0), amqp.ConnectionError, UNREACHABLE),
    (502, "SYNTAX_ERROR - illegal content field", BASIC_PUBLISH, amqp.ConnectionError, REJECTED),
    (503, "COMMAND_INVALID - unimplemented method", BASIC_PUBLISH, amqp.ConnectionError, FAULT),
    (504, "CHANNEL_ERROR - expected 'channel.open'", BASIC_PUBLISH, amqp.ConnectionError, UNREACHABLE),
    (505, "UNEXPECTED_FRAME - expected content header", BASIC_PUBLISH, amqp.ConnectionError, UNREACHABLE),
    (506, "RESOURCE_ERROR", QUEUE_DECLARE, amqp.ConnectionError, FAULT),
    (530, "NOT_ALLOWED - vhost shop not found", CONNECTION_OPEN, amqp.ConnectionError, UNAUTHORIZED),
    (540, "NOT_IMPLEMENTED - queue property not implemented", QUEUE_DECLARE, amqp.ConnectionError, REJECTED),
    (541, "INTERNAL_ERROR", QUEUE_DECLARE, amqp.ConnectionError, FAULT),
    (599, "A code of tomorrow", QUEUE_DECLARE, amqp.ConnectionError, UNREACHABLE),
]


@pytest.mark.parametrize(("code", "text", "method", "default", "expected"), AMQP)
def test_amqp_reply_codes(code, text, method, default, expected):
    exc = error_for_code(code, text, method, default or amqp.ChannelError)
    assert kind("amqp://", exc) is expected


def test_amqp_a_queue_whose_node_is_down_is_a_fault_and_not_missing():
    text = "NOT_FOUND - queue 'q' in vhost '/' process is stopped by supervisor or home node is down or inaccessible"
    assert kind("amqp://", error_for_code(404, text, QUEUE_DECLARE, amqp.ChannelError)) is FAULT


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (MessageNacked(), FAULT),
        (BrokerBlocked("low on memory"), FAULT),
        (amqp.RecoverableConnectionError("Socket was disconnected"), UNREACHABLE),
        (amqp.RecoverableConnectionError("connection already closed"), UNREACHABLE),
        (amqp.RecoverableConnectionError("basic_publish: timed out"), TIMEOUT),
        (amqp.ConnectionForced("Too many heartbeats missed"), UNREACHABLE),
        (OSError("Server unexpectedly closed connection"), UNREACHABLE),
        (AttributeError("'NoneType' object has no attribute 'send'"), UNREACHABLE),
    ],
    ids=repr,
)
def test_amqp_without_a_code(exc, expected):
    assert kind("pyamqp://", exc) is expected


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), UNREACHABLE),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), UNREACHABLE),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), UNREACHABLE),
        (OSError(errno.EHOSTUNREACH, "No route to host"), UNREACHABLE),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), UNREACHABLE),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), UNREACHABLE),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), UNREACHABLE),
        (TimeoutError("timed out"), TIMEOUT),
        (OperationalError("Connection to broker lost."), UNREACHABLE),
        (EncodeError("not JSON serializable"), REJECTED),
        (OverflowError("int too large to convert"), REJECTED),
        (struct.error("int too large to convert"), REJECTED),
        (RuntimeError("what is this"), FAULT),
    ],
    ids=repr,
)
@pytest.mark.parametrize("url", ["amqp://", "redis://", "filesystem://", "zookeeper://"])
def test_the_operating_system_and_kombu_say_the_same_behind_every_driver(url, exc, expected):
    assert kind(url, exc) is expected


# -- SQS --------------------------------------------------------------------------------------------------------

SQS = [
    ("AWS.SimpleQueueService.NonExistentQueue", MISSING),
    ("QueueDoesNotExist", MISSING),
    ("AccessDenied", UNAUTHORIZED),
    ("AccessDeniedException", UNAUTHORIZED),
    ("InvalidClientTokenId", UNAUTHORIZED),
    ("SignatureDoesNotMatch", UNAUTHORIZED),
    ("UnrecognizedClientException", UNAUTHORIZED),
    ("ExpiredToken", UNAUTHORIZED),
    ("RequestThrottled", THROTTLED),
    ("ThrottlingException", THROTTLED),
    ("InvalidMessageContents", REJECTED),
    ("InvalidParameterValue", REJECTED),
    ("InternalFailure", FAULT),
    ("ServiceUnavailable", FAULT),
]


@pytest.mark.parametrize(("code", "expected"), SQS)
def test_sqs_error_codes(code, expected):
    botocore = pytest.importorskip("botocore.exceptions")
    exc = botocore.ClientError({"Error": {"Code": code, "Message": "…"}}, "SendMessage")
    assert kind("sqs://", exc) is expected


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("EndpointConnectionError", {"endpoint_url": "https://sqs", "error": "refused"}, UNREACHABLE),
        ("ConnectTimeoutError", {"endpoint_url": "https://sqs", "error": "slow"}, UNREACHABLE),
        ("ConnectionClosedError", {"endpoint_url": "https://sqs", "error": "reset"}, UNREACHABLE),
        ("ReadTimeoutError", {"endpoint_url": "https://sqs", "error": "slow"}, TIMEOUT),
        ("NoCredentialsError", {}, UNAUTHORIZED),
    ],
)
def test_sqs_connection_errors(name, arguments, expected):
    botocore = pytest.importorskip("botocore.exceptions")
    assert kind("sqs://", getattr(botocore, name)(**arguments)) is expected


# -- other transports -------------------------------------------------------------------------------------------


def test_a_database_that_is_locked_or_away():
    sqlalchemy = pytest.importorskip("sqlalchemy.exc")
    locked = sqlalchemy.OperationalError("INSERT …", {}, Exception("database is locked"))
    assert kind("sqla+sqlite:////tmp/x.db", locked).counts


def test_a_folder_that_is_full_or_gone():
    cause = OSError(errno.ENOSPC, "No space left on device")
    exc = ChannelError("Cannot add file '/x' to directory")
    exc.__cause__ = cause
    assert kind("filesystem://", exc).counts


# -- what a failure says besides its kind -----------------------------------------------------------------------


def test_the_users_own_classification_wins():
    class Quota(Exception):
        pass

    def classify(exc):
        if isinstance(exc, Quota):
            return REJECTED
        return THROTTLED if "busy" in str(exc) else None

    assert kind("amqp://", Quota(), classify) is REJECTED
    assert kind("amqp://", amqp.NotFound("busy"), classify) is THROTTLED
    assert kind("amqp://", amqp.NotFound("gone"), classify) is MISSING
    assert namespace("amqp://", classify).failure(ConnectionRefusedError("busy"), kind=UNREACHABLE).kind is THROTTLED
    assert namespace("redis://", classify).kind_of(Quota()) is REJECTED


def test_the_users_own_classification_is_not_asked_about_an_interrupt():
    def classify(exc):
        raise AssertionError("asked")

    assert kind("amqp://", KeyboardInterrupt(), classify) is FAULT


def test_a_failure_that_does_not_count_was_never_stored_and_is_nobody_elses():
    failure = namespace("amqp://").failure(amqp.AccessRefused("no"), maybe_stored=True, whole_namespace=True)
    assert (failure.maybe_stored, failure.whole_namespace) == (False, False)
    failure = namespace("amqp://").failure(ConnectionResetError("reset"), maybe_stored=True, whole_namespace=True)
    assert (failure.maybe_stored, failure.whole_namespace) == (True, True)


def test_a_failure_names_the_side_and_hides_the_password():
    failure = namespace("amqp://shop:s3cret@main//").failure(ConnectionRefusedError("refused"))
    assert str(failure) == "primary namespace amqp://shop:**@main//: unreachable: ConnectionRefusedError: refused"
