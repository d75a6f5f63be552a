"""A broker's URL, as a value. What is shown of one is in test_options.py and test_secrets.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.urls import BrokerUrl

URL = BrokerUrl("redis+socket://user:hush@/tmp/redis.sock?virtual_host=1")


def test_it_is_a_value():
    assert BrokerUrl("amqp://main//") == BrokerUrl("amqp://main//") != BrokerUrl("amqp://main/")
    assert len({BrokerUrl("amqp://main//"), BrokerUrl("amqp://main//")}) == 1
    with pytest.raises(AttributeError):
        URL.text = "amqp://another//"


@given(st.text("hush/+=@:?#[]%&; ", max_size=12))
def test_printed_it_shows_what_may_be_shown_and_no_more(password):
    url = BrokerUrl(f"amqp://user:hush{password}@main//")
    for printed in (str(url), repr(url), f"{url}", f"{url!r}", str([url])):
        assert "hush" not in printed
        assert url.shown() in printed


def test_its_parts():
    assert (URL.scheme, URL.kind, URL.is_compound) == ("redis+socket", "redis", True)
    assert (BrokerUrl("amqp://main//").scheme, BrokerUrl("amqp://main//").rest) == ("amqp", "main//")
    assert not BrokerUrl("amqp://main//").is_compound


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("amqp://a//", ["amqp://a//"]),
        ("amqp://a//;amqp://b//", ["amqp://a//", "amqp://b//"]),
        ("amqp://u:p;w@a//;redis://b", ["amqp://u:p;w@a//", "redis://b"]),
        ("", [""]),
    ],
)
def test_a_semicolon_parts_two_urls_where_another_one_begins(text, urls):
    assert [each.text for each in BrokerUrl.all_in(text)] == urls


@pytest.mark.parametrize("text", ["paired+amqp://main//", "PAIRED+amqp://main//", "paired://main"])
def test_a_paired_url_is_told_by_its_scheme(text):
    assert BrokerUrl(text).is_paired
    assert not BrokerUrl("amqp://paired+main//").is_paired
    assert not BrokerUrl("pairedup://main//").is_paired


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("amqp://localhost//", "amqp://guest:guest@127.0.0.1:5672//"),
        ("amqp://", "amqp://localhost"),
        ("amqp://main/shop", "amqp://MAIN/shop"),
        ("amqp://main", "amqp://main/0"),
    ],
)
def test_two_urls_of_one_place_have_one_address(one, other):
    assert BrokerUrl(one).address(5672) == BrokerUrl(other).address(5672)


@pytest.mark.parametrize("other", ["amqp://main/shop", "amqp://main:5673/", "amqp://second/"])
def test_another_place_has_another_address(other):
    assert BrokerUrl("amqp://main/").address(5672) != BrokerUrl(other).address(5672)


def test_the_address_begins_with_the_server():
    assert BrokerUrl("amqp://main/a").address(5672)[:2] == BrokerUrl("amqp://main/b").address(5672)[:2]


def test_where_nobody_knows_what_a_url_says_its_address_is_the_text():
    assert BrokerUrl("sqs://key@").address(None) == ("sqs://key@",)
    assert URL.address(6379) == (URL.text,)


def test_an_address_that_cannot_be_read_is_a_value_error():
    with pytest.raises(ValueError, match="hush"):
        BrokerUrl("amqp://user:hush/x@main//").address(5672)


def test_a_socket_has_no_port_to_be_named_after():
    assert URL.name(6379) == "redis-socket-tmp-redis.sock"
    assert BrokerUrl("redis://localhost").name(6379) == "localhost-6379"


@pytest.mark.parametrize(
    "text", ["amqp://user:hush?x@main//", "amqp://user:hush/x@main//", "amqp://user:hush;x@main//"]
)
def test_a_torn_password_is_no_part_of_a_name(text):
    assert "hush" not in BrokerUrl(text).name(5672)
    assert "hush" not in BrokerUrl(text).label


def test_two_urls_that_are_named_by_a_checksum_have_different_ones():
    one, other = (BrokerUrl(f"amqp://user:hush?x@{host}//").name(5672) for host in ("main", "second"))
    assert one != other
    assert one.startswith("amqp-")
