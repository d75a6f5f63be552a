"""The driver of Azure Service Bus. Its links are in :mod:`.links`, :mod:`.sending` and :mod:`.receiving`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kombu_paired.brokers.driver import Driver
from kombu_paired.brokers.roles import Receiver, Sender
from kombu_paired.brokers.servicebus.address import SCHEME, Address
from kombu_paired.brokers.servicebus.settings import ServiceBusSettings
from kombu_paired.connection_strings import connection_string_in
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.urls import BrokerUrl

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace
    from kombu_paired.brokers.links import Link

__all__ = ("ServiceBus",)


class ServiceBus(Driver):
    """A namespace of Azure Service Bus, or a local server that plays one."""

    routed = True
    keeps_unsettled = True
    stands_in = True
    keeps_notices = True
    tested = True
    fails_by_queue = True
    bills_calls = True
    max_message_size = 262_144  # of Basic and Standard; a link says what it really is
    package, extra = "azure.servicebus", "kombu-paired[servicebus]"
    transport = "kombu_paired.brokers.servicebus.transport:Transport"

    def load(self) -> None:
        for module in ("kinds", "links", "receiving", "sending"):
            import_module(f"kombu_paired.brokers.servicebus.{module}")

    def link(self, namespace: KombuNamespace) -> Link:
        from kombu_paired.brokers.servicebus.links import ServiceBusLink

        return ServiceBusLink(namespace)

    def sender(self, namespace: KombuNamespace) -> Sender:
        from kombu_paired.brokers.servicebus.sending import ServiceBusSender

        return ServiceBusSender(namespace)

    def receiver(self, namespace: KombuNamespace, queues: Sequence[str], prefetch: int, timeout: float) -> Receiver:
        from kombu_paired.brokers.servicebus.receiving import ServiceBusReceiver

        return ServiceBusReceiver(namespace, queues, timeout)

    def encoded_size(self, namespace: KombuNamespace, message: Message) -> int:
        from kombu_paired.brokers.servicebus.links import size_on

        return size_on(namespace, message)

    def kind_of(self, exc: BaseException) -> FailureKind | None:
        from kombu_paired.brokers.servicebus.kinds import kind_of

        return kind_of(exc)

    def wait_of(self, exc: BaseException) -> float | None:
        from kombu_paired.brokers.servicebus.kinds import wait_of

        return wait_of(exc)

    def consumer_options(self, connect_timeout: float, send_timeout: float) -> dict[str, Any]:
        return {"send_timeout": send_timeout}

    def limit_answers(self, connection: Any, seconds: float) -> None:
        connection.goodbye = connection.timeout = seconds

    def address_of(self, url: str) -> tuple[Any, ...]:
        address = Address.parse(url)
        return (address.host, address.port)

    def check_options(self, url: str, options: Mapping[str, Any]) -> None:
        from kombu_paired.brokers.servicebus.credentials import check_credential

        check_credential(Address.parse(url), ServiceBusSettings.parse(options).credential)

    def primary_name(self, url: str) -> str:
        return BrokerUrl(f"{SCHEME}://{Address.parse(url).place}" if connection_string_in(url) else url).label
