"""What a call had returned for is there after the power was lost at any moment, on a disk that keeps what it must."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spool.work import QUEUES, namespace_of
from tests.support.power.disk import Disk, compiled, read_records

#: How many moments are tried; more by hand.
MOMENTS = int(os.environ.get("SPOOL_MOMENTS", "40"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A busy time of a spool: the folder, and all that was asked of the disk."""
    base = tmp_path_factory.mktemp("power")
    disk = base / "disk"
    disk.mkdir()
    record = base / "record"
    environment = os.environ | {
        "LD_PRELOAD": str(compiled(base)),
        "POWER_FOLDER": str(disk),
        "POWER_RECORD": str(record),
    }

    def start(*what: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.spool.work", str(disk / "spool"), str(disk / "acks"), *what]
        return subprocess.Popen(command, env=environment)

    running = [
        start("send", "first", "60", "3", "3000"),
        start("send", "second", "60", "3", "9000"),
        start("drain", "third", "200"),
    ]
    assert [each.wait(300) for each in running] == [0, 0, 0]
    return disk, list(read_records(record))


def test_the_recorder_has_seen_what_matters(recorded):
    disk, records = recorded
    kinds = {(each.kind, Path(each.path).name) for each in records}
    assert ("sync", "messages-1.sqlite-wal") in kinds
    assert ("sync", "messages-1.sqlite") in kinds, "the log was never copied: more has to be sent"
    assert ("write", "messages-1.sqlite") in kinds
    assert ("sync", "spool") in kinds
    whole = Disk(disk)
    for each in records:
        whole.take(each)
    assert bytes(whole._seen[str(disk / "acks")].after_the_loss(Always())) == (disk / "acks").read_bytes()


class Always(random.Random):
    """All that was written is there."""

    def choice(self, seq):
        return seq[-1]

    def random(self) -> float:
        return 0.3


@pytest.mark.parametrize("seed", range(4))
def test_what_a_call_had_returned_for_is_there(recorded, tmp_path, seed):
    disk, records = recorded
    chance = random.Random(seed)
    moments = sorted(chance.sample(range(len(records)), MOMENTS // 4))
    state, told, taken = Disk(disk), b"", 0
    for moment in moments:
        for record in records[taken:moment]:
            state.take(record)
            if record.path == str(disk / "acks"):
                told += record.data
        taken = moment
        after = tmp_path / str(moment)
        after.mkdir()
        state.lose_power(after, chance)
        there = ids_in(after / "spool")
        lost = still_owed(told.decode()) - there
        assert not lost, f"lost at moment {moment} of {len(records)}, with seed {seed}"


def still_owed(told: str) -> set[str]:
    lines = told.split()
    removed = {line[1:] for line in lines if line[0] == "-"}
    return {line[1:] for line in lines if line[0] == "+"} - removed


def ids_in(spool: Path) -> set[str | None]:
    """All that is in a spool, which has to be whole."""
    if not spool.exists():
        return set()
    namespace = namespace_of(spool)
    receiver = namespace.receiver(QUEUES, 1000, 60)
    found: set[str | None] = set()
    while batch := receiver.receive(1000, 0.01):
        found |= {each.message.message_id for each in batch}
    receiver.close()
    namespace.close()
    assert not list(spool.glob("*.damaged*")), "the file was damaged"
    return found
