"""As in Celery's documentation for Django; the two lines with ``kombu_paired`` are all there is to add."""

import os

from celery import Celery

import kombu_paired

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")

app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
kombu_paired.setup(app)  # workers run the syphon
