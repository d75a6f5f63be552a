"""Which two brokers may be paired: checked when a connection is made, before anything is reached."""

from __future__ import annotations

import logging
import time

import pytest
from celery import Celery
from kombu import Connection

from kombu_paired import ConfigurationError, pairing_of

SPARE = "amqp://spare-broker//"


def connect(primary, secondary, **options):
    """What a worker does first: ask whether its transport has an event loop."""
    return Connection(f"paired+{primary}", transport_options={"secondary": secondary, **options}).transport.implements


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


@pytest.mark.parametrize("secondary", ["memory://", "sqla+sqlite:///backlog.db"])
def test_a_secondary_that_forgets_is_refused_unless_it_is_allowed(secondary):
    with pytest.raises(ConfigurationError, match="allow_unsafe_secondary"):
        connect("amqp://main//", secondary)
    connect("amqp://main//", secondary, allow_unsafe_secondary=True)


def test_files_cannot_hold_a_backlog_whatever_is_allowed():
    with pytest.raises(ConfigurationError, match="slashes"):
        connect("amqp://main//", "filesystem://", allow_unsafe_secondary=True)


@pytest.mark.parametrize("secondary", ["sqs://", "memory://spare"])
def test_workers_that_could_not_stand_in_there_are_told_at_start_up(secondary):
    with pytest.raises(ConfigurationError, match="'stand_in_after' needs RabbitMQ, Redis or Azure Service Bus"):
        connect("amqp://main//", secondary, stand_in_after=30, allow_unsafe_secondary=True)


@pytest.mark.parametrize("secondary", [SPARE, "redis://spare", "azureservicebus://p:k@contoso"])
def test_workers_may_stand_in_where_they_can(secondary):
    connect("amqp://main//", secondary, stand_in_after=30)


def test_a_url_that_cannot_be_read_shows_nothing_of_its_password():
    with pytest.raises(ConfigurationError, match="cannot be read") as caught:
        connect("amqp://main//", "redis://:pa/ss@h")
    assert "pa/ss" not in str(caught.value)


def test_a_primary_without_a_whole_url_is_refused():
    with pytest.raises(ConfigurationError, match="whole URL"):
        Connection(
            "main-broker", transport="kombu_paired.transport:Transport", transport_options={"secondary": SPARE}
        ).connect()


def test_a_plain_connection_has_no_pairing():
    with pytest.raises(ConfigurationError, match="write 'paired\\+'"):
        pairing_of(Connection("memory://"))


# -- URLs that make no sense ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("primary", "said"),
    [
        ("nosuch://main", "a scheme that no broker has"),
        ("reddis://:hush@main", "did you mean 'redis://'"),
        ("amqpp://main", "did you mean 'amqp"),
        ("paired+redis://main", "write 'paired+' once"),
        ("://main", "a scheme that no broker has"),
        ("redis://:hush;hush@main", "Write a ';' that belongs to a password as %3B"),
        ("amqp://main//;spare", "whole URL, and one after every ';'"),
        ("amqp://main//;nosuch://other", "a scheme that no broker has"),
        ("redis://main:99999/0", "a port is a number from 1 to 65535"),
        ("redis://main:0/0", "ports are 1 to 65535"),
        ("redis://main:port/0", "a port is a number"),
        ("amqp://user:hush/hush@main//", "special characters"),
        ("amqp://user:12/hush@main//", "as %2F"),
        ("amqp://user:hush@main :5672//", "holds a space"),
        (" amqp://main//", "a scheme that no broker has"),
        ("redis://main/0 ", "holds a space"),
        ("redis://:hush@/0", "names no host: write redis://USER:PASSWORD@HOST:PORT"),
        ("redis://:6379/0", "names no host"),
        ("sentinel://", "names no host"),
        ("mongodb://main", "pip install 'kombu[mongodb]'"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_at_once_on_either_side(primary, said):
    for urls in ((primary, SPARE), ("amqp://main//", primary)):
        if urls[1].startswith("mongodb"):
            continue  # refused for what it forgets
        with pytest.raises(ConfigurationError) as caught:
            connect(*urls)
        text = str(caught.value)
        assert said in text or "without 'paired+'" in text or "must be a Kombu URL" in text
        assert "hush" not in text


@pytest.mark.parametrize("url", ["paired+", "paired+redis//:hush@main", "paired+main", "paired+redis:/main"])
def test_what_only_looks_like_a_paired_url_is_refused_at_once(url):
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.broker_transport_options = {"secondary": SPARE}
    started = time.monotonic()
    with pytest.raises(ConfigurationError, match="is no URL: write 'paired\\+' and the whole URL") as caught:
        app.send_task("task", ignore_result=True)
    assert time.monotonic() - started < 5  # Kombu would try for 6
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", ["paired+nosuch://main", "paired+redis://main:99999", "paired://main"])
def test_a_configuration_error_is_never_tried_again(url):
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.broker_transport_options = {"secondary": SPARE}
    started = time.monotonic()
    with pytest.raises(ConfigurationError):
        app.send_task("task", ignore_result=True)
    assert time.monotonic() - started < 5  # Kombu would try for 6


@pytest.mark.parametrize(
    "primary",
    [
        "amqp://",
        "amqp:///shop",
        "redis:///1",
        "redis://[::1]:6379/0",
        "memory://",
        "filesystem://",
        "amqp://u:p%2F%3B%40@h",
        "REDIS://main",
    ],
)
def test_a_url_that_kombu_understands_is_taken(primary):
    assert connect(primary, SPARE).exchange_type


def test_whoever_only_shows_a_connection_needs_no_settings():
    connection = Connection("paired+redis://:hush@main:6379/0")
    assert connection.as_uri() == "paired+redis://:**@main:6379/0"
    assert connection.info()["transport"] == "paired"
    assert connection.transport.driver_name == "redis"
    assert connection.clone().as_uri() == connection.as_uri()
    with pytest.raises(ConfigurationError, match="'secondary' is missing"):
        connection.connect()
    with pytest.raises(ConfigurationError, match="'secondary' is missing"):
        connection.supports_exchange_type("fanout")  # a worker asks before it does anything else
