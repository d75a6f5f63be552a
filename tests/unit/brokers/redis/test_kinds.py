"""Which kind of failure an exception of redis-py is: the exceptions are made the way redis-py makes them."""

from __future__ import annotations

import pytest
import redis
from redis import exceptions
from redis._parsers.base import BaseParser

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.failures import FailureKind

UNREACHABLE, TIMEOUT, FAULT, THROTTLED, UNAUTHORIZED, REJECTED, MISSING = FailureKind

NAMESPACE = KombuNamespace("primary", ["redis://"], {}, send_timeout=1)


def kind(exc):
    return NAMESPACE.failure(exc).kind


REPLIES = [
    ("OOM command not allowed when used memory > 'maxmemory'.", FAULT),
    ("READONLY You can't write against a read only replica.", FAULT),
    ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", FAULT),
    ("LOADING Redis is loading the dataset in memory", FAULT),
    ("NOREPLICAS Not enough good replicas to write.", FAULT),
    ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", FAULT),
    ("CLUSTERDOWN The cluster is down", FAULT),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", FAULT),
    ("TRYAGAIN Multiple keys request during rehashing of slot", FAULT),
    ("ERR max number of clients reached", UNREACHABLE),
    ("NOAUTH Authentication required.", UNAUTHORIZED),
    ("WRONGPASS invalid username-password pair or user is disabled.", UNAUTHORIZED),
    ("ERR invalid password", UNAUTHORIZED),
    (
        "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
        "configuration is correct?",
        UNAUTHORIZED,
    ),
    ("NOPERM this user has no permissions to run the 'lpush' command", UNAUTHORIZED),
    ("WRONGTYPE Operation against a key holding the wrong kind of value", FAULT),
    ("ERR Protocol error: invalid bulk length", REJECTED),
]


def reply(text):
    """What redis-py makes of an error reply."""
    return BaseParser.parse_error(text)


def in_a_pipeline(exc):
    """What it makes of one that answers a command of a pipeline."""
    redis.Redis().pipeline().annotate_exception(exc, 1, ("LPUSH", "orders", "{...}"))
    return exc


@pytest.mark.parametrize(("text", "expected"), REPLIES)
def test_error_replies(text, expected):
    assert kind(reply(text)) is expected


@pytest.mark.parametrize(("text", "expected"), REPLIES)
def test_error_replies_in_a_pipeline(text, expected):
    exc = in_a_pipeline(reply(text))
    assert str(exc).startswith("Command # 1 (LPUSH orders {...}) of pipeline caused error: ")
    assert kind(exc) is expected


def test_the_words_of_a_message_are_not_taken_for_the_servers():
    exc = reply("WRONGTYPE Operation against a key holding the wrong kind of value")
    redis.Redis().pipeline().annotate_exception(exc, 1, ("LPUSH", "orders of pipeline caused error: OOM", "x"))
    assert kind(exc) is FAULT
    assert not NAMESPACE.failure(exc).whole_namespace


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (exceptions.TimeoutError("Timeout reading from socket"), TIMEOUT),
        (exceptions.TimeoutError("Timeout connecting to server"), TIMEOUT),
        (exceptions.ConnectionError("Error 111 connecting to 127.0.0.1:6379. Connection refused."), UNREACHABLE),
        (exceptions.ConnectionError("Connection closed by server."), UNREACHABLE),
        (exceptions.ConnectionError("Error while reading from 127.0.0.1:6379 : (104, 'reset')"), UNREACHABLE),
        (exceptions.MaxConnectionsError("Too many connections"), UNREACHABLE),
        (exceptions.AuthorizationError("no"), UNAUTHORIZED),
        (exceptions.DataError("Invalid input of type: 'dict'"), REJECTED),
        (exceptions.ExecAbortError("Transaction discarded because of previous errors."), REJECTED),
        (exceptions.InvalidResponse("Protocol Error"), FAULT),
    ],
    ids=repr,
)
def test_exceptions_of_redis_py(exc, expected):
    assert kind(exc) is expected
