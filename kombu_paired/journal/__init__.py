"""The journal: what happens in a process, written to files for reports to read.

``format`` says what a journal is, and knows of nobody who writes or reads one. ``writer`` writes it: what
``lines`` makes of events, into the ``files`` of a folder.
"""

from __future__ import annotations

from kombu_paired.journal.lines import PER_MESSAGE, kinds_of, line_of
from kombu_paired.journal.writer import Journal, close_all, keep

__all__ = ("PER_MESSAGE", "Journal", "close_all", "keep", "kinds_of", "line_of")
