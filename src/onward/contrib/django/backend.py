"""The backend: stores a task's call as a job, on the request's own connection, and reads what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.apps import apps
from django.core import checks
from django.utils import timezone

from onward.contrib.django.framework import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from onward.contrib.django.results import RUN_AFTER, change, new_result, result_of
from onward.contrib.django.store import Store
from onward.core import core_of
from onward.engine.capabilities import Feature
from onward.errors import InvalidValue
from onward.job import JobRef, NewJob
from onward.loop_thread import refuse_inside_loop
from onward.validation import encode_json

_LOWEST: Final = 100
"""How far below 0 Django's priorities go. Ours begin at 0, so that much is added where nobody else gives any."""


class OnwardBackend(BaseTaskBackend):  # type: ignore[misc] # Django has no types
    """Keeps tasks as jobs of Onward's; ``python manage.py onward work`` runs them."""

    supports_async_task = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.store = Store(alias, self.options)
        has = self.store.capabilities.has
        self.supports_defer = has(Feature.DELAY)
        self.supports_get_result = has(Feature.RESULTS)
        self.supports_priority = has(Feature.PRIORITY)
        self._is_foreign = self.store.capabilities.is_shared
        self.offset = 0 if self._is_foreign else _LOWEST
        """How much higher a job's priority is than Django's."""

    def validate_task(self, task: Task) -> None:
        """Refuse what the store cannot keep, besides what Django refuses."""
        super().validate_task(task)
        if task.priority < 0 and self._is_foreign:
            raise InvalidTask(f"priority is {task.priority}, and in a store that others use too the lowest is 0")

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: dict[str, Any]) -> TaskResult:
        """Store a job: with the transaction that is open on the database of the jobs, or at once.

        Raises:
            InvalidTask: the task or its arguments cannot be stored. Nothing was written.
        """
        refuse_inside_loop("task.enqueue", "await task.aenqueue(…)")
        self.validate_task(task)
        app = self.store.app
        result = new_result(task, "", args, kwargs, enqueued_at=timezone.now())
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        payload: dict[str, Any] = {"args": result.args, "kwargs": result.kwargs}
        if run_at is not None:
            payload[RUN_AFTER] = run_at.isoformat()
        try:
            job = NewJob(
                type=task.module_path,
                payload=encode_json(payload, max_size=core_of(app).max_payload),
                queue=task.queue_name,
                priority=task.priority + self.offset if self.supports_priority else 0,
                run_at=run_at,
                max_attempts=self.store.max_attempts,
            )
            (handle,) = app.sync.enqueue_many([job], connection=self.store.connection())
        except InvalidValue as error:
            raise InvalidTask(f"{task.module_path} cannot be enqueued: {error}") from error
        change(result, id=self.id_of(handle.ref))
        task_enqueued.send(type(self), task_result=result)
        return result

    def id_of(self, ref: JobRef) -> str:
        """Name a job as Django does: where ids are not unique by themselves, with its queue."""
        return str(ref) if self._is_foreign else ref.id

    def get_result(self, result_id: str) -> TaskResult:
        """Read what has become of a task. What has not been committed yet is not there yet.

        Raises:
            TaskResultDoesNotExist: there is no job of that name: it never was, or is kept no longer.
        """
        queue, _, id = str(result_id).rpartition(":")
        ref = JobRef(queue, id) if queue else id
        job = self.store.ask(lambda app: core_of(app).engine.get(ref))
        if job is None or not isinstance(job.payload, dict) or not {"args", "kwargs"} <= job.payload.keys():
            raise TaskResultDoesNotExist(result_id)
        return result_of(job, str(result_id), self.alias, offset=self.offset)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Tell what is missing for ``migrate`` to make the tables, and for the worker's command to be there."""
        yield from super().check(**kwargs)
        if not apps.is_installed("onward.contrib.django"):
            yield checks.Warning(
                "Onward's backend is in TASKS, but its application is not installed.",
                hint="Add 'onward.contrib.django' to INSTALLED_APPS: migrate then makes its tables, and "
                "manage.py has the command onward.",
                id="onward.W001",
            )
