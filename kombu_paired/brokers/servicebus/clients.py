"""The SDK's clients: how a namespace is reached, and with which credentials."""

from __future__ import annotations

import logging
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode, ServiceBusSubQueue, TransportType
from azure.servicebus.management import ServiceBusAdministrationClient

from kombu_paired.brokers.servicebus.address import Address
from kombu_paired.brokers.servicebus.amqp_links import ReceiverLink, SenderLink
from kombu_paired.brokers.servicebus.compat import own_settings, sender_settings
from kombu_paired.brokers.servicebus.credentials import Credentials
from kombu_paired.brokers.servicebus.management import ManagementTransport
from kombu_paired.brokers.servicebus.settings import ServiceBusSettings
from kombu_paired.brokers.servicebus.trunk import Station, Wire
from kombu_paired.brokers.servicebus.trunks import board

__all__ = ("Clients",)

#: The SDK tells every change of a link's state at level INFO, hundreds of lines for one connection. Whoever wants them
#: sets a level of his own.
_chatter = logging.getLogger("azure")
if _chatter.level == logging.NOTSET:
    _chatter.setLevel(logging.WARNING)

#: Seconds the SDK waits for the answer to a settlement, and then again by another way.
SETTLE_PATIENCE = 10.0
#: Seconds after which a receiver of the SDK that waits for messages looks up from its socket.
RECEIVER_TICK = 0.02


class Clients:
    """Makes clients and links to one namespace.

    Arguments:
        address: of the namespace.
        settings: of its transport.

    Raises:
        ConfigurationError: neither the address nor the settings say who one is.
    """

    def __init__(self, address: Address, settings: ServiceBusSettings) -> None:
        self.address = address
        self._settings = settings
        self._credentials = Credentials(address, settings.credential)
        options = tuple(sorted((name, str(each)) for name, each in settings.client_options.items()))
        self._way = (address, str(settings.credential), options)

    def sender(self, entity: str, *, shared: bool = False) -> SenderLink:
        """A link that sends to a queue or topic; not open.

        Arguments:
            shared: it shares a connection with what receives.
        """

        def make(timeout: float) -> Any:
            return self._client(timeout).get_queue_sender(entity, **sender_settings())

        return SenderLink(make, entity, self._share if shared else None)

    def receiver(
        self,
        entity: str,
        subscription: str | None = None,
        *,
        dead_letters: bool = False,
        delete: bool = False,
        session: Any = None,
        tick: float = RECEIVER_TICK,
    ) -> ReceiverLink:
        """A link that receives from a queue or a subscription; not open.

        Arguments:
            dead_letters: from its dead-letter queue.
            delete: messages are gone once they are received.
            session: an id, or the SDK's ``NEXT_AVAILABLE_SESSION``.
            tick: seconds between two looks up from the socket.
        """
        arguments: dict[str, Any] = {
            "receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE if delete else ServiceBusReceiveMode.PEEK_LOCK,
            "sub_queue": ServiceBusSubQueue.DEAD_LETTER if dead_letters else None,
            "socket_timeout": tick,
        }
        if session is not None:
            arguments["session_id"] = session

        def make(timeout: float) -> Any:
            client = self._client(timeout, SETTLE_PATIENCE)
            if subscription is None:
                return client.get_queue_receiver(entity, **arguments)
            return client.get_subscription_receiver(entity, subscription, **arguments)

        path = entity if subscription is None else f"{entity}/Subscriptions/{subscription}"
        return ReceiverLink(make, path, self._share)

    def _share(self, wire: Wire) -> Station | None:
        """A place on the connection that this process shares."""
        return board(self._way, wire) if self._settings.share_connection else None

    def administration(self, timeout: float) -> ServiceBusAdministrationClient:
        """The administration client, without tries of its own."""
        settings = self._settings
        travel = ManagementTransport(self.address, settings.client_options, settings.management_port, timeout)
        return self._made(ServiceBusAdministrationClient, retry_total=0, transport=travel)

    def _client(self, patience: float, settle_timeout: float | None = None) -> ServiceBusClient:
        """A client of the SDK, without tries of its own."""
        has_key, options = self._credentials.key is not None, dict(self._settings.client_options)
        if "transport_type" in options:
            options["transport_type"] = TransportType[options["transport_type"]]
        arguments: dict[str, Any] = {
            "retry_total": 0,
            **({} if settle_timeout is None else {"try_timeout": settle_timeout}),
            **own_settings(max(patience, 1.0), settle_timeout, tls=has_key or not self.address.is_local),
            **options,
        }
        return self._made(ServiceBusClient, **arguments)

    def _made(self, client: Any, **arguments: Any) -> Any:
        """A client of the SDK, with the key or the token."""
        key = self._credentials.key
        if key is None:
            return client(self.address.place, self._credentials.token, **arguments)
        return client.from_connection_string(self.address.connection_string_with(*key), **arguments)
