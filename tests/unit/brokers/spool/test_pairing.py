"""A pairing whose secondary is a spool: the disk is nothing to it while the primary works."""

from __future__ import annotations

import logging
import os

import kombu
import pytest

import kombu_paired  # noqa: F401 - makes Kombu know the transport
from kombu_paired.brokers.spool import database
from kombu_paired.errors import BacklogUnavailable

NOBODY = "paired+redis://127.0.0.1:1//"


def connection(url, folder, query="", **options):
    options = {"secondary": f"spool://{folder}{query}", "send_timeout": 5, "primary_name": folder.name, **options}
    return kombu.Connection(url, transport_options=options)


def publish(link, body="x"):
    link.Producer().publish(body, routing_key="orders", retry=False)


@pytest.mark.parametrize("broken", ["a file", "in nothing"])
def test_a_broken_folder_is_a_warning_while_the_primary_works(tmp_path, caplog, broken):
    folder = tmp_path / "nothing" / "spool" if broken == "in nothing" else tmp_path / "spool"
    if broken == "a file":
        folder.write_text("x")
    with caplog.at_level(logging.WARNING), connection("paired+memory://", folder) as link:
        queue = link.SimpleQueue("orders")
        queue.put({"n": 1})
        assert queue.get(timeout=5).payload == {"n": 1}
        queue.close()
    assert "Nothing is lost while the primary namespace works" in caplog.text


def test_a_healthy_send_does_not_touch_the_disk(tmp_path, monkeypatch):
    with connection("paired+memory://", tmp_path / "spool", enable_syphon=False) as link:
        publish(link)
        before = {each.name: os.stat(each).st_mtime_ns for each in (tmp_path / "spool").iterdir()}
        monkeypatch.setattr(database.Database, "begin", lambda *_: pytest.fail("the file is written to"))
        monkeypatch.setattr(database.Database, "read", lambda *_: pytest.fail("the file is read"))
        for _ in range(20):
            publish(link)
        assert {each.name: os.stat(each).st_mtime_ns for each in (tmp_path / "spool").iterdir()} == before


def test_one_that_is_full_names_both_failures_and_the_figure(tmp_path):
    with connection(NOBODY, tmp_path / "spool", "?max_size=1MB") as link:
        publish(link)
        with pytest.raises(BacklogUnavailable) as caught:
            publish(link, os.urandom(1_000_000))
    text = str(caught.value)
    assert "redis://127.0.0.1:1" in text
    assert "of the 1 MB that its 'max_size' allows" in text
