from django.contrib import admin
from django.urls import include, path
from orders.views import place_order, summary

urlpatterns = [
    path("admin/", admin.site.urls),
    path("health/", include("kombu_paired.contrib.django.urls")),
    path("orders/", place_order),
    path("orders/summary/", summary),
]
