"""What the simulator knows, held against a table that the pipeline made: every row, every column, exactly."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType


def in_microseconds(table: DataFrame) -> DataFrame:
    """The table in the truth's form: times are integers, and there is no ``day``."""
    columns = [
        F.unix_micros(each.name).alias(each.name) if isinstance(each.dataType, TimestampType) else F.col(each.name)
        for each in table.schema.fields
        if each.name != "day"
    ]
    return table.select(*columns)


def read_truth(spark: SparkSession, file: Path, like: DataFrame) -> DataFrame:
    schema = StructType([StructField(each.name, each.dataType) for each in like.schema.fields])
    is_array = file.suffix == ".json"
    return spark.read.schema(schema).options(mode="FAILFAST", multiLine=is_array).json(str(file))


def assert_is_truth(spark: SparkSession, table: DataFrame, file: Path) -> None:
    """Every row of the table is one of the truth, and the other way round."""
    ours = in_microseconds(table)
    truth = read_truth(spark, file, ours)
    wrong, missing = ours.exceptAll(truth), truth.exceptAll(ours)
    found = {"wrong": wrong.limit(3).collect(), "missing": missing.limit(3).collect()}
    assert not any(found.values()), json.dumps(
        {name: [row.asDict() for row in rows] for name, rows in found.items()}, indent=1, default=str
    )
    assert ours.count() == truth.count() > 0
