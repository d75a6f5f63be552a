"""What the service calls things."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kombu.transport.azureservicebus import CHARS_REPLACE_TABLE

from kombu_paired.brokers.servicebus.names import (
    LONGEST_NAME,
    LONGEST_SUBSCRIPTION,
    entity_name,
    is_backlog,
    subscription_name,
)
from kombu_paired.emulator.broker.entities import check_name
from kombu_paired.errors import ConfigurationError

letters = "abcXYZ019._-/@:#+ é☃"
names = st.text(st.sampled_from(letters), max_size=30) | st.text(max_size=30)


@given(names)
def test_a_queue_is_called_as_the_stock_transport_calls_it_or_refused(name):
    assume(not is_backlog(name))
    stock = name.translate(CHARS_REPLACE_TABLE)
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", stock):
        assert entity_name(name) == stock
        check_name(stock)
    else:
        with pytest.raises(ConfigurationError, match=re.escape(repr(name))):
            entity_name(name)


@given(names, st.sampled_from(["", "shop-", "shop/", "a.b_"]))
def test_a_prefix_is_put_in_front_as_the_stock_transport_does(name, prefix):
    assume(not is_backlog(prefix + name))
    try:
        assert entity_name(name, prefix) == (prefix + name).translate(CHARS_REPLACE_TABLE)
    except ConfigurationError:
        with pytest.raises(ConfigurationError):
            entity_name(prefix + name)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("celery", "celery"),
        ("celery@host.celery.pidbox", "celery_host.celery.pidbox"),
        ("orders.new-ones_2", "orders.new-ones_2"),
        ("a/b", "a_b"),
        ("contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/0"),
        ("contoso-5672/x-servicebus-transfer/12", "contoso-5672/x-servicebus-transfer/12"),
    ],
)
def test_names_that_are_seen_every_day(name, wanted):
    assert entity_name(name) == wanted
    check_name(wanted)


def test_a_backlog_queue_has_no_prefix():
    assert entity_name("contoso/x-servicebus-transfer/0", "shop-") == "contoso/x-servicebus-transfer/0"


@pytest.mark.parametrize("name", ["", "-x", "x-", ".x", "@celery", "grüße", "a b", "x/x-servicebus-transfer/"])
def test_a_name_that_the_service_refuses_is_refused_first(name):
    with pytest.raises(ConfigurationError, match="with a letter or a digit at both ends"):
        entity_name(name)


def test_a_name_can_be_too_long():
    assert entity_name("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    with pytest.raises(ConfigurationError, match="at most 260 characters, not 261"):
        entity_name("x" * LONGEST_NAME, "y")


@given(names | st.text(st.sampled_from(letters), min_size=40, max_size=300))
def test_a_subscriptions_name_is_always_legal(queue):
    name = subscription_name(queue)
    check_name(name, LONGEST_SUBSCRIPTION, "subscription")
    assert len(name) <= LONGEST_SUBSCRIPTION


@given(st.lists(names, min_size=2, max_size=2, unique=True))
def test_two_queues_have_two_subscriptions_unless_the_stock_table_makes_them_one(queues):
    one, other = queues
    if one.translate(CHARS_REPLACE_TABLE) != other.translate(CHARS_REPLACE_TABLE):
        assert subscription_name(one) != subscription_name(other)


@pytest.mark.parametrize("end", ["", "-1", "-2", "é", "ü"])
def test_a_long_name_is_cut_and_told_apart(end):
    queue = "celery@a-host-with-a-very-long-name.example.com.celery.pidbox" + end
    name = subscription_name(queue)
    assert re.fullmatch(r"celery_a-host-with-a-very-long-na-[0-9a-f]{16}", name)
    others = [subscription_name(queue.removesuffix(end) + each) for each in ("", "-1", "-2", "é", "ü") if each != end]
    assert name not in others


def test_a_short_name_stays_readable():
    assert subscription_name("celery@host.celery.pidbox") == "celery_host.celery.pidbox"
    assert subscription_name("celeryev.4f5c8a0e-1f0d-4b4e") == "celeryev.4f5c8a0e-1f0d-4b4e"
