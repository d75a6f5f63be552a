"""What is private in azure-servicebus, and in the AMQP library inside it, and is used here: each name once.

:data:`RELIES_ON` lists all of it. ``tests/unit/brokers/servicebus/test_compat.py`` holds that against the versions that
are installed, and ``docs/contributing.md`` says how a new version is let in. Should one be installed that lacks
something, that costs promptness, and never a message.

``raw`` is a sender or a receiver of the SDK. Its *handler* is the AMQP client that it makes when it opens, and None
while it is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from azure.core.settings import settings
from azure.servicebus.amqp import AmqpAnnotatedMessage

try:
    from azure.servicebus._pyamqp.message import Message as _Sections
    from azure.servicebus._pyamqp.message import Properties as _Properties
    from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
except ImportError:  # another version of the SDK
    _Sections = _Properties = PyamqpTransport = None

__all__ = (
    "GIVEN_BACK",
    "RELIES_ON",
    "PlainMessage",
    "condition_of",
    "connection_of",
    "encoded_size",
    "handler_of",
    "has_let_in",
    "is_attached",
    "is_deaf",
    "is_link_error",
    "link_of",
    "max_message_size_of",
    "open_without_tries",
    "own_settings",
    "read_every_outcome",
    "sections_of",
    "send",
    "sender_settings",
    "socket_of",
    "stop_when",
    "take_in",
    "without_naps",
)

logger = logging.getLogger(__name__)

#: Owner -> names that it must have: methods with the parameters that are given or taken here, other names alone.
RELIES_ON = {
    "azure.servicebus._common._configuration:Configuration": ("auth_timeout", "timeout", "keep_alive", "use_tls"),
    "azure.servicebus._base_handler:BaseHandler": (
        "_handler",
        "_open_with_retry()",
        "_check_live()",
        "_do_retryable_operation(operation, timeout)",
    ),
    "azure.servicebus:ServiceBusSender": (
        "_create_handler(auth)",
        "_max_message_size_on_link",
        "_send(message, timeout, last_exception)",
    ),
    "azure.servicebus:ServiceBusReceiver": (
        "_create_handler(auth)",
        "_build_received_message",
        "_receive_context",
        "_further_pull_receive_timeout",
        "_await_settlement_outcome",
        "_settle_message_via_mgmt_link(settlement, lock_tokens, dead_letter_details)",
    ),
    "azure.servicebus.exceptions:ServiceBusError": ("_condition",),
    "azure.servicebus._transport._pyamqp_transport:PyamqpTransport": (
        "get_message_encoded_size(message)",
        "to_outgoing_amqp_message(annotated_message)",
    ),
    "azure.servicebus._pyamqp.client:AMQPClient": (
        "client_ready()",
        "do_work()",
        "_connection",
        "_link",
        "_cbs_authenticator",
        "_shutdown",
        "_keep_alive_interval",
        "_keep_alive_thread",
    ),
    "azure.servicebus._pyamqp.client:ReceiveClient": ("_received_messages",),
    "azure.servicebus._pyamqp.client:SendClient": (
        "_on_send_complete(message_delivery, reason, state)",
        "_process_send_error(message_delivery, condition, description)",
    ),
    "azure.servicebus._pyamqp.message:Properties": ("_code", "_definition", "_fields"),
    "azure.servicebus._pyamqp.message:Message": ("properties", "data"),
    "azure.servicebus._pyamqp.constants": ("SEND_DISPOSITION_ACCEPT", "SEND_DISPOSITION_REJECT"),
    "azure.servicebus._pyamqp._connection:Connection": (
        "listen(wait)",
        "_error",
        "_transport",
        "_last_frame_received_time",
        "_get_next_outgoing_channel()",
    ),
    "azure.servicebus._pyamqp._transport:_AbstractTransport": (
        "sock",
        "socket_timeout",
        "connect()",
        "negotiate()",
        "read(verify_frame_type)",
        "write(s)",
        "close()",
        "block()",
        "non_blocking()",
    ),
    "azure.servicebus._pyamqp._transport:SSLTransport": ("_read_buffer",),
    "azure.servicebus._pyamqp._transport:WebSocketTransport": ("_read_buffer",),
    "azure.servicebus._pyamqp.receiver": ("check_disposition_outcome(delivery_id, outcome, expected)",),
    "azure.servicebus._pyamqp.receiver:ReceiverLink": (
        "_pending_dispositions",
        "_outgoing_disposition(first, last, delivery_tag, settled, state, batchable)",
    ),
    "azure.servicebus._pyamqp.outcomes": ("Accepted", "Modified", "Released"),
    "azure.servicebus:ServiceBusReceivedMessage": ("_delivery_id", "_delivery_tag"),
    "azure.servicebus._pyamqp.link:Link": ("state", "current_link_credit", "flow(link_credit)"),
    "azure.servicebus._pyamqp.cbs:CBSAuthenticator": ("state", "auth_state"),
    "azure.servicebus._pyamqp.constants:LinkState": ("ATTACHED",),
    "azure.servicebus._pyamqp.constants:CbsAuthState": ("OK",),
    "azure.servicebus._pyamqp.constants:CbsState": ("CLOSED", "ERROR"),
    "azure.servicebus._pyamqp.error": ("AMQPLinkError",),
    "azure.servicebus._pyamqp.error:TokenAuthFailure": ("status_code",),
    # of Kombu, beside what every transport relies on
    "kombu.transport.virtual:Channel": ("_tag_to_queue",),
    "kombu.transport.virtual:Transport": ("_callbacks",),
}

#: Values of the SDK's enumerations ``LinkState`` and ``CbsAuthState``, and names of its ``CbsState``.
ATTACHED = 3
TOKEN_ACCEPTED = 0
TOKENS_AT_AN_END = ("CLOSED", "ERROR")
#: The outcomes of a send that the SDK knows.
_ACCEPTED, _REJECTED = "accepted", "rejected"
#: The condition that others get, which is no condition of the service's.
GIVEN_BACK = "kombu-paired:given-back"


# -- how it is made -----------------------------------------------------------------------------------------------


def own_settings(auth_timeout: float, settle_timeout: float | None = None, *, tls: bool = True) -> dict[str, Any]:
    """Arguments of a ``ServiceBusClient`` that the SDK calls its own.

    Arguments:
        auth_timeout: seconds that the answer to a token may take.
        settle_timeout: seconds that the answer to a settlement may take, and then again by another way; None: the
            SDK's.
        tls: only for a client with a credential; with a connection string, that says it.
    """
    settings: dict[str, Any] = {"auth_timeout": auth_timeout}
    if settle_timeout is not None:
        settings["timeout"] = settle_timeout
    if not tls:
        settings["use_tls"] = False
    return settings


def sender_settings() -> dict[str, Any]:
    """Arguments of a sender: no thread that keeps its connection alive beside ours."""
    return {"keep_alive": None}


# -- opening ------------------------------------------------------------------------------------------------------


def open_without_tries(raw: Any) -> None:
    """Connect and attach. To enter it as a context does the same, and says less about what went wrong."""
    if hasattr(raw, "_open_with_retry"):
        raw._open_with_retry()
    else:
        raw.__enter__()


@contextmanager
def without_naps(raw: Any, prepare: Callable[[Any], None] | None = None) -> Iterator[None]:
    """Let the SDK take one answer after the other while it opens a link.

    It naps for 50 ms after each of nine, which is half a second wherever the service is.

    Arguments:
        prepare: takes the handler that it makes, before that connects.
    """
    create = getattr(raw, "_create_handler", None)
    if create is None:
        yield
        return

    def create_handler(*args: Any) -> None:
        create(*args)
        handler = handler_of(raw)
        if hasattr(handler, "client_ready"):
            handler.client_ready = _as_far_as_it_goes(handler, handler.client_ready)
        if prepare is not None:
            prepare(handler)

    raw._create_handler = create_handler
    try:
        yield
    finally:
        del raw._create_handler
        getattr(handler_of(raw), "__dict__", {}).pop("client_ready", None)


def _as_far_as_it_goes(handler: Any, client_ready: Callable[[], bool]) -> Callable[[], bool]:
    """The SDK's step of opening, which waits for one answer, again and again until none comes."""

    def last_answer() -> Any:
        return getattr(connection_of(handler), "_last_frame_received_time", None)

    def step() -> bool:
        while True:
            before = last_answer()
            if client_ready():
                return True
            if last_answer() == before:
                return False

    return step


def has_let_in(raw: Any) -> bool:
    """Whether the service has accepted connection and token."""
    return getattr(getattr(tokens_of(handler_of(raw)), "auth_state", None), "value", None) == TOKEN_ACCEPTED


# -- what is known of an open one ---------------------------------------------------------------------------------


def socket_of(raw: Any) -> Any:
    """Its socket; None where there is none, any more or yet."""
    return getattr(getattr(connection_of(handler_of(raw)), "_transport", None), "sock", None)


def take_in(raw: Any) -> bool:
    """Handle what the other side has sent, without waiting for more; False if that was the end of the connection."""
    connection = connection_of(handler_of(raw))
    if connection is None:
        return False
    connection.listen(wait=False)
    return connection._error is None and socket_of(raw) is not None


def is_attached(raw: Any) -> bool:
    """Whether the link stands."""
    link = link_of(handler_of(raw))
    return link is not None and link.state.value == ATTACHED


def is_deaf(raw: Any) -> bool:
    """Whether a receiver can get nothing any more, though the SDK says of it no more than that nothing came."""
    handler = handler_of(raw)
    if handler is None or getattr(handler, "_shutdown", False):
        return True
    tokens = tokens_of(handler)
    is_detached = link_of(handler) is not None and not is_attached(raw)
    return is_detached or (tokens is not None and tokens.state.name in TOKENS_AT_AN_END)


def max_message_size_of(raw: Any) -> int:
    """Bytes that the service said it takes on the link of a sender; 0 if it did not."""
    return int(getattr(raw, "_max_message_size_on_link", 0) or 0)


# -- sending ------------------------------------------------------------------------------------------------------


class PlainMessage:
    """A message that has properties and a body, and nothing else, as most have.

    It becomes what the SDK sends in one step. To whoever asks for more it is the SDK's ``AmqpAnnotatedMessage``, which
    is made then: that, and what the SDK makes of it, take five times as long.

    Attributes:
        body: the parts of the body.
    """

    __slots__ = ("_annotated", "_properties", "body")

    def __init__(self, body: bytes, properties: Mapping[str, Any]) -> None:
        self.body = [body]
        self._properties = properties
        self._annotated: AmqpAnnotatedMessage | None = None

    def sections(self) -> Any:
        """What the SDK sends. Of the properties it is those up to the last one that is set (AMQP 1.0, 1.4)."""
        fields = [self._properties.get(name) for name in _Properties._fields]
        while fields and fields[-1] is None:
            fields.pop()
        return _Sections(properties=_Trimmed(fields), data=self.body)

    def __getattr__(self, name: str) -> Any:
        if self._annotated is None:
            self._annotated = AmqpAnnotatedMessage(data_body=self.body, properties=self._properties)
        return getattr(self._annotated, name)


class _Trimmed(tuple[Any, ...]):
    """Properties without the last ones."""

    __slots__ = ()
    _code = getattr(_Properties, "_code", None)
    _definition = getattr(_Properties, "_definition", ())


class _Encoded:
    """What the SDK sends, made of a message."""

    __slots__ = ("_message",)

    def __init__(self, message: Any) -> None:
        self._message = sections_of(message)


def sections_of(message: Any) -> Any:
    """What the SDK sends of a message, before it is encoded."""
    return (
        message.sections() if isinstance(message, PlainMessage) else PyamqpTransport.to_outgoing_amqp_message(message)
    )


def send(raw: Any, message: Any, timeout: float) -> None:
    """Send a message, or a batch, and wait for the outcome.

    The SDK asks three times for each message whether anybody traces it, and looks what kind of message it is: where
    nobody does, and one of ours is sent, it goes straight to the step that follows.
    """
    is_one = PyamqpTransport is not None and isinstance(message, AmqpAnnotatedMessage | PlainMessage)
    if not is_one or not hasattr(raw, "_do_retryable_operation") or settings.tracing_implementation() is not None:
        raw.send_messages(message, timeout=timeout)
        return
    raw._check_live()
    raw._do_retryable_operation(
        raw._send,
        message=_Encoded(message),
        timeout=timeout,
        operation_requires_timeout=True,
        apply_try_timeout=True,
        require_last_exception=True,
    )


def stop_when(raw: Any, is_over: Callable[[], BaseException | None]) -> None:
    """Let a send end as soon as there is an error: for an answer that it cannot read the SDK waits for ever."""
    handler = handler_of(raw)
    do_work = getattr(handler, "do_work", None)
    if do_work is None:
        return

    def step(**kwargs: Any) -> bool:
        error = is_over()
        if error is not None:
            raise error
        return bool(do_work(**kwargs))

    handler.do_work = step


def read_every_outcome(raw: Any) -> None:
    """Make errors of outcomes that the SDK does not know: ``released`` and ``modified``, for what was not stored."""
    handler = handler_of(raw)
    read = getattr(handler, "_on_send_complete", None)
    if read is None:
        return

    def on_send_complete(delivery: Any, reason: Any, state: Any) -> None:
        is_unknown = isinstance(state, dict) and state.keys().isdisjoint({_ACCEPTED, _REJECTED})
        if is_unknown:
            handler._process_send_error(delivery, GIVEN_BACK.encode(), f"the service gave it back: {', '.join(state)}")
        else:
            read(delivery, reason, state)

    handler._on_send_complete = on_send_complete


# -- errors and messages ------------------------------------------------------------------------------------------


def condition_of(exc: BaseException) -> str | None:
    """The condition of AMQP in an error of the SDK."""
    return getattr(exc, "_condition", None)


def is_link_error(exc: BaseException) -> bool:
    """Whether it is the AMQP library's error of a link: the service refused that, and not the connection."""
    return type(exc).__name__ == "AMQPLinkError"


def encoded_size(message: Any) -> int | None:
    """Bytes of a message as it is sent; None if that cannot be known."""
    try:
        return int(PyamqpTransport.get_message_encoded_size(sections_of(message)))
    except AttributeError:
        return None


# -- the parts of a handler ---------------------------------------------------------------------------------------


def handler_of(raw: Any) -> Any:
    return getattr(raw, "_handler", None)


def connection_of(handler: Any) -> Any:
    return getattr(handler, "_connection", None)


def link_of(handler: Any) -> Any:
    return getattr(handler, "_link", None)


def tokens_of(handler: Any) -> Any:
    """What sends tokens to the service, and knows its answers."""
    return getattr(handler, "_cbs_authenticator", None)
