"""``kombu-paired emulator``: a Service Bus namespace in one process, for demos and tests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal

import click

from kombu_paired.emulator.broker.errors import Refusal
from kombu_paired.emulator.server.server import Server
from kombu_paired.emulator.server.settings import Settings
from kombu_paired.emulator.server.tokens import Policy

__all__ = ("emulator",)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--port", default=5672, show_default=True, help="AMQP, https and http, all on this one; 0: a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--data", type=click.Path(file_okay=False), help="Keep messages in this folder, over SIGKILL too.")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Create it. NAME?requires_session=true: so.")
@click.option("--topic", "topics", multiple=True, metavar="NAME[:SUB,…]", help="Create it, with subscriptions.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME:KEY[:RIGHTS[:ENTITY]]",
    envvar="KOMBU_PAIRED_EMULATOR_POLICY",
    help="Check tokens against this key; rights are Manage, Send, Listen, everywhere or on one entity. "
    "None: everybody may do everything. "
    "Other users can read a command line: KOMBU_PAIRED_EMULATOR_POLICY is the better place.",
)
@click.option("--key", metavar="KEY", help="Short for --policy RootManageSharedAccessKey:KEY.")
@click.option("--name", default="emulator", show_default=True, help="Of the namespace.")
@click.option("--max-message-size", default=256 * 1024, show_default=True, help="Bytes, of one message or batch.")
@click.option("--connection-idle", default=240.0, show_default=True, help="Close silent connections after; 0: never.")
@click.option("--link-idle", default=600.0, show_default=True, help="Close unused links after; 0: never.")
@click.option("--token-life", default=0.0, show_default=True, help="Tokens end after so long; 0: when they say.")
@click.option("--latency", default=0.0, show_default=True, help="Seconds on the way here, and as many on the way back.")
@click.option("--quiet", is_flag=True, help="Print the port, and nothing else.")
def emulator(
    port: int,
    host: str,
    data: str | None,
    queues: tuple[str, ...],
    topics: tuple[str, ...],
    policies: tuple[str, ...],
    key: str | None,
    name: str,
    max_message_size: int,
    connection_idle: float,
    link_idle: float,
    token_life: float,
    latency: float,
    quiet: bool,
) -> None:
    """Azure Service Bus in one process, for demos and tests.

    The official SDK and its administration client work against it, on one port. It is not the service: nothing is
    replicated, and nothing here is made to be exposed to a network.
    """
    if key is not None:
        policies = (*policies, f"RootManageSharedAccessKey:{key}")
    try:
        settings = Settings(
            host=host,
            port=port,
            data=data,
            policies=tuple(Policy.parse(each) for each in policies),
            max_message_size=max_message_size,
            connection_idle=connection_idle,
            link_idle=link_idle,
            token_life=token_life,
            latency=latency,
            name=name,
            queues=queues,
            topics=topics,
        )
        logging.basicConfig(level=logging.ERROR if quiet else logging.INFO, format="%(message)s")
        asyncio.run(_serve(settings, quiet))
    except (Refusal, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error


async def _serve(settings: Settings, quiet: bool) -> None:
    server = Server(settings)
    await server.start()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stopped.set)
    click.echo(f"port {server.port}" if quiet else _welcome(settings, server.port))
    await _until_orphaned_or(stopped, quiet)
    await server.stop()


async def _until_orphaned_or(stopped: asyncio.Event, quiet: bool) -> None:
    """Wait for a signal. Quiet, it was started by a program, and ends with it: nothing is left of a killed test run."""
    parent = os.getppid()
    while not stopped.is_set() and not (quiet and os.getppid() != parent):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopped.wait(), 1.0)


def _welcome(settings: Settings, port: int) -> str:
    policy = settings.policies[0].name if settings.policies else "RootManageSharedAccessKey"
    key = "<its key>" if settings.policies else "any"
    kept = f"kept in {settings.data}" if settings.data else "forgotten when it ends"
    return (
        f"Service Bus emulator on {settings.host}:{port}. For demos and tests; messages are {kept}.\n"
        f"Endpoint=sb://{settings.host}:{port};SharedAccessKeyName={policy};SharedAccessKey={key};"
        "UseDevelopmentEmulator=true"
    )
