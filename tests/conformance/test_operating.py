"""What operators ask of a secondary: what is isolated, and what lies in a queue."""

from __future__ import annotations

import threading

import pytest

from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, DeadLetter
from kombu_paired.message import Message
from tests.conformance.sites import TIMEOUT

pytestmark = pytest.mark.needs("keeps_notices")


@pytest.fixture
def primary(site):
    """The name of a primary that no other test has."""
    return f"main-{site.number}"


@pytest.fixture
def notices(namespace, primary, opened):
    return opened(namespace.notices(primary))


@pytest.fixture
def others(namespace, primary, opened):
    """The link of another process."""
    return opened(namespace.notices(primary))


def test_what_one_isolates_all_know_until_another_one_ends_it(namespace, primary, notices, others, opened):
    assert others.read(TIMEOUT) == {}
    notices.put("orders", 1000.5, TIMEOUT)
    notices.put("all", 1001.5, TIMEOUT)
    notices.put("orders", 2000.5, TIMEOUT)
    both = {"orders": 1000.5, "all": 1001.5}
    assert (others.read(TIMEOUT), notices.read(TIMEOUT)) == (both, both)
    assert others.read(TIMEOUT) == both, "to read takes nothing away"
    others.take("orders", TIMEOUT)
    others.take("orders", TIMEOUT)
    assert (notices.read(TIMEOUT), others.read(TIMEOUT)) == ({"all": 1001.5}, {"all": 1001.5})
    assert opened(namespace.notices(primary + "-2")).read(TIMEOUT) == {}, "those of another primary are its own"
    notices.take("all", TIMEOUT)
    notices.put("orders", 3000.5, TIMEOUT)
    assert others.read(TIMEOUT) == {"orders": 3000.5}


def test_many_who_read_at_once_never_see_it_end(namespace, primary, notices, opened):
    notices.put("all", 1000.5, TIMEOUT)
    links = [opened(namespace.notices(primary)) for _ in range(6)]
    for each in links:
        while each.read(TIMEOUT) != {"all": 1000.5}:
            pass
    missed = []

    def read(link):
        missed.extend(found for _ in range(10) if (found := link.read(TIMEOUT)) != {"all": 1000.5})

    threads = [threading.Thread(target=read, args=(each,)) for each in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missed == []


def test_where_nothing_may_be_made_nothing_is_isolated(notices):
    assert notices.read(TIMEOUT, create=False) == {}


def test_a_queue_is_looked_into_from_its_oldest_message_on_and_keeps_what_it_has(namespace, sender, queue):
    for number in range(5):
        message = Message(str(number).encode(), "", queue, headers={"own": str(number)})
        assert sender.send_batch([message], TIMEOUT) == [None]
    for limit, expected in ((3, ["0", "1", "2"]), (9, ["0", "1", "2", "3", "4"])):
        found = namespace.look_into([queue, queue + "-missing"], limit, TIMEOUT)
        assert {name: [each.headers["own"] for each in messages] for name, messages in found.items()} == {
            queue: expected,
            queue + "-missing": [],
        }
    assert namespace.backlog_depths([queue], TIMEOUT)[0].messages == 5


def test_so_is_a_dead_letter_queue(namespace, sender, receiver, queue):
    dead_letter_queue = queue + DEAD_LETTER_SUFFIX
    assert namespace.look_into([dead_letter_queue], 3, TIMEOUT) == {dead_letter_queue: []}
    assert sender.send_batch([Message(b"x", "", queue, properties={"message_id": "a"})], TIMEOUT) == [None]
    receiver.dead_letter([DeadLetter(each, "NoPath", "none") for each in receiver.receive(1, TIMEOUT)])
    [found] = namespace.look_into([dead_letter_queue], 3, TIMEOUT)[dead_letter_queue]
    assert (found.message_id, found.headers["DeadLetterReason"]) == ("a", "NoPath")
    assert namespace.backlog_depths([queue], TIMEOUT)[0].dead_letters == 1
