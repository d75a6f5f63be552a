"""How much there is to read, known before Java starts. Imports no Spark, and reads no file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from kombu_paired.journal.format import COMPRESSED, ENDINGS

__all__ = ("PARQUET", "is_remote", "is_small", "journals_at", "local", "size_of")

PARQUET = (".parquet",)
#: So many times smaller is a journal compressed.
SHRINKS = 5
#: Bytes, compressed, up to which a session for few rows is the faster one: some 500,000 events.
SMALL = 24 << 20


def is_remote(path: str) -> bool:
    """Whether only Spark knows what is there."""
    return "://" in path and not path.startswith("file://")


def local(path: str) -> Path:
    """A path that is not remote, as this machine has it."""
    return Path(path.removeprefix("file://"))


def journals_at(path: Path, left_out: Path | None = None) -> Iterator[Path]:
    """The files that a path names: itself, or in a folder, to its bottom, all that are called as journals are.

    Arguments:
        left_out: a folder, as an absolute path, that is not looked into.
    """
    if not path.is_dir():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(each for each in folders if Path(folder, each).absolute() != left_out)
        yield from (Path(folder, each) for each in sorted(files) if each.endswith(ENDINGS + PARQUET))


def size_of(file: Path) -> int:
    """Bytes that a journal has, or would have compressed; 0 if there is no such file."""
    try:
        size = file.stat().st_size
    except OSError:
        return 0  # whoever reads it says so
    return size if file.name.endswith(COMPRESSED + PARQUET) else size // SHRINKS


def is_small(paths: Sequence[str], *, beside: str | None = None) -> bool:
    """Whether all that these paths name has so few events that preparing to be fast takes longer than they do.

    Arguments:
        paths: as :func:`kombu_paired.pipeline.reading.find_journals` takes them. Of a remote one nothing is known: it
            is not small.
        beside: a folder that is left out, as there.
    """
    if any(map(is_remote, paths)):
        return False
    left_out = Path(beside).absolute() if beside else None
    size = 0
    for path in paths:
        for file in journals_at(local(path), left_out):
            size += size_of(file)
            if size > SMALL:
                return False
    return True
