"""What the service really answers, where the SDK makes something else of it: busy, released, in conflict, in pages."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kombu_paired.emulator import Emulator
from tests.emulator.conftest import connect

pytest.importorskip("azure.servicebus")

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusServerBusyError
from azure.servicebus.management import ServiceBusAdministrationClient

MakeQueue = Callable[..., str]

pytestmark = [pytest.mark.filterwarnings("ignore:Unverified HTTPS request"), pytest.mark.real_naps]

WAIT_TWO = "being throttled. Error code : 50009. Please wait 2 seconds and try again."


def administration(emulator: Emulator) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        emulator.connection_string, connection_verify=False, retry_total=0
    )


class TestBusy:
    @pytest.fixture
    def receiver(self, client: ServiceBusClient, queue: str) -> Iterator[ServiceBusReceiver]:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])
        with client.get_queue_receiver(queue) as opened:
            yield opened

    def test_a_send(self, client: ServiceBusClient, emulator: Emulator, queue: str) -> None:
        with client.get_queue_sender(queue) as sender:
            emulator.fault("server-busy", queue, times=1)
            with pytest.raises(ServiceBusServerBusyError, match=WAIT_TWO):
                sender.send_messages(ServiceBusMessage("x"))

    def test_a_text_of_ones_own(self, client: ServiceBusClient, emulator: Emulator, queue: str) -> None:
        with client.get_queue_sender(queue) as sender:
            emulator.fault("server-busy", queue, times=1, text="{entity}: Please wait 7 seconds and try again.")
            with pytest.raises(ServiceBusServerBusyError, match=f"{queue}: Please wait 7 seconds"):
                sender.send_messages(ServiceBusMessage("x"))

    def test_a_receive_ends_the_link(self, receiver: ServiceBusReceiver, emulator: Emulator, queue: str) -> None:
        emulator.fault("server-busy", queue, on=["receive"], times=1)
        with pytest.raises(ServiceBusServerBusyError, match=WAIT_TWO):
            receiver.receive_messages(max_wait_time=20)

    def test_a_settlement(self, receiver: ServiceBusReceiver, emulator: Emulator, queue: str) -> None:
        (message,) = receiver.receive_messages(max_wait_time=20)
        emulator.fault("server-busy", queue, on=["settle"], times=1)
        with pytest.raises(ServiceBusServerBusyError, match=WAIT_TWO):
            receiver.complete_message(message)

    def test_a_renewal(self, receiver: ServiceBusReceiver, emulator: Emulator, queue: str) -> None:
        (message,) = receiver.receive_messages(max_wait_time=20)
        emulator.fault("server-busy", queue, on=["request"], times=1)
        with pytest.raises(ServiceBusServerBusyError, match=f"{WAIT_TWO}.*Status Code: 503"):
            receiver.renew_message_lock(message)

    def test_the_administration(self, admin: ServiceBusAdministrationClient, emulator: Emulator, queue: str) -> None:
        emulator.fault("server-busy", queue, on=["manage"], times=1)
        with pytest.raises(HttpResponseError, match=WAIT_TWO) as caught:
            admin.get_queue(queue)
        assert caught.value.status_code == 429


@pytest.mark.parametrize("outcome", ["released", "modified"])
def test_a_send_that_is_not_taken_hangs_in_the_sdk(outcome: str) -> None:
    """Its own timeout does not help: whoever calls needs another clock."""
    with Emulator(["q"]) as own, connect(own) as another:
        sender = another.get_queue_sender("q").__enter__()
        own.fault(outcome, "q", times=1)
        ended = threading.Event()

        def send() -> None:
            with contextlib.suppress(Exception):
                sender.send_messages(ServiceBusMessage("x"), timeout=1)
            ended.set()

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        assert not ended.wait(3)
        assert own.status()["queues"]["q"]["active"] == 0


class TestDuplicates:
    def test_the_second_is_taken_and_dropped_even_when_the_first_is_gone(
        self, client: ServiceBusClient, emulator: Emulator, make_queue: MakeQueue
    ) -> None:
        queue = make_queue(requires_duplicate_detection=True)
        with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
            sender.send_messages(ServiceBusMessage("first", message_id="same"))
            (message,) = receiver.receive_messages(max_wait_time=20)
            receiver.complete_message(message)
            sender.send_messages([ServiceBusMessage("again", message_id=each) for each in ("same", "other", "other")])
        assert emulator.status()["queues"][queue]["active"] == 1

    def test_its_window_is_ten_minutes_unless_it_is_said(
        self, admin: ServiceBusAdministrationClient, make_queue: MakeQueue
    ) -> None:
        usual, short = (
            make_queue(requires_duplicate_detection=True),
            make_queue(requires_duplicate_detection=True, duplicate_detection_history_time_window=20.0),
        )
        windows = [admin.get_queue(each).duplicate_detection_history_time_window for each in (usual, short)]
        assert [window.total_seconds() for window in windows] == [600, 20]


class TestAdministration:
    def test_pages_have_a_hundred_whatever_is_asked_for(self) -> None:
        names = [f"queue/{number:04}" for number in range(2500)]
        with Emulator(names) as emulator, administration(emulator) as admin:
            pages = admin.list_queues(max_page_size=1000).by_page()
            assert [each.name for each in next(pages)] == names[:100]
            started = time.monotonic()
            assert [each.name for page in pages for each in page] == names[100:]
            one_by_one = time.monotonic() - started
            fastest = one_by_one
            for _ in range(5):  # others may have the processor just now
                started = time.monotonic()
                assert admin.get_queue(names[-1]).name == names[-1]
                fastest = min(fastest, time.monotonic() - started)
            assert fastest < one_by_one

    def test_what_is_missing(self, admin: ServiceBusAdministrationClient) -> None:
        """To ask for it is answered 200 with nothing; to delete it, 404."""
        with pytest.raises(ResourceNotFoundError) as asked:
            admin.get_queue("nowhere")
        assert getattr(asked.value, "status_code", None) is None
        with pytest.raises(ResourceNotFoundError, match="'sb://emulator/nowhere' could not be found") as deleted:
            admin.delete_queue("nowhere")
        assert deleted.value.status_code == 404

    def test_there_already_and_in_conflict_look_the_same(
        self, admin: ServiceBusAdministrationClient, emulator: Emulator, queue: str
    ) -> None:
        """Whoever makes a queue that another is just deleting must try again: it is not there."""
        with pytest.raises(ResourceExistsError, match=r"SubCode=40900\. Conflict"):
            admin.create_queue(queue.upper())
        admin.delete_queue(queue)
        emulator.fault("conflict", queue, times=1)
        with pytest.raises(ResourceExistsError, match=r"SubCode=40901\. Another conflicting operation"):
            admin.create_queue(queue)
        with pytest.raises(ResourceNotFoundError):
            admin.get_queue(queue)
        admin.create_queue(queue)
