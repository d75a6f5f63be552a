"""Which kind of failure an exception of redis-py is."""

from __future__ import annotations

from redis import exceptions

from kombu_paired.failures import FailureKind

__all__ = ("concerns_all", "kind_of", "never_connected")

#: First words of Redis' error replies (its documentation of clients, replication and persistence).
_WORDS = {
    "OOM": FailureKind.FAULT,
    "READONLY": FailureKind.FAULT,
    "MISCONF": FailureKind.FAULT,
    "NOREPLICAS": FailureKind.FAULT,
    "LOADING": FailureKind.FAULT,
    "MASTERDOWN": FailureKind.FAULT,
    "CLUSTERDOWN": FailureKind.FAULT,
    "BUSY": FailureKind.FAULT,
    "UNBLOCKED": FailureKind.FAULT,  # it became a replica, and lets go of who waits
    "NOAUTH": FailureKind.UNAUTHORIZED,
    "WRONGPASS": FailureKind.UNAUTHORIZED,
    "NOPERM": FailureKind.UNAUTHORIZED,
    "WRONGTYPE": FailureKind.FAULT,
}

#: redis-py has classes for some error replies, and takes the first word off those.
_FAULTS = (
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.BusyLoadingError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.TryAgainError,
)


def kind_of(exc: BaseException) -> FailureKind | None:
    """The kind of an exception that redis-py raises; None for others."""
    if not isinstance(exc, exceptions.RedisError):
        return None
    if isinstance(exc, exceptions.TimeoutError):
        return FailureKind.TIMEOUT
    word = _reply(exc).split(" ", 1)[0]
    if word in _WORDS:
        return _WORDS[word]
    if isinstance(exc, _FAULTS):
        return FailureKind.FAULT
    if isinstance(exc, exceptions.AuthenticationError | exceptions.AuthorizationError | exceptions.NoPermissionError):
        return FailureKind.UNAUTHORIZED
    if isinstance(exc, exceptions.ConnectionError):
        return FailureKind.UNREACHABLE
    if isinstance(exc, exceptions.DataError | exceptions.ResponseError):
        return FailureKind.REJECTED
    return FailureKind.FAULT


def concerns_all(exc: BaseException) -> bool:
    """Whether an exception tells of the whole server: full, loading, a replica, or unable to save."""
    return kind_of(exc) is FailureKind.FAULT and not _reply(exc).startswith("WRONGTYPE")


def never_connected(exc: BaseException) -> bool:
    """Whether redis-py failed while it connected, before it could have sent anything."""
    cause = exc.__context__
    refusals = (ConnectionRefusedError, BrokenPipeError)
    return isinstance(cause, refusals) or (isinstance(cause, OSError) and "connecting to" in str(exc))


def _reply(exc: BaseException) -> str:
    """What the server said, without the words in which redis-py says which command of a pipeline failed."""
    text = str(exc)
    return text.rpartition(" of pipeline caused error: ")[2] if text.startswith("Command # ") else text
