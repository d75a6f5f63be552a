"""One Spark session for all tests of the pipeline, and journals to read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kombu_paired.pipeline.session import spark_session
from tests.support.spark import require_spark

#: Of a query that is made once, and of few rows, most of the time goes into compiling it. The report of test_report.py
#: and those that tests run as commands are compiled, as everybody's are.
NO_COMPILATION = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
#: What makes a session of small jobs quick; a report of real journals would be slower for it.
FOR_TESTS = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    **NO_COMPILATION,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator:
    """The session; where Spark is not installed its tests are skipped, and where CI is set they fail."""
    require_spark()
    with spark_session(settings=FOR_TESTS) as session:
        yield session


@pytest.fixture
def next_version(monkeypatch):
    """The pipeline as it may be one day: the journal has one version more, in whose lines there may be a ``colour``."""
    from kombu_paired.journal.format import JOURNAL_FIELDS, JOURNAL_VERSION, JournalField
    from kombu_paired.pipeline import reading, schema

    colour = JournalField("colour", "text", False, "what nobody said before")
    event_fields = (*schema.EVENT_FIELDS, colour.name)
    monkeypatch.setattr(schema, "JOURNAL_FIELDS", (*JOURNAL_FIELDS, colour))
    monkeypatch.setattr(schema, "EVENT_FIELDS", event_fields)
    monkeypatch.setattr(reading, "EVENT_FIELDS", event_fields)
    monkeypatch.setattr(reading, "JOURNAL_VERSION", JOURNAL_VERSION + 1)
    return JOURNAL_VERSION + 1


@pytest.fixture(scope="session")
def fleet_with_outages(spark, tmp_path_factory):
    from tests.pipeline.tables import RAN, made_of

    return made_of(spark, RAN, tmp_path_factory.mktemp("ran"))


@pytest.fixture(scope="session")
def tried(fleet_with_outages):
    """Its outages under other settings."""
    from tests.pipeline.tables import tried_of

    return tried_of(fleet_with_outages)
