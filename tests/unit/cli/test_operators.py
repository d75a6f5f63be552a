"""The commands of operators without a broker: under both names, whatever is wrong with what they are given."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import pytest
from celery import Celery, current_app
from celery.bin.celery import celery
from click.testing import CliRunner

from kombu_paired.cli import main
from kombu_paired.cli.peek import as_row
from kombu_paired.cli.under_celery import NAMES, paired
from kombu_paired.message import DIVERTED_AT, PATH, Message

SECRET = "geheim"
# Nobody listens there.
PRIMARY, SECONDARY = (f"redis://:{SECRET}@127.0.0.1:{port}/0" for port in (1, 2))
#: Each command, with arguments that are right.
RIGHT = {
    "check": [],
    "status": [],
    "drain": [],
    "peek": [],
    "isolate": ["all"],
    "restore": ["all"],
    "dead-letters": ["list"],
    "dead-letters requeue": ["--all"],
    "dead-letters delete": ["--all", "--yes"],
}
commands = pytest.mark.parametrize("command", RIGHT)


@pytest.fixture
def under_celery(monkeypatch):
    """``celery -A … paired …`` of an application with these settings."""
    before = current_app._get_current_object()
    module = ModuleType("operated")
    monkeypatch.setitem(sys.modules, "operated", module)
    monkeypatch.setitem(celery.commands, "paired", paired)

    def run(*arguments, broker=f"paired+{PRIMARY}", **options):
        module.app = Celery("shop", broker=broker, set_as_current=False)
        module.app.conf.broker_transport_options = {"secondary": SECONDARY, "send_timeout": 1, **options}
        return CliRunner().invoke(celery, ["-A", "operated:app", "paired", *arguments])

    yield run
    before.set_current()


def words(command):
    return [*command.split(), *RIGHT[command]]


def run(*arguments, secondary=SECONDARY, options=()):
    naming = ["--primary", PRIMARY, "--secondary", secondary, "--option", "send_timeout=1"]
    settings = [word for each in options for word in ("--option", each)]
    return CliRunner().invoke(main, [*arguments, *naming, *settings])


def is_said(result, status):
    """What is wrong is said by status and text, without a traceback and without a secret."""
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert SECRET not in result.output
    return " ".join(result.output.split())


@commands
def test_a_broker_that_refuses_is_said(command, under_celery):
    assert "unreachable" in is_said(run(*words(command)), 1).lower()
    assert "unreachable" in is_said(under_celery(*words(command)), 1).lower()


@commands
def test_so_it_is_in_json(command, under_celery):
    for result in (run(*words(command), "--json"), under_celery(*words(command), "--json")):
        is_said(result, 1)
        assert json.loads(result.stdout)["ok"] is False
        assert "unreachable" in result.stdout


@commands
def test_wrong_settings_are_wrong_usage_and_in_an_application_they_are_its_fault(command, under_celery):
    assert "did you mean 'send_timeout'" in is_said(run(*words(command), options=["send_timout=1"]), 2)
    assert "did you mean 'send_timeout'" in is_said(under_celery(*words(command), send_timout=1), 1)


@commands
def test_an_application_whose_broker_is_a_plain_one_is_told_so(command, under_celery):
    assert "paired+" in is_said(under_celery(*words(command), broker=PRIMARY), 1)


@pytest.mark.parametrize(
    "arguments", [["isolate"], ["restore"], ["peek", "--limit", "0"], ["drain", "--patience", "0"]]
)
def test_wrong_arguments_are_wrong_usage(arguments, under_celery):
    is_said(run(*arguments), 2)
    is_said(under_celery(*arguments), 2)


@pytest.mark.parametrize("action", ["requeue", "delete"])
@pytest.mark.parametrize("arguments", [[], ["--all", "some-id"], ["--all", "--reason", "NoPath"]])
def test_dead_letters_are_chosen_or_nothing_happens(action, arguments):
    assert "--reason" in is_said(run("dead-letters", action, *arguments), 2)


def test_nothing_is_deleted_before_somebody_says_yes():
    result = CliRunner().invoke(
        main, ["dead-letters", "delete", "--all", "--primary", PRIMARY, "--secondary", SECONDARY], input="n\n"
    )
    assert is_said(result, 1).endswith("Aborted!")


@pytest.mark.parametrize("command", ["isolate", "peek"])
def test_a_secondary_that_keeps_no_notices_is_told_so(command, tmp_path):
    place = f"sqlalchemy+sqlite:///{tmp_path}/spare"
    result = run(command, *RIGHT[command], secondary=place, options=["allow_unsafe_secondary=true"])
    assert "RabbitMQ, Redis or Azure Service Bus, or a spool" in is_said(result, 1)


def test_the_names_under_celery_are_names_of_kombu_paired_and_take_no_url(under_celery):
    assert set(NAMES) <= set(main.commands)
    assert set(NAMES) == {command.split()[0] for command in RIGHT}
    for name in NAMES:
        shown = under_celery(name, *(["list"] if name == "dead-letters" else []), "--help")
        assert shown.exit_code == 0
        assert "--primary" not in shown.output
        assert "--json" in shown.output


def test_the_group_that_celery_loads_at_every_command_loads_no_command():
    program = (
        "import sys, celery.bin.celery; before = set(sys.modules); import kombu_paired.cli.under_celery\n"
        "print(*sorted(name for name in set(sys.modules) - before if name.startswith('kombu_paired.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()) <= {
        "kombu_paired.cli",
        "kombu_paired.cli.under_celery",
        "kombu_paired.registration",
    }


def test_of_a_message_its_body_is_not_shown():
    headers = {PATH: "orders", "task": "shop.pay", DIVERTED_AT: "1000.0", "id": "a"}
    row = as_row("q", Message(SECRET, "", "q", headers=headers), now=1004.5)
    assert (row["id"], row["entity"], row["task"], row["age_s"]) == ("a", "orders", "shop.pay", 4.5)
    assert SECRET not in str(row)
