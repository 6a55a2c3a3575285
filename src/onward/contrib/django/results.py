"""A job as Django sees it: a ``TaskResult``."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from onward.contrib.django.framework import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus
from onward.job import FailedAttempt, Job
from onward.lifecycle import FINISHED, HELD, JobStatus

RUN_AFTER: Final = "run_after"
"""The key of a payload with the task's ``run_after``, where it has one."""
_EXCEPTION: Final = re.compile(r"([\w.]+)(?::|$)")


def task_of(path: str) -> Task:
    """Find a task by the path of its function, which is the type of its jobs.

    Raises:
        InvalidTask: there is none there.
    """
    try:
        found = import_string(path)
    except ImportError as error:
        raise InvalidTask(f"there is no task {path}: {error}") from error
    if not isinstance(found, Task):
        raise InvalidTask(f"{path} is no task: put @task on it")
    return found


def new_result(task: Task, id: str, args: Sequence[Any], kwargs: dict[str, Any], **fields: Any) -> TaskResult:
    """Make a result; whatever is not given has not happened yet."""
    value = fields.pop("return_value", None)
    unknown = dict.fromkeys(("enqueued_at", "started_at", "last_attempted_at", "finished_at"))
    result = TaskResult(
        task=task,
        id=id,
        args=list(args),
        kwargs=kwargs,
        backend=task.backend,
        **{"status": TaskResultStatus.READY, "errors": [], "worker_ids": [], **unknown, **fields},
    )
    change(result, _return_value=value)
    return result


def change(result: TaskResult, **fields: Any) -> None:
    """Change a result, which is frozen for everybody else."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)


def result_of(job: Job, id: str, alias: str, *, offset: int) -> TaskResult:
    """Show a job; ``offset`` is what its priority is higher by than Django's."""
    changes = {"priority": job.priority - offset, "queue_name": job.queue, "backend": alias}
    if (run_after := _run_after(job)) is not None:
        changes["run_after"] = _shown(run_after)
    last_attempted_at = job.started_at
    # Of earlier attempts the store has the end: the first of them is the earliest time that is known.
    started_at = min((failed.at for failed in job.errors), default=last_attempted_at)
    return new_result(
        task_of(job.type).using(**changes),
        id,
        job.payload["args"],
        job.payload["kwargs"],
        status=_status(job.status),
        enqueued_at=_shown(job.created_at),
        started_at=_shown(started_at),
        last_attempted_at=_shown(last_attempted_at),
        finished_at=_shown(job.completed_at) if job.status in FINISHED else None,
        errors=[_error_of(failed) for failed in job.errors],
        worker_ids=_workers_of(job),
        return_value=job.result,
    )


def _run_after(job: Job) -> datetime | None:
    """Return when the task was to run at the earliest: ``next_run_at`` changes with each retry."""
    written = job.payload.get(RUN_AFTER)
    try:
        return None if written is None else datetime.fromisoformat(written)
    except (TypeError, ValueError):  # written by another program
        return None


def _status(state: JobStatus) -> TaskResultStatus:
    if state is JobStatus.COMPLETED:
        return TaskResultStatus.SUCCESSFUL
    if state in FINISHED:
        return TaskResultStatus.FAILED
    return TaskResultStatus.RUNNING if state is JobStatus.RUNNING else TaskResultStatus.READY


def _workers_of(job: Job) -> list[str]:
    """Name who has run it, one for each attempt: Django counts attempts by them."""
    names = [failed.worker_id or "" for failed in job.errors]
    if job.worker_id is not None and (job.status in HELD or job.status is JobStatus.COMPLETED):
        names.append(job.worker_id)
    return ([""] * job.attempts + names)[-job.attempts :] if job.attempts else []


def _error_of(failed: FailedAttempt) -> TaskError:
    told = failed.traceback or f"{failed.error_type}: {failed.message}"
    return TaskError(exception_class_path=_path_of(failed.error_type, told), traceback=told)


def _path_of(kind: str, told: str) -> str:
    """Find where an exception's class is: a traceback names it in full, but for those of Python itself."""
    for line in reversed(told.splitlines()):
        found = _EXCEPTION.match(line)
        if found is not None and found[1].endswith(f".{kind}"):
            return found[1]
    return f"builtins.{kind}" if hasattr(builtins, kind) else f"onward.errors.{kind}"


def _shown(moment: datetime | None) -> datetime | None:
    return moment if moment is None or settings.USE_TZ else timezone.make_naive(moment)
