"""``manage.py paired_…``: the commands of ``kombu-paired``, for the Celery application of the project."""

from __future__ import annotations

import io
import json
import socket

import pytest
from django.core.management import CommandError, call_command, get_commands

import kombu_paired
from kombu_paired.contrib.django.management.commands import paired_syphon
from tests.unit.contrib.django.conftest import SAFE


@pytest.fixture
def shop(make):
    app = make("shop")
    app.set_default()
    kombu_paired.pairing_of(app.connection_for_write()).open()
    return app


def run(name, *args, **options):
    out = io.StringIO()
    call_command(name, *args, stdout=out, **options)
    return out.getvalue()


def test_django_finds_them():
    found = {name for name, app in get_commands().items() if app == "kombu_paired.contrib.django"}
    assert found == {"paired_check", "paired_status", "paired_syphon"}


def test_status_is_that_of_the_projects_application(shop):
    shown = run("paired_status")
    assert shown.startswith("pairing main\n\n")
    assert "memory://spare" in shown
    assert "Nothing waits in the backlog." in run("paired_status", "--no-color")
    assert json.loads(run("paired_status", json=True))["pairing"] == "main"
    assert json.loads(run("paired_status", "--json"))["ok"] is True


def test_its_exit_status_says_that_a_side_is_away(make, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"paired+redis://127.0.0.1:{taken.getsockname()[1]}/0"
        make("shop", url, broker_transport_options={**SAFE, "secondary": "memory://spare"}).set_default()
        with pytest.raises(SystemExit) as caught:
            run("paired_status")
    assert caught.value.code == 1


def test_check_shows_the_settings_in_force(shop):
    assert json.loads(run("paired_check", "--json"))["settings"]["send_timeout"] == SAFE["send_timeout"]
    options = run("paired_check", "--json", "--option", "send_timeout=0.25", "--option", "ping_interval=7")
    assert json.loads(options)["settings"]["ping_interval"] == 7
    assert json.loads(options)["settings"]["send_timeout"] == 0.25


def test_syphon_empties_the_backlog(shop):
    assert "0 messages" in run("paired_syphon", "--once", "--patience", "3")


def test_an_option_that_makes_no_sense_is_said_by_the_command(shop):
    with pytest.raises(CommandError, match="patience") as caught:
        run("paired_syphon", "--once", "--patience", "-1")
    assert caught.value.returncode == 2


def test_they_say_what_to_do_where_no_broker_is_paired(make):
    make("plain", "memory://main")
    with pytest.raises(CommandError, match=r"write 'paired\+'"):
        run("paired_status")


def test_another_application_can_be_named(make):
    make("one"), make("two")
    with pytest.raises(CommandError, match="'one', 'two'"):
        run("paired_status")
    with pytest.raises(CommandError, match="no Celery application there"):
        run("paired_status", "--app", "no_such_module:app")


def test_they_speak_of_what_is_logged_when_asked_to(shop, monkeypatch):
    given = []
    monkeypatch.setattr(paired_syphon.syphon, "main", lambda line, *args, **kwargs: given.append(line))
    run("paired_syphon", verbosity=3)
    assert given == [["-v", "-v"]]


def test_the_help_is_the_commands(capsys):
    with pytest.raises(SystemExit):
        run("paired_syphon", "--help")
    text = capsys.readouterr().out
    assert "Move backlog messages home" in text
    assert "--once" in text
    assert "--primary" not in text
