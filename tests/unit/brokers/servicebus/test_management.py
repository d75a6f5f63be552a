"""Where a request to the management goes, through what, and what it shows of the credentials."""

from __future__ import annotations

import pytest
from azure.core.pipeline.transport import HttpRequest, RequestsTransport

from kombu_paired.brokers.servicebus.address import Address
from kombu_paired.brokers.servicebus.management import ManagementTransport
from kombu_paired.brokers.servicebus.settings import ServiceBusSettings

SERVICE, LOCAL = "azureservicebus://p:k@contoso", "azureservicebus://p:k@localhost:5999"


@pytest.fixture
def sent(monkeypatch):
    """``sent(url, authorization="…", **client_options)``: the request, and the arguments with which it is sent."""
    seen = []
    monkeypatch.setattr(RequestsTransport, "send", lambda self, request, **kwargs: seen.append((self, request, kwargs)))
    monkeypatch.setattr("kombu_paired.brokers.servicebus.settings.find_spec", lambda name: name)

    def send(url, authorization="", port=None, **client_options):
        address = Address.parse(url)
        options = ServiceBusSettings.parse({"client_options": client_options}).client_options
        request = HttpRequest("GET", f"https://{address.place}/orders?api-version=1")
        request.headers["Authorization"] = authorization
        ManagementTransport(address, options, port, 3.0).send(request)
        return seen[-1]

    return send


@pytest.mark.parametrize(
    ("url", "port", "client_options", "wanted"),
    [
        (SERVICE, None, {}, "https://contoso.servicebus.windows.net/"),
        (LOCAL, None, {}, "http://localhost:5999/"),
        (LOCAL, 5300, {}, "http://localhost:5300/"),
        (SERVICE, None, {"custom_endpoint_address": "sb://gate:4443"}, "https://gate:4443/"),
        (SERVICE, None, {"custom_endpoint_address": "gate"}, "https://gate/"),
        (SERVICE, None, {"custom_endpoint_address": "sb://gate:5671"}, "https://gate/"),
        (LOCAL, None, {"custom_endpoint_address": "sb://127.0.0.1:7000"}, "http://127.0.0.1:7000/"),
    ],
)
def test_it_goes_to_the_service_a_local_server_or_the_custom_endpoint(sent, url, port, client_options, wanted):
    _, request, _ = sent(url, port=port, **client_options)
    assert request.url == f"{wanted}orders?api-version=1"
    assert request.headers.get("Host", Address.parse(url).place) == Address.parse(url).place


@pytest.mark.parametrize(
    ("proxy", "wanted"),
    [
        (None, None),
        ("http://proxy:3128", "http://proxy:3128"),
        ("http://user:p%40ss@proxy:3128", "http://user:p%40ss@proxy:3128"),
        ({"proxy_hostname": "proxy", "proxy_port": 3128, "username": "user"}, "http://user@proxy:3128"),
    ],
)
def test_it_goes_through_the_proxy_of_the_links(sent, proxy, wanted):
    _, _, arguments = sent(SERVICE, http_proxy=proxy)
    assert arguments["proxies"] == (wanted and {"http": wanted, "https": wanted})


def test_it_believes_the_authorities_that_the_links_do(sent):
    assert sent(SERVICE)[0].connection_config.verify is True
    assert sent(SERVICE, connection_verify="/ca.pem")[0].connection_config.verify == "/ca.pem"
    assert sent(SERVICE)[0].connection_config.timeout == sent(SERVICE)[0].connection_config.read_timeout == 3.0


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("SharedAccessSignature sr=a&sig=b", "SharedAccessSignature sr=a&sig=b"),
        ("Bearer SharedAccessSignature sr=a&sig=b", "SharedAccessSignature sr=a&sig=b"),
        ("Bearer eyJ0", "Bearer eyJ0"),
    ],
)
def test_a_signature_is_sent_as_the_service_takes_it(sent, given, wanted):
    assert sent(SERVICE, authorization=given)[1].headers["Authorization"] == wanted
