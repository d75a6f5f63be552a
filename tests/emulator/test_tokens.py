"""What ``$cbs`` answers, and what the SDK makes of each answer; keys of one entity alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest

from kombu_paired.emulator import Emulator, Policy
from tests.emulator.conftest import connect

pytest.importorskip("azure.servicebus")

from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

pytestmark = [pytest.mark.filterwarnings("ignore:Unverified HTTPS request"), pytest.mark.real_naps]

Open = Callable[[ServiceBusClient, str], object]

OPENERS: dict[str, Open] = {
    "sender": lambda client, path: client.get_queue_sender(path).__enter__(),
    "receiver": lambda client, path: client.get_queue_receiver(path).__enter__(),
    "dead letters": lambda client, path: client.get_queue_receiver(path, sub_queue="deadletter").__enter__(),
    "subscription": lambda client, path: client.get_subscription_receiver(path, "sub").__enter__(),
}


def refusal(client: ServiceBusClient, opener: str, path: str = "orders") -> tuple[int | None, str]:
    """The status and the text behind the authentication error that the SDK raises."""
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        OPENERS[opener](client, path)
    behind = caught.value.inner_exception
    return behind.status_code, str(behind)  # type: ignore[union-attr]


@pytest.mark.parametrize("opener", OPENERS)
def test_an_entity_that_does_not_exist_is_404_of_cbs(client: ServiceBusClient, opener: str) -> None:
    status, text = refusal(client, opener, "nowhere")
    assert status == 404
    assert "/nowhere" in text
    assert "could not be found." in text


def test_a_queue_that_is_made_after_all_is_found(client: ServiceBusClient, make_queue: Callable[..., str]) -> None:
    name = make_queue()
    with client.get_queue_sender(name.upper()) as sender:  # names know no case
        sender.send_messages(ServiceBusMessage("x"))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 429, 500, 503])
def test_every_status_of_cbs_is_behind_the_same_error(
    client: ServiceBusClient, emulator: Emulator, queue: str, status: int
) -> None:
    emulator.fault("token", queue, on=["token"], status=status, times=1)
    assert refusal(client, "sender", queue)[0] == status
    with client.get_queue_sender(queue):
        pass


def test_a_busy_cbs_says_how_long_to_wait(client: ServiceBusClient, emulator: Emulator, queue: str) -> None:
    emulator.fault("token", queue, on=["token"], status=503, times=1)
    assert "Please wait 2 seconds and try again." in refusal(client, "sender", queue)[1]


def test_a_token_fault_of_one_entity_leaves_the_others_alone(
    client: ServiceBusClient, emulator: Emulator, make_queue: Callable[..., str]
) -> None:
    broken, sound = make_queue(), make_queue()
    emulator.fault("token", broken, on=["token"])
    assert refusal(client, "sender", broken)[0] == 401
    with client.get_queue_sender(sound):
        pass


def test_a_link_to_what_is_missing_although_the_token_was_taken(
    client: ServiceBusClient, emulator: Emulator, queue: str
) -> None:
    emulator.fault("not-found", queue, times=1)
    with pytest.raises(MessagingEntityNotFoundError, match=f"/{queue}' could not be found"):
        OPENERS["sender"](client, queue)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Emulator]:
    policies = ["root:r00t", "worker:w0rker:Listen:orders", "owner:0wner:Manage:orders", "worker:an0ther:Send:bills"]
    with Emulator(["orders", "bills"], ["news:sub"], policies=policies) as emulator:
        yield emulator


def client_of(emulator: Emulator, name: str, key: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(emulator.connection_string_for(name, key), retry_total=0)


class TestAKeyOfOneEntity:
    def test_it_is_good_there_with_what_is_below(self, guarded: Emulator) -> None:
        with connect(guarded) as root, root.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x"))
        with client_of(guarded, "worker", "w0rker") as client:
            with client.get_queue_receiver("Orders") as receiver:
                (message,) = receiver.receive_messages(max_wait_time=20)
                receiver.renew_message_lock(message)  # by $management
                receiver.complete_message(message)
            with client.get_queue_receiver("orders", sub_queue="deadletter"):
                pass

    def test_it_has_the_rights_of_its_policy_alone(self, guarded: Emulator) -> None:
        with (
            client_of(guarded, "worker", "w0rker") as client,
            pytest.raises(ServiceBusAuthorizationError, match="'Send' claim"),
        ):
            OPENERS["sender"](client, "orders")

    @pytest.mark.parametrize(("opener", "path"), [("receiver", "bills"), ("sender", "bills"), ("subscription", "news")])
    def test_elsewhere_it_is_401_of_cbs(self, guarded: Emulator, opener: str, path: str) -> None:
        with client_of(guarded, "worker", "w0rker") as client:
            assert refusal(client, opener, path)[0] == 401

    def test_it_does_not_learn_what_exists(self, guarded: Emulator) -> None:
        with client_of(guarded, "worker", "w0rker") as client:
            assert refusal(client, "receiver", "nowhere")[0] == 401

    def test_a_policy_of_the_same_name_elsewhere_is_another(self, guarded: Emulator) -> None:
        with client_of(guarded, "worker", "an0ther") as client, client.get_queue_sender("bills") as sender:
            sender.send_messages(ServiceBusMessage("x"))

    @pytest.mark.parametrize(("name", "key"), [("worker", "w0rker"), ("owner", "0wner")])
    def test_management_is_401(self, guarded: Emulator, name: str, key: str) -> None:
        """Even with the right to manage: the administration client signs for the whole namespace."""
        text = guarded.connection_string_for(name, key)
        with ServiceBusAdministrationClient.from_connection_string(text, connection_verify=False) as admin:
            for ask in (lambda: admin.get_queue("orders"), lambda: list(admin.list_queues())):
                with pytest.raises(ClientAuthenticationError):
                    ask()


class TestATokenThatExpires:
    def test_its_links_end_and_the_next_call_shows_another(self) -> None:
        with (
            Emulator(["q"], token_life=3.0) as emulator,
            connect(emulator) as client,
            client.get_queue_sender("q") as sender,
            client.get_queue_receiver("q") as receiver,
        ):
            with pytest.raises(ServiceBusConnectionError, match=r"Code: RenewToken\..*'Listen' claim"):
                receiver.receive_messages(max_wait_time=10)
            with pytest.raises(ServiceBusConnectionError):
                sender.send_messages(ServiceBusMessage("x"))
            sender.send_messages(ServiceBusMessage("x"))
            assert len(receiver.receive_messages(max_wait_time=20)) == 1

    def test_one_that_nobody_renews_is_401_of_cbs(self, guarded: Emulator) -> None:
        expiry = int(time.time()) - 1
        audience = quote(f"sb://{guarded.host}/orders", safe="")
        signature = quote(Policy("root", "r00t").sign(audience, expiry), safe="")
        token = f"SharedAccessSignature sr={audience}&sig={signature}&se={expiry}&skn=root"
        text = f"Endpoint=sb://{guarded.host};SharedAccessSignature={token};UseDevelopmentEmulator=true"
        with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
            status, said = refusal(client, "sender")
        assert status == 401
        assert "ExpiredToken" in said
