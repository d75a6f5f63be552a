"""``path("health/", include("kombu_paired.contrib.django.urls"))``: a health page."""

from __future__ import annotations

from django.urls import path

from kombu_paired.contrib.django.views import health

__all__ = ("app_name", "urlpatterns")

app_name = "kombu_paired"
urlpatterns = [path("", health, name="health")]
