"""The transport options of Service Bus, their defaults and their bounds. Pure. The only place that parses them.

They stand in ``primary_options`` and ``secondary_options``, and are documented in ``docs/servicebus.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit

from kombu_paired.errors import ConfigurationError
from kombu_paired.options import CELERY_KEYS, KOMBU_RETRY_KEYS
from kombu_paired.parsing import count, flag, mapping, nearest, optional, seconds, text

__all__ = ("WEB_SOCKETS", "ServiceBusSettings")

#: What the stock transport knows besides, and Kombu's virtual channels: accepted, and without an effect of ours.
STOCK = frozenset(
    {
        *("wait_time_seconds", "uamqp_keep_alive_interval", "retry_total", "retry_backoff_factor", "retry_backoff_max"),
        *("use_lock_renewal", "max_lock_renewal_duration", "polling_interval", "body_encoding", "deadletter_queue"),
    }
)
#: The longest lock that the service grants, in seconds. More is cut, as the stock transport does.
LONGEST_LOCK = 300.0
#: As good as no limit: the largest that the service takes.
MOST_DELIVERIES = 2_147_483_647
DAY = 86_400.0
#: How the SDK can reach the service.
WEB_SOCKETS = "AmqpOverWebsocket"
TRANSPORT_TYPES = ("Amqp", WEB_SOCKETS)
PROXY = ("proxy_hostname", "proxy_port", "username", "password")
PROXY_PORTS = {"http": 80, "https": 443}
_HOW_PROXY = f"option {{!r}} must be 'http://USER:PASSWORD@PROXY:PORT', or a dict of {', '.join(PROXY)}"


@dataclass(frozen=True)
class ServiceBusSettings:
    """The transport options of one namespace.

    Attributes:
        queue_name_prefix: put before the names of queues and topics.
        send_timeout: seconds that a send of the consumer's own connection may take.
        schedule_eta: the service holds a task back until its ``eta``.
        credential: who one is, where the URL does not say so: an object, a factory, or the import path of either.
        client_options: further arguments of the SDK's ServiceBusClient, by their names there.
        share_connection: what a process receives comes over one connection, instead of one for each queue.
        management_port: of a local server that has another one for management.
        peek_lock_seconds: lock of the queues and subscriptions that are created.
        max_delivery_count: after how many deliveries a message of theirs is a dead letter.
        default_message_time_to_live: seconds that a message lives in a queue that is created; None: without an end.
        duplicate_detection_window: seconds in which it drops a second message with one id; None: it does not.
        requires_session: it takes messages with a session id alone.
        enable_partitioning: it is spread over several of the service's brokers.
    """

    queue_name_prefix: str = ""
    send_timeout: float = 10.0
    schedule_eta: bool = False
    credential: Any = field(default=None, repr=False)
    client_options: Mapping[str, Any] = field(default_factory=dict)
    share_connection: bool = True
    management_port: int | None = None
    peek_lock_seconds: float = 60.0
    max_delivery_count: int = MOST_DELIVERIES
    default_message_time_to_live: float | None = None
    duplicate_detection_window: float | None = None
    requires_session: bool = False
    enable_partitioning: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> ServiceBusSettings:
        """The settings in a dict of transport options.

        Raises:
            ConfigurationError: a key is unknown, or a value out of bounds; the text says which and what to write.
        """
        known = {each.name for each in fields(cls)}
        for key in options.keys() - known - STOCK - KOMBU_RETRY_KEYS - CELERY_KEYS:
            raise ConfigurationError(f"unknown option {key!r} of Service Bus: {nearest(key, known)}")
        return cls(**{key: _PARSERS[key](key, value) for key, value in options.items() if key in known})

    @property
    def properties(self) -> dict[str, Any]:
        """Of every queue and subscription that is created, by their names in the administration client."""
        lock = timedelta(seconds=min(self.peek_lock_seconds, LONGEST_LOCK))
        return {"lock_duration": lock, "max_delivery_count": self.max_delivery_count}

    @property
    def queue_properties(self) -> dict[str, Any]:
        """Of a queue that is created to last."""
        found = self.properties
        if self.default_message_time_to_live is not None:
            found["default_message_time_to_live"] = timedelta(seconds=self.default_message_time_to_live)
        if self.duplicate_detection_window is not None:
            found["requires_duplicate_detection"] = True
            window = timedelta(seconds=self.duplicate_detection_window)
            found["duplicate_detection_history_time_window"] = window
        chosen = {"requires_session": self.requires_session, "enable_partitioning": self.enable_partitioning}
        return {**found, **{name: True for name, is_wanted in chosen.items() if is_wanted}}


def _port(key: str, value: Any) -> int:
    return count(65_535)(key, value)


def _client_options(key: str, value: Any) -> dict[str, Any]:
    """Those of the SDK's client, each checked: the SDK takes any name, and says nothing of one it does not know."""
    given = mapping("options")(key, value)
    for name in given.keys() - _CLIENT_PARSERS.keys():
        raise ConfigurationError(f"unknown option {name!r} in {key!r}: {nearest(name, _CLIENT_PARSERS)}")
    found = {name: _CLIENT_PARSERS[name](f"{key}.{name}", each) for name, each in given.items() if each is not None}
    is_custom = "custom_endpoint_address" in found and "transport_type" not in found
    wants_sockets = found.get("transport_type") == WEB_SOCKETS or "http_proxy" in found or is_custom
    if wants_sockets and find_spec("websocket") is None:
        raise ConfigurationError(f"{key!r} asks for web sockets, which need a package: pip install websocket-client")
    return found


def _transport_type(key: str, value: Any) -> str:
    wanted = str(getattr(value, "name", value)).lower()
    for name in TRANSPORT_TYPES:
        if wanted == name.lower():
            return name
    raise ConfigurationError(f"option {key!r} must be {' or '.join(map(repr, TRANSPORT_TYPES))}, not {value!r}")


def _proxy(key: str, value: Any) -> dict[str, Any]:
    """A proxy, as the SDK takes it: from such a mapping, or from a URL."""
    if isinstance(value, str):
        value = _proxy_of_url(key, value)
    given = mapping("options")(key, value)
    for name in given.keys() - set(PROXY):
        raise ConfigurationError(f"unknown option {name!r} in {key!r}: {nearest(name, PROXY)}")
    if not given.get("proxy_hostname") or given.get("proxy_port") is None:
        raise ConfigurationError(_HOW_PROXY.format(key))
    return {**given, "proxy_port": _port(f"{key}.proxy_port", given["proxy_port"])}


def _proxy_of_url(key: str, url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port or PROXY_PORTS.get(parts.scheme)
    except ValueError:  # its text may show a part of the password
        port = None
    if port is None or not parts.hostname:
        raise ConfigurationError(_HOW_PROXY.format(key))
    found = {"proxy_hostname": parts.hostname, "proxy_port": port}
    who = {"username": parts.username, "password": parts.password}
    return {**found, **{name: unquote(each) for name, each in who.items() if each}}


def _endpoint(key: str, value: Any) -> str:
    address = text(key, value)
    try:
        parts = urlsplit(address if "//" in address else f"sb://{address}")
        is_good = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigurationError(f"option {key!r} must be 'sb://HOST' or 'sb://HOST:PORT', not {address!r}")
    return address


def _as_given(key: str, value: Any) -> Any:
    return value


_CLIENT_PARSERS = {
    "connection_verify": text,
    "custom_endpoint_address": _endpoint,
    "http_proxy": _proxy,
    "logging_enable": flag,
    "retry_backoff_factor": seconds(0),
    "retry_backoff_max": seconds(0),
    "retry_mode": text,
    "retry_total": _as_given,
    "ssl_context": _as_given,
    "transport_type": _transport_type,
    "user_agent": text,
}
_PARSERS = {
    "queue_name_prefix": text,
    "send_timeout": seconds(0, above=True),
    "schedule_eta": flag,
    "share_connection": flag,
    "management_port": optional(_port),
    "client_options": _client_options,
    "credential": _as_given,
    "peek_lock_seconds": seconds(0, above=True),
    "max_delivery_count": count(MOST_DELIVERIES),
    "default_message_time_to_live": optional(seconds(1)),
    "duplicate_detection_window": optional(seconds(20, 7 * DAY)),
    "requires_session": flag,
    "enable_partitioning": flag,
}
