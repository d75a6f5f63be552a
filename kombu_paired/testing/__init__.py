"""Real brokers, and emulated ones, as child processes, for tests.

A local broker is durable, listens on 127.0.0.1 alone, lives in a folder, and can be made to suffer
in the ways that brokers suffer: killed, frozen, filled. It keeps its port and its data through
:meth:`LocalBroker.restart`::

    with local_broker("redis") as broker:
        publish_to(broker.url)
        broker.kill()  # SIGKILL
        broker.restart()  # the same port, the same data

It dies with this process, however this process ends (on Linux also when it is killed).

:class:`ScriptedBroker` is no real one: it lives in this process's memory, and says what the test wants it to say.
"""

from __future__ import annotations

from kombu_paired.testing.base import Kind, LocalBroker
from kombu_paired.testing.clocks import ManualClock
from kombu_paired.testing.errors import BrokerFailed, BrokerMissing
from kombu_paired.testing.local_brokers import local_broker, local_broker_missing
from kombu_paired.testing.local_rabbitmq import LocalRabbitMQ
from kombu_paired.testing.local_redis import LocalRedis
from kombu_paired.testing.local_servicebus import LocalServiceBus
from kombu_paired.testing.processes import HOST, descendants, free_port, process_state, spawn, stop_tree
from kombu_paired.testing.scripted import ScriptedBroker

__all__ = (
    "HOST",
    "BrokerFailed",
    "BrokerMissing",
    "Kind",
    "LocalBroker",
    "LocalRabbitMQ",
    "LocalRedis",
    "LocalServiceBus",
    "ManualClock",
    "ScriptedBroker",
    "descendants",
    "free_port",
    "local_broker",
    "local_broker_missing",
    "process_state",
    "spawn",
    "stop_tree",
)
