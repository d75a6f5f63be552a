"""The Celery applications of a Django process, and which of them a command or a page is about.

Nothing says to Django which they are. Celery knows those that were made, and says when one of those to come is ready.
"""

from __future__ import annotations

from celery import Celery, _state, current_app
from celery.exceptions import ImproperlyConfigured

from kombu_paired.contrib.celery import setup
from kombu_paired.errors import ConfigurationError
from kombu_paired.urls import BrokerUrl

__all__ = ("applications", "broker_urls", "is_paired", "set_up_all", "setting", "the_application")

#: What is taken from inside Celery: module, names.
PRIVATE = {"celery._state": ("_get_active_apps", "connect_on_app_finalize")}


def applications() -> list[Celery]:
    """Those that were made in this process, by name; without the one that Celery falls back to where none was."""
    made = [each for each in list(_state._get_active_apps()) if each.set_as_current or each.main != "default"]
    return sorted(made, key=lambda app: str(app.main))


def set_up_all() -> None:
    """Set up every application whose broker is a paired one: those that are there, and those to come."""
    _state.connect_on_app_finalize(_set_up)
    for app in applications():
        _set_up(app)


def _set_up(app: Celery) -> None:
    try:
        wanted = is_paired(app)
    except ImproperlyConfigured:  # the check says so, and whoever uses it is told by Celery
        return
    if wanted:
        setup(app)


def broker_urls(app: Celery) -> list[str]:
    """The URLs that an application sends to, as they were given; none if it has no broker.

    Raises:
        ImproperlyConfigured: Celery cannot make sense of its settings.
    """
    given = app.conf.broker_write_url or []
    return [each.text for each in BrokerUrl.all_in(given)] if isinstance(given, str) else [str(each) for each in given]


def is_paired(app: Celery) -> bool:
    """Whether the broker of an application is a paired one.

    Raises:
        ImproperlyConfigured: Celery cannot make sense of its settings.
    """
    urls = broker_urls(app)
    return bool(urls) and BrokerUrl(urls[0]).is_paired


def setting(app: Celery, name: str) -> str:
    """What a setting of Celery's is called where this application is configured: ``CELERY_BROKER_URL``."""
    return f"{app.namespace}_{name}".upper() if app.namespace else name


def the_application() -> Celery:
    """The one that ``@shared_task`` belongs to, if its broker is a paired one; else the only one whose broker is.

    Raises:
        ConfigurationError: there is none, or there are several.
    """
    current = current_app._get_current_object()
    paired = [each for each in applications() if is_paired(each)]
    if current in paired:
        return current
    if len(paired) == 1:
        return paired[0]
    if paired:
        names = ", ".join(repr(each.main) for each in paired)
        raise ConfigurationError(f"which application? The brokers of several are paired ({names}), and none is current")
    raise ConfigurationError(
        "no Celery application of this process has a paired broker: write 'paired+' before CELERY_BROKER_URL, and "
        "import the application in the project's __init__.py, as Celery's documentation for Django has it"
    )
