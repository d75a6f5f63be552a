"""How the emulator says no: one exception, with the AMQP condition that the service would use."""

from __future__ import annotations

__all__ = ("Condition", "Refusal")


class Condition:
    """The error conditions of the service, as its clients see them."""

    ARGUMENT_ERROR = "com.microsoft:argument-error"
    AUTH_FAILED = "com.microsoft:auth-failed"
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
    """

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description
