"""What a Service Bus URL says. Pure.

.. code-block::

    azureservicebus://POLICY:KEY@NAMESPACE                          a shared access key; it may hold / + = and @
    azureservicebus://DefaultAzureCredential@NAMESPACE              whatever azure-identity finds
    azureservicebus://ManagedIdentityCredential@NAMESPACE           the identity of the machine
    azureservicebus://POLICY:KEY@localhost:5672                     a local server, an emulator, without TLS
    azureservicebus://POLICY:KEY@emulator:5672?UseDevelopmentEmulator=true

``NAMESPACE`` is ``contoso`` or ``contoso.servicebus.windows.net``. The key is written as the portal shows it, or with
``%XX`` for special characters. A local server's port is 5672, unless another one is given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from kombu_paired.errors import ConfigurationError
from kombu_paired.secrets import without_secrets

__all__ = ("IDENTITIES", "SCHEME", "SUFFIX", "Address", "is_servicebus")

SCHEME = "azureservicebus"
SUFFIX = ".servicebus.windows.net"
#: Credentials without a key, as the stock transport spells them: in lower case -> class of azure-identity.
IDENTITIES = {
    "defaultazurecredential": "DefaultAzureCredential",
    "managedidentitycredential": "ManagedIdentityCredential",
}

_FLAG = "usedevelopmentemulator=true"
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]", "host.docker.internal"})
_LOCAL_PORT = 5672
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]")
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
        policy, key: of a shared access policy; empty for an identity.
        identity: a class of azure-identity, or None.
    """

    host: str
    port: int | None = None
    policy: str = ""
    key: str = field(default="", repr=False)
    identity: str | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address in a URL.

        Raises:
            ConfigurationError: the URL is not one of Service Bus; the text says how one looks.
        """
        credentials, _, place = url.split("://", 1)[-1].rpartition("@")
        host, port = _place(place, url)
        identity = IDENTITIES.get(credentials.lower())
        if identity is not None:
            return cls(host, port, identity=identity)
        policy, _, key = credentials.partition(":")
        policy, key = unquote(policy), unquote(key)
        if not policy or not key or _SEPARATOR in policy + key:
            raise ConfigurationError(_HOW.format(without_secrets(url)))
        return cls(host, port, policy, key)

    @property
    def is_local(self) -> bool:
        """A local server, spoken to without TLS."""
        return self.port is not None

    @property
    def place(self) -> str:
        """Host, and port where there is one."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def connection_string(self) -> str:
        """As the SDK takes it, for a shared access key."""
        parts = [f"Endpoint=sb://{self.place}/", f"SharedAccessKeyName={self.policy}", f"SharedAccessKey={self.key}"]
        if self.is_local:
            parts.append("UseDevelopmentEmulator=true")
        return ";".join(parts)


_HOW = (
    "{} is not the URL of a Service Bus namespace: write azureservicebus://POLICY:KEY@NAMESPACE, or "
    "azureservicebus://DefaultAzureCredential@NAMESPACE"
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
