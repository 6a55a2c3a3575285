"""A job: timeline, attempts, payload, log, progress, result, why it is not running, and what can be done."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import UNSET

from onward.batches.values import Dependency
from onward.dashboard.tree import Node, as_text, has_redacted, restored, tree
from onward.dashboard.visit import Confirmation, Redirect, Screen, Visit
from onward.dashboard.wording import Moment, Pill, pill, short_id, shortened, span
from onward.engine.capabilities import Feature
from onward.errors import InvalidValue, OnwardError, PermissionDenied
from onward.http.names import encode_name
from onward.job import EnqueueStatus, Job, JobRef
from onward.lifecycle import FINISHED, HELD, MOVES, WAITING, JobStatus, Move
from onward.service.values import EnqueueRequest, JobEdit

_MAX_LINES: Final = 1000
_MAX_NEIGHBOURS: Final = 20
_FRESH: Final = 0.5


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A point of the timeline."""

    at: Moment | None
    kind: str
    text: str
    aside: str = ""
    is_now: bool = False


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A run that failed."""

    number: int
    at: Moment | None
    error_type: str
    message: str
    traceback: str
    worker: str


class LogRow(msgspec.Struct, frozen=True, kw_only=True):
    """A log line."""

    at: Moment | None
    line: str


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A job before or after this one in its flow."""

    path: str
    type: str
    short_id: str
    status: Pill


class ReasonRow(msgspec.Struct, frozen=True, kw_only=True):
    """Why the job is not running."""

    message: str
    until: Moment | None
    remedy: str


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """A job."""

    job: Job
    ref: str
    path: str
    short_id: str
    status: Pill
    created: Moment | None
    started: Moment | None
    ended: Moment | None
    next_run: Moment | None
    start_by: Moment | None
    updated: Moment | None
    took: str
    waited: str
    steps: tuple[Step, ...]
    attempts: tuple[Attempt, ...]
    payload: Node
    is_hidden: bool
    """Something in it is redacted."""
    is_revealed: bool
    result: Node | None
    reasons: tuple[ReasonRow, ...]
    lines: tuple[LogRow, ...]
    has_log: bool
    parents: tuple[Neighbour, ...]
    children: tuple[Neighbour, ...]
    commands: tuple[str, ...]
    can_replay: bool
    can_cancel: bool
    can_edit: bool
    can_copy: bool
    can_delete: bool
    can_reveal: bool
    is_scheduled: bool
    is_archived: bool = False


async def show(visit: Visit) -> Screen:
    """Show a job."""

    async def read() -> tuple[Job, tuple[LogRow, ...]]:
        job = await visit.services.jobs.get(visit.identity, visit.job)
        return job, await _lines(visit, job)

    if visit.is_live:
        job, lines = await visit.reads.get(("job", visit.scope, visit.job), read, fresh_for=_FRESH)
    else:
        job, lines = await read()
    return await _screen(visit, job, lines)


async def reveal(visit: Visit) -> Screen:
    """Show a job without redaction. The service leaves an audit record (S6)."""
    job = await visit.services.jobs.reveal(visit.identity, visit.job)
    return await _screen(visit, job, await _lines(visit, job), is_revealed=True)


async def show_archived(visit: Visit) -> Screen:
    """Show a job of the archive."""
    job = await visit.services.archive.get(visit.identity, visit.job)
    return await _screen(visit, job, (), is_archived=True)


async def _screen(
    visit: Visit, job: Job, lines: tuple[LogRow, ...], *, is_revealed: bool = False, is_archived: bool = False
) -> Screen:
    reasons, (parents, children) = await asyncio.gather(_reasons(visit, job, is_archived), _neighbours(visit, job))
    is_reserved = job.type.startswith("onward.")
    can = not is_archived and not is_reserved
    page = JobPage(
        job=job,
        ref=str(job.ref),
        path=visit.job_path(job),
        short_id=short_id(job.id),
        status=pill(job.status),
        created=visit.moment(job.created_at),
        started=visit.moment(job.started_at),
        ended=visit.moment(job.completed_at),
        next_run=visit.moment(job.next_run_at) if job.status in WAITING else None,
        start_by=visit.moment(job.start_by),
        updated=visit.moment(job.updated_at),
        took=_took(job, visit.now),
        waited=_waited(job),
        steps=_steps(visit, job),
        attempts=tuple(
            Attempt(
                number=one.attempt,
                at=visit.moment(one.at),
                error_type=one.error_type,
                message=one.message,
                traceback=one.traceback or "",
                worker=one.worker_id or "",
            )
            for one in reversed(job.errors)
        ),
        payload=tree(job.payload),
        is_hidden=has_redacted(job.payload) or has_redacted(job.result),
        is_revealed=is_revealed,
        result=tree(job.result) if job.status is JobStatus.COMPLETED and job.result is not None else None,
        reasons=reasons,
        lines=lines,
        has_log=visit.has(Feature.LOG_LINES) and not is_archived,
        parents=parents,
        children=children,
        commands=_commands(job.id if visit.capabilities.has_global_ids else str(job.ref), job, is_archived=is_archived),
        can_replay=can
        and job.status in MOVES[Move.REPLAY][0]
        and visit.has(Feature.REPLAY)
        and visit.may("jobs.replay"),
        can_cancel=can and job.status in MOVES[Move.CANCEL][0] and visit.may("jobs.cancel"),
        can_edit=can and job.status in WAITING and visit.has(Feature.EDIT) and visit.may("jobs.edit"),
        can_copy=can and visit.may("jobs.enqueue"),
        can_delete=can and job.status not in HELD and visit.may("jobs.delete"),
        can_reveal=not is_archived and not is_revealed and visit.may("jobs.reveal"),
        is_scheduled=job.status is JobStatus.SCHEDULED,
        is_archived=is_archived,
    )
    return Screen(
        template="job.html",
        title=f"{job.type} {page.short_id}",
        section="archive" if is_archived else "jobs",
        page=page,
        watch=() if is_archived or is_revealed or job.status in FINISHED else (job.ref,),
        is_live=not is_revealed and not is_archived,
    )


async def _lines(visit: Visit, job: Job) -> tuple[LogRow, ...]:
    if not visit.has(Feature.LOG_LINES):
        return ()
    found = (await visit.services.jobs.logs(visit.identity, job.ref)).items[-_MAX_LINES:]
    return tuple(LogRow(at=visit.moment(one.at), line=one.line) for one in found)


async def _reasons(visit: Visit, job: Job, is_archived: bool) -> tuple[ReasonRow, ...]:  # noqa: FBT001
    if is_archived or job.status not in WAITING or not visit.may("jobs.explain"):
        return ()
    found = (await visit.services.jobs.explain(visit.identity, job.ref)).items
    return tuple(ReasonRow(message=one.message, until=visit.moment(one.until), remedy=one.remedy) for one in found)


async def _neighbours(visit: Visit, job: Job) -> tuple[tuple[Neighbour, ...], tuple[Neighbour, ...]]:
    if job.batch is None or not visit.has(Feature.BATCHES) or not visit.may("batches.graph"):
        return (), ()
    batch = job.batch

    async def read() -> tuple[Dependency, ...]:
        try:
            return (await visit.services.batches.graph(visit.identity, batch)).items
        except OnwardError:  # the batch is on the list no longer
            return ()

    graph = await visit.reads.get(("graph", visit.scope, batch), read, fresh_for=5.0)
    before = [one.depends_on for one in graph if one.job == job.id][:_MAX_NEIGHBOURS]
    after = [one.job for one in graph if one.depends_on == job.id][:_MAX_NEIGHBOURS]
    return await _named(visit, job, before), await _named(visit, job, after)


async def _named(visit: Visit, job: Job, ids: Sequence[str]) -> tuple[Neighbour, ...]:
    found = []
    for id in ids:
        name = id if visit.capabilities.has_global_ids else JobRef(job.queue, id)
        try:
            other = await visit.services.jobs.get(visit.identity, name)
        except OnwardError:
            continue
        found.append(
            Neighbour(
                path=visit.job_path(other), type=other.type, short_id=short_id(other.id), status=pill(other.status)
            )
        )
    return tuple(found)


def _steps(visit: Visit, job: Job) -> tuple[Step, ...]:
    steps = [Step(at=visit.moment(job.created_at), kind="done", text="Enqueued")]
    for one in job.errors:
        aside = f"on {one.worker_id}" if one.worker_id else ""
        text = f"Attempt {one.attempt} failed: {one.error_type}"
        steps.append(Step(at=visit.moment(one.at), kind="bad", text=text, aside=aside))
    started = job.started_at
    last_failure = job.errors[-1].at if job.errors else None
    if started is not None and (last_failure is None or started > last_failure):
        after = f"after {_waited(job)}" if not job.errors and _waited(job) else ""
        where = f"on {job.worker_id}" if job.worker_id else ""
        steps.append(
            Step(
                at=visit.moment(started),
                kind="done",
                text=f"Attempt {job.attempts} started",
                aside=" ".join(part for part in (where, after) if part),
            )
        )
    match job.status:
        case JobStatus.COMPLETED:
            steps.append(
                Step(at=visit.moment(job.completed_at), kind="ok", text="Completed", aside=_took(job, visit.now))
            )
        case JobStatus.FAILED | JobStatus.DEAD_LETTER:
            word = "Dead letter: attempts used up" if job.status is JobStatus.DEAD_LETTER else "Failed for good"
            steps.append(Step(at=visit.moment(job.completed_at), kind="bad", text=word))
        case JobStatus.CANCELLED:
            reason = shortened(job.last_error)
            steps.append(Step(at=visit.moment(job.completed_at), kind="idle", text="Cancelled", aside=reason))
        case JobStatus.RUNNING:
            aside = f"{job.progress} %" if job.progress is not None else ""
            steps.append(Step(at=None, kind="busy", text="Running", aside=aside, is_now=True))
        case JobStatus.CLAIMED:
            steps.append(Step(at=None, kind="busy", text="Claimed, about to start", is_now=True))
        case JobStatus.SCHEDULED:
            word = "Waits to retry" if job.errors else "Waits for its time"
            steps.append(Step(at=visit.moment(job.next_run_at), kind="wait", text=word, is_now=True))
        case JobStatus.BLOCKED:
            steps.append(Step(at=None, kind="wait", text="Waits for other jobs", is_now=True))
        case JobStatus.PENDING:
            steps.append(Step(at=None, kind="wait", text="Ready: waits for a worker", is_now=True))
    return tuple(steps)


def _took(job: Job, now: datetime) -> str:
    if job.started_at is None or job.status in WAITING:
        return ""
    end = job.completed_at if job.completed_at is not None else now
    return span(max(0.0, (end - job.started_at).total_seconds()))


def _waited(job: Job) -> str:
    if job.started_at is None or job.errors:
        return ""
    seconds = (job.started_at - job.created_at).total_seconds()
    return span(seconds) if seconds >= 0 else ""


def _commands(name: str, job: Job, *, is_archived: bool) -> tuple[str, ...]:
    ref = shlex.quote(name)
    if is_archived:
        return (f"onward archive show {ref}",)
    commands = [f"onward jobs show {ref}"]
    if job.status in WAITING:
        commands.append(f"onward explain {ref}")
    if job.status in MOVES[Move.REPLAY][0]:
        commands.append(f"onward jobs replay {ref}")
    if job.status not in FINISHED:
        commands.append(f"onward jobs cancel {ref}")
    return tuple(commands)


# Actions --------------------------------------------------------------------------------------------------------------


async def replay(visit: Visit) -> Redirect:
    """Replay the job."""
    done = await visit.services.jobs.replay(visit.identity, visit.job)
    return Redirect(path=visit.job_path(JobRef(done.queue, done.id)), note="replayed")


async def cancel(visit: Visit) -> Redirect:
    """Cancel the job."""
    job = await visit.services.jobs.get(visit.identity, visit.job)
    is_held = job.status in HELD
    visit.confirm(
        Confirmation(
            title=f"Cancel {job.type}?",
            text="Its handler is running: it is asked to stop."
            if is_held
            else "It will not run unless it is replayed.",
            verb="Cancel the job",
        )
    )
    reason = visit.form.text("reason") or "cancelled"
    done = await visit.services.jobs.cancel(visit.identity, visit.job, reason=reason)
    if not visit.has(Feature.CANCELLED_STATE):
        return Redirect(path="/jobs", note="cancelled")
    return Redirect(path=visit.job_path(JobRef(done.queue, done.id)), note="cancelled")


async def delete(visit: Visit) -> Redirect:
    """Delete the job."""
    job = await visit.services.jobs.get(visit.identity, visit.job)
    visit.confirm(
        Confirmation(title=f"Delete {job.type}?", text="A deleted job cannot be restored.", verb="Delete the job")
    )
    await visit.services.jobs.delete(visit.identity, visit.job)
    return Redirect(path="/jobs", note="deleted")


async def run_now(visit: Visit) -> Redirect:
    """Make a scheduled job due."""
    job = await visit.services.jobs.edit(visit.identity, visit.job, JobEdit(run_at=datetime.now(UTC)))
    return Redirect(path=visit.job_path(job), note="due")


class EditPage(msgspec.Struct, frozen=True, kw_only=True):
    """A form for a job: to edit it, or to enqueue a copy."""

    path: str
    job_path: str
    type: str
    queue: str
    org_id: str
    priority: str
    max_attempts: str
    run_at: str
    delay: str
    payload: str
    mistake: str = ""
    is_hidden: bool = False
    can_restore: bool = False
    is_copy: bool = False
    has_priority: bool = True
    has_delay: bool = True
    short_id: str = ""


def _form(visit: Visit, job: Job, *, is_copy: bool, mistake: str = "") -> Screen:
    form = visit.form if visit.form.pairs else None
    shown = visit.job_path(job)

    def value(name: str, stored: Any) -> str:
        if form is not None:
            return form.text(name)
        return "" if stored is None else str(stored)

    run_at = "" if job.next_run_at is None else job.next_run_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    page = EditPage(
        path=f"{shown}/{'copy' if is_copy else 'edit'}",
        job_path=shown,
        type=job.type,
        queue=value("queue", job.queue),
        org_id=value("org_id", job.org_id),
        priority=value("priority", job.priority),
        max_attempts=value("max_attempts", job.max_attempts),
        run_at=value("run_at", run_at if job.status is JobStatus.SCHEDULED else ""),
        delay=value("delay", ""),
        payload=value("payload", as_text(job.payload)),
        mistake=mistake,
        is_hidden=has_redacted(job.payload),
        can_restore=visit.may("jobs.reveal"),
        is_copy=is_copy,
        has_priority=visit.has(Feature.PRIORITY),
        has_delay=visit.has(Feature.DELAY),
        short_id=short_id(job.id),
    )
    title = f"Run a copy of {job.type}" if is_copy else f"Edit {job.type}"
    return Screen(
        template="job_form.html", title=title, section="jobs", page=page, is_live=False, status=400 if mistake else 200
    )


async def show_edit(visit: Visit) -> Screen:
    """Show the form to edit a job."""
    return _form(visit, await visit.services.jobs.get(visit.identity, visit.job), is_copy=False)


async def show_copy(visit: Visit) -> Screen:
    """Show the form to run a copy."""
    return _form(visit, await visit.services.jobs.get(visit.identity, visit.job), is_copy=True)


async def edit(visit: Visit) -> Screen | Redirect:
    """Change the job, as far as the form differs from it."""
    job = await visit.services.jobs.get(visit.identity, visit.job)
    form = visit.form
    try:
        payload = form.json("payload")
        priority, most, run_at = form.whole("priority"), form.whole("max_attempts"), _time(form.text("run_at"))
        change = JobEdit(
            priority=UNSET if priority is None or priority == job.priority else priority,
            max_attempts=UNSET if most is None or most == job.max_attempts else most,
            run_at=UNSET if run_at is None or run_at == job.next_run_at else run_at,
            payload=UNSET if payload == job.payload else await _unredacted(visit, payload, job),
        )
        edited = await visit.services.jobs.edit(visit.identity, visit.job, change)
    except InvalidValue as error:
        return _form(visit, job, is_copy=False, mistake=str(error))
    return Redirect(path=visit.job_path(edited), note="edited")


async def copy(visit: Visit) -> Screen | Redirect:
    """Enqueue a copy of the job."""
    job = await visit.services.jobs.get(visit.identity, visit.job)
    form = visit.form
    try:
        priority, most, delay = form.whole("priority"), form.whole("max_attempts"), form.text("delay")
        request = EnqueueRequest(
            type=job.type,
            payload=await _unredacted(visit, form.json("payload"), job),
            queue=form.text("queue") or job.queue,
            org_id=form.optional("org_id"),
            priority=priority or UNSET,
            max_attempts=UNSET if most is None else most,
            delay=_delay(delay),
        )
        done = await visit.services.jobs.enqueue(visit.identity, request)
    except InvalidValue as error:
        return _form(visit, job, is_copy=True, mistake=str(error))
    note = "copied" if done.enqueue_status is EnqueueStatus.INSERTED else "exists"
    return Redirect(path=visit.job_path(JobRef(done.queue, done.id)), note=note)


async def _unredacted(visit: Visit, payload: Any, shown: Job) -> Any:
    """Return a payload with its redacted values as the job has them; that is a reveal, and audited as one."""
    if not has_redacted(payload):
        return payload
    if not visit.may("jobs.reveal"):
        raise PermissionDenied(
            "the payload has redacted values, which this action would write as they are shown",
            remedy="replace every [redacted] by a value, or use a token with the permission reveal",
        )
    original = await visit.services.jobs.reveal(visit.identity, visit.job)
    return restored(payload, original.payload, shown.payload)


def _time(text: str) -> datetime | None:
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue("run_at", text, "must be a time such as 2026-11-01T10:00Z") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _delay(text: str) -> float | None:
    if not text:
        return None
    try:
        return timedelta(seconds=float(text)).total_seconds()
    except (ValueError, OverflowError):
        raise InvalidValue("delay", text, "must be a number of seconds") from None


def path_of(visit: Visit, job: Job) -> str:
    """Return the path of an archived job's page."""
    if visit.capabilities.has_global_ids:
        return f"/archive/{encode_name(job.id)}"
    return f"/archive/{encode_name(job.queue)}/{encode_name(job.id)}"
