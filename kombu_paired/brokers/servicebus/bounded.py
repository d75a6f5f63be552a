"""Calls of the SDK, each bounded in time.

The SDK waits for ever on a server that accepts a connection and stays silent, whatever timeout it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from azure.servicebus.exceptions import OperationTimeoutError

from kombu_paired.bounded import GivenUp
from kombu_paired.bounded import bounded as bounded_step

__all__ = ("bounded",)

Answer = TypeVar("Answer")


def bounded(call: Callable[[], Answer], timeout: float, what: str, give_up: Callable[[], None] | None = None) -> Answer:
    """Run something that may never return, and wait so many seconds for it.

    Raises:
        OperationTimeoutError: it has not returned; ``give_up`` was called.
    """
    try:
        return bounded_step(call, timeout, what, give_up=give_up)
    except GivenUp as exc:
        raise OperationTimeoutError(message=f"{what}: the service did not answer within {timeout:g} s") from exc
