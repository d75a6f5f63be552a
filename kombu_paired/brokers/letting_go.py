"""Letting go of what may be broken already."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ("letting_go",)

logger = logging.getLogger(__name__)


@contextmanager
def letting_go(of: str) -> Iterator[None]:
    """A step of letting go. Whatever it meets, the thing is gone afterwards, so an error is told at debug level alone.

    Whoever lets go of a broken connection does it because of another error, and would lose that one.
    """
    try:
        yield
    except Exception as exc:
        logger.debug("while %s was let go: %r", of, exc)
