"""Who listens to events, and that nobody who sends is harmed by it."""

from __future__ import annotations

import dataclasses
import logging
import threading

import pytest

from kombu_paired import events
from kombu_paired.events import Event, EventKind, EventStream


@pytest.fixture
def stream():
    return EventStream()


def happening(kind):
    return Event(kind, time=1.0, pairing="main")


def test_a_listener_hears_every_kind_of_event(stream):
    heard = []
    stream.listen(heard.append)
    told = [happening(kind) for kind in EventKind]
    for event in told:
        stream.emit(event)
    assert heard == told


def test_a_listener_of_some_kinds_hears_only_those(stream):
    heard = []
    stream.listen(heard.append, {EventKind.DIVERTED, EventKind.PING})
    for kind in EventKind:
        stream.emit(happening(kind))
    assert {event.kind for event in heard} == {EventKind.DIVERTED, EventKind.PING}
    assert len(heard) == 2


def test_every_listener_hears_in_the_order_of_listening(stream):
    heard = []
    stream.listen(lambda event: heard.append("first"))
    stream.listen(lambda event: heard.append("second"))
    stream.emit(happening(EventKind.SENT))
    assert heard == ["first", "second"]


def test_listening_twice_is_listening_once(stream):
    heard = []
    listener = heard.append
    stream.listen(listener)
    stream.listen(listener, [EventKind.SENT])
    stream.emit(happening(EventKind.SENT))
    assert len(heard) == 1


def test_a_listener_may_listen_to_more_kinds_later(stream):
    heard = []
    stream.listen(heard.append, [EventKind.SENT])
    stream.listen(heard.append, [EventKind.PING])
    stream.emit(happening(EventKind.SENT))
    stream.emit(happening(EventKind.PING))
    assert [event.kind for event in heard] == [EventKind.SENT, EventKind.PING]


def test_a_silenced_listener_hears_nothing_more_and_the_others_go_on(stream):
    silenced, other = [], []
    silenced_listener = silenced.append
    stream.listen(silenced_listener)
    stream.listen(other.append)
    stream.silence(silenced_listener)
    stream.emit(happening(EventKind.SENT))
    assert (silenced, len(other)) == ([], 1)


def test_silencing_somebody_who_does_not_listen_changes_nothing(stream):
    stream.silence(print)
    stream.listen([].append)
    stream.silence(print)
    assert stream.wants(EventKind.SENT)


@pytest.mark.parametrize("kind", EventKind)
def test_an_event_is_wanted_exactly_while_somebody_listens_to_its_kind(stream, kind):
    listener = [].append
    assert not any(stream.wants(each) for each in EventKind)
    stream.listen(listener, [kind])
    assert [each for each in EventKind if stream.wants(each)] == [kind]
    stream.silence(listener)
    assert not any(stream.wants(each) for each in EventKind)


def test_a_failing_listener_is_logged_and_harms_neither_the_sender_nor_the_other_listeners(stream, caplog):
    heard = []

    def failing(event):
        raise ZeroDivisionError("the dashboard is broken")

    stream.listen(failing)
    stream.listen(heard.append)
    with caplog.at_level(logging.ERROR, "kombu_paired.events"):
        stream.emit(happening(EventKind.DIVERTED))
    assert len(heard) == 1
    (record,) = caplog.records
    assert "diverted" in record.getMessage()
    assert "failing" in record.getMessage()
    assert record.exc_info[0] is ZeroDivisionError


def test_a_listener_that_wants_the_process_to_end_is_obeyed(stream):
    def leave(event):
        raise SystemExit

    stream.listen(leave)
    with pytest.raises(SystemExit):
        stream.emit(happening(EventKind.SENT))


def test_a_listener_is_called_in_the_thread_in_which_it_happens(stream):
    threads = []
    stream.listen(lambda event: threads.append(threading.current_thread()))
    sender = threading.Thread(target=stream.emit, args=(happening(EventKind.SENT),))
    sender.start()
    sender.join()
    assert threads == [sender]


def test_a_listener_may_silence_itself_and_let_another_listen_while_it_is_told(stream):
    heard = []

    def once(event):
        stream.silence(once)
        stream.listen(heard.append)

    stream.listen(once)
    stream.emit(happening(EventKind.SENT))
    assert heard == []
    stream.emit(happening(EventKind.SENT))
    assert len(heard) == 1


def test_streams_are_apart():
    here, there = EventStream(), EventStream()
    here.listen([].append)
    assert not there.wants(EventKind.SENT)


def test_there_is_one_stream_for_the_events_of_every_pairing():
    assert isinstance(events.everywhere, EventStream)


def test_an_event_never_changes():
    event = happening(EventKind.SENT)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.entity = "orders"
