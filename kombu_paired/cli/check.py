"""``kombu-paired check``: open the pairing as an application would, and say what it found and created."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import click

from kombu_paired.cli.connecting import json_option, pairing_options
from kombu_paired.cli.printing import bad, counted, duration, good, heading, paragraph
from kombu_paired.cli.sides import Look, look_at
from kombu_paired.errors import ConfigurationError, SendError
from kombu_paired.namespaces.base import BacklogDepth
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing
from kombu_paired.secrets import without_secrets

__all__ = ("check",)

#: Settings in seconds.
_DURATIONS = {
    "failover_interval",
    "ping_interval",
    "send_timeout",
    "syphon_poll",
    "throttle_wait",
    "backlog_retry_interval",
    "close_timeout",
}


@click.command()
@pairing_options
@json_option
def check(pairing: Pairing, as_json: bool) -> None:
    """Open the pairing as an application would.

    Creates the backlog queues that are missing, as opening a pairing does, unless create_backlog_queues=false.
    Exit status: 0 all is fine; 1 it cannot be used as it is, and the text says what to do; 2 wrong usage.
    """
    finding = examine(pairing)
    if as_json:
        click.echo(json.dumps(finding.as_json(), indent=2))
    else:
        show(finding)
    click.get_current_context().exit(0 if finding.is_fine else 1)


@dataclass
class Finding:
    """What came of opening the pairing.

    Attributes:
        found, created: backlog queues that were there before, and that are there since.
        usable: how many the pairing will use.
        problems: what keeps it from working, and what to do, a sentence or two each.
    """

    pairing: Pairing
    look: Look
    found: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    usable: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_fine(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.is_fine,
            "pairing": self.pairing.name,
            "primary": self.look.primary.as_json(),
            "secondary": self.look.secondary.as_json(),
            "backlog_queues": {
                "wanted": self.pairing.options.backlog_queue_count,
                "found": self.found,
                "created": self.created,
                "usable": self.usable,
            },
            "settings": settings_in_force(self.pairing.options),
            "problems": self.problems,
        }


def examine(pairing: Pairing) -> Finding:
    """Look, open, look again: the difference is what opening created."""
    before = look_at(pairing)
    finding = Finding(pairing, before, found=_existing(before.depths))
    if before.primary.failure is not None:
        finding.problems.append(
            f"The primary {before.primary.uri} cannot be used. Senders would divert all to the backlog, and workers "
            f"would wait. {before.primary.advice}"
        )
    if before.secondary.failure is not None and before.secondary.failure.kind.counts:
        finding.problems.append(
            f"The secondary {before.secondary.uri} cannot be used: nothing protects from an outage of the primary. "
            f"{before.secondary.advice}"
        )
        return finding  # opening would wait for it once more, and say the same
    try:
        pairing.open()
    except (ConfigurationError, SendError) as exc:
        finding.problems.append(str(exc))
        return finding
    finding.created = [each for each in _existing(look_at(pairing).depths) if each not in finding.found]
    finding.usable = pairing.backlog_queue_count
    return finding


def _existing(depths: Sequence[BacklogDepth]) -> list[str]:
    return [each.queue for each in depths if each.messages is not None]


def settings_in_force(options: PairedNamespaceOptions) -> dict[str, Any]:
    """Every setting that can be shown; of the brokers' own options only the names, for values may be secrets."""
    found = {each.name: getattr(options, each.name) for each in fields(options)}
    del found["enable_syphon"]  # turned off for the command itself
    found["secondary"] = without_secrets(options.secondary)
    for side in ("primary_options", "secondary_options"):
        found[side] = sorted(found[side])
    if found["classify_failure"] is not None:
        found["classify_failure"] = getattr(options.classify_failure, "__qualname__", "given")
    return found


def show(finding: Finding) -> None:
    """The finding for people."""
    pairing = finding.pairing
    click.echo(f"{heading('pairing')} {pairing.name}\n")
    finding.look.primary.show()
    finding.look.secondary.show()
    click.echo(f"\n{heading('backlog queues')} {pairing.name}/x-servicebus-transfer/…")
    for label, names in (("found", finding.found), ("created", finding.created)):
        click.echo(f"  {label:<11}{len(names):>3}{_numbers(names)}")
    wanted = pairing.options.backlog_queue_count
    usable = f"{finding.usable:>3} of {wanted}"
    click.echo(f"  {'usable':<11}{good(usable) if finding.usable == wanted else bad(usable)}")
    click.echo(f"\n{heading('settings')}")
    _show_settings(pairing.options)
    click.echo()
    if finding.is_fine:
        click.echo(good(f"Fine: the pairing can be used, with {counted(finding.usable, 'backlog queue')}."))
    for problem in finding.problems:
        click.echo(f"{bad('Not usable as it is.')}\n{paragraph(problem, 2)}")


def _numbers(names: Sequence[str]) -> str:
    """The last parts of the names, runs of them abbreviated: ``0-6, 8, 9``; nothing for none."""
    numbers = sorted(int(name.rpartition("/")[2]) for name in names)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return click.style("  " + ", ".join(texts), dim=True) if names else ""


def _show_settings(options: PairedNamespaceOptions) -> None:
    defaults = settings_in_force(PairedNamespaceOptions(secondary=options.secondary))
    for name, value in settings_in_force(options).items():
        text = _as_text(name, value)
        is_default = name != "secondary" and value == defaults[name]
        click.echo(f"  {name:<24}{text}{click.style('  (default)', dim=True) if is_default else ''}")


def _as_text(name: str, value: Any) -> str:
    if name in _DURATIONS:
        return duration(value)
    if isinstance(value, list):
        return ", ".join(f"{each}=…" for each in value) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
