"""A result backend that keeps in the backlog what its server cannot store now, and stores it when that is back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from celery._state import pop_current_task, push_current_task
from celery.backends.base import Backend
from kombu.exceptions import EncodeError

from kombu_paired.contrib.kept_results import KeptResult, facts_of, is_news
from kombu_paired.contrib.result_backlog import NOT_KEPT, ResultBacklog, result_backlog
from kombu_paired.contrib.result_server import ResultServer
from kombu_paired.secrets import without_secrets
from kombu_paired.transport import pairing_of

__all__ = ("Keeping",)


class Keeping(Backend):  # type: ignore[misc]
    """Mixed in before a backend's own class, below its guard."""

    plain: type[Backend]
    result_server: ResultServer
    _within: Any
    #: Tasks whose parts, stored late, were broken off by what looked like an outage.
    _broken_off: set[str]

    def means_outage(self, exc: BaseException) -> bool:
        raise NotImplementedError

    def look(self) -> None:
        raise NotImplementedError

    # -- keeping ------------------------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        """What tells it from other backends that share a broker: its class and where it is, without secrets."""
        url = without_secrets(str(getattr(self, "url", None) or ""))
        prefix = (self.app.conf.get("result_backend_transport_options") or {}).get("global_keyprefix", "")
        return f"{self.plain.__module__}:{self.plain.__qualname__} {url} {prefix}"

    @property
    def result_backlog(self) -> ResultBacklog:
        """Where this process keeps what cannot be stored."""
        with self.app.connection_for_write() as connection:  # which nobody connects
            return result_backlog(pairing_of(connection), self.place)

    def state_to_keep(self, task_id: str, result: Any, state: str, traceback: Any, request: Any) -> KeptResult:
        """A state that could not be stored."""
        kept = KeptResult(
            task_id,
            state,
            self.encode_result(result, state),
            traceback,
            facts_of(request, self, chord=False),
            at=round(time.time(), 6),  # as exactly as a date has it
        )
        self._within.kept = kept
        return kept

    def part_to_keep(self, request: Any, state: str, result: Any) -> KeptResult:
        """A part of a chord that could not be counted. If its state was kept just before, it is to be stored first."""
        facts = facts_of(request, self, chord=True)
        before: KeptResult | None = self._within.kept
        if before is not None and (before.task_id, before.state) == (request.id, state):
            return replace(before, facts=facts, is_part=True)
        encoded, at = self.encode_result(result, state), round(time.time(), 6)
        return KeptResult(request.id, state, encoded, None, facts, at, is_part=True, has_state=False)

    def keep(self, kept: KeptResult, what: str) -> bool:
        """Put it into the backlog; False if that is not possible now.

        Raises:
            kombu.exceptions.EncodeError: the serializer cannot encode it, so that it cannot be stored, either.
        """
        backlog, server = self.result_backlog, self.result_server
        try:
            backlog.keep(kept.as_message(self), server.reason)
        except EncodeError as exc:
            if not kept.is_part:
                raise
            server.not_kept(what, exc)  # the signature of the body, which is a message and no result
            return False
        except NOT_KEPT as exc:
            server.not_kept(what, exc)
            return False
        server.kept(backlog.hang_up)
        return True

    # -- storing what was kept ----------------------------------------------------------------------------------

    def store_kept(self, kept: KeptResult) -> bool:
        """Store what was kept, unless the server has something later. Doing it twice is as doing it once.

        Returns:
            False if it has to be done again after a while.

        Raises:
            Exception: what the backend raises; :meth:`means_outage` tells whether its server is away.
        """
        with self._late(kept):
            if kept.is_over:
                self.end_chord(kept.facts["group"])
                return True
            request = kept.request(self.app)
            if kept.has_state and self._is_news(kept):
                self.store_result(kept.task_id, kept.result, kept.state, kept.traceback, request)
            if not kept.is_part:
                return True
            with self._as_task(request):
                return self.count_part(request, kept.state, kept.result)

    def count_part(self, request: Any, state: str, result: Any) -> bool:
        """Count a part of a chord, at most once; False if it has to be done again after a while."""
        self.on_chord_part_return(request, state, result)
        return True

    def end_chord(self, group_id: str) -> None:
        """The body of a chord was sent: nobody is to send it again."""
        raise NotImplementedError

    def _is_news(self, kept: KeptResult) -> bool:
        look = getattr(self, "_get_task_meta_for", None)  # rpc:// keeps nothing that it could tell
        return look is None or self.is_news(kept, look(kept.task_id))

    def is_news(self, kept: KeptResult, there: Mapping[str, Any]) -> bool:
        """Whether a state that was kept is later than the one that the server has."""
        return is_news(kept, there, self.app.timezone)

    @contextmanager
    def _late(self, kept: KeptResult) -> Iterator[None]:
        within = self._within
        within.a_call, within.late = True, kept
        try:
            yield
        finally:
            within.a_call, within.late, within.spares = False, None, False

    @contextmanager
    def _as_task(self, request: Any) -> Iterator[None]:
        """The body of a chord that is sent here is a child of the task whose part was the last."""
        task = self.app.tasks.get(request.task)
        if task is None:
            yield
            return
        push_current_task(task)
        task.request_stack.push(request)
        try:
            yield
        finally:
            task.request_stack.pop()
            pop_current_task()

    def _get_result_meta(self, *args: Any, **kwargs: Any) -> Any:
        """It ended when it ended, and not when it is stored."""
        meta, late = super()._get_result_meta(*args, **kwargs), self._within.late
        done = meta.get("date_done")
        if late is not None and done is not None:
            moment = datetime.fromtimestamp(late.at, timezone.utc).astimezone(self.app.timezone)
            meta["date_done"] = moment.isoformat() if isinstance(done, str) else moment
        return meta

    def chord_error_from_stack(self, callback: Any, exc: Any = None) -> Any:
        """A chord has not failed because the server that counts its parts is away: the part is counted again later.

        It may be the error of a task in the chord that looks like an outage. So it is not counted again for ever: the
        second time that it is stored late, the server is asked.
        """
        reason = sys.exc_info()[1]
        is_joining = not str(exc).startswith("Callback error")  # Celery's words for the body, which could not be sent
        if self._within.a_call and is_joining and reason is not None and self.means_outage(reason):
            late = self._within.late
            self._within.spares = True
            if late is None or late.task_id not in self._broken_off:
                self._broken_off |= {late.task_id} if late is not None else set()
                raise reason
            self.look()
            self._within.spares = False
            self._broken_off.discard(late.task_id)
        return super().chord_error_from_stack(callback, exc)
