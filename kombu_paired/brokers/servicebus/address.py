"""What a Service Bus URL says. Pure.

.. code-block::

    azureservicebus://POLICY:KEY@NAMESPACE                          a shared access key; it may hold / + = and @
    azureservicebus://Endpoint%3Dsb%3A%2F%2F…                       a connection string of the portal, percent-encoded
    azureservicebus://DefaultAzureCredential@NAMESPACE              whatever azure-identity finds
    azureservicebus://ManagedIdentityCredential@NAMESPACE           the identity of the machine
    azureservicebus://ManagedIdentityCredential:CLIENT_ID@NAMESPACE another one of its identities
    azureservicebus://NAMESPACE                                     with the transport option ``credential``
    azureservicebus://POLICY:KEY@localhost:5672                     a local server, an emulator, without TLS
    azureservicebus://POLICY:KEY@emulator:5672?UseDevelopmentEmulator=true

``NAMESPACE`` is ``contoso`` or ``contoso.servicebus.windows.net``. The key is written as the portal shows it, or with
``%XX`` for special characters. A local server's port is 5672, unless another one is given.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from kombu_paired.connection_strings import connection_string_in, parts_of
from kombu_paired.errors import ConfigurationError
from kombu_paired.secrets import without_secrets

__all__ = ("IDENTITIES", "SCHEME", "SUFFIX", "Address", "is_servicebus")

SCHEME = "azureservicebus"
SUFFIX = ".servicebus.windows.net"
#: Classes of azure-identity that a URL may name, and the argument that takes a client id; None: it takes none.
IDENTITIES = {
    "DefaultAzureCredential": "managed_identity_client_id",
    "ManagedIdentityCredential": "client_id",
    "WorkloadIdentityCredential": "client_id",
    "EnvironmentCredential": None,
    "AzureCliCredential": None,
    "AzureDeveloperCliCredential": None,
    "AzurePowerShellCredential": None,
}

_FLAG = "usedevelopmentemulator=true"
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]", "host.docker.internal"})
_LOCAL_PORT = 5672
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]")
#: The parts of a connection string.
_PARTS = (
    *("Endpoint", "SharedAccessKeyName", "SharedAccessKey", "SharedAccessSignature", "EntityPath"),
    "UseDevelopmentEmulator",
)
_ENDPOINT = re.compile(r"(?:[A-Za-z]+://)?([^/?#]+)/?")
#: As the service makes them.
_SHARED_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")
_CLIENT_ID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
#: What would end a value in the SDK's connection strings.
_SEPARATOR = ";"
#: The service's own ports; whoever writes them down means the service.
_SERVICE_PORTS = frozenset({443, 5671})


def is_servicebus(url: str) -> bool:
    """Whether a URL is one of Service Bus."""
    return url.split("://", 1)[0] == SCHEME


@dataclass(frozen=True)
class Address:
    """Where a namespace is, and who one is there.

    Attributes:
        host: the whole host name.
        port: of a local server; None for the service.
        policy, key: of a shared access policy; empty for others.
        signature: a shared access signature, as it is sent; empty for others.
        identity: a class of azure-identity, or None.
        client_id: which identity, where there are several; empty: the only one.
        entity: the queue or topic that the credentials are for; empty: all.
    """

    host: str
    port: int | None = None
    policy: str = ""
    key: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)
    identity: str | None = None
    client_id: str = ""
    entity: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address in a URL.

        Raises:
            ConfigurationError: the URL is not one of Service Bus; the text says how one looks.
        """
        connection_string = connection_string_in(url)
        if connection_string is not None:
            return _address_of(parts_of(connection_string), url)
        credentials, at, place = url.split("://", 1)[-1].rpartition("@")
        host, port = _place(place, url)
        if not at:
            return cls(host, port)
        policy, _, key = (unquote(each) for each in credentials.partition(":"))
        if names_identity(policy, key):
            return cls(host, port, identity=_identity(policy, key), client_id=key)
        if not policy or not key or _SEPARATOR in policy + key:
            raise ConfigurationError(_HOW.format(without_secrets(url)))
        return cls(host, port, policy, key)

    @property
    def is_local(self) -> bool:
        """A local server, spoken to without TLS."""
        return self.port is not None

    @property
    def has_credentials(self) -> bool:
        """Whether it says who one is; without, the transport option ``credential`` must."""
        return bool(self.key or self.signature or self.identity)

    @property
    def place(self) -> str:
        """Host, and port where there is one."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def connection_string(self) -> str:
        """As the SDK takes it, for a shared access key."""
        return self.connection_string_with(self.policy, self.key)

    def connection_string_with(self, policy: str, key: str) -> str:
        """One with another key."""
        parts = [f"Endpoint=sb://{self.place}/", f"SharedAccessKeyName={policy}", f"SharedAccessKey={key}"]
        if self.is_local:
            parts.append("UseDevelopmentEmulator=true")
        return ";".join(parts)


def _address_of(parts: Mapping[str, str], url: str) -> Address:
    """The address in a connection string."""
    given = {name: parts.get(name.lower(), "") for name in _PARTS}
    endpoint = _ENDPOINT.fullmatch(given["Endpoint"])
    key, signature = given["SharedAccessKey"], given["SharedAccessSignature"]
    has_key = bool(key and given["SharedAccessKeyName"])
    unknown = sorted(parts.keys() - {name.lower() for name in _PARTS})
    flag = given["UseDevelopmentEmulator"].lower()
    if endpoint is None or unknown or has_key == bool(signature) or flag not in ("", "true", "false"):
        raise ConfigurationError(_HOW_STRING.format(without_secrets(url)))
    host, port = _place(endpoint[1] + (f"?{_FLAG}" if flag == "true" else ""), url)
    return Address(host, port, given["SharedAccessKeyName"], key, signature, entity=given["EntityPath"].strip("/"))


def names_identity(policy: str, key: str = "") -> bool:
    """Whether what stands before a host means an identity, however it is spelled, and so is never sent as a key."""
    spelled, known = _letters(policy), [_letters(name) for name in IDENTITIES]
    if spelled.endswith(("credential", "credentials")) and not _SHARED_KEY.fullmatch(key):
        return True
    is_meant = any(spelled == each.removesuffix("credential") for each in known)
    is_meant = is_meant or bool(difflib.get_close_matches(spelled, known, n=1, cutoff=0.8))
    return is_meant or _CLIENT_ID.fullmatch(key.strip()) is not None


def _identity(policy: str, client_id: str) -> str:
    """The class of azure-identity that was meant.

    Raises:
        ConfigurationError: it is none that can be made of a name; the text says what to write.
    """
    names = {_letters(name): name for name in IDENTITIES}
    found = names.get(_letters(policy))
    if found is None:
        nearest = difflib.get_close_matches(_letters(policy), names, n=1)
        hint = f"did you mean {names[nearest[0]]}? " if nearest else ""
        raise ConfigurationError(
            f"{policy!r} is no credential that a URL of Service Bus can name: {hint}It knows {', '.join(IDENTITIES)}; "
            "any other is given with the transport option 'credential': 'module:name'"
        )
    if client_id and IDENTITIES[found] is None:
        raise ConfigurationError(f"{found} takes no client id: write azureservicebus://{found}@NAMESPACE")
    return found


def _letters(name: str) -> str:
    return "".join(each for each in name.lower() if each.isalnum())


_HOW = (
    "{} is not the URL of a Service Bus namespace: write azureservicebus://POLICY:KEY@NAMESPACE, "
    "azureservicebus://DefaultAzureCredential@NAMESPACE, or the portal's connection string, percent-encoded "
    "(urllib.parse.quote), after azureservicebus://"
)
_HOW_STRING = (
    "{} is not a connection string of Service Bus: it has Endpoint=sb://NAMESPACE.servicebus.windows.net/, and either "
    "SharedAccessKeyName=… and SharedAccessKey=… or SharedAccessSignature=…; it may have EntityPath=… and "
    "UseDevelopmentEmulator=true"
)


def _place(text: str, url: str) -> tuple[str, int | None]:
    """The whole host name, and the port of a local server."""
    place, _, query = text.partition("?")
    host, port = _host_and_port(place.rstrip("/"), url)
    if query and query.lower() != _FLAG:
        raise ConfigurationError(
            f"{without_secrets(url)}: the only parameter in the URL of a Service Bus namespace is "
            "UseDevelopmentEmulator=true"
        )
    if query or host in _LOCAL:
        return host, port or _LOCAL_PORT
    if port is not None and port not in _SERVICE_PORTS:
        raise ConfigurationError(
            f"{without_secrets(url)}: a port is for local servers, which are spoken to without TLS; if that is "
            "what you want, append ?UseDevelopmentEmulator=true"
        )
    return host if "." in host else host + SUFFIX, None


def _host_and_port(place: str, url: str) -> tuple[str, int | None]:
    place = place.lower()
    host, port = place, ""
    if not place.endswith("]") and ":" in place:
        host, _, port = place.rpartition(":")
        if not port.isdecimal() or not port.isascii() or not 0 < int(port) < 65536:
            raise ConfigurationError(_HOW.format(without_secrets(url)))
    if not _HOST.fullmatch(host):
        raise ConfigurationError(_HOW.format(without_secrets(url)))
    return host, int(port) if port else None
