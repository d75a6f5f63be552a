"""What a Kombu connection says of its pairing: where the primary is, how to connect to it, and the settings.

Connections that say the same share a pairing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kombu import Connection

from kombu_paired.options import KOMBU_RETRY_KEYS
from kombu_paired.showing import PREFIX

__all__ = ("connect_arguments", "given_options", "pairing_key", "primary_urls")

#: Address of one node, and what else makes a pairing -> all addresses of the primary it belongs to.
_primaries: dict[Any, list[str]] = {}


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
