"""What a Service Bus URL says. Pure.

.. code-block::

    azureservicebus://POLICY:KEY@NAMESPACE                          a shared access key; it may hold / + = and @
    azureservicebus://DefaultAzureCredential@NAMESPACE              whatever azure-identity finds
    azureservicebus://ManagedIdentityCredential@NAMESPACE           the identity of the machine
    azureservicebus://POLICY:KEY@localhost:5672                     a local server, an emulator, without TLS
    azureservicebus://POLICY:KEY@emulator:5672?UseDevelopmentEmulator=true

``NAMESPACE`` is ``contoso`` or ``contoso.servicebus.windows.net``. The key is written as the portal shows it, or with
``%XX`` for special characters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote

from kombu_paired.errors import ConfigurationError
from kombu_paired.options import without_secrets

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
        rest = url.split("://", 1)[-1]
        credentials, at, place = rest.rpartition("@")
        place, _, query = place.partition("?")
        host, port = _host_and_port(place.rstrip("/"), url)
        if not at or not host:
            raise ConfigurationError(_HOW.format(without_secrets(url)))
        local = port is not None and (host in _LOCAL or query.lower() == _FLAG)
        if port is not None and not local and port not in _SERVICE_PORTS:
            raise ConfigurationError(
                f"{without_secrets(url)}: a port is for local servers, which are spoken to without TLS; if that is "
                "what you want, append ?UseDevelopmentEmulator=true"
            )
        place_of = {"host": host if local or "." in host else host + SUFFIX, "port": port if local else None}
        identity = IDENTITIES.get(credentials.lower())
        if identity is not None:
            return cls(**place_of, identity=identity)  # type: ignore[arg-type]
        policy, colon, key = credentials.partition(":")
        if not colon or not policy or not key:
            raise ConfigurationError(_HOW.format(without_secrets(url)))
        return cls(**place_of, policy=unquote(policy), key=unquote(key))  # type: ignore[arg-type]

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


def _host_and_port(place: str, url: str) -> tuple[str, int | None]:
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        return place.lower(), None
    if not port.isdigit():
        raise ConfigurationError(_HOW.format(without_secrets(url)))
    return host.lower(), int(port)
