"""Spark's classes in a file: what it is called, what is told to Java, and the process that makes it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kombu_paired.pipeline import archive
from kombu_paired.pipeline.archive import CACHE, FAILED, LOCK, cache_folder, class_archive
from kombu_paired.testing.processes import wait_until
from tests.pipeline.writing import write
from tests.support.spark import require_spark

HOME = os.path.expanduser("~/.cache/kombu-paired")


@pytest.fixture
def java(tmp_path):
    """What looks like a Java from outside."""
    program = write(tmp_path / "jdk" / "bin" / "java", "#!/bin/sh", "exit 1")
    write(tmp_path / "jdk" / "release", 'IMPLEMENTOR="N"', 'JAVA_VERSION="17.0.15"')
    program.chmod(0o755)
    return program


@pytest.fixture
def jars(tmp_path):
    write(tmp_path / "jars" / "spark-core_2.13-4.3.0.jar", "classes")
    write(tmp_path / "jars" / "another.jar", "more")
    return tmp_path / "jars"


@pytest.fixture
def kept(tmp_path, java, jars):
    found = class_archive(str(java), jars, {CACHE: str(tmp_path / "cache")})
    assert found is not None
    return found


# -- where it is, and what it is called -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, HOME),
        ({"XDG_CACHE_HOME": ""}, HOME),
        ({"XDG_CACHE_HOME": "relative"}, HOME),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/kombu-paired"),
        ({"XDG_CACHE_HOME": "/caches", CACHE: "/mine"}, "/mine"),
        ({"XDG_CACHE_HOME": "/caches", CACHE: ""}, None),
    ],
)
def test_where_it_is_kept(environment, folder):
    assert cache_folder(environment) == (Path(folder) if folder else None)


def test_it_is_named_after_spark_and_java_and_another_of_either_has_none(kept, tmp_path, java, jars):
    def name():
        return class_archive(str(java), jars, {CACHE: str(tmp_path / "cache")}).file.name

    first = name()
    assert first.startswith("spark-4.3.0-java-17.0.15-")
    assert first == kept.file.name == name()
    names = {first}
    for change in (
        lambda: write(jars / "third.jar", ""),
        lambda: write(jars / "another.jar", "other"),
        lambda: os.utime(jars / "another.jar", (1, 1)),
        lambda: write(java.parent.parent / "release", 'JAVA_VERSION="17.0.16"'),
        lambda: write(java, "#!/bin/sh", "exit 2"),
        lambda: (jars / "third.jar").unlink(),
    ):
        change()
        names.add(name())
    assert len(names) == 7


@pytest.mark.parametrize("name", ['qu"ote', "co:lon", "back\\slash", "per%cent"])
def test_a_folder_that_java_would_misread_is_not_used(tmp_path, java, jars, name):
    assert class_archive(str(java), jars, {CACHE: str(tmp_path / name)}) is None


def test_a_folder_that_cannot_be_is_no_error(tmp_path, java, jars):
    write(tmp_path / "file", "")
    assert class_archive(str(java), jars, {CACHE: str(tmp_path / "file" / "below")}) is None
    assert class_archive(str(java), jars, {CACHE: ""}) is None


# -- what Java is told ------------------------------------------------------------------------------------------------


def test_java_notes_classes_until_there_is_an_archive(kept):
    assert any("DumpLoadedClassList" in each and str(kept.classes) in each for each in kept.java_options())
    write(kept.file, "archive")
    os.utime(kept.file, (1, 1))
    assert any("SharedArchiveFile" in each and str(kept.file) in each for each in kept.java_options())
    assert "-Xshare:auto" in kept.java_options()
    assert kept.file.stat().st_mtime > 1  # in use


def test_what_failed_once_is_not_tried_again(kept):
    write(kept.file.with_suffix(FAILED), "why")
    assert kept.java_options() == []


def test_without_room_for_one_none_is_made(kept, monkeypatch):
    monkeypatch.setattr(archive, "ROOM", 1 << 62)
    assert kept.java_options() == []


def test_what_was_noted_in_vain_does_not_pile_up(kept):
    for name, age in (("old", archive.STALE + 60), ("young", archive.STALE - 60)):
        write(kept.file.parent / f"{name}.classes", "java/lang/Object")
        os.utime(kept.file.parent / f"{name}.classes", (time.time() - age,) * 2)
    kept.java_options()
    assert [each.name for each in kept.file.parent.iterdir()] == ["young.classes"]


# -- the process that makes it ----------------------------------------------------------------------------------------

#: A Java that makes an archive of what it is told.
MAKES = (
    "#!/bin/sh",
    'for each in "$@"; do case "$each" in',
    '-XX:SharedArchiveFile=*) half="${each#*=}" ;; -XX:SharedClassListFile=*) list="${each#*=}" ;; esac; done',
    'cat "$list" > "$half"',
)
BREAKS = (*MAKES, "echo it broke >&2", "exit 1")


def ended():
    """The number of a process that is no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def made(kept, java, *program):
    """What is in the folder after it was tried, but for what is there to lock it."""
    write(java, *program)
    write(kept.classes, "java/lang/Object")
    command = [sys.executable, "-I", archive.__file__, kept.file, kept.classes, java, "a.jar", ended()]
    subprocess.run([*map(str, command)], check=True, timeout=60)
    return {each.name for each in kept.file.parent.iterdir()} - {LOCK}


def test_it_is_made_of_what_was_noted_and_nothing_else_is_left(kept, java):
    assert made(kept, java, *MAKES) == {kept.file.name}
    assert kept.file.read_text() == "java/lang/Object\n"


def test_one_that_fails_leaves_why_and_no_half(kept, java):
    why = kept.file.with_suffix(FAILED)
    assert made(kept, java, *BREAKS) == {why.name}
    assert "it broke" in why.read_text()


@pytest.fixture
def none_ignored():
    """What runs under ``nohup`` ignores a signal, and so does all that it starts."""
    signals = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, signal.SIG_DFL) for each in signals]
    yield
    for each, handler in zip(signals, before, strict=True):
        signal.signal(each, handler)


@pytest.mark.usefixtures("none_ignored")
@pytest.mark.parametrize("number", [1, 2, 9, 15])
@pytest.mark.parametrize("end", ["kill -{0} $$", "exit $((128 + {0}))"])
def test_one_that_is_interrupted_is_tried_again(kept, java, number, end):
    write(kept.file.parent / "spark-of-one-that-was-killed.1.half", "")
    assert made(kept, java, *MAKES, end.format(number)) == set()


def test_of_the_same_jars_no_other_is_left_and_of_others_none_that_is_unused(kept, java):
    of_jars = kept.file.stem.split("-")[-2]
    endings = (".jsa", ".7.half", "-7.classes")
    former, half, noted = (f"spark-4.3.0-java-17.0.14-{of_jars}-0{ending}" for ending in endings)
    others, unused = "spark-4.2.0-java-17.0.15-abc-def.jsa", "spark-4.1.0-java-17.0.15-abc-def.jsa"
    for name in (former, half, noted, others, unused, "not-ours"):
        write(kept.file.parent / name, "")
    os.utime(kept.file.parent / unused, (1, 1))
    assert made(kept, java, *MAKES) == {kept.file.name, others, "not-ours"}


def test_one_process_makes_it_at_a_time(kept, java):
    with (kept.file.parent / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert made(kept, java, *MAKES) == set()
    write(kept.file, "of another process")
    assert made(kept, java, *MAKES) == {kept.file.name}
    assert kept.file.read_text() == "of another process\n"


def test_the_report_does_not_wait_for_it_and_it_waits_for_java(kept, java, tmp_path):
    """What reads a command's output to its end does not wait either."""
    gate = tmp_path / "gate"
    write(java, *MAKES[:3], f"while [ ! -e {gate} ]; do sleep 0.05; done", MAKES[3])
    write(kept.classes, "java/lang/Object")
    program = (
        "import sys; from pathlib import Path; from kombu_paired.pipeline.archive import ClassArchive\n"
        "ClassArchive(Path(sys.argv[1]), Path(sys.argv[2])).make(sys.argv[3], 'a.jar', int(sys.argv[4]))\n"
    )
    try:
        with subprocess.Popen(["sleep", "600"]) as running:
            command = [sys.executable, "-c", program, kept.file, kept.classes, java, running.pid]
            subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=60)
            time.sleep(0.5)
            assert not (kept.file.parent / LOCK).exists()
            running.kill()
        wait_until((kept.file.parent / LOCK).exists, 60, lambda: "nobody makes it")
        assert not kept.file.exists()
    finally:
        gate.touch()
    wait_until(kept.file.exists, 60, lambda: "it is not made")


def test_a_java_that_does_not_end_is_given_up(kept, monkeypatch):
    monkeypatch.setattr(archive, "PATIENCE", 0.0)
    monkeypatch.setattr(os, "nice", lambda more: 0)
    write(kept.classes, "java/lang/Object")
    archive.main(kept.file, kept.classes, "java", "a.jar", os.getpid())
    assert list(kept.file.parent.iterdir()) == []


# -- with Spark -------------------------------------------------------------------------------------------------------

COUNT = """
import json, sys
from pathlib import Path
from kombu_paired.pipeline.session import spark_session
with spark_session() as spark:
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    is_used = ".jsa" in "".join(each for each in Path(f"/proc/{java}/maps").open() if "kombu" in each)
    print(json.dumps([spark.range(3).count(), is_used]))
"""


@pytest.mark.spark
def test_spark_starts_with_it_and_with_one_that_is_broken(tmp_path):
    require_spark()
    cache = tmp_path / "kombu paired"

    def count():
        done = subprocess.run(
            [sys.executable, "-c", COUNT], env=os.environ | {CACHE: str(cache)}, capture_output=True, text=True,
            timeout=300, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)  # and Java adds nothing to it

    assert count() == [3, False]
    wait_until(lambda: any(cache.glob("*.jsa")) or any(cache.glob(f"*{FAILED}")), 300, lambda: "it is not made")
    [file] = cache.glob("*.jsa")
    assert count() == [3, True]
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:10_000_000])
    assert count()[0] == 3
    file.write_bytes(b"no archive at all")
    assert count() == [3, False]
