"""The Celery application of the end-to-end tests: ``celery -A tests.support.shop worker``.

Configured by environment variables alone, so that workers and producers of any test agree:

=========================  ========================================================================
SHOP_BROKER_URL            broker_url
SHOP_TRANSPORT_OPTIONS     broker_transport_options, as JSON
SHOP_LEDGER                folder of the :class:`~tests.support.ledger.Ledger` that tasks write to
SHOP_SETUP                 ``1``: call ``kombu_paired.setup(app)``
SHOP_CONF                  further Celery settings, as JSON
SHOP_METRICS_PORT          count, and let a worker answer scrapes at this port
SHOP_LIVENESS              a file that a worker touches while it lives
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
    if environment.get("SHOP_METRICS_PORT"):
        from kombu_paired.contrib import prometheus

        prometheus.setup(app, int(environment["SHOP_METRICS_PORT"]))
    if environment.get("SHOP_LIVENESS"):
        from kombu_paired.contrib import liveness

        liveness.setup(app, environment["SHOP_LIVENESS"])
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

    @app.task(name="shop.total", bind=True, shared=False)
    def total(self: Any, numbers: list[int], seconds: float, n: int) -> int:
        """Take some time, write n into the ledger, and give the sum of some numbers."""
        time.sleep(seconds)
        write(self, n)
        return sum(numbers)

    @app.task(name="shop.retry", bind=True, shared=False)
    def retry(self: Any, n: int, times: int) -> None:
        """Write n into the ledger, and again at each of so many retries."""
        write(self, n)
        if self.request.retries < times:
            raise self.retry(countdown=0, max_retries=times)

    @app.task(name="shop.tell_marks", bind=True, shared=False)
    def tell_marks(self: Any, n: int, times: int) -> None:
        """Write n into the ledger: 1 more where there may be two of it, 2 more where it was diverted."""
        from kombu_paired import maybe_duplicate, was_diverted

        write(self, n + maybe_duplicate(self.request) + 2 * was_diverted(self.request))
        if self.request.retries < times:
            raise self.retry(countdown=0, max_retries=times)

    @app.task(name="shop.replace", bind=True, shared=False)
    def replace(self: Any, n: int, times: int) -> None:
        """Write n into the ledger, and let so many others with the same id do it, one after the other."""
        write(self, n)
        if times:
            raise self.replace(replace.s(n, times - 1))

    app.finalize()
    # so that a test says shop.record.delay(1), and not app.tasks["shop.record"].delay(1)
    app.record, app.spawn, app.slow_record = record, spawn, slow_record
    app.retry, app.replace, app.total, app.tell_marks = retry, replace, total, tell_marks
    return app


if os.environ.get("SHOP_BROKER_URL"):
    app = make_app(os.environ)
    app.set_current()
