"""Fixtures: a folder, and the spool in it as this process has it."""

from __future__ import annotations

import os

import pytest

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.spool.sharing import borrow, give_back

QUEUE = "main/x-servicebus-transfer/0"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "spool"


@pytest.fixture
def store(folder):
    made = borrow(str(folder))
    yield made
    give_back(made)


@pytest.fixture
def namespace(folder):
    made = KombuNamespace("secondary", [f"spool://{folder}"], {}, send_timeout=10)
    yield made
    made.close()


@pytest.fixture
def sender(namespace):
    made = namespace.sender()
    yield made
    made.close()


@pytest.fixture
def receiver(namespace):
    made = namespace.receiver([QUEUE], 100, 10)
    yield made
    made.close()


def in_child(what):
    """What a forked child answers."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, repr(what()).encode())
        except BaseException as exc:
            os.write(writing, repr(exc).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return answer
