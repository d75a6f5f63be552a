"""The admin's page: for those who may see it, never for long, and without a secret."""

from __future__ import annotations

import re
import socket
import time
from html import unescape

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection as database
from django.test import Client

import kombu_paired
from kombu_paired.brokers.roles import BacklogDepth
from kombu_paired.cli.sides import Look, Side
from kombu_paired.contrib.django import admin
from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.isolation import Isolated
from tests.unit.contrib.django.conftest import SAFE

LETTER = {
    "id": "id-1",
    "task": "orders.send",
    "entity": "orders",
    "dead_letter_reason": "NoPath",
    "dead_letter_description": "<i>gone",
}
PAGE = "/admin/kombu_paired/backlog/"


@pytest.fixture(scope="module", autouse=True)
def _tables():
    call_command("migrate", verbosity=0)
    yield
    database.close()


@pytest.fixture
def staff():
    user = User.objects.create(username="staff", is_staff=True)
    yield user
    user.delete()


@pytest.fixture
def may_see(staff):
    staff.user_permissions.add(Permission.objects.get(codename="view_backlog"))
    return staff


def get(user, path=PAGE):
    client = Client()
    if user is not None:
        client.force_login(user)
    return client.get(path)


def text_of(answer):
    """As people read it."""
    body = answer.content.decode().split('id="content-main"')[1]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.fixture
def shop(make):
    app = make("shop")
    app.set_default()
    kombu_paired.pairing_of(app.connection_for_write()).open()
    return app


def test_who_has_not_logged_in_is_asked_to(shop):
    assert get(None).status_code == 302


def test_staff_needs_the_permission_to_see_it(shop, staff):
    assert get(staff).status_code == 403
    assert b"backlog" not in get(staff, "/admin/").content


def test_who_has_it_sees_both_sides_and_every_queue(shop, may_see):
    assert PAGE in get(may_see, "/admin/").content.decode()
    text = text_of(get(may_see))
    assert "primary memory://main reachable" in text
    assert "secondary memory://spare reachable" in text
    assert "main/x-servicebus-transfer/9 0" in text
    assert "Nothing waits in the backlog." in text


def test_it_does_nothing_that_it_does_not_know(shop, may_see):
    client = Client()
    client.force_login(may_see)
    assert client.post(PAGE).status_code == 400
    assert client.post(PAGE, {"action": "empty", "id": "1"}).status_code == 400


def test_nobody_can_add_change_or_delete(shop, may_see):
    for path in ("add/", "x/change/", "x/delete/"):
        assert get(may_see, PAGE + path).status_code == 404


def test_an_entity_that_is_failed_over_is_named(make, may_see):
    app = make("shop", broker_transport_options={"secondary": "memory://spare", **SAFE, "failover_interval": 0})
    app.set_default()
    pairing = kombu_paired.pairing_of(app.connection_for_write())
    pairing.circuits.failed(Entity("", "orders"))
    try:
        assert "orders failed_over" in text_of(get(may_see))
    finally:
        pairing.mark_healthy(Entity("", "orders"))


def test_two_silent_brokers_hold_the_page_up_for_one_send_timeout(make, may_see):
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
            each.listen(9)
        urls = [f"redis://:hushhush@127.0.0.1:{each.getsockname()[1]}/0" for each in (one, other)]
        options = {"secondary": urls[1], "send_timeout": SAFE["send_timeout"]}
        make("shop", f"paired+{urls[0]}", broker_transport_options=options).set_default()
        began = time.monotonic()
        answer = get(may_see)
        assert time.monotonic() - began < SAFE["send_timeout"] + 3
    text = text_of(answer)
    assert "The primary is away." in text
    assert "nobody knows what waits there" in text
    assert "Nothing waits" not in text
    assert "hush" not in answer.content.decode()


def test_a_setting_that_is_wrong_is_said_on_the_page(make, may_see):
    make("shop", broker_transport_options={**SAFE, "secundary": "memory://spare"}).set_default()
    assert "did you mean 'secondary'" in text_of(get(may_see))


def test_what_waits_and_what_is_dead(shop, may_see, monkeypatch):
    failure = NamespaceFailure(FailureKind.UNREACHABLE, "primary", OSError("<refused>"))
    backlog = [
        BacklogDepth("main/x-servicebus-transfer/0", 3, time.time() - 125, 1, "<b>NoPath"),
        BacklogDepth("main/x-servicebus-transfer/1", None),
    ]
    stand_ins = [BacklogDepth("main/x-paired-standin/celery", 4)]
    results = BacklogDepth("main/x-servicebus-transfer/results-1", 5)
    isolated = Isolated({"all": 0.0, "orders": 0.0})
    look = Look(Side("primary", "x", failure), Side("secondary", "y"), backlog, results, stand_ins, isolated)
    monkeypatch.setattr(admin, "look_at", lambda pairing, results: look)
    monkeypatch.setattr(admin, "find", lambda pairing, queues, limit: [{**LETTER, "queue": each} for each in queues])
    answer = get(may_see)
    text = text_of(answer)
    assert "unreachable : OSError: <refused>" in text
    assert "Every entity is isolated since 1970-01-01" in text
    assert "orders is isolated since 1970-01-01" in text
    assert "1 dead letter: somebody has to look at it." in text
    assert "12 messages waiting for the way home." in text
    assert re.search(r"transfer/0 3 2 min \d+ s 1 <b>NoPath", text)
    assert "transfer/1 missing" in text
    assert "x-paired-standin/celery 4" in text
    assert "results-1 5" in text
    assert "id-1 orders.send orders NoPath <i>gone main/x-servicebus-transfer/0/$DeadLetterQueue" in text
    assert b"<b>NoPath" not in answer.content
    assert b"<i>gone" not in answer.content
    assert b"<button" not in answer.content.split(b'id="content-main"')[1], "who may only look can do nothing"


def test_a_secondary_that_cannot_be_looked_into_says_so(shop, may_see, monkeypatch):
    queue = BacklogDepth("main/x-servicebus-transfer/0", 0, None, 1, "NoPath")
    look = Look(Side("primary", "x"), Side("secondary", "y"), [queue])
    monkeypatch.setattr(admin, "look_at", lambda pairing, results: look)
    assert "cannot be looked into without taking" in text_of(get(may_see))
