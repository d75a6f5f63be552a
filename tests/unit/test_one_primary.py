"""A primary with several addresses is one primary, also for who connects to one of them."""

from __future__ import annotations

from kombu import Connection

import kombu_paired

NODES = ["amqp://guest:guest@node-a//", "amqp://guest:guest@node-b//"]
OPTIONS = {"secondary": "redis://spare/0"}


def pairing(*nodes: str, **options: str) -> kombu_paired.Pairing:
    url = ";".join(f"paired+{node}" for node in nodes)
    return kombu_paired.pairing_of(Connection(url, transport_options={**OPTIONS, **options}))


def test_a_node_by_itself_belongs_to_the_pairing_of_all() -> None:
    # Celery's delayed delivery connects to each URL of a list: a pairing of its own would have backlog queues, too.
    together = pairing(*NODES)
    assert [pairing(node) for node in NODES] == [together, together]


def test_other_settings_and_other_servers_make_another_pairing() -> None:
    together = pairing(*NODES)
    assert pairing(NODES[1], primary_name="other") is not together
    assert pairing("amqp://guest:guest@node-c//") is not together
