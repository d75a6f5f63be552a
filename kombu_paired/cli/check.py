"""``kombu-paired check``: open the pairing as an application would, and say what it found and created."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import click

from kombu_paired.brokers.roles import BacklogDepth
from kombu_paired.cli.connecting import json_option, pairing_options, result_queue
from kombu_paired.cli.printing import bad, counted, duration, good, heading, paragraph
from kombu_paired.cli.sides import Look, look_at
from kombu_paired.errors import ConfigurationError, NamespaceFailure, SendError
from kombu_paired.isolation import notices_name
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing
from kombu_paired.pipeline.costs import charges
from kombu_paired.secrets import without_secrets
from kombu_paired.stand_in import StandIn, stand_in_name

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
    "stand_in_after",
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
        remarks: what does not work, and can be done without.
        notes: those, and what it costs while nothing happens, and what to do about that; nothing where calls are free.
    """

    pairing: Pairing
    look: Look
    found: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    usable: int = 0
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def is_fine(self) -> bool:
        return not self.problems

    @property
    def notes(self) -> list[str]:
        return [*self.remarks, *notes_on_idling(self.pairing)]

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
            "notes": self.notes,
        }


def examine(pairing: Pairing) -> Finding:
    """Look, open, look again: the difference is what opening created. A side that is silent is waited for once."""
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
        queue = result_queue(pairing)
        if queue is not None and pairing.options.create_backlog_queues:
            pairing.secondary.ensure_backlog_queues([queue], True, pairing.options.send_timeout)
        finding.created = [each for each in _existing(_depths(pairing)) if each not in finding.found]
    except (ConfigurationError, SendError, NamespaceFailure) as exc:
        finding.problems.append(str(exc))
        return finding
    finding.remarks.extend(_on_isolation(pairing))
    finding.problems += nobody_brings_it_home(pairing, before)
    finding.usable = pairing.backlog_queue_count
    return finding


def _on_isolation(pairing: Pairing) -> Iterator[str]:
    """Make the place where notices are kept: processes that may create nothing find it then."""
    if not pairing.secondary.keeps_notices:
        return
    failure = pairing.isolation.try_to_look(create=pairing.options.create_backlog_queues)
    if failure is not None:
        yield (
            f"With these rights a process does not hear what is isolated by hand (kombu-paired isolate): {failure}. "
            f"It needs to read {notices_name(pairing.name)}, and to create it if nobody has."
        )


def _depths(pairing: Pairing) -> Sequence[BacklogDepth]:
    return pairing.secondary.backlog_depths(pairing.backlog_queue_names, pairing.options.send_timeout)


def nobody_brings_it_home(pairing: Pairing, look: Look) -> Iterator[str]:
    """A backlog that only this machine can reach, of which no process here takes care."""
    messages = sum(each.messages or 0 for each in look.depths)
    turn = pairing.secondary.turn(pairing.name)
    if turn is None or not messages:
        return
    try:
        if not turn.anybody():
            yield (
                f"{counted(messages, 'message')} of {pairing.name} lie in {pairing.secondary.uri}, and no process of "
                "this machine brings them home: run kombu-paired syphon here, as a service, or start your workers."
            )
    finally:
        turn.leave()


def _existing(depths: Sequence[BacklogDepth]) -> list[str]:
    return [each.queue for each in depths if each.messages is not None]


def notes_on_idling(pairing: Pairing) -> Iterator[str]:
    """What the workers of a pairing are charged for while there is nothing to do."""
    options = pairing.options
    polls = charges.Syphons(options.backlog_queue_count, options.syphon_poll)
    idle = charges.of_idle_hour(polls, charges.Workers(remote_control=False))
    if pairing.primary.bills_calls:
        yield (
            f"Each call to the primary is charged, also of a worker that has nothing to do: {idle['heartbeat']:,} "
            f"operations an hour for Celery's heartbeats, and {idle['idle_consume']} for each queue that it consumes "
            "from, and for remote control. Turn the heartbeats off with celery worker --without-heartbeat, or have "
            "fewer with --heartbeat-interval 60 (seconds); celery events and Flower then do not see that a worker "
            "lives, or see it late. Turn remote control off with worker_enable_remote_control = False; celery inspect "
            "and control then find no worker. Gossip and mingle are off here whatever you say: Celery has them for "
            "other brokers alone. kombu-paired cost works out a month."
        )
    if pairing.secondary.bills_calls:
        yield (
            f"Each call to the secondary is charged: {idle['idle_receive']:,} operations an hour for the syphon of "
            "each worker. One or two syphons are enough: run other workers with celery worker --no-syphon."
        )


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
    if pairing.stand_in is not None:
        click.echo(f"\n{heading('standing in')} {stand_in_name(pairing.name, '')}…")
        click.echo(paragraph(standing_in(pairing.stand_in, pairing), 2))
    click.echo(f"\n{heading('settings')}")
    _show_settings(pairing.options)
    click.echo()
    if finding.is_fine:
        click.echo(good(f"Fine: the pairing can be used, with {counted(finding.usable, 'backlog queue')}."))
    for problem in finding.problems:
        click.echo(f"{bad('Not usable as it is.')}\n{paragraph(problem, 2)}")
    if finding.notes:
        click.echo(f"\n{heading('notes')}")
    for note in finding.notes:
        click.echo(paragraph(note, 2))


def standing_in(rule: StandIn, pairing: Pairing) -> str:
    """What workers will do while the primary is away, and what that asks of the secondary."""
    return (
        f"Workers that have not reached the primary for {duration(rule.after)} consume from such queues on "
        f"{pairing.secondary.uri}. Its user needs the rights to create, read and write them, and it carries the load "
        "of your tasks meanwhile."
    )


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
    if value is None:
        return "none"
    if name in _DURATIONS:
        return duration(value)
    if isinstance(value, list):
        return ", ".join(f"{each}=…" for each in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
