"""A small face for code that brings its own loop (H6): enqueue, claim, mark success, mark failure.

Its words are those of the Harmonyk jobs table that it stands in for. What is marked must have been claimed through
the same repository: it keeps the token of each claim, so a job that was rescued meanwhile cannot be marked by whoever
was too slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from onward.app import App
from onward.arguments import to_json
from onward.core import core_of
from onward.engine.values import DEFAULT_LEASE, Claim, ClaimRequest, Settlement
from onward.errors import ClaimLost, InvalidValue, Unsupported
from onward.job import NewJob
from onward.lifecycle import Failure, JobStatus, Raised, Result, Returned, decide

SimplifiedStatus = Literal["queued", "running", "success", "failed"]

_STATUS: Final[Mapping[JobStatus, SimplifiedStatus]] = {
    JobStatus.SCHEDULED: "queued",
    JobStatus.BLOCKED: "queued",
    JobStatus.PENDING: "queued",
    JobStatus.CLAIMED: "running",
    JobStatus.RUNNING: "running",
    JobStatus.COMPLETED: "success",
    JobStatus.FAILED: "failed",
    JobStatus.DEAD_LETTER: "failed",
    JobStatus.CANCELLED: "failed",
}

_JOBS_VIEW: Final[Mapping[str, str]] = {"SQLite": "onward_jobs", "PostgreSQL": "onward.jobs"}


def simplified_status(status: JobStatus) -> SimplifiedStatus:
    """Return a job's status as one of the four words queued, running, success, failed."""
    return _STATUS[status]


def view_script(app: App, name: str = "harmonyk_jobs") -> str:
    """Write the SQL that creates a view of all jobs with the four status words, for a console or a migration.

    Raises:
        Unsupported: the store has no such tables of ours.
    """
    engine = app.capabilities.engine
    jobs = _JOBS_VIEW.get(engine)
    if jobs is None:
        raise Unsupported(engine, "a view of jobs", "its tables belong to another product")
    if not name.isidentifier():
        raise InvalidValue("name", name, "must be a plain SQL name, such as harmonyk_jobs")
    return (
        f"create view {name} as\n"
        "select id, type, org_id, payload, simplified_status as status, attempts, max_attempts, next_run_at,\n"
        f"       last_error, created_at, updated_at\n  from {jobs};\n"
    )


class JobsRepository:
    """Jobs as rows to be claimed and marked."""

    def __init__(self, app: App, *, lease: timedelta = DEFAULT_LEASE) -> None:
        """``lease`` is how long a claimed job may go unmarked before it is given to somebody else."""
        from onward.worker.identity import new_worker_id  # noqa: PLC0415 - who only enqueues need not load the worker

        self._app = app
        self._core = core_of(app)
        self._lease = lease
        self._worker_id = new_worker_id()
        self._claims: dict[str, Claim] = {}

    async def enqueue(
        self,
        type: str,
        org_id: str | None = None,
        payload: Mapping[str, Any] | None = None,
        run_at: datetime | None = None,
    ) -> str:
        """Add a job and give its id.

        A type that is a task of the App gets that task's queue and options, and its payload must fit the function; any
        other is stored as it is, in the default queue, for whoever knows it.
        """
        task = self._app.tasks.get(type)
        if task is None:
            job = NewJob(type=type, org_id=org_id, payload=to_json(payload or {}), run_at=run_at)
        else:
            job = task.using(org_id=org_id, run_at=run_at).job(**(payload or {}))
        return (await self._app.enqueue_many([job]))[0].id

    async def claim(self, limit: int = 1, *, queues: Sequence[str] = ("*",)) -> list[Claim]:
        """Take at most ``limit`` jobs that are ready, and start them. Mark each before its lease has run out."""
        await self._app.open()
        request = ClaimRequest(worker_id=self._worker_id, queues=tuple(queues), slots=limit, lease=self._lease)
        taken = list((await self._core.engine.claim(request)).claims)
        self._claims.update((claim.ref.id, claim) for claim in taken)
        return taken

    async def mark_success(self, id: str, result: Any = None) -> None:
        """Record that a claimed job is done.

        Raises:
            ClaimLost: it was not claimed here, or has been given to somebody else since.
        """
        await self._mark(id, Returned(None if result is None else to_json(result, field="result")))

    async def mark_failure(self, id: str, error: str | BaseException) -> None:
        """Record that a claimed job has failed: back to waiting, or ended, as its attempts say (H3).

        Raises:
            ClaimLost: it was not claimed here, or has been given to somebody else since.
        """
        kind = "Error" if isinstance(error, str) else type(error).__qualname__
        await self._mark(id, Raised(Failure(kind, str(error))))

    async def _mark(self, id: str, result: Result) -> None:
        claim = self._claims.get(id)
        if claim is None:
            message = f"job {id} is not held by this repository: claim it here before you mark it, and mark it once"
            raise ClaimLost(message)
        lost = await self._core.engine.settle([Settlement(claim, decide(claim, result))])
        del self._claims[id]  # not before the store has answered: whoever could not reach it may mark again
        if lost:
            raise ClaimLost(f"job {id} was given to somebody else, or taken back, before it was marked")
