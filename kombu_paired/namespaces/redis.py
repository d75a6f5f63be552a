"""Redis: messages in the form that Kombu's Redis transport puts there, received under lock by scripts of our own.

Kombu takes a message out with ``BRPOP`` and notes it as unacknowledged in a second step: a process killed in between
loses it, and a message that is not JSON is lost at once. The backlog may do neither, so a receiver here takes messages
and locks them in one script. Locks last a minute, as on Service Bus; what is locked longer goes back to its queue.
"""

from __future__ import annotations

import base64
import math
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import redis
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import MAYBE_DUPLICATE, Message, marked_maybe_duplicate
from kombu_paired.namespaces.base import DEAD_LETTER_SUFFIX, DeadLetter, Received
from kombu_paired.namespaces.letting_go import letting_go
from kombu_paired.namespaces.links import KombuSender, Link, LinkReceiver, as_dead_letter, prepare, publish
from kombu_paired.namespaces.sockets import TimelySocket, look_up

if TYPE_CHECKING:
    from kombu_paired.namespaces.kombu import KombuNamespace

__all__ = ("RedisLink", "RedisReceiver", "RedisSender", "concerns_all", "hurry", "kind_of")

#: Seconds a received message stays locked: LockDuration of the documents.
LOCK_SECONDS = 60
#: Seconds between two looks at an empty queue.
PAUSE = 1.0
#: Seconds that a polite goodbye may take.
GOODBYE = 0.5

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

#: Takes up to ARGV[1] messages from the priority lists KEYS[3..], and locks each under a token that begins with
#: ARGV[3]. Before that the tokens ARGV[4..] are settled, and what was locked for more than ARGV[2] ms goes back to the
#: front, marked, since who held it may have delivered it. Each step begins with what removes, as in the script below:
#: a Redis whose memory is full refuses a script whose first write may need some, and stops none that has written. What
#: would fail with an error fails before that.
_RECEIVE = """
local function marked(item)
    local _, opening = string.find(item, '"headers": {', 1, true)
    if not opening or string.find(item, '"MARK"', 1, true) then return item end
    local rest = string.sub(item, opening + 1)
    return string.sub(item, 1, opening) .. '"MARK": "true"' .. (string.sub(rest, 1, 1) == '}' and '' or ', ') .. rest
end
redis.call('LLEN', KEYS[3])
for each = 4, #ARGV do
    redis.call('ZREM', KEYS[1], ARGV[each])
    redis.call('HDEL', KEYS[2], ARGV[each])
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for _, token in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2], 'LIMIT', 0, 1000)) do
    local item = redis.call('HGET', KEYS[2], token)
    redis.call('ZREM', KEYS[1], token)
    redis.call('HDEL', KEYS[2], token)
    if item then redis.call('RPUSH', KEYS[3], marked(item)) end
end
local taken = {}
local limit = tonumber(ARGV[1])
for list = 3, #KEYS do
    while #taken < 2 * limit do
        local item = redis.call('RPOP', KEYS[list])
        if not item then break end
        local token = ARGV[3] .. ':' .. (#taken / 2)
        redis.call('HSET', KEYS[2], token, item)
        redis.call('ZADD', KEYS[1], now, token)
        taken[#taken + 1] = token
        taken[#taken + 1] = item
    end
end
return taken
""".replace("MARK", MAYBE_DUPLICATE)

#: Removes the locks ARGV[2], ARGV[4], …; what is still held under one goes into the list KEYS[3] by the command
#: ARGV[1], if there is any, in the form that follows the token, or as it is where that is empty.
_SETTLE = """
local put = ARGV[1]
if put ~= '' then redis.call('LLEN', KEYS[3]) end
for each = 2, #ARGV, 2 do
    local item = redis.call('HGET', KEYS[2], ARGV[each])
    redis.call('ZREM', KEYS[1], ARGV[each])
    redis.call('HDEL', KEYS[2], ARGV[each])
    if item and put ~= '' then
        redis.call(put, KEYS[3], ARGV[each + 1] ~= '' and ARGV[each + 1] or item)
    end
end
"""


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


#: redis-py would try a command, and the ping before it, three times more.
_ONCE = Retry(NoBackoff(), 0)


def hurry(connection: Any, seconds: float) -> None:
    """Let no answer take longer than this, on open sockets and on those still to come."""
    for channel in list(connection.channels):
        channel.socket_timeout = channel.socket_connect_timeout = seconds  # of the pool it will close with
        cached = channel.__dict__
        for name in ("client", "subclient"):
            _hurry_one(getattr(cached.get(name), "connection", None), seconds)
        for pool in filter(None, (cached.get("_pool"), cached.get("_async_pool"))):
            pool.connection_kwargs.update(
                socket_timeout=seconds, socket_connect_timeout=seconds, retry=_ONCE, health_check_interval=0
            )
            for idle in list(pool._available_connections):
                _hurry_one(idle, seconds)


def _hurry_one(connection: Any, seconds: float) -> None:
    if connection is not None:
        connection.retry, connection.health_check_interval = _ONCE, 0
        with letting_go("a consumer's connection"):  # its socket may be closed
            _limit(connection, seconds)


def _limit(connection: Any, seconds: float) -> None:
    """Let replies on an open connection take at most so long; redis-py's parsers keep the limit for themselves too."""
    if connection is None:
        return
    connection.socket_timeout = connection.socket_connect_timeout = seconds
    if connection._sock is not None:
        connection._sock.settimeout(seconds)
    parser = connection._parser
    buffer = getattr(parser, "_buffer", None)
    if buffer is not None and hasattr(buffer, "socket_timeout"):
        buffer.socket_timeout = seconds
    if hasattr(parser, "_socket_timeout"):  # hiredis
        parser._socket_timeout = seconds


def _reply(exc: BaseException) -> str:
    """What the server said, without the words in which redis-py says which command of a pipeline failed."""
    text = str(exc)
    return text.rpartition(" of pipeline caused error: ")[2] if text.startswith("Command # ") else text


class _Timely:
    """What is different in a connection whose socket keeps to a deadline."""

    _sock: TimelySocket | None
    _parser: Any
    host: str
    socket_timeout: float
    socket_connect_timeout: float

    def __init__(self, *args: Any, until: Deadline, **kwargs: Any) -> None:
        self._until = until
        super().__init__(*args, **kwargs)
        self.driver_info = self.lib_name = self.lib_version = None  # telling Redis is worth no round trip

    def _connect(self) -> Any:
        patience = self.socket_connect_timeout
        if hasattr(self, "port"):  # not a socket of this machine
            self.socket_connect_timeout = min(self._until.left, patience or math.inf)
            look_up(self.host, self.socket_connect_timeout)
        try:
            return TimelySocket(super()._connect(), self._until)  # type: ignore[misc]
        finally:
            self.socket_connect_timeout = patience

    def can_read(self, timeout: float = 0) -> bool:
        """Asked before each command; redis-py switches its socket to not waiting and back for it."""
        buffer = getattr(self._parser, "_buffer", None)
        unread = getattr(buffer, "unread_bytes", None)  # hiredis has none, and no need
        if timeout == 0 and self._sock is not None and unread is not None and not unread() and self._sock.is_quiet():
            return False
        return bool(super().can_read(timeout))  # type: ignore[misc]

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        if self._until.left < math.inf:
            sock.settimeout(self._until.left)  # of the handshake
        wrapped = super()._wrap_socket_with_ssl(sock)  # type: ignore[misc]
        wrapped.settimeout(self.socket_timeout)
        return wrapped


class OneClient:
    """What a channel has one of where Kombu makes one for each command: building its table of answers takes a fifth of
    a send, and of an acknowledgement. Clients that wait for messages keep a connection of their own, and stay apart.
    """

    _only_client: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[misc]
        if self._only_client is None or self._only_client.connection_pool is not self.pool:  # type: ignore[attr-defined]
            self._only_client = super()._create_client()  # type: ignore[misc]
        return self._only_client


def _timely_channel(kind: Any, until: Deadline) -> Any:
    """Kombu's channel on connections that keep to a deadline; one, where Kombu would have one more for consuming."""

    class Channel(OneClient, kind):  # type: ignore[misc]
        def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
            found: dict[str, Any] = super()._connparams(asynchronous)
            found["connection_class"] = type("TimelyConnection", (_Timely, found["connection_class"]), {})
            return {**found, "until": until, "protocol": 2}  # the third begins with a round trip, and adds nothing here

        @property
        def async_pool(self) -> Any:
            return self.pool

    return Channel


class RedisLink(Link):
    """A connection to Redis whose sockets never wait longer than they should."""

    _bound: float = 0.0

    def connect_options(self, patience: float) -> dict[str, Any]:
        self._bound = 0.0
        return {"socket_connect_timeout": patience, "socket_timeout": patience}

    def make_timely(self, transport: Any, until: Deadline) -> None:
        transport.Channel = _timely_channel(transport.Channel, until)

    def raw(self) -> redis.Redis:
        """A client on the channel's pool, without Kombu's key prefix."""
        return redis.Redis(connection_pool=self.channel.pool)

    def key(self, name: str) -> str:
        return f"{self.channel.global_keyprefix}{name}"

    def lists(self, queue: str) -> list[str]:
        """The lists that make a queue, one per priority step, in the order in which Kombu polls them."""
        return [self.key(self.channel._q_for_pri(queue, step)) for step in self.channel.priority_steps]

    def bound(self, timeout: float) -> None:
        """Let every reply take at most ``timeout`` seconds."""
        if abs(timeout - self._bound) < 0.1:
            return
        pool = self.channel.pool
        connection = pool.get_connection()
        try:
            _limit(connection, timeout)
        finally:
            pool.release(connection)
        self._bound = timeout

    def count(self, name: str, timeout: float) -> int | None:
        with self.within(timeout):
            client = self.raw()
            waiting = sum(int(client.llen(each)) for each in self.lists(name))
            return waiting + int(client.zcard(self.key(name + "/$Locks")))

    def peek(self, name: str, timeout: float) -> Message | None:
        with self.within(timeout):
            for each in self.lists(name):
                item = self.raw().lindex(each, -1)
                if item is not None:
                    return message_of_item(item)
        return None

    def probe(self, entity: Entity | None, timeout: float) -> None:
        # LPUSHX on a list that is not there stores nothing, and fails like LPUSH when memory is full, the server
        # is a replica or is loading.
        with self.within(timeout):
            self.raw().lpushx(self.key("kombu-paired.ping"), "")
            if entity is not None and not entity.exchange:
                self.raw().llen(self.key(entity.routing_key))  # an error if the key holds something else than a list

    def close_at_once(self, client: Any, connection: Any, channel: Any) -> None:
        if channel is not None:
            channel._closing = True
            channel._disconnect_pools()


class RedisSender(KombuSender):
    """``LPUSH`` through Kombu's channel; batches in one pipeline."""

    link: RedisLink

    def send(self, message: Message, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        channel = self.link.channel
        if channel is None:
            channel = self.link.open(timeout)
            timeout = deadline - time.monotonic()
        until = self.link.until
        try:
            until.at = deadline
            self.link.bound(timeout)
            publish(channel, message)
        except Exception as exc:
            raise self._failed(exc) from exc
        finally:
            until.at = math.inf

    def send_batch(self, messages: Sequence[Message], timeout: float) -> list[NamespaceFailure | None]:
        outcomes: list[NamespaceFailure | None] = []
        commands = [0]  # of the pipeline, after each message
        answers: list[Any] = []
        is_sent = False
        deadline = Deadline(timeout)
        try:
            channel = self.link.open(timeout)
            publishing = closing(channel.create_publish_batch(max_size=sys.maxsize))
            with self.link.within(deadline.left), publishing as batch:
                for message in messages:
                    outcomes.append(self._add(batch, message))
                    commands.append(len(batch.pipeline))
                is_sent = True
                answers = batch.pipeline.execute(raise_on_error=False)
        except Exception as exc:
            broken = self._failed(exc)
            broken = broken if is_sent else broken.of_nothing_stored()
            outcomes += [None] * (len(messages) - len(outcomes))
            return [outcome or broken for outcome in outcomes]
        for index, (first, end) in enumerate(pairwise(commands)):
            refused = next((each for each in answers[first:end] if isinstance(each, Exception)), None)
            if refused is not None:
                outcomes[index] = self._failed(refused)
        return outcomes

    def _add(self, batch: Any, message: Message) -> NamespaceFailure | None:
        """Put a message into the pipeline of a batch; returns the failure if it is the message's own."""
        try:
            self.require_route(message)
            prepared = prepare(batch.channel, message)
            batch.publish(prepared, exchange=message.exchange, routing_key=message.routing_key)
        except Exception as exc:
            failure = self._failed(exc)
            if failure.kind.counts:
                raise failure from exc
            return failure
        return None

    def _failed(self, exc: Exception) -> NamespaceFailure:
        if isinstance(exc, NamespaceFailure):
            return exc
        unsent = isinstance(exc, exceptions.ResponseError) or _never_connected(exc)
        failure = self.namespace.failure(exc, maybe_stored=not unsent, url=self.link.url)
        if failure.kind.counts:
            self.link.blame(failure)
            self.drop()
        return failure


class RedisReceiver(LinkReceiver):
    """Takes messages from one backlog queue under lock."""

    def __init__(self, namespace: KombuNamespace, queue: str, timeout: float) -> None:
        self.namespace = namespace
        self.queue = queue
        self.link = RedisLink(namespace)
        self._holder = uuid.uuid4().hex
        self._asked = 0  # times
        self._interrupted = threading.Event()
        self._timeout = timeout
        self._held: dict[str, bytes] = {}  # token -> item of what is not settled, oldest first
        self._owed = _owed.setdefault(namespace, {}).setdefault(queue, [])
        self.link.open(timeout)
        with self._failing():
            self.link.bound(timeout)
            self._lists = self.link.lists(queue)
            self._locks = [self.link.key(queue + "/$Locks"), self.link.key(queue + "/$Locked")]
            client = self.link.raw()
            self._receive, self._settle = (client.register_script(each) for each in (_RECEIVE, _SETTLE))

    def receive(self, limit: int, timeout: float) -> list[Received]:
        deadline = time.monotonic() + timeout
        with self._failing():
            while not self._interrupted.is_set():
                taken = self._take(limit)
                if taken:
                    return taken
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._interrupted.wait(min(PAUSE, left))
        return []

    def _take(self, limit: int) -> list[Received]:
        self._asked += 1
        owed = list(self._owed)
        tokens = f"{self._holder}:{self._asked}"
        answer: Any = self._receive([*self._locks, *self._lists], [limit, int(LOCK_SECONDS * 1000), tokens, *owed])
        del self._owed[: len(owed)]
        pairs = [(bytes_to_str(token), item) for token, item in zip(answer[::2], answer[1::2], strict=True)]
        self._held.update(pairs)
        return [Received(message_of_item(item), token) for token, item in pairs]

    def complete(self, received: Sequence[Received]) -> None:
        tokens = [each.token for each in received]
        try:
            self._put("", self._lists[0], [(token, "") for token in tokens])
        except NamespaceFailure:
            self._owed += tokens
            raise

    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        def form(message: Message) -> str:
            return item_of_message(self.link.channel, marked_maybe_duplicate(message)) if maybe_duplicate else ""

        self._put("LPUSH", self._lists[0], [(each.token, form(each.message)) for each in received])

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        corpses = [
            (letter.received.token, item_of_message(self.link.channel, as_dead_letter(letter, self.queue)))
            for letter in letters
        ]
        self._put("LPUSH", self.link.key(self.queue + DEAD_LETTER_SUFFIX), corpses)

    def _put(self, command: str, target: str, items: Sequence[tuple[str, str]]) -> None:
        """Unlock messages, to that list if there is a command; by token, with another form or an empty text."""
        if not items:
            return
        with self._failing():
            self._settle([*self._locks, target], [command, *chain.from_iterable(items)])
        for token, _ in items:
            self._held.pop(token, None)

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        if self._held and self.link.is_open:
            with suppress(NamespaceFailure), self._failing(), self.link.within(GOODBYE):  # else its locks run out
                self._put("RPUSH", self._lists[0], [(token, "") for token in reversed(self._held)])
        self.link.close()


#: Of each backlog queue, the tokens of messages that were delivered when Redis could not be told: a replica, unable to
#: save, silent. Whoever receives next in this process tells it first, so that they do not come a second time.
_owed: WeakKeyDictionary[KombuNamespace, dict[str, list[str]]] = WeakKeyDictionary()


def message_of_item(item: bytes) -> Message:
    """The message in a list item that Kombu's Redis transport wrote; anything else is a body without headers."""
    try:
        raw = loads(bytes_to_str(item))
        properties = dict(raw["properties"])
        body = raw["body"]
        if properties.pop("body_encoding", None) == "base64":
            body = base64.b64decode(body)
        for name in ("delivery_tag", "delivery_info"):
            properties.pop(name, None)
        return Message(
            body=body,
            priority=properties.pop("priority", None),
            content_type=raw.get("content-type"),
            content_encoding=raw.get("content-encoding"),
            headers=dict(raw.get("headers") or {}),
            properties=properties,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return Message(body=item, content_type="application/octet-stream", content_encoding="binary")


def item_of_message(channel: Any, message: Message) -> str:
    """The list item for a message, as Kombu's Redis transport writes it."""
    prepared = prepare(channel, message)
    channel._inplace_augment_message(prepared, message.exchange, message.routing_key)
    return str(dumps(prepared))


def _never_connected(exc: BaseException) -> bool:
    """Whether redis-py failed while it connected, before it could have sent anything."""
    cause = exc.__context__
    refusals = (ConnectionRefusedError, BrokenPipeError)
    return isinstance(cause, refusals) or (isinstance(cause, OSError) and "connecting to" in str(exc))
