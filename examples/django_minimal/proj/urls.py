from django.urls import path
from orders.views import place_order

urlpatterns = [path("orders/<int:order>/", place_order)]
