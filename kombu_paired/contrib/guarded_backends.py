"""The guard of each of Celery's result backends: what it asks of its server by ways of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, ClassVar

from celery import Celery, states

from kombu_paired.brokers.drivers import DRIVERS
from kombu_paired.contrib.guarded_results import NOBODY, Guarded, to_be_kept_once
from kombu_paired.contrib.kept_results import KeptResult
from kombu_paired.contrib.result_consumers import RedisLinks, RpcLinks
from kombu_paired.contrib.result_server import ResultServer, server_for
from kombu_paired.errors import NamespaceFailure, ResultsUnavailable
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.secrets import without_secrets
from kombu_paired.transport import pairing_of

__all__ = ("guarded_class",)


#: Seconds for which Redis knows that a chord is over, as in Celery.
CHORD_IS_OVER = 300


class _KeyValue(Guarded):
    """Backends that read many at once."""

    def mget(self, keys: Any) -> Any:
        return self.ask(partial(super().mget, keys), f"a look at {len(keys)} results")

    def count_part(self, request: Any, state: str, result: Any) -> bool:
        """It is counted by incrementing: what was counted is remembered, as long as a result is."""
        key = self.get_key_for_chord(request.group, f".{request.id}.{request.group_index}")
        if not self.get(key):
            super().count_part(request, state, result)
            self.set(key, b"1")
        return True

    def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> Any:
        to_be_kept_once(body)
        return self._chord(partial(super()._apply_chord_incr, header_result_args, body, **kwargs), _named(body))


class _Waiting(Guarded):
    """Backends whose waiting is asking again and again."""

    def wait_for(self, task_id: str, timeout: float | None = None, **kwargs: Any) -> Any:
        with self._patiently(timeout):
            return super().wait_for(task_id, timeout=timeout, **kwargs)

    def get_many(self, task_ids: Any, timeout: float | None = None, **kwargs: Any) -> Iterator[Any]:
        answers = super().get_many(task_ids, timeout=timeout, **kwargs)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._patiently(None if until is None else until - time.monotonic()):
                try:
                    answer = next(answers)
                except StopIteration:
                    return
            yield answer

    @contextmanager
    def _patiently(self, timeout: float | None) -> Iterator[None]:
        self._within.waits = True
        try:
            with self.within(timeout):
                yield
        finally:
            self._within.waits = False

    def get_task_meta(self, task_id: str, cache: bool = True) -> Any:
        try:
            return super().get_task_meta(task_id, cache=cache)
        except ResultsUnavailable:
            if not self._within.waits:
                raise
            return {"status": states.PENDING, "result": None}

    def mget(self, keys: Any) -> Any:
        try:
            return super().mget(keys)
        except ResultsUnavailable:
            if not self._within.waits:
                raise
            return {}


class _Redis(_KeyValue):
    """Redis, with or without Sentinel."""

    def means_outage(self, exc: BaseException) -> bool:
        kind = DRIVERS["redis"].kind_of(exc)
        return kind.counts if kind is not None else super().means_outage(exc)

    def ensure(self, fun: Callable[..., Any], args: Any, **policy: Any) -> Any:
        """Celery tries for 20 s: here the guard does."""
        return fun(*args) if self._within.a_call else super().ensure(fun, args, **policy)

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> Any:
        name = _named(body)
        self._within.chord = (header_result_args[0], name)
        if self.result_server.is_away:  # before anything of it is sent
            return self._chord(lambda: None, name)
        return self._chord(partial(super().apply_chord, header_result_args, body, **kwargs), name)

    def set_chord_size(self, group_id: str, chord_size: int) -> Any:
        applied, name = self._within.chord
        chord = name if applied == group_id else f"of group {group_id}"
        return self._chord(partial(super().set_chord_size, group_id, chord_size), chord)

    def add_to_chord(self, chord_id: str, result: Any) -> Any:
        return self._chord(partial(super().add_to_chord, chord_id, result), f"of group {chord_id}")

    def _set(self, key: Any, value: Any, expires: int | None = None) -> None:
        """What was kept may be no news any more when it is written: nobody writes between this look and that."""
        late = self._within.late
        if late is None or key != self.get_key_for_task(late.task_id):
            super()._set(key, value, expires)
            return

        def write(pipe: Any) -> None:
            there = pipe.get(key)
            pipe.multi()
            if there is None or self.is_news(late, self.decode(there)):
                pipe.set(key, value, ex=(self.expires if expires is None else expires) or None)
                pipe.publish(key, value)

        self.client.transaction(write, key)

    def count_part(self, request: Any, state: str, result: Any) -> bool:
        """Redis counts a part once, by its name. One who died, or lost the server, may still have the right to send the
        body, for some seconds; then it is done again. It is also if that right ended after Redis had counted.
        """
        right = self.get_key_for_group(request.group, ".c")
        before = self.client.get(right)
        Guarded.count_part(self, request, state, result)
        after = self.client.get(right)
        return after == b"done" or (before is None and after is None)

    def _create_client(self, **params: Any) -> Any:
        client = super()._create_client(**params)
        delete = client.delete
        client.delete = lambda *names: 0 if self._within.spares else delete(*names)
        return client

    @property
    def _chord_cleanup_script(self) -> Callable[..., Any]:
        script = super()._chord_cleanup_script

        def clean_up(keys: Any, args: Any, client: Any) -> Any:
            """Celery takes an error here for the chord's, and the body would be sent again; it is on its way."""
            try:
                return script(keys=keys, args=args, client=client)
            except Exception as exc:
                if not self.means_outage(exc):
                    raise
                self.result_server.failed(exc, self.look)
            group_id = self._strip_prefix(keys[1]).removesuffix(".j")
            over = KeptResult(
                group_id, states.SUCCESS, facts={"group": group_id}, is_part=True, has_state=False, is_over=True
            )
            self.keep(over, f"the end of the chord {group_id}")
            return 1

        return clean_up

    def end_chord(self, group_id: str) -> None:
        with self.client.pipeline() as pipe:
            pipe.delete(*(self.get_key_for_group(group_id, each) for each in (".j", ".t", ".s", ".d")))
            pipe.set(self.get_key_for_group(group_id, ".c"), "done", ex=CHORD_IS_OVER)
            pipe.execute()

    def bounded_client(self) -> Any:
        """A client of its own, whose sockets do not wait longer than the server may take."""
        limits = {"socket_timeout": self.result_server.budget, "socket_connect_timeout": self.result_server.budget}
        known = {key: value for key, value in limits.items() if key in self.connparams}
        return self._create_client(**{**self.connparams, **known})

    def _look(self) -> Any:
        # A write: a server that is full, a replica or cannot save answers everything else.
        client = self.bounded_client()
        try:
            return client.set(self.get_key_for_task(NOBODY), b"", ex=1)
        finally:
            client.connection_pool.disconnect()


class _Rpc(Guarded):
    """``rpc://``: the results come through the broker, and the primary's outage is theirs."""

    #: The guard tries again.
    retry_policy: ClassVar = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}

    def _server_of(self, app: Celery, url: str | None) -> ResultServer:
        options = PairedNamespaceOptions.parse(app.conf.broker_transport_options)
        broker = app.conf.broker_write_url
        return server_for((self.plain, broker), f"rpc:// on {without_secrets(str(broker))}", options.send_timeout)

    def on_reply_declare(self, task_id: str) -> Any:
        """The network may have been cut, and the queue for the answer gone with its consumer: that will be back."""
        late = self._within.late
        if late is None:
            return super().on_reply_declare(task_id)
        name = late.facts["reply_to"]
        return [self.Queue(name, self.exchange, name, durable=True, auto_delete=True, expires=self.expires)]

    def means_outage(self, exc: BaseException) -> bool:
        if super().means_outage(exc):
            return True
        with self.app.connection_for_write() as connection:
            is_ours = isinstance(exc, connection.connection_errors + connection.channel_errors)
            return is_ours and pairing_of(connection).primary.kind_of(exc).counts

    def get_task_meta(self, task_id: str, *args: Any, **kwargs: Any) -> Any:
        self.oid  # of this thread, and not of the one that asks  # noqa: B018
        return self.ask(partial(super().get_task_meta, task_id, *args, **kwargs), f"a look at the state of {task_id}")

    def _look(self) -> Any:
        with self.app.connection_for_write() as connection:
            try:
                pairing_of(connection).primary.probe(None, self.result_server.budget)
            except NamespaceFailure as failure:
                if failure.kind.counts:
                    raise TimeoutError(str(failure)) from failure


class _Database(_Waiting):
    def _create_tables(self) -> None:
        """They are made with the first session, too."""
        with suppress(ResultsUnavailable):
            super()._create_tables()

    def _gave_up(self, exc: Exception) -> None:
        self.on_backend_retryable_error(exc)


def _named(body: Any) -> str:
    return f"with the body {getattr(body, 'task', body)}"


@cache
def guarded_class(plain: Any) -> type[Guarded]:
    """A backend's own class and the guard that fits it."""
    names = {f"{each.__module__}:{each.__name__}" for each in plain.__mro__}
    bases: tuple[type, ...] = (_Waiting,)
    members: dict[str, Any] = {"plain": plain, "__module__": plain.__module__, "__doc__": plain.__doc__}
    if "celery.backends.redis:RedisBackend" in names:
        bases = (_Redis,)
        members["ResultConsumer"] = type("ResultConsumer", (RedisLinks, plain.ResultConsumer), {})
    elif "celery.backends.rpc:RPCBackend" in names:
        bases = (_Rpc,)
        members["ResultConsumer"] = type("ResultConsumer", (RpcLinks, plain.ResultConsumer), {})
    elif "celery.backends.database:DatabaseBackend" in names:
        bases = (_Database,)
    elif "celery.backends.base:BaseKeyValueStoreBackend" in names:
        bases = (_Waiting, _KeyValue)
    members["runs_apart"] = any(_is_celerys_own(each) for each in plain.__mro__)
    return type(plain.__name__, (*bases, plain), members)


def _is_celerys_own(cls: type) -> bool:
    """A whole backend of Celery's, and not what backends of other packages are made from."""
    module = cls.__module__
    return module.startswith("celery.backends.") and module.rpartition(".")[2] not in ("asynchronous", "base")
