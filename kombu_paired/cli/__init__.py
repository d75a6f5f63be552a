"""The command line, ``kombu-paired``: one module per command, and no rule of the pairing in any of them."""

from __future__ import annotations

import click

from kombu_paired import __version__
from kombu_paired.cli.check import check as check_command
from kombu_paired.cli.cost import cost as cost_command
from kombu_paired.cli.demo import demo as demo_command
from kombu_paired.cli.report import report as report_command
from kombu_paired.cli.simulate import simulate as simulate_command
from kombu_paired.cli.status import status as status_command
from kombu_paired.cli.syphon import syphon as syphon_command
from kombu_paired.cli.watch import watch as watch_command
from kombu_paired.emulator.command import emulator as emulator_command

__all__ = ("main",)


@click.group(
    context_settings={"auto_envvar_prefix": "KOMBU_PAIRED", "help_option_names": ["-h", "--help"]},
    epilog="Broker URLs hold passwords: give them in KOMBU_PAIRED_PRIMARY and KOMBU_PAIRED_SECONDARY, or with -A, "
    "where other users of the machine could read your command line.",
)
@click.version_option(__version__, prog_name="kombu-paired")
def main() -> None:
    """A Celery queue that survives its broker.

    Looks after a pairing from outside, and shows what one does.
    """


for _command in (
    check_command,
    status_command,
    syphon_command,
    demo_command,
    emulator_command,
    cost_command,
    simulate_command,
    report_command,
    watch_command,
):
    main.add_command(_command)
