"""A project with one application, whose database is told by the environment."""

import importlib.util
import json
import os

SECRET_KEY = "for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "onward.contrib.django", "shop"]
if importlib.util.find_spec("django_tasks"):  # the backport is an application
    INSTALLED_APPS.append("django_tasks")
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
TASKS = {
    "default": {
        "BACKEND": "onward.contrib.django.OnwardBackend",
        "QUEUES": ["default", "mail"],
    },
    "stubborn": {
        "BACKEND": "onward.contrib.django.OnwardBackend",
        "OPTIONS": {"max_attempts": 2},
    },
}
