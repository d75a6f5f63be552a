"""What makes a management command of one of ``kombu-paired``: the options are its own, the application is Django's."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from typing import Any

import click
from celery import Celery
from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper

from kombu_paired.contrib.django.applications import the_application
from kombu_paired.errors import ConfigurationError

__all__ = ("ClickCommand",)


#: The project's settings say which brokers, and Django has a verbosity of its own.
_NOT_OF_DJANGO = {"primary", "secondary", "verbose"}


@dataclass(frozen=True)
class Around:
    """What the command is part of, as it asks for it."""

    app: Celery


class _AsItIs(io.TextIOBase):
    """Django ends every text with a line's end; this does not."""

    def __init__(self, out: OutputWrapper) -> None:
        self._out = out

    def write(self, text: str) -> int:
        self._out.write(text, ending="")
        return len(text)

    def flush(self) -> None:
        self._out.flush()

    def isatty(self) -> bool:
        return bool(self._out.isatty())


class ClickCommand(BaseCommand):  # type: ignore[misc]
    """Runs a command of the command line, with the same output and exit status.

    Attributes:
        command: that command.
    """

    command: click.Command
    #: It is there to find out what is wrong.
    requires_system_checks: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        return self.command.help or ""

    def add_arguments(self, parser: CommandParser) -> None:
        for option in self._options():
            taken: dict[str, Any] = {"metavar": option.metavar or "VALUE"}
            if option.is_flag:
                taken = {"action": "store_true"}
            elif option.multiple:
                taken["action"] = "append"
            parser.add_argument(*option.opts, dest=option.name, help=(option.help or "").replace("%", "%%"), **taken)

    def handle(self, *args: Any, **options: Any) -> None:
        color = False if options["no_color"] else True if options["force_color"] else None
        try:
            around = None if options.get("app_path") else Around(the_application())
            with contextlib.redirect_stdout(_AsItIs(self.stdout)):
                status = self.command.main(
                    self._as_given(options), self.command.name, standalone_mode=False, obj=around, color=color
                )
        except ConfigurationError as exc:
            raise CommandError(str(exc)) from exc
        except click.ClickException as exc:
            raise CommandError(exc.format_message(), returncode=exc.exit_code) from exc
        if status:
            sys.exit(status)

    def _options(self) -> list[click.Option]:
        found = (each for each in self.command.params if isinstance(each, click.Option))
        return [each for each in found if each.name not in _NOT_OF_DJANGO]

    def _as_given(self, options: dict[str, Any]) -> list[str]:
        """The command line that says the same to the command."""
        line = ["-v"] * max(options["verbosity"] - 1, 0)
        for option in self._options():
            value, name = options[option.name], option.opts[-1]
            if option.is_flag:
                line += [name] if value else []
            elif value is not None:
                line += [part for each in (value if option.multiple else [value]) for part in (name, str(each))]
        return line
