"""Celery's own commands do on a paired URL what they do on the plain one."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest
from celery import Celery, current_app
from celery.bin.celery import celery as command
from click.testing import CliRunner

import kombu_paired
from kombu_paired.transport import pairing_of

default_app = current_app._get_current_object()

AMQP = [
    ("amqp", "exchange.declare", "letters", "direct"),
    ("amqp", "queue.declare", "post"),
    ("amqp", "queue.bind", "post", "letters", "post"),
    ("amqp", "basic.publish", "hello", "letters", "post"),
    ("amqp", "basic.get", "post", "True"),
    ("amqp", "basic.get", "post", "True"),
    ("amqp", "basic.publish", "hello", "", "post"),
    ("amqp", "queue.purge", "post"),
    ("amqp", "basic.publish", "hello", "", "post"),
    ("amqp", "queue.delete", "post"),
    ("amqp", "exchange.delete", "letters", "False"),
]


class Shop:
    """An application that ``celery -A`` finds, and what its commands print."""

    def __init__(self, url, options, monkeypatch):
        self._monkeypatch = monkeypatch
        self.app = Celery("shop", broker=url, set_as_current=False)
        self.app.conf.broker_transport_options = options
        self.module = ModuleType("commanded")
        self.module.app = self.app
        kombu_paired.setup(self.app)

    def run(self, *arguments):
        """Exit status and output, without the addresses and what RabbitMQ counts."""
        self._monkeypatch.setitem(sys.modules, "commanded", self.module)
        self.app.set_current()
        result = CliRunner().invoke(command, ["-A", "commanded:app", *arguments])
        output = re.sub(r"connecting to \S+", "connecting", result.output)
        output = output.replace("'application_headers': {},", "").replace("{ '", "{'")
        output = re.sub(r"'(message_count|delivery_mode|priority)': [^,}]+", "", output)
        return arguments, result.exit_code, re.sub(r"[\s,]+", " ", output)

    def close(self):
        with self.app.connection_for_write() as connection:
            pairing_of(connection).close()


@pytest.fixture
def plain(primary, monkeypatch):
    monkeypatch.setenv("CELERY_BROKER_URL", "")  # `celery -b` sets it
    yield Shop(primary.url, {}, monkeypatch)
    default_app.set_current()


@pytest.fixture
def paired(primary, options, monkeypatch):
    monkeypatch.setenv("CELERY_BROKER_URL", "")
    shop = Shop(f"paired+{primary.url}", options, monkeypatch)
    yield shop
    shop.close()
    default_app.set_current()


pytestmark = pytest.mark.parametrize("broker_kind", ["amqp", "redis"])


def test_the_amqp_shell(broker_kind, plain, paired):
    found = [paired.run(*arguments) for arguments in AMQP]
    assert not [each for each in found if "ERROR" in each[-1]]
    if broker_kind == "redis":  # where the plain one forgets exchanges at once, and publishes nothing
        assert any("'body': b'hello'" in output for _, _, output in found)
        return
    assert found == [plain.run(*arguments) for arguments in AMQP]


def test_bindings_are_listed(plain, paired):
    assert paired.run("list", "bindings")[1:] == plain.run("list", "bindings")[1:]


def test_a_broker_on_the_command_line_is_the_applications(primary, plain, paired):
    paired.app.conf.broker_url = "paired+amqp://nobody.example//"
    assert "messages:0" in paired.run("-b", f"paired+{primary.url}", "amqp", "queue.declare", "post")[-1]


@pytest.mark.parametrize("direction", ["into", "out of"])
def test_migrating(primary, secondary, plain, paired, direction):
    source, destination = (secondary, primary) if direction == "into" else (primary, secondary)
    old = Celery("old", broker=source.url, set_as_current=False)
    for n in range(3):
        old.send_task("shop.record", (n,), ignore_result=True)
    urls = [f"paired+{node.url}" if node is primary else node.url for node in (source, destination)]
    _, status, output = paired.run("migrate", "--limit", "3", "--timeout", "10", *urls)
    assert status == 0, output
    assert "Migrating task 2/3" in output  # Celery says nothing of the one that reaches the limit
    assert len(destination.take_all("celery")) == 3
