"""``kombu_paired.health()``: both sides, asked side by side and within one ``send_timeout``."""

from __future__ import annotations

import json
import socket
import time

import pytest
from celery import Celery
from kombu import Connection

import kombu_paired
from kombu_paired.declarations import Entity
from kombu_paired.errors import ConfigurationError

SEND_TIMEOUT = 0.5


@pytest.fixture
def silent():
    """Two places where connections are taken, and nobody answers."""
    with socket.socket() as one, socket.socket() as other:
        for listener in (one, other):
            listener.bind(("127.0.0.1", 0))
            listener.listen(9)
        yield [f"127.0.0.1:{listener.getsockname()[1]}" for listener in (one, other)]


def connect(primary, secondary, **options):
    options = {"secondary": secondary, "send_timeout": SEND_TIMEOUT, "allow_unsafe_secondary": True, **options}
    return Connection(f"paired+{primary}", transport_options=options)


def test_two_brokers_that_answer_are_healthy():
    found = kombu_paired.health(connect("memory://main", "memory://spare"))
    assert found.ok
    assert found.accepts_work
    assert found.primary.why is None
    assert json.loads(json.dumps(found.as_dict())) == {
        "ok": True,
        "accepts_work": True,
        "pairing": "main",
        "primary": {"uri": "memory://main", "reachable": True, "why": None},
        "secondary": {"uri": "memory://spare", "reachable": True, "why": None},
        "entities": {},
        "isolated": {},
    }


@pytest.mark.parametrize("kind", ["redis", "amqp"])
def test_it_takes_one_send_timeout_when_both_sides_are_silent(silent, kind):
    urls = [f"{kind}://user:hushhush@{place}" for place in silent]
    started = time.monotonic()
    found = kombu_paired.health(connect(*urls))
    assert time.monotonic() - started < SEND_TIMEOUT + 3
    assert not found.ok
    assert not found.accepts_work
    assert found.primary.why
    assert "hush" not in f"{found} {found.as_dict()}"


def test_and_when_a_name_is_not_found_out(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: time.sleep(20))
    started = time.monotonic()
    found = kombu_paired.health(connect("redis://hang.example", "memory://spare"))
    assert time.monotonic() - started < SEND_TIMEOUT + 3
    assert found.secondary.reachable
    assert not found.primary.reachable
    assert found.accepts_work
    assert not found.ok


def test_an_entity_that_is_not_healthy_is_named():
    connection = connect("memory://main", "memory://spare", failover_interval=0)
    pairing = kombu_paired.pairing_of(connection)
    pairing.circuits.failed(Entity("", "orders"))
    try:
        found = kombu_paired.health(connection)
    finally:
        pairing.mark_healthy(Entity("", "orders"))
    assert found.entities == {"orders": "failed_over"}
    assert not found.ok
    assert found.accepts_work
    assert kombu_paired.health(connection).ok


def test_it_is_asked_of_an_application_too():
    app = Celery("shop", broker="paired+memory://main", set_as_current=False)
    app.conf.broker_transport_options = {"secondary": "memory://spare", "allow_unsafe_secondary": True}
    assert kombu_paired.health(app).ok


def test_a_plain_broker_has_no_pairing_to_ask():
    with pytest.raises(ConfigurationError, match="not a paired connection"):
        kombu_paired.health(Celery("shop", broker="memory://main", set_as_current=False))
