from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("health/", include("kombu_paired.contrib.django.urls")),
    path("admin/", admin.site.urls),
]
