"""The journal's lines as Spark reads them, made from the fields that the journal writes."""

from __future__ import annotations

from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

from kombu_paired.journal.format import JOURNAL_FIELDS

__all__ = (
    "CORRUPT",
    "ENTITY",
    "EVENT_FIELDS",
    "PROCESS",
    "REJECTED",
    "REQUIRED",
    "accepted_schema",
    "journal_schema",
    "lines_schema",
)

TYPES: dict[str, DataType] = {
    "integer": LongType(),
    "number": DoubleType(),
    "text": StringType(),
    "boolean": BooleanType(),
}
#: Where Spark keeps a line that is not an object with these fields.
CORRUPT = "_corrupt_record"
#: Fields that every line has.
REQUIRED: tuple[str, ...] = tuple(each.name for each in JOURNAL_FIELDS if each.required)
#: Fields that the tables are made of: those of an accepted line, whose version is known.
EVENT_FIELDS: tuple[str, ...] = tuple(each.name for each in JOURNAL_FIELDS if each.name != "v")
#: Fields that name who wrote a line, and what an event is about.
PROCESS, ENTITY = ("host", "pid"), ("pairing", "entity")
#: Stands in the column ``event`` for a line that was not accepted.
REJECTED = "rejected"


def journal_schema() -> StructType:
    """One column per field, in their order. All are nullable: a file may hold anything."""
    return StructType([StructField(each.name, TYPES[each.type], nullable=True) for each in JOURNAL_FIELDS])


def lines_schema() -> StructType:
    """A journal's line, and ``_corrupt_record``, the text of one that does not parse."""
    return journal_schema().add(CORRUPT, StringType())


def accepted_schema() -> StructType:
    """The working table: the fields of an event; of a rejected line ``file``, ``problem`` and ``line``, its text."""
    columns = [each for each in journal_schema().fields if each.name in EVENT_FIELDS]
    return StructType([*columns, *(StructField(name, StringType()) for name in ("file", "problem", "line"))])
