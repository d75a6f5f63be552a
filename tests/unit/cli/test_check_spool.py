"""``kombu-paired check`` names a machine whose spool nobody brings home."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.roles import BacklogDepth
from kombu_paired.cli.check import nobody_brings_it_home
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing
from kombu_paired.testing import ScriptedBroker


def looked(messages: int | None) -> SimpleNamespace:
    return SimpleNamespace(depths=[BacklogDepth("shop/x-servicebus-transfer/0", messages)])


@pytest.fixture
def pairing(tmp_path: Path):
    url = f"spool://{tmp_path}/spool"
    secondary = KombuNamespace("secondary", [url], {}, send_timeout=10)
    made = Pairing("shop", PairedNamespaceOptions(secondary=url), ScriptedBroker("primary"), secondary)
    made.open()
    yield made
    made.close()


def test_a_full_spool_without_a_syphon_is_named_with_its_machine(pairing):
    [problem] = nobody_brings_it_home(pairing, looked(3))
    assert problem.startswith(f"3 messages of shop lie in {pairing.secondary.uri}, and no process of this machine")


def test_an_empty_one_is_not(pairing):
    assert not list(nobody_brings_it_home(pairing, looked(0)))
    assert not list(nobody_brings_it_home(pairing, looked(None)))


def test_one_with_a_syphon_is_not(pairing):
    turn = pairing.secondary.turn("shop")
    turn.arrive()
    assert not list(nobody_brings_it_home(pairing, looked(3)))
    turn.leave()


def test_another_secondary_has_no_such_trouble():
    secondary = ScriptedBroker("secondary")
    pairing = Pairing("shop", PairedNamespaceOptions(secondary=secondary.uri), ScriptedBroker("primary"), secondary)
    assert not list(nobody_brings_it_home(pairing, looked(3)))
