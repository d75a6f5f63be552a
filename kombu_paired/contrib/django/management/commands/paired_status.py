"""``manage.py paired_status``: what waits in the backlog, and which side can be reached."""

from __future__ import annotations

from kombu_paired.cli.status import status
from kombu_paired.contrib.django.commanding import ClickCommand

__all__ = ("Command",)


class Command(ClickCommand):
    command = status
