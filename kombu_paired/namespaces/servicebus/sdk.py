"""The SDK's clients and links, each step of them bounded in time.

The SDK waits for ever on a server that accepts a connection and stays silent, whatever timeout it is given, and its
links are not for two threads. So opening happens in a thread that can be given up, a link that failed is never used
again, and to let go of one means to shut its socket first: whoever waits on it wakes up.

What is private in the SDK is touched here alone, and its absence costs promptness, never a message.
"""

from __future__ import annotations

import importlib
import logging
import math
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageLockLostError, OperationTimeoutError, ServiceBusConnectionError
from azure.servicebus.management import ServiceBusAdministrationClient

from kombu_paired.bounded import GivenUp
from kombu_paired.bounded import bounded as bounded_step
from kombu_paired.deadline import LEAST
from kombu_paired.errors import ConfigurationError
from kombu_paired.forks import importing
from kombu_paired.namespaces.servicebus.address import Address

__all__ = ("Clients", "ReceiverLink", "SenderLink", "body_length", "bounded", "encoded_size")

logger = logging.getLogger(__name__)

#: The SDK tells every change of a link's state at level INFO, hundreds of lines for one connection. Whoever wants them
#: sets a level of his own.
_chatter = logging.getLogger("azure")
if _chatter.level == logging.NOTSET:
    _chatter.setLevel(logging.WARNING)

#: Bytes a message may have where the service has not said otherwise: Basic and Standard.
STANDARD_MESSAGE = 262_144
#: Seconds the SDK waits for the answer to a settlement, and then again by another way.
SETTLE_PATIENCE = 10.0
#: Seconds the SDK waits for further messages once it has one; and how often it looks up from its socket meanwhile.
FURTHER_WAIT = 0.01
RECEIVER_TICK = 0.02
#: By how many seconds the SDK may overstep the time limit of a send: it looks at the clock between two reads.
OVERSTEP = 0.2

Answer = TypeVar("Answer")


class Clients:
    """Makes clients and links to one namespace.

    Arguments:
        address: of the namespace.
        options: ``client_options`` (further arguments of the SDK's ServiceBusClient), ``management_port`` (of a local
            server that has another one for it).
    """

    def __init__(self, address: Address, options: Mapping[str, Any]) -> None:
        self.address = address
        self._options = dict(options.get("client_options") or {})
        self._management_port: int | None = options.get("management_port")
        self._credential: Any = None

    def sender(self, entity: str) -> SenderLink:
        """A link that sends to a queue or topic; not open."""
        return SenderLink(lambda timeout: self._client(timeout).get_queue_sender(entity, keep_alive=None), entity)

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
            client = self._client(timeout, timeout=SETTLE_PATIENCE, try_timeout=SETTLE_PATIENCE)
            if subscription is None:
                return client.get_queue_receiver(entity, **arguments)
            return client.get_subscription_receiver(entity, subscription, **arguments)

        return ReceiverLink(make, entity if subscription is None else f"{entity}/Subscriptions/{subscription}")

    def administration(self, timeout: float) -> ServiceBusAdministrationClient:
        """The administration client, without tries of its own."""
        address = self.address
        arguments: dict[str, Any] = {"retry_total": 0, "connection_timeout": timeout, "read_timeout": timeout}
        if address.is_local:
            arguments["transport"] = _PlainTransport(address.host, self._management_port or address.port)
        elif "connection_verify" in self._options:
            arguments["connection_verify"] = self._options["connection_verify"]
        if address.identity is None:
            return ServiceBusAdministrationClient.from_connection_string(address.connection_string, **arguments)
        return ServiceBusAdministrationClient(address.place, self._identity(), **arguments)

    def _client(self, patience: float, **arguments: Any) -> ServiceBusClient:
        arguments = {"retry_total": 0, "auth_timeout": max(patience, 1.0), **arguments, **self._options}
        address = self.address
        if address.identity is None:
            return ServiceBusClient.from_connection_string(address.connection_string, **arguments)
        return ServiceBusClient(address.place, self._identity(), use_tls=not address.is_local, **arguments)

    def _identity(self) -> Any:
        if self._credential is None:
            name = str(self.address.identity)
            try:
                with importing:
                    module = importlib.import_module("azure.identity")
            except ImportError:
                raise ConfigurationError(
                    f"{name} needs the package azure-identity: pip install azure-identity"
                ) from None
            self._credential = getattr(module, name)()
        return self._credential


class _PlainTransport(RequestsTransport):  # type: ignore[misc]
    """Management over HTTP: the SDK knows nothing but https, and local servers have no certificate it would take."""

    def __init__(self, host: str, port: int | None) -> None:
        super().__init__()
        self._base = f"http://{host}:{port}/"

    def send(self, request: Any, **kwargs: Any) -> Any:
        request.url = self._base + request.url.split("://", 1)[1].split("/", 1)[1]
        return super().send(request, **kwargs)


class _Link:
    """A sender or receiver of the SDK. For one thread, but for :meth:`drop`.

    Attributes:
        was_let_in: it could not be opened although the service let us in: an entity is at fault, not the namespace.
    """

    def __init__(self, make: Callable[[float], Any], path: str) -> None:
        self.path = path
        self.was_let_in = False
        self._make = make
        self._raw: Any = None
        self._opening: Any = None
        self._dropped = False

    @property
    def is_open(self) -> bool:
        return self._raw is not None

    def open(self, timeout: float) -> None:
        """Connect and attach.

        Raises:
            Exception: what the SDK raises; ``OperationTimeoutError`` when the service stays silent.
        """

        def connect() -> None:
            raw = self._opening = self._make(timeout)
            with _without_naps(raw):
                raw._open_with_retry() if hasattr(raw, "_open_with_retry") else raw.__enter__()
            self._raw, self._opening = raw, None
            if self._dropped:  # given up meanwhile
                _shut(raw)

        try:
            bounded(connect, timeout, f"opening {self.path}", give_up=self._give_up_opening)
        except BaseException as exc:
            self.was_let_in = self.was_let_in or _was_refused_as_link(exc)
            self.drop()
            raise

    def _give_up_opening(self) -> None:
        self.was_let_in = _is_let_in(self._opening)
        self.drop()

    def is_alive(self) -> bool:
        """Whether the other side has closed it, as far as is known without asking; handles what it has sent."""
        handler = getattr(self._raw, "_handler", None)
        connection = getattr(handler, "_connection", None)
        sock = _socket_of(self._raw)
        if sock is None or connection is None:  # it broke, and the SDK would connect anew, for as long as that takes
            return False
        try:
            while _is_readable(sock):
                connection.listen(wait=False)
                if connection._error is not None or _socket_of(self._raw) is None:
                    return False
            link = getattr(handler, "_link", None)
            return link is not None and link.state.value == _ATTACHED
        except AttributeError:  # another version of the SDK: a send will tell
            return True
        except Exception as exc:
            logger.debug("%s is dead: %r", self.path, exc)
            return False

    def drop(self) -> None:
        """Let go at once, from any thread; whoever waits on it wakes up with an error."""
        self._dropped = True
        raw, self._raw = self._raw, None
        if raw is not None:
            _shut(raw)
        else:
            _wake(self._opening)  # what was begun there is the opening thread's to clean up

    def close(self) -> None:
        """Say goodbye, behind the caller's back: it can take the SDK a second."""
        raw, self._raw = self._raw, None
        if raw is not None:
            _close_behind(raw)


class SenderLink(_Link):
    """Sends to one queue or topic."""

    @property
    def is_usable(self) -> bool:
        """Open, and alive as far as is known."""
        return self._raw is not None and self.is_alive()

    def send(self, message: Any, timeout: float) -> None:
        """Send a message, or a batch, and wait until the service has it."""
        raw = self._raw
        if raw is None:
            raise ServiceBusConnectionError(message=f"the link to {self.path} is closed")
        raw.send_messages(message, timeout=max(timeout - OVERSTEP, LEAST))

    @property
    def max_message_size(self) -> int:
        """Bytes that the service accepts here."""
        return getattr(self._raw, "_max_message_size_on_link", 0) or STANDARD_MESSAGE

    def new_batch(self) -> Any:
        """An empty batch of the SDK, as large as the service accepts."""
        return self._raw.create_message_batch()


class ReceiverLink(_Link):
    """Receives from one queue or subscription, and settles."""

    _is_receiving = False
    _was_woken = False
    _can_wake = False

    def open(self, timeout: float) -> None:
        super().open(timeout)
        if hasattr(self._raw, "_further_pull_receive_timeout"):
            self._raw._further_pull_receive_timeout = FURTHER_WAIT
        handler: Any = getattr(self._raw, "_handler", None)
        if hasattr(handler, "_keep_alive_thread"):
            # It would receive beside us; and closing waits for it, which is asleep for a second.
            handler._keep_alive_interval = math.inf
            handler._keep_alive_thread = None
        if hasattr(handler, "do_work"):
            handler.do_work = self._until_woken(handler.do_work)
            self._can_wake = True

    def _until_woken(self, do_work: Callable[..., bool]) -> Callable[..., bool]:
        """The SDK's step, which says False when there is nothing more to wait for."""

        def step(**kwargs: Any) -> bool:
            return not (self._is_receiving and self._was_woken) and do_work(**kwargs)

        return step

    def wake(self) -> None:
        """Let a receive of another thread return soon, with what it has; no later one waits.

        What arrives on a link that is dropped instead is nobody's until its lock ends.
        """
        self._was_woken = True
        if not self._can_wake:  # another version of the SDK
            self.drop()

    @property
    def credit(self) -> int:
        """How many messages the service may still send without being asked again; -1 if that is not known."""
        link = getattr(getattr(self._raw, "_handler", None), "_link", None)
        return int(getattr(link, "current_link_credit", -1))

    def receive(self, limit: int, timeout: float, *, ask: bool = True) -> list[Any]:
        """Up to so many messages; waits so long for the first.

        Arguments:
            ask: give the service credit for so many, once, which is a receive in its books; False waits for what it
                was asked for before.
        """
        raw = self._opened()
        raw._prefetch_count = 0 if ask else 1  # where it prefetches, the SDK gives no credit here
        self._is_receiving = True
        try:
            messages = list(raw.receive_messages(max_message_count=limit, max_wait_time=max(timeout, LEAST)))
        finally:
            self._is_receiving = False
            raw._prefetch_count = 0
        if not messages and _is_deaf(raw):
            raise ServiceBusConnectionError(message=f"the link to {self.path} was closed")
        return messages

    def peek(self, limit: int, timeout: float) -> list[Any]:
        """The oldest ones, left where they are."""
        return list(self._opened().peek_messages(limit, timeout=timeout))

    def settle(self, operation: str, message: Any, **arguments: Any) -> None:
        """``complete``, ``abandon`` or ``dead_letter`` a message that came over this link."""
        getattr(self._opened(), f"{operation}_message")(message, **arguments)

    def settle_all(self, settlements: Sequence[tuple[str, Any, dict[str, Any]]], timeout: float) -> None:
        """Many at once. The answer to the last one is waited for; the service answers in turn.

        Arguments:
            settlements: operation, message and further arguments, as for :meth:`settle`.

        Raises:
            Exception: what the SDK raises; ``OperationTimeoutError`` when the service stays silent.
        """

        def settle() -> None:
            raw = self._opened()
            for operation, message, arguments in settlements:
                raw._await_settlement_outcome = message is settlements[-1][1]
                with suppress(MessageLockLostError):  # it comes again
                    self.settle(operation, message, **arguments)

        if settlements:
            bounded(settle, timeout, f"settling in {self.path}", give_up=self.drop)

    def renew(self, message: Any, timeout: float) -> None:
        """Lock a message, or the session that it belongs to, anew."""
        raw = self._opened()
        session = getattr(raw, "session", None)
        if session is not None:
            session.renew_lock(timeout=timeout)
        else:
            raw.renew_message_lock(message, timeout=timeout)

    def _opened(self) -> Any:
        raw = self._raw
        if raw is None:
            raise ServiceBusConnectionError(message=f"the link to {self.path} is closed")
        return raw


def bounded(call: Callable[[], Answer], timeout: float, what: str, give_up: Callable[[], None] | None = None) -> Answer:
    """Run something that may never return, and wait so many seconds for it.

    Raises:
        OperationTimeoutError: it has not returned; ``give_up`` was called.
    """
    try:
        return bounded_step(call, timeout, what, give_up=give_up)
    except GivenUp as exc:
        raise OperationTimeoutError(message=f"{what}: the service did not answer within {timeout:g} s") from exc


def encoded_size(message: AmqpAnnotatedMessage) -> int:
    """Bytes of a message as it is sent."""
    try:
        from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

        return int(PyamqpTransport.get_message_encoded_size(PyamqpTransport.to_outgoing_amqp_message(message)))
    except (ImportError, AttributeError):  # another version of the SDK
        return body_length(message) + 2048


def body_length(message: AmqpAnnotatedMessage) -> int:
    """Bytes of its body."""
    return sum(len(part) for part in message.body)


_ATTACHED = 3
_LET_IN = 0


@contextmanager
def _without_naps(raw: Any) -> Iterator[None]:
    """Let the SDK take one answer after the other while it opens a link.

    It naps for 50 ms after each of nine, which is half a second wherever the service is.
    """
    create = getattr(raw, "_create_handler", None)
    if create is None:  # another version of the SDK
        yield
        return

    def create_handler(*args: Any) -> None:
        create(*args)
        handler = raw._handler
        if hasattr(handler, "client_ready"):
            handler.client_ready = _as_far_as_it_goes(handler, handler.client_ready)

    raw._create_handler = create_handler
    try:
        yield
    finally:
        del raw._create_handler
        getattr(raw._handler, "__dict__", {}).pop("client_ready", None)


def _as_far_as_it_goes(handler: Any, client_ready: Callable[[], bool]) -> Callable[[], bool]:
    """The SDK's step of opening, which waits for one answer, again and again until none comes."""

    def last_answer() -> Any:
        return getattr(getattr(handler, "_connection", None), "_last_frame_received_time", None)

    def step() -> bool:
        while True:
            before = last_answer()
            if client_ready():
                return True
            if last_answer() == before:
                return False

    return step


def _is_let_in(raw: Any) -> bool:
    """Whether the service has accepted connection and token."""
    authenticator = getattr(getattr(raw, "_handler", None), "_cbs_authenticator", None)
    return getattr(getattr(authenticator, "auth_state", None), "value", None) == _LET_IN


def _was_refused_as_link(exc: BaseException) -> bool:
    """Whether the service refused a link, and not the connection."""
    cause: BaseException | None = exc
    while cause is not None and type(cause).__name__ != "AMQPLinkError":
        cause = getattr(cause, "inner_exception", None) or cause.__cause__
    return cause is not None


def _is_readable(sock: Any) -> bool:
    if not hasattr(select, "poll"):  # eventlet takes it away
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _socket_of(raw: Any) -> Any:
    connection = getattr(getattr(raw, "_handler", None), "_connection", None)
    return getattr(getattr(connection, "_transport", None), "sock", None)


def _is_deaf(raw: Any) -> bool:
    """Whether a receiver can get nothing any more, though the SDK says of it no more than that nothing came."""
    handler = getattr(raw, "_handler", None)
    if handler is None or getattr(handler, "_shutdown", False):
        return True
    link, tokens = getattr(handler, "_link", None), getattr(handler, "_cbs_authenticator", None)
    is_attached = link is None or link.state.value == _ATTACHED
    has_tokens = tokens is None or tokens.state.name not in ("CLOSED", "ERROR")
    return not is_attached or not has_tokens


def _shut(raw: Any) -> None:
    """Let go of it without waiting for anything."""
    _wake(raw)
    _close_behind(raw)


def _wake(raw: Any) -> None:
    """Shut the socket, so that nobody waits on it."""
    sock = _socket_of(raw)
    try:
        if sock is not None:
            sock.shutdown(2)
    except (OSError, AttributeError, TypeError) as exc:
        logger.debug("shutting a socket: %r", exc)


def _close_behind(raw: Any) -> None:
    def close() -> None:
        try:
            raw.close()
        except Exception as exc:
            logger.debug("closing a link: %r", exc)

    threading.Thread(target=close, name="kombu-paired-closing", daemon=True).start()
