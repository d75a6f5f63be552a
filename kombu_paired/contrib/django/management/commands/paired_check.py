"""``manage.py paired_check``: open the pairing as the project would, and say what it found and created."""

from __future__ import annotations

from kombu_paired.cli.check import check
from kombu_paired.contrib.django.commanding import ClickCommand

__all__ = ("Command",)


class Command(ClickCommand):
    command = check
