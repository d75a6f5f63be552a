"""Links that send messages in the form that Kombu's Redis transport puts there."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import redis
from kombu.utils.encoding import bytes_to_str
from redis import exceptions

from kombu_paired.brokers.forms import prepare, publish
from kombu_paired.brokers.links import KombuSender, Link
from kombu_paired.brokers.redis.compat import close_at_once, is_deleted_unused, limit_replies, priority_list
from kombu_paired.brokers.redis.connections import timely_channel
from kombu_paired.brokers.redis.items import list_and_item, message_of_item
from kombu_paired.brokers.redis.kinds import kind_of, never_connected
from kombu_paired.brokers.redis.pipelines import Gathered, Once, refusal
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.message import BACKLOG_MARK, Message

__all__ = ("RedisLink", "RedisSender")

#: What the list has in it means nothing, and is one element at most.
BELL_SUFFIX = "/$Bell"


class RedisLink(Link):
    """A connection to Redis whose sockets never wait longer than they should."""

    _bound: float = 0.0

    def connect_options(self, patience: float) -> dict[str, Any]:
        self._bound = 0.0
        return {"socket_connect_timeout": patience, "socket_timeout": patience}

    def make_timely(self, transport: Any, until: Deadline) -> None:
        transport.Channel = timely_channel(transport.Channel, until)

    def raw(self) -> redis.Redis:
        """A client on the channel's pool, without Kombu's key prefix."""
        return redis.Redis(connection_pool=self.channel.pool)

    def key(self, name: str) -> str:
        return f"{self.channel.global_keyprefix}{name}"

    def lists(self, queue: str) -> list[str]:
        """The lists that make a queue, one per priority step, in the order in which Kombu polls them."""
        return [self.key(priority_list(self.channel, queue, step)) for step in self.channel.priority_steps]

    def bell(self, queue: str) -> str:
        """The list by which who puts a message into a backlog queue wakes one receiver that waits."""
        return self.key(queue + BELL_SUFFIX)

    def bound(self, timeout: float) -> None:
        """Let every reply take at most ``timeout`` seconds."""
        if abs(timeout - self._bound) < 0.1:
            return
        pool = self.channel.pool
        connection = pool.get_connection()
        try:
            limit_replies(connection, timeout)
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

    def look_into(self, name: str, limit: int, timeout: float) -> list[Message]:
        found: list[Message] = []
        with self.within(timeout):
            for each in self.lists(name):
                items = self.raw().lrange(each, len(found) - limit, -1) if len(found) < limit else []
                found += [message_of_item(item) for item in reversed(items)]
        return found

    def read_notices(self, place: str, create: bool, timeout: float) -> dict[str, float]:
        with self.within(timeout):
            found = self.raw().hgetall(self.key(place))
        return {bytes_to_str(name): float(at) for name, at in found.items()}

    def put_notice(self, place: str, name: str, at: float, timeout: float) -> None:
        with self.within(timeout):
            self.raw().hsetnx(self.key(place), name, str(at))

    def take_notice(self, place: str, name: str, timeout: float) -> None:
        with self.within(timeout):
            self.raw().hdel(self.key(place), name)

    def registered(self, register: str, timeout: float) -> list[str]:
        with self.within(timeout):
            return sorted(bytes_to_str(each) for each in self.raw().smembers(self.key(register)))

    def give_back_abandoned(self, register: str, timeout: float) -> None:
        """When all workers are at home nobody consumes there, who would do it."""
        client = self.namespace.consumer_client(None, timeout)
        client.transport_options.update(self.namespace.stand_in_options(register.removesuffix("s") + "/"))
        transport = client.transport
        connection = transport.establish_connection()
        try:
            transport.create_channel(connection).give_back_abandoned()
        finally:
            transport.close_connection(connection)

    def register(self, register: str, name: str, timeout: float) -> None:
        with self.within(timeout):
            self.raw().sadd(self.key(register), name)

    def unregister(self, register: str, name: str, timeout: float) -> None:
        """It stays: a list comes back with its next message, and whoever sends that does not look here again."""

    def probe(self, entity: Entity | None, timeout: float) -> None:
        # LPUSHX on a list that is not there stores nothing, and fails like LPUSH when memory is full, the server
        # is a replica or is loading.
        with self.within(timeout):
            self.raw().lpushx(self.key("kombu-paired.ping"), "")
            if entity is not None and not entity.exchange:
                self.raw().llen(self.key(entity.routing_key))  # an error if the key holds something else than a list

    def close_at_once(self, client: Any, connection: Any, channel: Any) -> None:
        if channel is not None:
            close_at_once(channel)


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
            if _is_for_backlog(message):
                self._put_and_ring(channel, message)
            elif message.once is not None:
                self._put_once(channel, message)
            else:
                publish(channel, message)
        except Exception as exc:
            raise self._failed(exc) from exc
        finally:
            until.at = math.inf

    def _put_and_ring(self, channel: Any, message: Message) -> None:
        """In one go. A bell that is not heard costs the message a moment, and is no failure."""
        with closing(channel.create_publish_batch(max_size=sys.maxsize)) as batch:
            batch.publish(prepare(channel, message), exchange="", routing_key=message.routing_key)
            _ring(batch.pipeline, [message])
            is_stored, *_ = batch.pipeline.execute(raise_on_error=False)
        if isinstance(is_stored, Exception):
            raise is_stored

    def _put_once(self, channel: Any, message: Message) -> None:
        with closing(channel.create_publish_batch(max_size=sys.maxsize)) as batch:
            self._publish(batch, message)
            answers = batch.pipeline.execute(raise_on_error=False)
        refused = refusal(answers)
        if refused is not None:
            self._put_plainly(channel, message, refused)

    def _put_plainly(self, channel: Any, message: Message, refused: Exception) -> None:
        """Where scripts are forbidden, a message is put there as often as it is sent."""
        kind = kind_of(refused)
        if message.once is None or kind is None or kind.counts:
            raise refused
        publish(channel, message)

    def _publish(self, batch: Any, message: Message) -> None:
        """Put a message into the pipeline of a batch."""
        pipeline = batch.pipeline
        once = message.once
        if once is None and not message.exchange and not is_deleted_unused(batch.channel, message.routing_key):
            # The way of nearly all, without that through Kombu: a sixth of what putting a message there costs.
            pipeline.lpush(*list_and_item(batch.channel, message))
            return
        if once is not None:
            batch.pipeline = Once(pipeline, self.link.key, once)
        try:
            prepared = prepare(batch.channel, message)
            batch.publish(prepared, exchange=message.exchange, routing_key=message.routing_key)
        finally:
            batch.pipeline = pipeline

    def send_batch(self, messages: Sequence[Message], timeout: float) -> list[NamespaceFailure | None]:
        return self.send_batch_while(messages, timeout, lambda: None)

    def send_batch_while(
        self, messages: Sequence[Message], timeout: float, meanwhile: Callable[[], object]
    ) -> list[NamespaceFailure | None]:
        outcomes: list[NamespaceFailure | None] = []
        refusals: list[Exception | None] = []
        is_sent = False
        deadline = Deadline(timeout)
        meanwhile()  # redis-py sends and waits in one: what another Redis is asked before, it does beside this one
        try:
            channel = self.link.open(deadline.left)
            publishing = closing(channel.create_publish_batch(max_size=sys.maxsize))
            with self.link.within(deadline.left), publishing as batch:
                pipeline, gathered = batch.pipeline, Gathered(batch.pipeline)
                batch.pipeline = gathered
                for message in messages:
                    gathered.next_message()
                    outcomes.append(self._add(batch, message))
                gathered.add_up()
                _ring(pipeline, messages)
                is_sent = True
                refusals = gathered.refusals(pipeline.execute(raise_on_error=False))
        except Exception as exc:
            broken = self._failed(exc)
            broken = broken if is_sent else broken.of_nothing_stored()
            outcomes += [None] * (len(messages) - len(outcomes))
            return [outcome or broken for outcome in outcomes]
        for index, refused in enumerate(refusals):
            if refused is not None:
                outcomes[index] = self._refused(channel, messages[index], refused, deadline.left)
        return outcomes

    def _refused(self, channel: Any, message: Message, refused: Exception, seconds: float) -> NamespaceFailure | None:
        try:
            with self.link.within(seconds):
                self._put_plainly(channel, message, refused)
        except Exception as exc:
            return self._failed(exc)
        return None

    def _add(self, batch: Any, message: Message) -> NamespaceFailure | None:
        """Put a message into the pipeline of a batch; returns the failure if it is the message's own."""
        try:
            self.require_route(message)
            self._publish(batch, message)
        except Exception as exc:
            failure = self._failed(exc)
            if failure.kind.counts:
                raise failure from exc
            return failure
        return None

    def _failed(self, exc: Exception) -> NamespaceFailure:
        if isinstance(exc, NamespaceFailure):
            return exc
        unsent = isinstance(exc, exceptions.ResponseError) or never_connected(exc)
        failure = self.namespace.failure(exc, maybe_stored=not unsent, url=self.link.url)
        if failure.kind.counts:
            self.link.blame(failure)
            self.drop()
        return failure


def _is_for_backlog(message: Message) -> bool:
    return not message.exchange and BACKLOG_MARK in message.routing_key


def _ring(pipeline: Any, messages: Sequence[Message]) -> None:
    """Wake a receiver of each backlog queue that gets one of these; a bell that nobody hears keeps ringing."""
    for queue in {message.routing_key for message in messages if _is_for_backlog(message)}:
        pipeline.delete(queue + BELL_SUFFIX)
        pipeline.lpush(queue + BELL_SUFFIX, "")
