"""Settings of a small Django project. The broker's part is at the end, and needs no import."""

import os

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "only-for-this-example")
DEBUG = os.environ.get("DJANGO_DEBUG", "") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]

INSTALLED_APPS = ["orders"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "proj.urls"
WSGI_APPLICATION = "proj.wsgi.application"
USE_TZ = True

# Where the task writes, so that you can see what ran.
ORDERS_FILE = os.environ.get("ORDERS_FILE", "orders.txt")

# The primary: the broker that this project works with.
CELERY_BROKER_URL = "paired+" + os.environ.get("PRIMARY_URL", "amqp://guest:guest@localhost:5672//")
# The secondary: another broker, which stores what the primary cannot take.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "secondary": os.environ.get("SECONDARY_URL", "amqp://guest:guest@localhost:5673//"),
    # A request should not wait 10 seconds for a broker that is silent.
    "send_timeout": 3,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
