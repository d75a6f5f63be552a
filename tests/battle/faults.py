"""How each fault is done and undone: a context manager each, in which the fault is in force."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from kombu_paired.testing import BrokerFailed, LocalRabbitMQ, LocalRedis
from tests.battle.actors import Actor, Producer, Worker
from tests.battle.arena import Field
from tests.battle.judge import STOP_LIMIT
from tests.battle.plan import Fault
from tests.support.brokers import BrokerNode
from tests.support.proxy import Proxy


@dataclass
class Scene:
    """What there is to be hit."""

    field: Field
    actors: Mapping[str, Actor]

    def fault(self, fault: Fault) -> AbstractContextManager[Any]:
        if fault.target in self.actors:
            return _ON_ACTORS[fault.kind](self.actors[fault.target], fault)
        if fault.target in self.field.ways:
            return _ON_WAYS[fault.kind](self.field.ways[fault.target], fault)
        return _ON_NODES[fault.kind](self.field.node(fault.target))


# -- servers -----------------------------------------------------------------------------------------------------------


@contextmanager
def _killed(node: BrokerNode) -> Iterator[None]:
    node.kill()
    yield
    node.broker.restart(90)


@contextmanager
def _frozen(node: BrokerNode) -> Iterator[None]:
    node.freeze()
    yield
    node.thaw()


@contextmanager
def _full(node: BrokerNode) -> Iterator[None]:
    node.fill()
    yield
    node.unfill()


@contextmanager
def _connections_closed(node: BrokerNode) -> Iterator[None]:
    """By the broker, once; they may come again."""
    broker = node.broker
    if isinstance(broker, LocalRabbitMQ):
        broker.erl(
            '[catch rabbit_networking:close_connection(P, "battle") || P <- rabbit_networking:local_connections()]'
        )
    elif isinstance(broker, LocalRedis):
        broker.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        broker.command("CLIENT", "KILL", "TYPE", "pubsub")
    yield


@contextmanager
def _disk_full(node: BrokerNode) -> Iterator[None]:
    broker = node.broker
    if isinstance(broker, LocalRabbitMQ):
        broker.erl('rabbit_disk_monitor:set_disk_free_limit("100000GB")')
        yield
        broker.erl("rabbit_disk_monitor:set_disk_free_limit(1000000)")
    elif isinstance(broker, LocalRedis):
        in_the_way = broker.folder / "dump.rdb" / "in the way"
        in_the_way.parent.unlink(missing_ok=True)
        in_the_way.mkdir(parents=True)
        try:
            broker.command("CONFIG", "SET", "save", "3600 1")
            broker.command("BGSAVE")
            _until(lambda: _last_save(broker) == "err", "Redis saved, and should not have")
            yield
        finally:
            shutil.rmtree(in_the_way.parent)
            broker.command("CONFIG", "SET", "save", "")
            broker.command("BGSAVE")
            _until(lambda: _last_save(broker) == "ok", "Redis does not save again")


def _last_save(broker: LocalRedis) -> str:
    return str(broker.command("INFO", "persistence")["rdb_last_bgsave_status"])


_ON_NODES: Mapping[str, Callable[[BrokerNode], AbstractContextManager[None]]] = {
    "kill": _killed,
    "remove": _killed,
    "freeze": _frozen,
    "full": _full,
    "close": _connections_closed,
    "disk full": _disk_full,
}


# -- ways --------------------------------------------------------------------------------------------------------------


def _on_way(begin: Callable[[Proxy, Fault], None]) -> Callable[[list[Proxy], Fault], AbstractContextManager[None]]:
    @contextmanager
    def hit(way: list[Proxy], fault: Fault) -> Iterator[None]:
        for proxy in way:
            begin(proxy, fault)
        yield
        for proxy in way:
            proxy.heal()

    return hit


_ON_WAYS: Mapping[str, Callable[[list[Proxy], Fault], AbstractContextManager[None]]] = {
    "cut": _on_way(lambda proxy, _: proxy.cut()),
    "blackhole": _on_way(lambda proxy, _: proxy.blackhole()),
    "hold": _on_way(lambda proxy, _: proxy.blackhole(swallow=False)),
    "slow": _on_way(lambda proxy, fault: proxy.slow(fault.amount)),
    "reset": _on_way(lambda proxy, _: proxy.reset_all()),
}


# -- producers and workers ---------------------------------------------------------------------------------------------


@contextmanager
def _actor_killed(actor: Actor, fault: Fault) -> Iterator[None]:
    with actor.lock:
        actor.kill()
        yield
        actor.start()


@contextmanager
def _actor_stopped(actor: Actor, fault: Fault) -> Iterator[None]:
    """A warm stop. Whatever else is broken meanwhile may keep it: the judge knows."""
    with actor.lock:
        actor.stop(3 * STOP_LIMIT)
        yield
        actor.start()


@contextmanager
def _actor_frozen(actor: Actor, fault: Fault) -> Iterator[None]:
    with actor.lock:
        actor.freeze()
        yield
        actor.thaw()


@contextmanager
def _clock_set(actor: Actor, fault: Fault) -> Iterator[None]:
    actor.set_clock(fault.amount)
    yield
    actor.set_clock(0.0)


@contextmanager
def _child_killed(actor: Actor, fault: Fault) -> Iterator[None]:
    assert isinstance(actor, Worker)
    with actor.lock:
        actor.kill_child()
    yield


@contextmanager
def _forked(actor: Actor, fault: Fault) -> Iterator[None]:
    assert isinstance(actor, Producer)
    with actor.lock, contextlib.suppress(ProcessLookupError):
        actor.fork()
    yield


_ON_ACTORS: Mapping[str, Callable[[Actor, Fault], AbstractContextManager[None]]] = {
    "kill": _actor_killed,
    "stop": _actor_stopped,
    "freeze": _actor_frozen,
    "clock": _clock_set,
    "kill child": _child_killed,
    "fork": _forked,
}


def _until(condition: Callable[[], Any], failure: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            raise BrokerFailed(failure)
        time.sleep(0.02)
