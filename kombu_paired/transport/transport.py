"""Kombu's transport: it joins the primary's own transport, for consuming, to a pairing, for sending."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kombu import Connection as KombuConnection
from kombu.transport import base

from kombu_paired.brokers.drivers import default_primary_name
from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.connection_settings import ConnectionSettings, connect_arguments
from kombu_paired.driver_errors import DriverErrors, note_driver
from kombu_paired.errors import BacklogUnavailable, ConfigurationError, PrimaryUnavailable
from kombu_paired.pairing import Pairing
from kombu_paired.pairing.last_send import LastSend
from kombu_paired.process import shared
from kombu_paired.secrets import shown_url
from kombu_paired.showing import teach_celery
from kombu_paired.stopping import is_worker_itself
from kombu_paired.syphon import run_by_itself
from kombu_paired.transport.channel import Channel
from kombu_paired.transport.connection import Connection
from kombu_paired.transport.consumed import Consumed
from kombu_paired.transport.primary_for_consuming import PrimaryForConsuming
from kombu_paired.transport.sides import sides_of
from kombu_paired.urls import PREFIX, BrokerUrl

__all__ = ("Transport", "pairing_of")

#: Whether this thread connects to try a send again. Kombu throws the connection of a failed try away before the next,
#: and pauses then; when it connects for a first try, a pause would only be late.
_trying_again = threading.local()


def pairing_of(connection: KombuConnection) -> Pairing:
    """The pairing behind a Kombu connection.

    Raises:
        ConfigurationError: the connection is not a paired one.
    """
    transport = connection.transport
    if not isinstance(transport, Transport):
        raise ConfigurationError(
            f"{connection.as_uri()} is not a paired connection: write 'paired+' before the primary's URL"
        )
    return transport.pairing


class Transport(base.Transport):  # type: ignore[misc]
    """Joins the primary's own transport, for consuming, to a pairing, for sending."""

    can_parse_url = True

    # A worker connects again after either error of ours; Kombu retries the first alone: the other is not worth waiting.
    connection_errors = DriverErrors(BacklogUnavailable, PrimaryUnavailable)
    recoverable_connection_errors = DriverErrors(BacklogUnavailable, instead="connection_errors")
    channel_errors = DriverErrors()
    recoverable_channel_errors = DriverErrors()

    def __init__(self, client: KombuConnection, **kwargs: Any) -> None:
        self.client = client
        client.cycle = None  # Kombu would switch to the next URL itself, and forget the prefix; the namespace does it
        self.settings = ConnectionSettings(client)
        self.for_consuming = PrimaryForConsuming(self)
        teach_celery()
        with suppress(ConfigurationError):  # whoever only shows a connection gets to see it
            note_driver(self.settings.driver)

    @property
    def pairing(self) -> Pairing:
        """The pairing of this process; another one after a fork."""
        return shared(self.settings.key, self._make_pairing)

    def _make_pairing(self) -> Pairing:
        urls, options = self.settings.urls, self.settings.options
        common: dict[str, Any] = {"send_timeout": options.send_timeout, "classify": options.classify_failure}
        primary = KombuNamespace(
            "primary",
            urls,
            options.primary_options,
            connect_arguments=connect_arguments(self.client),
            **common,
        )
        secondary = KombuNamespace(
            "secondary",
            [each.text for each in BrokerUrl.all_in(options.secondary)],
            options.secondary_options,
            queue_type=options.backlog_queue_type,
            **common,
        )
        name = options.primary_name or default_primary_name(urls[0])
        last_send = LastSend.of_machine(name, primary.uri, secondary.uri)
        pairing = Pairing(name, options, primary, secondary, last_send=last_send)
        run_by_itself(pairing)
        return pairing

    # -- it looks like the primary's own transport; a worker and a producer ask for these before anything else --------

    @property
    def implements(self) -> Any:
        return self.settings.implements

    @property
    def driver_type(self) -> str:
        return str(self.settings.options and self.settings.driver.driver_type)

    @property
    def driver_name(self) -> str:
        return str(self.settings.driver.driver_name)

    @property
    def primary_transport(self) -> base.Transport:
        """The primary's own transport; not connected until a consumer needs it."""
        return self.for_consuming.driver

    def consume(self, connection: Connection, timeout: float | None) -> Consumed:
        """What a connection consumes from: the primary, unless workers may stand in and it is away."""
        sides = sides_of(self.pairing)
        if sides is None:
            return self.for_consuming.consume(timeout)
        connection.sides = sides
        return sides.consume(connection) if is_worker_itself() else sides.consume_at_once(connection, timeout)

    # -- Kombu's transport interface ----------------------------------------------------------------------------

    def establish_connection(self) -> Connection:
        pairing = self.pairing
        pairing.open()
        if getattr(_trying_again, "is_due", False):
            _trying_again.is_due = False
            pairing.require_sendable(may_wait=not is_worker_itself())
        connection = Connection(self)
        self.for_consuming.require_welcome(connection)
        return connection

    def create_channel(self, connection: Connection) -> Channel:
        return connection.channel()

    def close_connection(self, connection: Connection) -> None:
        connection.close()

    def _collect(self, connection: Connection | None) -> None:
        _trying_again.is_due = True
        if connection is not None:
            connection.collect()

    def verify_connection(self, connection: Connection) -> bool:
        return connection.connected

    def drain_events(self, connection: Connection, **kwargs: Any) -> Any:
        connection.require_consumed(kwargs.get("timeout"))
        connection.do_what_was_left()  # which may exchange what is consumed
        consumed = connection.require_consumed()
        return consumed.driver.drain_events(consumed.connection, **kwargs)

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        consumed = connection.require_consumed()
        connection.read_in(loop)
        consumed.driver.register_with_event_loop(consumed.connection, loop)

    def unregister_from_event_loop(self, connection: Connection, loop: Any) -> None:
        connection.loop = None
        if connection.consumed is not None:
            consumed = connection.consumed
            consumed.driver.unregister_from_event_loop(consumed.connection, loop)

    def heartbeat_check(self, connection: Connection, rate: int = 2) -> Any:
        for left in connection.left_behind:
            left.keep_alive()
        consumed = connection.consumed
        return None if consumed is None else consumed.driver.heartbeat_check(consumed.connection, rate=rate)

    def get_heartbeat_interval(self, connection: Connection) -> Any:
        consumed = connection.consumed
        return 0 if consumed is None else consumed.driver.get_heartbeat_interval(consumed.connection)

    def qos_semantics_matches_spec(self, connection: Connection) -> bool:
        consumed = connection.require_consumed()
        return bool(consumed.driver.qos_semantics_matches_spec(consumed.connection))

    def driver_version(self) -> str:
        return str(self.primary_transport.driver_version())

    def get_manager(self, *args: Any, **kwargs: Any) -> Any:
        manager = self.primary_transport.get_manager(*args, **kwargs)
        channel = getattr(manager, "channel", None)
        if channel is not None:  # of a virtual transport, which lists what was declared through itself
            for declaration in self.pairing.book.lasting():
                getattr(channel, declaration.operation)(**declaration.arguments)
        return manager

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        plain = uri.removeprefix(PREFIX)
        return PREFIX + (plain if include_password else shown_url(plain, self.client.alt, mask))

    @property
    def supports_batch_publish(self) -> bool:
        if not self.implements.batch_publish:
            return False
        return bool(getattr(self.primary_transport, "supports_batch_publish", True))

    @property
    def channels(self) -> Sequence[Any]:
        """Channels of the primary's own transport, where it keeps a list: Celery bounds their sockets at a loss."""
        client = self.for_consuming.client
        return () if client is None else getattr(client.transport, "channels", None) or ()

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {}
