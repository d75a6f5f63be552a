"""When a new message was sent last: by this process, or by any of this user's on the machine."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

from kombu_paired.pairing import last_send as room
from kombu_paired.pairing.last_send import LastSend

SETTINGS = ("shop", "amqp://main//", "amqp://spare//")
NOTES = "import sys; from kombu_paired.pairing import last_send as room; room.MEMORY = sys.argv[1];"
NOTES += "room.LastSend.of_machine(*sys.argv[2:]).note(1000.0)"


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "MEMORY", str(tmp_path))
    return tmp_path


def test_before_the_first_message_it_is_infinitely_long_ago():
    assert LastSend().since(5.0) == math.inf


def test_another_process_with_the_same_settings_is_heard_of_and_one_with_others_is_not(memory):
    same, other = LastSend.of_machine(*SETTINGS), LastSend.of_machine("shop", "amqp://main//", "amqp://other//")
    subprocess.run([sys.executable, "-c", NOTES, memory, *SETTINGS], check=True)
    assert same.since(1000.25) == 0.25
    assert LastSend.of_machine(*SETTINGS).since(1001.0) == 1.0, "whoever comes later, too"
    assert other.since(1000.25) >= 1000.25
    assert LastSend().since(1000.25) == math.inf


def test_a_moment_that_is_to_come_is_from_before_the_machine_started():
    last = LastSend()
    last.note(50.0)
    assert last.since(49.0) == math.inf


def test_nobody_else_may_read_or_write_it(memory):
    LastSend.of_machine(*SETTINGS)
    [folder] = memory.iterdir()
    [file] = folder.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert file.stat().st_mode & 0o077 == 0


def whatever_others_may_enter(folder):
    folder.mkdir()
    folder.chmod(0o777)


def a_link(folder):
    folder.symlink_to(folder.parent)


def a_file(folder):
    folder.write_text("")


@pytest.mark.parametrize("make", [whatever_others_may_enter, a_link, a_file])
def test_where_the_folder_is_not_this_users_own_the_process_keeps_the_moment_for_itself(memory, make):
    make(memory / f"kombu-paired-{os.getuid()}")
    mine, other = LastSend.of_machine(*SETTINGS), LastSend.of_machine(*SETTINGS)
    mine.note(3.0)
    assert mine.since(4.0) == 1.0
    assert other.since(4.0) == math.inf
