"""What Redis does in one step: scripts that put, take, note, lock, settle and give back. Each file says what it does.

A Redis may have forgotten a script, or have never seen it, so the first answer may be that it asks for the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError

__all__ = ("GIVE_BACK", "PUT_ONCE", "RECEIVE", "RESOLVE", "SETTLE", "TAKE", "Script")


class Script:
    """A script of this folder, made of one file or more.

    Attributes:
        text: what Redis runs.
        sha: what it knows the text by.
    """

    def __init__(self, *names: str) -> None:
        self.text = "\n".join(files(__name__).joinpath(f"{name}.lua").read_text("utf-8") for name in names)
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()

    def run(self, client: Redis, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run it on a client that adds no prefix to keys."""
        try:
            return client.evalsha(self.sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return client.eval(self.text, len(keys), *keys, *arguments)


RECEIVE = Script("looking", "receive")
SETTLE = Script("looking", "settle")
TAKE = Script("giving_back", "take")
GIVE_BACK = Script("giving_back", "give_back")
RESOLVE = Script("resolve")
PUT_ONCE = Script("put_once")
