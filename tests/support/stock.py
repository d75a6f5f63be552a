"""The stock Kombu transport ``azureservicebus``, pointed at local servers, to be compared and mixed with ours.

It knows the real service alone: it appends ``.servicebus.windows.net`` to any host and speaks TLS. Only where it
connects to is exchanged here; all else is as its authors wrote it. A worker on it is started with
``celery -A tests.support.stock``.
"""

from __future__ import annotations

import os

from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import azureservicebus as stock

from kombu_paired.brokers.servicebus.address import Address
from kombu_paired.brokers.servicebus.clients import Clients
from kombu_paired.brokers.servicebus.settings import ServiceBusSettings

#: The URL scheme under which it is used here.
ALIAS = "stockservicebus"


class Channel(stock.Channel):
    def _try_parse_connection_string(self) -> None:
        self._connection_string = self._address.connection_string

    @property
    def _address(self) -> Address:
        return Address.parse(self.conninfo.hostname)

    @property
    def queue_mgmt_service(self):  # type: ignore[no-untyped-def]
        return Clients(self._address, ServiceBusSettings()).administration(10)


class Transport(stock.Transport):
    Channel = Channel

    @classmethod
    def as_uri(cls, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return uri


TRANSPORT_ALIASES[ALIAS] = "tests.support.stock:Transport"


def stock_url(url: str) -> str:
    """The same namespace, through the stock transport."""
    assert url.startswith("azureservicebus://")
    return url.replace("azureservicebus", ALIAS, 1)


if os.environ.get("SHOP_BROKER_URL", "").startswith(ALIAS):
    from tests.support.shop import app  # noqa: F401
