"""The command line, without a broker: what is parsed, what is refused, what is shown and what never is."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import kombu_paired
from kombu_paired.brokers.roles import BacklogDepth
from kombu_paired.cli import connecting, demo, main, printing
from kombu_paired.cli.check import examine, notes_on_idling, settings_in_force
from kombu_paired.cli.check import show as show_finding
from kombu_paired.cli.connecting import open_pairing, parse_option, result_queue
from kombu_paired.cli.drain import waiting
from kombu_paired.cli.sides import Look, Side, look_at, stand_in_depths
from kombu_paired.cli.status import _verdict, as_report, show
from kombu_paired.deadline import Deadline
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import DIVERTED_AT, Message
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing
from kombu_paired.stand_in import stand_in_name
from kombu_paired.testing import ScriptedBroker

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


# -- check ----------------------------------------------------------------------------------------------------------


def notes(primary, secondary, *settings):
    pairing = open_pairing(primary, secondary, settings, None)
    try:
        return list(notes_on_idling(pairing))
    finally:
        pairing.close()


def test_where_calls_are_charged_check_says_what_an_idle_worker_costs_and_how_to_turn_it_off():
    first, second = (f"azureservicebus://policy:{SECRET}@127.0.0.1:{port}" for port in (1, 2))
    of_primary, of_secondary = notes(first, second, "backlog_queue_count=20")
    assert "1,800 operations an hour for Celery's heartbeats, and 60 for each queue" in of_primary
    assert "celery worker --without-heartbeat" in of_primary
    assert "worker_enable_remote_control = False" in of_primary
    assert "80 operations an hour for the syphon" in of_secondary
    assert notes(first, SECONDARY) == [of_primary]
    assert notes(PRIMARY, second, "backlog_queue_count=20") == [of_secondary]
    assert notes(PRIMARY, SECONDARY) == []


@pytest.mark.parametrize("option", ["--without-heartbeat", "--heartbeat-interval"])
def test_celery_s_worker_has_the_options_that_check_speaks_of(option):
    from celery.bin.worker import worker

    assert option in {each for parameter in worker.params for each in parameter.opts}


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


def test_results_that_wait_or_are_dead_are_told_beside_the_backlog():
    seen = replace(look(BacklogDepth("p/x/0", 0)), results=BacklogDepth("p/x/results-1", 7, 40.0))
    report = as_report("p", seen, now=100.0)
    assert report["ok"]
    assert report["totals"]["messages"] == 0
    assert (report["results"]["messages"], report["results"]["oldest_age_s"]) == (7, 60.0)
    assert "7 results waiting for the result backend." in _verdict(report)

    report = as_report(
        "p", replace(seen, results=BacklogDepth("p/x/results-1", 0, None, 2, "ResultRefused")), now=100.0
    )
    assert not report["ok"]
    assert "2 results in p/x/results-1 cannot be stored." in _verdict(report)


def scripted_pairing(**options):
    primary, secondary = ScriptedBroker("primary"), ScriptedBroker("secondary")
    return Pairing("p", PairedNamespaceOptions(secondary=secondary.uri, **options), primary, secondary)


def test_a_status_shows_the_stand_in_queues_that_are_there(capsys):
    pairing = scripted_pairing(stand_in_after=1)
    longest = "q" * 30
    for queue in ("orders", longest):
        pairing.stand_in_queues.ensure(queue, {})
    pairing.secondary.queues[stand_in_name("p", "orders")].extend([Message(body="x", headers={DIVERTED_AT: "40"})] * 3)
    seen = look_at(pairing)
    report = as_report("p", seen, now=100.0)
    assert {each["queue"]: each["messages"] for each in report["stand_in"]} == {
        "p/x-paired-standin/orders": 3,
        f"p/x-paired-standin/{longest}": 0,
    }
    assert [each["oldest_age_s"] for each in report["stand_in"]] == [60.0, None]
    assert report["totals"]["messages"] == 0
    assert "3 messages waiting for workers that stand in, or for the way home." in _verdict(report)
    show("p", seen, report)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(" 3 " in line and line.endswith(" orders") for line in lines)
    assert any(line.endswith(f" {longest}") for line in lines)
    pairing.close()


def test_a_stand_in_queue_whose_name_somebody_else_reads_just_now_is_not_overlooked():
    pairing = scripted_pairing(stand_in_after=1)
    name = pairing.stand_in_queues.ensure("orders", {})
    pairing.secondary.queues[name].append(Message(body="x", headers={DIVERTED_AT: "40"}))
    looks = iter([[], [name]])
    pairing.secondary.stand_in_queues = lambda *args, **more: next(looks)
    assert [(each.queue, each.messages) for each in stand_in_depths(pairing, Deadline(1))] == [(name, 1)]


def test_a_dead_letter_of_a_stand_in_queue_is_not_fine():
    seen = replace(look(BacklogDepth("p/x/0", 0)), stand_ins=[BacklogDepth("p/s/orders", 0, None, 1, "NoPath")])
    report = as_report("p", seen, now=100.0)
    assert not report["ok"]
    assert "1 dead letter beside stand-in queues" in _verdict(report)


def test_where_workers_never_stand_in_nothing_is_asked_about_it():
    pairing = scripted_pairing()
    assert as_report("p", look_at(pairing), now=100.0)["stand_in"] == []
    assert waiting(pairing) == 0
    assert {each.what for each in pairing.secondary.log} == {"depths"}
    assert len(pairing.secondary.log) == 2
    pairing.close()


def test_what_waits_for_a_syphon_is_in_stand_in_queues_too():
    pairing = scripted_pairing(stand_in_after=1)
    pairing.stand_in_queues.ensure("orders", {})
    pairing.secondary.queues[stand_in_name("p", "orders")].append(Message(body="x", headers={DIVERTED_AT: "40"}))
    assert waiting(pairing) == 1
    pairing.close()


def test_a_check_says_what_standing_in_asks_of_the_secondary(capsys):
    for options, is_said in (({"stand_in_after": 30}, True), ({}, False)):
        pairing = scripted_pairing(**options)
        show_finding(examine(pairing))
        said = " ".join(capsys.readouterr().out.split())
        assert ("Workers that have not reached the primary for 30 s consume from such queues on" in said) is is_said
        assert ("p/x-paired-standin/" in said) is is_said
        pairing.close()


def test_a_secondary_that_nobody_can_stand_in_at_is_wrong_usage():
    said = usage_error("check", "--primary", PRIMARY, "--secondary", "sqs://", "--option", "stand_in_after=30")
    assert "'stand_in_after' needs" in said


def test_an_application_tells_where_its_results_are_kept(application, tmp_path):
    memory = "cache+memory://"
    for n, (setup, backend, is_known) in enumerate(((0, memory, False), (1, None, False), (1, memory, True))):
        name = application(f"shop_results_{n}", f"paired+{PRIMARY}", secondary=SECONDARY, primary_name="p")
        with (tmp_path / f"{name}.py").open("a") as module:
            module.write(f"\napp.conf.result_backend = {backend!r}\nimport kombu_paired\n")
            module.write("kombu_paired.setup(app)\n" if setup else "")
        pairing = open_pairing(None, None, [], name)
        queue = result_queue(pairing)
        pairing.close()
        assert (queue is not None) is is_known
    assert queue.startswith("p/x-servicebus-transfer/results-")


@pytest.mark.parametrize(("may_create", "asked"), [(True, ["p/x/results-1"]), (False, [])])
def test_a_check_creates_the_queue_of_results_where_it_may(monkeypatch, may_create, asked):
    primary, secondary = ScriptedBroker("primary"), ScriptedBroker("secondary")
    options = PairedNamespaceOptions(secondary=secondary.uri, create_backlog_queues=may_create)
    pairing = Pairing("p", options, primary, secondary)
    for module in ("check", "sides"):
        monkeypatch.setattr(f"kombu_paired.cli.{module}.result_queue", lambda pairing: "p/x/results-1")
    assert examine(pairing).problems == []
    assert [each.about for each in secondary.log if each.what == "ensure" and "results" in each.about] == asked
    pairing.close()


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
