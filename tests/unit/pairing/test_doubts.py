"""Which messages are in doubt, so that one more copy of them is marked."""

from __future__ import annotations

from kombu_paired.message import Message
from kombu_paired.pairing.doubts import Doubts


def message(name):
    return Message("{}", "", "orders", properties={"message_id": name} if name else {})


def test_doubts_have_an_end():
    doubts = Doubts(100)
    doubts.add(*(message(str(number)) for number in range(101)))
    assert message("0") not in doubts
    assert message("1") in doubts
    doubts.settle(message("1"))
    assert message("1") not in doubts


def test_a_message_that_is_sent_again_is_asked_for_once():
    doubts = Doubts()
    assert not doubts.take(message("a"))
    doubts.add(message("a"), message("b"))
    assert [doubts.take(message(name)) for name in ("a", "a", "c", "b")] == [True, False, False, True]


def test_a_message_without_an_id_is_in_no_doubt():
    doubts = Doubts()
    doubts.add(message(None), message("a"))
    doubts.settle(message(None))
    assert message(None) not in doubts
    assert not doubts.take(message(None))
    assert message("a") in doubts
