"""What a Kombu connection says of its pairing: where the primary is, how to connect to it, and the settings.

Connections that say the same share a pairing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from kombu import Connection
from kombu.transport import base

from kombu_paired.brokers.checking import check_sides, transport_class
from kombu_paired.options import KOMBU_RETRY_KEYS, PairedNamespaceOptions
from kombu_paired.urls import PREFIX, BrokerUrl

__all__ = ("ConnectionSettings", "connect_arguments", "given_options", "pairing_key", "primary_urls")

Answer = TypeVar("Answer")

#: Address of one node, and what else makes a pairing -> all addresses of the primary it belongs to.
_primaries: dict[Any, list[str]] = {}


class _found_once(Generic[Answer]):
    """A ``cached_property`` without the lock that it has before Python 3.12, one for all instances of a process: a
    thread that holds it while the process forks never lets go of it in the child.
    """

    def __init__(self, find: Callable[[Any], Answer]) -> None:
        self._find = find
        self.__doc__ = find.__doc__

    def __get__(self, settings: ConnectionSettings, owner: object = None) -> Answer:
        answer = settings.__dict__[self._find.__name__] = self._find(settings)
        return answer


class ConnectionSettings:
    """What a connection says, each found when it is asked for the first time.

    Attributes:
        urls: the primary's addresses.
    """

    def __init__(self, client: Connection) -> None:
        self._client = client
        self.urls = primary_urls(client)

    @_found_once
    def driver(self) -> type[base.Transport]:
        """The class of the primary's own transport."""
        return transport_class("primary", self.urls[0])

    @_found_once
    def implements(self) -> Any:
        """What the primary's own transport can do.

        Where workers may stand in, it is asynchronous if that of the secondary is, too: a worker that reads in an event
        loop would never hear of a transport that knows none.

        Raises:
            ConfigurationError: the settings make no sense.
        """
        options, found = self.options, self.driver.implements
        if options.stand_in_after is None or not found.asynchronous:
            return found
        secondary = transport_class("secondary", BrokerUrl.all_in(options.secondary)[0].text)
        return found if secondary.implements.asynchronous else found.extend(asynchronous=False)

    @_found_once
    def options(self) -> PairedNamespaceOptions:
        """The settings of the pairing, found to make sense.

        Raises:
            ConfigurationError: they do not.
        """
        options = PairedNamespaceOptions.parse(self._given)
        check_sides(self.urls, options)
        return options

    @_found_once
    def key(self) -> tuple[Any, ...]:
        """What connections of the same pairing have in common.

        Raises:
            ConfigurationError: the settings make no sense, so there is no pairing.
        """
        self.options  # noqa: B018
        return pairing_key(self._client, self.urls, self._given)

    @_found_once
    def _given(self) -> Mapping[str, Any]:
        return given_options(self._client, self.urls)


def primary_urls(client: Connection) -> list[str]:
    """The primary's addresses, in the order in which they were given.

    All of them, also where one is given: Celery's delayed delivery connects to each node by itself.
    """
    if not client.alt:
        return _whole_primary(client, [str(client.hostname)])  # Kombu has taken the prefix off
    return _whole_primary(client, _plain_urls(client.alt))


def _whole_primary(client: Connection, urls: list[str]) -> list[str]:
    if len(urls) > 1:
        beside = pairing_key(client, ())
        _primaries.update(((url, beside), urls) for url in urls)
    elif _primaries:
        return _primaries.get((urls[0], pairing_key(client, ())), urls)
    return urls


def _plain_urls(urls: Sequence[str]) -> list[str]:
    return [str(url).removeprefix(PREFIX) for url in urls]


def connect_arguments(client: Connection) -> dict[str, Any]:
    """What was given beside the URL (Celery's ``broker_use_ssl``, ``broker_user``, …) is for the primary."""
    given = {
        "userid": client.userid,
        "password": client.password,
        "port": client.port,
        "ssl": client.ssl,
        "login_method": client.login_method,
        "credential_provider": client.credential_provider,
        "virtual_host": client.virtual_host if client.virtual_host != "/" else None,
    }
    return {name: value for name, value in given.items() if value}


def given_options(client: Connection, urls: Sequence[str]) -> Mapping[str, Any]:
    """The transport options; of those that ``celery migrate`` leaves out, the application knows."""
    options: Mapping[str, Any] = client.transport_options or {}
    return options if "secondary" in options else {**_options_of_application(urls), **options}


def _options_of_application(urls: Sequence[str]) -> Mapping[str, Any]:
    """The transport options of the Celery application around us, if its broker is the one at these URLs."""
    celery = sys.modules.get("celery")
    conf = celery.current_app.conf if celery is not None else None
    if conf is None or _plain_urls(str(conf.broker_write_url or "").split(";")) != list(urls):
        return {}
    return conf.broker_transport_options or {}


def pairing_key(client: Connection, urls: Sequence[str], given: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """What connections of the same pairing have in common."""
    options: Mapping[str, Any] = given or client.transport_options or {}
    settings = sorted((key, repr(value)) for key, value in options.items() if key not in KOMBU_RETRY_KEYS)
    return (tuple(urls), repr(sorted(connect_arguments(client).items())), tuple(settings))
