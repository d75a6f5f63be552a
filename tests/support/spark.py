"""Spark, where it is installed."""

from __future__ import annotations

import os

import pytest

from kombu_paired.pipeline.archive import CACHE
from kombu_paired.pipeline.session import SparkUnavailable
from kombu_paired.pipeline.session import require_spark as require

__all__ = ("require_spark",)

#: Java compiles little, since little runs twice, and does not prove each class sound before it is used.
JAVA_FOR_TESTS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


def require_spark() -> None:
    """Skip the test where Spark is not installed; where CI is set, fail it. From then on every Java starts quickly.

    And none leaves anything behind for the next one.
    """
    os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_FOR_TESTS)
    os.environ.setdefault(CACHE, "")
    try:
        require()
    except SparkUnavailable as exc:
        if os.environ.get("CI"):
            pytest.fail(str(exc), pytrace=False)
        pytest.skip(str(exc))
