"""What is sold, and what tasks have done."""

from django.db import models


class Order(models.Model):
    number = models.IntegerField()

    class Meta:
        app_label = "shop"

    def __str__(self):
        return str(self.number)


class Deed(models.Model):
    told = models.TextField()

    class Meta:
        app_label = "shop"

    def __str__(self):
        return self.told
