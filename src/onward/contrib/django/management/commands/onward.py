"""``python manage.py onward work``: runs tasks until told to stop."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.module_loading import autodiscover_modules

from onward.arguments import nearest
from onward.contrib.django.backend import OnwardBackend
from onward.contrib.django.framework import task_backends
from onward.contrib.django.working import Handlers
from onward.core import core_of
from onward.errors import OnwardError
from onward.worker import log_format
from onward.worker.serve import serve
from onward.worker.worker import Worker

_LEVELS = (logging.ERROR, logging.INFO, logging.INFO, logging.DEBUG)


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """The command."""

    help = "Onward's commands."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the subcommands and their options."""
        subcommands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
        text = "Run tasks until told to stop: by Ctrl-C or SIGTERM in good order, by a second one at once."
        work = subcommands.add_parser("work", help="Run tasks until told to stop.", description=text)
        work.add_argument("--backend", default="default", metavar="ALIAS", help="Which of TASKS; default.")
        work.add_argument("--queues", metavar="NAMES", help="Which to serve: default,mail. Those of the backend.")
        work.add_argument("--concurrency", type=int, default=10, metavar="N", help="Tasks at once; 10.")
        work.add_argument("--grace", type=float, metavar="SECONDS", help="How long tasks are waited for at a stop; 25.")
        work.add_argument("--max-jobs", type=int, metavar="N", help="Stop after so many tasks.")

    def handle(self, *_: Any, **given: Any) -> None:
        """Run the subcommand."""
        self._work(given)

    def _work(self, given: dict[str, Any]) -> None:
        log_format.configure(level=_LEVELS[given["verbosity"]])
        alias = given["backend"]
        try:
            backend = task_backends[alias]
        except ImproperlyConfigured as error:
            raise CommandError(f"--backend {alias}: {error}") from error
        if not isinstance(backend, OnwardBackend):
            ours = [name for name in task_backends.settings if isinstance(task_backends[name], OnwardBackend)]
            raise CommandError(f"--backend {alias}: TASKS[{alias!r}] is not Onward's{nearest(alias, ours)}")
        autodiscover_modules("tasks")
        app = backend.store.app
        handlers = Handlers(backend)
        handlers.discover()
        named = given["queues"].split(",") if given["queues"] else sorted(backend.queues) or ["*"]
        for queue in named if backend.queues else ():
            if queue not in backend.queues:
                raise CommandError(
                    f"--queues: {queue!r} is not in TASKS[{alias!r}]['QUEUES']{nearest(queue, backend.queues)}"
                )
        settings: dict[str, Any] = {"queues": tuple(named), "concurrency": given["concurrency"]}
        if given["grace"] is not None:
            settings["grace"] = timedelta(seconds=given["grace"])
        if given["max_jobs"] is not None:
            settings["max_jobs"] = given["max_jobs"]
        try:
            serve(Worker(core_of(app).engine, handlers, middleware=app.middleware, **settings), lifespan=app)
        except OnwardError as error:
            raise CommandError(str(error)) from error
