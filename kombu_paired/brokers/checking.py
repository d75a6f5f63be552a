"""Which broker URLs make sense, and which two brokers may be paired: found out before anything is reached."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, get_transport_cls
from kombu.transport.base import Transport
from kombu.utils.url import parse_url

from kombu_paired.brokers.drivers import driver_named, driver_of
from kombu_paired.connection_strings import is_connection_string
from kombu_paired.errors import ConfigurationError
from kombu_paired.forks import importing
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.secrets import without_secrets
from kombu_paired.urls import BrokerUrl

__all__ = ("check_sides", "transport_class")

logger = logging.getLogger(__name__)


def transport_class(side: str, url: str) -> type[Transport]:
    """The class of the transport that is used for a URL.

    Raises:
        ConfigurationError: there is none, or its package is not installed.
    """
    name = _name_in_kombu(side, BrokerUrl(url))
    driver = driver_named(name)
    with importing:
        if not driver.is_installed:
            raise ConfigurationError(_needs_package(side, name, driver.extra))
        try:
            found: type[Transport] = get_transport_cls(driver_of(url).transport or name)
        except ImportError as exc:
            raise ConfigurationError(_needs_package(side, name, driver.extra or exc.name or "its driver")) from exc
    return found


def check_sides(primaries: Sequence[str], options: PairedNamespaceOptions) -> None:
    """See that each URL makes sense, and that the two sides may be paired.

    Raises:
        ConfigurationError: they may not; the text says why, and what would make sense.
    """
    sides = [("primary", BrokerUrl(url)) for url in primaries]
    sides += [("secondary", url) for url in BrokerUrl.all_in(options.secondary)]
    for side, url in sides:
        _name_in_kombu(side, url)
    for side, url in sides:
        _check_address(side, url)
    for primary in primaries:
        _check_primary(BrokerUrl(primary))
    _check_that_they_differ(sides, without_secrets(options.secondary))
    _check_secondary(options)
    for side, url in sides:
        transport_class(side, url.text)
        _check_options(side, url, options.primary_options if side == "primary" else options.secondary_options)


def _name_in_kombu(side: str, url: BrokerUrl) -> str:
    """The name that Kombu, or a driver with a transport of its own, has for the transport of a URL."""
    if is_connection_string(url.text):  # or a piece of one
        raise ConfigurationError(
            f"the {side} namespace needs a URL: quote(connection_string, safe='') of urllib.parse, after "
            "'azureservicebus://', is that of a connection string. Kombu takes every ';' for the end of a URL"
        )
    if ";" in url.text or "://" not in url.text:  # Kombu takes every ';' for the end of a URL
        raise ConfigurationError(
            f"the {side} namespace needs a whole URL, and one after every ';': {_how(side)}. Write a ';' that belongs "
            "to a password as %3B"
        )
    if url.is_paired:
        raise ConfigurationError(
            f"the URL of the {side}, {url.shown()!r}, is paired itself: write 'paired+' once, in broker_url, "
            f"and the plain URL of a broker after it: {_how(side)}"
        )
    for found in (url.kind, url.kind.lower()):
        if found in TRANSPORT_ALIASES or driver_named(found).transport:
            return found
    nearest = difflib.get_close_matches(url.kind.lower(), sorted(TRANSPORT_ALIASES), n=1)
    hint = f"did you mean '{nearest[0]}{url.scheme.removeprefix(url.kind)}://'? " if nearest else ""
    raise ConfigurationError(
        f"the URL of the {side}, {url.shown()!r}, begins with a scheme that no broker has: {hint}Kombu knows "
        "amqp://, redis://, sentinel://, azureservicebus:// and more"
    )


def _needs_package(side: str, name: str, what: str) -> str:
    return f"the {side} is of the kind {name}://, which needs a package: pip install '{what}'"


def _how(side: str) -> str:
    if side == "primary":
        return "broker_url = 'paired+amqp://main-broker//'"
    return "broker_transport_options = {'secondary': 'amqp://spare-broker//'}"


def _check_options(side: str, url: BrokerUrl, options: Mapping[str, Any]) -> None:
    try:
        driver_of(url.text).check_options(url.text, options)
    except ConfigurationError as exc:
        raise ConfigurationError(f"'{side}_options' of {url}: {exc}") from exc


def _check_address(side: str, url: BrokerUrl) -> None:
    driver = driver_named(url.scheme.lower())
    if not driver.has_host:
        return
    authority = re.split("[/?#]", url.rest, maxsplit=1)[0]
    wrong = None
    try:
        parts = parse_url(url.text)
        if any(letter.isspace() for letter in authority) or url.text != url.text.strip():
            wrong = "holds a space: remove it, or write it as %20"
        elif "@" in re.split("[?#]", url.rest)[0] and "@" not in authority and ":" in authority:
            wrong = (
                "cannot be read: write a '/' of a password as %2F, '@' as %40, and other special characters as %XX "
                "(urllib.parse.quote)"
            )
        elif parts["port"] == 0:
            wrong = "has the port 0: ports are 1 to 65535"
        elif not parts["hostname"] and (authority or driver.port is None):
            wrong = f"names no host: write {url.scheme}://USER:PASSWORD@HOST:PORT/…"
    except ValueError:  # its text may show a part of the password
        wrong = (
            "cannot be read: a port is a number from 1 to 65535, and special characters of the user and the password "
            "are written as %XX (urllib.parse.quote)"
        )
    if wrong:
        raise ConfigurationError(f"the URL of the {side}, {url.shown()!r}, {wrong}")


def _check_that_they_differ(sides: Sequence[tuple[str, BrokerUrl]], secondary: str) -> None:
    primaries, secondaries = (
        {driver_of(url.text).address_of(url.text) for side, url in sides if side == wanted}
        for wanted in ("primary", "secondary")
    )
    if secondaries & primaries:
        raise ConfigurationError(
            f"primary and secondary are the same namespace ({secondary}): the secondary must be a broker that lives on "
            "when the primary dies"
        )
    if {address[:2] for address in secondaries} & {address[:2] for address in primaries}:
        logger.warning("the secondary %s is on the same server as the primary: it dies with it", secondary)


def _check_primary(url: BrokerUrl) -> None:
    if not driver_of(url.text).may_be_primary:
        raise ConfigurationError(
            f"the primary {url} only keeps what cannot be sent, and nobody can consume from it: write the URL of a "
            f"broker in broker_url, and {url.scheme}:// as the 'secondary'"
        )


def _check_secondary(options: PairedNamespaceOptions) -> None:
    shown, driver = without_secrets(options.secondary), driver_of(options.secondary)
    if not driver.names_with_slashes:
        raise ConfigurationError(
            f"the secondary {shown} cannot store backlog queues: its transport makes file names of queue names, and "
            "theirs have slashes. Use RabbitMQ, Redis or SQS"
        )
    if not driver.keeps_unsettled and not options.allow_unsafe_secondary:
        raise ConfigurationError(
            f"the secondary {shown} uses a transport that forgets a message whose consumer is killed: use RabbitMQ, "
            "Redis or SQS, or accept the loss with allow_unsafe_secondary=True"
        )
    if options.stand_in_after is not None and not driver.stands_in:
        raise ConfigurationError(
            f"workers cannot stand in at the secondary {shown}: 'stand_in_after' needs RabbitMQ, Redis or Azure "
            "Service Bus there. Use one of these, or leave 'stand_in_after' out"
        )
