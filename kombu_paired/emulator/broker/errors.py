"""How the emulator says no: one exception, with the AMQP condition that the service would use."""

from __future__ import annotations

__all__ = ("TRACKING", "Condition", "Refusal", "exists_already", "idle", "lock_lost", "missing", "token_expired")

#: What the service writes behind most of its texts. A client that reads one must find its way past this.
TRACKING = "TrackingId:00000000-0000-0000-0000-000000000000_G0, SystemTracker:emulator, Timestamp:2026-01-01T00:00:00"


class Condition:
    """The error conditions of the service, as its clients see them."""

    ARGUMENT_ERROR = "com.microsoft:argument-error"
    AUTH_FAILED = "com.microsoft:auth-failed"
    CONNECTION_FORCED = "amqp:connection:forced"
    CONTAINER_CLOSE = "com.microsoft:container-close"
    DECODE_ERROR = "amqp:decode-error"
    DETACH_FORCED = "amqp:link:detach-forced"
    ENTITY_ALREADY_EXISTS = "com.microsoft:entity-already-exists"
    ENTITY_DISABLED = "com.microsoft:entity-disabled"
    INTERNAL_ERROR = "amqp:internal-error"
    MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
    MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    NOT_FOUND = "amqp:not-found"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    OPERATION_CANCELLED = "com.microsoft:operation-cancelled"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    SERVER_BUSY = "com.microsoft:server-busy"
    SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
    SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
    TIMEOUT = "com.microsoft:timeout"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"


class Refusal(Exception):
    """What was asked for is not done.

    Attributes:
        condition: one of :class:`Condition`.
        description: for people.
        status: of the answer to a request, where the condition does not say it.
        outcome: of a send that is refused without a reason.
    """

    def __init__(self, condition: str, description: str, status: int | None = None, outcome: str | None = None) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description
        self.status = status
        self.outcome = outcome


def missing(entity: str) -> Refusal:
    """There is no such entity, in the words of the service.

    Arguments:
        entity: its path, or its address.
    """
    address = entity if "://" in entity else f"sb://emulator/{entity}"
    return Refusal(
        Condition.NOT_FOUND,
        f"The messaging entity '{address}' could not be found. "
        f"To know more visit https://aka.ms/sbResourceMgrExceptions. {TRACKING}",
    )


def exists_already() -> Refusal:
    """There is an entity of that name; the service does not repeat it."""
    return Refusal(
        Condition.ENTITY_ALREADY_EXISTS,
        "SubCode=40900. Conflict. You're requesting an operation that isn't allowed in the resource's current state. "
        f"To know more visit https://aka.ms/sbResourceMgrExceptions. . {TRACKING}",
    )


def idle(entity: str, seconds: float = 600.0) -> Refusal:
    """A link was of no use to anybody for so long that the service ends it."""
    hours, rest = divmod(int(seconds), 3600)
    return Refusal(
        Condition.DETACH_FORCED,
        f"The link 'G0:1:{entity}' is force detached. Code: consumer(link1). Details: AmqpMessageConsumer."
        f"IdleTimerExpired: Idle timeout: {hours:02}:{rest // 60:02}:{rest % 60:02}. {TRACKING}",
    )


def lock_lost(entity: str) -> Refusal:
    """Whoever had a message has it no longer."""
    return Refusal(
        Condition.MESSAGE_LOCK_LOST,
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the "
        f"queue. For more information please see https://aka.ms/ServiceBusExceptions . Reference:{entity}, {TRACKING}",
    )


def token_expired(entity: str, right: str) -> Refusal:
    """The token for a link was not renewed."""
    return Refusal(
        Condition.DETACH_FORCED,
        f"The link 'G0:1:{entity}' is force detached. Code: RenewToken. Details: Unauthorized access. '{right}' "
        f"claim(s) are required to perform this operation. Resource: 'sb://emulator/{entity}'.. {TRACKING}",
    )
