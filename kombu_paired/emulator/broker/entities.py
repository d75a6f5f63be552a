"""The settings of queues, topics and subscriptions, their bounds, and the rules for names. Pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from kombu_paired.emulator.broker.errors import Condition, Refusal

__all__ = (
    "DEAD_LETTER_SUFFIX",
    "QueueOptions",
    "SubscriptionOptions",
    "TopicOptions",
    "check_name",
    "check_options",
    "from_record",
    "to_record",
)

DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")
_SUBSCRIPTION_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
_DAY = 86400.0


@dataclass(frozen=True)
class QueueOptions:
    """The properties of a queue, by the names of the service. Durations are seconds; None is unlimited."""

    lock_duration: float = 60.0
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live: float | None = None
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window: float = 600.0
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    auto_delete_on_idle: float | None = None
    enable_partitioning: bool = False
    enable_express: bool = False
    forward_to: str | None = None
    user_metadata: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    max_message_size_in_kilobytes: int = 256


@dataclass(frozen=True)
class TopicOptions:
    """The properties of a topic."""

    default_message_time_to_live: float | None = None
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window: float = 600.0
    enable_batched_operations: bool = True
    status: str = "Active"
    support_ordering: bool = True
    auto_delete_on_idle: float | None = None
    enable_partitioning: bool = False
    enable_express: bool = False
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int = 256


@dataclass(frozen=True)
class SubscriptionOptions:
    """The properties of a subscription."""

    lock_duration: float = 60.0
    requires_session: bool = False
    default_message_time_to_live: float | None = None
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    forward_to: str | None = None
    user_metadata: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle: float | None = None


Options = TypeVar("Options", QueueOptions, TopicOptions, SubscriptionOptions)

# What cannot be changed once the entity exists.
_FIXED = ("requires_session", "requires_duplicate_detection", "enable_partitioning")


def check_name(name: str, limit: int = 260, what: str = "queue or topic") -> None:
    """Raise unless the service would take the name."""
    pattern = _NAME if limit == 260 else _SUBSCRIPTION_NAME
    if not pattern.fullmatch(name) or len(name) > limit or "//" in name:
        raise Refusal(
            Condition.ARGUMENT_ERROR,
            f"{name!r} is no name for a {what}: 1 to {limit} letters, digits, '.', '-', '_'"
            f"{', /' if limit == 260 else ''}, with a letter or digit at both ends",
        )


def check_options(options: Options, before: Options | None = None) -> None:
    """Raise unless every option is within the service's bounds, and none changed that cannot change."""
    _check_duration(options, "lock_duration", 0.001, 300.0)
    _check_duration(options, "duplicate_detection_history_time_window", 20.0, 7 * _DAY)
    _check_duration(options, "auto_delete_on_idle", 300.0, None)
    _check_duration(options, "default_message_time_to_live", 0.001, None)
    if options.status not in _STATUSES:
        _refuse(f"status {options.status!r} is none of {', '.join(_STATUSES)}")
    if getattr(options, "max_delivery_count", 1) < 1:
        _refuse("max_delivery_count must be 1 or more")
    if len(options.user_metadata or "") > 1024:
        _refuse("user_metadata is longer than 1024 characters")
    for field in fields(options) if before is not None else ():
        if field.name in _FIXED and getattr(options, field.name) != getattr(before, field.name):
            _refuse(f"{field.name} cannot be changed once the entity exists")


def _check_duration(options: Any, name: str, low: float, high: float | None) -> None:
    value = getattr(options, name, None)
    if value is not None and (value < low or (high is not None and value > high)):
        _refuse(f"{name} of {value:g} s is out of bounds: {low:g} s to {'any' if high is None else f'{high:g} s'}")


def _refuse(description: str) -> None:
    raise Refusal(Condition.ARGUMENT_ERROR, description)


def to_record(options: QueueOptions | TopicOptions | SubscriptionOptions) -> dict[str, Any]:
    """The options as plain values, for a store."""
    return asdict(options)


def from_record(kind: type[Options], record: dict[str, Any], base: Options | None = None) -> Options:
    """Options from plain values; unknown keys are left out, missing ones come from ``base`` or the defaults."""
    known = {field.name for field in fields(kind)}
    return replace(base or kind(), **{key: value for key, value in record.items() if key in known})
