"""The brokers of each pair, started once and used for many episodes, and the ways to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kombu_paired.testing import HOST, BrokerFailed, LocalRabbitMQ, LocalRedis, free_port, spawn, stop_tree
from tests.battle.plan import WAYS, Pair
from tests.support.brokers import BrokerNode, RabbitMQNode, RedisNode, new_node
from tests.support.proxy import Proxy

#: The primary's name, for all who take part.
NAME = "battle"
QUEUE = "battle"
BACKLOG_QUEUES = tuple(f"{NAME}/x-servicebus-transfer/{i}" for i in range(2))
#: Seconds of the locks of a secondary: longer than any freeze, shorter than the wait at the end.
LOCK_SECONDS = 10.0


class Side:
    """One side of a pair: a server, or some that belong together."""

    #: What is set at its end of the pairing, as a primary and as a secondary.
    options: Mapping[str, Any] = {}
    visibility_timeout: float | None = None
    celery_conf: Mapping[str, Any] = {}

    def __init__(self, nodes: list[BrokerNode]) -> None:
        self.nodes = nodes

    def start(self) -> None:
        """As new."""
        self.revive()
        self.nodes[0].reset()

    def url(self, ports: list[int]) -> str:
        """How clients reach it, through these ports in place of its own."""
        return ";".join(_at_port(node, port) for node, port in zip(self.nodes, ports, strict=True))

    def revive(self) -> None:
        """Let it run, with all that is in it."""
        for node in self.nodes:
            _revive(node)

    def depths(self) -> dict[str, int]:
        return self.nodes[0].depths()

    def refusals(self) -> list[tuple[float, float]]:
        """When it took nothing, by its own account, though no fault was on: from, to (monotonic seconds)."""
        return []

    def stop(self) -> None:
        for node in self.nodes:
            node.teardown()


def _revive(node: BrokerNode) -> None:
    broker = node.broker
    if broker.state == "frozen":
        broker.thaw()
    if broker.state == "down":
        broker.restart(90)


def _at_port(node: BrokerNode, port: int) -> str:
    return node.url.replace(f"{HOST}:{node.port}", f"{HOST}:{port}")


class RabbitMQ(Side):
    def __init__(self, folder: Path) -> None:
        super().__init__([new_node("amqp", folder)])


class _Redis(LocalRedis):
    """It writes each command, and syncs once a second: what a process that is killed has written is there."""

    def wait_ready(self, timeout: float | None = None) -> None:
        super().wait_ready(timeout)
        self.command("CONFIG", "SET", "appendfsync", "everysec")


class Redis(Side):
    options = RedisNode.gives_back_soon
    visibility_timeout = float(RedisNode.gives_back_soon["visibility_timeout"])

    def __init__(self, folder: Path) -> None:
        super().__init__([RedisNode(_Redis(folder))])


class ServiceBus(Side):
    options: Mapping[str, Any] = {"peek_lock_seconds": 5}
    visibility_timeout = 5.0

    def __init__(self, folder: Path) -> None:
        super().__init__([new_node("azureservicebus", folder)])

    def start(self) -> None:
        super().start()
        self.nodes[0].shorten_locks(BACKLOG_QUEUES)


class _ReplicatedRedis(_Redis):
    """It takes a write only while a replica is there: what a frozen master takes later, its successor never sees."""

    def wait_ready(self, timeout: float | None = None) -> None:
        super().wait_ready(timeout)
        self.command("CONFIG", "SET", "min-replicas-to-write", 1)


class _Witness:
    """Notes when something is not so, by looking ten times a second."""

    def __init__(self, is_so: Callable[[], bool]) -> None:
        self._is_so = is_so
        self._ended = threading.Event()
        self._spans: list[tuple[float, float]] = []
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(0.1):
            now, is_so = time.monotonic(), self._is_so()
            if not is_so:
                self._spans.append((before, time.monotonic()))
            before = now

    @property
    def spans(self) -> list[tuple[float, float]]:
        return list(self._spans)

    def end(self) -> None:
        self._ended.set()


class Sentinel(Side):
    """A master, its replica, and one sentinel that changes their places.

    For some ten seconds after it was away an old master is no replica yet (the sentinel waits, before it changes what
    it is), and the new one takes nothing. When, the master says itself.
    """

    options: Mapping[str, Any] = {**RedisNode.gives_back_soon, "master_name": NAME}
    visibility_timeout = Redis.visibility_timeout

    def __init__(self, folder: Path) -> None:
        super().__init__([RedisNode(_ReplicatedRedis(folder / str(i))) for i in (1, 2)])
        self._folder = folder
        self._port = free_port()
        self._process: Any = None
        self._witness: _Witness | None = None

    def start(self) -> None:
        self._stop_sentinel()
        for node in self.nodes:
            node.broker.kill()
            shutil.rmtree(node.broker.folder / "appendonlydir", ignore_errors=True)
            (node.broker.folder / "dump.rdb").unlink(missing_ok=True)
            node.broker.restart()
        master, replica = (node.broker for node in self.nodes)
        replica.command("REPLICAOF", HOST, master.port)
        config = self._folder / "sentinel.conf"
        config.write_text(
            f"bind {HOST}\nport {self._port}\ndir {self._folder}\n"
            f"sentinel monitor {NAME} {HOST} {master.port} 1\n"
            f"sentinel down-after-milliseconds {NAME} 700\n"
            f"sentinel failover-timeout {NAME} 3000\n"
        )
        command = [LocalRedis._program()[1], str(config), "--sentinel"]
        self._process = spawn(command, env=os.environ, log=self._folder / "sentinel.log")
        _until(lambda: self._ask("SENTINEL", "REPLICAS", NAME), 15, "the sentinel knows no replica")
        _until(
            lambda: master.command("INFO", "replication").get("slave0", {}).get("state") == "online",
            15,
            "the replica is not online",
        )
        self._witness = _Witness(self._takes)

    def _takes(self) -> bool:
        _, port = self._ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME) or ("", 0)
        master = next((node.broker for node in self.nodes if node.port == int(port)), None)
        with contextlib.suppress(Exception):
            return master is not None and int(master.command("INFO", "replication")["min_slaves_good_slaves"]) > 0
        return False

    def refusals(self) -> list[tuple[float, float]]:
        return self._witness.spans if self._witness is not None else []

    def url(self, ports: list[int]) -> str:
        return f"sentinel://{HOST}:{self._port}/0"

    def _ask(self, *command: str) -> Any:
        from redis import Redis as Client

        with contextlib.suppress(Exception), Client(HOST, self._port, socket_timeout=2, decode_responses=True) as one:
            return one.execute_command(*command)
        return None

    def depths(self) -> dict[str, int]:
        _, port = self._ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME) or ("", 0)
        return next(node for node in self.nodes if node.port == int(port)).depths()

    def _stop_sentinel(self) -> None:
        if self._witness is not None:
            self._witness.end()
            self._witness = None
        if self._process is not None:
            stop_tree(self._process)
            self._process = None

    def stop(self) -> None:
        self._stop_sentinel()
        super().stop()


class _ClusterRabbitMQ(LocalRabbitMQ):
    """A node of a cluster on one machine: each has an address of its own, so that all can share a port."""

    def __init__(self, folder: Path, number: int, cookie: str, port: int) -> None:
        super().__init__(folder)
        self._address = f"127.0.0.{number + 1}"
        self.node = f"paired@{self._address}"
        self._cookie = cookie
        self._distribution_port = port

    def _environment(self) -> dict[str, str]:
        distribution = f"-start_epmd false -erl_epmd_port {self._distribution_port}"
        interface = "{" + self._address.replace(".", ",") + "}"
        return super()._environment() | {
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"-name {self.node} {distribution} -kernel inet_dist_use_interface {interface} net_ticktime 8 +S 1:1"
            ),
        }


class Cluster(Side):
    """Three nodes of RabbitMQ, and quorum queues."""

    celery_conf: Mapping[str, Any] = {"task_default_queue_type": "quorum"}

    def __init__(self, folder: Path) -> None:
        port, cookie = free_port(), os.urandom(16).hex()
        super().__init__([RabbitMQNode(_ClusterRabbitMQ(folder / str(i), i, cookie, port)) for i in (1, 2, 3)])
        self._is_joined = False

    def start(self) -> None:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(_revive, self.nodes))
        if not self._is_joined:
            for node in self.nodes[1:]:
                join = f"rabbit_mnesia:join_cluster('{self.nodes[0].broker.node}', disc)"
                node.broker.erl(  # it is a member already where another one took too long to join, the time before
                    f"begin rabbit:stop(), case {join} of ok -> ok; {{ok, already_member}} -> ok end, "
                    "rabbit:start() end",
                    timeout=90,
                )
                node.broker.wait_ready()
            self._is_joined = True
        for node in self.nodes:
            node.broker.unfill()
        self.nodes[0].broker.reset()

    def revive(self) -> None:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(_revive, self.nodes))


_SIDES: dict[str, Callable[[Path], Side]] = {
    "rabbitmq": RabbitMQ,
    "redis": Redis,
    "sentinel": Sentinel,
    "cluster": Cluster,
    "servicebus": ServiceBus,
}


class Field:
    """A pair in an episode: its sides, and a proxy of its own on each way to each of their nodes."""

    def __init__(self, pair: Pair, primary: Side, secondary: Side) -> None:
        self.pair = pair
        self.sides = {"primary": primary, "secondary": secondary}
        self.ways: dict[str, list[Proxy]] = {}
        if pair.has_ways:
            self.ways = {way: [Proxy(node.port) for node in self.side(way).nodes] for way in WAYS}

    def side(self, target: str) -> Side:
        return self.sides[target.rpartition(">")[2].partition("/")[0]]

    def node(self, target: str) -> BrokerNode:
        """The server that a fault's target means: ``primary``, ``primary/2``."""
        _, _, number = target.partition("/")
        return self.side(target).nodes[int(number or 1) - 1]

    def url(self, who: str, which: str) -> str:
        """The plain URL of a side as a producer or a worker has it."""
        side = self.sides[which]
        proxies = self.ways.get(f"{who}>{which}")
        return side.url([proxy.port for proxy in proxies] if proxies else [node.port for node in side.nodes])

    def broker_url(self, who: str) -> str:
        return ";".join(f"paired+{url}" for url in self.url(who, "primary").split(";"))

    def transport_options(self, who: str, send_timeout: float, journal: Path) -> dict[str, Any]:
        return {
            "secondary": self.url(who, "secondary"),
            "primary_name": NAME,
            "primary_options": dict(self.sides["primary"].options),
            "backlog_queue_count": len(BACKLOG_QUEUES),
            "backlog_retry_interval": 2,
            "send_timeout": send_timeout,
            "failover_interval": 1,
            "ping_interval": 1,
            "syphon_poll": 5,
            "journal": str(journal),
        }

    def celery_conf(self, who: str) -> dict[str, Any]:
        conf = {"task_default_queue": QUEUE, **self.sides["primary"].celery_conf}
        if self.pair.results:
            conf["result_backend"] = self.url(who, "primary")
        return conf

    def heal(self) -> None:
        """Whatever was done to a broker or a way is undone."""
        for proxies in self.ways.values():
            for proxy in proxies:
                proxy.heal()
        for side in self.sides.values():
            side.revive()

    def left(self) -> dict[str, int]:
        """What is in the queues of this episode, held or not, as the brokers say."""
        found = {}
        for name, side in self.sides.items():
            for queue, size in side.depths().items():
                if queue in (QUEUE, "unacked", *BACKLOG_QUEUES) or queue.startswith(f"{NAME}/"):
                    found[f"{name}: {queue}"] = size
        return found

    def close(self) -> None:
        for proxies in self.ways.values():
            for proxy in proxies:
                proxy.close()


class Arena:
    """All brokers of a lane. Each starts when it is first needed; a cluster ends with its episode: it is heavy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sides: dict[str, Side] = {}

    @contextlib.contextmanager
    def field(self, pair: Pair) -> Iterator[Field]:
        sides = [self._side(f"{pair.primary}-1"), self._side(f"{pair.secondary}-2")]
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda side: side.start(), sides))
        field = Field(pair, *sides)
        try:
            yield field
        finally:
            field.close()
            if pair.primary == "cluster":
                self._sides.pop("cluster-1").stop()

    def _side(self, name: str) -> Side:
        if name not in self._sides:
            self._sides[name] = _SIDES[name.partition("-")[0]](self.folder / name)
        return self._sides[name]

    def close(self) -> None:
        for side in self._sides.values():
            side.stop()
        self._sides.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def _until(condition: Callable[[], Any], timeout: float, failure: str) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise BrokerFailed(failure)
        time.sleep(0.05)
