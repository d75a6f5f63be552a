"""The SDK of Service Bus naps: half a second for each link it opens, up to a second for each receiver it closes.

What is tested here is not how long it sleeps, so the naps are a few milliseconds long in tests, and in the workers
that they start. Where the SDK itself is the subject, or how long something takes, ``@pytest.mark.real_naps`` leaves
them as they are.
"""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import Any

#: The SDK's naps, and ours. It polls a link's state with the first two; with the last it watches, once a second,
#: whether a connection is to be kept alive, and closing waits for that.
NAPS = {0.05: 0.002, 0.1: 0.002, 1: 0.02}

_MODULES = ("_servicebus_sender", "_servicebus_receiver", "_pyamqp.client", "_pyamqp.session", "_pyamqp._connection")
_VARIABLE = "TESTS_SHORT_NAPS"


class _Time:
    """Stands where the SDK has the module of that name."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        time.sleep(NAPS.get(seconds, seconds) if os.environ.get(_VARIABLE) else seconds)


def shorten() -> None:
    """From now on the variable in the environment says how the SDK sleeps in this process."""
    for name in _MODULES:
        import_module(f"azure.servicebus.{name}").time = _Time()  # type: ignore[attr-defined]


def are_short(yes: bool) -> None:
    """For this process, and for those that it starts from now on."""
    os.environ[_VARIABLE] = "1" if yes else ""
