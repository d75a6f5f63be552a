"""Which queue the service is asked for, and what a refusal of the credentials proves."""

from __future__ import annotations

from itertools import count

import pytest
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
)

from kombu_paired.brokers.servicebus.address import Address
from kombu_paired.brokers.servicebus.asking import NOBODY, Asking
from kombu_paired.connection_strings import as_url

MISSING, REFUSED = MessagingEntityNotFoundError(), ServiceBusAuthenticationError()
_hosts = count()


class Link:
    was_let_in = False

    def __init__(self, outcome):
        self.outcome = outcome

    def open(self, timeout):
        if self.outcome is not None:
            raise self.outcome

    def drop(self):
        """There is nothing to let go of."""


class Clients:
    """``Clients({"orders": None})``: links to orders open; others get the outcome ``elsewhere``."""

    def __init__(self, outcomes=(), elsewhere=MISSING, entity=""):
        host = f"Endpoint=sb://host{next(_hosts)}/;SharedAccessKeyName=p;SharedAccessKey=k"
        self.address = Address.parse(as_url(host + (f";EntityPath={entity}" if entity else "")))
        self.outcomes, self.elsewhere = dict(outcomes), elsewhere
        self.asked = []

    def sender(self, entity):
        self.asked.append(entity)
        return Link(self.outcomes.get(entity, self.elsewhere))


def test_a_service_that_says_that_nobody_has_it_works():
    clients = Clients()
    asking = Asking(clients)
    asking.note_use("orders")
    asking.ask(1)
    assert clients.asked == [NOBODY]  # what is wrong with orders is not what is asked


def test_who_is_refused_asks_for_a_queue_of_his_own():
    clients = Clients({"orders": None}, elsewhere=REFUSED)
    asking = Asking(clients)
    asking.note_use("orders")
    asking.note_use("more")
    asking.ask(1)
    Asking(clients).ask(1)
    assert clients.asked == [NOBODY, "orders", "orders"]


def test_the_queue_of_a_connection_string_is_asked_for_at_once():
    clients = Clients({"orders": None}, elsewhere=REFUSED, entity="orders")
    Asking(clients).ask(1)
    assert clients.asked == ["orders"]


def test_a_wrong_key_is_one_at_every_queue():
    asking = Asking(Clients(elsewhere=REFUSED))
    with pytest.raises(ServiceBusAuthenticationError):
        asking.ask(1)
    asking.ask_for_any(1)  # it may be the key of one queue
    for _ in range(2):
        with pytest.raises(ServiceBusAuthenticationError):
            asking.be_sure_of("orders", 1)
    with pytest.raises(ServiceBusAuthenticationError):
        asking.ask_for_any(1)  # it is known to be none of orders


def test_a_key_for_one_queue_is_found_good_there():
    clients = Clients({"orders": None}, elsewhere=REFUSED)
    asking = Asking(clients)
    asking.ask_for_any(1)
    asking.be_sure_of("orders", 1)
    asking.be_sure_of("more", 1)
    asking.ask_for_any(1)
    assert clients.asked == [NOBODY, "orders", "orders"]


def test_a_good_key_is_not_asked_about_again():
    clients = Clients()
    asking = Asking(clients)
    asking.ask_for_any(1)
    asking.be_sure_of("orders", 1)
    assert clients.asked == [NOBODY]


@pytest.mark.parametrize("outage", [ServiceBusConnectionError(), OperationTimeoutError()])
def test_an_outage_is_one_wherever_it_is_found(outage):
    clients = Clients(elsewhere=outage)
    asking = Asking(clients)
    asking.note_use("orders")
    for ask in (asking.ask, asking.ask_for_any):
        with pytest.raises(type(outage)):
            ask(1)
    assert set(clients.asked) == {NOBODY}
