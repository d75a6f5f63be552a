"""The disk under a spool: network file systems, and one that is full, read-only, or gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.spool import disk, rows
from kombu_paired.brokers.spool.disk import Reserve, file_system_at, require_trust
from kombu_paired.brokers.spool.folder import Folder
from kombu_paired.errors import ConfigurationError, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from tests.unit.brokers.spool.conftest import QUEUE, in_child

MOUNTS = """\
1 0 259:1 / / rw,relatime - ext4 /dev/vda rw
2 1 0:40 / /var/lib/shop rw shared:1 - nfs4 files:/shop rw
3 2 259:2 / /var/lib/shop/local rw - xfs /dev/vdb rw
4 1 0:41 / /mnt/a\\040b rw master:3 propagate_from:2 - fuse.sshfs me@other: rw
5 1 0:42 / /mnt/twice rw - ext4 /dev/vdc rw
6 1 0:43 / /mnt/twice rw - cifs //files/shop rw
""".splitlines()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/shop2", "ext4"),
        ("/var/lib/shop", "nfs4"),
        ("/var/lib/shop/spool", "nfs4"),
        ("/var/lib/shop/local/spool", "xfs"),
        ("/mnt/a b/spool", "fuse.sshfs"),
        ("/mnt/twice/spool", "cifs"),
        ("/", "ext4"),
    ],
)
def test_a_path_is_on_what_is_mounted_last_and_nearest(path, kind):
    assert file_system_at(path, MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused_with_its_name(folder, namespace, monkeypatch, kind):
    monkeypatch.setattr(disk, "_file_system_of", lambda folder: kind)
    with pytest.raises(NamespaceFailure, match=rf"network file system \({kind}\).*choose a folder on a disk") as caught:
        namespace.ensure_backlog_queues([QUEUE], True, 10)
    assert caught.value.kind is FailureKind.REJECTED  # waiting would not help


def test_locks_that_do_not_hold_are_found_out(tmp_path, monkeypatch):
    require_trust(str(tmp_path))
    monkeypatch.setattr(disk.fcntl, "fcntl", lambda *_: 0)  # as where the server knows of no locks
    with pytest.raises(ConfigurationError, match="lets two have one lock"):
        require_trust(str(tmp_path))


def test_what_is_in_memory_alone_is_warned_of(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(disk, "_file_system_of", lambda folder: "tmpfs")
    require_trust(str(tmp_path))
    assert "is gone when the power is" in caplog.text


def test_no_message_takes_the_last_of_the_disk(sender, monkeypatch):
    monkeypatch.setattr(rows, "free_bytes", lambda folder: 4_100_000)
    sender.send(Message(b"small", routing_key=QUEUE), 10)
    with pytest.raises(NamespaceFailure, match=r"has 4.1 MB left, and 4 MB have to stay free") as caught:
        sender.send(Message(bytes(200_000), routing_key=QUEUE), 10)
    assert (caught.value.kind, caught.value.whole_namespace) == (FailureKind.FAULT, True)
    assert not caught.value.maybe_stored


def test_a_reserve_takes_real_room_and_gives_it_away_once(tmp_path):
    reserve = Reserve(Folder(str(tmp_path)))
    reserve.keep()
    found = os.stat(reserve.path)
    assert (found.st_size, found.st_blocks * 512) >= (disk.RESERVE, disk.RESERVE)
    assert reserve.spend()
    assert os.stat(reserve.path).st_size == 0
    assert not reserve.spend()
    reserve.keep()
    assert os.stat(reserve.path).st_size == disk.RESERVE


def test_a_disk_with_little_room_is_not_made_fuller_by_a_reserve(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 2 * disk.RESERVE - 1)
    reserve = Reserve(Folder(str(tmp_path)))
    reserve.keep()
    assert not os.path.exists(reserve.path)


def test_a_folder_that_is_gone_says_so(folder, sender):
    sender.send(Message(b"x", routing_key=QUEUE), 10)
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(NamespaceFailure, match="is gone: make it again, or mount it") as caught:
        sender.send(Message(b"x", routing_key=QUEUE), 10)
    assert caught.value.kind is FailureKind.UNREACHABLE


def test_something_else_than_a_folder_says_so(folder, sender):
    folder.write_text("a file")
    with pytest.raises(NamespaceFailure, match="is no folder") as caught:
        sender.send(Message(b"x", routing_key=QUEUE), 10)
    assert caught.value.kind is FailureKind.UNREACHABLE


# -- on a file system of its own --------------------------------------------------------------------------------------


def on_a_small_disk(folder, script):
    """What a script answers that runs where ``folder`` is a file system of 36 MB, which it has for itself alone."""
    enter = ["unshare", "--map-root-user", "--mount"] if os.geteuid() else ["unshare", "--mount"]
    mount = 'mount -t tmpfs -o size=36m tmpfs "$0" && exec "$@"'
    command = [*enter, "sh", "-c", mount, str(folder), sys.executable, "-c", _PROLOGUE + script, str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if "unshare" in run.stderr or "mount:" in run.stderr:
        pytest.skip(f"nothing can be mounted here: {run.stderr}")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


_PROLOGUE = f"""
import json, os, subprocess, sys, time
from pathlib import Path
from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.errors import NamespaceFailure
from kombu_paired.message import Message

disk = Path(sys.argv[1])
QUEUE = {QUEUE!r}
namespace = KombuNamespace("secondary", [f"spool://{{disk}}/spool"], {{}}, send_timeout=10)
sender = namespace.sender()

def send(size=100_000):
    try:
        sender.send(Message(os.urandom(size), routing_key=QUEUE), 10)
    except NamespaceFailure as failure:
        return failure.kind.name, failure.maybe_stored, str(failure)

def send_until_it_fails():
    count = 0
    while (failure := send()) is None:
        count += 1
    return count, failure

def fill():
    "Somebody else takes what is left."
    with open(disk / "ballast", "ab", buffering=0) as file:
        for size in (100_000, 4096, 1):
            try:
                while file.write(bytes(size)): pass
            except OSError:
                pass

def receive_all():
    receiver, count = namespace.receiver([QUEUE], 100, 10), 0
    while batch := receiver.receive(10, 0.1):
        receiver.complete(batch)
        count += len(batch)
    receiver.close()
    return count
"""


def test_a_full_disk_can_be_emptied_though_others_have_filled_it(tmp_path):
    script = """
stored, failure = send_until_it_fails()
fill()
full = send()
received = receive_all()
os.remove(disk / "ballast")
after = send()
receiver = namespace.receiver([QUEUE], 100, 10)
reserve, until = disk / "spool" / "reserve", time.monotonic() + 30
receiver.complete(receiver.receive(1, 1))
while reserve.stat().st_size == 0 and time.monotonic() < until:
    receiver.receive(1, 0.1)  # it makes the file smaller, while it waits
receiver.close()
print(json.dumps([stored, failure, full, received, after, reserve.stat().st_size]))
"""
    stored, failure, full, received, after, reserve = on_a_small_disk(tmp_path, script)
    assert failure[:2] == full[:2] == ["FAULT", False]
    assert "make room on this disk" in failure[2]
    assert stored > 100
    assert received == stored
    assert after is None
    assert reserve == disk.RESERVE


def test_a_full_disk_that_was_never_seen_to_fill_up_is_sqlites_error_and_no_message_is_lost(tmp_path):
    script = """
from kombu_paired.brokers.spool import rows
rows.free_bytes = lambda folder: 10**12  # as under a quota, which nobody is told of
stored, failure = send_until_it_fails()
fill()
print(json.dumps([stored, failure, receive_all()]))
"""
    stored, failure, received = on_a_small_disk(tmp_path, script)
    assert failure[:2] == ["FAULT", False]
    assert "database or disk is full" in failure[2]
    assert received == stored


def test_a_file_system_that_becomes_read_only_is_a_fault_and_works_again(tmp_path):
    script = """
first = send()
sender.close()
subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
second = send()
subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
third = send()
print(json.dumps([first, second, third, receive_all()]))
"""
    first, second, third, received = on_a_small_disk(tmp_path, script)
    assert (first, third, received) == (None, None, 2)
    assert second[:2] == ["FAULT", False]


def test_no_right_to_the_folder_is_a_wrong_configuration(namespace):
    """In a child that is nobody, since root may do everything; it has all modules, wherever they are."""
    namespace.probe(None, 10)
    folder = Path(tempfile.mkdtemp())  # pytest's own is for its user alone
    folder.chmod(0o700 if os.geteuid() == 0 else 0)

    def probe():
        if os.geteuid() == 0:
            os.setuid(65534)
        with pytest.raises(NamespaceFailure) as caught:
            KombuNamespace("secondary", [f"spool://{folder}"], {}, send_timeout=5).probe(None, 5)
        return caught.value.kind.name, "member of the group" in str(caught.value)

    try:
        assert in_child(probe) == "('UNAUTHORIZED', True)"
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_a_namespace_that_cannot_be_used_says_which_side_it_is(folder):
    folder.write_text("a file")
    namespace = KombuNamespace("secondary", [f"spool://{folder}?max_size=2MB"], {}, send_timeout=10)
    with pytest.raises(NamespaceFailure, match=rf"secondary namespace spool://{folder}"):
        namespace.probe(None, 10)
