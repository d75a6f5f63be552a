"""The health page: green while work is accepted, also while it is diverted, and it tells nobody an address."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from django.test import Client

import kombu_paired
from kombu_paired.contrib.django import views
from kombu_paired.declarations import Entity
from kombu_paired.health_check import Health, NamespaceHealth
from tests.unit.contrib.django.conftest import SAFE


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(views, "_latest", views._Latest())


@pytest.fixture
def nowhere():
    """A place where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://:hushhush@127.0.0.1:{taken.getsockname()[1]}"


def ask(app):
    app.set_default()
    return Client().get("/health/")


def test_two_brokers_that_answer(make):
    answer = ask(make("shop"))
    assert answer.status_code == 200
    assert answer.json() == {
        "ok": True,
        "accepts_work": True,
        "diverting": False,
        "pairing": "main",
        "primary": {"reachable": True},
        "secondary": {"reachable": True},
        "entities": {},
        "isolated": [],
    }
    assert "no-store" in answer["Cache-Control"]


def test_it_is_green_while_the_primary_is_away_and_says_so(make, nowhere):
    answer = ask(make("shop", f"paired+{nowhere}/0", broker_transport_options={"secondary": "memory://spare", **SAFE}))
    assert answer.status_code == 200
    assert {"ok": False, "accepts_work": True, "diverting": True}.items() <= answer.json().items()
    assert answer.json()["primary"] == {"reachable": False}


def test_and_while_an_entity_is_failed_over(make):
    app = make("shop", broker_transport_options={"secondary": "memory://spare", **SAFE, "failover_interval": 0})
    pairing = kombu_paired.pairing_of(app.connection_for_write())
    pairing.circuits.failed(Entity("", "orders"))
    try:
        answer = ask(app)
    finally:
        pairing.mark_healthy(Entity("", "orders"))
    assert answer.status_code == 200
    assert answer.json()["diverting"] is True
    assert answer.json()["entities"] == {"orders": "failed_over"}


def test_what_operators_have_isolated_is_diverted():
    side = NamespaceHealth("uri", True)
    found = Health("main", side, side, isolated={"orders": 1.0})
    assert {"diverting": True, "isolated": ["orders"]}.items() <= views.facts(found).items()
    assert views.facts(Health("main", side, side, {"orders": "isolated"}))["diverting"] is True
    assert views.facts(Health("main", side, side, {"orders": "suspect"}))["diverting"] is False


def test_it_is_red_when_neither_side_takes_work(make, nowhere):
    answer = ask(make("shop", f"paired+{nowhere}/0", broker_transport_options={**SAFE, "secondary": f"{nowhere}/1"}))
    assert answer.status_code == 503
    assert {"accepts_work": False, "diverting": False}.items() <= answer.json().items()
    assert "hush" not in answer.content.decode()


def test_one_look_at_the_brokers_serves_all_who_ask_at_once(make, monkeypatch):
    asked = []
    monkeypatch.setattr(views, "ask", lambda app: asked.append(time.sleep(0.2)) or kombu_paired.health(app))
    monkeypatch.setattr(views, "FRESH", 60)
    app, answers = make("shop"), []
    threads = [threading.Thread(target=lambda: answers.append(ask(app).status_code)) for _ in range(5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert answers == [200] * 5
    assert len(asked) == 1


def test_and_is_not_kept_for_longer(make, monkeypatch):
    asked = []
    monkeypatch.setattr(views, "ask", lambda app: asked.append(app) or kombu_paired.health(app))
    monkeypatch.setattr(views, "FRESH", 0)
    app = make("shop")
    ask(app), ask(app)
    assert len(asked) == 2


def test_it_takes_no_post(make):
    make("shop").set_default()
    assert Client().post("/health/").status_code == 405


def test_who_looks_after_processes_needs_no_account(make):
    assert views.health.login_required is False
