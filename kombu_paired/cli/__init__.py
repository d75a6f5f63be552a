"""The command line, ``kombu-paired``: one module per command, and no rule of the pairing in any of them.

A command is imported when it is called, so that each loads what it needs itself, and no other's.
"""

from __future__ import annotations

from importlib import import_module

import click

from kombu_paired import __version__

__all__ = ("COMMANDS", "Overview", "main")

#: The name of each command, its module, and the first sentence of its help.
_COMMANDS = (
    ("check", "kombu_paired.cli.check", "Open the pairing as an application would."),
    ("cost", "kombu_paired.cli.cost", "What 30 days would cost on Azure Service Bus."),
    ("dead-letters", "kombu_paired.cli.dead_letters", "Show, re-queue or delete what can never be delivered."),
    ("demo", "kombu_paired.cli.demo", "Kill a broker in mid-traffic and lose nothing."),
    ("drain", "kombu_paired.cli.drain", "Move the backlog home, and stop when it is empty."),
    ("emulator", "kombu_paired.emulator.server.command", "Azure Service Bus in one process, for demos and tests."),
    ("isolate", "kombu_paired.cli.isolate", "Have ENTITY left alone by every process: fail it over by hand."),
    ("peek", "kombu_paired.cli.peek", "Show the oldest messages of the backlog, and leave them there."),
    ("report", "kombu_paired.cli.report", "Say what an outage did: what was lost, what was late, what failed over."),
    ("restore", "kombu_paired.cli.isolate", "Let ENTITY be used again that is isolated."),
    ("simulate", "kombu_paired.cli.simulate", "Write journals of any size with a known truth."),
    ("status", "kombu_paired.cli.status", "Show what waits in the backlog."),
    ("syphon", "kombu_paired.cli.syphon", "Move backlog messages home to the primary, until SIGINT or SIGTERM."),
    ("watch", "kombu_paired.cli.watch", "Say what is happening: what is down, and where the messages are."),
)


class Announced(click.Command):
    """What the overview shows of a command that is not imported yet: its name, and the first sentence of its help."""

    def __init__(self, name: str, module: str, sentence: str) -> None:
        super().__init__(name, help=sentence)
        self.module = module

    def load(self) -> click.Command:
        command: click.Command = getattr(import_module(self.module), (self.name or "").replace("-", "_"))
        return command


class Overview(click.Group):
    """Imports the one command that is called."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Announced) else command, rest


COMMANDS = [Announced(*each) for each in _COMMANDS]


@click.group(
    cls=Overview,
    commands=COMMANDS,
    context_settings={"auto_envvar_prefix": "KOMBU_PAIRED", "help_option_names": ["-h", "--help"]},
    epilog="Broker URLs hold passwords: give them in KOMBU_PAIRED_PRIMARY and KOMBU_PAIRED_SECONDARY, or with -A, "
    "where other users of the machine could read your command line.",
)
@click.version_option(__version__, prog_name="kombu-paired")
def main() -> None:
    """A Celery queue that survives its broker.

    Looks after a pairing from outside, and shows what one does.
    """
