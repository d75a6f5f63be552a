"""Service Bus, by every way that settings can choose: who one is, what is in between, and what is created there."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import kombu
import pytest
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter

from kombu_paired import pairing_of
from kombu_paired.brokers.servicebus.address import Address
from kombu_paired.brokers.servicebus.clients import Clients
from kombu_paired.brokers.servicebus.settings import ServiceBusSettings
from kombu_paired.emulator import Emulator
from kombu_paired.emulator.server.tokens import Policy
from kombu_paired.errors import NamespaceUnauthorized
from tests.support.gateway import Gateway

POLICY, KEY = "shop", "a/key+of=the=shop="
GUID = "11111111-2222-3333-4444-555555555555"
STUBS = Path(__file__).parents[1] / "support" / "azure_identity"


def new_emulator(*policies: str) -> Emulator:
    return Emulator(policies=[Policy.parse(each) for each in policies])


def round_trip(url: str, secondary: str, **options: Any) -> None:
    """A queue is made, and a message goes there and comes back; the pairing has its backlog queues."""
    options = {"secondary": secondary, "primary_name": "shop", "backlog_queue_count": 1, "send_timeout": 5, **options}
    with kombu.Connection(f"paired+{url}", transport_options=options) as connection:
        try:
            orders = kombu.Queue("orders", channel=connection.default_channel)
            with connection.Producer() as producer:
                producer.publish("a parcel", routing_key="orders", declare=[orders], retry=False)
            deadline = time.monotonic() + 20
            while (message := orders.get()) is None:
                assert time.monotonic() < deadline, "nothing came"
            assert message.payload == "a parcel"
            message.ack()
            pairing = pairing_of(connection)
            assert pairing.backlog_queue_count == 1
        finally:
            pairing_of(connection).close()


# -- who one is ---------------------------------------------------------------------------------------------------


@pytest.fixture
def sides() -> Iterator[tuple[Emulator, Emulator]]:
    """Two namespaces that check keys."""
    with new_emulator(f"{POLICY}:{KEY}") as primary, new_emulator(f"{POLICY}:{KEY}") as secondary:
        yield primary, secondary


def connection_string(emulator: Emulator, credentials: str) -> str:
    return f"Endpoint=sb://{emulator.host}/;{credentials}"


def signature(emulator: Emulator, seconds: float = 3600) -> str:
    audience, end = quote(f"sb://{emulator.host}", safe=""), int(time.time() + seconds)
    sign = quote(Policy.parse(f"{POLICY}:{KEY}").sign(audience, end), safe="")
    return f"SharedAccessSignature sr={audience}&sig={sign}&se={end}&skn={POLICY}"


def as_broker_url(text: str) -> str:
    return "azureservicebus://" + quote(text, safe="")


def test_a_connection_string_of_the_portal(sides):
    primary, secondary = (
        connection_string(each, f"SharedAccessKeyName={POLICY};SharedAccessKey={KEY}") for each in sides
    )
    round_trip(as_broker_url(primary), secondary)


def test_a_connection_string_with_a_signature(sides):
    primary, secondary = (connection_string(each, f"SharedAccessSignature={signature(each)}") for each in sides)
    round_trip(as_broker_url(primary), secondary)


def test_a_connection_string_with_a_wrong_key(sides):
    primary, secondary = (connection_string(each, f"SharedAccessKeyName={POLICY};SharedAccessKey=no") for each in sides)
    with pytest.raises(NamespaceUnauthorized):
        round_trip(as_broker_url(primary), secondary)


def test_signatures_that_a_function_makes(sides):
    made: dict[Emulator, list[str]] = {each: [] for each in sides}

    def maker(emulator: Emulator) -> Callable[[], str]:
        def make() -> str:
            made[emulator].append(signature(emulator))
            return made[emulator][-1]

        return make

    primary, secondary = (f"azureservicebus://{each.host}" for each in sides)
    options = [{"credential": maker(each)} for each in sides]
    round_trip(primary, secondary, primary_options=options[0], secondary_options=options[1])
    assert all(len(each) > 1 for each in made.values())


@pytest.fixture
def azure_identity(monkeypatch) -> Any:
    """The stub in the place of the package, in this process."""
    import azure

    monkeypatch.setattr(azure, "__path__", [*azure.__path__, str(STUBS / "azure")])
    monkeypatch.delitem(sys.modules, "azure.identity", raising=False)
    import azure.identity

    yield azure.identity
    sys.modules.pop("azure.identity", None)


@pytest.mark.parametrize("who", ["DefaultAzureCredential", f"ManagedIdentityCredential:{GUID}"])
def test_an_identity_of_azure(azure_identity, who, monkeypatch):
    asked = []
    name = who.partition(":")[0]
    get_token = getattr(azure_identity, name).get_token

    def noted(self: Any, *scopes: str, **kwargs: Any) -> Any:
        asked.append((type(self).__name__, self._arguments, scopes))
        return get_token(self, *scopes, **kwargs)

    monkeypatch.setattr(getattr(azure_identity, name), "get_token", noted)
    with new_emulator() as primary, new_emulator() as secondary:
        round_trip(f"azureservicebus://{who}@{primary.host}", f"azureservicebus://{who}@{secondary.host}")
    assert {each[0] for each in asked} == {name}
    assert {tuple(each[1].values()) for each in asked} == {(GUID if ":" in who else None,)}
    assert all("servicebus.azure.net" in scope for each in asked for scope in each[2])


def test_a_credential_by_its_import_path(azure_identity):
    option = {"credential": "azure.identity:WorkloadIdentityCredential"}
    with new_emulator() as primary, new_emulator() as secondary:
        urls = [f"azureservicebus://{each.host}" for each in (primary, secondary)]
        round_trip(*urls, primary_options=option, secondary_options=option)


# -- what is in between -------------------------------------------------------------------------------------------


@pytest.fixture
def gateway(sides) -> Iterator[Gateway]:
    """In front of the primary."""
    with Gateway(("127.0.0.1", sides[0].port)) as found:
        yield found


def through(sides: tuple[Emulator, Emulator], client_options: Mapping[str, Any]) -> None:
    primary, secondary = (f"azureservicebus://{POLICY}:{quote(KEY, safe='')}@{each.host}" for each in sides)
    round_trip(primary, secondary, primary_options={"client_options": client_options})


def test_a_custom_endpoint_is_the_links_and_the_managements(sides, gateway):
    through(sides, {"custom_endpoint_address": f"sb://127.0.0.1:{gateway.port}", "transport_type": "Amqp"})
    assert "AMQP" in gateway.seen
    assert "PUT /orders" in gateway.seen


def test_web_sockets_through_a_custom_endpoint(sides, gateway):
    pytest.importorskip("websocket")
    through(sides, {"custom_endpoint_address": f"sb://127.0.0.1:{gateway.port}"})
    assert "websocket" in gateway.seen
    assert "PUT /orders" in gateway.seen
    assert "AMQP" not in gateway.seen


def test_web_sockets_through_a_proxy(sides, gateway):
    """The proxy leads to a gateway that speaks web sockets, as the service does; the emulator does not."""
    pytest.importorskip("websocket")
    with Gateway(gateway.target) as proxy:
        endpoint = f"sb://127.0.0.1:{gateway.port}"
        through(sides, {"custom_endpoint_address": endpoint, "http_proxy": f"http://127.0.0.1:{proxy.port}"})
    assert f"CONNECT 127.0.0.1:{gateway.port}" in proxy.seen
    assert f"PUT http://127.0.0.1:{gateway.port}/orders" in proxy.seen
    assert "websocket" in gateway.seen


# -- what is created ----------------------------------------------------------------------------------------------


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as found:
        yield found


def plain_connection(emulator: Emulator, **options: Any) -> kombu.Connection:
    return kombu.Connection(
        f"azureservicebus://p:k@{emulator.host}",
        transport="kombu_paired.brokers.servicebus.transport:Transport",
        transport_options=options,
    )


def administration(emulator: Emulator) -> Any:
    return Clients(Address.parse(f"azureservicebus://p:k@{emulator.host}"), ServiceBusSettings()).administration(5)


def test_a_queue_is_created_with_the_properties_of_the_settings(emulator):
    options = {
        "peek_lock_seconds": 45,
        "max_delivery_count": 77,
        "default_message_time_to_live": 3600,
        "duplicate_detection_window": 1800,
        "requires_session": True,
        "enable_partitioning": True,
    }
    with plain_connection(emulator, **options) as connection:
        kombu.Queue("orders", channel=connection.default_channel).declare()
        short_lived = kombu.Queue("reply", channel=connection.default_channel, auto_delete=True)
        short_lived.declare()
        connection.default_channel.basic_consume("reply", True, print, "tag")
    with administration(emulator) as admin:
        queue, reply = admin.get_queue("orders"), admin.get_queue("reply")
    assert (queue.lock_duration, queue.max_delivery_count) == (timedelta(seconds=45), 77)
    assert queue.default_message_time_to_live == timedelta(hours=1)
    assert queue.requires_duplicate_detection
    assert queue.duplicate_detection_history_time_window == timedelta(minutes=30)
    assert (queue.requires_session, queue.enable_partitioning) == (True, True)
    assert (reply.lock_duration, reply.max_delivery_count) == (timedelta(seconds=45), 77)
    assert (reply.requires_session, reply.requires_duplicate_detection) == (False, False)


def test_a_message_that_is_given_back_often_is_no_dead_letter_by_default(emulator):
    with plain_connection(emulator) as connection:
        kombu.Queue("orders", channel=connection.default_channel).declare()
        declare_fanout(connection)
    with administration(emulator) as admin:
        assert admin.get_queue("orders").max_delivery_count == 2_147_483_647
        [subscription] = admin.list_subscriptions("news")
        assert subscription.max_delivery_count == 2_147_483_647


def declare_fanout(connection: kombu.Connection) -> None:
    exchange = kombu.Exchange("news", "fanout")
    kombu.Queue("letters", exchange, channel=connection.default_channel).declare()


@pytest.mark.parametrize(
    "rule", [SqlRuleFilter("priority > 3"), CorrelationRuleFilter(label="x")], ids=["sql", "correlation"]
)
def test_a_subscription_keeps_its_rules_and_its_properties(emulator, rule):
    with plain_connection(emulator) as connection:
        declare_fanout(connection)
    with administration(emulator) as admin:
        [subscription] = admin.list_subscriptions("news")
        admin.delete_rule("news", subscription.name, "$Default")
        admin.create_rule("news", subscription.name, "ours", filter=rule)
        subscription.max_delivery_count = 3
        admin.update_subscription("news", subscription)
    with plain_connection(emulator, max_delivery_count=50) as connection:
        connection.transport.entities.forget("news", f"news/Subscriptions/{subscription.name}")
        declare_fanout(connection)
    with administration(emulator) as admin:
        [kept] = admin.list_rules("news", subscription.name)
        assert (kept.name, type(kept.filter)) == ("ours", type(rule))
        assert admin.get_subscription("news", subscription.name).max_delivery_count == 3
