"""What Django loads: the application ``kombu_paired``."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks

from kombu_paired.contrib.django.applications import set_up_all
from kombu_paired.contrib.django.checks import check_applications

__all__ = ("PairedConfig",)


class PairedConfig(AppConfig):  # type: ignore[misc]
    """Sets up the Celery applications of the process, and registers the checks."""

    name = "kombu_paired.contrib.django"
    label = "kombu_paired"
    verbose_name = "Paired brokers"

    def ready(self) -> None:
        set_up_all()
        checks.register(check_applications, "kombu_paired")
