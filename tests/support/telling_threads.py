"""For a worker (``-I tests.support.telling_threads``): ``inspect`` learns to ask which threads of ours it has."""

from __future__ import annotations

from typing import Any

from celery.worker.control import inspect_command

from tests.support.own_sockets import own_threads as threads


@inspect_command()
def own_threads(state: Any) -> list[str]:
    return threads()
