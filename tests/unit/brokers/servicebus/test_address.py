"""What a Service Bus URL says, in every form that users have, and that its key is told to nobody."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection

from kombu_paired.brokers.drivers import default_primary_name
from kombu_paired.brokers.servicebus.address import IDENTITIES, Address, is_servicebus
from kombu_paired.connection_strings import as_url
from kombu_paired.errors import ConfigurationError

SERVICE = "contoso.servicebus.windows.net"

KEYS = {
    "as the portal shows it": "zY/7+Ab=",
    "with all that can be in one": "/+==/a+b/=+/",
    "with an at sign": "k@y@",
    "with a colon": "a:b",
    "with a question mark": "a?b=c",
    "with a hash": "a#b",
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize("write", [str, lambda key: quote(key, safe="")], ids=["plain", "quoted"])
def test_a_shared_access_key_is_taken_as_it_is_or_quoted(key, write):
    address = Address.parse(f"azureservicebus://Root:{write(key)}@contoso")

    assert (address.host, address.port, address.policy, address.key) == (SERVICE, None, "Root", key)
    assert f"SharedAccessKey={key}" in address.connection_string


def test_a_percent_sign_is_quoted():
    assert Address.parse("azureservicebus://Root:100%25@contoso").key == "100%"
    assert Address.parse("azureservicebus://my%20policy:k@contoso").policy == "my policy"


@pytest.mark.parametrize(
    ("place", "host", "port"),
    [
        ("contoso", SERVICE, None),
        ("Contoso", SERVICE, None),
        ("contoso/", SERVICE, None),
        ("contoso.servicebus.windows.net", SERVICE, None),
        ("contoso.servicebus.windows.net/", SERVICE, None),
        ("contoso.servicebus.windows.net:5671", SERVICE, None),
        ("contoso:443", SERVICE, None),
        ("contoso.servicebus.chinacloudapi.cn", "contoso.servicebus.chinacloudapi.cn", None),
        ("localhost:5672", "localhost", 5672),
        ("localhost", "localhost", 5672),
        ("127.0.0.1:15672", "127.0.0.1", 15672),
        ("[::1]:5673", "[::1]", 5673),
        ("[::1]", "[::1]", 5672),
        ("localhost:443", "localhost", 443),
        ("emulator:5300?UseDevelopmentEmulator=true", "emulator", 5300),
        ("emulator:5300?usedevelopmentemulator=True", "emulator", 5300),
        ("emulator:5300/?UseDevelopmentEmulator=true", "emulator", 5300),
        ("emulator?UseDevelopmentEmulator=true", "emulator", 5672),
        ("10.1.2.3:5672?UseDevelopmentEmulator=true", "10.1.2.3", 5672),
    ],
)
def test_a_place_is_the_service_or_a_local_server(place, host, port):
    address = Address.parse(f"azureservicebus://p:k@{place}")

    assert (address.host, address.port, address.is_local) == (host, port, port is not None)
    assert address.place == (host if port is None else f"{host}:{port}")


def test_the_connection_string_is_the_sdks():
    from azure.servicebus import ServiceBusClient

    for url, flag in (("azureservicebus://p:a/+=@contoso", False), ("azureservicebus://p:a/+=@localhost:5999", True)):
        address = Address.parse(url)
        assert address.connection_string.endswith(";UseDevelopmentEmulator=true") is flag
        client = ServiceBusClient.from_connection_string(address.connection_string)
        assert client.fully_qualified_namespace.rstrip("/").endswith(address.place)


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("DefaultAzureCredential", "DefaultAzureCredential"),
        ("defaultazurecredential", "DefaultAzureCredential"),
        ("ManagedIdentityCredential", "ManagedIdentityCredential"),
        ("MANAGEDIDENTITYCREDENTIAL", "ManagedIdentityCredential"),
        ("managed-identity-credential", "ManagedIdentityCredential"),
        ("Managed%20Identity_Credential", "ManagedIdentityCredential"),
        ("WorkloadIdentityCredential", "WorkloadIdentityCredential"),
        ("AzureCliCredential", "AzureCliCredential"),
    ],
)
def test_an_identity_stands_where_the_key_would(name, identity):
    address = Address.parse(f"azureservicebus://{name}@contoso")
    assert (address.identity, address.policy, address.key, address.host) == (identity, "", "", SERVICE)


GUID = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize("name", ["ManagedIdentityCredential", "managed_identity_credential", "DefaultAzureCredential"])
def test_a_client_id_says_which_identity(name):
    address = Address.parse(f"azureservicebus://{name}:{GUID}@contoso")
    assert (address.policy, address.key, address.client_id) == ("", "", GUID)
    assert address.has_credentials


@pytest.mark.parametrize(
    "name",
    [
        "ManagedIdentity",
        "ManagedIdentityCredentials",
        "ManagedIdentityCredentail",
        "MangedIdentityCredential",
        "DefaultAzure",
        "ClientSecretCredential",
        "UnknownCredential",
        "AzureCliCredential",
        "Root",
    ],
)
def test_what_looks_like_an_identity_is_never_taken_for_a_key(name):
    with pytest.raises(ConfigurationError) as caught:
        Address.parse(f"azureservicebus://{name}:{GUID}@contoso")
    assert "ManagedIdentityCredential" in str(caught.value) or "takes no client id" in str(caught.value)


@given(
    st.sampled_from([*IDENTITIES, "ClientSecretCredential", "InteractiveBrowserCredential"]),
    st.sampled_from([str, str.lower, str.upper, str.title, lambda name: name.replace("Credential", "-Credential")]),
    st.text(st.sampled_from("abcXYZ059-_.~"), max_size=40),
)
def test_no_class_of_azure_identity_is_ever_a_policy(name, spell, client_id):
    with suppress(ConfigurationError):
        address = Address.parse(f"azureservicebus://{spell(name)}:{client_id}@contoso")
        assert (address.policy, address.key, address.identity) == ("", "", name)


def test_a_policy_may_have_such_a_name_if_its_key_is_one():
    key = "k" * 43 + "="
    assert Address.parse(f"azureservicebus://shop-credentials:{key}@contoso").policy == "shop-credentials"


ENDPOINT = "Endpoint=sb://contoso.servicebus.windows.net/"
SIGNATURE = "SharedAccessSignature sr=https%3A%2F%2Fcontoso&sig=s3c%2Fret%3D&se=1900000000&skn=p"
STRINGS = {
    f"{ENDPOINT};SharedAccessKeyName=p;SharedAccessKey=a/+b=": Address(SERVICE, None, "p", "a/+b="),
    f"{ENDPOINT};SharedAccessKeyName=p;SharedAccessKey=100%25=;": Address(SERVICE, None, "p", "100%25="),
    f"{ENDPOINT};SharedAccessKeyName=p;SharedAccessKey=k=;EntityPath=orders": Address(
        SERVICE, None, "p", "k=", entity="orders"
    ),
    f"{ENDPOINT};SharedAccessSignature={SIGNATURE}": Address(SERVICE, signature=SIGNATURE),
    "SharedAccessKeyName=p;endpoint=sb://contoso;sharedaccesskey=k": Address(SERVICE, None, "p", "k"),
    "Endpoint=sb://localhost:5673;SharedAccessKeyName=p;SharedAccessKey=k;UseDevelopmentEmulator=true;": Address(
        "localhost", 5673, "p", "k"
    ),
    "Endpoint=sb://emulator;SharedAccessKeyName=p;SharedAccessKey=k;UseDevelopmentEmulator=true": Address(
        "emulator", 5672, "p", "k"
    ),
}


@pytest.mark.parametrize("text", STRINGS)
def test_a_connection_string_of_the_portal_is_read(text):
    for url in (as_url(text), as_url("azureservicebus://" + text), "azureservicebus://" + quote(text)):
        assert Address.parse(url) == STRINGS[text]
        assert ";" not in url
    assert default_primary_name(as_url(text)) == default_primary_name("azureservicebus://p:k@" + STRINGS[text].place)


def test_a_namespace_alone_leaves_it_to_an_option_who_one_is():
    address = Address.parse("azureservicebus://contoso")
    assert (address.host, address.has_credentials) == (SERVICE, False)


def test_kombu_hands_the_whole_url_through():
    url = "azureservicebus://Root:zY/7+Ab=@contoso"
    connection = Connection(url, transport="kombu_paired.brokers.servicebus.transport:Transport")
    assert connection.transport.address == Address.parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "azureservicebus://",
        "azureservicebus://:s3cret@contoso",
        "azureservicebus://Root@contoso",
        "azureservicebus://Root:@contoso",
        "azureservicebus://Root:s3cret@",
        "azureservicebus://Root:s3cret@:5672",
        "azureservicebus://Root:s3cret@contoso:amqp",
        "azureservicebus://Root:s3cret@localhost:0",
        "azureservicebus://Root:s3cret@localhost:65536",
        "azureservicebus://Root:s3cret@localhost:\u0665",
        "azureservicebus://Root:s3cret@contoso/orders",
        "azureservicebus://Root:s3cret@con toso",
        "azureservicebus://Root:s3cret@contoso:5672",
        "azureservicebus://Root:s3cret@contoso?UseDevelopmentEmulator=yes",
        "azureservicebus://Root:s3cret@localhost:5672?timeout=s3cret",
        "azureservicebus://Root:s3cret%3BEntityPath=x@contoso",
        "azureservicebus://Endpoint%3Dsb://contoso/%3BSharedAccessKey%3Ds3cret",
        "azureservicebus://Endpoint%3Dsb://contoso/%3BSharedAccessKeyName%3Dp",
        "azureservicebus://Endpoint%3Dsb://con toso/%3BSharedAccessKeyName%3Dp%3BSharedAccessKey%3Ds3cret",
        "azureservicebus://SharedAccessKeyName%3Dp%3BSharedAccessKey%3Ds3cret",
        "azureservicebus://Endpoint%3Dsb://contoso/%3BSharedAccessKeyName%3Dp%3BSharedAccessKey%3Ds3cret%3BPath%3Dx",
        "azureservicebus://Endpoint=sb://contoso/;SharedAccessKeyName=p;SharedAccessKey=s3cret;SharedAccessSignature=s3",
    ],
)
def test_what_is_no_url_of_service_bus_says_how_one_looks_and_not_the_key(url):
    with pytest.raises(ConfigurationError) as caught:
        Address.parse(url)

    text = str(caught.value)
    assert "azureservicebus://POLICY:KEY@NAMESPACE" in text or "UseDevelopmentEmulator" in text
    assert "s3cret" not in text


@given(
    st.text(st.sampled_from("abcXYZ059/+=@%:?#;&"), min_size=1, max_size=20),
    st.sampled_from(["contoso", "x:1", "", "h o"]),
)
def test_no_key_is_in_an_error_or_a_repr(key, place):
    secret = f"s3c{key}ret"
    try:
        address = Address.parse(f"azureservicebus://Root:{secret}@{place}")
    except ConfigurationError as error:
        shown = str(error)
    else:
        shown = repr(address) + str(address)
        assert address.key not in shown
    assert secret not in shown
    assert "s3c" not in shown


def test_which_urls_are_of_service_bus():
    assert is_servicebus("azureservicebus://p:k@contoso")
    assert not is_servicebus("amqp://guest:guest@localhost//")


def test_the_pure_rooms_do_without_the_sdk():
    rooms = "kombu_paired.brokers.servicebus"
    program = f"import sys, {rooms}.address, {rooms}.names; print('azure' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "False"
