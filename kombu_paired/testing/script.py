"""What a scripted broker answers, and what it was asked."""

from __future__ import annotations

from typing import Any, NamedTuple

from kombu_paired.brokers.roles import Role
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.testing.clocks import Clock

__all__ = ("AnswerLost", "Asked", "Script", "ScriptedError", "ScriptedRefusal", "kind_of")


class ScriptedError(ConnectionError):
    """What the driver of a scripted broker raises when the broker fails.

    Attributes:
        kind: what kind of failure it is.
    """

    def __init__(self, text: str, kind: FailureKind) -> None:
        super().__init__(text)
        self.kind = kind


class ScriptedRefusal(Exception):
    """What it raises when the broker works, and does not want this message or has no such entity.

    Attributes:
        kind: what kind of failure it is.
    """

    def __init__(self, text: str, kind: FailureKind) -> None:
        super().__init__(text)
        self.kind = kind


class AnswerLost(NamespaceFailure):
    """The broker does what it is asked, and nobody hears of it."""


def kind_of(exc: BaseException) -> FailureKind | None:
    """The kind of a scripted error; a function for the option ``classify_failure``."""
    return exc.kind if isinstance(exc, ScriptedError | ScriptedRefusal) else None


class Asked(NamedTuple):
    """One thing that a broker was asked.

    Attributes:
        side: of the broker.
        what: ``connect``, ``declare``, ``send``, ``probe``, ``receive``, ``complete``, ``abandon``, ``dead letter``, …
        about: the queue, the message id or the number that it was about.
    """

    side: str
    what: str
    about: str


class Script(Role):
    """The side of a scripted broker that a test speaks to.

    Arguments:
        side: what it is in the pairing, ``primary`` or ``secondary``.
        clock: what its answers take time on.
        log: where to write what it is asked.

    Attributes:
        script: answers to the next sends, in turn; None to take the message.
        always: the answer to everything else that is asked; None while it works.
        cost: seconds until a failure is found out.
    """

    def __init__(self, side: str, clock: Clock, log: list[Asked]) -> None:
        self.side = side
        self.clock = clock
        self.log = log
        self.script: list[NamespaceFailure | None] = []
        self.always: NamespaceFailure | None = None
        self.cost = 0.0

    # -- the script ---------------------------------------------------------------------------------------------

    def failure(self, kind: FailureKind, **facts: Any) -> NamespaceFailure:
        """A failure of this broker, for :attr:`script` or :attr:`always`.

        Arguments:
            kind: of the failure.
            facts: as of :class:`~kombu_paired.errors.NamespaceFailure`.
        """
        return NamespaceFailure(kind, self.label, self._error(kind), **facts)

    def _error(self, kind: FailureKind) -> Exception:
        refuses = kind in (FailureKind.REJECTED, FailureKind.MISSING)
        return (ScriptedRefusal if refuses else ScriptedError)(f"{self.side} {kind.value}", kind)

    def fail(self, *kinds: FailureKind, **facts: Any) -> None:
        """The next sends fail so, in turn."""
        self.script += [self.failure(kind, **facts) for kind in kinds]

    def lose_answer(self) -> None:
        """The next message is taken, and its sender hears nothing of it."""
        kind = FailureKind.TIMEOUT
        self.script.append(AnswerLost(kind, self.label, self._error(kind), maybe_stored=True))

    def go_away(self) -> None:
        """From now on nobody listens."""
        self.always = self.failure(FailureKind.UNREACHABLE, whole_namespace=True)

    def be_busy(self) -> None:
        """From now on it says that it is."""
        self.always = self.failure(FailureKind.THROTTLED)

    def refuse(self) -> None:
        """From now on it refuses the credentials."""
        self.always = self.failure(FailureKind.UNAUTHORIZED)

    def come_back(self) -> None:
        """From now on it works, whatever was said before."""
        self.always = None
        self.script.clear()

    # -- what it was asked --------------------------------------------------------------------------------------

    def asked_for(self, what: str) -> list[str]:
        """What was asked of it in this way, in turn."""
        return [each.about for each in self.log if each.side == self.side and each.what == what]

    @property
    def attempts(self) -> int:
        """How many sends it was asked for."""
        return len(self.asked_for("send"))

    @property
    def probes(self) -> int:
        """How often it was asked whether it works."""
        return len(self.asked_for("probe"))

    def note(self, what: str, about: str = "") -> None:
        """Write into the log what it is asked."""
        self.log.append(Asked(self.side, what, about))

    def answer(self, what: str, about: str = "", timeout: float | None = None) -> None:
        """Note what it is asked, and fail if it fails always.

        Raises:
            NamespaceFailure: what :attr:`always` is.
        """
        self.note(what, about)
        if self.always is not None:
            self.clock.sleep(self.cost if timeout is None else min(self.cost, timeout))
            raise self.always

    def let_in(self) -> None:
        """Accept a connection.

        Raises:
            NamespaceFailure: it is away, or refuses the credentials. One that is busy or faulty accepts it.
        """
        always = self.always
        if (
            always is None
            or always.whole_namespace
            or always.kind in (FailureKind.UNREACHABLE, FailureKind.UNAUTHORIZED)
        ):
            self.answer("connect")
        else:
            self.note("connect")

    def _next_answer(self) -> NamespaceFailure | None:
        """That to a send: what the script says, and when it says nothing, what :attr:`always` is."""
        return self.script.pop(0) if self.script else self.always
