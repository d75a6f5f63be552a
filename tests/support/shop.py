"""The Celery application of the end-to-end tests: ``celery -A tests.support.shop worker``.

Configured by environment variables alone, so that workers and producers of any test agree:

=========================  ========================================================================
SHOP_BROKER_URL            broker_url
SHOP_TRANSPORT_OPTIONS     broker_transport_options, as JSON
SHOP_LEDGER                folder of the :class:`~tests.support.ledger.Ledger` that tasks write to
SHOP_SETUP                 ``1``: call ``kombu_paired.setup(app)``
SHOP_CONF                  further Celery settings, as JSON
=========================  ========================================================================
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from tests.support import naps
from tests.support.ledger import Ledger


def shop_environment(
    broker_url: str,
    transport_options: Mapping[str, Any] | None = None,
    *,
    ledger: Ledger | str | os.PathLike[str],
    setup: bool = True,
    conf: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """The variables that say all this."""
    folder = ledger.folder if isinstance(ledger, Ledger) else Path(ledger)
    return {
        "SHOP_BROKER_URL": broker_url,
        "SHOP_TRANSPORT_OPTIONS": json.dumps(dict(transport_options or {})),
        "SHOP_LEDGER": str(folder),
        "SHOP_SETUP": "1" if setup else "",
        "SHOP_CONF": json.dumps(dict(conf or {})),
    }


def make_app(environment: Mapping[str, str]) -> Celery:
    """The application that these variables describe; any number of them may live in one process."""
    url = environment.get("SHOP_BROKER_URL", "memory://")
    if url.startswith("paired+"):
        import kombu_paired  # registers the transport

    if "servicebus" in url + environment.get("SHOP_TRANSPORT_OPTIONS", ""):
        naps.shorten()

    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(
        broker_transport_options=json.loads(environment.get("SHOP_TRANSPORT_OPTIONS") or "{}"),
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=True,
        **{"task_ignore_result": True} | json.loads(environment.get("SHOP_CONF") or "{}"),
    )
    if environment.get("SHOP_SETUP") == "1":
        import kombu_paired

        kombu_paired.setup(app)
    folder = environment.get("SHOP_LEDGER")

    def write(task: Any, n: int) -> None:
        assert folder, "SHOP_LEDGER is not set"
        Ledger(folder).write(n, task.request.id)

    @app.task(name="shop.record", bind=True, shared=False)
    def record(self: Any, n: int) -> int:
        """Write n into the ledger."""
        write(self, n)
        return n

    @app.task(name="shop.spawn", bind=True, shared=False)
    def spawn(self: Any, n: int) -> None:
        """A task that publishes a task."""
        app.tasks["shop.record"].delay(n)

    @app.task(name="shop.slow_record", bind=True, shared=False)
    def slow_record(self: Any, n: int, seconds: float) -> None:
        """Take some time, then write n into the ledger."""
        time.sleep(seconds)
        write(self, n)

    app.finalize()
    # so that a test says shop.record.delay(1), and not app.tasks["shop.record"].delay(1)
    app.record, app.spawn, app.slow_record = record, spawn, slow_record
    return app


if os.environ.get("SHOP_BROKER_URL"):
    app = make_app(os.environ)
    app.set_current()
