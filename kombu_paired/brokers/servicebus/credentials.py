"""Who one is to the service: what an address, or the transport option ``credential``, says, in the SDK's terms."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from azure.core.credentials import AccessToken
from kombu.utils.imports import symbol_by_name

from kombu_paired.brokers.servicebus.address import IDENTITIES, Address
from kombu_paired.errors import ConfigurationError
from kombu_paired.forks import importing

__all__ = ("Credentials", "check_credential")

#: How the service calls a token that is a shared access signature.
SIGNATURE_TYPE = b"servicebus.windows.net:sastoken"
SIGNATURE = "SharedAccessSignature "


class Credentials:
    """The credentials for one namespace: a key, or an object with ``get_token``.

    Arguments:
        address: of the namespace.
        given: the transport option ``credential``, which wins over what the address says.

    Raises:
        ConfigurationError: neither says who one is, or the option makes no sense.
    """

    def __init__(self, address: Address, given: Any = None) -> None:
        check_credential(address, given)
        self._address = address
        self._given = _imported(given)
        self._found: Any = None

    @property
    def key(self) -> tuple[str, str] | None:
        """Name and key of a shared access policy; None where there is a token instead."""
        if self._given is None:
            return (self._address.policy, self._address.key) if self._address.key else None
        name, key = getattr(self._object, "named_key", None) or ("", "")
        return (str(name), str(key)) if key else None

    @property
    def token(self) -> Any:
        """An object with ``get_token``, as the SDK's clients take it."""
        if hasattr(self._object, "signature"):  # azure-core's AzureSasCredential, which its owner renews
            return Signature(lambda: str(self._object.signature))
        return self._object

    @property
    def _object(self) -> Any:
        if self._found is None:
            self._found = self._made()
        return self._found

    def _made(self) -> Any:
        address, given = self._address, self._given
        if given is None:
            return Signature(lambda: address.signature) if address.signature else _identity(address)
        if isinstance(given, str):
            return Signature(lambda: given)
        if not _is_factory(given):
            return given
        made = given()
        return Signature(given) if isinstance(made, str) else made


class Signature:
    """A credential of signatures that somebody else makes, asked for one whenever a link or a request needs it."""

    token_type = SIGNATURE_TYPE

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        token = self._make()
        return AccessToken(token, _end_of(token))


def check_credential(address: Address, given: Any) -> None:
    """See that somebody says who one is.

    Raises:
        ConfigurationError: nobody does, or what the option names cannot be imported, or is no credential.
    """
    if given is None:
        if not address.has_credentials:
            raise ConfigurationError(
                f"nobody says who one is at {address.place}: write azureservicebus://POLICY:KEY@NAMESPACE or "
                "azureservicebus://DefaultAzureCredential@NAMESPACE, or give the transport option 'credential'"
            )
        return
    found = _imported(given)
    is_known = any(hasattr(found, name) for name in ("get_token", "signature", "named_key"))
    if not isinstance(found, str) and not is_known and not callable(found):
        raise ConfigurationError(
            "option 'credential' must be an object with get_token, a function that returns one or a shared access "
            f"signature, or the import path of either, not a {type(found).__name__}"
        )


def _imported(given: Any) -> Any:
    if not isinstance(given, str) or given.startswith(SIGNATURE):
        return given
    try:
        with importing:
            return symbol_by_name(given)
    except (ImportError, AttributeError, TypeError, ValueError) as exc:
        raise ConfigurationError(
            f"option 'credential' must be 'module:name' or begin with {SIGNATURE!r}; what is given cannot be imported: "
            f"{type(exc).__name__}"
        ) from exc


def _is_factory(given: Any) -> bool:
    return isinstance(given, type) or not any(hasattr(given, each) for each in ("get_token", "signature", "named_key"))


def _identity(address: Address) -> Any:
    """The credential of azure-identity that an address names."""
    name = str(address.identity)
    try:
        with importing:
            module = importlib.import_module("azure.identity")
    except ImportError:
        raise ConfigurationError(f"{name} needs the package azure-identity: pip install azure-identity") from None
    argument = IDENTITIES[name]
    return getattr(module, name)(**({argument: address.client_id} if argument and address.client_id else {}))


def _end_of(token: str) -> int:
    """When a signature expires (seconds since 1970, UTC); the service knows better if it does not say so."""
    end = next((part[3:] for part in token.removeprefix(SIGNATURE).split("&") if part.startswith("se=")), "")
    return int(end) if end.isdecimal() else int(time.time()) + 3600
