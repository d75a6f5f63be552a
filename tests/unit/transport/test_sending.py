"""What Kombu and Celery see when they send, on a broker that fails as it is told to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kombu_paired.errors import BacklogUnavailable
from kombu_paired.failures import FailureKind
from kombu_paired.message import from_backlog
from kombu_paired.testing.scripted import ScriptedError, ScriptedRefusal
from tests.unit.transport.asking import publish


def test_a_message_goes_to_the_primary_and_nobody_consumes_for_it(connection, channel, primary, secondary):
    publish(channel, "hello", exchange="", routing_key="orders")
    [message] = primary.stored
    assert (message.body, message.routing_key, message.content_type) == (b"hello", "orders", "text/plain")
    assert message.properties["delivery_mode"] == 2
    assert secondary.stored == []
    assert connection.connection.primary is None
    assert len(primary.asked_for("connect")) == 1, "that of the link that sends"


def test_while_the_primary_is_away_it_goes_to_the_secondary_and_the_caller_sees_nothing(channel, primary, secondary):
    primary.go_away()
    publish(channel, "hello")
    [stored] = secondary.stored
    back = from_backlog(stored, 0)
    assert (back.body, back.exchange, back.routing_key) == (b"hello", "", "orders")
    assert primary.stored == []


def test_what_the_primary_refuses_is_raised_as_the_plain_transport_raises_it(channel, primary, secondary):
    primary.fail(FailureKind.REJECTED)
    with pytest.raises(ScriptedRefusal, match="primary rejected"):
        publish(channel)
    assert secondary.stored == []


def test_a_transient_message_is_raised_too_before_the_failover_and_after_it(connection, channel, primary, secondary):
    primary.go_away()
    with pytest.raises(ScriptedError, match="primary unreachable"):
        publish(channel, delivery_mode=1)
    assert secondary.stored == []
    publish(channel, "lasting")
    with pytest.raises(connection.connection_errors):
        publish(channel, delivery_mode=1)
    [stored] = secondary.stored
    assert from_backlog(stored, 0).body == b"lasting"


@pytest.mark.parametrize("given", ["a text", SimpleNamespace(body="a text", properties={"priority": 3})])
def test_celerys_command_line_publishes_a_text_or_a_message_of_py_amqp(channel, primary, given):
    channel.basic_publish(given, routing_key="orders")
    [message] = primary.stored
    assert (message.body, message.routing_key, message.content_encoding) == (b"a text", "orders", "utf-8")
    assert message.priority == (0 if given == "a text" else 3)


def test_a_mandatory_message_that_nobody_gets_is_returned_to_who_wants_it(channel, primary):
    returned = []
    primary.always = primary.failure(FailureKind.MISSING)
    with pytest.raises(ScriptedRefusal):
        publish(channel, mandatory=True)
    channel.events["basic_return"].add(lambda *facts: returned.append(facts))
    publish(channel, "back", exchange="shop", routing_key="nobody", mandatory=True)
    [(error, exchange, routing_key, message)] = returned
    assert isinstance(error, ScriptedRefusal)
    assert (exchange, routing_key, message.body, message.mandatory) == ("shop", "nobody", "back", True)


def test_an_outage_is_no_returned_message(channel, primary, secondary):
    channel.events["basic_return"].add(lambda *facts: pytest.fail("nothing came back"))
    primary.go_away()
    secondary.go_away()
    with pytest.raises(BacklogUnavailable):
        publish(channel, mandatory=True)


def test_who_connects_to_try_again_is_told_that_both_are_away(connection, channel, primary, secondary):
    """Kombu pauses between two tries of a send only if it cannot connect in between."""
    primary.go_away()
    secondary.go_away()
    with pytest.raises(BacklogUnavailable):
        publish(channel)
    paired = connection.transport
    assert paired.establish_connection().connected, "a first try"
    paired._collect(connection.connection)
    with pytest.raises(BacklogUnavailable, match="neither namespace took the message"):
        paired.establish_connection()
    assert paired.establish_connection().connected
