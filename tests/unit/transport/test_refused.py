"""A worker that the primary refuses is told so where it connects: Celery pauses between tries there, and only there."""

from __future__ import annotations

import pytest
from kombu import Connection

from kombu_paired.failures import FailureKind
from kombu_paired.testing.script import ScriptedError
from tests.support.in_worker import in_worker
from tests.unit.transport.asking import in_thread


@pytest.fixture
def connect(connection):
    """Connects anew, as a worker does after each loss, and gives back the channel."""
    made = []

    def connect():
        made.append(
            Connection(connection.as_uri(include_password=True), transport_options=connection.transport_options)
        )
        return made[-1].transport.establish_connection().channel()  # once: Kombu would try again

    yield connect
    for each in made:
        each.release()


def as_worker(step):
    """In a thread that nobody was refused in."""
    in_thread(lambda: in_worker(step))


def declare(channel):
    channel.primary_channel()
    channel.queue_declare("orders")


def test_who_is_refused_at_the_door_is_refused_when_it_connects_until_it_is_let_in(primary, connect):
    done = []

    def work():
        primary.refuse()
        with pytest.raises(ScriptedError):
            connect().primary_channel()
        for _ in range(3):
            with pytest.raises(ScriptedError):
                connect()
        assert len(primary.asked_for("connect")) == before + 3  # the first time it was told what was known
        primary.come_back()
        declare(connect())
        connect()
        done.append(True)

    before = len(primary.asked_for("connect"))
    as_worker(work)
    assert done


def test_who_is_let_in_and_refused_a_queue_is_refused_once_when_it_connects(primary, connect):
    done = []

    def work():
        for _ in range(2):
            channel = connect()
            channel.primary_channel()
            primary.refuse()
            with pytest.raises(ScriptedError):
                declare(channel)
            primary.come_back()
            with pytest.raises(ScriptedError):
                connect()
        done.append(True)

    as_worker(work)
    assert done


def test_a_primary_that_goes_away_instead_is_not_asked_for_when_it_connects(primary, connect, monkeypatch):
    monkeypatch.setattr("kombu_paired.transport.primary_for_consuming.WORKER_PATIENCE", 0.1)
    done = []

    def work():
        primary.refuse()
        with pytest.raises(ScriptedError):
            connect().primary_channel()
        with pytest.raises(ScriptedError):
            connect()
        primary.go_away()
        with pytest.raises(ScriptedError) as raised:
            connect()
        assert raised.value.kind is FailureKind.UNREACHABLE
        connect()
        done.append(True)

    as_worker(work)
    assert done


def test_nobody_else_is_told(primary, connect):
    primary.refuse()
    for _ in range(2):
        with pytest.raises(ScriptedError):
            connect().primary_channel()
