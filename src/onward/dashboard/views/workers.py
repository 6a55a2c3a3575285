"""Workers: slots, running jobs, heartbeat age, version; quiet, resume, stop."""

from __future__ import annotations

import msgspec

from onward.dashboard.views.rows import Row, rows
from onward.dashboard.visit import Confirmation, Redirect, Screen, Visit
from onward.dashboard.wording import Moment, Pill, listed, number
from onward.engine.values import ANY_TYPE, WorkerInfo
from onward.http.names import encode_name
from onward.job import Job
from onward.lifecycle import HELD
from onward.service.snapshot import is_silent
from onward.service.values import JobQuery

_MOST_RUNNING = 200


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker in a table."""

    id: str
    path: str
    state: Pill
    host: str
    slots: int
    running: int
    share: int
    """Percent of its slots in use."""
    heartbeat: Moment | None
    started: Moment | None
    version: str
    queues: str
    types: str
    jobs: tuple[Row, ...]
    is_quiet: bool
    is_silent: bool


class WorkersPage(msgspec.Struct, frozen=True, kw_only=True):
    """All workers."""

    rows: tuple[WorkerRow, ...]
    slots: str
    running: str
    versions: tuple[str, ...]
    is_capped: bool
    can_operate: bool


async def show(visit: Visit) -> Screen:
    """List workers."""

    async def read() -> tuple[tuple[WorkerInfo, ...], tuple[Job, ...]]:
        workers = (await visit.services.workers.list(visit.identity)).items
        held = JobQuery(status=tuple(sorted(set(map(visit.capabilities.shown, HELD)))))
        jobs = (await visit.services.jobs.list(visit.identity, held, limit=_MOST_RUNNING)).items
        return workers, jobs

    workers, jobs = (
        await visit.reads.get(("workers", visit.scope), read, fresh_for=1.0) if visit.is_live else await read()
    )
    lease = visit.services.store.core.config.lease
    by_worker: dict[str | None, list[Job]] = {}
    for job in jobs:
        by_worker.setdefault(job.worker_id, []).append(job)
    shown = []
    for one in sorted(workers, key=lambda one: (not one.is_leader, one.hostname, one.id)):
        silent = is_silent(one, lease, visit.now)
        running = by_worker.get(one.id, [])
        shown.append(
            WorkerRow(
                id=one.id,
                path=f"/workers/{encode_name(one.id)}",
                state=_state(one, silent=silent),
                host=one.hostname,
                slots=one.pool_size,
                running=len(running),
                share=min(100, 100 * len(running) // max(1, one.pool_size)),
                heartbeat=visit.moment(one.last_heartbeat),
                started=visit.moment(one.started_at),
                version=one.version,
                queues=listed(one.queues),
                types="any task" if ANY_TYPE in one.types else listed(sorted(one.types)),
                jobs=rows(visit, running[:20]),
                is_quiet=one.is_quiet,
                is_silent=silent,
            )
        )
    live = [one for one in shown if not one.is_silent]
    page = WorkersPage(
        rows=tuple(shown),
        slots=number(sum(one.slots for one in live)),
        running=number(sum(one.running for one in live)),
        versions=tuple(sorted({one.version for one in live})),
        is_capped=len(jobs) >= _MOST_RUNNING,
        can_operate=visit.may("workers.quiet"),
    )
    return Screen(template="workers.html", title="Workers", section="workers", page=page)


def _state(worker: WorkerInfo, *, silent: bool) -> Pill:
    if silent:
        return Pill(word="silent", kind="bad")
    if worker.is_quiet:
        return Pill(word="quiet", kind="wait", hollow=True)
    return Pill(word="leader" if worker.is_leader else "active", kind="ok")


async def quiet(visit: Visit) -> Redirect:
    """Have the worker claim no more jobs."""
    await visit.services.workers.quiet(visit.identity, visit.path["id"])
    return Redirect(path="/workers", note="quiet")


async def resume(visit: Visit) -> Redirect:
    """Have the worker claim jobs again."""
    await visit.services.workers.resume(visit.identity, visit.path["id"])
    return Redirect(path="/workers", note="worker-resumed")


async def stop(visit: Visit) -> Redirect:
    """Stop the worker."""
    visit.confirm(
        Confirmation(
            title="Stop this worker?",
            text=f"{visit.path['id']} finishes its running jobs and exits, as after SIGTERM. "
            "Starting it again is up to whatever supervises it.",
            verb="Stop the worker",
        )
    )
    await visit.services.workers.stop(visit.identity, visit.path["id"])
    return Redirect(path="/workers", note="stopping")
