"""Every setting of a pairing, its default and its bounds. The only place that parses settings.

Settings come as Kombu transport options: ``broker_transport_options`` of Celery, ``CELERY_BROKER_TRANSPORT_OPTIONS``
in Django's settings. Durations are seconds; a :class:`~datetime.timedelta` is accepted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from kombu.utils.imports import symbol_by_name

from kombu_paired.connection_strings import as_url
from kombu_paired.errors import ConfigurationError
from kombu_paired.failures import FailureKind
from kombu_paired.parsing import count, flag, mapping, nearest, optional, rate, seconds
from kombu_paired.secrets import without_secrets
from kombu_paired.urls import BrokerUrl

__all__ = ("PairedNamespaceOptions",)

#: Celery merges its publish policy into the transport options, and Kombu reads its own retry keys from there.
KOMBU_RETRY_KEYS = frozenset(
    {
        "max_retries",
        "interval_start",
        "interval_step",
        "interval_max",
        "errback",
        "on_revive",
        "retry_errors",
        "timeout",
        "connect_retries_timeout",
    }
)

#: What Celery itself puts into or reads from a broker's transport options, whatever the broker.
CELERY_KEYS = frozenset({"client_name"})

#: Options of Kombu's transports that people have in ``broker_transport_options`` before they pair their broker.
BROKER_KEYS = frozenset(
    {
        *("confirm_publish", "read_timeout", "write_timeout", "socket_settings", "frame_max", "channel_max"),
        *("login_method", "ssl", "heartbeat", "queue_arguments", "client_properties", "on_blocked", "on_unblocked"),
        *("visibility_timeout", "global_keyprefix", "queue_order_strategy", "priority_steps", "sep", "keyprefix_queue"),
        *("fanout_prefix", "fanout_patterns", "ack_emulation", "max_connections", "health_check_interval"),
        *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options"),
        *("retry_on_timeout", "unacked_key", "unacked_index_key", "unacked_mutex_key", "unacked_mutex_expire"),
        *("unacked_restore_limit", "master_name", "sentinel_kwargs", "min_other_sentinels", "credential_provider"),
        *("password", "username", "db", "host", "port", "virtual_host", "protocol", "client_class"),
        *("region", "polling_interval", "wait_time_seconds", "queue_name_prefix", "predefined_queues", "is_secure"),
        *("sts_role_arn", "managed_queues", "peek_lock_seconds", "retry_total", "retry_backoff_factor"),
        *("retry_backoff_max", "uamqp_keep_alive_interval", "data_folder_in", "data_folder_out", "store_processed"),
    }
)

Classifier = Callable[[BaseException], "FailureKind | None"]


@dataclass(frozen=True)
class PairedNamespaceOptions:
    """The settings of one pairing.

    Attributes:
        secondary: Kombu URL of the secondary namespace, or a connection string of Service Bus. Required.
        primary_options, secondary_options: transport options of each side, passed on untouched.
        primary_name: names the backlog queues; by default made from the primary's URL.
        backlog_queue_count: backlog queues to use, at least 1.
        backlog_queue_type: ``classic`` or ``quorum`` on RabbitMQ; None leaves it to the broker.
        failover_interval: seconds an entity may fail, with no success in between, before it is failed over; 0 to 3600.
        ping_interval: seconds between two pings of a failed-over entity; 1 to 1800.
        send_timeout: seconds that one send may take on one namespace; more than 0.
        enable_syphon: run a syphon in this process. None does where no other machine can, with a spool. The worker
            bootstep runs one whatever this says.
        syphon_poll: seconds of one long poll of a backlog queue; more than 0.
        syphon_rate: messages per second that a process moves home at most, at least 1; None leaves it to the primary.
        divert_while_suspect: divert what fails before the failover too; False raises the failure to the caller.
        create_backlog_queues: create the missing ones; False for users without the right to.
        throttle_wait: seconds to wait when a namespace says it is busy.
        backlog_retry_interval: seconds for which a failing backlog queue is left alone.
        close_timeout: seconds the syphon lets a namespace be away alone before it faults the other one.
        stand_in_after: seconds without the primary after which a worker consumes from the secondary; more than 0. None
            never does.
        allow_unsafe_secondary: accept a secondary that forgets messages whose consumer is killed.
        classify_failure: ``exception -> FailureKind or None``, or its import path, asked before the built-in tables.
        journal: a folder to write events to; None writes nothing.
        journal_level: ``messages`` writes every event, ``transitions`` leaves out those of single messages.
    """

    secondary: str
    primary_options: Mapping[str, Any] = field(default_factory=dict)
    secondary_options: Mapping[str, Any] = field(default_factory=dict)
    primary_name: str | None = None
    backlog_queue_count: int = 10
    backlog_queue_type: str | None = None
    failover_interval: float = 10.0
    ping_interval: float = 60.0
    send_timeout: float = 10.0
    enable_syphon: bool | None = None
    syphon_poll: float = 900.0
    syphon_rate: float | None = None
    divert_while_suspect: bool = True
    create_backlog_queues: bool = True
    throttle_wait: float = 10.0
    backlog_retry_interval: float = 60.0
    close_timeout: float = 5.0
    stand_in_after: float | None = None
    allow_unsafe_secondary: bool = False
    classify_failure: Classifier | None = None
    journal: str | None = None
    journal_level: str = "messages"

    @classmethod
    def parse(cls, transport_options: Mapping[str, Any]) -> PairedNamespaceOptions:
        """The settings in a dict of transport options.

        Raises:
            ConfigurationError: a key is unknown, or a value out of bounds; the text says which and what to write.
        """
        known = {each.name for each in fields(cls)}
        given = {key: value for key, value in transport_options.items() if key in known}
        for key in transport_options.keys() - known - KOMBU_RETRY_KEYS - CELERY_KEYS:
            raise ConfigurationError(_unknown(key, known))
        if not given.get("secondary"):
            raise ConfigurationError(
                "the option 'secondary' is missing: give the Kombu URL of the broker that stores what the primary "
                "cannot take, e.g. broker_transport_options = {'secondary': 'amqp://spare-broker//'}"
            )
        parsed = {key: _PARSERS[key](key, value) if key in _PARSERS else value for key, value in given.items()}
        return cls(**parsed)

    def __repr__(self) -> str:
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        shown["secondary"] = without_secrets(self.secondary)
        for side in ("primary_options", "secondary_options"):
            shown[side] = sorted(shown[side])  # values may hold keys and passwords
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in shown.items())})"


def _unknown(key: object, known: set[str]) -> str:
    if key in BROKER_KEYS:
        return (
            f"option {key!r} is one of the broker itself: move it into 'primary_options', as in "
            f"broker_transport_options = {{'secondary': …, 'primary_options': {{{key!r}: …}}}}; what the secondary is "
            "to get, too, goes into 'secondary_options'"
        )
    return (
        f"unknown option {key!r}: {nearest(key, known)} Options of the brokers themselves go into 'primary_options' "
        "and 'secondary_options'."
    )


def _url(key: str, value: Any) -> str:
    value = as_url(value) if isinstance(value, str) else value
    if not isinstance(value, str) or "://" not in value:
        raise ConfigurationError(f"option {key!r} must be a Kombu URL like 'amqp://spare-broker//'")
    if any(each.is_paired for each in BrokerUrl.all_in(value)):
        raise ConfigurationError(f"option {key!r} must be a plain Kombu URL, without 'paired+'")
    return value


def _text_or_none(key: str, value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigurationError(f"option {key!r} must be a text or None, not {value!r}")
    return value


def _or_none(parse: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda key, value: None if value is None else parse(key, value)


def _queue_type(key: str, value: Any) -> str | None:
    if value not in (None, "classic", "quorum"):
        raise ConfigurationError(f"option {key!r} must be 'classic', 'quorum' or None, not {value!r}")
    return value  # type: ignore[no-any-return]


def _folder(key: str, value: Any) -> str | None:
    if value is not None and (not isinstance(value, str | os.PathLike) or not os.fspath(value)):
        raise ConfigurationError(f"option {key!r} must be the path of a folder or None, not {value!r}")
    # Absolute, since a worker that becomes a daemon changes its working directory.
    return os.path.abspath(os.path.expanduser(os.fsdecode(value))) if value is not None else None


def _level(key: str, value: Any) -> str:
    if value not in ("messages", "transitions"):
        raise ConfigurationError(f"option {key!r} must be 'messages' or 'transitions', not {value!r}")
    return value  # type: ignore[no-any-return]


def _classifier(key: str, value: Any) -> Classifier | None:
    if isinstance(value, str):
        try:
            value = symbol_by_name(value)
        except (ImportError, AttributeError, TypeError, ValueError) as exc:
            raise ConfigurationError(f"option {key!r}: {value!r} cannot be imported: {exc}") from exc
    if value is not None and not callable(value):
        raise ConfigurationError(f"option {key!r} must be a function or its import path, not {value!r}")
    return cast("Classifier | None", value)


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "secondary": _url,
    "primary_options": mapping("transport options"),
    "secondary_options": mapping("transport options"),
    "primary_name": _text_or_none,
    "backlog_queue_count": count(),
    "backlog_queue_type": _queue_type,
    "failover_interval": seconds(0, 3600),
    "ping_interval": seconds(1, 1800),
    "send_timeout": seconds(0, above=True),
    "enable_syphon": optional(flag),
    "syphon_poll": seconds(0, above=True),
    "syphon_rate": optional(rate(1)),
    "divert_while_suspect": flag,
    "create_backlog_queues": flag,
    "throttle_wait": seconds(0),
    "backlog_retry_interval": seconds(0),
    "close_timeout": seconds(0),
    "stand_in_after": _or_none(seconds(0, above=True)),
    "allow_unsafe_secondary": flag,
    "classify_failure": _classifier,
    "journal": _folder,
    "journal_level": _level,
}
