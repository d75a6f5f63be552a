"""The brokers that the conformance suite runs against, one factory each.

A namespace joins the suite by an entry in :data:`FACTORIES`: a class that can make namespaces on its broker, look into
the broker by another way than the namespace, and make it suffer. What the driver does not promise and what the site
cannot do is not among its ``abilities``, and the tests that need it are not collected for it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Protocol

import kombu
import redis

from kombu_paired.brokers.driver import Driver
from kombu_paired.brokers.drivers import DRIVERS
from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, Namespace
from kombu_paired.emulator import Emulator
from kombu_paired.message import Message
from tests.support.nodes import LocalTestBroker
from tests.support.proxy import Proxy
from tests.support.spool import ask_spool
from tests.support.toy.driver import Toy as ToyDriver
from tests.support.toy.local import LocalToy

#: Seconds that every call gets.
TIMEOUT = 3.0

#: What a broker, or the transport to it, can do; see ``Driver`` for the first four.
ABILITIES = frozenset(
    {
        "confirmed",
        "routed",
        "keeps_unsettled",
        "outlives_restart",
        "stands_in",  # workers may consume from it while their primary is away
        "keeps_notices",  # entities of its primary can be isolated by hand
        "returns_on_close",  # what a receiver holds when it closes goes back
        "stores_backlog",  # a queue may be named like a backlog queue
        "missing_queues",  # a queue that was not created is an error
        "process",  # it is a process: killed, frozen, restarted
        "full",  # as a whole: no queue takes a message
        "full_queues",  # one queue may be full and another not
        "spoils",  # one queue may refuse every message
        "network",  # a proxy in front of it: cut, blackhole
        "password",
        "exchanges",  # those that are missing are noticed
        "priority",
        "keeps_order",  # what goes back takes its old place
        "encodes",  # a message is bytes in the broker, so that there are some that cannot be
        "marks_backlog",  # what goes back in doubt can say so
        "pings",  # a probe is a message, with a second to live
    }
)


def promised_by(driver: Driver) -> set[str]:
    """The abilities that a driver declares."""
    names = ("confirmed", "routed", "keeps_unsettled", "outlives_restart", "stands_in", "keeps_notices")
    return {name for name in names if getattr(driver, name)}


class Site(ABC):
    """One broker, as the suite sees it."""

    scheme: ClassVar[str]
    driver: ClassVar[Driver]
    abilities: ClassVar[set[str]]
    #: Bytes of a message that is large for this broker, and yet fits.
    large: ClassVar[int] = 1_000_000
    number: int

    def names(self, count: int) -> list[str]:
        """Backlog queues as a pairing names them, or ordinary ones where a broker cannot store that."""
        name = "main-{}/x-servicebus-transfer/{}" if "stores_backlog" in self.abilities else "backlog-{}-{}"
        return [name.format(self.number, i) for i in range(count)]

    @abstractmethod
    def namespace(self, *, proxied: bool = False, password: str | None = None, **arguments: Any) -> Namespace:
        """A namespace on it; ``proxied``: through the network that can be cut; ``password``: a wrong one."""

    @abstractmethod
    def stored(self, queue: str) -> int:
        """How many messages wait in a queue, as the broker says when one asks it oneself."""

    def kill(self) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        raise NotImplementedError

    def freeze(self) -> None:
        raise NotImplementedError

    def thaw(self) -> None:
        raise NotImplementedError

    def fill(self) -> None:
        raise NotImplementedError

    def unfill(self) -> None:
        raise NotImplementedError

    def fill_queue(self, name: str) -> None:
        """Let one queue be full."""
        raise NotImplementedError

    def unfill_queue(self, name: str) -> None:
        raise NotImplementedError

    def cut(self) -> None:
        raise NotImplementedError

    def blackhole(self) -> None:
        raise NotImplementedError

    def heal(self) -> None:
        raise NotImplementedError

    def make_odd_queue(self, name: str) -> Callable[[], Any]:
        """Make a queue that differs from what a pairing would make; the function tells what it is like."""
        raise NotImplementedError

    def spoil_queue(self, name: str) -> None:
        """Let every message to this queue fail, and only those."""
        raise NotImplementedError

    def delete_queue(self, name: str) -> None:
        """Somebody deletes a queue."""
        raise NotImplementedError

    def make_queue_with_short_locks(self, name: str) -> None:  # noqa: B027
        """Make a queue whose locks end soon, where a lock outlives the process that held it."""

    def shorten_locks(self, monkeypatch: Any) -> None:  # noqa: B027
        """Let the locks of a dead process end at once, where that is the client's to say."""

    def close(self) -> None:  # noqa: B027
        """The test is over."""


class BrokerSource(Protocol):
    """What a factory may take from the fixtures."""

    folder: Path

    def broker(self, kind: str) -> LocalTestBroker: ...


class BrokerSite(Site):
    """On a real broker process."""

    def __init__(self, source: BrokerSource) -> None:
        self.broker = source.broker(self.scheme)

    def namespace(self, *, proxied: bool = False, password: str | None = None, **arguments: Any) -> Namespace:
        url = self.broker.proxied_url if proxied else self.broker.url
        if password is not None:
            user = {"amqp": "guest", "redis": ""}[self.scheme]
            url = f"{self.scheme}://{user}:{password}@127.0.0.1{url.rpartition('127.0.0.1')[2]}"
        return KombuNamespace("secondary", [url], {}, send_timeout=TIMEOUT, **arguments)

    def kill(self) -> None:
        self.broker.kill()

    def restart(self) -> None:
        self.broker.broker.restart()

    def freeze(self) -> None:
        self.broker.freeze()

    def thaw(self) -> None:
        self.broker.thaw()

    def fill(self) -> None:
        self.broker.fill()

    def unfill(self) -> None:
        self.broker.unfill()

    def cut(self) -> None:
        self.broker.cut()

    def blackhole(self) -> None:
        self.broker.blackhole()

    def heal(self) -> None:
        self.broker.heal()


class RabbitMQ(BrokerSite):
    scheme, driver = "amqp", DRIVERS["amqp"]
    abilities = promised_by(driver) | {
        "marks_backlog",
        "returns_on_close",
        "stores_backlog",
        "missing_queues",
        "process",
        "full",
        "spoils",
        "network",
        "password",
        "exchanges",
        "priority",
        "keeps_order",
        "encodes",
    }
    queue_type: ClassVar[str | None] = None

    def namespace(self, **arguments: Any) -> Namespace:
        arguments.setdefault("queue_type", self.queue_type)
        return super().namespace(**arguments)

    @contextlib.contextmanager
    def _channel(self) -> Iterator[Any]:
        with kombu.Connection(self.broker.url) as connection, connection.channel() as channel:
            yield channel

    def stored(self, queue: str) -> int:
        count = self.broker.broker.erl(
            'lists:sum([N || Q <- rabbit_amqqueue:list(<<"/">>), element(4, element(2, Q)) =:= '
            f"{_binary(queue)}, {{messages, N}} <- rabbit_amqqueue:info(Q, [messages])])"
        )
        return int(count)

    def make_odd_queue(self, name: str) -> Callable[[], Any]:
        with self._channel() as channel:
            channel.queue_declare(
                name, durable=False, auto_delete=False, arguments={"x-max-length": 77, "x-message-ttl": 3_600_000}
            )
        return lambda: self.broker.broker.erl(
            '[rabbit_amqqueue:info(Q, [durable, arguments]) || Q <- rabbit_amqqueue:list(<<"/">>), '
            f"element(4, element(2, Q)) =:= {_binary(name)}]"
        )

    def delete_queue(self, name: str) -> None:
        with self._channel() as channel:
            channel.queue_delete(name)

    def spoil_queue(self, name: str) -> None:
        with self._channel() as channel:
            channel.queue_declare(
                name,
                durable=True,
                auto_delete=False,
                arguments={"x-max-length": 0, "x-overflow": "reject-publish"},
            )


class RabbitMQQuorum(RabbitMQ):
    queue_type = "quorum"
    abilities = RabbitMQ.abilities - {"priority", "keeps_order"}

    def restart(self) -> None:
        """A quorum queue works once it has a leader again."""
        super().restart()
        deadline = time.monotonic() + 30
        while "{error" in (state := self._members()) or "{timeout" in state:
            assert time.monotonic() < deadline, state
            time.sleep(0.05)

    def _members(self) -> str:
        return self.broker.broker.erl(
            '[ra:members(amqqueue:get_pid(Q), 1000) || Q <- rabbit_amqqueue:list(<<"/">>), '
            "amqqueue:get_type(Q) =:= rabbit_quorum_queue]"
        )

    def stored(self, queue: str) -> int:
        with self._channel() as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).message_count)
            except Exception:
                return 0


class Redis(BrokerSite):
    scheme, driver = "redis", DRIVERS["redis"]
    # Our local Redis has its append-only file turned on.
    abilities = promised_by(driver) | {
        "marks_backlog",
        "outlives_restart",
        "returns_on_close",
        "stores_backlog",
        "process",
        "full",
        "spoils",
        "network",
        "password",
        "exchanges",
        "priority",
        "keeps_order",
        "encodes",
    }

    def namespace(self, *, password: str | None = None, **arguments: Any) -> Namespace:
        if password is not None:  # without one of its own, it takes any
            self.broker.broker.set_password("default", "the right one")
        return super().namespace(password=password, **arguments)

    def stored(self, queue: str) -> int:
        with redis.Redis.from_url(self.broker.url) as client:
            lists = [queue, *(f"{queue}\x06\x16{step}" for step in (3, 6, 9))]
            return sum(client.llen(each) for each in lists)

    def spoil_queue(self, name: str) -> None:
        with redis.Redis.from_url(self.broker.url) as client:
            client.set(name, "not a list")

    def make_odd_queue(self, name: str) -> Callable[[], Any]:
        with redis.Redis.from_url(self.broker.url) as client:
            client.lpush(name, "somebody's")

        def look() -> Any:
            with redis.Redis.from_url(self.broker.url) as client:
                return client.lrange(name, 0, -1)

        return look

    def shorten_locks(self, monkeypatch: Any) -> None:
        monkeypatch.setattr("kombu_paired.brokers.redis.receiving.LOCK_SECONDS", 0.5)


class ServiceBus(Site):
    """On an emulator of its own: it starts in less than a fifth of a second."""

    scheme, driver = "azureservicebus", DRIVERS["azureservicebus"]
    abilities = promised_by(driver) | {
        "returns_on_close",
        "stores_backlog",
        "missing_queues",
        "process",
        "full_queues",
        "spoils",
        "network",
        "password",
        "exchanges",
        "priority",
        "keeps_order",
        "encodes",
        "pings",
    }
    large = 250_000

    def __init__(self, source: BrokerSource) -> None:
        folder = source.folder / "servicebus"
        self.emulator = Emulator(process=True, data=folder, policies=["main:a/+=key=="]).start()
        self._proxy: Proxy | None = None
        self._certificate = source.folder / "certificate.pem"
        self._forget()

    @property
    def proxy(self) -> Proxy:
        if self._proxy is None:
            self._proxy = Proxy(self.emulator.port)
        return self._proxy

    def namespace(self, *, proxied: bool = False, password: str | None = None, **arguments: Any) -> Namespace:
        port = self.proxy.port if proxied else self.emulator.port
        url = f"azureservicebus://main:{password or 'a/+=key=='}@127.0.0.1:{port}"
        return KombuNamespace("secondary", [url], {}, send_timeout=TIMEOUT, **arguments)

    def _forget(self) -> None:
        """What this process knows of namespaces: ports come again."""
        from kombu_paired.brokers.servicebus import transport

        for known in (transport._states, transport._subscriptions, transport._known):
            known.clear()

    def stored(self, queue: str) -> int:
        name = queue.removesuffix(DEAD_LETTER_SUFFIX)
        counts = self.emulator.status()["queues"].get(name, {})
        return int(counts.get("active" if name == queue else "dead_lettered", 0))

    @contextlib.contextmanager
    def _administration(self) -> Iterator[Any]:
        """The SDK's own client, over https."""
        from azure.servicebus.management import ServiceBusAdministrationClient

        self._certificate.write_text(self.emulator.certificate())
        with ServiceBusAdministrationClient.from_connection_string(
            self.emulator.connection_string, connection_verify=str(self._certificate), retry_total=0
        ) as client:
            yield client

    def make_odd_queue(self, name: str) -> Callable[[], Any]:
        with self._administration() as client:
            client.create_queue(name, max_delivery_count=7, lock_duration=timedelta(seconds=17), user_metadata="mine")

        def look() -> Any:
            with self._administration() as client:
                return str(client.get_queue(name))

        return look

    def make_queue_with_short_locks(self, name: str) -> None:
        with self._administration() as client:
            client.create_queue(name, lock_duration=timedelta(seconds=2))

    def delete_queue(self, name: str) -> None:
        with self._administration() as client:
            client.delete_queue(name)

    def spoil_queue(self, name: str) -> None:
        with self._administration() as client:
            client.create_queue(name)
        self.emulator.fault("disabled", name)

    def fill_queue(self, name: str) -> None:
        self.emulator.fault("quota", name)

    def unfill_queue(self, name: str) -> None:
        self.emulator.clear_faults(name)

    def kill(self) -> None:
        self.emulator.kill()

    def restart(self) -> None:
        self.emulator.restart()

    def freeze(self) -> None:
        self.emulator.freeze()

    def thaw(self) -> None:
        self.emulator.thaw()

    def cut(self) -> None:
        self.proxy.cut()

    def blackhole(self) -> None:
        self.proxy.blackhole()

    def heal(self) -> None:
        self.proxy.heal()

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        self.emulator.stop()
        self._forget()


class Filesystem(Site):
    # A file's name ends with its queue's, so that a queue's name cannot hold a slash.
    scheme, driver = "filesystem", DRIVERS["filesystem"]
    abilities = promised_by(driver) | {"returns_on_close", "encodes"}

    def __init__(self, source: BrokerSource) -> None:
        folder = source.folder
        for name in ("data", "control"):
            (folder / name).mkdir()
        self.folder = folder
        # What is bound is remembered in the process besides, whatever the folder.
        from kombu.transport.filesystem import Transport

        Transport.global_state.clear()

    def namespace(self, **arguments: Any) -> Namespace:
        options = {
            "data_folder_in": str(self.folder / "data"),
            "data_folder_out": str(self.folder / "data"),
            "control_folder": str(self.folder / "control"),
        }
        return KombuNamespace("primary", ["filesystem://"], options, send_timeout=TIMEOUT, **arguments)

    def stored(self, queue: str) -> int:
        return len(list((self.folder / "data").glob(f"*.{queue}.msg")))


class SQLAlchemy(Site):
    scheme, driver = "sqla", DRIVERS["sqla"]
    abilities = promised_by(driver) | {"returns_on_close", "stores_backlog", "encodes"}

    def __init__(self, source: BrokerSource) -> None:
        self.file = source.folder / "broker.sqlite"

    def namespace(self, **arguments: Any) -> Namespace:
        return KombuNamespace("primary", [f"sqla+sqlite:///{self.file}"], {}, send_timeout=TIMEOUT, **arguments)

    def stored(self, queue: str) -> int:
        with contextlib.closing(sqlite3.connect(self.file)) as database:
            tables = {name for (name,) in database.execute("select name from sqlite_master")}
            if "kombu_queue" not in tables:
                return 0
            [(count,)] = database.execute(
                "select count(*) from kombu_message m join kombu_queue q on m.queue_id = q.id "
                "where q.name = ? and m.visible",
                [queue],
            )
            return int(count)


class Toy(Site):
    """One more broker, added as docs/contributing.md says."""

    scheme, driver = "toy", ToyDriver()
    abilities = promised_by(driver) | {
        "returns_on_close",
        "stores_backlog",
        "missing_queues",
        "process",
        "full",
        "network",
        "password",
        "keeps_order",
        "encodes",
    }

    def __init__(self, source: BrokerSource) -> None:
        self.broker = LocalToy(source.folder / "toy")
        self.broker.start()
        self.broker.wait_ready()
        self.proxy = Proxy(self.broker.port)
        self.kill, self.restart = self.broker.kill, self.broker.restart
        self.freeze, self.thaw = self.broker.freeze, self.broker.thaw
        self.fill, self.unfill = self.broker.fill, self.broker.unfill
        self.cut, self.blackhole, self.heal = self.proxy.cut, self.proxy.blackhole, self.proxy.heal

    def namespace(self, *, proxied: bool = False, password: str | None = None, **arguments: Any) -> Namespace:
        port = self.proxy.port if proxied else self.broker.port
        url = f"toy://:{password or self.broker.password}@127.0.0.1:{port}"
        return KombuNamespace("secondary", [url], {}, send_timeout=TIMEOUT, **arguments)

    def _messages(self, queue: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.broker.file)) as database:
            return database.execute("select number, message from messages where queue = ?", [queue]).fetchall()

    def stored(self, queue: str) -> int:
        return len(self._messages(queue))

    def make_odd_queue(self, name: str) -> Callable[[], Any]:
        self.broker.ask("declare", queue=name)
        self.broker.ask("put", queue=name, message="somebody's")
        return lambda: self._messages(name)

    def delete_queue(self, name: str) -> None:
        self.broker.ask("delete", queue=name)

    def close(self) -> None:
        self.proxy.close()
        self.broker.stop()


class Spool(Site):
    """A folder, which is full when its limit is reached."""

    scheme, driver = "spool", DRIVERS["spool"]
    abilities = promised_by(driver) | {
        "marks_backlog",
        "returns_on_close",
        "stores_backlog",
        "full",
        "priority",
        "keeps_order",
        "encodes",
    }

    def __init__(self, source: BrokerSource) -> None:
        self.folder = source.folder / "spool"

    def namespace(self, **arguments: Any) -> Namespace:
        url = f"spool://{self.folder}?max_size=20MB"
        return KombuNamespace("secondary", [url], {}, send_timeout=TIMEOUT, **arguments)

    def _ask(self, statement: str, *values: Any) -> list[Any]:
        return ask_spool(self.folder, statement, *values)

    def stored(self, queue: str) -> int:
        if not self.folder.exists():
            return 0
        [[count]] = self._ask("SELECT count(*) FROM messages WHERE queue = ?", queue)
        return int(count)

    def make_odd_queue(self, name: str) -> Callable[[], Any]:
        namespace = self.namespace()
        namespace.sender().send(Message(b"somebody's", routing_key=name), TIMEOUT)
        namespace.close()
        return lambda: self._ask("SELECT id, queue, hex(head) FROM messages WHERE queue = ?", name)

    def fill(self) -> None:
        self._ask("INSERT INTO messages (queue, head, body, checksum) VALUES ('else', x'', zeroblob(20000000), 0)")

    def unfill(self) -> None:
        self._ask("DELETE FROM messages WHERE queue = 'else'")


class Memory(Site):
    scheme, driver = "memory", DRIVERS["memory"]
    abilities = promised_by(driver) | {"stores_backlog"}

    def __init__(self, source: BrokerSource) -> None:
        self._forget()

    def namespace(self, **arguments: Any) -> Namespace:
        return KombuNamespace("primary", ["memory://"], {}, send_timeout=TIMEOUT, **arguments)

    def stored(self, queue: str) -> int:
        from kombu.transport.memory import Channel

        return Channel.queues[queue].qsize() if queue in Channel.queues else 0

    def close(self) -> None:
        self._forget()

    def _forget(self) -> None:
        from kombu.transport.memory import Channel, Transport

        Channel.queues.clear()
        Transport.global_state.clear()


#: Name -> what makes it. A namespace on another broker joins the suite here.
FACTORIES: dict[str, type[Site]] = {
    "rabbitmq": RabbitMQ,
    "rabbitmq-quorum": RabbitMQQuorum,
    "redis": Redis,
    "servicebus": ServiceBus,
    "filesystem": Filesystem,
    "sqlalchemy": SQLAlchemy,
    "memory": Memory,
    "spool": Spool,
    "toy": Toy,
}


def _binary(text: str) -> str:
    return f'<<"{text}"/utf8>>'
