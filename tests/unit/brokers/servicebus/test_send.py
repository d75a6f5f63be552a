"""A send goes past what the SDK does for who traces, and past nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.settings import settings
from azure.servicebus.amqp import AmqpAnnotatedMessage

from kombu_paired.brokers.servicebus import compat

MESSAGE = AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": "1"})
PLAIN = compat.PlainMessage(b"x", {"message_id": "1"})


class OtherVersion:
    """A sender of an SDK that has no more than its public methods."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send_messages(self, message: Any, timeout: float) -> None:
        self.sent.append(("public", message, timeout))


class Raw(OtherVersion):
    def _check_live(self) -> None:
        self.sent.append(("asked",))

    def _send(self, message: Any, timeout: float, last_exception: Exception | None = None) -> None:
        self.sent.append(("short", message._message, timeout))

    def _do_retryable_operation(self, operation: Any, timeout: float, **how: Any) -> None:
        assert how.pop("operation_requires_timeout")
        assert how.pop("apply_try_timeout")
        assert how.pop("require_last_exception")
        operation(timeout=timeout, **how)


@pytest.mark.parametrize("given", [MESSAGE, PLAIN], ids=["any", "plain"])
def test_a_message_that_nobody_traces_goes_the_short_way(given):
    raw = Raw()
    compat.send(raw, given, 3)
    asked, (way, message, timeout) = raw.sent
    assert (asked, way, timeout) == (("asked",), "short", 3)
    assert message == compat.sections_of(given)


def test_who_traces_sees_it(monkeypatch):
    monkeypatch.setattr(type(settings.tracing_implementation), "__call__", lambda setting: object)
    raw = Raw()
    compat.send(raw, MESSAGE, 3)
    assert raw.sent == [("public", MESSAGE, 3)]


@pytest.mark.parametrize(("raw", "message"), [(OtherVersion(), MESSAGE), (Raw(), object())], ids=["version", "batch"])
def test_all_else_is_the_sdk_s(raw, message):
    compat.send(raw, message, 3)
    assert raw.sent == [("public", message, 3)]


def test_without_that_part_of_the_sdk_too(monkeypatch):
    monkeypatch.setattr(compat, "PyamqpTransport", None)
    raw = Raw()
    compat.send(raw, MESSAGE, 3)
    assert raw.sent == [("public", MESSAGE, 3)]
    assert compat.encoded_size(MESSAGE) is None
