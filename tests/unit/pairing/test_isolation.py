"""Isolating by hand: docs/architecture.md, rule 32."""

from __future__ import annotations

import threading

import pytest

from kombu_paired.declarations import Entity
from kombu_paired.errors import ConfigurationError, NamespaceFailure
from kombu_paired.events import EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.isolation import ALL, BY_HAND, Isolated, as_notice, notice_in
from kombu_paired.message import Message
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing
from kombu_paired.testing import ManualClock, ScriptedBroker
from kombu_paired.testing.processes import wait_until

ORDERS = Entity("", "orders")


class Fleet:
    """Processes of one pairing: brokers that they share, and a clock that a test turns."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.primary, self.secondary = (ScriptedBroker(side, clock=self.clock) for side in ("primary", "secondary"))
        self.secondary.keeps_notices = True
        self.pairings = []

    def process(self, *, looks=False, **options):
        """One more process, which looks at the notices only when a test says so, or really."""
        settings = PairedNamespaceOptions(secondary="scripted://secondary", backlog_queue_count=1, **options)
        pairing = Pairing("contoso", settings, self.primary, self.secondary, clock=self.clock, wall_clock=self.clock)
        pairing.isolation.is_watched = not looks
        pairing.told = []
        pairing.events.listen(pairing.told.append)
        self.pairings.append(pairing)
        return pairing

    def at(self, side):
        """Where messages are."""
        return [message.properties["message_id"] for message in side.stored]


@pytest.fixture
def fleet():
    made = Fleet()
    yield made
    for pairing in made.pairings:
        pairing.close()


def send(pairing, message_id, queue="orders", exchange=""):
    properties = {"message_id": message_id, "delivery_mode": 2}
    pairing.send(Message("{}", exchange, queue, properties=properties))


def transitions(pairing):
    wanted = {EventKind.FAILED_OVER, EventKind.RESTORED}
    return [(each.kind, each.entity, each.detail) for each in pairing.told if each.kind in wanted]


@pytest.mark.parametrize("name", [ALL, "orders"])
def test_what_one_process_isolates_another_one_diverts_once_it_has_looked(fleet, name):
    operator, web = fleet.process(), fleet.process()
    send(web, "before")
    operator.isolation.isolate(name)
    asked = len(fleet.primary.log)
    web.isolation.look()
    send(web, "after")
    assert (fleet.at(fleet.primary), fleet.at(fleet.secondary)) == (["before"], ["after"])
    assert len(fleet.primary.log) == asked, "the primary is left alone"
    assert transitions(web) == [(EventKind.FAILED_OVER, "orders", BY_HAND)]


def test_entities_that_are_not_named_go_on(fleet):
    web = fleet.process()
    web.isolation.isolate("mails")
    send(web, "a")
    assert fleet.at(fleet.primary) == ["a"]


def test_it_can_be_isolated_while_the_primary_is_down(fleet):
    fleet.primary.go_away()
    operator = fleet.process()
    operator.isolation.isolate(ALL)
    assert fleet.process().isolation.look() == Isolated({ALL: fleet.clock()})


def test_no_ping_restores_it_and_restoring_pings_at_once(fleet):
    web = fleet.process(failover_interval=0, ping_interval=1800)
    fleet.primary.go_away()
    send(web, "a")
    web.isolation.isolate(ALL)
    fleet.primary.come_back()
    assert web._failover.ping(ORDERS) is True
    send(web, "b")
    assert fleet.at(fleet.secondary) == ["a", "b"]
    web.isolation.restore(ALL)
    wait_until(lambda: not web.circuits, 10, lambda: "it was not pinged")
    send(web, "c")
    assert fleet.at(fleet.primary) == ["c"]
    # One failover, which was there already when an operator came.
    assert [kind for kind, _, _ in transitions(web)] == [EventKind.FAILED_OVER, EventKind.RESTORED]


def test_what_was_not_sent_to_meanwhile_goes_straight_home_afterwards(fleet):
    web = fleet.process()
    web.isolation.isolate(ALL)
    web.isolation.restore(ALL)
    send(web, "a")
    assert fleet.at(fleet.primary) == ["a"]
    assert transitions(web) == []


def test_all_ends_whatever_is_isolated(fleet):
    operator = fleet.process()
    operator.isolation.isolate("orders")
    operator.isolation.isolate(ALL)
    assert operator.isolation.restore("orders").is_everything
    operator.isolation.isolate("mails")
    assert operator.isolation.restore(ALL) == Isolated()
    assert fleet.secondary.written == {}


def test_nothing_is_declared_on_what_is_isolated_and_it_travels_with_the_message(fleet):
    web = fleet.process()
    web.isolation.isolate("orders")
    for queue in ("orders", "mails"):
        web.declare("queue_declare", {"queue": queue, "durable": True})
    assert [each.name for each in fleet.primary.declared] == ["mails"]
    send(web, "a")
    assert '"orders"' in str(fleet.secondary.stored[0].headers["x-paired-declare"])


def test_while_the_secondary_is_down_it_stays_as_it_was_and_a_message_goes_where_it_can(fleet):
    web = fleet.process()
    web.isolation.isolate(ALL)
    fleet.secondary.go_away()
    fleet.clock.now += 60
    assert web.isolation.look_if_due().is_everything
    send(web, "a")
    assert fleet.at(fleet.primary) == ["a"]
    assert web.isolation.now.is_everything
    with pytest.raises(NamespaceFailure):
        web.isolation.restore(ALL)


def test_a_process_looks_once_in_its_interval(fleet):
    web = fleet.process()
    for _ in range(5):
        web.isolation.look_if_due()
        fleet.clock.now += 2
    assert len(fleet.secondary.asked_for("read notices")) == 2


@pytest.mark.parametrize(("is_charged", "seconds"), [(False, 5), (True, 60)])
def test_where_calls_are_charged_it_looks_as_rarely_as_it_pings(fleet, is_charged, seconds):
    fleet.secondary.bills_calls = is_charged
    assert fleet.process().isolation.interval == seconds
    assert fleet.process(ping_interval=2).isolation.interval == 2


def test_who_sends_looks_in_a_thread_of_its_own_that_ends_with_the_pairing(fleet, monkeypatch):
    monkeypatch.setattr("kombu_paired.pairing.isolation.FIRST_LOOK", 0.01)
    web = fleet.process(looks=True, ping_interval=1)
    assert fleet.secondary.asked_for("read notices") == []
    send(web, "a")
    fleet.secondary.written[ALL] = 1.0
    wait_until(lambda: web.isolation.now.is_everything, 10, lambda: "it did not look")
    send(web, "b")
    assert fleet.at(fleet.secondary) == ["b"]
    web.close()
    web.isolation._thread.join(10)
    assert not web.isolation._thread.is_alive()


def test_who_has_nothing_more_to_move_lets_go_of_the_link_and_who_looks_in_a_thread_keeps_it(fleet):
    syphon, web = fleet.process(looks=False), fleet.process(looks=True)
    send(web, "a")
    links = []
    for each in (syphon, web):
        each.isolation.look()
        links.append(each.isolation._notices)
        each.isolation.rest()
    assert [syphon.isolation._notices, web.isolation._notices] == [None, links[1]]
    fleet.secondary.written[ALL] = 1.0
    assert syphon.isolation.look().is_everything


def test_what_is_never_diverted_makes_nobody_look(fleet):
    worker = fleet.process(looks=True)
    worker.send(Message("{}", "", "orders", properties={"delivery_mode": 1}))
    assert worker.isolation._thread is None
    assert len(fleet.primary.stored) == 1


def test_a_look_that_is_under_way_when_the_pairing_closes_leaves_no_link_behind(fleet, monkeypatch):
    monkeypatch.setattr("kombu_paired.pairing.isolation.FIRST_LOOK", 0.01)
    closed, is_looking, may_go_on = [], threading.Event(), threading.Event()
    original = type(fleet.secondary).notices.__get__(fleet.secondary)

    def slow(primary):
        notices = closing(original(primary), closed)
        notices.read = lambda *args, **kwargs: (is_looking.set(), may_go_on.wait(20), {})[-1]
        return notices

    fleet.secondary.notices = slow
    web = fleet.process(looks=True)
    send(web, "a")
    assert is_looking.wait(20)
    web.close()
    assert closed == []
    may_go_on.set()
    web.isolation._thread.join(20)
    assert closed == ["closed"]


def test_where_no_notices_are_kept_nobody_looks_and_isolating_says_so(fleet):
    fleet.secondary.keeps_notices = False
    web = fleet.process(looks=False)
    send(web, "a")
    assert web.isolation._thread is None
    assert web.isolation.look_if_due() == Isolated()
    with pytest.raises(ConfigurationError, match="keeps no notices"):
        web.isolation.isolate(ALL)


@pytest.mark.parametrize("kind", [FailureKind.UNAUTHORIZED, FailureKind.UNREACHABLE])
def test_a_look_that_fails_changes_nothing(fleet, kind):
    web = fleet.process()
    fleet.secondary.always = fleet.secondary.failure(kind)
    assert web.isolation.look_if_due() == Isolated()
    send(web, "a")
    assert fleet.at(fleet.primary) == ["a"]


@pytest.mark.parametrize("name", ["orders", "shop/eu west", "all"])
def test_a_notice_is_a_line_that_anybody_can_read(name):
    assert notice_in(as_notice(name, 1000.25)) == (name, 1000.25)


@pytest.mark.parametrize("line", ["", "orders", "1.5", "1.5 ", "soon orders"])
def test_what_is_no_notice_is_none(line):
    assert notice_in(line) is None


def closing(notices, closed):
    notices.close = lambda: closed.append("closed")
    return notices
