"""A Service Bus namespace in one process, for demos and tests. It is not for production, and says so.

The unmodified official SDK, sync and async, and its administration client work against it on one port::

    with Emulator(queues=["orders"]) as emulator:
        client = ServiceBusClient.from_connection_string(emulator.connection_string)

Rooms, each with one reason to change, from the ground up:

==================  ==============================================================================
``codec``           the types of AMQP 1.0
``frames``          its frames, performatives and outcomes
``envelope``        the sections of a message
``errors``          how the emulator says no
``entities``        properties of queues, topics and subscriptions; names
``queues``          one queue: locks, settlement, schedules, time to live, duplicates, sessions
``broker``          a namespace: topics, forwarding, administration
``store``           the namespace on disk
``tokens``          shared access signatures
``faults``          what goes wrong on request
``atom``            the XML of the management API
``management``      the management API
``connection``      one AMQP connection: headers, SASL, frames, sessions
``links``           its links
``requests``        the requests of ``$management``
``http``, ``tls``   the other two languages of the port
``control``         the emulator's own API
``doors``           sockets, and who speaks on one
``server``          what ties connections to the broker
``embed``           an emulator inside a test
``command``         the command line
==================  ==============================================================================

Everything up to ``management`` is pure: no I/O but the store's, and an injected clock. Nothing here knows the rest of
the package, and nothing but ``command`` needs more than the standard library.

What the service has and this has not: transactions, filters that look into a message (SQL, correlation) and rule
actions, AMQP over web sockets, partitions and express entities (accepted, and without effect), the transfer
dead-letter queue (what cannot be forwarded is an ordinary dead letter of the queue it came from), throttling but on
request, other tokens than shared access signatures (taken unseen where no keys are given), replication.
"""

from __future__ import annotations

from kombu_paired.emulator.embed import Emulator
from kombu_paired.emulator.server import Server, Settings
from kombu_paired.emulator.tokens import Policy

__all__ = ("Emulator", "Policy", "Server", "Settings")
