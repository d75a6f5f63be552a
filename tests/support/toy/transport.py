"""A Kombu transport to the toy broker: ``toy://:PASSWORD@HOST:PORT``."""

from __future__ import annotations

import json
import socket
from queue import Empty
from typing import Any

from kombu.transport import virtual

__all__ = ("Channel", "Line", "ToyError", "Transport")


class ToyError(Exception):
    """The broker refused; ``word`` says why: ``missing``, ``full``, ``denied``."""

    def __init__(self, word: str, text: str) -> None:
        super().__init__(f"{word}: {text}")
        self.word = word


class Line:
    """A connection to the broker, over a socket that is connected."""

    def __init__(self, sock: Any, password: str) -> None:
        self.sock = sock
        self._ahead = b""
        self._password = password
        self.ask("hello")

    def ask(self, what: str, **arguments: Any) -> Any:
        order = {"do": what, **arguments}
        if what == "hello":
            order["password"] = self._password
        self.sock.sendall(json.dumps(order).encode() + b"\n")
        answer = json.loads(self._line())
        if "refusal" in answer:
            raise ToyError(answer["refusal"], answer["text"])
        return answer["answer"]

    def _line(self) -> bytes:
        parts = [self._ahead]
        while b"\n" not in parts[-1]:
            part = self.sock.recv(65536)
            if not part:
                raise ConnectionResetError("the broker has hung up")
            parts.append(part)
        line, _, self._ahead = b"".join(parts).partition(b"\n")
        return line

    def close(self) -> None:
        self.sock.close()


class QoS(virtual.QoS):
    """The broker knows what a connection holds, so nothing is put back from here."""

    restore_at_shutdown = False

    def ack(self, delivery_tag: int) -> None:
        self.channel.line.ask("complete", number=delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        self.channel.line.ask("give_back" if requeue else "complete", number=delivery_tag)
        super().ack(delivery_tag)


class Channel(virtual.Channel):
    QoS = QoS
    do_restore = False
    supports_fanout = False
    deadletter_queue = None

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.line = connection.new_line()

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        self.line.ask("declare", queue=queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        try:
            return self._size(queue) >= 0
        except ToyError:
            return False

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self.line.ask("delete", queue=queue)

    def _size(self, queue: str) -> int:
        return int(self.line.ask("size", queue=queue))

    def _purge(self, queue: str) -> int:
        return int(self.line.ask("purge", queue=queue))

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self.line.ask("put", queue=queue, message=message)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        found = self.line.ask("take", queue=queue)
        if found is None:
            raise Empty
        number, message = found
        message["properties"]["delivery_tag"] = number
        return dict(message)

    def close(self) -> None:
        super().close()
        self.line.close()


class Transport(virtual.Transport):
    Channel = Channel
    default_port = 7777
    driver_type = driver_name = "toy"
    connection_errors = (OSError, *virtual.Transport.connection_errors)
    channel_errors = (ToyError, *virtual.Transport.channel_errors)

    def new_line(self) -> Line:
        client = self.client
        address = (client.hostname or "localhost", client.port or self.default_port)
        sock = socket.create_connection(address, client.connect_timeout)
        return Line(self.held(sock), client.password or "")

    def held(self, sock: socket.socket) -> Any:
        """The socket as a line gets it: it waits for as long as connecting may take, and no longer."""
        return sock

    def driver_version(self) -> str:
        return "1"
