"""Whether the service let us in although a link could not be opened: then an entity is at fault, not the namespace."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.servicebus._pyamqp.error import AMQPLinkError, ErrorCondition
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)

from kombu_paired.brokers.servicebus.amqp_links import SenderLink
from kombu_paired.brokers.servicebus.entities import Entities
from kombu_paired.brokers.servicebus.outgoing import Outgoing
from kombu_paired.brokers.servicebus.settings import ServiceBusSettings

TIMEOUT = 0.05


def refused_link():
    """The SDK's error of an entity that is missing."""
    error = MessagingEntityNotFoundError(message="no such queue")
    error.inner_exception = AMQPLinkError(condition=ErrorCondition.NotFound)
    return error


def link_that_fails(error):
    def make(patience):
        raise error

    return SenderLink(make, "orders")


class Silent:
    """An SDK's sender that never comes to its end of opening."""

    def __init__(self, let_in):
        state = SimpleNamespace(value=0 if let_in else 1)
        self._handler = SimpleNamespace(_cbs_authenticator=SimpleNamespace(auth_state=state), _connection=None)
        self.given_up = threading.Event()

    def _open_with_retry(self):
        self.given_up.wait(30)

    def close(self):
        self.given_up.set()


@pytest.mark.parametrize(
    ("error", "expected"), [(refused_link(), True), (ServiceBusConnectionError(message="refused"), False)]
)
def test_a_refusal_is_of_the_link_or_of_the_connection(error, expected):
    link = link_that_fails(error)
    assert not link.was_let_in
    with pytest.raises(type(error)):
        link.open(TIMEOUT)
    assert link.was_let_in is expected
    assert not hasattr(error, "was_let_in")


@pytest.mark.parametrize("let_in", [True, False])
def test_a_service_may_fall_silent_before_it_lets_us_in_or_afterwards(let_in):
    raw = Silent(let_in)
    link = SenderLink(lambda patience: raw, "orders")
    with pytest.raises(OperationTimeoutError):
        link.open(TIMEOUT)
    raw.given_up.set()
    assert link.was_let_in is let_in


def test_the_links_of_a_sender_tell_it_of_the_last_that_was_to_be_opened():
    errors = [refused_link(), ServiceBusConnectionError(message="refused")]
    outgoing = Outgoing(SimpleNamespace(sender=lambda path, shared: link_that_fails(errors.pop(0))))
    seen = []
    for _ in range(2):
        with pytest.raises((MessagingEntityNotFoundError, ServiceBusConnectionError)):
            outgoing.link("orders", TIMEOUT)
        seen.append(outgoing.was_let_in)
    assert seen == [True, False]


class Clients:
    """A namespace whose management is away; whose links fail, or open."""

    address = SimpleNamespace(place="contoso")

    def __init__(self, link_error):
        self.link_error = link_error

    @contextmanager
    def administration(self, patience):
        raise ServiceRequestError(message="the management is away")
        yield

    def sender(self, path):
        if self.link_error is None:
            return SimpleNamespace(open=lambda timeout: None, close=lambda: None)
        return link_that_fails(self.link_error)


@pytest.mark.parametrize(
    ("link_error", "expected"),
    [
        (refused_link(), True),
        (ServiceBusAuthorizationError(message="send is not allowed"), True),
        (ServiceBusConnectionError(message="refused"), False),
    ],
)
def test_a_management_that_is_away_is_away_alone_if_a_link_is_let_in(link_error, expected):
    clients = Clients(link_error)
    entities = Entities(clients, ServiceBusSettings(), set())
    with pytest.raises(ServiceRequestError) as caught:
        entities.ensure_queue("orders", 1)
    assert caught.value.__cause__ is link_error
    assert entities.was_let_in is expected

    with pytest.raises(ServiceRequestError):
        entities.counts("orders", 1)
    assert not entities.was_let_in, "of this nothing is known"

    clients.link_error = None
    entities.ensure_queue("orders", 1)  # it can be sent to
    assert not entities.was_let_in
