"""A paired connection between two brokers that fail as they are told to."""

from __future__ import annotations

import pytest
from kombu import Connection

from kombu_paired.testing import ScriptedBroker
from kombu_paired.transport import pairing_of


@pytest.fixture
def log():
    """What both brokers were asked, in turn."""
    return []


@pytest.fixture
def primary(log):
    return ScriptedBroker("primary", log=log)


@pytest.fixture
def secondary(log):
    return ScriptedBroker("secondary", log=log)


@pytest.fixture
def connection(primary, secondary):
    """A paired connection, connected as Kombu connects it."""
    options = secondary.as_secondary(backlog_queue_count=1, failover_interval=0, ping_interval=1800)
    with Connection(f"paired+{primary.uri}", transport_options=options, connect_timeout=5) as connection:
        connection.connect()
        yield connection
        pairing_of(connection).close()


@pytest.fixture
def channel(connection):
    return connection.channel()
