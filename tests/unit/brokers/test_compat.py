"""What is private in Kombu, for every transport, is there in the version that is installed."""

from __future__ import annotations

import pytest
from kombu.transport import virtual

from kombu_paired.brokers import compat
from tests.support.contract import broken_promises


def test_the_installed_version_has_what_every_transport_relies_on():
    assert broken_promises("kombu", compat.RELIES_ON) == []


def test_a_version_without_one_of_them_is_found_out(monkeypatch):
    monkeypatch.delattr(virtual.Channel, "_lookup")
    [sentence] = broken_promises("kombu", compat.RELIES_ON)
    assert sentence.startswith("kombu 5")
    assert "has no _lookup" in sentence


def test_so_is_one_whose_method_takes_something_else(monkeypatch):
    monkeypatch.setattr(virtual.Channel, "_size", lambda self, name: 0)
    [sentence] = broken_promises("kombu", compat.RELIES_ON)
    assert "_size takes name, self, and not queue" in sentence


@pytest.mark.parametrize("owner", ["kombu.nonsense:Channel", "kombu.transport.virtual:Nonsense"])
def test_so_is_one_that_has_moved_its_classes(owner):
    [sentence] = broken_promises("kombu", {owner: ("_size(queue)",)})
    assert sentence.endswith(f"{owner} is gone")
