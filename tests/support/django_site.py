"""A Django site in this process, with the admin and this package in it: import it, and it is set up.

It sets up no Celery application: those of other tests are none of its business.
"""

from __future__ import annotations

from unittest import mock

import django
from django.conf import settings

from kombu_paired.contrib.django import apps

if not settings.configured:
    settings.configure(
        SECRET_KEY="only for tests",
        ALLOWED_HOSTS=["testserver"],
        ROOT_URLCONF="tests.support.django_urls",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[
            *("django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"),
            *("django.contrib.messages", "kombu_paired.contrib.django"),
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        USE_TZ=True,
    )
    with mock.patch.object(apps, "set_up_all"):
        django.setup()
