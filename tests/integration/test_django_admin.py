"""Dead letters in Django's admin, on a real secondary: who may puts them back, or throws them away."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.core.management import call_command
from django.test import Client

from kombu_paired.brokers.roles import DeadLetter
from kombu_paired.transport import pairing_of
from tests.support import django_site  # noqa: F401

pytestmark = pytest.mark.parametrize("broker_kind", ["redis"])
PAGE = "/admin/kombu_paired/backlog/"


@pytest.fixture
def dead(paired_shop, options, primary, monkeypatch):
    """Three dead letters, by their ids, and the pairing."""
    options |= {"backlog_queue_count": 1}
    shop = paired_shop()
    monkeypatch.setattr("kombu_paired.contrib.django.admin.the_application", lambda: shop)
    primary.kill()
    ids = {shop.send_task("shop.record", (number,)).id for number in range(3)}
    with shop.connection_for_write() as connection:
        pairing = pairing_of(connection)
    receiver = pairing.secondary.receiver(pairing.backlog_queue_names, 10, 10)
    letters = []
    while len(letters) < len(ids):
        letters += [DeadLetter(each, "MissingEntity", "gone") for each in receiver.receive(10, 10)]
    receiver.dead_letter(letters)
    receiver.close()
    return sorted(ids), pairing


@pytest.fixture
def client():
    call_command("migrate", verbosity=0)
    user = apps.get_model("auth.User").objects.create(username="operator", is_staff=True)
    client = Client()
    client.force_login(user)

    def may(*what):
        permissions = apps.get_model("auth.Permission").objects
        user.user_permissions.set(permissions.filter(codename__in=[f"{each}_backlog" for each in what]))

    client.may = may
    yield client
    user.delete()


def left(pairing):
    [depth] = pairing.secondary.backlog_depths(pairing.backlog_queue_names, 10)
    return depth.messages, depth.dead_letters


def test_who_may_puts_them_back_or_throws_them_away(dead, client):
    ids, pairing = dead
    client.may("view")
    page = client.get(PAGE).content.decode()
    assert all(each in page for each in ids)
    for action in ("requeue", "delete"):
        assert client.post(PAGE, {"action": action, "id": ids, "confirmed": "yes"}).status_code == 403
    assert left(pairing) == (0, 3)

    client.may("view", "change")
    assert "1 dead letter of" in client.post(PAGE, {"action": "requeue", "id": ids[:1]}, follow=True).content.decode()
    assert left(pairing) == (1, 2)
    assert client.post(PAGE, {"action": "delete", "id": ids[1:], "confirmed": "yes"}).status_code == 403

    client.may("view", "delete")
    question = client.post(PAGE, {"action": "delete", "id": ids[1:2]})
    assert "Nothing brings it back." in question.content.decode()
    assert left(pairing) == (1, 2)
    client.post(PAGE, {"action": "delete", "id": ids[1:2], "confirmed": "yes"})
    assert left(pairing) == (1, 1)
    assert ids[1] not in client.get(PAGE).content.decode()
    assert ids[2] in client.get(PAGE).content.decode()
    written = apps.get_model("admin.LogEntry").objects.order_by("pk")
    assert [each in entry.change_message for each, entry in zip(ids[:2], written, strict=True)] == [True, True]


def test_a_post_from_elsewhere_is_refused_and_none_that_chooses_nothing_does_anything(dead, client):
    ids, pairing = dead
    client.may("view", "change", "delete")
    for action in ("requeue", "delete"):
        assert "0 dead letters of" in client.post(PAGE, {"action": action}, follow=True).content.decode()
    client.handler.enforce_csrf_checks = True
    assert client.post(PAGE, {"action": "requeue", "id": ids}).status_code == 403
    assert left(pairing) == (0, 3)
