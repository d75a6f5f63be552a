"""The transport options of Service Bus: what may be written, and what is said about anything else."""

from __future__ import annotations

from datetime import timedelta

import pytest
from azure.servicebus import TransportType

from kombu_paired.brokers.servicebus.settings import MOST_DELIVERIES, ServiceBusSettings
from kombu_paired.errors import ConfigurationError


@pytest.fixture(autouse=True)
def web_sockets(monkeypatch):
    """As if the package for web sockets were there; whether it is, is not what is tested here."""
    monkeypatch.setattr("kombu_paired.brokers.servicebus.settings.find_spec", lambda name: name)


def test_the_defaults():
    settings = ServiceBusSettings.parse({})
    assert settings == ServiceBusSettings()
    assert settings.properties == settings.queue_properties
    assert settings.properties == {"lock_duration": timedelta(minutes=1), "max_delivery_count": MOST_DELIVERIES}


def test_every_property_of_a_queue_can_be_set():
    settings = ServiceBusSettings.parse(
        {
            "peek_lock_seconds": timedelta(seconds=30),
            "max_delivery_count": 50,
            "default_message_time_to_live": 3600,
            "duplicate_detection_window": timedelta(hours=1),
            "requires_session": True,
            "enable_partitioning": True,
        }
    )
    assert settings.properties == {"lock_duration": timedelta(seconds=30), "max_delivery_count": 50}
    assert settings.queue_properties == {
        **settings.properties,
        "default_message_time_to_live": timedelta(hours=1),
        "requires_duplicate_detection": True,
        "duplicate_detection_history_time_window": timedelta(hours=1),
        "requires_session": True,
        "enable_partitioning": True,
    }


def test_a_longer_lock_than_there_is_is_cut_as_the_stock_transport_does():
    assert ServiceBusSettings.parse({"peek_lock_seconds": 3600}).properties["lock_duration"] == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_delivery_cout": 5}, "did you mean 'max_delivery_count'?"),
        ({"lock": 5}, "known options: "),
        ({"max_delivery_count": 0}, "1 to 2147483647"),
        ({"max_delivery_count": 2**31}, "1 to 2147483647"),
        ({"max_delivery_count": True}, "1 to 2147483647"),
        ({"default_message_time_to_live": 0.5}, "at least 1 seconds"),
        ({"duplicate_detection_window": 19}, "20 to 604800 seconds"),
        ({"duplicate_detection_window": 604_801}, "20 to 604800 seconds"),
        ({"duplicate_detection_window": True}, "20 to 604800"),
        ({"peek_lock_seconds": 0}, "more than 0"),
        ({"requires_session": "yes"}, "True or False"),
        ({"enable_partitioning": 1}, "True or False"),
        ({"queue_name_prefix": 7}, "a text"),
        ({"send_timeout": 0}, "more than 0"),
        ({"schedule_eta": "yes"}, "True or False"),
        ({"management_port": 70_000}, "1 to 65535"),
        ({"client_options": "proxy"}, "a dict"),
        ({"client_options": {"transport_tpye": "Amqp"}}, "did you mean 'transport_type'?"),
        ({"client_options": {"proxy": "http://p:1"}}, "did you mean 'http_proxy'?"),
        ({"client_options": {"transport_type": "WebSocket"}}, "'Amqp' or 'AmqpOverWebsocket'"),
        ({"client_options": {"http_proxy": "p:1"}}, "http://USER:PASSWORD@PROXY:PORT"),
        ({"client_options": {"http_proxy": "http://user:s3cret@p:x"}}, "http://USER:PASSWORD@PROXY:PORT"),
        ({"client_options": {"http_proxy": {"proxy_host": "p", "proxy_port": 1}}}, "did you mean 'proxy_hostname'?"),
        ({"client_options": {"http_proxy": {"proxy_hostname": "p"}}}, "http://USER:PASSWORD@PROXY:PORT"),
        ({"client_options": {"http_proxy": {"proxy_hostname": "p", "proxy_port": 0}}}, "1 to 65535"),
        ({"client_options": {"custom_endpoint_address": "sb://gw:x"}}, "sb://HOST:PORT"),
        ({"client_options": {"custom_endpoint_address": 7}}, "a text"),
        ({"client_options": {"connection_verify": True}}, "a text"),
        ({"client_options": {"logging_enable": "no"}}, "True or False"),
    ],
)
def test_what_makes_no_sense_is_said_with_what_would(options, said):
    with pytest.raises(ConfigurationError) as caught:
        ServiceBusSettings.parse(options)
    assert said in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_what_the_stock_transport_kombu_and_celery_know_is_let_through():
    others = {"wait_time_seconds": 1, "use_lock_renewal": True, "max_retries": 3, "client_name": "x"}
    assert ServiceBusSettings.parse({**others, "management_port": None}) == ServiceBusSettings()


@pytest.mark.parametrize("spelled", ["AmqpOverWebsocket", "amqpoverwebsocket", TransportType.AmqpOverWebsocket])
def test_web_sockets_are_chosen_by_a_text(spelled):
    chosen = ServiceBusSettings.parse({"client_options": {"transport_type": spelled}}).client_options
    assert chosen == {"transport_type": "AmqpOverWebsocket"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("http://proxy:3128", {"proxy_hostname": "proxy", "proxy_port": 3128}),
        ("http://proxy", {"proxy_hostname": "proxy", "proxy_port": 80}),
        (
            "http://user:p%40ss@proxy:3128/",
            {"proxy_hostname": "proxy", "proxy_port": 3128, "username": "user", "password": "p@ss"},
        ),
        ({"proxy_hostname": "proxy", "proxy_port": 3128}, {"proxy_hostname": "proxy", "proxy_port": 3128}),
    ],
)
def test_a_proxy_is_a_url_or_what_the_sdk_takes(given, wanted):
    assert ServiceBusSettings.parse({"client_options": {"http_proxy": given}}).client_options["http_proxy"] == wanted


@pytest.mark.parametrize(
    "client_options",
    [{"transport_type": "AmqpOverWebsocket"}, {"http_proxy": "http://p"}, {"custom_endpoint_address": "gw"}],
)
def test_web_sockets_without_their_package_are_found_out_at_the_start(client_options, monkeypatch):
    monkeypatch.setattr("kombu_paired.brokers.servicebus.settings.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install websocket-client"):
        ServiceBusSettings.parse({"client_options": client_options})
    ServiceBusSettings.parse({"client_options": {**client_options, "transport_type": "Amqp", "http_proxy": None}})
