"""Django's tasks, kept and run by Onward: ``TASKS = {"default": {"BACKEND": "onward.contrib.django.OnwardBackend"}}``.

A job is stored on the request's own connection, so that it is there if and only if the transaction commits. Works with
``django.tasks`` of Django 6, and with its backport ``django-tasks`` on what came before.
"""

from onward.contrib.django.backend import OnwardBackend

__all__ = ["OnwardBackend"]
