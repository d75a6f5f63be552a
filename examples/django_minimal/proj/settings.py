"""Settings as ``django-admin startproject`` makes them. What the pairing needs is three settings, and no import."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "only-for-this-example")
DEBUG = os.environ.get("DJANGO_DEBUG", "") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "orders",
    "kombu_paired.contrib.django",  # 1: workers bring the backlog home, and the checks, commands and pages are there
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "proj.urls"
WSGI_APPLICATION = "proj.wsgi.application"
STATIC_URL = "static/"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE_FILE", BASE_DIR / "db.sqlite3"),
        "OPTIONS": {"timeout": 20},  # the web process and the worker write to one file
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

# 2: the primary, the broker that this project works with.
CELERY_BROKER_URL = "paired+" + os.environ.get("PRIMARY_URL", "amqp://guest:guest@localhost:5672//")
# 3: the secondary, another broker, which stores what the primary cannot take.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "secondary": os.environ.get("SECONDARY_URL", "amqp://guest:guest@localhost:5673//"),
    # A request should not wait 10 seconds for a broker that is silent.
    "send_timeout": float(os.environ.get("SEND_TIMEOUT", "3")),
}

CELERY_TASK_IGNORE_RESULT = True
CELERY_BEAT_SCHEDULE = {"stocktaking": {"task": "orders.tasks.take_stock", "schedule": 1.0}}
