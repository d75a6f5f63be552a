"""What tests must know of each kind of broker: its settings, and what is really in it, looked at past the transport.

A test says ``primary.depth("orders")``, ``secondary.spoil(name)``; what that means on which broker is here alone.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import quote

import redis
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from kombu import Producer, Queue
from kombu.serialization import loads

from kombu_paired.brokers.drivers import DRIVERS
from kombu_paired.brokers.kombu import new_connection
from kombu_paired.brokers.servicebus import transport, wire
from kombu_paired.brokers.servicebus.address import Address
from kombu_paired.brokers.servicebus.clients import Clients
from kombu_paired.brokers.servicebus.entities import BACKLOG_PROPERTIES
from kombu_paired.brokers.servicebus.settings import ServiceBusSettings
from kombu_paired.message import BACKLOG_MARK
from kombu_paired.testing import Kind, LocalRabbitMQ, LocalRedis, LocalServiceBus, local_broker
from tests.support.nodes import LocalTestBroker

DEAD_LETTERS = "/$DeadLetterQueue"


class BrokerNode(LocalTestBroker):
    """A broker that can be made to suffer, and looked into."""

    kind_of_broker: ClassVar[Kind]
    #: Who ``url`` says one is.
    user: ClassVar[str]
    #: Transport options of a primary: what its worker held when it died comes back after seconds.
    gives_back_soon: ClassVar[Mapping[str, Any]] = {}
    #: Whether a queue that nobody declared is missing, and not simply empty.
    misses_queues: ClassVar[bool] = True
    #: A password that a URL has to quote.
    odd_password: ClassVar[str] = "anders: /@"
    #: Celery settings of a worker that does without a pairing.
    plain_conf: ClassVar[Mapping[str, Any]] = {}

    # -- looking ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def depths(self) -> dict[str, int]:
        """How many messages are in each queue, those that somebody holds included, as the broker itself says."""

    def depth(self, queue: str) -> int | None:
        """How many are in this one; None if there is no such queue."""
        return self.depths().get(queue, None if self.misses_queues else 0)

    def backlog(self) -> int:
        """How many wait in all backlog queues; dead letters are not among them."""
        return sum(size for name, size in self.depths().items() if re.search(rf"{BACKLOG_MARK}\d+$", name))

    def dead_letters(self) -> int:
        return sum(size for name, size in self.depths().items() if name.endswith(DEAD_LETTERS))

    # -- taking and putting -----------------------------------------------------------------------------------------

    @contextmanager
    def plain(self) -> Iterator[Any]:
        """A channel of the broker's own Kombu transport."""
        with new_connection(self.url) as connection, connection.channel() as channel:
            yield channel

    def take_all(self, *queues: str) -> list[Any]:
        """Drain queues; the bodies."""
        with self.plain() as channel:
            return [message.payload for queue in queues for message in _drain(channel, queue)]

    def take_dead_letters(self, queue: str) -> Counter[str]:
        """Drain the dead letters of a queue; how often each reason. Each has a description."""
        reasons: Counter[str] = Counter()
        with self.plain() as channel:
            for message in _drain(channel, queue + DEAD_LETTERS):
                reasons[message.headers["DeadLetterReason"]] += 1
                assert message.headers["DeadLetterErrorDescription"]
        return reasons

    def put(self, queue: str, *messages: tuple[str, Mapping[str, Any]]) -> None:
        """Messages that no pairing has sent: bodies and headers."""
        with self.plain() as channel:
            for body, headers in messages:
                Producer(channel).publish(body, routing_key=queue, headers=dict(headers))

    def put_garbage(self, queue: str) -> int:
        """What no Kombu client can have sent, where the broker lets one; how many that are."""
        return 0

    def shorten_locks(self, queues: Iterable[str]) -> str:
        """What a vanished syphon held of these backlog queues is to be free again after seconds, not a minute.

        Returns a program that the syphon's process has to run for it.
        """
        return ""

    # -- harm -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def spoil(self, queue: str) -> Callable[[], None]:
        """Let every message to this queue fail. The answer makes it whole, with all that was in it."""

    def set_password(self, password: str) -> None:
        self.broker.set_password(self.user, password)


def _drain(channel: Any, queue: str) -> Iterator[Any]:
    while (message := Queue(queue)(channel).get(no_ack=True)) is not None:
        yield message


class RedisNode(BrokerNode):
    broker: LocalRedis
    kind_of_broker = "redis"
    user = "default"
    gives_back_soon: ClassVar[Mapping[str, Any]] = {
        "visibility_timeout": 5,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    misses_queues = False

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(self.url) as client:
            yield client

    def depths(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        with self.client() as client:
            for key in client.keys("*"):
                size = {b"list": client.llen, b"hash": client.hlen}.get(client.type(key))
                if size is not None:
                    # Behind the separator is a priority; what somebody holds is in a hash of its own.
                    found[key.decode().split("\x06")[0].removesuffix("/$Locked")] += size(key)
        return dict(found)

    def shorten_locks(self, queues: Iterable[str]) -> str:
        return "from kombu_paired.brokers.redis import receiving\nreceiving.LOCK_SECONDS = 3\n"

    def put_garbage(self, queue: str) -> int:
        garbage = (b"\xff\x00 garbage", b"[1, 2]", b"{}", b'{"body": 1}')
        with self.client() as client:
            client.lpush(queue, *garbage)
        return len(garbage)

    def spoil(self, queue: str) -> Callable[[], None]:
        # In one transaction each: what a sender pushes in between would be overwritten.
        with self.client() as client:
            has_messages = client.exists(queue)
            with client.pipeline(transaction=True) as pipe:
                if has_messages:
                    pipe.rename(queue, queue + ".kept")
                pipe.set(queue, "not a list")
                pipe.execute()

        def mend() -> None:
            with self.client() as client, client.pipeline(transaction=True) as pipe:
                pipe.delete(queue)
                if has_messages:
                    pipe.rename(queue + ".kept", queue)
                pipe.execute()

        return mend


class RabbitMQNode(BrokerNode):
    broker: LocalRabbitMQ
    kind_of_broker = "amqp"
    user = "guest"

    def depths(self) -> dict[str, int]:
        # A queue may go while it is asked: then it is none.
        answer = self.broker.erl(
            '[{element(4, amqqueue:get_name(Q)), N} || Q <- rabbit_amqqueue:list(<<"/">>), '
            "{messages, N} <- try rabbit_amqqueue:info(Q, [messages]) catch _:_ -> [] end]"
        )
        return {name: int(size) for name, size in re.findall(r'{<<"([^"]*)">>,(\d+)}', answer)}

    def spoil(self, queue: str) -> Callable[[], None]:
        # Where there is something more may come just now, and a limit below would have RabbitMQ drop what is there.
        depth = self.depth(queue)
        limit = depth + 200 if depth else 0
        policy = f'<<"spoilt {queue}">>'
        self.broker.erl(
            f'rabbit_policy:set(<<"/">>, {policy}, <<"^{queue}$">>, [{{<<"max-length">>, {limit}}}, '
            '{<<"overflow">>, <<"reject-publish">>}], 0, <<"queues">>, <<"test">>)'
        )
        return lambda: self.broker.erl(f'rabbit_policy:delete(<<"/">>, {policy}, <<"test">>)') and None


class ServiceBusNode(BrokerNode):
    """On the emulator. A ping that nobody received yet is a message, for a second."""

    broker: LocalServiceBus
    kind_of_broker = "azureservicebus"
    user = LocalServiceBus.policy
    odd_password = "b/+=64=="
    plain_conf: ClassVar[Mapping[str, Any]] = {"broker_transport": DRIVERS["azureservicebus"].transport}

    def reset(self) -> None:
        super().reset()
        for known in (transport._states, transport._subscriptions, transport._known):
            known.pop(Address.parse(self.url).place, None)  # what this process has declared there is gone

    def depths(self) -> dict[str, int]:
        found = {}
        for name, counts in self.broker.ask("GET", "status")["queues"].items():
            found[name] = counts["active"] + counts["scheduled"]
            found[name + DEAD_LETTERS] = counts["dead_lettered"]
        return found

    @property
    def clients(self) -> Clients:
        return Clients(Address.parse(self.url), ServiceBusSettings())

    def _drained(self, queue: str, *, dead_letters: bool = False) -> Iterator[ServiceBusReceivedMessage]:
        if not self.depth(queue + DEAD_LETTERS if dead_letters else queue):
            return
        link = self.clients.receiver(queue, dead_letters=dead_letters, delete=True)
        link.open(5)
        try:
            while batch := link.receive(1000, 0.5):
                yield from (each for each in batch if not wire.is_ping(each))
        finally:
            link.drop()

    def take_all(self, *queues: str) -> list[Any]:
        return [_payload(each, queue) for queue in queues for each in self._drained(queue)]

    def take_dead_letters(self, queue: str) -> Counter[str]:
        found = list(self._drained(queue, dead_letters=True))
        assert all(each.dead_letter_error_description for each in found)
        return Counter(each.dead_letter_reason for each in found)

    def put(self, queue: str, *messages: tuple[str | bytes, Mapping[str, Any]]) -> None:
        link = self.clients.sender(queue)
        link.open(5)
        for body, headers in messages:
            link.send(ServiceBusMessage(body, application_properties=dict(headers)), 5)
        link.drop()

    def shorten_locks(self, queues: Iterable[str]) -> str:
        # The lock is the queue's own; five seconds is the shortest that the service knows.
        with self.clients.administration(5) as admin:
            for queue in queues:
                admin.create_queue(queue, **BACKLOG_PROPERTIES | {"lock_duration": timedelta(seconds=5)})
        return ""

    def put_garbage(self, queue: str) -> int:
        self.put(queue, (b"\xff no JSON", {wire.FORM: wire.FORM_OF_BACKLOG, "x-ms-path": "orders"}))
        return 1

    def spoil(self, queue: str) -> Callable[[], None]:
        self.broker.ask("POST", "faults", {"kind": "quota", "entity": queue})
        return lambda: self.broker.ask("DELETE", f"faults?entity={quote(queue, safe='')}") and None


def _payload(received: ServiceBusReceivedMessage, queue: str) -> Any:
    """What the application gave to Kombu."""
    if BACKLOG_MARK in queue:
        message = wire.received_backlog_message(received)
        return loads(message.body, message.content_type, message.content_encoding)
    raw = wire.from_envelope(received)
    return loads(b64decode(raw["body"]), raw["content-type"], raw["content-encoding"])


NODES: dict[Kind, type[BrokerNode]] = {each.kind_of_broker: each for each in (RabbitMQNode, RedisNode, ServiceBusNode)}


def new_node(kind: Kind, folder: str | os.PathLike[str]) -> BrokerNode:
    """A node of that kind; its broker is not started yet."""
    return NODES[kind](local_broker(kind, folder))
