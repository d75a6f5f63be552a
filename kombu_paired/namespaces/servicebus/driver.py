"""The driver of Azure Service Bus. Its links are in :mod:`kombu_paired.namespaces.servicebus.links`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.namespaces.base import Receiver, Sender
from kombu_paired.namespaces.driver import Driver
from kombu_paired.namespaces.naming import named_by_label
from kombu_paired.namespaces.servicebus.address import Address

if TYPE_CHECKING:
    from kombu_paired.namespaces.kombu import KombuNamespace
    from kombu_paired.namespaces.links import Link

__all__ = ("ServiceBus",)


class ServiceBus(Driver):
    """A namespace of Azure Service Bus, or a local server that plays one."""

    routed = True
    keeps_unsettled = True
    tested = True
    max_message_size = 262_144  # of Basic and Standard; a link says what it really is
    package, extra = "azure.servicebus", "kombu-paired[servicebus]"
    transport = "kombu_paired.namespaces.servicebus.transport:Transport"

    def load(self) -> None:
        import_module("kombu_paired.namespaces.servicebus.links")

    def link(self, namespace: KombuNamespace) -> Link:
        from kombu_paired.namespaces.servicebus.links import ServiceBusLink

        return ServiceBusLink(namespace)

    def sender(self, namespace: KombuNamespace) -> Sender:
        from kombu_paired.namespaces.servicebus.links import ServiceBusSender

        return ServiceBusSender(namespace)

    def receiver(self, namespace: KombuNamespace, queue: str, prefetch: int, timeout: float) -> Receiver:
        from kombu_paired.namespaces.servicebus.links import ServiceBusReceiver

        return ServiceBusReceiver(namespace, queue, timeout)

    def encoded_size(self, namespace: KombuNamespace, message: Message) -> int:
        from kombu_paired.namespaces.servicebus.links import size_on

        return size_on(namespace, message)

    def kind_of(self, exc: BaseException) -> FailureKind | None:
        from kombu_paired.namespaces.servicebus.links import kind_of

        return kind_of(exc)

    def consumer_options(self, connect_timeout: float, send_timeout: float) -> dict[str, Any]:
        return {"send_timeout": send_timeout}

    def hurry(self, connection: Any, seconds: float) -> None:
        connection.goodbye = connection.timeout = seconds

    def address_of(self, url: str) -> tuple[Any, ...]:
        address = Address.parse(url)
        return (address.host, address.port)

    def primary_name(self, url: str) -> str:
        return named_by_label(url)
