"""The pump of a pairing, and the watch, which probes a primary that is away and lets no half of a pairing live on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.brokers.roles import Role
from kombu_paired.brokers.turn import Turn
from kombu_paired.errors import NamespaceFailure
from kombu_paired.pairing import Pairing
from kombu_paired.pairing.doubts import Doubts
from kombu_paired.syphon.destinations import Destinations
from kombu_paired.syphon.pace import Pace
from kombu_paired.syphon.patience import about, patiently
from kombu_paired.syphon.pump import MessagePump
from kombu_paired.syphon.stand_ins import StandIns
from kombu_paired.syphon.standby import Standby
from kombu_paired.syphon.teller import Teller

__all__ = ("Syphon",)

#: Messages that a syphon keeps in mind as maybe delivered; beyond that it forgets the oldest.
MOST_DOUBTS = 100_000
#: Seconds between two looks at the namespaces' state.
WATCH_INTERVAL = 0.5
#: Seconds from the failure of the primary to the first probe of it, on average.
FIRST_PROBE = 1.0


class Syphon:
    """The pump of one pairing, and a watch over its two namespaces: two threads.

    Arguments:
        pairing: whose backlog to move.
        poll: seconds of one long poll; the pairing's ``syphon_poll`` by default.
        waits_for_turn: stand by while another process of this machine brings home the same backlog, where only the
            processes of one machine can reach it.
    """

    def __init__(self, pairing: Pairing, *, poll: float | None = None, waits_for_turn: bool = False) -> None:
        self.pairing = pairing
        self.poll = poll or pairing.options.syphon_poll
        self.teller = Teller(pairing)
        self.destinations = Destinations()
        self.pace = Pace(pairing.options.syphon_rate, since_new=pairing.since_last_send)
        self.doubts = Doubts(MOST_DOUBTS)
        self.stopping = threading.Event()
        self._primary_works = threading.Event()
        self._primary_was_lost = False
        self._is_isolated = False
        self._way = threading.Event()  # set while there is somewhere to move messages to
        self._turn = pairing.secondary.turn(pairing.name)
        self._waits_for_turn = waits_for_turn
        self._threads: list[threading.Thread] = []
        self._beginning = threading.Lock()
        self._pump: MessagePump | None = None
        self._stand_ins: StandIns | None = None

    @property
    def is_running(self) -> bool:
        return bool(self._threads) and not self.stopping.is_set()

    @property
    def lives(self) -> bool:
        """Its threads do what they should; one that was stopped has nothing to do."""
        return self.stopping.is_set() or all(each.is_alive() for each in self._threads)

    def start(self) -> None:
        """Start the pump, which waits until the primary answers a probe; or wait for the turn to do so."""
        if self._threads:
            return
        self.pairing.when_closing(self.stop)
        if self._turn is not None and self._waits_for_turn:
            self._start_thread("standby", Standby(self._turn, self._begin, self.stopping, self.teller).run)
        else:
            self._begin()

    def _begin(self) -> None:
        with self._beginning:
            if not self.stopping.is_set():
                self._start_pump()

    def _start_pump(self) -> None:
        queues = self.pairing.backlog_queue_names
        self._pump = MessagePump(self, queues)
        if self.pairing.stand_in is not None:
            self._stand_ins = StandIns(self.pairing, self._pump, self.teller)
            self.pairing.stand_in.when_changed(self._find_way)
            self._find_way()
        self._start_thread("watch", self._watch)
        self._start_thread("pump", self._pump.run)
        self.teller.started(len(queues))

    def _start_thread(self, label: str, target: Callable[[], None]) -> None:
        name = f"kombu-paired-syphon-{self.pairing.name}-{label}"
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self, timeout: float = 1.5) -> None:
        """Stop; a batch under way is finished if that takes no longer than ``timeout`` seconds."""
        if self.stopping.is_set():
            return
        with self._beginning:
            self.stopping.set()
        self._way.set()
        if self._pump is not None:
            self._pump.interrupt()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(max(deadline - time.monotonic(), 0))
        if self._turn is not None:
            with letting_go(f"the turn of {self.pairing.secondary.label}"):
                self._turn.leave()
        self.teller.stopped()

    @property
    def has_seen_empty(self) -> bool:
        """The pump's last poll found all of its queues empty, and nothing is in stand-in queues."""
        stand_ins_are_empty = self._stand_ins is None or self._stand_ins.are_empty
        return self._pump is not None and self._pump.found_empty and stand_ins_are_empty

    @property
    def last_received(self) -> float | None:
        """Seconds since the pump last received something; None if it never did."""
        return None if self._pump is None else self._pump.last_received

    def look_out(self, queue: str, owner: Callable[[], None]) -> bool:
        """Look, while the primary works, whether something is in a queue of the secondary that is somebody else's.

        He needs neither a thread nor a link for that.

        Arguments:
            owner: is called once, when something is there, or when nobody looks any more but that the syphon stops. It
                must not wait. The queue is left alone from then on, with all that is in it.

        Returns:
            False if nobody can look now.
        """
        pump = self._pump
        if pump is None or not pump.lookout.keep(queue, owner, lambda: self.primary_works and self.is_running):
            return False
        pump.interrupt()
        return True

    # -- for the pump -------------------------------------------------------------------------------------------

    def wait_for_a_way(self) -> bool:
        """Wait until the primary works, or workers stand in; False if the syphon stops before."""
        self._way.wait()
        return not self.stopping.is_set()

    @property
    def primary_works(self) -> bool:
        return self._primary_works.is_set()

    @property
    def has_a_way(self) -> bool:
        """Whether there is somewhere to move messages to, home or to workers that stand in."""
        return self._way.is_set()

    def primary_failed(self, failure: NamespaceFailure) -> None:
        """The pump found out that the primary as a whole does not work: it waits, and the watch probes."""
        if self._primary_works.is_set() and not self.stopping.is_set():
            self.teller.primary_failed(failure)
            self._stay_away()

    def leave_alone(self) -> None:
        """Every entity of the primary is isolated: the pump waits until that ends."""
        if self._primary_works.is_set() and not self.stopping.is_set():
            self.teller.isolated()
            self._is_isolated = True
            self._stay_away()

    def _stay_away(self) -> None:
        self._primary_was_lost = True
        self._primary_works.clear()
        self.pace.restart()
        if self._pump is not None:
            self._pump.lookout.end()
        if self._stand_ins is not None:
            self._stand_ins.leave()
        self._find_way()

    def primary_is_back(self) -> None:
        """It answers: all pumps go on."""
        self._primary_works.set()
        self._find_way()

    def _find_way(self) -> None:
        stand_in = self.pairing.stand_in
        if self._primary_works.is_set() or self.stopping.is_set() or (stand_in is not None and stand_in.is_active):
            self._way.set()
        else:
            self._way.clear()

    # -- the watch ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Probe a primary that is away; fault the pairing when one of its halves is gone for good."""
        half_open_since: float | None = None
        while not self.stopping.is_set():
            half_open_since = self._check_halves(half_open_since)
            if self._is_isolated:
                self._is_isolated = self.pairing.isolation.look_if_due().is_everything
            elif not self._primary_works.is_set():
                self._probe_primary()
            if self._stand_ins is not None:
                self._tend(self._stand_ins)
            if self._turn is not None:
                self._show_life(self._turn)
            self.stopping.wait(WATCH_INTERVAL)

    def _show_life(self, turn: Turn) -> None:
        """Who cannot, since its disk is away, is taken for dead, which does no harm."""
        with letting_go(f"a look at {self.pairing.secondary.label}"):
            turn.arrive()
            turn.show_life()

    def _tend(self, stand_ins: StandIns) -> None:
        try:
            if self.primary_works:
                stand_ins.tend()
        except Exception:
            self.teller.unexpected("stand-in queues")

    def _probe_primary(self) -> None:
        pairing = self.pairing

        def probe() -> None:
            if not pairing.primary.closed:
                pairing.primary.probe(None, pairing.options.send_timeout)

        if self._primary_was_lost and self.stopping.wait(about(FIRST_PROBE)):
            return
        try:
            patiently(probe, self.stopping, partial(self.teller.tries_again, "waits for the primary"))
        except NamespaceFailure:
            return  # stopping
        self.primary_is_back()

    def _check_halves(self, since: float | None) -> float | None:
        """No half-open pairing lives on (docs/architecture.md, rule 22)."""
        primary, secondary = self.pairing.primary, self.pairing.secondary
        if primary.closed == secondary.closed:
            return None
        since = since or time.monotonic()
        if time.monotonic() - since >= self.pairing.options.close_timeout:
            self._fault(primary if secondary.closed else secondary)
        return since

    def _fault(self, survivor: Role) -> None:
        survivor.close()
        self.teller.faulted(survivor.label)
        self.pairing.close()  # so that the next connection gets a whole one; this syphon stops with it
