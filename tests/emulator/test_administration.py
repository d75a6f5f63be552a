"""The unmodified administration client against the emulator, on the port that also speaks AMQP."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from kombu_paired.emulator import Emulator
from tests.emulator.conftest import connect
from tests.emulator.receiving import receive

pytest.importorskip("azure.servicebus")

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import (
    CorrelationRuleFilter,
    EntityStatus,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

Admin = ServiceBusAdministrationClient


def test_the_properties_of_a_queue_come_back(admin: Admin) -> None:
    properties = {
        "lock_duration": timedelta(seconds=37),
        "max_delivery_count": 2147483647,
        "max_size_in_megabytes": 5120,
        "default_message_time_to_live": timedelta(days=3, hours=2, minutes=1, seconds=0.5),
        "dead_lettering_on_message_expiration": True,
        "requires_session": True,
        "requires_duplicate_detection": True,
        "duplicate_detection_history_time_window": timedelta(minutes=7),
        "enable_batched_operations": True,
        "auto_delete_on_idle": timedelta(minutes=10),
        "user_metadata": "mine & <yours>",
    }
    created = admin.create_queue("contoso/x-servicebus-transfer/9", **properties)
    for queue in (created, admin.get_queue("contoso/x-servicebus-transfer/9")):
        assert {name: getattr(queue, name) for name in properties} == properties
        assert queue.name == "contoso/x-servicebus-transfer/9"
        assert queue.status == EntityStatus.ACTIVE


def test_unlimited_is_the_default(admin: Admin) -> None:
    queue = admin.create_queue("unlimited")
    assert queue.default_message_time_to_live > timedelta(days=10_000_000)
    assert queue.auto_delete_on_idle > timedelta(days=10_000_000)
    admin.update_queue(queue)
    assert admin.get_queue("unlimited").default_message_time_to_live > timedelta(days=10_000_000)


def test_a_queue_is_updated_and_deleted(admin: Admin, client: ServiceBusClient) -> None:
    queue = admin.create_queue("changing")
    queue.max_delivery_count = 3
    queue.lock_duration = timedelta(seconds=10)
    admin.update_queue(queue)
    assert admin.get_queue("changing").max_delivery_count == 3
    with pytest.raises(HttpResponseError, match="cannot be changed"):
        admin.update_queue(queue, requires_session=True)
    admin.update_queue(queue, status=EntityStatus.DISABLED)
    with pytest.raises(Exception, match="disabled"):
        client.get_queue_sender("changing").__enter__()
    admin.delete_queue("changing")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("changing")
    with pytest.raises(ResourceNotFoundError):
        admin.update_queue(queue)


def test_lists_have_pages(admin: Admin) -> None:
    for number in range(7):
        admin.create_queue(f"paged/{number}")
        admin.create_topic(f"paged-topic/{number}")
    pages = admin.list_queues(max_page_size=3).by_page()
    names = [queue.name for page in pages for queue in page]
    assert names == sorted(names, key=str.lower)
    assert {f"paged/{number}" for number in range(7)} <= set(names)
    assert {f"paged-topic/{number}" for number in range(7)} <= {topic.name for topic in admin.list_topics()}
    assert [queue.name for queue in admin.list_queues_runtime_properties()] == names


def test_topics_and_subscriptions(admin: Admin) -> None:
    topic = admin.create_topic("t", default_message_time_to_live=timedelta(hours=1), max_size_in_megabytes=2048)
    assert (topic.name, topic.max_size_in_megabytes) == ("t", 2048)
    topic.user_metadata = "changed"
    admin.update_topic(topic)
    assert admin.get_topic("t").user_metadata == "changed"
    made = admin.create_subscription("t", "s", max_delivery_count=4, lock_duration=timedelta(seconds=9))
    assert (made.name, made.max_delivery_count, made.lock_duration) == ("s", 4, timedelta(seconds=9))
    made.max_delivery_count = 5
    admin.update_subscription("t", made)
    assert admin.get_subscription("t", "s").max_delivery_count == 5
    admin.create_subscription("t", "s2")
    assert [each.name for each in admin.list_subscriptions("t")] == ["s", "s2"]
    assert admin.get_topic_runtime_properties("t").subscription_count == 2
    admin.delete_subscription("t", "s2")
    for missing in ("s2", "never"):
        with pytest.raises(ResourceNotFoundError):
            admin.get_subscription("t", missing)
        with pytest.raises(ResourceNotFoundError):
            admin.delete_subscription("t", missing)
    with pytest.raises(ResourceNotFoundError):
        admin.create_subscription("no-topic", "s")
    admin.delete_topic("t")
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic("t")


def test_runtime_properties_count(admin: Admin, client: ServiceBusClient) -> None:
    admin.create_queue("counted")
    admin.create_topic("counted-topic")
    admin.create_subscription("counted-topic", "s")
    with client.get_queue_sender("counted") as sender:
        sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])
        sender.schedule_messages(ServiceBusMessage("z"), datetime.now(timezone.utc) + timedelta(hours=1))
    with client.get_queue_receiver("counted") as receiver:
        (message,) = receiver.receive_messages(max_wait_time=20)
        receiver.dead_letter_message(message)
    with client.get_topic_sender("counted-topic") as sender:
        sender.send_messages(ServiceBusMessage("x"))
    counts = admin.get_queue_runtime_properties("counted")
    found = (counts.active_message_count, counts.dead_letter_message_count, counts.scheduled_message_count)
    assert found == (1, 1, 1)
    assert counts.total_message_count == 3
    assert counts.size_in_bytes > 0
    assert counts.created_at_utc <= counts.accessed_at_utc
    assert admin.get_subscription_runtime_properties("counted-topic", "s").active_message_count == 1


def test_rules_are_kept_as_they_were_written(admin: Admin) -> None:
    admin.create_topic("ruled")
    admin.create_subscription("ruled", "s")
    assert [rule.name for rule in admin.list_rules("ruled", "s")] == ["$Default"]
    admin.create_rule("ruled", "s", "none", filter=FalseRuleFilter())
    admin.create_rule("ruled", "s", "all", filter=TrueRuleFilter())
    admin.create_rule("ruled", "s", "sql", filter=SqlRuleFilter("color = 'red'"))
    properties = {"text": "x", "number": 7, "large": 2**40, "half": 0.5, "yes": True}
    wanted = CorrelationRuleFilter(label="red", session_id="1", properties=properties)
    admin.create_rule("ruled", "s", "correlation", filter=wanted)
    admin.delete_rule("ruled", "s", "$Default")
    found = {rule.name: rule.filter for rule in admin.list_rules("ruled", "s")}
    assert set(found) == {"none", "all", "sql", "correlation"}
    assert isinstance(admin.get_rule("ruled", "s", "none").filter, FalseRuleFilter)
    assert found["sql"].sql_expression == "color = 'red'"
    correlation = found["correlation"]
    assert (correlation.label, correlation.session_id, correlation.properties) == ("red", "1", properties)


@pytest.mark.parametrize(
    ("chosen", "action", "said"),
    [
        (SqlRuleFilter("size + 1 = 8"), None, "does not understand the SQL"),
        (SqlRuleFilter("size = @size", {"@size": 7}), None, "no parameters"),
        (TrueRuleFilter(), SqlRuleAction("SET a = 1"), "no rule actions"),
    ],
)
def test_rules_that_the_emulator_does_not_have_are_refused(
    admin: Admin, chosen: Any, action: SqlRuleAction | None, said: str
) -> None:
    with contextlib.suppress(ResourceExistsError):
        admin.create_topic("unruly")
        admin.create_subscription("unruly", "s")
    with pytest.raises(HttpResponseError, match=said):
        admin.create_rule("unruly", "s", "rule", filter=chosen, action=action)


def test_a_subscription_gets_what_its_rules_let_through(admin: Admin, client: ServiceBusClient) -> None:
    admin.create_topic("sorted")
    chosen = {
        "sql": SqlRuleFilter("color = 'red' AND size > 5"),
        "correlation": CorrelationRuleFilter(label="greetings", properties={"color": "red"}),
    }
    for name, each in chosen.items():
        admin.create_subscription("sorted", name)
        admin.delete_rule("sorted", name, "$Default")
        admin.create_rule("sorted", name, "only", filter=each)
    with client.get_topic_sender("sorted") as sender:
        for body, size, subject in (("both", 7, "greetings"), ("sql", 7, None), ("correlation", 1, "greetings")):
            properties: dict[str | bytes, Any] = {"color": "red", "size": size}
            sender.send_messages(ServiceBusMessage(body, application_properties=properties, subject=subject))
        sender.send_messages(ServiceBusMessage("neither"))
    for name in chosen:
        with client.get_subscription_receiver("sorted", name) as receiver:
            found = receive(receiver, 2) + receiver.receive_messages(max_wait_time=0.2)
            assert {str(message) for message in found} == {"both", name}


@pytest.mark.parametrize("name", ["-x", "a b", "x" * 261])
def test_names_are_checked(admin: Admin, name: str) -> None:
    with pytest.raises(HttpResponseError, match="no name for a queue"):
        admin.create_queue(name)


def test_forwarding_needs_its_target(admin: Admin) -> None:
    with pytest.raises(HttpResponseError, match="does not exist"):
        admin.create_queue("forwarding", forward_to="nowhere")
    admin.create_queue("target")
    admin.create_queue("forwarding", forward_to="target")
    assert admin.get_queue("forwarding").forward_to.endswith("/target")


def test_namespace_properties(admin: Admin) -> None:
    assert admin.get_namespace_properties().messaging_sku == "Standard"


def test_a_client_that_verifies_trusts_the_certificate(emulator: Emulator, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text(emulator.certificate())
    text = emulator.connection_string
    with Admin.from_connection_string(text, connection_verify=str(authority)) as verifying:
        verifying.create_queue("verified")
        assert verifying.get_queue("verified").name == "verified"


def test_a_deleted_queue_drops_its_links(admin: Admin, client: ServiceBusClient, queue: str) -> None:
    with client.get_queue_receiver(queue) as receiver:
        admin.delete_queue(queue)
        with pytest.raises(Exception, match="could not be found"):
            receiver.receive_messages(max_wait_time=20)


def test_without_openssl_the_certificate_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with Emulator(["q"]) as emulator:
        with pytest.raises(ValueError, match="install openssl"):
            emulator.certificate()
        with connect(emulator) as client, client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("plain AMQP works"))
