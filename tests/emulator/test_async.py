"""The asynchronous SDK against the emulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kombu_paired.emulator import Emulator

pytest.importorskip("azure.servicebus")
pytest.importorskip("aiohttp")

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusServerBusyError


def test_messages(emulator: Emulator, make_queue: Callable[..., str]) -> None:
    queue = make_queue()

    async def scenario() -> None:
        async with ServiceBusClient.from_connection_string(emulator.connection_string, retry_total=0) as client:
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages(ServiceBusMessage("one"))
                await sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
                emulator.fault("server-busy", queue, times=1)
                with pytest.raises(ServiceBusServerBusyError):
                    await sender.send_messages(ServiceBusMessage("busy"))
            async with client.get_queue_receiver(queue) as receiver:
                one, two, three = [(await receiver.receive_messages(1, max_wait_time=20))[0] for _ in range(3)]
                await receiver.complete_message(one)
                await receiver.renew_message_lock(two)
                await receiver.defer_message(two)
                (deferred,) = await receiver.receive_deferred_messages([two.sequence_number])
                await receiver.complete_message(deferred)
                await receiver.dead_letter_message(three, reason="why")
                assert await receiver.receive_messages(max_wait_time=0.3) == []

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert emulator.status()["queues"][queue] == {"active": 0, "deferred": 0, "scheduled": 0, "dead_lettered": 1}


def test_sessions(emulator: Emulator, make_queue: Callable[..., str]) -> None:
    queue = make_queue(requires_session=True)

    async def scenario() -> None:
        async with ServiceBusClient.from_connection_string(emulator.connection_string, retry_total=0) as client:
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages(ServiceBusMessage("x", session_id="s"))
            async with client.get_queue_receiver(queue, session_id="s") as receiver:
                (message,) = await receiver.receive_messages(max_wait_time=20)
                await receiver.session.set_state(b"state")
                assert await receiver.session.get_state() == b"state"
                await receiver.complete_message(message)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_administration(emulator: Emulator) -> None:
    async def scenario() -> None:
        async with ServiceBusAdministrationClient.from_connection_string(
            emulator.connection_string, connection_verify=False
        ) as admin:
            await admin.create_queue("async/queue")
            assert [queue.name async for queue in admin.list_queues() if queue.name.startswith("async")]
            await admin.delete_queue("async/queue")
            with pytest.raises(ResourceNotFoundError):
                await admin.get_queue("async/queue")

    asyncio.run(asyncio.wait_for(scenario(), 30))
