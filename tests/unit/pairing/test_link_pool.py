"""Who has a link, and what becomes of it: every link that was made is idle, lent, or let go of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kombu_paired.deadline import Deadline
from kombu_paired.errors import BacklogUnavailable, MessageTooLarge, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.pairing.call import Call
from kombu_paired.pairing.link_pool import Lent, LinkPool
from kombu_paired.pairing.retrying import THROTTLE_WAITS, Patience, on_a_living_link
from kombu_paired.testing import ManualClock, ScriptedBroker
from kombu_paired.testing.scripted import ScriptedSender
from tests.unit.pairing.test_pairing import COUNTED, World

OTHERS = [kind for kind in FailureKind if not kind.counts]


class Link(ScriptedSender):
    """Connected from the start, until somebody ends it, and remembers how."""

    def __init__(self) -> None:
        super().__init__(ScriptedBroker("primary"))
        self.fresh = False
        self.ended: str | None = None

    def close(self) -> None:
        self.ended, self.fresh = "closed", True

    def drop(self) -> None:
        self.ended, self.fresh = "dropped", True


@pytest.fixture
def pool() -> LinkPool:
    return LinkPool(Link)


def failure(kind: FailureKind, **facts: Any) -> NamespaceFailure:
    return NamespaceFailure(kind, "primary", OSError(kind.value), **facts)


def idle(pool: LinkPool, n: int) -> list[Any]:
    """So many links of the pool that have been used; the last one comes first."""
    lents = [pool.lend() for _ in range(n)]
    for lent in lents:
        with lent:
            pass
    return [lent.sender for lent in lents]


# -- lending ------------------------------------------------------------------------------------------------------


def test_a_link_is_given_back_and_the_one_that_was_used_last_comes_first(pool: LinkPool) -> None:
    first, second = idle(pool, 2)
    with pool.lend() as lent:
        assert lent.sender is second
        with pool.lend() as other:
            assert other.sender is first
            assert len(pool) == 0
    assert len(pool) == 2
    assert pool.lend().sender is second


def test_a_link_keeps_the_backlog_queue_that_it_stays_with(pool: LinkPool) -> None:
    with pool.lend() as lent:
        assert lent.queue is None
        lent.queue = "shop/x-servicebus-transfer/3"
    assert pool.lend().queue == "shop/x-servicebus-transfer/3"


@pytest.mark.parametrize(
    "exc",
    [*(failure(kind) for kind in COUNTED), ValueError("of a driver"), BacklogUnavailable(), KeyboardInterrupt()],
    ids=repr,
)
def test_a_link_is_dropped_by_what_leaves_it_in_a_state_that_nobody_knows(pool: LinkPool, exc: BaseException) -> None:
    with pytest.raises(type(exc)), pool.lend() as lent:
        raise exc
    assert lent.sender.ended == "dropped"  # type: ignore[attr-defined]
    assert len(pool) == 0


@pytest.mark.parametrize("exc", [*(failure(kind) for kind in OTHERS), MessageTooLarge("256 KB")], ids=repr)
def test_what_is_the_messages_own_leaves_the_link_to_the_next(pool: LinkPool, exc: Exception) -> None:
    with pytest.raises(type(exc)), pool.lend() as lent:
        raise exc
    assert lent.sender.ended is None  # type: ignore[attr-defined]
    assert pool.lend() is lent


def test_a_link_that_was_dropped_in_between_does_not_come_back(pool: LinkPool) -> None:
    with pool.lend() as lent:
        lent.drop()
    assert lent.sender.ended == "dropped"  # type: ignore[attr-defined]
    assert len(pool) == 0


# -- closing ------------------------------------------------------------------------------------------------------


def test_closing_says_goodbye_to_the_idle_ones(pool: LinkPool) -> None:
    links = idle(pool, 3)
    pool.close()
    assert [link.ended for link in links] == ["closed"] * 3
    assert len(pool) == 0


def test_a_goodbye_that_takes_long_is_the_last_one(pool: LinkPool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    links = idle(pool, 3)
    monkeypatch.setattr(Link, "close", lambda self: (clock.sleep(1), setattr(self, "ended", "closed")))
    pool.close(Deadline(10, clock))
    assert [link.ended for link in links] == ["dropped", "dropped", "closed"]


def test_who_closes_late_says_no_goodbye(pool: LinkPool) -> None:
    links = idle(pool, 2)
    pool.close(Deadline(0, ManualClock()))
    assert [link.ended for link in links] == ["dropped", "dropped"]


def test_a_pairing_whose_syphon_took_its_time_to_stop_says_no_goodbye(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []
    monkeypatch.setattr(ScriptedSender, "close", lambda _sender: ended.append("closed"))
    monkeypatch.setattr(ScriptedSender, "drop", lambda _sender: ended.append("dropped"))
    watched.world.send()
    monkeypatch.setattr("kombu_paired.pairing.pairing.CLOSING", 0.05)
    watched.world.pairing.when_closing(lambda: time.sleep(0.06))
    watched.world.close()
    assert ended == ["dropped"]


def test_a_link_that_is_given_back_after_the_end_is_closed(pool: LinkPool) -> None:
    with pool.lend() as lent:
        pool.close()
        assert lent.sender.ended is None, "a send is under way"  # type: ignore[attr-defined]
    assert lent.sender.ended == "closed"  # type: ignore[attr-defined]
    assert len(pool) == 0


def test_a_closed_pool_lends_for_what_is_under_way_and_keeps_nothing(pool: LinkPool) -> None:
    pool.close()
    with pool.lend() as lent:
        assert lent.sender.ended is None  # type: ignore[attr-defined]
    assert lent.sender.ended == "closed"  # type: ignore[attr-defined]


class Links(RuleBasedStateMachine):
    """Whatever happens in whatever order: each link is idle, lent, or ended, and none is two of these."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Link] = []
        self.lent: list[Lent] = []
        self.closed = False
        self.pool = LinkPool(self._make)

    def _make(self) -> Link:
        self.made.append(Link())
        return self.made[-1]

    @rule()
    def lend(self) -> None:
        self.lent.append(self.pool.lend())

    @precondition(lambda self: self.lent)
    @rule(data=st.data(), exc=st.sampled_from([None, failure(FailureKind.FAULT), MessageTooLarge(), ValueError()]))
    def end(self, data: st.DataObject, exc: Exception | None) -> None:
        lent = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        lent.__exit__(exc and type(exc), exc, None)

    @rule()
    def drop_idle(self) -> None:
        self.pool.drop_idle()

    @rule()
    def close(self) -> None:
        self.pool.close()
        self.closed = True

    @invariant()
    def no_link_is_lost(self) -> None:
        idle = [lent.sender for lent in self.pool._idle]
        lent = [lent.sender for lent in self.lent]
        ended = [link for link in self.made if link.ended]
        assert len(idle) + len(lent) + len(ended) == len(self.made)
        assert {id(link) for link in (*idle, *lent, *ended)} == {id(link) for link in self.made}
        assert not (self.closed and idle)


TestLinks = Links.TestCase
TestLinks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# -- no send loses a link -----------------------------------------------------------------------------------------


class Watched:
    """Two namespaces of which every connected link is known."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.senders: list[ScriptedSender] = []
        init = ScriptedSender.__init__

        def remember(sender: ScriptedSender, namespace: ScriptedBroker) -> None:
            init(sender, namespace)
            self.senders.append(sender)

        monkeypatch.setattr(ScriptedSender, "__init__", remember)
        self.world = World(failover_interval=3600)
        self.world.pairing.open()

    def connected(self) -> int:
        return sum(not sender.fresh for sender in self.senders)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Watched(monkeypatch)
    yield made
    made.world.close()


def declare_while_the_primary_fails(watched: Watched) -> None:
    watched.world.primary.always = watched.world.primary.failure(FailureKind.FAULT)
    watched.world.pairing.declare("queue_declare", {"queue": "orders", "durable": True})


def send_what_is_too_large_for_the_backlog(watched: Watched) -> None:
    watched.world.primary.always = watched.world.primary.failure(FailureKind.FAULT)
    watched.world.secondary.max_message_size = 10
    with pytest.raises(MessageTooLarge):
        watched.world.send()
    watched.world.secondary.max_message_size = None


@pytest.mark.parametrize("go_wrong", [declare_while_the_primary_fails, send_what_is_too_large_for_the_backlog])
def test_what_goes_wrong_again_and_again_leaves_no_link_behind(
    watched: Watched, go_wrong: Callable[[Watched], None]
) -> None:
    for _ in range(20):
        watched.world.primary.always = None
        watched.world.send()
        go_wrong(watched)
        assert watched.connected() <= 2, "one to each side"
    watched.world.close()
    assert watched.connected() == 0


def test_a_send_that_is_under_way_when_the_pairing_closes_leaves_no_link_behind(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_under_way, may_end = threading.Event(), threading.Event()
    take = ScriptedBroker.take

    def slow(namespace: ScriptedBroker, message: Message) -> None:
        is_under_way.set()
        assert may_end.wait(20)
        take(namespace, message)

    monkeypatch.setattr(ScriptedBroker, "take", slow)
    sending = threading.Thread(target=watched.world.send)
    sending.start()
    assert is_under_way.wait(20)
    watched.world.close()
    may_end.set()
    sending.join(20)
    assert len(watched.world.primary.stored) == 1
    assert watched.connected() == 0


# -- trying again -------------------------------------------------------------------------------------------------


class Attempt:
    """Fails as it is told to, and then succeeds."""

    def __init__(self, *failures: NamespaceFailure) -> None:
        self.failures, self.made = list(failures), 0

    def __call__(self, deadline: Deadline | None = None) -> str:
        self.made += 1
        if self.failures:
            raise self.failures.pop(0)
        return "stored"

    def as_value(self) -> NamespaceFailure | None:
        self.made += 1
        return self.failures.pop(0) if self.failures else None


def on_a_link(pool: LinkPool, attempt: Attempt) -> str:
    with pool.lend() as lent:
        return on_a_living_link(lent, attempt, Deadline(1, ManualClock()))


def test_a_link_that_may_only_have_been_dead_is_tried_once_more_and_its_like_are_dropped(pool: LinkPool) -> None:
    others = idle(pool, 3)[:2]
    attempt = Attempt(failure(FailureKind.UNREACHABLE))
    assert on_a_link(pool, attempt) == "stored"
    assert attempt.made == 2
    assert [link.ended for link in others] == ["dropped"] * 2
    assert len(pool) == 1


def test_a_link_that_fails_again_is_not_tried_a_third_time(pool: LinkPool) -> None:
    idle(pool, 1)
    attempt = Attempt(*[failure(FailureKind.UNREACHABLE)] * 3)
    with pytest.raises(NamespaceFailure):
        on_a_link(pool, attempt)
    assert attempt.made == 2


@pytest.mark.parametrize(
    "found", [failure(FailureKind.UNREACHABLE, maybe_stored=True), failure(FailureKind.TIMEOUT)], ids=str
)
def test_what_the_broker_may_have_seen_is_not_tried_again(pool: LinkPool, found: NamespaceFailure) -> None:
    idle(pool, 1)
    attempt = Attempt(found)
    with pytest.raises(NamespaceFailure):
        on_a_link(pool, attempt)
    assert attempt.made == 1


def test_a_fresh_link_cannot_have_died_in_its_sleep() -> None:
    attempt = Attempt(failure(FailureKind.UNREACHABLE))
    with pytest.raises(NamespaceFailure):
        on_a_link(LinkPool(lambda: ScriptedSender(ScriptedBroker("primary"))), attempt)
    assert attempt.made == 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def call(clock: ManualClock) -> Call:
    return Call(Message("{}", "", "orders"), clock(), Deadline(20, clock))


def test_a_busy_side_gets_so_many_waits_of_a_call_which_take_nothing_of_its_time(
    clock: ManualClock, call: Call
) -> None:
    busy = failure(FailureKind.THROTTLED)
    told: list[tuple[NamespaceFailure, float]] = []
    patience = Patience("primary", 10, clock.sleep, lambda *wait: told.append(wait))
    part, started = call.deadline.part(5), clock()
    attempt = Attempt(*[busy] * 10)
    assert patience.outwait(busy, attempt.as_value, call, part) is busy
    assert attempt.made == THROTTLE_WAITS
    assert told == [(busy, 10)] * THROTTLE_WAITS
    assert clock() - started == 10 * THROTTLE_WAITS
    assert (part.left, call.deadline.left) == (5, 20)
    assert patience.outwait(busy, attempt.as_value, call, part) is busy
    assert attempt.made == THROTTLE_WAITS, "the call has waited enough for this side"
    Patience("secondary", 10, clock.sleep).outwait(busy, attempt.as_value, call, part)
    assert attempt.made == 2 * THROTTLE_WAITS


def test_a_busy_side_that_says_how_long_gets_as_much_time_in_shorter_waits(clock: ManualClock, call: Call) -> None:
    busy = failure(FailureKind.THROTTLED, wait=4.0)
    started, attempt = clock(), Attempt(*[busy] * 20)
    assert Patience("primary", 10, clock.sleep).outwait(busy, attempt.as_value, call, call.deadline) is busy
    assert (attempt.made, clock() - started) == (7, 28)


@pytest.mark.parametrize(("seconds", "asked", "waited"), [(10, 60.0, 30), (0, 60.0, 0), (0, None, 0), (0.1, None, 0.3)])
def test_a_side_that_asks_for_more_gets_no_more_than_any_other(
    clock: ManualClock, call: Call, seconds: float, asked: float | None, waited: float
) -> None:
    busy = failure(FailureKind.THROTTLED, wait=asked)
    started, attempt = clock(), Attempt(*[busy] * 20)
    assert Patience("primary", seconds, clock.sleep).outwait(busy, attempt.as_value, call, call.deadline) is busy
    assert (attempt.made, clock() - started) == (THROTTLE_WAITS, pytest.approx(waited))


def test_what_is_not_busy_is_not_waited_for(clock: ManualClock, call: Call) -> None:
    started, attempt, patience = clock(), Attempt(), Patience("primary", 10, clock.sleep)
    other = failure(FailureKind.FAULT)
    assert patience.outwait(other, attempt.as_value, call, call.deadline) is other
    assert patience.outwait(None, attempt.as_value, call, call.deadline) is None
    assert (attempt.made, clock()) == (0, started)
    assert patience.outwait(failure(FailureKind.THROTTLED), attempt.as_value, call, call.deadline) is None
    assert (attempt.made, clock()) == (1, started + 10)
