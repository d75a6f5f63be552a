"""Unit tests are quick: Hypothesis tries fewer examples of each."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unit", max_examples=30, deadline=None)
settings.load_profile("unit")
