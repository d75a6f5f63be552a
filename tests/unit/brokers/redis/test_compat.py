"""What is private in redis-py and in Kombu's Redis transport is written down, and is in the installed versions."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from kombu.transport import redis as kombus

from kombu_paired.brokers.redis import compat, connections, noting, poller, transport, unacknowledged, waiting
from kombu_paired.brokers.redis.compat import RELIES_ON
from tests.support.contract import broken_promises, private_names, unlisted

OF_REDIS = {owner: names for owner, names in RELIES_ON.items() if owner.startswith("redis.")}
OF_KOMBU = {owner: names for owner, names in RELIES_ON.items() if owner.startswith("kombu.")}

ROOM = Path(compat.__file__).parent
#: Whose subclasses what is written here becomes.
SUBCLASSES = {
    "kombu.transport.redis:Channel": (
        connections.OneClient,
        connections.timely_channel,
        noting.NotesInRedis,
        waiting.WaitsForMoves,
        transport._TakesByScript,
        transport.Channel,
    ),
    "kombu.transport.redis:SentinelChannel": (transport._TakesByScript, transport.SentinelChannel),
    "kombu.transport.redis:Transport": (transport.Transport,),
    "kombu.transport.redis:SentinelTransport": (transport.SentinelTransport,),
    "kombu.transport.redis:QoS": (unacknowledged.QoS,),
    "kombu.transport.redis:MultiChannelPoller": (poller.Poller,),
    "kombu.transport.redis:PrefixedStrictRedis": (transport.Client, transport.PrefixedClient),
    "redis.connection:SSLConnection": (connections._Timely,),
    "redis.connection:UnixDomainSocketConnection": (connections._Timely,),
}


def test_each_name_is_somebody_s():
    assert {*OF_REDIS, *OF_KOMBU} == set(RELIES_ON)


def test_the_installed_redis_py_has_what_this_room_relies_on():
    assert broken_promises("redis", OF_REDIS) == []


def test_so_has_the_installed_kombu():
    assert broken_promises("kombu", OF_KOMBU) == []


@pytest.mark.parametrize("owner", SUBCLASSES)
def test_a_subclass_uses_and_overrides_nothing_private_that_is_not_written_down(owner):
    assert unlisted(RELIES_ON, owner, *SUBCLASSES[owner]) == set()


def test_what_is_private_in_other_objects_stands_in_compat_alone_and_is_written_down():
    foreign = {
        each.name: {name for is_own, name in private_names(each.read_text()) if not is_own}
        for each in ROOM.glob("*.py")
    }
    used = foreign.pop("compat.py")
    assert {name: names for name, names in foreign.items() if names} == {}
    assert used <= {each.partition("(")[0] for names in RELIES_ON.values() for each in names}


def test_a_name_that_nobody_wrote_down_is_found_out():
    known = {owner: tuple(each for each in names if each != "_in_poll") for owner, names in RELIES_ON.items()}
    assert unlisted(known, "kombu.transport.redis:Channel", transport._TakesByScript) == {"_in_poll"}


def test_so_is_one_of_ours_that_a_later_kombu_has_too(monkeypatch):
    monkeypatch.setattr(kombus.Channel, "_look", lambda self: None, raising=False)
    assert unlisted(RELIES_ON, "kombu.transport.redis:Channel", transport._TakesByScript) == {"_look"}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (kombus.Channel, "_brpop_start"),
        (kombus.Channel, "_on_connection_disconnect"),
        (kombus.MultiChannelPoller, "_register"),
        (kombus, "_socket_readable"),
    ],
)
def test_a_kombu_that_lacks_one_is_found_out(monkeypatch, owner, name):
    monkeypatch.delattr(owner, name)
    where = owner.__name__ if owner is kombus else f"kombu.transport.redis:{owner.__name__}"
    assert broken_promises("kombu", OF_KOMBU) == [f"kombu {version('kombu')}: {where} has no {name}"]


def test_so_is_a_redis_py_whose_pool_keeps_its_connections_elsewhere(monkeypatch):
    class Elsewhere:
        def __init__(self):
            self._available_connections_of_each_thread = {}

    monkeypatch.setattr("redis.connection.ConnectionPool", Elsewhere)
    assert broken_promises("redis", OF_REDIS) == [
        f"redis {version('redis')}: redis.connection:ConnectionPool has no {name}"
        for name in ("_available_connections", "_in_use_connections")
    ]


@pytest.mark.parametrize(
    ("other", "taken"),
    [
        (lambda self, queue: "", "queue, self"),
        (lambda self, queue, pri, shard: "", "pri, queue, self, shard"),
        (lambda self, name, pri: "", "name, pri, self"),
    ],
    ids=["one less", "one more that must be given", "another name"],
)
def test_so_is_one_that_takes_other_parameters(monkeypatch, other, taken):
    monkeypatch.setattr(kombus.Channel, "_q_for_pri", other)
    assert broken_promises("kombu", OF_KOMBU) == [
        f"kombu {version('kombu')}: kombu.transport.redis:Channel._q_for_pri takes {taken}, and not queue, pri"
    ]


def test_one_that_takes_a_further_parameter_with_a_default_is_none(monkeypatch):
    monkeypatch.setattr(kombus.Channel, "_q_for_pri", lambda self, queue, pri, shard=None: "")
    assert broken_promises("kombu", OF_KOMBU) == []
