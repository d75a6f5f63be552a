"""Peers that are no broker: they listen, and then do what makes a client wait."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

from amqp.serialization import dumps

#: The beginning of a long answer, in the protocol of each broker.
BEGINNINGS = {
    "amqp": struct.pack(">BHI", 1, 0, 100_000),
    "redis": b"$100000\r\n",
}
#: Seconds between two bytes of a peer that trickles.
TRICKLE = 0.05


@contextlib.contextmanager
def peer(behave: Callable[[socket.socket], None], host: str = "127.0.0.1") -> Iterator[int]:
    """A port of this machine whose every connection is handed to a function, in a thread."""
    listening = socket.create_server((host, 0))
    accepted: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            behave(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                accepted.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        for each in (listening, *accepted):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def stay_silent(connection: socket.socket) -> None:
    """Read, and answer nothing."""
    while connection.recv(65536):
        pass


def trickle(kind: str) -> Callable[[socket.socket], None]:
    """Begin an answer, and go on with a byte now and then: each read has something to read in time."""

    def behave(connection: socket.socket) -> None:
        connection.recv(65536)
        end(connection, kind, TRICKLING)

    return behave


def unused_port() -> int:
    """A port that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


#: What ends a script of a peer: it stays silent, trickles, or says what makes no sense.
SILENCE, TRICKLING, NONSENSE = "silence", "trickling", "nonsense"


def rabbitmq(
    then: dict[tuple[int, int], str] | None = None, and_answer: bool = False
) -> Callable[[socket.socket], None]:
    """As much of RabbitMQ as lets one in, declares and confirms.

    Arguments:
        then: methods (class and number) that are not answered, and what happens instead.
        and_answer: they are answered, and that happens after it.
    """
    answers: dict[tuple[int, int], tuple[tuple[int, int], bytes] | None] = {
        (10, 11): ((10, 30), dumps("BlB", (2047, 131_072, 0))),  # tune
        (10, 40): ((10, 41), dumps("s", ("",))),
        (10, 50): ((10, 51), b""),
        (20, 10): ((20, 11), dumps("S", ("",))),
        (20, 40): ((20, 41), b""),
        (50, 10): ((50, 11), dumps("sll", ("orders", 0, 0))),
        (60, 10): ((60, 11), b""),  # qos
        (60, 20): ((60, 21), dumps("s", ("tag",))),  # consume
        (60, 40): ((60, 80), dumps("Lb", (1, False))),  # published: acknowledged
        (85, 10): ((85, 11), b""),
    }

    def behave(connection: socket.socket) -> None:
        read = connection.makefile("rb").read

        def answer(channel: int, method: tuple[int, int], arguments: bytes) -> None:
            payload = struct.pack(">HH", *method) + arguments
            connection.sendall(struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce")

        read(8)
        answer(0, (10, 10), dumps("ooFSS", (0, 9, {}, "PLAIN", "en_US")))
        while head := read(7):
            kind, channel, size = struct.unpack(">BHI", head)
            payload = read(size + 1)
            if kind != 1:
                continue
            method = struct.unpack(">HH", payload[:4])
            found = answers.get(method)
            if then and method in then:
                if and_answer and found is not None:
                    answer(channel, *found)
                end(connection, "amqp", then[method])
            if found is not None:
                answer(channel, *found)

    return behave


_REDIS_SAYS = {b"PING": b"+PONG\r\n", b"HELLO": b"%1\r\n$5\r\nproto\r\n:3\r\n"}


def redis_server(then: dict[bytes, str] | None = None) -> Callable[[socket.socket], None]:
    """As much of Redis as lets one in and takes what one pushes; commands in ``then`` it does not answer."""

    def behave(connection: socket.socket) -> None:
        lines, queued = connection.makefile("rb"), -1
        while head := lines.readline():
            parts = [lines.read(int(lines.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]
            if then and parts[0] in then:
                end(connection, "redis", then[parts[0]])
            answer = _REDIS_SAYS.get(parts[0], b":1\r\n")
            if parts[0] == b"EXEC":
                answer, queued = b"*%d\r\n" % queued + b":1\r\n" * queued, -1
            elif queued >= 0 or parts[0] == b"MULTI":
                answer, queued = b"+QUEUED\r\n", queued + 1
            connection.sendall(answer)

    return behave


def end(connection: socket.socket, kind: str, how: str) -> None:
    """Stay silent or trickle for ever, perhaps after an answer to what nobody asked."""
    if how == NONSENSE:
        connection.sendall({"amqp": struct.pack(">BHIHHB", 1, 77, 4, 20, 11, 0xCE), "redis": b"?\r\n"}[kind])
    if how == TRICKLING:
        connection.sendall(BEGINNINGS[kind])
    pause = threading.Event()
    while not pause.wait(TRICKLE):
        connection.sendall(b"x" if how == TRICKLING else b"")
