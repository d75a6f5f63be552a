"""Every kind of fault on every operation: it happens as often as it was asked for, or it is refused as nonsense.

Over a socket, without the SDK: so many pairs take the SDK's naps minutes.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kombu_paired.emulator import Emulator
from kombu_paired.emulator.broker.faults import Fault
from kombu_paired.emulator.broker.kinds import KINDS, OPERATIONS, OUTCOMES
from kombu_paired.emulator.wire import frames
from kombu_paired.emulator.wire.codec import Described, ULong, encode
from kombu_paired.emulator.wire.envelope import read_request
from kombu_paired.emulator.wire.frames import Begin, Detach, Disposition, Transfer
from tests.emulator.by_hand import MESSAGE, PATIENCE, SECONDS, Client, is_accepted

REFUSALS = [kind for kind, what in KINDS.items() if what.condition is not None]
#: Nobody who connects, and no request over HTTP, can be told that; and some answers are of one operation alone.
NONSENSE = {
    *((kind, "connect") for kind in (*REFUSALS, "detach", "close", "lost-acknowledgement")),
    *((kind, "manage") for kind in ("detach", "close")),
    *(("conflict", operation) for operation in OPERATIONS if operation != "manage"),
    *((kind, operation) for kind in OUTCOMES for operation in OPERATIONS if operation != "send"),
}

#: What is done, and how long its answer is waited for; whether there was one.
Act = Callable[..., bool]

names = (f"queue-{number}" for number in itertools.count(1))


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator() as running:
        yield running


def connecting(emulator: Emulator, queue: str) -> Iterator[Act]:
    with contextlib.closing(Client(emulator)) as client:
        yield lambda seconds=PATIENCE: client.open().next(Begin, seconds) is not None


def attaching(emulator: Emulator, queue: str) -> Iterator[Act]:
    with contextlib.closing(Client(emulator).open()) as client:
        yield lambda seconds=PATIENCE: client.attach(queue, 0, receives=True, seconds=seconds)


def sending(emulator: Emulator, queue: str) -> Iterator[Act]:
    with contextlib.closing(Client(emulator).open()) as client:
        assert client.attach(queue, 0, receives=False)

        def act(seconds: float = PATIENCE) -> bool:
            client.transfer(0, MESSAGE)
            return is_accepted(client.next(Disposition, seconds))

        yield act


def fill(emulator: Emulator, queue: str) -> None:
    for act in sending(emulator, queue):
        assert act()


def receiving(emulator: Emulator, queue: str) -> Iterator[Act]:
    fill(emulator, queue)
    with contextlib.closing(Client(emulator).open()) as client:
        assert client.attach(queue, 0, receives=True)

        def act(seconds: float = PATIENCE) -> bool:
            client.credit(0)
            return client.next(Transfer, seconds) is not None

        yield act


def settling(emulator: Emulator, queue: str) -> Iterator[Act]:
    fill(emulator, queue)
    with contextlib.closing(Client(emulator).open()) as client:
        assert client.attach(queue, 0, receives=True)
        client.credit(0)
        assert client.next(Transfer) is not None

        def act(seconds: float = PATIENCE) -> bool:
            client.send(Disposition(True, 0, 0, False, frames.ACCEPTED))
            return is_accepted(client.next(Disposition, seconds))

        yield act


def _requesting(emulator: Emulator, address: str, application: dict[str, Any], body: Any, status: str) -> Iterator[Act]:
    with contextlib.closing(Client(emulator).open()) as client:
        assert client.attach(address, 0, receives=False)
        assert client.attach(address, 1, receives=True)
        client.credit(1)

        def act(seconds: float = PATIENCE) -> bool:
            parts = ((0x73, ["1"]), (0x74, application), (0x77, body))
            client.transfer(0, b"".join(encode(Described(ULong(code), value)) for code, value in parts))
            answer = client.next(Transfer, seconds)
            return answer is not None and read_request(answer.payload).application[status] // 100 == 2

        yield act


def showing_a_token(emulator: Emulator, queue: str) -> Iterator[Act]:
    return _requesting(emulator, "$cbs", {"operation": "put-token", "name": queue}, "a token", "status-code")


def requesting(emulator: Emulator, queue: str) -> Iterator[Act]:
    peek = {"operation": "com.microsoft:peek-message"}
    wanted = {"from-sequence-number": 0, "message-count": 1}
    return _requesting(emulator, f"{queue}/$management", peek, wanted, "statusCode")


def managing(emulator: Emulator, queue: str) -> Iterator[Act]:
    def act(seconds: float = PATIENCE) -> bool:
        try:
            with urllib.request.urlopen(f"{emulator.url}/{queue}", timeout=seconds) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    yield act


DOING: dict[str, Callable[[Emulator, str], Iterator[Act]]] = {
    "connect": connecting,
    "token": showing_a_token,
    "attach": attaching,
    "send": sending,
    "receive": receiving,
    "settle": settling,
    "request": requesting,
    "manage": managing,
}


@pytest.fixture
def queue(emulator: Emulator) -> str:
    name = next(names)
    entry = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
        'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
    )
    request = urllib.request.Request(f"{emulator.url}/{name}", entry.encode(), method="PUT")
    with urllib.request.urlopen(request, timeout=PATIENCE):
        return name


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_happens_once_and_then_all_is_well(emulator: Emulator, queue: str, kind: str, operation: str) -> None:
    for act in DOING[operation](emulator, queue):
        if (kind, operation) in NONSENSE:
            with pytest.raises(ValueError, match="cannot happen on"):
                emulator.fault(kind, on=[operation], times=1)
            return
        emulator.fault(kind, on=[operation], times=1, seconds=SECONDS / 4)

        worked = act() if kind == "slow" else act(SECONDS)

        assert emulator.status()["faults"] == []
        assert worked is (kind == "slow")
    for act in DOING[operation](emulator, queue):
        assert act()


def test_who_waits_for_messages_meets_a_fault_at_once(emulator: Emulator, queue: str) -> None:
    with contextlib.closing(Client(emulator).open()) as client:
        assert client.attach(queue, 0, receives=True)
        client.credit(0)

        emulator.fault("detach", queue, on=["receive"], times=1)

        assert client.next(Detach, PATIENCE) is not None


@pytest.mark.parametrize(("times", "again"), [(1, "asked"), (None, "cleared")])
def test_a_receive_that_is_not_answered(emulator: Emulator, queue: str, times: int | None, again: str) -> None:
    for act in receiving(emulator, queue):
        emulator.fault("silent", queue, on=["receive"], times=times)
        assert not act(SECONDS)
        fill(emulator, queue)  # that another message comes changes nothing
        if again == "cleared":
            assert not act(SECONDS)
            emulator.clear_faults(queue)
        assert act()


def test_a_late_receive_is_in_order_and_whole(emulator: Emulator, queue: str) -> None:
    for act in receiving(emulator, queue):
        emulator.fault("slow", queue, on=["receive"], times=1, seconds=SECONDS / 2)
        started = time.monotonic()
        assert act()
        assert time.monotonic() - started >= SECONDS / 2


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"kind": "flood"}, "not one of server-busy"),
        ({"kind": "slow", "on": ["sleep"]}, "not sleep"),
        ({"kind": "slow", "sometimes": True}, "sometimes"),
        ({"kind": "slow", "times": 0}, "times is 0"),
        ({"kind": "slow", "times": "three"}, "times is 'three'"),
        ({"kind": "silent", "entity": "orders", "on": ["connect"]}, "of an entity cannot happen on connect"),
        ({"kind": "conflict", "on": ["send"]}, "cannot happen on send, only on manage"),
    ],
)
def test_nonsense_is_refused(emulator: Emulator, spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Fault.parse(spec)


def test_a_fault_of_an_entity_happens_where_it_has_one() -> None:
    everywhere, mine = Fault.parse({"kind": "silent"}), Fault.parse({"kind": "silent", "entity": "orders"})
    assert everywhere.operations - mine.operations == {"connect", "token"}
