"""Spark, where it is installed."""

from __future__ import annotations

import os

import pytest

from kombu_paired.pipeline.session import SparkUnavailable
from kombu_paired.pipeline.session import require_spark as require

__all__ = ("require_spark",)


def require_spark() -> None:
    """Skip the test where Spark is not installed; where CI is set, fail it."""
    try:
        require()
    except SparkUnavailable as exc:
        if os.environ.get("CI"):
            pytest.fail(str(exc), pytrace=False)
        pytest.skip(str(exc))
