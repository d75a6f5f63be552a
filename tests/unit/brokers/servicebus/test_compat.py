"""What is private in azure-servicebus is there in the version that is installed, and used in one place alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusReceiver, ServiceBusSender
from azure.servicebus._base_handler import BaseHandler
from azure.servicebus._pyamqp import error
from azure.servicebus._pyamqp.client import AMQPClient
from azure.servicebus._pyamqp.constants import CbsAuthState, CbsState, LinkState

from kombu_paired.brokers import compat as compat_of_all
from kombu_paired.brokers.servicebus import compat, transport
from tests.support.contract import broken_promises, unlisted

OF_THE_SDK = {owner: names for owner, names in compat.RELIES_ON.items() if owner.startswith("azure.servicebus")}
COMPAT = {"compat.py", "compat_receiving.py", "compat_sharing.py"}
OF_KOMBU = {owner: names for owner, names in compat.RELIES_ON.items() if owner.startswith("kombu.")}


def test_each_name_is_somebody_s():
    assert {*OF_THE_SDK, *OF_KOMBU} == set(compat.RELIES_ON)


def test_the_installed_sdk_has_what_this_room_relies_on():
    assert broken_promises("azure-servicebus", OF_THE_SDK) == []


def test_so_has_the_installed_kombu():
    assert broken_promises("kombu", OF_KOMBU) == []


@pytest.mark.parametrize(
    ("owner", "ours"),
    [
        ("kombu.transport.virtual:Channel", transport.Channel),
        ("kombu.transport.virtual:Transport", transport.Transport),
    ],
)
def test_a_subclass_uses_and_overrides_nothing_private_of_kombu_that_is_not_written_down(owner, ours):
    listed = [*compat_of_all.RELIES_ON.get(owner, ()), *compat.RELIES_ON[owner]]
    assert unlisted({owner: listed}, owner, ours) == set()


def test_its_enumerations_have_the_values_that_are_compared():
    assert LinkState.ATTACHED.value == compat.ATTACHED
    assert CbsAuthState.OK.value == compat.TOKEN_ACCEPTED
    assert {each.name for each in CbsState} >= set(compat.TOKENS_AT_AN_END)


@pytest.mark.parametrize(
    ("owner", "name", "holder"),
    [
        (BaseHandler, "_open_with_retry", "azure.servicebus._base_handler:BaseHandler"),
        (ServiceBusSender, "_create_handler", "azure.servicebus:ServiceBusSender"),
        (ServiceBusReceiver, "_create_handler", "azure.servicebus:ServiceBusReceiver"),
        (AMQPClient, "client_ready", "azure.servicebus._pyamqp.client:AMQPClient"),
        (AMQPClient, "do_work", "azure.servicebus._pyamqp.client:AMQPClient"),
        (error, "AMQPLinkError", "azure.servicebus._pyamqp.error"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_sdk_without_one_of_them_is_found_out(monkeypatch, owner, name, holder):
    monkeypatch.delattr(owner, name)
    [sentence] = broken_promises("azure-servicebus", OF_THE_SDK)
    assert sentence.startswith("azure-servicebus 7.")
    assert sentence.endswith(f"{holder} has no {name}")


def test_so_is_one_whose_method_takes_something_else(monkeypatch):
    monkeypatch.setattr(ServiceBusReceiver, "_create_handler", lambda self, credential: None)
    [sentence] = broken_promises("azure-servicebus", OF_THE_SDK)
    assert sentence.endswith("ServiceBusReceiver._create_handler takes credential, self, and not auth")


@pytest.mark.parametrize("name", ["_prefetch_counter", "_await_outcome"])
def test_so_is_one_that_keeps_something_elsewhere(name):
    [sentence] = broken_promises("azure-servicebus", {"azure.servicebus:ServiceBusReceiver": (name,)})
    assert sentence.endswith(f"azure.servicebus:ServiceBusReceiver has no {name}")


ROOM = Path(compat.__file__).parent


def reaches(tree):
    """What a module names that is private to another: attributes, also by their names, and modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            yield from (each.value for each in node.args if isinstance(each, ast.Constant))
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
        elif isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split("."))


def private_names_in(source):
    names = {each for each in reaches(ast.parse(source)) if isinstance(each, str)}
    return {each for each in names if each.startswith("_") and not each.endswith("__")}


@pytest.mark.parametrize("module", sorted({each.name for each in ROOM.glob("*.py")} - COMPAT))
def test_no_other_module_of_the_room_reaches_into_the_sdk(module):
    assert private_names_in((ROOM / module).read_text()) == set()


@pytest.mark.parametrize(
    "source",
    [
        "raw._handler",
        "self._raw._handler",
        "getattr(raw, '_handler', None)",
        "from azure.servicebus import _pyamqp\n_pyamqp._handler",
        "raw._handler = None",
    ],
)
def test_to_reach_into_it_is_noticed(source):
    assert private_names_in(source) == {"_handler"}


def test_so_is_a_private_module():
    assert private_names_in("from azure.servicebus._pyamqp import error") == {"_pyamqp"}
