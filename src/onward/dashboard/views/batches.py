"""Batches and flows: progress, graph, failed members."""

from __future__ import annotations

import shlex

import msgspec

from onward.dashboard.graph import MAX_NODES, Drawing, draw
from onward.dashboard.views.rows import Row, rows
from onward.dashboard.visit import PAGE_SIZE, Confirmation, Redirect, Screen, Visit
from onward.dashboard.wording import Moment, Pill, number
from onward.http.names import encode_name
from onward.job import Job
from onward.lifecycle import JobStatus
from onward.service.values import BatchView, Graph, JobQuery
from onward.service.wording import count


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A batch in a table."""

    name: str
    path: str
    state: Pill
    queue: str
    progress: int
    total: str
    completed: str
    failed: str
    cancelled: str
    left: str
    created: Moment | None
    finished: Moment | None
    is_finished: bool
    is_sealed: bool
    completed_share: float
    failed_share: float
    cancelled_share: float


class BatchesPage(msgspec.Struct, frozen=True, kw_only=True):
    """Batches, the newest first."""

    rows: tuple[BatchRow, ...]
    older: str | None
    newer: bool


class BatchPage(msgspec.Struct, frozen=True, kw_only=True):
    """A batch."""

    batch: BatchRow
    drawing: Drawing | None
    is_flow: bool
    jobs: tuple[Row, ...]
    older: str | None
    newer: bool
    failures: tuple[Row, ...]
    search: str
    can_pause: bool
    is_paused: bool
    can_cancel: bool
    can_delete: bool
    commands: tuple[str, ...]


async def show_all(visit: Visit) -> Screen:
    """List batches."""
    found = await visit.services.batches.list(visit.identity, cursor=visit.cursor, limit=PAGE_SIZE)
    page = BatchesPage(
        rows=tuple(_row(visit, one) for one in found.items), older=found.next_cursor, newer=visit.cursor is not None
    )
    return Screen(template="batches.html", title="Batches", section="batches", page=page)


async def show(visit: Visit) -> Screen:
    """Show a batch."""
    services, who, name = visit.services, visit.identity, visit.path["name"]

    async def read() -> tuple[BatchView, tuple[Job, ...], str | None, Graph, tuple[Job, ...]]:
        batch = await services.batches.get(who, name)
        page = await services.batches.jobs(who, name, cursor=visit.cursor, limit=MAX_NODES)
        graph = await services.batches.graph(who, name)
        states = sorted(set(map(visit.capabilities.shown, (JobStatus.FAILED, JobStatus.DEAD_LETTER))))
        failed = JobQuery(batch=name, status=tuple(states))
        failures = (await services.jobs.list(who, failed, limit=20)).items if batch.failed else ()
        return batch, page.items, page.next_cursor, graph, failures

    key = ("batch", visit.scope, name, visit.cursor)
    batch, jobs, older, graph, failures = (
        await visit.reads.get(key, read, fresh_for=0.5) if visit.is_live else await read()
    )
    paused = False
    if batch.queue is not None and visit.may("queues.get"):
        paused = any(
            queue.name == batch.queue and queue.paused
            for queue in (visit.pulse.beat.queues if visit.pulse.beat else None) or ()
        )
    whole = older is None and visit.cursor is None
    shown = _row(visit, batch)
    page = BatchPage(
        batch=shown,
        drawing=draw(jobs, graph.items, {job.id: visit.job_path(job) for job in jobs}) if whole else None,
        is_flow=bool(graph.items),
        jobs=rows(visit, jobs),
        older=older,
        newer=visit.cursor is not None,
        failures=rows(visit, failures),
        search=f'batch:"{name}"' if " " in name else f"batch:{name}",
        can_pause=batch.queue is not None and not shown.is_finished and visit.may("batches.pause"),
        is_paused=paused,
        can_cancel=not shown.is_finished and visit.may("batches.cancel"),
        can_delete=shown.is_finished and visit.may("batches.delete"),
        commands=(f"onward batches show {shlex.quote(name)}", f"onward batches graph {shlex.quote(name)}"),
    )
    unfinished = tuple(job.ref for job in jobs if job.completed_at is None)[:20]
    return Screen(template="batch.html", title=name, section="batches", page=page, watch=unfinished)


def _row(visit: Visit, one: BatchView) -> BatchRow:
    if one.finished_at is not None:
        state = Pill(word="failed", kind="bad") if one.failed else Pill(word="finished", kind="ok")
    else:
        state = Pill(word="running", kind="busy") if one.sealed else Pill(word="open", kind="wait")
    total = max(1, one.total)
    left = max(0, one.total - one.completed - one.failed - one.cancelled)
    return BatchRow(
        name=one.name,
        path=f"/batches/{encode_name(one.name)}",
        state=state,
        queue=one.queue or "",
        progress=one.progress,
        total=number(one.total),
        completed=number(one.completed),
        failed=number(one.failed) if one.failed else "",
        cancelled=number(one.cancelled) if one.cancelled else "",
        left=number(left) if left else "",
        created=visit.moment(one.created_at),
        finished=visit.moment(one.finished_at),
        is_finished=one.finished_at is not None,
        is_sealed=one.sealed,
        completed_share=round(100 * one.completed / total, 1),
        failed_share=round(100 * one.failed / total, 1),
        cancelled_share=round(100 * one.cancelled / total, 1),
    )


async def pause(visit: Visit) -> Redirect:
    """Pause the batch's queue."""
    await visit.services.batches.pause(visit.identity, visit.path["name"])
    return Redirect(path=f"/batches/{encode_name(visit.path['name'])}", note="batch-paused")


async def resume(visit: Visit) -> Redirect:
    """Resume the batch's queue."""
    await visit.services.batches.resume(visit.identity, visit.path["name"])
    return Redirect(path=f"/batches/{encode_name(visit.path['name'])}", note="batch-resumed")


async def cancel(visit: Visit) -> Redirect:
    """Cancel the batch."""
    name = visit.path["name"]
    batch = await visit.services.batches.get(visit.identity, name)
    left = max(0, batch.total - batch.completed - batch.failed - batch.cancelled)
    visit.confirm(
        Confirmation(
            title=f"Cancel the batch {name}?",
            text=f"{count(left, 'job')} that have not ended are cancelled, and no job can be added.",
            verb="Cancel the batch",
        )
    )
    await visit.services.batches.cancel(visit.identity, name)
    return Redirect(path=f"/batches/{encode_name(name)}", note="batch-cancelled")


async def delete(visit: Visit) -> Redirect:
    """Delete the batch."""
    visit.confirm(
        Confirmation(
            title=f"Delete the batch {visit.path['name']}?",
            text="Its jobs stay for as long as their queue keeps them.",
            verb="Delete the batch",
        )
    )
    await visit.services.batches.delete(visit.identity, visit.path["name"])
    return Redirect(path="/batches", note="batch-deleted")
