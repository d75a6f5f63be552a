"""The journal's format, in its only place: what is in a line, how files are called, and when one has its last line.

A journal is a file of lines, each of them one JSON object in ASCII with the fields of :data:`JOURNAL_FIELDS`, in their
order. Each process writes files of its own, one after the other, at least one for each hour (UTC) in which something
happens. A file has one of these forms; each of them but the first is there whole, or not at all::

    20260301T10-web-1-4711-1772359261034127.jsonl.part     while it is written; a killed process leaves it so
    20260301T10-web-1-4711-1772359261034127.jsonl.gz       from then on
    20260301T10-web-1-4711-1772359261034127.jsonl          instead, where there was no time to compress it

The version is raised when a line may hold what readers so far do not know: a field, or a kind of event. A reader reads
every version up to its own. So a version only adds to the one before: no field gets another type or meaning, and one
that is added is not required, since earlier lines lack it. A line of a later version is left unread, and its reader is
told to update.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from kombu_paired.events import EventKind

__all__ = (
    "COMPRESSED",
    "ENDINGS",
    "FORMS",
    "GZIP",
    "HALF_COMPRESSED",
    "JOURNAL_FIELDS",
    "JOURNAL_VERSION",
    "JSON_LINES",
    "NAME",
    "ORPHANED",
    "PART",
    "ZSTANDARD",
    "JournalField",
    "file_name",
    "hour_named",
    "known_events",
    "stem_of",
)

#: Version of the lines that are written.
JOURNAL_VERSION = 2


# -- a line -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JournalField:
    """One field of a journal's line.

    Attributes:
        name: its key in the line's JSON object.
        type: ``integer`` (64 bits), ``number`` (double), ``text`` or ``boolean``.
        required: it is in every line of every version; the others are left out where they say nothing.
        meaning: what it says, and in which unit.
    """

    name: str
    type: str
    required: bool
    meaning: str


#: The fields of a line, in their order.
JOURNAL_FIELDS: tuple[JournalField, ...] = (
    JournalField("v", "integer", True, "version of the line's format, from 1"),
    JournalField("time", "integer", True, "when it happened: microseconds since 1970, UTC"),
    JournalField(
        "first_attempt", "integer", False, "when the application sent the message: microseconds since 1970, UTC"
    ),
    JournalField("host", "text", True, "name of the host that wrote the line"),
    JournalField("pid", "integer", True, "its process"),
    JournalField("seq", "integer", True, "number of the line in that process, from 1, without holes"),
    JournalField("event", "text", True, "the value of an EventKind"),
    JournalField("pairing", "text", True, "the primary's name"),
    JournalField(
        "entity", "text", False, "the entity's path; the backlog queue for events of the rotation and the syphon"
    ),
    JournalField("message_id", "text", False, "of the message"),
    JournalField("route", "text", False, "primary, backlog/<i>, or stand-in"),
    JournalField("bytes", "integer", False, "size of the message"),
    JournalField("failure", "text", False, "the value of a FailureKind"),
    JournalField("ms", "number", False, "milliseconds that the step took"),
    JournalField("maybe_duplicate", "boolean", False, "the primary may have stored the message besides"),
    JournalField("detail", "text", False, "a sentence, without secrets"),
)


def known_events() -> tuple[str, ...]:
    """The values of ``event`` in all versions up to this one."""
    return tuple(kind.value for kind in EventKind)


# -- the files --------------------------------------------------------------------------------------------------------

#: What a journal's name ends in, and what is added to it: while it is written, and once it is compressed.
JSON_LINES, PART, GZIP, ZSTANDARD = ".jsonl", ".part", ".gz", ".zst"
COMPRESSED = (GZIP, ZSTANDARD)
#: The same while it is being compressed: no journal yet, and left behind by a process that was killed then.
HALF_COMPRESSED = GZIP + ".tmp"
#: What follows ``.jsonl``, one after the other of a file's life; the last that is there is read. No process writes
#: Zstandard: it is for those who compress their journals again.
FORMS = (PART, "", ZSTANDARD, GZIP)
#: What the names of files end in that are read as journals.
ENDINGS = (JSON_LINES, JSON_LINES + PART, JSON_LINES + GZIP, ".json.gz", JSON_LINES + ZSTANDARD)
#: Seconds after its hour in which a journal that is still open has lost its writer: a living one closes it at the hour.
ORPHANED = 7200.0

#: A name that a process gives, in :func:`file_name`, with any of the forms that it gives.
NAME = re.compile(
    rf"(?P<hour>\d{{8}}T\d\d)-.+-\d+-(?P<start>\d+){re.escape(JSON_LINES)}"
    rf"(?P<form>|{'|'.join(map(re.escape, (PART, GZIP, HALF_COMPRESSED)))})"
)
_NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")


def hour_named(hour: int) -> str:
    """An hour, counted from 1970, as names of files begin with it: they sort by time."""
    return time.strftime("%Y%m%dT%H", time.gmtime(hour * 3600))


def file_name(hour: int, host: str, pid: int, start: int) -> str:
    """The name of a file without its form: it ends in ``.jsonl``.

    Arguments:
        hour: of the events in it, counted from 1970, UTC.
        host: of the process, as is ``pid``.
        start: when the file was begun: microseconds since 1970, UTC.
    """
    return f"{hour_named(hour)}-{_NO_NAME.sub('-', host)}-{pid}-{start}{JSON_LINES}"


def stem_of(name: str) -> str:
    """A name without its form, which changes in the course of a file's life."""
    for form in FORMS:
        if form and name.endswith(JSON_LINES + form):
            return name.removesuffix(form)
    return name
