"""The judge of the battle lets nothing pass: each promise is broken here once, in facts that are otherwise good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.battle import rules
from tests.battle.judge import judge
from tests.battle.ledger import Call, Entry, Harm, Life, Record, Run

ID = "producer1-1-0-1"
BOTH_DOWN = [Harm("kill", "primary", 9.5, 12.0), Harm("freeze", "producer>secondary", 9.0, 11.0)]
OURS = """Traceback (most recent call last):
  File "celery/worker/worker.py", line 203, in start
    self.blueprint.start(self)
  File "kombu_paired/transport.py", line 12, in drain_events
    raise KeyError("q")
KeyError: 'q'
"""
CELERYS = OURS.replace("kombu_paired/transport.py", "kombu/transport/redis.py")


def a_call(**changes) -> Call:
    return replace(Call(ID, "producer1", at=10.0, seconds=0.01), **changes)


def a_run(began: float, **changes) -> Run:
    return replace(Run(ID, "worker1", 7, received=began, began=began, ended=began + 0.05), **changes)


def a_record(**facts) -> Record:
    return Record(**{"send_timeout": 1.0, "calls": [a_call()], "runs": [a_run(10.1)], **facts})


def broken(record: Record) -> list[str]:
    return [each.promise for each in judge(record).broken]


def explained(record: Record) -> dict[str, int]:
    return dict(judge(record).duplicates)


def test_all_is_well():
    verdict = judge(a_record())
    assert verdict.passed
    assert (verdict.n_calls, verdict.n_ran, verdict.n_raised) == (1, 1, 0)


# -- lost --------------------------------------------------------------------------------------------------------------


def test_a_call_that_returned_and_never_ran_is_lost():
    assert broken(a_record(runs=[])) == ["lost"]


@pytest.mark.parametrize("outcome", [{"seconds": None}, {"error": "OperationalError()"}])
def test_a_call_that_did_not_return_promises_nothing(outcome):
    assert broken(a_record(calls=[a_call(**outcome)], runs=[], harms=BOTH_DOWN)) == []


def test_what_is_left_in_a_queue_is_stranded():
    assert broken(a_record(left={"secondary: battle/x-servicebus-transfer/0": 2})) == ["stranded"]


# -- raised ------------------------------------------------------------------------------------------------------------


def raised(harms, **changes) -> list[str]:
    call = a_call(error="kombu_paired.errors.BacklogUnavailable(neither took it)", **changes)
    return broken(a_record(calls=[call], runs=[], harms=harms))


def test_a_call_may_raise_while_both_sides_are_down():
    assert raised(BOTH_DOWN) == []


@pytest.mark.parametrize("harms", [[], BOTH_DOWN[:1], BOTH_DOWN[1:]])
def test_a_call_may_not_raise_while_either_side_is_well(harms):
    assert raised(harms) == ["raised"]


def test_a_side_may_recover_for_send_timeout_and_two_seconds():
    over = [Harm("kill", "primary", 1.0, 7.5), Harm("kill", "secondary", 1.0, 7.5)]
    assert raised(over) == []
    assert raised([over[0], replace(over[1], healed=6.5)]) == ["raised"]


def test_the_way_of_a_worker_is_no_concern_of_a_producer():
    assert raised([BOTH_DOWN[0], Harm("cut", "worker>secondary", 9.0, 12.0)]) == ["raised"]


def test_the_way_of_a_producer_is_no_concern_of_a_task_that_calls():
    assert raised(BOTH_DOWN, actor="worker1") == ["raised"]
    assert raised([BOTH_DOWN[0], Harm("cut", "worker>secondary", 9.0, 12.0)], actor="worker1") == []


def test_a_node_is_its_side():
    assert raised([Harm("kill", "primary/2", 9.0, 12.0), BOTH_DOWN[1]]) == []


def test_a_machine_that_stands_still_hits_both_sides():
    assert raised([Harm("stall", "machine", 9.6, 10.2)]) == []
    assert raised([Harm("stall", "machine", 9.8, 10.2)]) == ["raised"]
    assert raised([Harm("stall", "machine", 9.0, 9.9)]) == ["raised"]


def test_what_is_raised_is_an_operational_error():
    call = a_call(error="builtins.KeyError('q1')")
    assert broken(a_record(calls=[call], runs=[], harms=BOTH_DOWN)) == ["raised"]


# -- late --------------------------------------------------------------------------------------------------------------


def test_a_call_has_its_budget():
    assert broken(a_record(calls=[a_call(seconds=3.0)])) == []
    assert broken(a_record(calls=[a_call(seconds=3.1)])) == ["late"]


def test_celery_tries_again_what_neither_side_took_each_time_in_the_budget():
    assert broken(a_record(calls=[a_call(seconds=9.6)], harms=BOTH_DOWN, tries=4)) == []
    assert broken(a_record(calls=[a_call(seconds=9.7)], harms=BOTH_DOWN, tries=4)) == ["late"]
    assert broken(a_record(calls=[a_call(seconds=3.1)], harms=BOTH_DOWN[:1], tries=4)) == ["late"]


def test_what_the_machine_took_is_not_the_calls():
    assert broken(a_record(calls=[a_call(seconds=3.5, noise=0.6)])) == []
    assert broken(a_record(calls=[a_call(seconds=3.5, noise=0.4)])) == ["late"]


def test_what_all_of_the_machine_took_is_not_the_calls_either():
    stall = Harm("stall", "machine", 9.0, 10.6)
    assert broken(a_record(calls=[a_call(seconds=3.5)], harms=[stall])) == []
    assert broken(a_record(calls=[a_call(seconds=3.7)], harms=[stall])) == ["late"]
    assert judge(a_record(harms=[stall])).stalled == pytest.approx(1.6)


def test_a_call_that_raised_has_the_same_budget():
    assert raised(BOTH_DOWN, seconds=3.1) == ["late"]


# -- processes ---------------------------------------------------------------------------------------------------------


def a_life(**changes) -> Life:
    return replace(Life("worker1", 7, begun=1.0, ended=20.0, how="stopped", code=0, seconds=2.0), **changes)


def test_a_worker_that_exits_by_our_doing():
    assert broken(a_record(lives=[a_life(how="itself", code=1, last_words=OURS)])) == ["exited"]


def test_an_exit_without_a_traceback_needs_a_human():
    assert broken(a_record(lives=[a_life(how="itself", code=1)])) == ["exited"]


def test_an_exit_of_celerys_own_is_told_apart():
    verdict = judge(a_record(lives=[a_life(how="itself", code=1, last_words=OURS + CELERYS)]))
    assert verdict.passed
    assert verdict.celerys_own_exits == 1


def test_a_process_that_was_killed_is_no_exit():
    assert broken(a_record(lives=[a_life(how="killed", last_words=OURS)])) == []


def test_a_process_that_does_not_end():
    assert broken(a_record(lives=[a_life(how="hung", seconds=40.0)])) == ["hung"]


def test_a_process_that_takes_long_to_end():
    assert broken(a_record(lives=[a_life(ended=60.0, seconds=21.0)])) == ["hung"]


def test_a_fault_may_keep_a_process_from_ending():
    assert broken(a_record(lives=[a_life(ended=60.0, seconds=21.0)], harms=[Harm("cut", "primary", 1, 50.0)])) == []


def test_a_worker_that_does_not_consume_after_all_is_healed():
    assert broken(a_record(idle=["worker1"])) == ["idle"]


# -- duplicates --------------------------------------------------------------------------------------------------------

TWICE = [a_run(10.1), a_run(15.0, actor="worker2", pid=8)]


def test_a_duplicate_that_nothing_explains():
    assert broken(a_record(runs=TWICE)) == ["unexplained"]


def test_each_extra_run_is_to_be_explained():
    thrice = [*TWICE, a_run(16.0)]
    harms = [Harm("kill", "worker2", 15.2, 15.5)]
    assert broken(a_record(runs=thrice, harms=harms)) == ["unexplained"]  # the second; the third is of the kill


def test_the_mark_explains():
    journal = [Entry(1, 10.0, "diverted", ID, maybe_duplicate=True)]
    assert explained(a_record(runs=TWICE, journal=journal)) == {"marked": 1}


def test_the_mark_of_another_message_does_not():
    journal = [Entry(1, 10.0, "diverted", "another", maybe_duplicate=True)]
    assert explained(a_record(runs=TWICE, journal=journal)) == {"unexplained": 1}


@pytest.mark.parametrize(
    "harm",
    [
        Harm("kill", "worker1", 10.12, 11.0),
        Harm("kill child", "worker1", 10.12, 11.0),
        Harm("exit", "worker1", 10.12, 11.0),
        Harm("kill", "primary", 10.12, 11.0),
        Harm("close", "primary/1", 10.12, 11.0),
        Harm("cut", "worker>primary", 10.12, 11.0),
    ],
)
def test_a_worker_that_held_it_when_it_was_hit(harm):
    assert explained(a_record(runs=TWICE, harms=[harm])) == {"redelivered": 1}


@pytest.mark.parametrize(
    "harm",
    [
        Harm("kill", "worker2", 10.12, 11.0),  # another one
        Harm("freeze", "worker1", 10.12, 11.0),  # it went on holding it
        Harm("kill", "secondary", 10.12, 11.0),
        Harm("cut", "producer>primary", 10.12, 11.0),
        Harm("kill", "worker1", 13.0, 14.0),  # it had long acknowledged it
        Harm("kill", "worker1", 15.5, 16.0),  # after the run that is to be explained
        Harm("kill", "worker1", 7.0, 8.0),  # before it had it
    ],
)
def test_what_hit_somebody_else_or_at_another_time_does_not_explain(harm):
    assert explained(a_record(runs=TWICE, harms=[harm])) == {"unexplained": 1}


def test_held_for_longer_than_the_visibility_timeout():
    runs = [a_run(10.1, received=5.0), a_run(10.5, actor="worker2")]
    assert explained(a_record(runs=runs, visibility_timeout=5.0)) == {"held_too_long": 1}
    assert explained(a_record(runs=runs, visibility_timeout=6.0)) == {"unexplained": 1}
    assert explained(a_record(runs=runs)) == {"unexplained": 1}  # no such thing on RabbitMQ


def test_the_clock_of_a_worker():
    harms = [Harm("clock", "worker2", 10.05, 12.0, amount=1000.0)]
    assert explained(a_record(runs=TWICE, harms=harms, visibility_timeout=5.0)) == {"clock_of_a_worker": 1}
    assert explained(a_record(runs=TWICE, harms=harms)) == {"unexplained": 1}


def syphoned_by(pid: int, *, settled: bool) -> list[Entry]:
    """Process ``pid`` takes it from the backlog at 10; another one does so, and settles, at 14."""
    entries = [Entry(1, 9.0, "diverted", ID), Entry(pid, 10.0, "received_from_backlog", ID)]
    if settled:
        entries.append(Entry(pid, 10.2, "syphoned", ID))
    return [*entries, Entry(8, 14.0, "received_from_backlog", ID), Entry(8, 14.5, "syphoned", ID)]


def test_a_syphon_that_was_killed_in_between():
    lives = [a_life(pid=77, how="killed", ended=10.5)]
    record = a_record(runs=TWICE, lives=lives, journal=syphoned_by(77, settled=False))
    assert explained(record) == {"syphon_killed": 1}


def test_a_syphon_that_had_settled_before_it_was_killed():
    lives = [a_life(pid=77, how="killed", ended=10.5)]
    record = a_record(runs=TWICE, lives=lives, journal=syphoned_by(77, settled=True))
    assert explained(record) == {"unexplained": 1}


def test_a_syphon_that_lived_on_was_not_killed():
    lives = [a_life(pid=77, how="stopped", ended=10.5)]
    record = a_record(runs=TWICE, lives=lives, journal=syphoned_by(77, settled=False))
    assert explained(record) == {"unexplained": 1}


def test_a_secondary_that_was_lost_before_it_could_be_removed_there():
    journal = syphoned_by(77, settled=True)
    assert explained(a_record(runs=TWICE, harms=[Harm("kill", "secondary", 10.1, 12.0)], journal=journal)) == {
        "secondary_lost": 1
    }
    for harm in (Harm("cut", "producer>secondary", 10.1, 12.0), Harm("kill", "secondary", 16.5, 17.0)):
        assert explained(a_record(runs=TWICE, harms=[harm], journal=journal)) == {"unexplained": 1}


def test_a_lock_that_expired_while_the_syphon_stood_still():
    runs = [a_run(10.1), a_run(90.0, actor="worker2")]
    journal = [Entry(77, 10.0, "received_from_backlog", ID), Entry(8, 80.0, "received_from_backlog", ID)]
    frozen = Harm("freeze", "worker1", 10.2, 85.0)
    assert explained(a_record(runs=runs, harms=[frozen], journal=journal)) == {"lock_expired": 1}
    assert explained(a_record(runs=runs, harms=[replace(frozen, healed=40.0)], journal=journal)) == {"unexplained": 1}


def test_every_rule_says_what_it_is_about():
    assert all(rule.__doc__ for rule in rules.RULES)
