from django.db import models


class Order(models.Model):
    article = models.CharField(max_length=50)


class Done(models.Model):
    """What a task did; one row each time that it ran."""

    task = models.CharField(max_length=50)
    order = models.IntegerField(null=True)  # as the task was told
