"""No tables: what the admin shows is on the secondary. A model gives it a place in the admin, and a permission."""

from __future__ import annotations

from django.db import models

__all__ = ("Backlog",)


class Backlog(models.Model):  # type: ignore[misc]
    """Whoever has the permission ``kombu_paired.view_backlog`` sees the page.

    With ``change_backlog`` one may put dead letters back into the backlog, with ``delete_backlog`` throw them away.
    """

    queue = models.CharField(primary_key=True, max_length=255)

    class Meta:
        managed = False
        default_permissions = ("view", "change", "delete")
        verbose_name = verbose_name_plural = "backlog"

    def __str__(self) -> str:
        return str(self.queue)
