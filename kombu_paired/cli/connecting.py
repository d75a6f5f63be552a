"""Which pairing a command is about: the options that say so, and the pairing they make.

The pairing is made in the application's own way, through a Kombu connection, so that a command sees what the
application would see.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import click
from kombu import Connection

from kombu_paired.connection_strings import as_url
from kombu_paired.errors import ConfigurationError, NamespaceFailure, SendError
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing
from kombu_paired.transport import pairing_of
from kombu_paired.urls import PREFIX

__all__ = (
    "LOGGER",
    "NAMING",
    "as_click_errors",
    "json_option",
    "log_to_stderr",
    "open_pairing",
    "pairing_options",
    "parse_option",
    "result_queue",
)

LOGGER = logging.getLogger("kombu_paired")

#: Parameters that say which pairing is meant, where no application does.
NAMING = frozenset({"primary", "secondary", "settings", "app_path"})

#: What is not JSON and still plainly meant as a value of its own kind.
_PYTHON_WORDS = {"True": True, "False": False, "None": None}

#: Where a pairing comes from, if that is an application.
_applications: WeakKeyDictionary[Pairing, Any] = WeakKeyDictionary()

json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="KOMBU_PAIRED_JSON",
    help="Print one JSON object and nothing else; times are seconds.",
)


def pairing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options that name a pairing; the command gets it as ``pairing``, and it is closed afterwards."""

    @click.option(
        "--primary", metavar="URL", envvar="KOMBU_PAIRED_PRIMARY", help="The primary, with or without paired+."
    )
    @click.option("--secondary", metavar="URL", envvar="KOMBU_PAIRED_SECONDARY", help="The secondary.")
    @click.option(
        "--option",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        envvar="KOMBU_PAIRED_OPTION",
        help="A transport option, e.g. send_timeout=3 or primary_options='{\"ssl\": true}'. Repeatable.",
    )
    @click.option(
        "-A",
        "--app",
        "app_path",
        metavar="MODULE:APP",
        envvar="KOMBU_PAIRED_APP",
        help="Take broker_url and broker_transport_options from this Celery application; what is given besides wins.",
    )
    @click.option("-v", "--verbose", count=True, help="Log more, to standard error.")
    @functools.wraps(command)
    def with_pairing(
        verbose: int,
        primary: str | None = None,
        secondary: str | None = None,
        settings: tuple[str, ...] = (),
        app_path: str | None = None,
        **rest: Any,
    ) -> Any:
        context = click.get_current_context()
        log_to_stderr(logging.ERROR - 10 * verbose)
        around = getattr(context.find_root().obj, "app", None)  # of a command that this is part of
        pairing = open_pairing(primary, secondary, settings, app_path or around)
        context.call_on_close(pairing.close)
        return command(pairing=pairing, **rest)

    return with_pairing


class _ToStderr(logging.Handler):
    """Standard error as it is when a line is written."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)


def log_to_stderr(level: int) -> None:
    """Show log lines of this level and above, until the command ends."""
    handler, before = _ToStderr(), LOGGER.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(max(level, logging.DEBUG))

    def undo() -> None:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(before)

    click.get_current_context().call_on_close(undo)


def open_pairing(primary: str | None, secondary: str | None, settings: Sequence[str], app: Any) -> Pairing:
    """The pairing, not opened yet: nothing has been connected to or created.

    Arguments:
        app: a Celery application, or where it is; None takes it from the rest.

    Raises:
        click.UsageError: what was given on the command line is wrong.
        click.ClickException: the application's configuration is.
    """
    options = dict(parse_option(each) for each in settings)
    if secondary:
        options["secondary"] = secondary
    options["enable_syphon"] = False  # looking must not move anything; `kombu-paired syphon` starts its own
    if primary:
        primary = PREFIX + as_url(primary.removeprefix(PREFIX))
    if not app and not primary:
        raise click.UsageError("which pairing? Give --primary URL and --secondary URL, or -A MODULE:APP.")
    is_usage = app is None
    try:
        if app:
            app = _application(app) if isinstance(app, str) else app
            connection = app.connection_for_write(primary, transport_options=options)
        else:
            PairedNamespaceOptions.parse(options)  # before anything is imported for the URL's sake
            connection = Connection(primary, transport_options=options)
        pairing = pairing_of(connection)
        if app:
            _applications[pairing] = app
        return pairing
    except ValueError as exc:
        _fail(exc, is_usage)


def result_queue(pairing: Pairing) -> str | None:
    """Where the application of a pairing keeps results; None if it keeps none, or is not known."""
    app = _applications.get(pairing)
    if app is None:
        return None
    from kombu_paired.contrib.results import result_queue_of

    return result_queue_of(app, pairing.name)


def _fail(exc: Exception, is_usage: bool) -> NoReturn:
    """As click shows it. A text that may hold pieces of a URL, and so of a password, is not shown."""
    kind = click.UsageError if is_usage else click.ClickException
    is_ours = isinstance(exc, ConfigurationError)
    text = str(exc) if is_ours else "a broker URL cannot be read: percent-encode special characters in its password"
    raise kind(text) from exc


def _application(path: str) -> Any:
    """The Celery application, found as ``celery -A`` finds it."""
    try:
        from celery.app.utils import find_app
    except ImportError as exc:
        raise click.ClickException("-A needs Celery: pip install 'kombu-paired[celery]'") from exc
    sys.path.insert(0, os.getcwd())
    try:
        app = find_app(path)
    except (ImportError, AttributeError, ValueError) as exc:
        raise click.UsageError(f"-A {path}: no Celery application there: {type(exc).__name__}: {exc}") from exc
    if not hasattr(app, "connection_for_write"):
        raise click.UsageError(f"-A {path}: that is a {type(app).__name__}, not a Celery application")
    return app


def parse_option(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` -> key and value: JSON where it is JSON, a text else.

    Raises:
        click.UsageError: there is no key, or no ``=``. The text is not repeated, for there may be a password in it.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key.isidentifier():
        raise click.UsageError("--option needs KEY=VALUE, e.g. --option failover_interval=5")
    if value in _PYTHON_WORDS:
        return key, _PYTHON_WORDS[value]
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


@contextmanager
def as_click_errors(as_json: bool = False) -> Iterator[None]:
    """What an operator can act on is shown as one line, without a traceback; exit status 1.

    Arguments:
        as_json: it is the ``error`` of an object, on standard output.
    """
    try:
        yield
    except (ConfigurationError, NamespaceFailure, SendError) as exc:
        if not as_json:
            raise click.ClickException(str(exc)) from exc
        click.echo(json.dumps({"ok": False, "error": str(exc)}, indent=2))
        click.get_current_context().exit(1)
