"""Which broker URLs make sense, and which two brokers may be paired: found out before anything is reached."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Sequence

from kombu.transport import TRANSPORT_ALIASES, get_transport_cls
from kombu.transport.base import Transport
from kombu.utils.url import parse_url

from kombu_paired.errors import ConfigurationError
from kombu_paired.forks import importing
from kombu_paired.namespaces.drivers import driver_named, driver_of
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.secrets import split_urls, without_secrets

__all__ = ("check_sides", "default_primary_name", "transport_class")

logger = logging.getLogger(__name__)


def transport_class(side: str, url: str) -> type[Transport]:
    """The class of the transport that is used for a URL.

    Raises:
        ConfigurationError: there is none, or its package is not installed.
    """
    name = _kind_of(side, url)
    driver = driver_named(name)
    with importing:
        if not driver.is_installed:
            raise ConfigurationError(_needs_package(side, name, driver.extra))
        try:
            found: type[Transport] = get_transport_cls(driver_of(url).transport or name)
        except ImportError as exc:
            raise ConfigurationError(_needs_package(side, name, driver.extra or exc.name or "its driver")) from exc
    return found


def default_primary_name(url: str) -> str:
    """A name that no other primary has that might use the same secondary.

    On Service Bus the first host label (``contoso`` of ``contoso.servicebus.windows.net``), or host and port of a local
    server. Elsewhere the host; the port too where it is not the usual one or the host says nothing alone
    (``localhost``, an address); and the virtual host or database where it is not the first: two applications that share
    a broker must not share backlog queues.
    """
    return driver_of(url).primary_name(url)


def _kind_of(side: str, url: str) -> str:
    """The name that Kombu has for the transport of a URL."""
    name, *more = url.partition("://")[0].split("+")
    if ";" in url or "://" not in url:  # Kombu takes every ';' for the end of a URL
        raise ConfigurationError(
            f"the {side} namespace needs a whole URL, and one after every ';': {_how(side)}. Write a ';' that belongs "
            "to a password as %3B"
        )
    if name.lower() == "paired":
        raise ConfigurationError(
            f"the URL of the {side}, {without_secrets(url)!r}, is paired itself: write 'paired+' once, in broker_url, "
            f"and the plain URL of a broker after it: {_how(side)}"
        )
    for found in (name, name.lower()):
        if found in TRANSPORT_ALIASES:
            return found
    nearest = difflib.get_close_matches(name.lower(), sorted(TRANSPORT_ALIASES), n=1)
    hint = f"did you mean '{'+'.join([nearest[0], *more])}://'? " if nearest else ""
    raise ConfigurationError(
        f"the URL of the {side}, {without_secrets(url)!r}, begins with a scheme that no broker has: {hint}Kombu knows "
        "amqp://, redis://, sentinel://, azureservicebus:// and more"
    )


def _needs_package(side: str, name: str, what: str) -> str:
    return f"the {side} is of the kind {name}://, which needs a package: pip install '{what}'"


def _how(side: str) -> str:
    if side == "primary":
        return "broker_url = 'paired+amqp://main-broker//'"
    return "broker_transport_options = {'secondary': 'amqp://spare-broker//'}"


def check_sides(primaries: Sequence[str], options: PairedNamespaceOptions) -> None:
    """See that each URL makes sense, and that the two sides may be paired.

    Raises:
        ConfigurationError: they may not; the text says why, and what would make sense.
    """
    secondary = options.secondary
    urls = [*(("primary", url) for url in primaries), *(("secondary", url) for url in split_urls(secondary))]
    for side, url in urls:
        _kind_of(side, url)
    for side, url in urls:
        _check_address(side, url)
    secondaries = {driver_of(url).address_of(url) for url in split_urls(secondary)}
    primary_addresses = {driver_of(url).address_of(url) for url in primaries}
    if secondaries & primary_addresses:
        raise ConfigurationError(
            f"primary and secondary are the same namespace ({without_secrets(secondary)}): the secondary must be a "
            "broker that lives on when the primary dies"
        )
    if {address[:2] for address in secondaries} & {address[:2] for address in primary_addresses}:
        logger.warning(
            "the secondary %s is on the same server as the primary: it dies with it", without_secrets(secondary)
        )
    driver = driver_of(secondary)
    if not driver.names_with_slashes:
        raise ConfigurationError(
            f"the secondary {without_secrets(secondary)} cannot store backlog queues: its transport makes file names "
            "of queue names, and theirs have slashes. Use RabbitMQ, Redis or SQS"
        )
    if not driver.keeps_unsettled and not options.allow_unsafe_secondary:
        raise ConfigurationError(
            f"the secondary {without_secrets(secondary)} uses a transport that forgets a message whose consumer is "
            "killed: use RabbitMQ, Redis or SQS, or accept the loss with allow_unsafe_secondary=True"
        )
    for side, url in urls:
        transport_class(side, url)


def _check_address(side: str, url: str) -> None:
    scheme, _, rest = url.partition("://")
    driver = driver_named(scheme.lower())
    if not driver.has_host:
        return
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    wrong = None
    try:
        parts = parse_url(url)
        if any(letter.isspace() for letter in authority) or url != url.strip():
            wrong = "holds a space: remove it, or write it as %20"
        elif "@" in re.split("[?#]", rest)[0] and "@" not in authority and ":" in authority:
            wrong = (
                "cannot be read: write a '/' of a password as %2F, '@' as %40, and other special characters as %XX "
                "(urllib.parse.quote)"
            )
        elif parts["port"] == 0:
            wrong = "has the port 0: ports are 1 to 65535"
        elif not parts["hostname"] and (authority or driver.port is None):
            wrong = f"names no host: write {scheme}://USER:PASSWORD@HOST:PORT/…"
    except ValueError:  # its text may show a part of the password
        wrong = (
            "cannot be read: a port is a number from 1 to 65535, and special characters of the user and the password "
            "are written as %XX (urllib.parse.quote)"
        )
    if wrong:
        raise ConfigurationError(f"the URL of the {side}, {without_secrets(url)!r}, {wrong}")
