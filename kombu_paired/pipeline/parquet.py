"""Tables as Parquet files, in the form that costs the least time."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

__all__ = ("PARQUET", "write_table")

#: Columns, of any table, whose values hardly repeat: a dictionary of them costs time and saves nothing.
VARIED = (
    "message_id",
    "time",
    "first_attempt",
    "seq",
    "ms",
    "first_sent_at",
    "diverted_at",
    "syphoned_at",
    "handed_out_at",
    "delivered_at",
    "consumed_at",
    "backlog_s",
    "late_s",
    "skew_s",
)
#: Options of a writer. What nobody reads is not written: statistics of sizes, and sums that disks make, too.
#: The codec is not lz4_raw: Spark 4.3 fails on a filter that it looks up in a dictionary that is compressed so.
PARQUET: Mapping[str, str] = {
    "compression": "snappy",
    "parquet.size.statistics.enabled": "false",
    "parquet.page.write-checksum.enabled": "false",
    **{f"parquet.enable.dictionary#{each}": "false" for each in VARIED},
}


def write_table(table: DataFrame, place: str, *by: str) -> None:
    """Write the table to this folder, instead of what is there.

    Arguments:
        by: columns that the files are put into folders by.
    """
    table.write.mode("overwrite").options(**PARQUET).parquet(place, partitionBy=list(by))
