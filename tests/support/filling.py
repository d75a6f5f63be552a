"""Queues of Service Bus that are filled at once, and not message by message: far away each would take a round trip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kombu
from azure.servicebus import ServiceBusClient

from kombu_paired.emulator import Emulator

TRANSPORT = "kombu_paired.brokers.servicebus.transport:Transport"
AT_ONCE = 100


@contextmanager
def filling(emulator: Emulator, queue: str) -> Iterator[kombu.Connection]:
    """A connection to publish over, to that queue alone; all of it is sent at the end, as it would be singly."""
    url = f"azureservicebus://RootManageSharedAccessKey:SAS_KEY_VALUE@{emulator.host}"
    sent: list[Any] = []
    with kombu.Connection(url, transport=TRANSPORT) as connection:
        connection.ensure_connection()
        kombu.Queue(queue, channel=connection.default_channel).declare()
        connection.transport.outgoing.send = lambda entity, message, timeout: sent.append(message)
        yield connection
    with (
        ServiceBusClient.from_connection_string(emulator.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for start in range(0, len(sent), AT_ONCE):
            sender.send_messages(sent[start : start + AT_ONCE])
