"""No connection is left behind, whatever goes wrong how often: the brokers count them."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection

from kombu_paired.brokers.roles import Sender
from kombu_paired.errors import MessageTooLarge, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.pairing import Pairing
from kombu_paired.transport import pairing_of
from tests.support.brokers import BrokerNode, RabbitMQNode, RedisNode

ROUNDS = int(os.environ.get("LEAK_ROUNDS", "300"))  # 1,000 by hand
#: Of those that open and close everything.
WHOLE_ROUNDS = max(ROUNDS // 3, 1)

pytestmark = pytest.mark.parametrize("broker_kind", ["redis", "amqp"], indirect=True)


def connections(node: BrokerNode) -> int:
    """How many are open, as the broker itself says."""
    if isinstance(node, RedisNode):
        with node.client() as client:
            return len(client.client_list()) - 1
    assert isinstance(node, RabbitMQNode)
    return int(node.broker.erl("length(rabbit_networking:connections())"))


def wait_until_open(node: BrokerNode, wanted: int) -> None:
    """A broker hears of an end a moment later."""
    deadline = time.monotonic() + 20
    while (found := connections(node)) > wanted:
        assert time.monotonic() < deadline, f"{found} connections to the {node.kind}, and not {wanted}"
        time.sleep(0.05)


@pytest.fixture
def new_pairing(primary: BrokerNode, options: dict[str, Any]) -> Iterator[Callable[..., Pairing]]:
    """A pairing of its own each time, which is open: ``new_pairing(failover_interval=0)``."""
    numbers, made = itertools.count(1), []
    quiet = {**options, "backlog_queue_count": 1, "failover_interval": 3600, "send_timeout": 10}

    def make(**more: Any) -> Pairing:
        own = {**quiet, "primary_name": f"{options['primary_name']}-{next(numbers)}", **more}
        with Connection(f"paired+{primary.url}", transport_options=own) as connection:
            pairing = pairing_of(connection)
        pairing.open()
        made.append(pairing)
        return pairing

    yield make
    for pairing in made:
        pairing.close()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pairing, str], None]:
    """``failing(pairing, "send")``: from now on, what senders do to the primary has an end that counts as a failure."""

    def fail(pairing: Pairing, operation: str) -> None:
        do = getattr(type(pairing.primary.sender()), operation)

        def do_and_fail(sender: Any, *arguments: Any) -> Any:
            answer = do(sender, *arguments)
            if sender.namespace is pairing.primary:
                raise NamespaceFailure(FailureKind.FAULT, pairing.primary.label, OSError("as the test says"))
            return answer

        monkeypatch.setattr(type(pairing.primary.sender()), operation, do_and_fail)

    return fail


def to(queue: str) -> Message:
    return Message("{}", "", queue, content_encoding="utf-8", properties={"delivery_mode": 2})


def test_declarations_that_fail_leave_no_connection_behind(new_pairing: Any, failing: Any, primary: BrokerNode) -> None:
    pairing, before = new_pairing(), connections(primary)
    failing(pairing, "declare")
    for _ in range(ROUNDS):
        assert pairing.declare("queue_declare", {"queue": "orders", "durable": True}) is None
    wait_until_open(primary, before)


def test_messages_too_large_for_the_backlog_leave_no_connection_behind(
    new_pairing: Any, failing: Any, secondary: BrokerNode
) -> None:
    pairing = new_pairing(failover_interval=0)  # the primary is tried once
    pairing.declare("queue_declare", {"queue": "orders", "durable": True})
    failing(pairing, "send")
    pairing.send(to("orders"))
    pairing.isolation.look()  # over a link that stays
    before = connections(secondary)
    for _ in range(ROUNDS):
        pairing.secondary.max_message_size = 10
        with pytest.raises(MessageTooLarge):
            pairing.send(to("orders"))
        pairing.secondary.max_message_size = None
        pairing.send(to("orders"))
    wait_until_open(secondary, before)


def test_a_send_that_is_under_way_when_its_pairing_closes_leaves_no_connection_behind(
    new_pairing: Any, primary: BrokerNode, secondary: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = (sender := type(new_pairing().primary.sender())).send
    before = connections(primary), connections(secondary)
    for _ in range(WHOLE_ROUNDS):
        is_connected, may_go_on = threading.Event(), threading.Event()

        def slow(
            sender: Sender,
            message: Message,
            timeout: float,
            is_connected: threading.Event = is_connected,
            may_go_on: threading.Event = may_go_on,
        ) -> None:
            send(sender, message, timeout)
            is_connected.set()
            assert may_go_on.wait(20)

        monkeypatch.setattr(sender, "send", slow)
        pairing = new_pairing()
        pairing.declare("queue_declare", {"queue": "orders", "durable": True})
        sending = threading.Thread(target=pairing.send, args=(to("orders"),))
        sending.start()
        assert is_connected.wait(20)
        pairing.close()
        may_go_on.set()
        sending.join(20)
    wait_until_open(primary, before[0])
    wait_until_open(secondary, before[1])
