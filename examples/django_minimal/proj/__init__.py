# The application is there whenever Django starts, so that @shared_task uses it (Celery's documentation says why).
from .celery import app as celery_app

__all__ = ("celery_app",)
