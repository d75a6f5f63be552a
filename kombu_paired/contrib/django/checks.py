"""System checks: what is wrong with the settings of the broker, found by ``manage.py check`` and not by a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import Celery
from celery.exceptions import ImproperlyConfigured
from django.core.checks import CheckMessage, Error, Warning

from kombu_paired.brokers.checking import check_sides
from kombu_paired.brokers.drivers import driver_of
from kombu_paired.contrib.django.applications import applications, broker_urls, is_paired, setting
from kombu_paired.errors import ConfigurationError
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.secrets import without_secrets
from kombu_paired.urls import PREFIX, BrokerUrl

__all__ = ("check_applications",)

#: Schemes of result backends that are servers which a broker may be, too.
_SERVERS = {"redis", "rediss", "sentinel"}


def check_applications(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Judge the settings of every Celery application of the process; reaches no broker.

    Where none is there yet, the ``CELERY_…`` settings are judged as an application would read them.
    """
    found = [*applications()]
    if found:
        return [*_check_all(found)]
    return [_no_application(), *_check_all([_as_settings_say()])]


def _as_settings_say() -> Celery:
    app = Celery("settings", set_as_current=False, fixups=set())
    app.config_from_object("django.conf:settings", namespace="CELERY")
    app.close()  # Celery forgets it; nobody else is to find it
    return app


def _check_all(found: list[Celery]) -> Iterator[CheckMessage]:
    plain: list[Celery] = []
    paired = 0
    for app in found:
        try:
            if is_paired(app):
                paired += 1
                yield from _check_paired(app)
            else:
                plain.append(app)
        except ImproperlyConfigured as exc:
            yield Error(f"Celery cannot read its settings: {exc}", obj=_shown(app), id="kombu_paired.E004")
    if not paired:
        yield from (_not_paired(app) for app in plain)


def _shown(app: Celery) -> str:
    return f"Celery application {app.main!r}"


# -- what is missing ------------------------------------------------------------------------------------------------


def _no_application() -> CheckMessage:
    return Warning(
        "No Celery application is there when Django has started: delay() reaches no broker that these settings name.",
        hint="Import it in the __init__.py of the project: from .celery import app as celery_app.",
        id="kombu_paired.W002",
    )


def _not_paired(app: Celery) -> CheckMessage:
    urls, name = broker_urls(app), setting(app, "broker_url")
    shown = without_secrets(urls[0]) if urls else "amqp://main-broker//"
    now = f"is {shown}, which is not paired" if urls else "is not set"
    return Warning(
        f"{name} {now}: nothing is diverted when that broker is away.",
        hint=f"Write {name} = '{PREFIX}{shown}', and in {setting(app, 'broker_transport_options')} the 'secondary'; or "
        "take 'kombu_paired.contrib.django' out of INSTALLED_APPS.",
        obj=_shown(app),
        id="kombu_paired.W001",
    )


# -- what is wrong --------------------------------------------------------------------------------------------------


def _check_paired(app: Celery) -> Iterator[CheckMessage]:
    where, options = setting(app, "broker_transport_options"), app.conf.broker_transport_options or {}
    try:
        parsed = PairedNamespaceOptions.parse(options)
    except ConfigurationError as exc:
        yield Error(
            f"{where}: {exc}",
            hint="The settings of a pairing, with their defaults and bounds, are in docs/settings.md.",
            obj=_shown(app),
            id="kombu_paired.E001",
        )
        return
    primaries = [each.removeprefix(PREFIX) for each in broker_urls(app)]
    secondaries = [each.text for each in BrokerUrl.all_in(parsed.secondary)]
    missing = {each.extra: each for each in map(driver_of, [*primaries, *secondaries]) if not each.is_installed}
    for extra, driver in missing.items():
        yield Error(
            f"The package {driver.package!r}, which a broker in {setting(app, 'broker_url')} or {where} needs, is not "
            "installed.",
            hint=f"pip install '{extra}'",
            obj=_shown(app),
            id="kombu_paired.E003",
        )
    if missing:
        return
    try:
        check_sides(primaries, parsed)
    except ConfigurationError as exc:
        yield Error(
            f"{setting(app, 'broker_url')} and the 'secondary' of {where} cannot be paired: {exc}",
            hint="docs/brokers.md says which brokers may be paired, and how their URLs are written.",
            obj=_shown(app),
            id="kombu_paired.E002",
        )
        return
    yield from _check_results(app, primaries)


def _check_results(app: Celery, primaries: list[str]) -> Iterator[CheckMessage]:
    backend = app.conf.result_backend
    if app.conf.task_ignore_result or not isinstance(backend, str) or not _is_on_one_of(primaries, backend):
        return
    yield Warning(
        f"{setting(app, 'result_backend')} ({without_secrets(backend)}) is on the server of the primary: while that is "
        "away, tasks are accepted, and get() waits for each result.",
        hint=f"Set {setting(app, 'task_ignore_result')} = True if nobody reads results; else keep them elsewhere.",
        obj=_shown(app),
        id="kombu_paired.W003",
    )


def _is_on_one_of(primaries: list[str], backend: str) -> bool:
    if BrokerUrl(backend).kind == "rpc":
        return True
    if BrokerUrl(backend).kind not in _SERVERS:
        return False
    try:
        server = driver_of(backend).address_of(backend)[:2]
    except ValueError:  # Celery judges it
        return False
    return server in [driver_of(each).address_of(each)[:2] for each in primaries]
