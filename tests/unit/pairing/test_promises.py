"""The promises of :meth:`Pairing.send`, kept in any weather.

Several senders at once, two namespaces whose behaviour changes with time, and a clock that moves only when somebody
waits. Senders are greenlets: one runs until it waits, and then the one whose wait ends first.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from kombu_paired.brokers.roles import Sender
from kombu_paired.declarations import Declaration, Entity
from kombu_paired.errors import BacklogUnavailable, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import MAYBE_DUPLICATE, Message
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing
from kombu_paired.testing import ScriptedBroker

greenlet = pytest.importorskip("greenlet")

SEND_TIMEOUT = 2.0
THROTTLE_WAIT = 1.0
#: Seconds for what a working namespace does; not on top of any budget but for rounding.
QUICK = 0.005
GRACE = 0.1


class Stage:
    """Time, and whose turn it is."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._turn = 0
        self._hub = greenlet.getcurrent()
        self._asleep: list[tuple[float, int, Any]] = []
        self._waiting: list[tuple[float, int, Any]] = []
        self.naps: Counter[Any] = Counter()

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self._turn += 1
        self._asleep.append((self.now + seconds, self._turn, greenlet.getcurrent()))
        self._hub.switch()

    def nap(self, seconds: float) -> None:
        """A wait that a busy namespace asked for."""
        self.naps[greenlet.getcurrent()] += seconds
        self.sleep(seconds)

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Wait until something happened, whatever it is, at most so long."""
        self._turn += 1
        self._waiting.append((self.now + seconds, self._turn, greenlet.getcurrent()))
        condition.release()
        self._hub.switch()
        condition.acquire()

    def play(self, actors: Sequence[Callable[[], None]]) -> None:
        for actor in actors:
            self._turn += 1
            self._asleep.append((self.now, self._turn, greenlet.greenlet(actor)))
        while self._asleep or self._waiting:
            queue = min((each for each in (self._asleep, self._waiting) if each), key=min)
            chosen = min(queue)
            queue.remove(chosen)
            self.now = max(self.now, chosen[0])
            chosen[2].switch()
            if queue is self._asleep:
                woken, self._waiting = self._waiting, []
                for _, _, each in sorted(woken):
                    each.switch()


@dataclass(frozen=True)
class Weather:
    """How a namespace behaves for a while."""

    seconds: float
    what: str
    stores: bool = False  # what it does not confirm


WHAT = ["ok", "ok", "ok", "refused", "reset", "silent", "unsent", "fault", "alarm", "throttled", "slow"]
weathers = st.lists(
    st.builds(Weather, st.sampled_from([0.3, 1.0, 2.5, 5.0, 20.0]), st.sampled_from(WHAT), st.booleans()), max_size=6
)


class WeatherNamespace(ScriptedBroker):
    def __init__(self, side: str, stage: Stage, forecast: Sequence[Weather]) -> None:
        super().__init__(side)
        self.stage = stage
        self.changes: list[tuple[float, Weather]] = []
        begins = stage.now
        for weather in forecast:
            self.changes.append((begins, weather))
            begins += weather.seconds
        self.changes.append((begins, Weather(1e9, "ok")))
        self.copies: list[Message] = []
        self.doubtful: set[str] = set()

    @property
    def weather(self) -> Weather:
        return [weather for begins, weather in self.changes if begins <= self.stage.now][-1]

    def was_well(self, since: float) -> bool:
        """All the time from then until now."""
        states = [(begins, weather.what) for begins, weather in self.changes if begins <= self.stage.now]
        before = [state for state in states if state[0] <= since][-1:]
        return all(what == "ok" for begins, what in before + [state for state in states if state[0] > since])

    def sender(self) -> Sender:
        return WeatherSender(self)

    def probe(self, entity: Entity | None, timeout: float) -> None:
        WeatherSender(self).attempt(None, timeout)

    def ensure_backlog_queues(self, names: Sequence[str], create: bool, timeout: float) -> list[str]:
        WeatherSender(self).attempt(None, timeout)
        return list(names)


class WeatherSender(Sender):
    def __init__(self, namespace: WeatherNamespace) -> None:
        super().__init__()
        self.namespace, self.connected = namespace, False

    @property
    def is_fresh(self) -> bool:
        return not self.connected

    def send(self, message: Message, timeout: float) -> None:
        self.attempt(message, timeout)

    def send_batch(self, messages: Sequence[Message], timeout: float) -> list[NamespaceFailure | None]:
        raise NotImplementedError

    def declare(self, declarations: Iterable[Declaration], timeout: float) -> Any:
        raise NotImplementedError

    def drop(self) -> None:
        self.connected = False

    close = drop

    def attempt(self, message: Message | None, timeout: float) -> None:
        """Behave as the weather is when it begins."""
        namespace, weather = self.namespace, self.namespace.weather
        was_connected, self.connected = self.connected, weather.what in ("ok", "fault", "throttled", "slow")
        sleep = namespace.stage.sleep
        failing = getattr(self, f"_{weather.what}")
        kind, seconds, facts = failing(was_connected, timeout)
        sleep(min(seconds, timeout))
        is_late = kind is None and seconds > timeout
        if is_late:
            kind, facts, self.connected = FailureKind.TIMEOUT, {"maybe_stored": True}, False
        if message is not None and (kind is None or is_late or (facts.get("maybe_stored") and weather.stores)):
            namespace.copies.append(message)
        if message is not None and facts.get("maybe_stored"):
            namespace.doubtful.add(str(message.message_id))
        if kind is not None:
            raise namespace.failure(kind, **facts)

    def _ok(self, connected: bool, timeout: float) -> Any:
        return None, QUICK, {}

    def _slow(self, connected: bool, timeout: float) -> Any:
        return None, 1.2, {}

    def _refused(self, connected: bool, timeout: float) -> Any:
        return FailureKind.UNREACHABLE, 0.0, {"whole_namespace": not connected}

    def _reset(self, connected: bool, timeout: float) -> Any:
        facts = {"maybe_stored": True} if connected else {"whole_namespace": True}
        return FailureKind.UNREACHABLE, QUICK, facts

    def _silent(self, connected: bool, timeout: float) -> Any:
        if connected:
            return FailureKind.TIMEOUT, timeout, {"maybe_stored": True}
        return FailureKind.UNREACHABLE, SEND_TIMEOUT / 2, {"whole_namespace": True}

    def _unsent(self, connected: bool, timeout: float) -> Any:
        return FailureKind.TIMEOUT, timeout, {}

    def _fault(self, connected: bool, timeout: float) -> Any:
        return FailureKind.FAULT, QUICK, {}

    def _alarm(self, connected: bool, timeout: float) -> Any:
        return FailureKind.FAULT, 1.0, {"whole_namespace": True, "maybe_stored": connected}

    def _throttled(self, connected: bool, timeout: float) -> Any:
        return FailureKind.THROTTLED, QUICK, {}


@dataclass
class Sent:
    """One call, as its caller saw it."""

    number: str
    took: float
    naps: float
    error: Exception | None
    well: list[str] = field(default_factory=list)


class Play:
    def __init__(self, primary: Sequence[Weather], secondary: Sequence[Weather], **options: Any) -> None:
        self.stage = Stage()
        self.primary = WeatherNamespace("primary", self.stage, primary)
        self.secondary = WeatherNamespace("secondary", self.stage, secondary)
        self.pairing = Pairing(
            "contoso",
            PairedNamespaceOptions(
                secondary="scripted://secondary",
                backlog_queue_count=2,
                send_timeout=SEND_TIMEOUT,
                throttle_wait=THROTTLE_WAIT,
                ping_interval=1800,
                **options,
            ),
            self.primary,
            self.secondary,
            clock=self.stage.clock,
            wall_clock=self.stage.clock,
            sleep=self.stage.nap,
            wait=self.stage.wait,
        )
        self.calls: list[Sent] = []

    def sender(self, name: int, pauses: Sequence[float]) -> Callable[[], None]:
        def act() -> None:
            for count, pause in enumerate(pauses):
                if pause:
                    self.stage.sleep(pause)
                self._send(f"{name}-{count}", f"queue-{name % 2}")

        return act

    def _send(self, number: str, queue: str) -> None:
        stage, me = self.stage, greenlet.getcurrent()
        started, naps, error = stage.now, stage.naps[me], None
        try:
            self.pairing.send(Message("{}", "", queue, headers={"id": number}, properties={"delivery_mode": 2}))
        except Exception as exc:
            error = exc
        took = stage.now - started
        # A try that began before a side came back may last for send_timeout, and the other side's last for the rest.
        window = min(took, 1.5 * SEND_TIMEOUT)
        well = [side.side for side in (self.primary, self.secondary) if side.was_well(stage.now - window)]
        self.calls.append(Sent(number, took, stage.naps[me] - naps, error, well))

    def run(self, pauses: Sequence[Sequence[float]]) -> None:
        self.stage.play([self.sender(name, each) for name, each in enumerate(pauses)])
        self.pairing.close()

    def check(self) -> None:
        copies = defaultdict(list)
        for message in (*self.primary.copies, *self.secondary.copies):
            copies[str(message.message_id)].append(MAYBE_DUPLICATE in message.headers)
        doubtful = self.primary.doubtful | self.secondary.doubtful
        for call in self.calls:
            assert call.took <= 2 * SEND_TIMEOUT + call.naps + GRACE, ("past its budget", call)
            if call.error is None:
                assert copies[call.number], ("lost", call)
            else:
                event(type(call.error).__name__)
                assert isinstance(call.error, BacklogUnavailable), call
                assert not call.well, ("raised while a side was well", call)
        for number, marks in copies.items():
            assert len(marks) == 1 or any(marks), ("stored twice and not marked", number)
            assert number in doubtful or not any(marks), ("marked, and never in doubt", number)


pauses = st.lists(
    st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0, 2.1, 4.0, 15.0]), min_size=1, max_size=5), min_size=1, max_size=4
)


@given(weathers, weathers, pauses, st.sampled_from([0, 3, 60]))
@example(  # a last try of the primary left no time for the secondary, which had come back
    [Weather(5.0, "alarm"), Weather(0.3, "throttled"), Weather(1.0, "silent")],
    [Weather(0.6, "ok"), Weather(2.5, "throttled"), Weather(1.0, "silent")],
    [[0.0]],
    3,
)
@example(  # the primary had come back while the call waited for a secondary that was busy
    [Weather(0.3, "refused"), Weather(0.6, "ok"), Weather(1.3, "silent")],
    [Weather(0.3, "silent"), Weather(1.0, "ok"), Weather(1.0, "refused"), Weather(5.0, "throttled")],
    [[0.0]],
    0,
)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_in_any_weather_the_promises_hold(
    primary: list[Weather], secondary: list[Weather], pauses: list[list[float]], failover_interval: float
) -> None:
    play = Play(primary, secondary, failover_interval=failover_interval)
    play.run(pauses)
    play.check()
