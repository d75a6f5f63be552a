"""What a caller is told when its message could not be sent. Pure."""

from __future__ import annotations

from kombu_paired.declarations import Entity
from kombu_paired.errors import BacklogUnavailable, NamespaceFailure, NamespaceUnauthorized, PrimaryUnavailable
from kombu_paired.failures import FailureKind, Response

__all__ = ("as_raised", "neither_took_it", "not_diverted", "raise_what_diverting_would_hide")


def as_raised(failure: NamespaceFailure) -> BaseException:
    """The driver's own error, except where it would not say which side failed."""
    if failure.kind is not FailureKind.UNAUTHORIZED:
        return failure.cause
    side = "primary (broker_url)" if failure.namespace.startswith("primary") else "secondary (option secondary)"
    return NamespaceUnauthorized(
        f"{failure}. Check the user, password, rights and virtual host in the URL of the {side}"
    )


def raise_what_diverting_would_hide(failure: NamespaceFailure) -> None:
    """A client or a message that is wrong, or an entity that is not there: no outage."""
    if failure.kind.response is Response.RAISE or failure.kind is FailureKind.MISSING:
        raise as_raised(failure) from failure.cause


def neither_took_it(
    primary: NamespaceFailure | None, secondary: NamespaceFailure, last: NamespaceFailure | None
) -> BacklogUnavailable:
    """Names both failures.

    Arguments:
        primary: None if it was not asked, since the entity is failed over.
        last: the last one of the primary, for that case.
    """
    first = str(primary) if primary else f"failed over; at last {last}"
    return BacklogUnavailable(f"neither namespace took the message. {first}; {secondary}")


def not_diverted(primary: str, entity: Entity) -> PrimaryUnavailable:
    """A transient message, while the primary is away."""
    return PrimaryUnavailable(f"{primary} is away, and a transient message to {entity.path!r} is worth nothing later")
