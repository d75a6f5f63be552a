"""What is private in azure-servicebus, and is used here, where messages are received and settled.

All of it stands in :data:`.compat.RELIES_ON`. ``raw`` is a receiver of the SDK.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from kombu_paired.brokers.servicebus.compat import connection_of, handler_of, link_of, socket_of

__all__ = (
    "ask_for",
    "beat",
    "begin_settling",
    "credit_of",
    "do_without_keep_alive",
    "end_settling",
    "give_back_what_comes",
    "has_buffered",
    "interruptible",
    "keep_up",
    "keep_what_comes",
    "received",
    "settle_by_token",
    "settling_blindly",
    "wait_for_further",
)

logger = logging.getLogger(__name__)

#: What becomes of a message -> an outcome of AMQP, and a status of the management.
_OUTCOMES: dict[str, tuple[str, dict[str, bool]]] = {
    "complete": ("Accepted", {}),
    "abandon": ("Modified", {"delivery_failed": True, "undeliverable_here": False}),
    "release": ("Released", {}),
}
_STATUSES = {"complete": "completed", "abandon": "abandoned", "release": "abandoned", "dead_letter": "suspended"}


def credit_of(raw: Any) -> int:
    """How many messages the service may still send to a receiver without being asked again; -1 if that is not known."""
    return int(getattr(link_of(handler_of(raw)), "current_link_credit", -1))


def has_buffered(raw: Any) -> bool:
    """Whether something has come that its socket does not show any more: TLS and web sockets read more than asked."""
    transport = getattr(connection_of(handler_of(raw)), "_transport", None)
    sock = getattr(transport, "sock", None)
    pending = getattr(getattr(sock, "sock", sock), "pending", None)
    buffer = getattr(transport, "_read_buffer", None)
    is_left = buffer is not None and buffer.tell() < buffer.getbuffer().nbytes
    return is_left or bool(pending is not None and pending())


def beat(raw: Any) -> None:
    """Nothing has come for a while: let the connection see whether it has to say something, or is dead."""
    sock = socket_of(raw)
    if sock is None:
        return
    before = sock.gettimeout()
    sock.settimeout(0.001)
    try:
        connection_of(handler_of(raw)).listen(wait=False)
    finally:
        sock.settimeout(before)


def keep_up(raw: Any) -> None:
    """Renew its token, when it is time.

    Raises:
        ServiceBusError: it is closed, and why.
    """
    from azure.servicebus._pyamqp.error import AMQPException
    from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

    try:
        error = connection_of(handler_of(raw))._error
        if error is not None:
            raise error
        handler_of(raw).client_ready()
    except AMQPException as exc:
        raise PyamqpTransport.create_servicebus_exception(logger, exc) from exc


def do_without_keep_alive(raw: Any) -> None:
    """End the thread that would receive beside us; and closing waits for it, which sleeps for a second."""
    handler = handler_of(raw)
    if hasattr(handler, "_keep_alive_thread"):
        handler._keep_alive_interval = math.inf
        handler._keep_alive_thread = None


def wait_for_further(raw: Any, seconds: float) -> None:
    """How long a receiver waits for further messages once it has one."""
    if hasattr(raw, "_further_pull_receive_timeout"):
        raw._further_pull_receive_timeout = seconds


def interruptible(raw: Any, is_over: Callable[[], bool]) -> bool:
    """Let a receive end, with what it has, as soon as it is over; False if that cannot be."""
    handler = handler_of(raw)
    do_work = getattr(handler, "do_work", None)
    if do_work is None:
        return False

    def step(**kwargs: Any) -> bool:
        """False says that there is nothing more to wait for."""
        return not is_over() and bool(do_work(**kwargs))

    handler.do_work = step
    return True


def keep_what_comes(raw: Any) -> bool:
    """Keep messages that come while nobody receives: the SDK gives them back. False if that cannot be."""
    if not hasattr(raw, "_receive_context") or not hasattr(raw, "_build_received_message"):
        return False
    raw._receive_context.set()
    return True


def give_back_what_comes(raw: Any) -> None:
    """The opposite: whatever comes from now on is given back as soon as it is taken in."""
    if hasattr(raw, "_receive_context"):
        raw._receive_context.clear()


def ask_for(raw: Any, count: int) -> None:
    """Let the service send so many more; 0: no more than is on its way."""
    link = link_of(handler_of(raw))
    if link is not None:
        link.flow(link_credit=count)


def received(raw: Any) -> list[Any]:
    """The messages that have come."""
    waiting = handler_of(raw)._received_messages
    found = []
    while not waiting.empty():
        found.append(raw._build_received_message(waiting.get()))
    return found


def begin_settling(raw: Any, message: Any, operation: str) -> dict[str, Any]:
    """Tell what becomes of a message (``complete``, ``abandon``, ``release``), and wait for nothing.

    Returns:
        What the answer will be written into, when it is taken in: ``settled`` and ``outcome``.

    Raises:
        Exception: it did not come over this link, was settled before, or the link is closed.
    """
    from azure.servicebus._pyamqp import outcomes

    link = link_of(handler_of(raw))
    name, arguments = _OUTCOMES[operation]
    answer = link._pending_dispositions[message._delivery_id] = {"settled": False, "outcome": None}
    try:
        state = getattr(outcomes, name)(**arguments)
        link._outgoing_disposition(message._delivery_id, None, message._delivery_tag, False, state, None)
    except BaseException:
        link._pending_dispositions.pop(message._delivery_id, None)
        raise
    return answer


def end_settling(raw: Any, message: Any, operation: str, answer: Mapping[str, Any]) -> None:
    """Read the answer to a settlement that was begun.

    Raises:
        ServiceBusError: the service refused it.
    """
    from azure.servicebus._pyamqp.error import AMQPException
    from azure.servicebus._pyamqp.receiver import check_disposition_outcome
    from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

    pending = getattr(link_of(handler_of(raw)), "_pending_dispositions", None)
    if pending is not None:
        pending.pop(message._delivery_id, None)
    try:
        check_disposition_outcome(message._delivery_id, answer["outcome"], _OUTCOMES[operation][0].lower())
    except AMQPException as exc:
        raise PyamqpTransport.create_servicebus_exception(logger, exc) from exc


def settle_by_token(raw: Any, message: Any, operation: str, arguments: Mapping[str, str]) -> None:
    """Settle a message by the token of its lock, over the management link: it need not have come over this one.

    Raises:
        ServiceBusError: the service refused it.
    """
    details = {f"deadletter-{key.removeprefix('error_')}": value for key, value in arguments.items()}
    raw._settle_message_via_mgmt_link(_STATUSES[operation], [message.lock_token], dead_letter_details=details)


def settling_blindly(raw: Any, blindly: bool) -> None:
    """Whether settlements, from now on, do without the service's answer."""
    raw._await_settlement_outcome = not blindly
