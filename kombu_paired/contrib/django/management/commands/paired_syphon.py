"""``manage.py paired_syphon``: move the backlog home without a worker."""

from __future__ import annotations

from kombu_paired.cli.syphon import syphon
from kombu_paired.contrib.django.commanding import ClickCommand

__all__ = ("Command",)


class Command(ClickCommand):
    command = syphon
