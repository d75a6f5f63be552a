"""Which two brokers may be paired: checked when a connection is made, before anything is reached."""

from __future__ import annotations

import logging

import pytest
from kombu import Connection

from kombu_paired import ConfigurationError, pairing_of

SPARE = "amqp://spare-broker//"


def connect(primary, secondary, **options):
    return Connection(f"paired+{primary}", transport_options={"secondary": secondary, **options}).transport


@pytest.mark.parametrize(
    ("primary", "secondary"),
    [
        ("amqp://main//", "amqp://main//"),
        ("amqp://user:one@main//", "amqp://other:two@main:5672//"),
        ("redis://localhost", "redis://127.0.0.1:6379/0"),
        ("amqp://a//;paired+amqp://b//", "amqp://b//"),
        ("azureservicebus://p:one@contoso", "azureservicebus://q:two@contoso.servicebus.windows.net"),
        ("azureservicebus://p:k@localhost:5672", "azureservicebus://q:k@localhost:5672"),
    ],
)
def test_the_same_broker_twice_is_refused(primary, secondary):
    with pytest.raises(ConfigurationError, match="the same namespace"):
        connect(primary, secondary)


def test_two_namespaces_and_two_emulators_on_one_machine_may_be_paired(caplog):
    with caplog.at_level(logging.WARNING):
        connect("azureservicebus://p:k@contoso", "azureservicebus://p:k@contoso-dr")
    assert "dies with it" not in caplog.text
    connect("azureservicebus://p:k@localhost:5672", "azureservicebus://p:k@localhost:5673")


def test_a_namespace_and_a_broker_of_another_kind_may_be_paired():
    connect("azureservicebus://p:k@contoso", SPARE)
    connect("amqp://main//", "azureservicebus://p:k@contoso-dr")


def test_another_place_on_the_same_server_gets_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        connect("redis://main:6379/0", "redis://main:6379/1")
    assert "dies with it" in caplog.text


@pytest.mark.parametrize("secondary", ["memory://", "sqla+sqlite:///backlog.db", "mongodb://spare/backlog"])
def test_a_secondary_that_forgets_is_refused_unless_it_is_allowed(secondary):
    with pytest.raises(ConfigurationError, match="allow_unsafe_secondary"):
        connect("amqp://main//", secondary)
    connect("amqp://main//", secondary, allow_unsafe_secondary=True)


def test_files_cannot_hold_a_backlog_whatever_is_allowed():
    with pytest.raises(ConfigurationError, match="slashes"):
        connect("amqp://main//", "filesystem://", allow_unsafe_secondary=True)


def test_a_url_that_cannot_be_read_shows_nothing_of_its_password():
    with pytest.raises(ConfigurationError, match="cannot be read") as caught:
        connect("amqp://main//", "redis://:pa/ss@h")
    assert "pa/ss" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_primary_without_a_whole_url_is_refused():
    with pytest.raises(ConfigurationError, match="whole URL"):
        Connection(
            "main-broker", transport="kombu_paired.transport:Transport", transport_options={"secondary": SPARE}
        ).connect()


def test_a_plain_connection_has_no_pairing():
    with pytest.raises(ConfigurationError, match="write 'paired\\+'"):
        pairing_of(Connection("memory://"))
