"""What Kombu and Celery show of a paired connection, without its secrets.

Kombu's connection holds the whole URL of a primary in place of its host, and Celery prints all transport options but
those whose names look secret. Neither asks the transport, so the transport teaches them here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from kombu import Connection
from kombu.utils.url import url_to_parts

from kombu_paired.secrets import shown_options, shown_url, without_secrets
from kombu_paired.urls import MASK, PREFIX

__all__ = ("teach_celery", "teach_kombu")

#: What Celery itself writes in the place of a secret.
CELERYS_MASK = "********"


def teach_kombu() -> None:
    """Let ``host`` and ``info()`` of a paired connection hold no secrets, and refuse a URL that only looks paired."""
    host, info, reduce, create_transport = (
        Connection.host,
        Connection.info,
        Connection.__reduce__,
        Connection.create_transport,
    )
    if getattr(info, "hides_secrets", False):
        return

    def host_without_secrets(self: Connection) -> str:
        return _shown_host(str(self.hostname), self.alt) if _is_paired(self) else str(host.fget(self))

    def info_without_secrets(self: Connection) -> dict[str, Any]:
        found: dict[str, Any] = info(self)
        return _shown_info(found) if _is_paired(self) else found

    def reduce_with_secrets(self: Connection) -> Any:
        return (type(self), tuple(dict(self._info()).values()), None) if _is_paired(self) else reduce(self)

    def create_transport_unless_mistyped(self: Connection) -> Any:
        if str(self.hostname).startswith(PREFIX) and not _is_paired(self):
            from kombu_paired.errors import ConfigurationError  # errors costs more than registering a name may

            raise ConfigurationError(
                f"{without_secrets(str(self.hostname))!r} is no URL: write 'paired+' and the whole URL of the primary, "
                "e.g. 'paired+amqp://main-broker//'"
            )
        return create_transport(self)

    info_without_secrets.hides_secrets = True  # type: ignore[attr-defined]
    Connection.host = property(host_without_secrets, doc=host.__doc__)
    Connection.info = info_without_secrets
    Connection.__reduce__ = reduce_with_secrets
    Connection.create_transport = create_transport_unless_mistyped


def _is_paired(connection: Connection) -> bool:
    transport = connection.transport_cls
    if isinstance(transport, type):
        return transport.__module__ == "kombu_paired.transport.transport"
    return transport in ("paired", "kombu_paired.transport:Transport", "kombu_paired.transport.Transport")


def _shown_host(url: str, alternates: list[Any]) -> str:
    """Host and port, as the primary's own connection would have them."""
    shown = shown_url(url, alternates)
    try:
        parts = url_to_parts(url)
    except ValueError:
        return shown
    place = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    return f"{parts.hostname}:{parts.port}" if place in shown.lower() else shown


def _shown_info(info: dict[str, Any]) -> dict[str, Any]:
    alternates = info["alternates"] or []
    shown = {**info, "hostname": shown_url(str(info["hostname"]), alternates)}
    shown["alternates"] = [shown_url(str(each), alternates) for each in alternates]
    shown["transport_options"] = shown_options(info["transport_options"] or {})
    if info["password"]:
        shown["password"] = MASK
    return shown


def teach_celery() -> None:
    """Let ``celery report`` and ``celery inspect conf`` show no secret of either side, if this process has Celery."""
    utils = sys.modules.get("celery.app.utils")
    filter_hidden_settings = getattr(utils, "filter_hidden_settings", None)
    if filter_hidden_settings is None or getattr(filter_hidden_settings, "hides_secrets", False):
        return

    def filter_secrets_too(conf: Mapping[Any, Any]) -> dict[Any, Any]:
        shown: dict[Any, Any] = filter_hidden_settings(conf)
        if isinstance(conf.get("secondary"), str):  # it is called again for each dict among the settings
            shown.update(shown_options({key: shown[key] for key in conf}, CELERYS_MASK))
        for key, value in shown.items():
            if isinstance(value, str) and (value.startswith(PREFIX) or key == "redbeat_redis_url"):
                shown[key] = without_secrets(value, CELERYS_MASK)
        return shown

    filter_secrets_too.hides_secrets = True  # type: ignore[attr-defined]
    utils.filter_hidden_settings = filter_secrets_too  # type: ignore[union-attr]
