"""What an operator reaches for, on real brokers."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from kombu_paired.brokers.roles import DeadLetter
from kombu_paired.cli import main
from kombu_paired.testing.processes import wait_until
from kombu_paired.transport import pairing_of

#: Seconds; each command answers in so many and a second.
PATIENCE = 2
NAME = "operated"
#: Headers of a message in the backlog.
DIVERTED = {
    "x-ms-path": "orders",
    "x-paired-exchange": "",
    "x-paired-routing-key": "orders",
    "x-paired-first-attempt": "1000.0",
    "x-paired-diverted-at": "1000.0",
}


@pytest.fixture
def run(primary, secondary, request):
    """``run("peek", status=0)``: what a command says in JSON."""
    patience = PATIENCE if request.node.get_closest_marker("alone") else 5  # others have the processor, too
    environment = {
        "KOMBU_PAIRED_PRIMARY": primary.url,
        "KOMBU_PAIRED_SECONDARY": secondary.url,
        "KOMBU_PAIRED_OPTION": f"primary_name={NAME} backlog_queue_count=2 send_timeout={patience}",
    }

    def call(*words, status=0):
        result = CliRunner().invoke(main, [*words, "--json"], env=environment)
        assert result.exit_code == status, result.output
        assert "Traceback" not in result.output
        return json.loads(result.stdout)

    return call


@pytest.fixture
def dead(run, secondary):
    """Three dead letters, one of them of another reason: its id, and those of the others."""
    run("check")
    strange = [("who wrote this?", {}), ("who wrote this?", {}), ("{}", {**DIVERTED, "x-paired-diverted-at": "soon"})]
    secondary.put(f"{NAME}/x-servicebus-transfer/1", *strange)
    drained = run("drain", status=1)
    assert (drained["moved"], drained["dead_letters"], drained["left"]) == (0, {"NoPath": 2, "MalformedHeader": 1}, 0)
    letters = run("dead-letters", "list")["dead_letters"]
    [one] = [each["id"] for each in letters if each["dead_letter_reason"] == "MalformedHeader"]
    return one, [each["id"] for each in letters if each["dead_letter_reason"] == "NoPath"]


def waiting(run):
    """What waits, and what is dead."""
    return [
        sorted((each["id"] or "", each["dead_letter_reason"]) for each in rows)
        for rows in (run("peek")["messages"], run("dead-letters", "list")["dead_letters"])
    ]


def test_dead_letters_are_put_back_and_thrown_away_as_they_are_chosen(run, dead):
    one, others = dead
    assert run("dead-letters", "requeue", "nobody", status=1)["requeued"] == 0
    if all(others):  # what no pairing has sent may have no id
        assert run("dead-letters", "requeue", others[0], "--reason", "MalformedHeader", status=1)["requeued"] == 0
        assert run("dead-letters", "requeue", others[0], others[1])["requeued"] == 2
        assert run("drain", status=1)["dead_letters"] == {"NoPath": 2}
    rest = sorted((each or "", "NoPath") for each in others)
    assert run("dead-letters", "requeue", "--reason", "MalformedHeader")["requeued"] == 1
    assert waiting(run) == [[(one or "", None)], rest]
    assert {each["queue"] for each in run("dead-letters", "list")["dead_letters"]} == {
        f"{NAME}/x-servicebus-transfer/1/$DeadLetterQueue"
    }
    assert run("drain", status=1)["dead_letters"] == {"MalformedHeader": 1}
    assert run("dead-letters", "delete", "--all", "--yes")["deleted"] == 3
    assert waiting(run) == [[], []]
    assert run("status")["totals"]["dead_letters"] == 0


def test_what_is_put_back_is_what_it_was_and_comes_home(run, primary, secondary, paired_shop, options):
    options |= {"primary_name": NAME, "backlog_queue_count": 1}
    shop = paired_shop()
    shop.send_task("shop.record", (0,), queue="orders")
    with shop.connection_for_write() as connection:
        pairing = pairing_of(connection)
    [queue] = pairing.backlog_queue_names
    secondary.put(queue, ("{}", {**DIVERTED, "own": "1"}))
    receiver = pairing.secondary.receiver([queue], 1, 10)
    receiver.dead_letter([DeadLetter(each, "MissingEntity", "gone") for each in receiver.receive(1, 10)])
    receiver.close()
    assert run("dead-letters", "requeue", "--all")["requeued"] == 1
    [message] = pairing.secondary.look_into([queue], 9, 10)[queue]
    assert {name: message.headers.get(name) for name in ("own", "DeadLetterReason")} == {
        "own": "1",
        "DeadLetterReason": None,
    }
    assert run("drain")["moved"] == 1
    assert primary.depth("orders") == 2


def test_once_all_is_isolated_an_outage_costs_no_call_anything(paired_shop, options, run, primary, secondary):
    options |= {"primary_name": NAME, "backlog_queue_count": 2, "send_timeout": 5}
    shop = paired_shop()
    shop.send_task("shop.record", (0,))
    with shop.connection_for_write() as connection:
        pairing = pairing_of(connection)
    assert list(run("isolate", "all")["isolated"]) == ["all"]
    wait_until(lambda: pairing.isolation.now.is_everything, 20, lambda: "the process did not hear of it")
    primary.freeze()
    for number in range(1, 6):
        began = time.monotonic()
        shop.send_task("shop.record", (number,))
        assert time.monotonic() - began < 4.5, "it did not ask the primary, which takes five seconds"
    assert list(run("status", status=1)["isolated"]) == ["all"]
    assert secondary.backlog() == 5
    primary.thaw()
    assert "isolated" in run("drain", status=1)["error"]
    assert run("restore", "all")["isolated"] == {}
    wait_until(lambda: not pairing.circuits, 20, lambda: "nobody pinged")
    assert run("drain")["moved"] == 5
    shop.send_task("shop.record", (6,))
    assert secondary.backlog() == 0


@pytest.mark.parametrize("broker_kind", ["redis"], indirect=True)
def test_a_worker_tells_of_its_pairing_and_isolates_for_the_fleet(paired_worker, paired_shop, options, run, ledger):
    options |= {"primary_name": NAME, "backlog_queue_count": 2}
    paired_worker()
    shop = paired_shop(setup=True)
    shop.send_task("shop.record", (1,))
    wait_until(lambda: set(ledger.counts()) == {1}, 30, lambda: "the worker does not work")
    [reply] = shop.control.broadcast("paired_isolate", arguments={"entity": "all"}, reply=True, limit=1, timeout=10)
    assert list(reply.values()) == [{"ok": "isolated: all"}]
    with shop.connection_for_write() as connection:
        isolation = pairing_of(connection).isolation
    wait_until(lambda: isolation.now.is_everything, 20, lambda: "this process did not hear of it")
    shop.send_task("shop.record", (2,))
    [told] = (shop.control.inspect(timeout=10, limit=1)._request("paired") or {}).values()
    assert told["pairing"] == NAME
    assert list(told["isolated"]) == ["all"]
    assert (told["syphon"]["running"], len(told["rotation"]["queues"])) == (True, 2)
    assert told["counters"].get("syphoned") is None
    [reply] = shop.control.broadcast("paired_restore", arguments={"entity": "all"}, reply=True, limit=1, timeout=10)
    assert list(reply.values()) == [{"ok": "isolated: nothing"}]
    wait_until(lambda: set(ledger.counts()) == {1, 2}, 30, lambda: "what waited did not come home")
    [told] = (shop.control.inspect(timeout=10, limit=1)._request("paired") or {}).values()
    assert told["counters"]["syphoned"] == 1
    assert told["syphon"]["last_received_s"] < 30


#: Command -> exit statuses while the primary is silent, the secondary is, both are.
SILENT = {
    "check": (1, 1, 1),
    "status": (1, 1, 1),
    "drain": (1, 1, 1),
    "peek": (0, 1, 1),
    "isolate orders": (0, 1, 1),
    "restore orders": (0, 1, 1),
    "dead-letters list": (0, 1, 1),
    "dead-letters requeue --all": (1, 1, 1),
    "dead-letters delete --all --yes": (1, 1, 1),
}


#: Those that ask in ways of their own.
VARIOUS = ("check", "status", "drain", "peek", "isolate orders", "dead-letters requeue --all")


@pytest.mark.alone
@pytest.mark.parametrize("broker_kind", ["redis"], indirect=True)
@pytest.mark.parametrize("place", range(3), ids=["primary", "secondary", "both"])
def test_whoever_is_silent_each_command_waits_for_it_once(run, primary, secondary, place):
    for broker in [(primary,), (secondary,), (primary, secondary)][place]:
        broker.freeze()
    late = {}
    for command in VARIOUS if place < 2 else VARIOUS[1:3]:
        began = time.monotonic()
        run(*command.split(), status=SILENT[command][place])
        if (took := time.monotonic() - began) > PATIENCE + 1.5:
            late[command] = took
    assert late == {}


@pytest.mark.parametrize("broker_kind", ["redis"], indirect=True)
@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_wrong_credentials_are_said_by_each_command_that_needs_them(run, primary, secondary, side):
    {"primary": primary, "secondary": secondary}[side].set_password("another")
    for command, statuses in SILENT.items():
        found = run(*command.split(), status=statuses[side == "secondary"])
        if statuses[side == "secondary"] and "error" in found:
            assert "unauthorized" in found["error"] or "requeued" in found or "deleted" in found
