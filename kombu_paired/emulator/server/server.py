"""The emulator at work: one namespace on one port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from kombu_paired.emulator.broker.errors import missing
from kombu_paired.emulator.broker.faults import Faults
from kombu_paired.emulator.broker.namespace import Namespace
from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.broker.store import Store
from kombu_paired.emulator.server.attaching import LinkMaker
from kombu_paired.emulator.server.connection import AmqpConnection
from kombu_paired.emulator.server.connections import Connections
from kombu_paired.emulator.server.control import control
from kombu_paired.emulator.server.deliveries import Deliveries
from kombu_paired.emulator.server.distance import Road
from kombu_paired.emulator.server.doors import Doors
from kombu_paired.emulator.server.http_desk import HttpDesk
from kombu_paired.emulator.server.management import ManagementApi
from kombu_paired.emulator.server.requests import RequestDesk
from kombu_paired.emulator.server.settings import Settings
from kombu_paired.emulator.server.speakers import Speakers
from kombu_paired.emulator.server.timers import Timers
from kombu_paired.emulator.server.tokens import Policies
from kombu_paired.emulator.server.waiters import Waiters
from kombu_paired.emulator.wire.ends import Wire
from kombu_paired.emulator.wire.tls import Certificate

__all__ = ("Server",)

_TICK = 0.05
_ROUND = 0.5


class Server:
    """One namespace on one port.

    Arguments:
        settings: how it runs.
        clock: seconds since 1970.

    Attributes:
        port: where it listens, once it does.
        namespace: its entities and messages.
        faults: what goes wrong.
        connections: its clients.
        frozen: whether it stands still.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.port = settings.port
        self.timers = Timers(clock)
        self.faults = Faults()
        self.connections = Connections()
        self.frozen = False
        self._policies = Policies(settings.policies, clock, settings.token_life)
        self._waiters = Waiters(self.timers)
        self._deliveries = Deliveries(self.timers, self._waiters.offer)
        self._store = Store.open(settings.data) if settings.data is not None else None
        self.namespace = Namespace(clock, self._store, self._deliveries.ready, self._gone)
        self._api = ManagementApi(self.namespace, settings.name, settings.max_message_size)
        self._links = self._link_maker()
        answer = HttpDesk(self._api, self._policies, self.timers, self.faults, partial(control, self)).answer
        self._speakers = Speakers(settings.host, self.timers, self.faults, self._connect, answer)
        self._doors = Doors(
            self._speakers,
            partial(self.timers.soon, self.connections.pump),
            partial(Road, self.timers, settings.latency),
        )
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_round = 0.0

    def _link_maker(self) -> LinkMaker:
        desk = RequestDesk(self._find, self._send, self.namespace, self._policies)
        return LinkMaker(
            self.namespace,
            self._policies,
            self._send,
            desk,
            self._deliveries,
            self._waiters,
            self.settings.max_message_size,
        )

    # ---------------------------------------------------------------------------------------------------- life cycle

    async def start(self) -> None:
        """Listen. Entities that the settings name are there from then on."""
        loop = asyncio.get_running_loop()
        self.timers.start(loop)
        try:
            await self._start(loop)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._store is not None:
            self._store.load(self.namespace)
        self._make_settled()
        self._listener = await loop.create_server(
            self._doors.make, self.settings.host, self.port, reuse_address=True, backlog=512
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._tick()

    def _make_settled(self) -> None:
        """Make what the settings name."""
        for name in self.settings.queues:
            self._api.ensure_queue(name)
        for spec in self.settings.topics:
            self._api.ensure_topic(spec)

    async def stop(self) -> None:
        """Hang up on everybody, at once, and stop listening."""
        if self._timer is not None:
            self._timer.cancel()
        self._doors.shut()
        await _let_in()
        if self._listener is not None:
            self._listener.close()
        if self._store is not None:
            self._store.close()
        self._speakers.close()

    def drop_connections(self) -> None:
        """Hang up on everybody, and go on listening."""
        self._doors.abort()

    def reset(self) -> None:
        """Be as new: without entities, messages and faults; and hang up on everybody."""
        self.faults.clear(None)
        for path in [*self.namespace.queues, *self.namespace.topics]:
            self.namespace.delete(path)
        self._make_settled()
        self.timers.soon(self.drop_connections)

    def freeze(self, frozen: bool) -> None:
        """Stop reading, as a machine that hangs; new clients are accepted and hear nothing."""
        self.frozen = self._deliveries.frozen = frozen
        self._doors.freeze(frozen)
        if not frozen:
            self.connections.pump()

    def _tick(self) -> None:
        self._timer = self.timers.later(_TICK, self._tick)
        if self.frozen:
            return
        self.namespace.tick()
        now = self.timers.now()
        if now - self._last_round > _ROUND:
            self._last_round = now
            self.namespace.delete_idle()
            self.connections.keep_house(now)

    # ------------------------------------------------------------------------------------- what its parts need of it

    def certificate(self) -> Certificate:
        """The self-signed certificate of this server, made when first needed.

        Raises:
            OSError: there is no ``openssl`` program, or it made none.
        """
        return self._speakers.certificate()

    def _connect(self, wire: Wire) -> AmqpConnection:
        """A client that speaks AMQP."""
        connection = AmqpConnection(wire, self.settings, self.timers, self.faults, self._links.attach)
        self.connections.add(connection)
        return connection

    def _send(self, path: str, payloads: list[bytes]) -> list[int]:
        """Store messages: on disk, if there is one, before this returns."""
        if self._store is None:
            return self.namespace.send(path, payloads)
        with self._store.together():
            return self.namespace.send(path, payloads)

    def _find(self, path: str) -> Queue:
        """The queue that requests to a path are about."""
        found = self.namespace.find(path)
        return found if isinstance(found, Queue) else found.inbox

    def _gone(self, path: str) -> None:
        gone = missing(path)
        self.connections.detach(path, gone)
        self._waiters.gone(path, gone)


async def _let_in() -> None:
    """Wait until nobody is on the doorstep: asyncio forgets such a client's socket when it stops listening."""
    while True:
        await asyncio.sleep(0)  # the loop lets in who knocked, and closes the sockets that were aborted
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            return
        await asyncio.wait(others)
