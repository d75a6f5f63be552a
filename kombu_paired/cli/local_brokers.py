"""Real brokers, and emulated ones, as child processes: for ``kombu-paired demo`` and for the tests.

A local broker is durable, listens on 127.0.0.1 alone, lives in a folder, and can be made to suffer
in the ways that brokers suffer: killed, frozen, filled. It keeps its port and its data through
:meth:`LocalBroker.restart`::

    with local_broker("redis") as broker:
        publish_to(broker.url)
        broker.kill()  # SIGKILL
        broker.restart()  # the same port, the same data

It dies with this process, however this process ends (on Linux also when it is killed).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import http.client
import json
import os
import queue
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal
from urllib.parse import quote

__all__ = [
    "BrokerFailed",
    "BrokerMissing",
    "LocalBroker",
    "LocalRabbitMQ",
    "LocalRedis",
    "LocalServiceBus",
    "free_port",
    "local_broker",
    "local_broker_missing",
    "process_state",
    "spawn",
    "stop_tree",
]

#: Named as in a URL.
Kind = Literal["redis", "amqp", "azureservicebus"]
HOST = "127.0.0.1"


class BrokerMissing(RuntimeError):
    """The broker's program is not installed."""


class BrokerFailed(RuntimeError):
    """The broker runs no more, or does not do what it was asked to do."""


# --- processes ------------------------------------------------------------------------------------


class _Spawner:
    """Starts children from one thread that lives as long as this process.

    Linux sends the parent-death signal when the *thread* that forked is gone, so a short-lived
    thread must not be the one that starts a broker.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def __call__(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._pid != os.getpid():  # first use, or first use after a fork
                self._pid = os.getpid()
                self._work = queue.SimpleQueue()
                threading.Thread(target=self._run, args=(self._work,), name="spawner", daemon=True).start()
        answer: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException] = queue.SimpleQueue()

        def work() -> None:
            try:
                answer.put(start())
            except BaseException as error:
                answer.put(error)

        self._work.put(work)
        result = answer.get()
        if isinstance(result, BaseException):
            raise result
        return result

    @staticmethod
    def _run(work: queue.SimpleQueue[Callable[[], None]]) -> None:
        while True:
            work.get()()


_spawner = _Spawner()


def _death_wish() -> Callable[[], None] | None:
    """What a child runs first, so that it is killed when its parent is gone."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def wish() -> None:
        prctl(1, signal.SIGKILL, 0, 0, 0)  # 1 is PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return wish


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own, its output appended to ``log``.

    It dies with this process.
    """
    wish = _death_wish()
    with log.open("ab") as output:
        return _spawner(
            lambda: subprocess.Popen(
                command,
                env=dict(env),
                cwd=cwd,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=wish,
            )
        )


def process_state(pid: int) -> str:
    """The kernel's letter for a process: R, S, T (stopped), Z (zombie) …; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
    except (ProcessLookupError, IndexError):
        return ""
    found = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True)
    return found.stdout.strip()[:1]


def _gone(pid: int) -> bool:
    return process_state(pid) in ("", "Z", "X")


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents first (none where there is neither /proc nor ps)."""
    children: dict[int, list[int]] = {}
    if Path("/proc/self/stat").exists():
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    stat = Path(f"/proc/{entry}/stat").read_text()
                    children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    else:
        table = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True)
        for line in table.stdout.splitlines():
            child, parent = line.split()
            children.setdefault(int(parent), []).append(int(child))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def stop_tree(process: subprocess.Popen[bytes], timeout: float = 10.0) -> None:
    """SIGKILL ``process`` and all that it started, and wait until the last one is gone."""
    if process.returncode is not None:
        return
    family = [process.pid, *descendants(process.pid)]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait(timeout)
    _until(lambda: all(map(_gone, family)), timeout, lambda: f"processes {family} do not die")


def _until(condition: Callable[[], bool], timeout: float, failure: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise BrokerFailed(failure())
        time.sleep(0.005)


#: Below the range from which the kernel takes ports for outgoing connections.
PORTS = range(20000, 32000)
_ports_given: set[int] = set()


def free_port() -> int:
    """A free loopback port, one of :data:`PORTS`, that nobody takes by accident while its owner is down."""
    for _ in range(1000):
        port = random.SystemRandom().choice(PORTS)
        if port in _ports_given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _ports_given.add(port)
        return port
    raise BrokerFailed(f"there is no free port between {PORTS.start} and {PORTS.stop} on {HOST}")


# --- brokers --------------------------------------------------------------------------------------


class LocalBroker(ABC):
    """A broker in a child process. See the module's docstring.

    ``folder`` is where it keeps its data; without one it makes a temporary folder, which
    :meth:`stop` removes.
    """

    kind: Kind
    boot_timeout: float

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, password: str | None = None) -> None:
        self._own_folder = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix=f"kombu-paired-{self.kind}-")).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._password = password

    def __repr__(self) -> str:
        return f"<{type(self).__name__} 127.0.0.1:{self.port} {self.state}>"

    @property
    @abstractmethod
    def url(self) -> str:
        """The kombu URL, with the credentials that work now."""

    @abstractmethod
    def _launch(self) -> subprocess.Popen[bytes]: ...

    @abstractmethod
    def _handshake(self, timeout: float) -> None:
        """Greet the broker as a client does; raise whatever comes of it."""

    @abstractmethod
    def fill(self) -> None:
        """Make the broker refuse, or hold, all that is published from now on."""

    @abstractmethod
    def unfill(self) -> None:
        """End what :meth:`fill` began."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all messages, queues and limits, as if new; the broker must be up."""

    @abstractmethod
    def set_password(self, user: str, password: str) -> None:
        """Change a user's password; ``url`` follows. Connections that are open stay so, where a broker can do that."""

    @property
    def log(self) -> Path:
        """Where the broker's output is."""
        return self.folder / "broker.log"

    @property
    def pid(self) -> int:
        """The broker's process, the one that :meth:`freeze` stops; 0 when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def state(self) -> str:
        """``running``, ``frozen`` or ``down``."""
        if not self.pid:
            return "down"
        return "frozen" if process_state(self.pid) == "T" else "running"

    def start(self) -> None:
        """Start the process. It is not ready yet: see :meth:`wait_ready`."""
        if self.pid:
            return
        _, program = type(self)._program()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._program_path = program
        self._process = self._launch()
        atexit.register(self.stop)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Return once a client can work with the broker, or raise :class:`BrokerFailed`."""
        timeout = self.boot_timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        while True:
            if not self.pid:
                raise BrokerFailed(f"{self!r} exited while starting; its last words:\n{self._last_words()}")
            try:
                self._handshake(max(0.2, min(2.0, deadline - time.monotonic())))
                return
            except ImportError:
                raise
            except Exception as error:
                if time.monotonic() > deadline:
                    raise BrokerFailed(
                        f"{self!r} is not ready after {timeout:g} s ({error!r}); its last words:\n{self._last_words()}"
                    ) from error
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL; returns once the broker is gone. Its data stays."""
        if self._process is not None:
            stop_tree(self._process)
            self._close_stdin()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, the kernel accepts new ones, nothing is answered."""
        pid = self._running_pid("freeze")
        os.kill(pid, signal.SIGSTOP)
        _until(lambda: process_state(pid) == "T", 5, lambda: f"{self!r} does not stop")

    def thaw(self) -> None:
        """SIGCONT."""
        pid = self._running_pid("thaw")
        os.kill(pid, signal.SIGCONT)
        _until(lambda: process_state(pid) != "T", 5, lambda: f"{self!r} does not continue")

    def restart(self, timeout: float | None = None) -> None:
        """Start again on the same port and data, killed first if it runs; wait until ready."""
        self.kill()
        self.start()
        self.wait_ready(timeout)

    def stop(self) -> None:
        """End it, whatever its state, and leave nothing behind; may be called again."""
        self.kill()
        atexit.unregister(self.stop)
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> LocalBroker:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @classmethod
    @abstractmethod
    def _program(cls) -> tuple[str, str]:
        """The program's name and its path, or :class:`BrokerMissing`."""

    def _running_pid(self, verb: str) -> int:
        if not self.pid:
            raise BrokerFailed(f"cannot {verb} {self!r}: it does not run")
        return self.pid

    def _close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _last_words(self) -> str:
        try:
            return self.log.read_text(errors="replace")[-2000:]
        except OSError:
            return "(none)"


def _missing(program: str, package: str) -> BrokerMissing:
    return BrokerMissing(
        f"{program} is not installed: it is in the Debian and Ubuntu package {package!r} (apt-get install {package})"
    )


class LocalRedis(LocalBroker):
    """redis-server, every write on disk before it is answered, nothing ever evicted."""

    kind = "redis"
    boot_timeout = 10.0

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, password: str | None = None) -> None:
        super().__init__(folder, password=password)
        self._first_password = password

    @classmethod
    def _program(cls) -> tuple[str, str]:
        path = shutil.which("redis-server") or shutil.which("valkey-server")
        if path is None:
            raise _missing("redis-server", "redis-server")
        return "redis-server", path

    @property
    def url(self) -> str:
        credentials = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"redis://{credentials}{HOST}:{self.port}/0"

    def _launch(self) -> subprocess.Popen[bytes]:
        # fmt: off
        command = [
            self._program_path, "--bind", HOST, "--port", str(self.port), 
            "--dir", str(self.folder), "--daemonize", "no",
            "--appendonly", "yes", "--appendfsync", "always", "--save", "",
            "--maxmemory", "0", "--maxmemory-policy", "noeviction",
        ]
        # fmt: on
        if self._password:
            command += ["--requirepass", self._password]
        return spawn(command, env=os.environ, log=self.log)

    def command(self, *args: str | int, timeout: float = 5.0) -> Any:
        """Run one Redis command over a connection of its own."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        client = Redis(
            host=HOST,
            port=self.port,
            password=self._password or None,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        try:
            return client.execute_command(*args)
        finally:
            client.close()

    def _handshake(self, timeout: float) -> None:
        with socket.create_connection((HOST, self.port), timeout):
            pass  # far cheaper than a client, while nobody listens
        self.command("PING", timeout=timeout)  # raises while the data is loading

    def fill(self) -> None:
        self.command("CONFIG", "SET", "maxmemory", 1)

    def unfill(self) -> None:
        self.command("CONFIG", "SET", "maxmemory", 0)

    def reset(self) -> None:
        self.unfill()
        self.set_password("default", self._first_password or "")
        self.command("FLUSHALL")
        self.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        self.command("CLIENT", "KILL", "TYPE", "pubsub")

    def set_password(self, user: str, password: str) -> None:
        if user != "default":
            self.command("ACL", "SETUSER", user, "resetpass", f">{password}")
            return
        self.command("CONFIG", "SET", "requirepass", password)
        self._password = password or None


#: RabbitMQ looks into every module of every application it stands on, and so loads a thousand of them, one by one.
#: All at once, before it starts, takes half the time. What is missing in this list is loaded as ever.
_ERLANG_APPLICATIONS = (
    "kernel,stdlib,sasl,compiler,crypto,inets,mnesia,os_mon,public_key,ssl,syntax_tools,tools,xmerl,"
    "rabbit,rabbit_common,rabbitmq_prelaunch,cuttlefish,jsx,observer_cli,osiris,ra,ranch,recon,syslog,systemd"
)
_LOAD_AT_ONCE = (
    f'catch(code:ensure_modules_loaded([list_to_atom(filename:basename(F,".beam"))||A<-[{_ERLANG_APPLICATIONS}],'
    'is_list(code:lib_dir(A)),F<-filelib:wildcard(code:lib_dir(A)++"/ebin/*.beam")]))'
)


class LocalRabbitMQ(LocalBroker):
    """rabbitmq-server with a node, a cookie and data of its own; it needs, and leaves, no epmd.

    The Erlang VM is our direct child and takes its orders from a shell on its standard input
    (:meth:`erl`), in milliseconds; :meth:`ctl` is the usual tool. ``plugins`` are enabled before
    it starts (``["rabbitmq_shovel"]``).
    """

    kind = "amqp"
    boot_timeout = 60.0

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        plugins: Sequence[str] = (),
        password: str | None = None,
    ) -> None:
        super().__init__(folder, password=password or "guest")
        self._first_password = self._password or "guest"
        self.plugins = tuple(plugins)
        self.node = f"paired{self.port}@localhost"
        self._distribution_port = free_port()
        self._shell = threading.Lock()
        self._cookie = secrets.token_hex(16)

    @classmethod
    def _program(cls) -> tuple[str, str]:
        return "rabbitmq-server", str(_rabbitmq_scripts() / "rabbitmq-server")

    @property
    def url(self) -> str:
        return self.url_of("/")

    def url_of(self, vhost: str) -> str:
        """The kombu URL of one virtual host."""
        path = "/" if vhost == "/" else quote(vhost, safe="")
        return f"amqp://guest:{quote(self._password or '', safe='')}@{HOST}:{self.port}/{path}"

    def _environment(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RABBITMQ_", "ERL_", "NOTIFY_SOCKET"))
        }
        distribution = f"-start_epmd false -erl_epmd_port {self._distribution_port}"
        return inherited | {
            "HOME": str(self.folder),  # the Erlang cookie is there
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.config"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": str(self.folder / "rabbitmq.log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            # A shell on stdin. It also has the script exec the VM: our child *is* the VM.
            "RABBITMQ_ALLOW_INPUT": "1",
            # Distribution on a port that both ends know, up before RabbitMQ starts, needs no epmd.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"-sname {self.node} {distribution} -kernel inet_dist_use_interface {{127,0,0,1}} +S 2:2"
            ),
            "RABBITMQ_CTL_ERL_ARGS": f"{distribution} -dist_listen false",
            "ERL_CRASH_DUMP": os.devnull,
            "ERL_CRASH_DUMP_SECONDS": "0",
        }

    def _launch(self) -> subprocess.Popen[bytes]:
        for name in ("log", "data"):
            (self.folder / name).mkdir(exist_ok=True)
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(self._cookie)
        (self.folder / "rabbitmq-env.conf").touch()
        (self.folder / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        (self.folder / "rabbitmq.config").write_text(
            f"""[{{rabbit, [
                {{tcp_listeners, [{{"{HOST}", {self.port}}}]}},
                {{loopback_users, []}},
                {{default_pass, {_binary(self._first_password)}}},
                {{disk_free_limit, 1000000}},
                {{collect_statistics_interval, 1000}}
            ]}}].\n"""
        )
        return spawn(
            [self._program_path],
            env=self._environment() | {"ERL_AFLAGS": f"-eval '{_LOAD_AT_ONCE}'"},
            log=self.log,
            cwd=self.folder,
            stdin=subprocess.PIPE,
        )

    def _handshake(self, timeout: float) -> None:
        from amqp import Connection

        with socket.create_connection((HOST, self.port), timeout):
            pass  # far cheaper than a client, while nobody listens
        with Connection(
            f"{HOST}:{self.port}",
            userid="guest",
            password=self._password,
            connect_timeout=timeout,
            read_timeout=timeout,
            write_timeout=timeout,
        ) as connection:
            connection.connect()

    def erl(self, expression: str, timeout: float = 10.0) -> str:
        """Have the broker evaluate an Erlang expression; returns the value in Erlang's syntax."""
        self._running_pid("talk to")
        assert self._process is not None
        stdin: IO[bytes] | None = self._process.stdin
        assert stdin is not None
        answer = self.folder / f"answer-{secrets.token_hex(8)}"
        order = (
            f"file:write_file({_string(f'{answer}~')}, io_lib:format({_string('~0tp')}, "
            f"[try {{ok, begin {expression} end}} catch C__:R__ -> {{C__, R__}} end])), "
            f"file:rename({_string(f'{answer}~')}, {_string(str(answer))}), f(C__), f(R__).\n"
        )
        try:
            with self._shell:
                stdin.write(order.encode())
                stdin.flush()
            _until(
                answer.exists,
                timeout,
                lambda: f"{self!r} did not answer in {timeout:g} s: {expression}",
            )
            text = answer.read_text(encoding="utf-8", errors="replace")
        except BrokenPipeError as error:
            raise BrokerFailed(f"{self!r} is gone: {expression}") from error
        finally:
            answer.unlink(missing_ok=True)
        if not text.startswith("{ok,"):
            raise BrokerFailed(f"{self!r}: {expression}: {text}")
        return text[len("{ok,") : -1]

    def ctl(self, *args: str, timeout: float = 30.0) -> str:
        """Run rabbitmqctl against this broker; returns what it prints."""
        tool = _rabbitmq_scripts() / "rabbitmqctl"
        done = subprocess.run(
            [str(tool), "--quiet", "--node", self.node, *args],
            env=self._environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if done.returncode:
            raise BrokerFailed(f"rabbitmqctl {' '.join(args)}: {done.stdout}{done.stderr}")
        return done.stdout

    def fill(self) -> None:
        self.erl("vm_memory_monitor:set_vm_memory_high_watermark({absolute, 1})")
        self._until_alarmed(True)

    def unfill(self) -> None:
        self.erl("vm_memory_monitor:set_vm_memory_high_watermark(0.4)")
        self._until_alarmed(False)

    def _until_alarmed(self, wanted: bool) -> None:
        _until(
            lambda: (self.erl("rabbit_alarm:get_alarms()") != "[]") is wanted,
            10,
            lambda: f"{self!r}: the memory alarm is not {'on' if wanted else 'off'}",
        )

    def reset(self) -> None:
        self.unfill()
        self.erl('[catch rabbit_networking:close_connection(P, "reset") || P <- rabbit_networking:connections()]')
        self.erl(
            '[catch rabbit_amqqueue:delete(Q, false, false, <<"reset">>) '
            "|| V <- rabbit_vhost:list_names(), Q <- rabbit_amqqueue:list(V)]",
            timeout=30,
        )
        self.erl(
            '[catch rabbit_exchange:delete(element(2, X), false, <<"reset">>) '
            "|| V <- rabbit_vhost:list_names(), X <- rabbit_exchange:list(V), "
            "case element(4, element(2, X)) of "
            '<<>> -> false; <<"amq.", _/binary>> -> false; _ -> true end]'
        )
        self.erl(
            '[catch rabbit_policy:delete(V, proplists:get_value(name, P), <<"reset">>) '
            "|| V <- rabbit_vhost:list_names(), P <- rabbit_policy:list(V)]"
        )
        if self._password != self._first_password:
            self.set_password("guest", self._first_password)

    def set_password(self, user: str, password: str) -> None:
        self.erl(
            f"rabbit_auth_backend_internal:change_password({_binary(user)}, {_binary(password)}, {_binary('local')})"
        )
        if user == "guest":
            self._password = password


def _string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _binary(text: str) -> str:
    return f"<<{_string(text)}/utf8>>"


@functools.cache
def _rabbitmq_scripts() -> Path:
    """The folder of RabbitMQ's own scripts.

    What Debian has on the PATH is a wrapper, which changes the user and loses the environment.
    """
    folders = []
    for program in ("rabbitmq-server", "rabbitmqctl"):
        path = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
        if path is not None:
            folders.append(Path(path).resolve().parent)
    folders.append(Path("/usr/lib/rabbitmq/bin"))
    folders += sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"), reverse=True)
    folders += [Path("/opt/homebrew/opt/rabbitmq/sbin"), Path("/usr/local/opt/rabbitmq/sbin")]
    for folder in folders:
        if (folder / "rabbitmq-env").exists() and (folder / "rabbitmq-server").exists():
            if shutil.which("erl") is None:
                raise _missing("erl", "erlang-base")
            return folder
    raise _missing("rabbitmq-server", "rabbitmq-server")


class LocalServiceBus(LocalBroker):
    """The emulator of this package: a Service Bus namespace in a process of its own, with its messages on disk.

    It speaks AMQP without TLS, checks keys, and takes orders over HTTP on the same port (:meth:`ask`).
    """

    kind = "azureservicebus"
    boot_timeout = 20.0
    policy = "RootManageSharedAccessKey"

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, password: str | None = None) -> None:
        super().__init__(folder, password=password or secrets.token_urlsafe(24))
        self._first_password = self._password

    @classmethod
    def _program(cls) -> tuple[str, str]:
        return "python", sys.executable

    @property
    def url(self) -> str:
        return f"azureservicebus://{self.policy}:{quote(self._password or '', safe='')}@{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        """Where its messages are."""
        return self.folder / "data"

    def _launch(self) -> subprocess.Popen[bytes]:
        # fmt: off
        command = [
            self._program_path, "-m", "kombu_paired.emulator", "--quiet",
            "--host", HOST, "--port", str(self.port), "--data", str(self.data),
        ]
        # fmt: on
        policy = {"KOMBU_PAIRED_EMULATOR_POLICY": f"{self.policy}:{self._password}"}
        return spawn(command, env=os.environ | policy, log=self.log)

    def ask(self, method: str, what: str, body: Mapping[str, Any] | None = None, timeout: float = 5.0) -> Any:
        """A request to the emulator itself: ``ask("POST", "faults", {"kind": "disabled", "entity": "orders"})``."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            connection.request(method, f"/$emulator/{what}", None if body is None else json.dumps(body))
            answer = connection.getresponse()
            found = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status >= 400:
            raise BrokerFailed(f"{self!r}: {method} {what}: {found.get('error')}")
        return found

    def _handshake(self, timeout: float) -> None:
        self.ask("GET", "status", timeout=timeout)

    def fill(self) -> None:
        self.ask("POST", "faults", {"kind": "quota"})

    def unfill(self) -> None:
        self.ask("DELETE", "faults")

    def reset(self) -> None:
        self.ask("POST", "reset")
        if self._password != self._first_password:
            self.set_password(self.policy, self._first_password or "")

    def set_password(self, user: str, password: str) -> None:
        """Arguments: user: the policy; there is one. The emulator starts anew: its keys are those it started with."""
        self._password = password
        self.restart()


_BROKERS: dict[Kind, type[LocalRedis] | type[LocalRabbitMQ] | type[LocalServiceBus]] = {
    "redis": LocalRedis,
    "amqp": LocalRabbitMQ,
    "azureservicebus": LocalServiceBus,
}


def local_broker(kind: Kind, folder: str | os.PathLike[str] | None = None) -> LocalBroker:
    """A broker of that kind, not started yet; :class:`BrokerMissing` when it is not installed."""
    if kind not in _BROKERS:
        raise ValueError(f"no local broker of kind {kind!r}: there are {', '.join(map(repr, _BROKERS))}")
    _BROKERS[kind]._program()
    return _BROKERS[kind](folder)


def local_broker_missing(kind: Kind) -> str | None:
    """Why this kind of broker cannot run here; None when it can."""
    try:
        _BROKERS[kind]._program()
    except BrokerMissing as missing:
        return str(missing)
    return None
