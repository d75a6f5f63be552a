"""Paired transport: what Kombu sees. No rule of the pairing lives here.

Features
========
* Type: that of the primary namespace
* Supports Direct, Topic, Fanout, Priority, TTL: as the primary namespace does

Connection String
=================
``paired+`` and the primary's own Kombu URL:

.. code-block::

    paired+amqp://[USER:PASSWORD@]PRIMARY[:PORT][/VIRTUALHOST]
    paired+redis://[USER:PASSWORD@]PRIMARY[:PORT][/DB]

Without ``import kombu_paired``, and with a plain URL, give ``kombu_paired.transport:Transport`` as the transport.

Transport Options
=================
* ``secondary``: Kombu URL of the broker that stores what the primary cannot take. Required.
* ``primary_options``, ``secondary_options``: transport options of each side.
* All others: see :class:`kombu_paired.options.PairedNamespaceOptions`.

Sending and consuming are apart. Messages and declarations go to the pairing, which has connections of its own and
works while the primary is away. Consuming goes through the primary's own transport (Kombu's, or the one that
:data:`kombu_paired.brokers.drivers.DRIVERS` names), over a connection that is opened by the first call that only a
consumer makes; while the primary is away that call of a worker waits for it.
"""

from kombu_paired.publish_batch import PublishBatch
from kombu_paired.transport.channel import Channel
from kombu_paired.transport.connection import Connection
from kombu_paired.transport.transport import Transport, pairing_of

__all__ = ("Channel", "Connection", "PublishBatch", "Transport", "pairing_of")
