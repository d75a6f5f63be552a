"""RedBeat finds its Redis in a paired ``broker_url``, unless it was told another one."""

from __future__ import annotations

import pytest
from celery import Celery

import kombu_paired
from kombu_paired.contrib import celery as contrib


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(contrib, "find_spec", lambda name: object())


def app_of(url, **conf):
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(broker_transport_options={"secondary": "redis://spare", "primary_options": {"db": 1}}, **conf)
    return app


@pytest.mark.parametrize("is_configured", [False, True])
def test_it_is_given_the_plain_url_and_options_of_the_primary(is_configured):
    app = app_of("paired+redis://:hush@main:6379/0")
    if is_configured:
        assert app.conf.broker_url
    kombu_paired.setup(app)
    assert app.conf.redbeat_redis_url == "redis://:hush@main:6379/0"
    assert app.conf.redbeat_redis_options == {"db": 1}
    assert "hush" not in app.bugreport()


def test_what_it_was_told_stays():
    app = kombu_paired.setup(app_of("paired+redis://main", redbeat_redis_url="redis://beat"))
    assert app.conf.redbeat_redis_url == "redis://beat"
    assert app.conf.get("redbeat_redis_options") is None


@pytest.mark.parametrize("url", ["redis://main", "paired+amqp://main//"])
def test_another_broker_is_none_of_its_business(url):
    assert kombu_paired.setup(app_of(url)).conf.get("redbeat_redis_url") is None
