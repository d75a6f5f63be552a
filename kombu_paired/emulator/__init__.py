"""A Service Bus namespace in one process, for demos and tests. It is not for production, and says so.

The unmodified official SDK, sync and async, and its administration client work against it on one port::

    with Emulator(queues=["orders"]) as emulator:
        client = ServiceBusClient.from_connection_string(emulator.connection_string)

Three rooms, from the ground up. What is in a line knows only lines above it.

``wire``: bytes. Pure.

==================  ==============================================================================
``codec``           the types of AMQP 1.0
``frames``          its frames, performatives and outcomes
``envelope``        the sections of a message
``ends``            the two ends of a wire, as those between them know them
``tls``             TLS on one
==================  ==============================================================================

``broker``: what a namespace is, without sockets. Pure, but for the store; the clock is injected.

==================  ==============================================================================
``errors``          how the emulator says no
``entities``        properties of queues, topics and subscriptions; names
``messages``        a stored message, and how it looks to its receiver
``journals``        where what must survive is written down
``timetable``       what is due when
``stock``           the messages of a queue: schedules, time to live, duplicates, dead letters
``sql``             the SQL of rules
``rules``           which messages a subscription gets
``queues``          how they are received: locks, settlement, sessions
``directory``       the entities by name
``namespace``       sending, forwarding, administration
``store``           the namespace on disk
``kinds``           the kinds of faults, in the words of the service
``faults``          what goes wrong on request
==================  ==============================================================================

``server``: what speaks to clients.

==================  ==============================================================================
``tokens``          shared access signatures
``settings``        how an emulator runs
``timers``          now, soon and later
``sessions``        a session of an AMQP connection, and what its links have in common
``atom``            the XML of the management API
``rule_forms``      rules of subscriptions as clients write them
``requests``        the requests of ``$cbs`` and ``$management``
``links``           senders, receivers, request links
``connection``      one AMQP connection: headers, SASL, frames
``connections``     all of them
``waiters``         clients that wait for a session
``deliveries``      who receives from which queue, and when
``attaching``       the links that clients ask for
``http``            as much of HTTP as is needed
``management``      the management API
``control``         the emulator's own API
``http_desk``       which of them answers, and to whom
``speakers``        who speaks on a wire: AMQP, TLS or HTTP
``distance``        how far away it is
``doors``           the sockets
``server``          what ties all this together
``embed``           an emulator inside a test
``command``         the command line
==================  ==============================================================================

Nothing here knows the rest of the package, and nothing but ``command`` needs more than the standard library.

What the service has and this has not: transactions, rule actions, functions and arithmetic in the SQL of rules, AMQP
over web sockets, partitions and express entities (accepted, and without effect), the transfer dead-letter queue (what
cannot be forwarded is an ordinary dead letter of the queue it came from), throttling but on request, other tokens than
shared access signatures (taken unseen where no keys are given), replication.
"""

from __future__ import annotations

from kombu_paired.emulator.server.embed import Emulator
from kombu_paired.emulator.server.server import Server
from kombu_paired.emulator.server.settings import Settings
from kombu_paired.emulator.server.tokens import Policy

__all__ = ("Emulator", "Policy", "Server", "Settings")
