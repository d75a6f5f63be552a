"""Spark's classes as Java has them once they are read and proved sound: kept in a file from one start to the next.

Java calls such a file a CDS archive, for class data sharing. The first report notes which classes it loads; when it is
over, :func:`main` makes the archive of them, in a process of its own that has the lowest priority, and whose end nobody
waits for. Later reports read it. It is named after the state of Spark and of Java, so that another of either has none.
Whatever is wrong with it, Java starts without it.

This module imports nothing but Python's own, since it runs as a script.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ("CACHE", "ClassArchive", "cache_folder", "class_archive")

#: The environment variable that names the folder. With nothing in it, nothing is kept.
CACHE = "KOMBU_PAIRED_CACHE"
#: Of an archive in the making: it is there under its own name when it is whole.
ENDING, NOTED, HALF, FAILED, LOCK = ".jsa", ".classes", ".half", ".failed", "lock"
#: What makes Java begin with other options than those given here.
OPTIONS_OF_JAVA = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
#: Java writes what it thinks of an archive to standard output, among what a command says.
SILENT = "-Xlog:cds*=off -Xlog:class+path*=off"
#: What Spark, or Java, takes for something else in an option that names a file.
NOT_IN_OPTIONS = {*'"\\:%', os.pathsep}
#: Free bytes without which none is made: it has some 200 MB.
ROOM = 1 << 30
#: Seconds until a Java that was to end is given up, and one that makes an archive; until what was noted is of no use to
#: anybody; and until an archive that nobody used is removed.
PATIENCE, LONGEST, STALE, UNUSED = 60.0, 600.0, 3600.0, 30 * 86400.0
#: What ends the making of an archive, and says nothing of it: the next report tries again.
INTERRUPTING = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Where archives are kept: in ``KOMBU_PAIRED_CACHE``, else among the user's other caches; None for nowhere."""
    if CACHE in environment:
        return Path(environment[CACHE]).absolute() if environment[CACHE] else None
    caches = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):  # what its specification asks for
        caches = os.path.expanduser("~/.cache")
    return Path(caches, "kombu-paired") if os.path.isabs(caches) else None


@dataclass(frozen=True)
class ClassArchive:
    """The archive of one Spark in one Java, whether it is there or not.

    Attributes:
        file: the archive; its folder is there.
        classes: where this process has the names of classes noted, if there is no archive.
    """

    file: Path
    classes: Path

    def java_options(self) -> list[str]:
        """Have Java use the archive, or, where there is none, note the classes that one is made of."""
        if self.file.exists():
            with suppress(OSError):  # it is somebody else's
                os.utime(self.file)  # it is in use
            return ["-Xshare:auto", f'"-XX:SharedArchiveFile={self.file}"', SILENT]
        if self.file.with_suffix(FAILED).exists() or shutil.disk_usage(self.file.parent).free < ROOM:
            return []
        # Of processes whose archive was never made: where a report's end is that of all that it started.
        _remove(self.file.parent.glob(f"*{NOTED}"), STALE)
        return [f'"-XX:DumpLoadedClassList={self.classes}"', SILENT]

    def make(self, java: str, class_path: str, process: int) -> None:
        """Have the archive made of the classes that were noted, once that Java has ended.

        Arguments:
            java: the program; ``class_path`` is what it was started with, and ``process`` what it runs as.
        """
        command = [sys.executable, "-I", __file__, self.file, self.classes, java, class_path, process]
        nothing = subprocess.DEVNULL
        with suppress(OSError):  # then there is none: a report goes without
            subprocess.Popen(
                [*map(str, command)], stdin=nothing, stdout=nothing, stderr=nothing, cwd="/", start_new_session=True
            )


def class_archive(java: str, jars: Path, environment: Mapping[str, str]) -> ClassArchive | None:
    """The archive for this Java and these jars of Spark; None where none can be kept, or shall be.

    Arguments:
        java: the program.
        jars: the folder.
        environment: says where archives are kept.
    """
    folder = cache_folder(environment)
    try:
        if folder is None or set(str(folder)) & NOT_IN_OPTIONS:
            return None
        name = _name(Path(java).resolve(), jars)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            return None
    except OSError:
        return None
    return ClassArchive(folder / f"{name}{ENDING}", folder / f"{name}-{secrets.token_hex(4)}{NOTED}")


def _name(java: Path, jars: Path) -> str:
    """Versions for people, the jars' folder, and the state of all that the archive is true of."""
    home = java.parent.parent
    release = home / "release"
    of_java = re.search(r'^JAVA_VERSION="([\w.]+)"', release.read_text() if release.exists() else "", re.M)
    files = sorted(jars.glob("*.jar"))
    of_spark = next((found[1] for each in files if (found := re.match(r"spark-core_.*-([\w.]+)\.jar", each.name))), "")
    state = [*files, *(each for each in (java, release, home / "lib" / "modules") if each.exists())]
    told = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in state]
    versions = f"spark-{of_spark}-java-{of_java[1] if of_java else ''}"
    return f"{versions}-{_digest(str(jars))}-{_digest(repr(told))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# -- the process that makes it ----------------------------------------------------------------------------------------


def main(file: Path, classes: Path, java: str, class_path: str, process: int) -> None:
    """Wait for a Java to end, and make the archive; one process at a time, and once."""
    import fcntl  # not everywhere, where a report is made without an archive

    os.nice(19)
    try:
        if not _has_ended(process):
            return
        with (file.parent / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(file.parent.glob(f"*{HALF}"))  # who was to make these is dead
            if classes.exists() and not file.exists():
                _make(file, classes, java, class_path)
                _sweep(file)
    except BlockingIOError:
        return  # another process makes one
    finally:
        classes.unlink(missing_ok=True)


def _has_ended(process: int) -> bool:
    """Its list of classes is whole then."""
    deadline = time.monotonic() + PATIENCE
    while _runs(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")  # in a container, perhaps nobody takes note that it has ended
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def _make(file: Path, classes: Path, java: str, class_path: str) -> None:
    half = file.with_suffix(f".{os.getpid()}{HALF}")
    command = [java, "-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={half}"]
    command += ["-XX:+UseG1GC", "-Xmx1g", "-Xlog:disable", "-Xlog:all=error:stderr", "-cp", class_path]
    environment = {name: value for name, value in os.environ.items() if name not in OPTIONS_OF_JAVA}
    try:
        made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST)
        if made.returncode == 0 and half.exists():
            half.replace(file)
        elif made.returncode not in {each for number in INTERRUPTING for each in (-number, 128 + number)}:
            file.with_suffix(FAILED).write_text(made.stdout + made.stderr)
    except subprocess.TimeoutExpired:
        file.with_suffix(FAILED).write_text(f"not done in {LONGEST:g} seconds")
    finally:
        half.unlink(missing_ok=True)


def _sweep(file: Path) -> None:
    """Remove what there is of the same jars in another state or another Java, and what nobody has used for long."""
    of_jars = file.stem.rsplit("-", 1)[0].rsplit("-", 1)[1]
    former = (each for each in file.parent.glob(f"spark-*-{of_jars}-*") if each not in (file, file.with_suffix(FAILED)))
    _remove(former)
    _remove(file.parent.glob("spark-*"), UNUSED)


def _remove(files: Iterable[Path], older: float = 0.0) -> None:
    """Those that have not changed for so many seconds, unless somebody else removes them."""
    for each in files:
        with suppress(OSError):
            if time.time() - each.stat().st_mtime >= older:
                each.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
