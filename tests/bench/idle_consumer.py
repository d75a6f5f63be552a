"""A process with nothing in it but a Kombu consumer, forked from one that has imported all it needs."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from kombu import Connection, Consumer, Queue

import kombu_paired  # noqa: F401  (registers the transport)
from tests.support.ledger import Ledger

QUEUE = "celery"

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


def consume(url: str, options: dict[str, Any], seen: Path, ready: Pipe) -> None:
    """Consume until killed; what was got is written down before it is acknowledged."""
    ledger = Ledger(seen)

    def write_down(message: Any) -> None:
        ledger.write(int(message.payload), message.delivery_tag)
        message.ack()

    connection = Connection(url, transport_options=options)
    with suppress(*connection.connection_errors), connection, connection.channel() as channel:
        channel.basic_qos(0, 4, False)
        with Consumer(channel, [Queue(QUEUE, routing_key=QUEUE)], on_message=write_down):
            ready.send("consuming")
            while True:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=1)


class LightConsumer:
    """Such a process, from without."""

    def __init__(self, folder: Path, url: str, options: dict[str, Any]) -> None:
        self._ready, ready = _processes.Pipe(duplex=False)
        self._process = _processes.Process(target=consume, args=(url, options, folder / "seen", ready), daemon=True)

    def begin(self) -> None:
        self._process.start()
        self._ready.recv()

    def freeze(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
