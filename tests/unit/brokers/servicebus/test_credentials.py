"""Who one is to Service Bus: keys, identities by name and client id, signatures, and credentials by import path."""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import ClassVar

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from kombu_paired.brokers.servicebus.address import IDENTITIES, Address
from kombu_paired.brokers.servicebus.credentials import Credentials, Signature, check_credential
from kombu_paired.connection_strings import as_url
from kombu_paired.errors import ConfigurationError

NOWHERE = Address.parse("azureservicebus://contoso")
GUID = "11111111-2222-3333-4444-555555555555"
TOKEN = "SharedAccessSignature sr=sb%3A%2F%2Fcontoso&sig=s3cret%3D&se=1900000000&skn=p"


class Stub:
    """A credential of azure-identity."""

    def __init__(self, **arguments):
        self.arguments = arguments

    def get_token(self, *scopes, **kwargs):
        raise NotImplementedError


@pytest.fixture
def identity(monkeypatch):
    """``azure.identity``, with stubs for its credentials."""
    module = ModuleType("azure.identity")
    for name in IDENTITIES:
        setattr(module, name, type(name, (Stub,), {}))
    monkeypatch.setitem(sys.modules, "azure.identity", module)
    return module


@pytest.mark.parametrize(
    ("who", "name", "arguments"),
    [
        ("ManagedIdentityCredential", "ManagedIdentityCredential", {}),
        (f"ManagedIdentityCredential:{GUID}", "ManagedIdentityCredential", {"client_id": GUID}),
        (f"DefaultAzureCredential:{GUID}", "DefaultAzureCredential", {"managed_identity_client_id": GUID}),
        (f"workloadidentitycredential:{GUID}", "WorkloadIdentityCredential", {"client_id": GUID}),
        ("AzureCliCredential", "AzureCliCredential", {}),
    ],
)
def test_an_identity_is_made_as_the_url_says(identity, who, name, arguments):
    credentials = Credentials(Address.parse(f"azureservicebus://{who}@contoso"))
    assert credentials.key is None
    assert (type(credentials.token), credentials.token.arguments) == (getattr(identity, name), arguments)
    assert credentials.token is credentials.token


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(ConfigurationError, match="pip install azure-identity"):
        _ = Credentials(Address.parse("azureservicebus://ManagedIdentityCredential@contoso")).token


def test_a_key_is_a_key():
    assert Credentials(Address.parse("azureservicebus://p:k@contoso")).key == ("p", "k")


def test_a_signature_of_a_connection_string_is_sent_as_it_is():
    address = Address.parse(as_url(f"Endpoint=sb://contoso/;SharedAccessSignature={TOKEN}"))
    credentials = Credentials(address)
    assert credentials.key is None
    assert credentials.token.get_token("sb://contoso/orders") == (TOKEN, 1_900_000_000)
    assert credentials.token.token_type == b"servicebus.windows.net:sastoken"
    assert Credentials(NOWHERE, TOKEN).token.get_token() == (TOKEN, 1_900_000_000)
    assert "s3cret" not in repr(credentials) + repr(address)


# -- by import path -----------------------------------------------------------------------------------------------


class Renewing:
    """A function that makes signatures."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def signature(cls):
        cls.calls.append("one")
        return f"SharedAccessSignature sr=x&sig={len(cls.calls)}&skn=p"


make_signature = Renewing.signature
an_object = Stub(was="there")
sas = AzureSasCredential(TOKEN)
named_key = AzureNamedKeyCredential("p", "k")
nothing = 7


def make_stub():
    return Stub(was="made")


@pytest.mark.parametrize(("name", "was"), [("an_object", "there"), ("make_stub", "made")])
def test_an_object_or_what_a_factory_makes_is_taken(name, was):
    for given in (f"{__name__}:{name}", globals()[name]):
        credentials = Credentials(NOWHERE, given)
        assert credentials.key is None
        assert credentials.token.arguments == {"was": was}


def test_a_class_is_a_factory():
    assert type(Credentials(NOWHERE, f"{__name__}:Stub").token) is Stub


def test_signatures_are_made_anew_for_each_token():
    token = Credentials(NOWHERE, f"{__name__}:make_signature").token
    first, second = token.get_token("a"), token.get_token("b")
    assert first.token != second.token
    assert first.expires_on > time.time()


def test_the_credentials_of_azure_core_are_taken_and_may_be_renewed():
    renewed = AzureSasCredential("SharedAccessSignature se=1")
    token = Credentials(NOWHERE, renewed).token
    assert isinstance(token, Signature)
    assert token.get_token().expires_on == 1
    renewed.update("SharedAccessSignature se=2")
    assert token.get_token().expires_on == 2
    keys = Credentials(NOWHERE, f"{__name__}:named_key")
    assert keys.key == ("p", "k")
    assert Credentials(NOWHERE, f"{__name__}:sas").token.get_token().token == TOKEN


def test_the_option_wins_over_the_url():
    assert Credentials(Address.parse("azureservicebus://p:k@contoso"), an_object).key is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "option 'credential'"),
        ("no.such.module:name", "ModuleNotFoundError"),
        (f"{__name__}:no_such_name", "AttributeError"),
        (f"{__name__}:nothing", "not a int"),
        (7, "not a int"),
        ("s3cret", "'module:name'"),
    ],
)
def test_what_is_no_credential_is_found_out_at_the_start(given, said):
    with pytest.raises(ConfigurationError) as caught:
        check_credential(NOWHERE, given)
    assert said in str(caught.value)
    assert "s3cret" not in str(caught.value)
