"""The kinds of faults: what each does, where it can happen, and in what words the service would say it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kombu_paired.emulator.broker.errors import TRACKING, Condition, idle, lock_lost

__all__ = ("KINDS", "OPERATIONS", "OUTCOMES", "TOKEN_ANSWERS", "Kind")

OPERATIONS = ("connect", "token", "attach", "send", "receive", "settle", "request", "manage")

_ALL = frozenset(OPERATIONS)
_SEND = frozenset({"send"})
_MANAGE = frozenset({"manage"})
#: Whoever connects cannot be told anything yet.
_ANSWERED = _ALL - {"connect"}
#: A request over HTTP is on no link, and its connection ends without a condition.
_ON_A_LINK = _ANSWERED - {"manage"}

_MORE = f"To know more visit https://aka.ms/sbResourceMgrExceptions. {TRACKING}"
_BUSY = (
    "The request was terminated because the namespace emulator is being throttled. Error code : 50009. "
    f"Please wait 2 seconds and try again. {_MORE}"
)
_UNABLE = (
    "The service was unable to process the request; please retry the operation. For more information on exception "
    "types and proper exception handling, please refer to http://go.microsoft.com/fwlink/?LinkId=761101 "
    f"Reference:00000000-0000-0000-0000-000000000000, {TRACKING}"
)
_TOO_LATE = f"The operation did not complete within the allotted time. {TRACKING}"
_BAD_TOKEN = f"InvalidSignature: The token has an invalid signature. {TRACKING}"
_MISSING = f"The messaging entity 'sb://emulator/{{entity}}' could not be found. {_MORE}"


@dataclass(frozen=True)
class Kind:
    """What a kind of fault does: refuse with a condition, or something else when there is none.

    Attributes:
        operations: where it happens, unless it is said.
        ending: the condition that ends a link or a connection.
        description: in the words of the service; ``{entity}`` is whom it is about.
        possible: where it can happen.
        status: of the answer over HTTP.
    """

    operations: frozenset[str]
    condition: str | None = None
    status: int = 500
    description: str = ""
    possible: frozenset[str] = _ANSWERED
    ending: str | None = None


#: The outcomes of a send that neither store the message nor say why.
OUTCOMES = ("released", "modified")

#: What ``$cbs`` says with a status.
TOKEN_ANSWERS = {
    400: f"The request is malformed. {TRACKING}",
    401: _BAD_TOKEN,
    403: f"SubCode=40300. Forbidden. {_MORE}",
    404: _MISSING,
    408: _TOO_LATE,
    429: _BUSY,
    500: _UNABLE,
    503: _BUSY,
}

KINDS: dict[str, Kind] = {
    "server-busy": Kind(_SEND, Condition.SERVER_BUSY, 429, _BUSY),
    "timeout": Kind(_SEND, Condition.TIMEOUT, 504, _TOO_LATE),
    "disabled": Kind(
        frozenset({"attach", "send", "receive", "request"}),
        Condition.ENTITY_DISABLED,
        403,
        f"Messaging entity 'emulator:Queue:{{entity}}' is currently disabled. {_MORE}",
    ),
    "quota": Kind(
        _SEND,
        Condition.RESOURCE_LIMIT_EXCEEDED,
        403,
        f"The maximum entity size has been reached or exceeded for Queue: '{{entity}}'. Quota exceeded. {_MORE}",
    ),
    "unauthorized": Kind(
        frozenset({"attach", "request", "manage"}),
        Condition.UNAUTHORIZED_ACCESS,
        401,
        "Unauthorized access. 'Send,Listen' claim(s) are required to perform this operation. "
        f"Resource: 'sb://emulator/{{entity}}'. {TRACKING}",
    ),
    "not-found": Kind(frozenset({"attach"}), Condition.NOT_FOUND, 404, _MISSING),
    "internal-error": Kind(_SEND, Condition.INTERNAL_ERROR, 500, _UNABLE),
    "container-close": Kind(_SEND, Condition.CONTAINER_CLOSE, 503, f"The container is closing. {TRACKING}"),
    "operation-cancelled": Kind(_SEND, Condition.OPERATION_CANCELLED, 503, f"The operation was cancelled. {TRACKING}"),
    "size": Kind(_SEND, Condition.MESSAGE_SIZE_EXCEEDED, 413, f"The message is too large. {TRACKING}"),
    "lock-lost": Kind(
        frozenset({"settle"}),
        Condition.MESSAGE_LOCK_LOST,
        410,
        lock_lost("{entity}").description,
    ),
    "token": Kind(frozenset({"token", "manage"}), Condition.AUTH_FAILED, 401, _BAD_TOKEN),
    "conflict": Kind(
        _MANAGE,
        Condition.ENTITY_ALREADY_EXISTS,
        409,
        f"SubCode=40901. Another conflicting operation is in progress. {_MORE}",
        possible=_MANAGE,
    ),
    "released": Kind(_SEND, possible=_SEND),
    "modified": Kind(_SEND, possible=_SEND),
    "slow": Kind(_ALL - {"receive"}, possible=_ALL),
    "silent": Kind(_ALL, possible=_ALL),
    "reset": Kind(_SEND, possible=_ALL),
    "detach": Kind(
        _SEND, ending=Condition.DETACH_FORCED, description=idle("{entity}").description, possible=_ON_A_LINK
    ),
    "close": Kind(
        _SEND,
        ending=Condition.CONNECTION_FORCED,
        description="The connection was closed by container 'emulator' because it did not have any active links in "
        f"the past 300000 milliseconds. {TRACKING}",
        possible=_ON_A_LINK,
    ),
    "lost-acknowledgement": Kind(_SEND),
}
