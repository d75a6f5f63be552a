"""A RabbitMQ node in a child process."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from urllib.parse import quote

from kombu_paired.testing.base import LocalBroker, not_installed
from kombu_paired.testing.errors import BrokerFailed
from kombu_paired.testing.processes import HOST, free_port, spawn, wait_until

__all__ = ("LocalRabbitMQ",)

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
            wait_until(
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
        wait_until(
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
                raise not_installed("erl", "erlang-base")
            return folder
    raise not_installed("rabbitmq-server", "rabbitmq-server")
