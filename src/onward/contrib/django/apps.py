"""The application, for ``INSTALLED_APPS``: ``manage.py migrate`` makes Onward's tables too."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.db.models.signals import post_migrate

from onward.app import App


class OnwardConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """Onward, among the applications of a project."""

    name = "onward.contrib.django"
    label = "onward"
    verbose_name = "Onward"

    def ready(self) -> None:
        """Have the tables of the jobs made with the others."""
        post_migrate.connect(_make_tables, sender=self)


def _make_tables(*, using: str, **_: Any) -> None:
    """Bring the stores up to date that are in the database which has just been migrated."""
    from onward.contrib.django.backend import OnwardBackend  # noqa: PLC0415 - settings are read by now
    from onward.contrib.django.framework import InvalidTaskBackend, task_backends  # noqa: PLC0415

    for alias in getattr(settings, "TASKS", {}):
        # A database in memory, as tests have unless told otherwise, is refused to who enqueues, not to all tests.
        with suppress(InvalidTaskBackend):
            backend = task_backends[alias]
            if isinstance(backend, OnwardBackend) and backend.store.database == using:
                backend.store.ask(App.open)
