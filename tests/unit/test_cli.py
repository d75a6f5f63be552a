"""The command line, without a broker: what is parsed, what is refused, what is shown and what never is."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import kombu_paired
from kombu_paired.cli import connecting, demo, main, printing
from kombu_paired.cli.check import settings_in_force
from kombu_paired.cli.connecting import open_pairing, parse_option
from kombu_paired.cli.sides import Look, Side
from kombu_paired.cli.status import as_report
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.namespaces.base import BacklogDepth
from kombu_paired.options import PairedNamespaceOptions

# Nobody listens on these: a command that connected would say so.
PRIMARY = "amqp://guest:geheim@127.0.0.1:1//"
SECONDARY = "amqp://guest:geheim@127.0.0.1:2//"
SECRET = "geheim"


def run(*arguments, **environment):
    return CliRunner().invoke(main, [str(each) for each in arguments], env=environment)


def usage_error(*arguments, **environment):
    """What is said about wrong usage; it never repeats a password."""
    result = run(*arguments, **environment)
    assert result.exit_code == 2, result.output
    assert SECRET not in result.output
    return result.output


# -- the group ----------------------------------------------------------------------------------------------------


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert kombu_paired.__version__ in result.output


@pytest.mark.parametrize("command", ["check", "status", "syphon", "demo"])
def test_every_command_explains_itself(command):
    assert command in run("--help").output
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "xit status" in " ".join(result.output.split())
    assert max(map(len, result.output.splitlines())) <= 80


def test_the_overview_says_of_each_command_what_the_command_says_itself():
    for name, announced in main.commands.items():
        assert announced.load().get_short_help_str(80) == announced.get_short_help_str(80), name


def test_the_overview_loads_no_command_nor_what_one_needs_alone():
    program = (
        "import sys, kombu_paired; before = set(sys.modules)\n"
        "from kombu_paired.cli import main; main(['--help'], standalone_mode=False)\n"
        "print('loaded', *(name for name in set(sys.modules) - before if name.startswith('kombu_paired')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "loaded kombu_paired.cli"


# -- which pairing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "status", "syphon"])
def test_without_a_pairing_it_says_how_to_name_one(command):
    text = usage_error(command)
    assert "--primary URL" in text
    assert "-A" in text


def test_a_primary_alone_is_not_a_pairing():
    assert "'secondary' is missing" in usage_error("check", "--primary", PRIMARY)


@pytest.mark.parametrize("prefix", ["", "paired+"])
def test_the_primary_may_be_written_with_and_without_its_prefix(prefix):
    pairing = open_pairing(prefix + PRIMARY, SECONDARY, ["send_timeout=3", "primary_name=shop"], None)
    assert pairing.name == "shop"
    assert pairing.options.send_timeout == 3
    assert pairing.primary.uri == PRIMARY.replace(SECRET, "**")
    pairing.close()


def test_a_look_never_starts_a_syphon():
    pairing = open_pairing(PRIMARY, SECONDARY, ["enable_syphon=true", "primary_name=quiet"], None)
    assert pairing.options.enable_syphon is False
    pairing.close()


def test_the_environment_names_a_pairing_too():
    result = run(
        "status", KOMBU_PAIRED_PRIMARY=PRIMARY, KOMBU_PAIRED_SECONDARY=SECONDARY, KOMBU_PAIRED_OPTION="send_timeout=1"
    )
    assert result.exit_code == 1
    assert "UNREACHABLE" in result.output
    assert SECRET not in result.output


def test_any_option_has_an_environment_variable():
    named = {"KOMBU_PAIRED_PRIMARY": PRIMARY, "KOMBU_PAIRED_SECONDARY": SECONDARY}
    result = run("status", KOMBU_PAIRED_JSON="1", **named)
    assert json.loads(result.stdout)["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--option", "send_timout=3"], "did you mean 'send_timeout'"),
        (["--option", "send_timeout=0"], "more than 0"),
        (["--option", "send_timeout=soon"], "must be seconds"),
        (["--option", f"amqp://guest:{SECRET}@spare//"], "KEY=VALUE"),
        (["--option", "=1"], "KEY=VALUE"),
        (["--secondary", PRIMARY], "same namespace"),
        (["--secondary", "memory://"], "allow_unsafe_secondary"),
        (["--primary", f"carrierpigeon://guest:{SECRET}@127.0.0.1"], "a scheme that no broker has"),
        (["--primary", f"amqp://guest:{SECRET}/x@127.0.0.1:1//"], "special characters"),
        (["--wrong"], "No such option"),
    ],
)
def test_what_is_wrong_is_said_and_is_wrong_usage(arguments, said):
    assert said in usage_error("check", "--primary", PRIMARY, "--secondary", SECONDARY, *arguments).replace("\n", " ")


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), st.none() | st.booleans() | st.floats(0, 9)))
def test_an_option_that_is_json_is_taken_as_json(options):
    assert dict(parse_option(f"{key}={json.dumps(value)}") for key, value in options.items()) == options


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k=quorum", "quorum"),
        ("k=amqp://a:b@c//?x=1", "amqp://a:b@c//?x=1"),
        ('k={"ssl": true}', {"ssl": True}),
        ("k=True", True),
        ("k=None", None),
        ("k=", ""),
        ('k="7"', "7"),
    ],
)
def test_other_options_are_texts(text, value):
    assert parse_option(text) == ("k", value)


# -- from a Celery application ------------------------------------------------------------------------------------


@pytest.fixture
def application(tmp_path, monkeypatch):
    """Makes a module in the current folder, which ``-A`` looks into."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(name, url, **options):
        lines = ["from celery import Celery", f"app = Celery({name!r}, broker={url!r}, set_as_current=False)"]
        lines += [f"app.conf.broker_transport_options = {options!r}", "number = 3"]
        (tmp_path / f"{name}.py").write_text("\n".join(lines))
        return name

    return make


def test_an_application_tells_both_brokers_and_its_settings(application):
    name = application("shop_of_cli", f"paired+{PRIMARY}", secondary=SECONDARY, ping_interval=7, enable_syphon=True)
    for path in (name, f"{name}:app"):
        pairing = open_pairing(None, None, [], path)
        assert pairing.primary.uri == PRIMARY.replace(SECRET, "**")
        assert pairing.options.secondary == SECONDARY
        assert pairing.options.ping_interval == 7
        assert pairing.options.enable_syphon is False
        pairing.close()


def test_what_is_given_besides_wins_over_the_application(application):
    name = application("shop_besides", f"paired+{PRIMARY}", secondary=SECONDARY, ping_interval=7)
    pairing = open_pairing(PRIMARY.replace(":1/", ":3/"), None, ["ping_interval=9"], name)
    assert ":3/" in pairing.primary.uri
    assert pairing.options.secondary == SECONDARY
    assert pairing.options.ping_interval == 9
    pairing.close()


def test_an_application_that_is_configured_wrongly_is_not_usable(application):
    result = run("check", "-A", application("shop_plain", PRIMARY, secondary=SECONDARY))
    assert result.exit_code == 1
    assert "'paired+'" in result.output
    result = run("check", "-A", application("shop_alone", f"paired+{PRIMARY}"))
    assert result.exit_code == 1
    assert "'secondary' is missing" in result.output
    assert SECRET not in result.output


def test_an_application_that_is_not_there_is_wrong_usage(application):
    assert "no Celery application" in usage_error("check", "-A", "nowhere_at_all")
    name = application("shop_number", PRIMARY)
    assert "not a Celery application" in usage_error("check", "-A", f"{name}:number")


# -- what is shown ------------------------------------------------------------------------------------------------


def test_settings_are_shown_without_secrets():
    options = PairedNamespaceOptions.parse(
        {"secondary": SECONDARY, "secondary_options": {"password": SECRET}, "classify_failure": "os.path:join"}
    )
    shown = json.dumps(settings_in_force(options))
    assert SECRET not in shown
    assert "password" in shown
    assert '"classify_failure": "join"' in shown


def test_logging_is_as_before_when_a_command_has_ended():
    before = (connecting.LOGGER.level, list(connecting.LOGGER.handlers))
    run("status", "-vv", "--primary", PRIMARY, "--secondary", SECONDARY)
    assert (connecting.LOGGER.level, connecting.LOGGER.handlers) == before
    assert connecting.LOGGER is logging.getLogger("kombu_paired")


REFUSED = NamespaceFailure(FailureKind.UNREACHABLE, "primary namespace amqp://x", ConnectionRefusedError("refused"))


def look(*depths, primary=None, secondary=None):
    return Look(Side("primary", "amqp://a", primary), Side("secondary", "amqp://b", secondary), depths)


@pytest.mark.parametrize(
    "uri", ["redis://a:6379/0", "azureservicebus://RootManageSharedAccessKey:**@127.0.0.1:5672", "amqp://b:5672//shop"]
)
@pytest.mark.parametrize(("failure", "state"), [(None, "reachable"), (REFUSED, "UNREACHABLE")])
def test_a_side_fits_80_columns_whatever_its_address(capsys, uri, failure, state):
    Side("secondary", uri, failure).show()
    lines = capsys.readouterr().out.splitlines()
    assert uri in lines[0]
    assert any(line.endswith(state) for line in lines[:2])
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("seen", "is_ok"),
    [
        (look(BacklogDepth("p/x/0", 0)), True),
        (look(BacklogDepth("p/x/0", 12, 50.0), BacklogDepth("p/x/1", None)), True),
        (look(BacklogDepth("p/x/0", 0, None, 1, "NoPath")), False),
        (look(BacklogDepth("p/x/0", 0), primary=REFUSED), False),
        (look(secondary=REFUSED), False),
    ],
)
def test_a_status_is_ok_when_both_sides_are_and_nothing_is_dead(seen, is_ok):
    assert as_report("p", seen, now=100.0)["ok"] is is_ok


def test_a_status_adds_up():
    depths = [BacklogDepth("p/x/0", 12, 40.0), BacklogDepth("p/x/1", 3, 70.5, 2, "NoPath"), BacklogDepth("p/x/2", None)]
    report = as_report("p", look(*depths), now=100.0)
    assert report["totals"] == {"messages": 15, "oldest_age_s": 60.0, "dead_letters": 2, "missing_queues": 1}
    assert [each["oldest_age_s"] for each in report["backlog"]] == [60.0, 29.5, None]
    assert report["backlog"][1]["dead_letter_reason"] == "NoPath"
    json.dumps(report)


def test_a_status_does_not_guess_what_it_could_not_see():
    report = as_report("p", look(primary=REFUSED, secondary=REFUSED), now=100.0)
    assert report["totals"] is None
    assert report["primary"]["failure"] == "unreachable"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (90000, "1 d 1 h"),
    ],
)
def test_durations_are_said_in_their_two_largest_units(seconds, text):
    assert printing.duration(seconds) == text


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(1, 60))
def test_a_bar_fits_and_shows_whatever_is_above_zero(value, largest, width):
    drawn = printing.bar(min(value, largest), largest, width)
    assert len(drawn) <= width
    assert bool(drawn) is bool(value)


# -- the demo's excuses -------------------------------------------------------------------------------------------


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "rich" else object())
    result = run("demo", "--pair", "redis")
    assert result.exit_code == 1
    assert "needs rich" in result.output
    assert "kombu-paired[demo]" in result.output


def test_without_the_sdk_the_demo_says_what_to_install(monkeypatch):
    def find_spec(name):
        if name == "azure.servicebus":
            raise ModuleNotFoundError("No module named 'azure'")
        return object()

    monkeypatch.setattr(demo, "find_spec", find_spec)
    result = run("demo")
    assert result.exit_code == 1
    assert "needs azure.servicebus" in result.output
    assert "kombu-paired[demo]" in result.output


@pytest.mark.parametrize("pair", ["redis", "amqp"])
def test_a_missing_broker_is_named_and_nothing_is_left_behind(monkeypatch, tmp_path, pair):
    from kombu_paired import testing

    def missing(*_):
        raise testing.BrokerMissing("the-server is not installed")

    for kind in (testing.LocalRedis, testing.LocalRabbitMQ):
        monkeypatch.setattr(kind, "_program", missing)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run("demo", "--pair", pair)
    assert result.exit_code == 1
    assert "the-server is not installed" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--messages", "0"], ["--pair", "kafka"], ["--outage", "-1"]])
def test_a_demo_that_cannot_be_played_is_wrong_usage(arguments):
    usage_error("demo", *arguments)


def test_an_error_of_a_namespace_is_one_line_without_a_traceback():
    with pytest.raises(click.ClickException, match="refused"), connecting.as_click_errors():
        raise REFUSED
