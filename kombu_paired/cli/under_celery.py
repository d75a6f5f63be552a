"""``celery paired …``: the commands about one pairing, which is that of Celery's application.

Celery imports this whenever its command line runs; a command is imported when it is called.
"""

from __future__ import annotations

import copy

import click

from kombu_paired.cli import COMMANDS, Overview

__all__ = ("paired",)

#: Those of ``kombu-paired`` that are about one pairing.
NAMES = ("check", "dead-letters", "drain", "isolate", "peek", "restore", "status")


class _OfTheApplication(Overview):
    """Which pairing is meant its commands need not be told."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else _without_naming(command), rest


def _without_naming(command: click.Command) -> click.Command:
    """A copy of a command without the parameters that say which pairing is meant; so of a group's commands."""
    from kombu_paired.cli.connecting import NAMING

    found = copy.copy(command)
    found.params = [each for each in command.params if each.name not in NAMING]
    if isinstance(found, click.Group):
        found.commands = {name: _without_naming(each) for name, each in found.commands.items()}
    return found


@click.group(cls=_OfTheApplication, commands=[each for each in COMMANDS if each.name in NAMES])
def paired() -> None:
    """Look after the application's pairing (kombu-paired)."""
