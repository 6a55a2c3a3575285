"""Runs Django's tasks in a worker of Onward's."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from django.apps import apps
from django.db import close_old_connections
from django.utils import timezone

from onward.context import JobContext, stored_job, wait_for_stored_job
from onward.contrib.django.backend import OnwardBackend
from onward.contrib.django.framework import (
    InvalidTask,
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from onward.contrib.django.results import change, new_result, result_of, task_of
from onward.control_flow import Cancel, DoNotRetry, Snooze
from onward.errors import StoreUnavailable
from onward.handler import Handler, TaskOptions
from onward.job import Job


class Handlers(Mapping[str, Handler]):
    """The handlers of a project's tasks, by the path of their function: made when a job of theirs comes.

    Those in the ``tasks`` modules of installed applications are known beforehand, so that others can be told of them.
    """

    def __init__(self, backend: OnwardBackend) -> None:
        self._backend = backend
        self._known: dict[str, Handler | None] = {}

    def __getitem__(self, path: str) -> Handler:
        """Find a handler; who names what is no task has none."""
        handler = self._known.get(path)
        if handler is None:
            try:
                handler = self._known[path] = self._handler_of(task_of(path), path)
            except InvalidTask as error:
                raise KeyError(path) from error
        return handler

    def __iter__(self) -> Iterator[str]:
        """Name the tasks that are known."""
        return iter(self._known)

    def __len__(self) -> int:
        """Count them."""
        return len(self._known)

    def discover(self) -> None:
        """Learn of the tasks that are in the applications' ``tasks`` modules and meant for this backend."""
        for config in apps.get_app_configs():
            module = sys.modules.get(f"{config.name}.tasks")
            for found in vars(module).values() if module is not None else ():
                if isinstance(found, Task) and found.backend == self._backend.alias:
                    self._known.setdefault(found.module_path, None)

    def _handler_of(self, task: Task, path: str) -> Handler:
        run = _on_the_loop if iscoroutinefunction(task.func) else _on_a_thread
        return Handler(run(task, self._backend), name=path, options=TaskOptions(queue=task.queue_name))


def _on_a_thread(task: Task, backend: OnwardBackend) -> Any:
    def run(job: JobContext, args: list[Any], kwargs: dict[str, Any], run_after: str | None = None) -> Any:
        del run_after  # read with the rest of the job
        close_old_connections()  # as a request does: one that the server has closed is not used again
        try:
            try:
                stored = wait_for_stored_job(job)
            except StoreUnavailable:
                stored = None
            result = _begun(task, backend, job, stored, args, kwargs)
            task_started.send(type(backend), task_result=result)
            try:
                value = normalize_json(task.func(*_context(task, result), *args, **kwargs))
            except BaseException as error:
                if _has_ended(result, job, error):
                    task_finished.send(type(backend), task_result=result)
                raise
            _done(result, value)
            task_finished.send(type(backend), task_result=result)
            return value
        finally:
            close_old_connections()

    return run


def _on_the_loop(task: Task, backend: OnwardBackend) -> Any:
    async def run(job: JobContext, args: list[Any], kwargs: dict[str, Any], run_after: str | None = None) -> Any:
        del run_after  # read with the rest of the job
        try:
            stored = await stored_job(job)
        except StoreUnavailable:
            stored = None
        result = _begun(task, backend, job, stored, args, kwargs)
        await task_started.asend(type(backend), task_result=result)
        try:
            value = normalize_json(await task.func(*_context(task, result), *args, **kwargs))
        except Exception as error:
            if _has_ended(result, job, error):
                await task_finished.asend(type(backend), task_result=result)
            raise
        _done(result, value)
        await task_finished.asend(type(backend), task_result=result)
        return value

    return run


def _begun(
    task: Task, backend: OnwardBackend, job: JobContext, stored: Job | None, args: list[Any], kwargs: dict[str, Any]
) -> TaskResult:
    """Make the result of a task that begins to run: from the stored job, or from what the claim has of it."""
    if stored is not None:
        result = result_of(stored, backend.id_of(job.ref), backend.alias, offset=backend.offset)
        change(result, status=TaskResultStatus.RUNNING)
        return result
    now = timezone.now()
    running = {
        "status": TaskResultStatus.RUNNING,
        "started_at": now,
        "last_attempted_at": now,
        "worker_ids": [""] * job.attempt,
    }
    return new_result(task.using(queue_name=job.queue), backend.id_of(job.ref), args, kwargs, **running)


def _context(task: Task, result: TaskResult) -> list[TaskContext]:
    return [TaskContext(task_result=result)] if task.takes_context else []


def _done(result: TaskResult, value: Any) -> None:
    change(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)


def _has_ended(result: TaskResult, job: JobContext, error: BaseException) -> bool:
    """Write down that a task has failed, if it will not be tried again."""
    if isinstance(error, Snooze) or (job.attempt < job.max_attempts and not isinstance(error, (DoNotRetry, Cancel))):
        return False
    kind = type(error)
    result.errors.append(
        TaskError(
            exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback="".join(format_exception(error))
        )
    )
    change(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
    return True
