"""Every line of the SDK's exception table that an emulator can provoke, with the class that the SDK raises."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from kombu_paired.emulator import Emulator
from tests.emulator.conftest import connect

pytest.importorskip("azure.servicebus")

from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

MakeQueue = Callable[..., str]

pytestmark = [pytest.mark.filterwarnings("ignore:Unverified HTTPS request"), pytest.mark.real_naps]


@pytest.fixture
def sender(client: ServiceBusClient, queue: str) -> Iterator[ServiceBusSender]:
    with client.get_queue_sender(queue) as opened:
        yield opened


def exactly(kind: type[BaseException]) -> AbstractContextManager[Any]:
    """Raised, and of this class itself."""

    class Exactly:
        def __enter__(self) -> None: ...

        def __exit__(self, raised: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
            assert raised is kind, f"{raised} instead of {kind}: {error}"
            return True

    return Exactly()


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("server-busy", ServiceBusServerBusyError),
        ("timeout", OperationTimeoutError),
        ("quota", ServiceBusQuotaExceededError),
        ("size", MessageSizeExceededError),
        ("internal-error", ServiceBusError),
        ("container-close", ServiceBusError),
        ("operation-cancelled", ServiceBusError),
        ("reset", ServiceBusConnectionError),
        ("detach", ServiceBusConnectionError),
        ("close", ServiceBusConnectionError),
        ("detach com.microsoft:server-busy", ServiceBusConnectionError),
        ("close com.microsoft:server-busy", ServiceBusConnectionError),
    ],
)
def test_a_refused_send(sender: ServiceBusSender, emulator: Emulator, kind: str, raised: type[Exception]) -> None:
    kind, _, condition = kind.partition(" ")
    emulator.fault(kind, times=1, condition=condition or None)
    with exactly(raised):
        sender.send_messages(ServiceBusMessage("x"))
    sender.send_messages(ServiceBusMessage("the same sender works again"))


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("disabled", MessagingEntityDisabledError),
        ("unauthorized", ServiceBusAuthorizationError),
        ("not-found", MessagingEntityNotFoundError),
    ],
)
@pytest.mark.parametrize("receiving", [False, True])
def test_a_refused_link(
    client: ServiceBusClient, emulator: Emulator, queue: str, kind: str, raised: type[Exception], receiving: bool
) -> None:
    emulator.fault(kind, queue, on=["attach"])
    link = client.get_queue_receiver(queue) if receiving else client.get_queue_sender(queue)
    with exactly(raised):
        link.__enter__()
    emulator.clear_faults(queue)
    with link:
        pass


def test_a_fault_of_one_entity_leaves_the_others_alone(
    client: ServiceBusClient, emulator: Emulator, make_queue: MakeQueue
) -> None:
    broken, sound = make_queue(), make_queue()
    with client.get_queue_sender(broken) as one, client.get_queue_sender(sound) as other:
        emulator.fault("disabled", broken)
        for _ in range(2):
            with exactly(MessagingEntityDisabledError):
                one.send_messages(ServiceBusMessage("x"))
            other.send_messages(ServiceBusMessage("x"))


def test_a_disabled_queue_drops_its_receivers(client: ServiceBusClient, emulator: Emulator, queue: str) -> None:
    with client.get_queue_receiver(queue) as receiver:
        emulator.fault("disabled", queue)
        with exactly(MessagingEntityDisabledError):
            receiver.receive_messages(max_wait_time=20)


def test_nothing_listens(queue: str) -> None:
    emulator = Emulator().start()
    emulator.stop()
    with connect(emulator) as client, exactly(ServiceBusConnectionError):
        client.get_queue_sender("q").__enter__()


def test_killed_while_idle_and_restarted() -> None:
    with Emulator(["q"]) as emulator, connect(emulator) as client, client.get_queue_sender("q") as sender:
        sender.send_messages(ServiceBusMessage("x"))
        emulator.kill()
        with exactly(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("x"))
        emulator.restart()
        sender.send_messages(ServiceBusMessage("x"))


def test_killed_during_a_send() -> None:
    with Emulator(["q"]) as emulator, connect(emulator) as client, client.get_queue_sender("q") as sender:
        emulator.fault("silent", on=["send"])
        timer = threading.Timer(0.5, emulator.kill)
        timer.start()
        with exactly(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("x"))
        timer.join()


def test_stored_but_the_acknowledgement_is_lost(emulator: Emulator, make_queue: MakeQueue) -> None:
    counts = []
    for properties in ({}, {"requires_duplicate_detection": True}):
        queue = make_queue(**properties)
        with connect(emulator, retry_total=1) as client, client.get_queue_sender(queue) as sender:
            emulator.fault("lost-acknowledgement", queue, times=1)
            sender.send_messages(ServiceBusMessage("x", message_id="same"))
        counts.append(emulator.status()["queues"][queue]["active"])
    assert counts == [2, 1]


def test_an_unanswered_send_times_out(sender: ServiceBusSender, emulator: Emulator) -> None:
    emulator.fault("silent", on=["send"], times=1)
    with exactly(OperationTimeoutError):
        sender.send_messages(ServiceBusMessage("x"), timeout=1)


def test_frozen_in_a_send() -> None:
    with Emulator(["q"], process=True) as emulator, connect(emulator) as client, client.get_queue_sender("q") as sender:
        emulator.freeze()
        with exactly(OperationTimeoutError):
            sender.send_messages(ServiceBusMessage("x"), timeout=1)
        emulator.thaw()
        sender.send_messages(ServiceBusMessage("x"))


@pytest.mark.parametrize("process", [False, True])
def test_frozen_at_connect_it_stays_silent(process: bool) -> None:
    with Emulator(["q"], process=process) as emulator, connect(emulator) as client:
        emulator.freeze()
        opened = threading.Event()

        def open_sender() -> None:
            with client.get_queue_sender("q"):
                opened.set()

        thread = threading.Thread(target=open_sender, daemon=True)
        thread.start()
        assert not opened.wait(1)
        emulator.thaw()
        assert opened.wait(20)
        thread.join(20)


def test_silent_and_slow_at_connect(emulator: Emulator, queue: str) -> None:
    emulator.fault("slow", on=["connect"], seconds=1, times=1)
    started = time.monotonic()
    with connect(emulator) as client, client.get_queue_sender(queue):
        assert time.monotonic() - started > 1


def test_a_slow_send_is_answered_late(sender: ServiceBusSender, emulator: Emulator) -> None:
    emulator.fault("slow", on=["send"], seconds=0.5, times=1)
    started = time.monotonic()
    sender.send_messages(ServiceBusMessage("x"))
    assert 0.5 < time.monotonic() - started < 10


def test_a_slow_settlement_is_answered_late(client: ServiceBusClient, emulator: Emulator, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))
    with client.get_queue_receiver(queue) as receiver:
        emulator.fault("slow", queue, seconds=0.5)
        (message,) = receiver.receive_messages(max_wait_time=20)
        started = time.monotonic()
        receiver.complete_message(message)
        assert 0.5 < time.monotonic() - started < 10


@pytest.mark.parametrize(
    "nonsense",
    [
        b"AMQP\x09\x01\x00\x00",
        b"AMQP\x00\x01\x00\x00" + bytes(100),
        b"AMQP\x00\x01\x00\x00\x00\x00\x00\x10\x02\x00\x00\x00\x00\x53\x12\xc0\x03\x01\x41\x41",
        b"\x16\x03\x01" + bytes(100),
        b"GET\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        bytes(300),
    ],
)
def test_nonsense_ends_only_its_own_connection(emulator: Emulator, nonsense: bytes) -> None:
    with socket.create_connection(("127.0.0.1", emulator.port), 5) as client:
        client.sendall(nonsense)
        client.settimeout(0.3)
        with contextlib.suppress(OSError):
            while client.recv(1000):
                pass
    assert emulator.status()["name"] == "emulator"


def test_a_lock_lost_at_complete(client: ServiceBusClient, emulator: Emulator, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))
    with client.get_queue_receiver(queue) as receiver:
        (message,) = receiver.receive_messages(max_wait_time=20)
        emulator.fault("lock-lost", queue, times=1)
        with exactly(MessageLockLostError):
            receiver.complete_message(message)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Emulator]:
    policies = ["root:a/+=key==", "send only:k:Send", "listen:k:Listen"]
    with Emulator(["q"], policies=policies) as emulator:
        yield emulator


class TestKeys:
    def test_the_right_key_works(self, guarded: Emulator) -> None:
        with connect(guarded) as client, client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("x"))

    @pytest.mark.parametrize(("name", "key"), [("root", "wrong"), ("nobody", "a/+=key==")])
    def test_cbs_says_401(self, guarded: Emulator, name: str, key: str) -> None:
        text = guarded.connection_string_for(name, key)
        client = ServiceBusClient.from_connection_string(text, retry_total=0)
        with client, exactly(ServiceBusAuthenticationError):
            client.get_queue_sender("q").__enter__()

    def test_rights_are_checked(self, guarded: Emulator) -> None:
        text = guarded.connection_string_for("send only", "k")
        with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
            with client.get_queue_sender("q"):
                pass
            with exactly(ServiceBusAuthorizationError):
                client.get_queue_receiver("q").__enter__()

    @pytest.mark.parametrize(
        ("name", "key", "raised"),
        [
            ("root", "wrong", ClientAuthenticationError),
            ("listen", "k", ClientAuthenticationError),
            ("root", "a/+=key==", None),
        ],
    )
    def test_administration(self, guarded: Emulator, name: str, key: str, raised: type[Exception] | None) -> None:
        text = guarded.connection_string_for(name, key)
        with ServiceBusAdministrationClient.from_connection_string(
            text, connection_verify=False, retry_total=0
        ) as admin:
            if raised is None:
                assert admin.get_queue("q").name == "q"
                return
            with exactly(raised):
                admin.get_queue("q")


class TestAdministration:
    @pytest.mark.parametrize(
        ("status", "raised"),
        [
            (401, ClientAuthenticationError),
            (403, HttpResponseError),
            (429, HttpResponseError),
            (503, HttpResponseError),
        ],
    )
    def test_faults(
        self,
        admin: ServiceBusAdministrationClient,
        emulator: Emulator,
        queue: str,
        status: int,
        raised: type[Exception],
    ) -> None:
        emulator.fault("internal-error", on=["manage"], status=status, times=1)
        with exactly(raised):
            admin.get_queue(queue)

    def test_missing_and_there_already(self, admin: ServiceBusAdministrationClient, queue: str) -> None:
        for missing in (admin.get_queue, admin.get_topic, admin.delete_queue, admin.delete_topic):
            with exactly(ResourceNotFoundError):
                missing("nowhere")
        with exactly(ResourceExistsError):
            admin.create_queue(queue)

    def test_refused(self) -> None:
        emulator = Emulator().start()
        text = emulator.connection_string
        emulator.stop()
        admin = ServiceBusAdministrationClient.from_connection_string(text, retry_total=0)
        with admin, exactly(ServiceRequestError):
            admin.get_queue("q")


@pytest.mark.parametrize("idle", ["link_idle", "connection_idle"])
def test_what_is_idle_is_closed_and_a_sender_recovers(idle: str) -> None:
    with (
        Emulator(["q"], **{idle: 0.5}) as emulator,
        connect(emulator, retry_total=1) as client,
        client.get_queue_sender("q") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
        time.sleep(1.5)
        sender.send_messages(ServiceBusMessage("y"))
        assert emulator.status()["queues"]["q"]["active"] == 2


@pytest.mark.parametrize(
    "spec", [{"kind": "gremlins"}, {"kind": "slow", "on": ["lunch"]}, {"kind": "slow", "whom": "me"}]
)
def test_a_fault_that_is_none_is_refused(emulator: Emulator, spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"gremlins|lunch|whom"):
        emulator._call("POST", "faults", spec)
