"""What the service calls things. Pure.

Queues are called as the stock Kombu transport calls them, so that a fleet can move over one process at a time: all
punctuation but ``_ . -`` becomes ``_``. Backlog queues keep their slashes, which the service allows, and so do stand-in
queues.

Source of the rules: "Service Bus quotas" and "Naming rules and restrictions for Azure resources" of the service's
documents: 1 to 260 letters, digits and ``. - _ /``, with a letter or digit at both ends; 50 for a subscription.
"""

from __future__ import annotations

import hashlib
import re
import string
from functools import lru_cache

from kombu_paired.errors import ConfigurationError
from kombu_paired.isolation import ISOLATED_MARK
from kombu_paired.message import BACKLOG_MARK
from kombu_paired.stand_in import STAND_IN_MARK

__all__ = ("LONGEST_NAME", "LONGEST_SUBSCRIPTION", "entity_name", "is_backlog", "subscription_name")

LONGEST_NAME = 260
LONGEST_SUBSCRIPTION = 50
#: In the names of stand-in queues and of their register, and of what keeps notices.
_KEEPS_SLASHES = (STAND_IN_MARK.rstrip("/"), ISOLATED_MARK)

_AS_STOCK = {ord(each): "_" for each in set(string.punctuation) - set("_.-")}
_WITH_SLASHES = {each: to for each, to in _AS_STOCK.items() if each != ord("/")}
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]")
_LEGAL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")


def is_backlog(name: str) -> bool:
    """Whether it is the name of a backlog queue."""
    return BACKLOG_MARK in name


@lru_cache(maxsize=1024)
def entity_name(name: str, prefix: str = "") -> str:
    """The service's name for a queue or an exchange.

    Arguments:
        prefix: the transport option ``queue_name_prefix``; backlog queues and stand-in queues have none.

    Raises:
        ConfigurationError: the service does not allow such a name; the text says why.
    """
    if any(mark in name for mark in _KEEPS_SLASHES):
        wanted = name.translate(_WITH_SLASHES)
    else:
        wanted = name if is_backlog(name) else (prefix + name).translate(_AS_STOCK)
    if len(wanted) > LONGEST_NAME:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a queue or topic on Service Bus: it takes at most {LONGEST_NAME} "
            f"characters, not {len(wanted)}"
        )
    if not _LEGAL.fullmatch(wanted):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a queue or topic on Service Bus: letters, digits and . - _ / are allowed, "
            "with a letter or a digit at both ends"
        )
    return wanted


def subscription_name(queue: str) -> str:
    """The name of the subscription that stands for a queue bound to a topic; one that is changed is told apart."""
    stock = queue.translate(_AS_STOCK)
    wanted = _ILLEGAL.sub("_", stock).strip("._-")
    if wanted and wanted == stock and len(wanted) <= LONGEST_SUBSCRIPTION:
        return wanted
    sign = hashlib.sha256(queue.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{wanted[:33].rstrip('._-')}-{sign}" if wanted else sign
