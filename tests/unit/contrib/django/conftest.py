"""One Django for all tests of this folder, and Celery applications that it knows of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, _state

from tests.support import django_site  # noqa: F401

SAFE = {"allow_unsafe_secondary": True, "send_timeout": 0.5}


@pytest.fixture
def made(monkeypatch) -> list[Celery]:
    """The applications that Celery knows of in this process, and what is to be told of one that is finalized."""
    found: list[Celery] = []
    monkeypatch.setattr(_state, "_get_active_apps", lambda: found)
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    monkeypatch.setattr(_state._tls, "current_app", None)
    monkeypatch.setattr(_state, "default_app", None)
    return found


@pytest.fixture
def make(made) -> Callable[..., Celery]:
    def make(name: str, url: Any = "paired+memory://main", **conf: Any) -> Celery:
        app = Celery(name, set_as_current=False, namespace="CELERY")
        app.conf.broker_url = url
        app.conf.broker_transport_options = {"secondary": "memory://spare", **SAFE}
        app.conf.update(conf)
        made.append(app)
        return app

    return make
