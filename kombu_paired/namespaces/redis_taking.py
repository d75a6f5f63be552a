"""How a consumer takes messages out of Redis and holds none that nobody else could bring back.

Where messages lie in the queues, one script takes one and notes it. Scripts cannot wait, so where none lies Redis is
asked to *move* the next one (``BLMOVE``) into a list of the consumer's own, from which the script takes it then. Such
a list is registered before, in the sorted set of takers, until its lease runs out; who is alive extends his lease
while he looks, and gives back what is in the lists of those who do not: to the front of their queue, in order.

A move that was asked for before may come to pass afterwards, held up by a network; so a list whose lease ran out is
looked into again a minute later, and half an hour later.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from uuid import uuid4

from redis import Redis
from redis.exceptions import NoScriptError

__all__ = (
    "GIVE_BACK",
    "LEASE",
    "MOST_LISTS",
    "RESOLVE",
    "TAKE",
    "UPKEEP",
    "Script",
    "Wait",
    "own_list",
    "taken_prefix",
)

#: Seconds for which a registration outlasts the last move that can be asked for under it.
LEASE = 8.0
#: Seconds between two looks for leases that ran out.
UPKEEP = 1.0
#: Lists that a channel waits on at most, one connection each (Kombu lets a channel have ten): others are looked at.
MOST_LISTS = 8


class Script:
    """A script that Redis may have forgotten, or have never seen."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode()).hexdigest()

    def run(self, client: Redis, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run it on a client that adds no prefix to keys."""
        try:
            return client.evalsha(self.sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return client.eval(self.text, len(keys), *keys, *arguments)


_GIVING_BACK = """
local function give_back(own, list)
    local kind = redis.call('TYPE', list).ok
    if kind ~= 'list' and kind ~= 'none' then return end
    while true do
        local item = redis.call('LPOP', own)
        if not item then return end
        redis.call('RPUSH', list, item)
    end
end
"""

#: Takes one message from the first of the lists KEYS[4..] that has one; answers with the place of that list among
#: them. Notes it in the hash KEYS[1] and the sorted set KEYS[2] under the tag ARGV[1], with the time ARGV[2], if there
#: is a queue (as JSON) in ARGV[6 + place]. The first ARGV[3] of the lists are the consumer's own: when nothing is found
#: they are registered in the sorted set KEYS[3] for ARGV[4] ms. Unless ARGV[5] is 0, what lies in lists whose lease ran
#: out is given back first; their names hold that of their queue's list, without the prefix ARGV[6], from byte ARGV[5].
#:
#: Here and below, the first write removes: a Redis whose memory is full lets such a script pass.
TAKE = Script(
    _GIVING_BACK
    + """
local function now()
    local clock = redis.call('TIME')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end
local again = {['0'] = 60 * 1000, ['1'] = 30 * 60 * 1000}
local start = tonumber(ARGV[5])
if start > 0 then
    for _, taker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now(), 'LIMIT', 0, 100)) do
        local looks, own = string.sub(taker, 1, 1), string.sub(taker, 2)
        redis.call('ZREM', KEYS[3], taker)
        give_back(own, ARGV[6] .. string.sub(own, start))
        if again[looks] then redis.call('ZADD', KEYS[3], now() + again[looks], (looks + 1) .. own) end
    end
end
for place = 1, #KEYS - 3 do
    local item = redis.call('RPOP', KEYS[3 + place])
    if item then
        local queue = ARGV[6 + place]
        if queue ~= '' then
            redis.call('HSET', KEYS[1], ARGV[1], '[' .. item .. ',"",' .. queue .. ']')
            redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
        end
        return {place, item}
    end
end
for place = 1, tonumber(ARGV[3]) do
    redis.call('ZADD', KEYS[3], now() + ARGV[4], '0' .. KEYS[3 + place])
end
return false
"""
)

#: Moves what is in KEYS[1], KEYS[3], … to the front of KEYS[2], KEYS[4], …, in order.
GIVE_BACK = Script(
    _GIVING_BACK
    + """
for each = 1, #KEYS, 2 do give_back(KEYS[each], KEYS[each + 1]) end
"""
)

#: Removes the note of the tag ARGV[1] from the hash KEYS[1] and the sorted set KEYS[2]. If it was there, ARGV[3], … are
#: put into the lists KEYS[3], … by the command ARGV[2].
RESOLVE = Script("""
for place = 3, #KEYS do redis.call('LLEN', KEYS[place]) end
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
    for place = 3, #KEYS do redis.call(ARGV[2], KEYS[place], ARGV[place]) end
end
""")


@lru_cache(1)
def _taker(pid: int) -> str:
    return uuid4().hex


def taken_prefix(unacked_key: str) -> str:
    """What the names of all own lists begin with, before 32 digits, a colon and the name of the list they are for."""
    return f"{unacked_key}_taken:"


def own_list(unacked_key: str, name: str) -> str:
    """This process' own list for messages from that list."""
    return f"{taken_prefix(unacked_key)}{_taker(os.getpid())}:{name}"


class Wait:
    """A connection on which Redis is asked for the next message of a list, or of some.

    Attributes:
        name: the list that it waits on; None for any number of them, whose messages are not kept in a list of our own.
        connection: once there is one.
        since: when it was asked (monotonic), while there is no answer.
        not_before: when it may be tried (monotonic).
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.connection: Any = None
        self.since: float | None = None
        self.not_before = 0.0
