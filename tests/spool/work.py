"""What processes do with a spool while something happens to them: ``python -m tests.spool.work FOLDER ACKS WHAT …``.

They tell what they did in lines of a file, each by one write: ``+n`` when the call that sent n had returned, and ``-n``
before n is removed.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.message import Message

QUEUES = [f"shop/x-servicebus-transfer/{n}" for n in range(4)]


def namespace_of(folder: Path | str) -> KombuNamespace:
    return KombuNamespace("secondary", [f"spool://{folder}"], {}, send_timeout=60)


class Told:
    """The file with what was done."""

    def __init__(self, path: Path | str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(self, sign: str, number: str) -> None:
        os.write(self._fd, f"{sign}{number}\n".encode())


def send(namespace: KombuNamespace, told: Told, name: str, count: int, size: int) -> None:
    """Send numbers that no other sender has."""
    sender = namespace.sender()
    for n in range(count):
        number = f"{name}.{n}"
        queue = QUEUES[n % len(QUEUES)]
        sender.send(Message(os.urandom(size), routing_key=queue, properties={"message_id": number}), 60)
        told.tell("+", number)
    sender.close()


def drain(namespace: KombuNamespace, told: Told, count: int) -> None:
    """Receive and remove so many."""
    receiver = namespace.receiver(QUEUES, 50, 60)
    while count > 0:
        batch = receiver.receive(min(50, count), 5)
        for each in batch:
            told.tell("-", str(each.message.message_id))
        receiver.complete(batch)
        count -= len(batch)
    receiver.close()


def main(folder: str, acks: str, what: str, name: str, count: str, *more: str) -> None:
    namespace, told = namespace_of(folder), Told(acks)
    if what == "drain":
        drain(namespace, told, int(count))
        return
    threads, size = map(int, more)
    running = [
        threading.Thread(target=send, args=(namespace, told, f"{name}.{n}", int(count), size)) for n in range(threads)
    ]
    for each in running:
        each.start()
    for each in running:
        each.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
