"""``onward jobs``: look at jobs, count and export them, and cancel, replay, edit or delete them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from onward.app import App
from onward.cli import bulk, output
from onward.cli.command import (
    UNSUCCESSFUL,
    UNSUCCESSFUL_WORD,
    CursorOption,
    DryRunOption,
    IdsArgument,
    JsonOption,
    LimitOption,
    YesOption,
    list_by_default,
    on_app,
)
from onward.cli.errors import usage_error
from onward.cli.units import age, read_datetime
from onward.core import core_of
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.values import JobFilter, LogLine, Page
from onward.job import Job
from onward.lifecycle import FINISHED, MOVES, WAITING, JobStatus, Move
from onward.resources import CountBy
from onward.service.export import csv_chunks, ndjson_chunks
from onward.service.identity import of_command_line
from onward.service.jobs import MAX_EXPORTED
from onward.service.services import Services
from onward.service.wording import count, duration

jobs = typer.Typer(help="Look at jobs, and cancel, replay, edit or delete them.")

ByOption = Annotated[CountBy, typer.Option("--by", help="The field to count by.")]
AllOption = Annotated[bool, typer.Option("--all", help="All of them.", show_default=False)]


@jobs.command("list")
@on_app()
async def list_jobs(
    app: App, job_filter: JobFilter, limit: LimitOption = 50, cursor: CursorOption = None, json: JsonOption = False
) -> None:
    """List jobs, the newest first."""
    page = await app.jobs.list(job_filter, limit=limit, cursor=cursor)
    show_page(page, app.capabilities, json=json)
    await note_other_failures(app, job_filter)


list_by_default(jobs, list_jobs)


async def note_other_failures(app: App, job_filter: JobFilter) -> None:
    """Point to dead letters where failed jobs were asked for, and the other way round: both ended badly."""
    given = job_filter.status
    if (
        given is None
        or len(given & UNSUCCESSFUL) != 1
        or app.capabilities.shown(JobStatus.DEAD_LETTER) in given - {JobStatus.DEAD_LETTER}
    ):
        return
    (other,) = UNSUCCESSFUL - given
    counts = await app.jobs.count(msgspec.structs.replace(job_filter, status=frozenset({other})), by="status")
    if number := sum(counts.values()):
        what = count(number, "dead letter" if other is JobStatus.DEAD_LETTER else "failed job")
        output.note(f"not listed: {what} of the same kind; onward jobs list --status {UNSUCCESSFUL_WORD} has both")


def show_page(page: Page[Job], capabilities: Capabilities, *, json: bool) -> None:
    """Write some jobs, and how to get more."""
    if json:
        output.show_json({"jobs": page.items, "next_cursor": page.next_cursor})
        return
    if not page.items:
        output.note("no jobs")
        return
    output.show_table(
        ("id", "type", "queue", "status", "attempts", "age", "details"),
        [
            (
                bulk.name_of(job, capabilities),
                job.type,
                job.queue,
                output.styled(job.status),
                f"{job.attempts}/{job.max_attempts}",
                duration(max(datetime.now(UTC) - job.created_at, timedelta(0))),
                summary_of(job),
            )
            for job in page.items
        ],
        right=("attempts", "age"),
    )
    if page.next_cursor is not None:
        output.note(f"more jobs: --cursor {page.next_cursor}")


def summary_of(job: Job) -> str:
    """Say in a few words what is up with a job."""
    match job.status:
        case JobStatus.SCHEDULED:
            due = f"due {age(job.next_run_at)}" if job.next_run_at else ""
            return f"{due} after {job.last_error}" if job.last_error else due
        case JobStatus.RUNNING if job.progress is not None:
            return f"{job.progress} % {job.progress_message or ''}".rstrip()
        case JobStatus.FAILED | JobStatus.DEAD_LETTER | JobStatus.CANCELLED:
            return job.last_error or ""
        case _:
            return f"suspect, {job.crashes} crashes" if job.is_suspect else ""


@jobs.command("count")
@on_app()
async def count_jobs(app: App, job_filter: JobFilter, by: ByOption = "status", json: JsonOption = False) -> None:
    """Count jobs."""
    show_counts(by, await app.jobs.count(job_filter, by=by), json=json)


def show_counts(by: str, counts: Mapping[str, int], *, json: bool) -> None:
    """Write how many jobs there are, by a field."""
    total = sum(counts.values())
    if json:
        output.show_json({"by": by, "counts": counts, "total": total})
        return
    rows = [(name, str(number)) for name, number in sorted(counts.items(), key=lambda one: -one[1])]
    output.show_table((by, "jobs"), [*rows, ("total", str(total))], right=("jobs",))


class ExportFormat(StrEnum):
    """How jobs are exported."""

    NDJSON = "ndjson"
    CSV = "csv"


@jobs.command()
@on_app()
async def export(
    app: App,
    job_filter: JobFilter,
    format: Annotated[ExportFormat, typer.Option("--as", help="How to write them.")] = ExportFormat.NDJSON,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=MAX_EXPORTED, help="Most jobs to write.")] = 10_000,
) -> None:
    """Write jobs as NDJSON or CSV. The newest first, with secrets redacted."""
    pages = await Services(app).jobs.export_matching(of_command_line(), job_filter, limit=limit)
    chunks = csv_chunks(pages) if format is ExportFormat.CSV else ndjson_chunks(pages)
    async for chunk in chunks:
        text = chunk.decode()
        if format is ExportFormat.NDJSON:
            text = output.escape_json(text)
        elif sys.stdout.isatty():  # in a file, an error text is as it is
            text = output.escape_lines(text) + "\n"
        sys.stdout.write(text)


@jobs.command()
@on_app(action="jobs.edit")
async def edit(
    app: App,
    id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")],
    priority: Annotated[int | None, typer.Option(help="Higher is more urgent.", show_default=False)] = None,
    max_attempts: Annotated[int | None, typer.Option(help="The most runs there may be.", show_default=False)] = None,
    at: Annotated[
        datetime | None, typer.Option(metavar="MOMENT", parser=read_datetime, help="Run it then.", show_default=False)
    ] = None,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="Its arguments.", show_default=False)] = None,
    json: JsonOption = False,
) -> None:
    """Change a job that waits."""
    given: dict[str, Any] = {"priority": priority, "max_attempts": max_attempts, "run_at": at}
    change = {name: value for name, value in given.items() if value is not None}
    if payload is not None:
        try:
            change["payload"] = msgspec.json.decode(payload, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeError) as error:
            raise usage_error(f"--payload is no JSON object: {error}", remedy='write \'{"name": "value"}\'') from None
    if not change:
        raise usage_error("nothing to change was given", remedy="add --priority, --max-attempts, --at or --payload")
    job = await bulk.find_job(app.jobs, id)
    if "payload" in change and (handler := core_of(app).handlers.get(job.type)) is not None:
        handler.arguments.decode(msgspec.json.encode(change["payload"]).decode())
    edited = await app.jobs.edit(job.ref, **change)
    if json:
        output.show_json(edited)
    else:
        output.note(f"{bulk.name_of(edited, app.capabilities)} is changed")


@jobs.command()
@on_app()
async def show(app: App, id: Annotated[str, typer.Argument(help="The job's id.")], json: JsonOption = False) -> None:
    """Show everything about one job: its arguments, errors and log."""
    job = await bulk.find_job(app.jobs, id)
    lines = await app.jobs.logs(job) if app.capabilities.has(Feature.LOG_LINES) else []
    show_job(job, lines, json=json)


def show_job(job: Job, lines: Sequence[LogLine], *, json: bool) -> None:
    """Write everything about a job."""
    if json:
        log = [{"at": line.at, "line": line.line} for line in lines]
        output.show_json({**msgspec.structs.asdict(job), "log": log})
        return
    console = output.stdout()

    def fact(name: str, value: Any) -> None:
        if value is not None and value != "":
            shown = value if isinstance(value, Text) else Text(output.escape(value))
            console.print(Text.assemble((f"{name:>12}  ", "dim"), shown))

    def moment(name: str, at: datetime | None) -> None:
        if at is not None:
            fact(name, f"{at.astimezone():%Y-%m-%d %H:%M:%S}  ({age(at)})")

    fact("id", job.id)
    fact("type", job.type)
    fact("queue", job.queue)
    fact("status", output.styled(job.status))
    fact("organisation", job.org_id)
    fact("batch", job.batch)
    fact("priority", job.priority or None)
    fact("attempts", f"{job.attempts} of {job.max_attempts}")
    fact("crashes", job.crashes or None)
    fact("suspect", "yes: it runs alone in a child process" if job.is_suspect else None)
    fact("worker", job.worker_id)
    if job.progress is not None:
        fact("progress", f"{job.progress} % {job.progress_message or ''}".rstrip())
    fact("key", job.idempotency_key)
    fact("dedupe key", job.dedupe_key)
    moment("created", job.created_at)
    moment("due", job.next_run_at if job.status in WAITING else None)
    moment("start by", job.start_by)
    moment("claimed", job.claimed_at)
    moment("started", job.started_at)
    moment("ended", job.completed_at)
    fact("arguments", _json(job.payload))
    if job.status is JobStatus.COMPLETED:
        fact("result", _json(job.result))
    fact("last error", job.last_error)
    for error in job.errors:
        console.print()
        console.print(
            Text(
                output.escape(f"attempt {error.attempt}, {age(error.at)}: {error.error_type}: {error.message}"),
                style="red",
            )
        )
        if error.traceback:
            console.print(Text(output.escape_lines(error.traceback.rstrip()), style="dim"))
    if lines:
        console.print()
        console.print(Text("log", style="bold"))
        for line in lines:
            console.print(Text(f"{line.at.astimezone():%H:%M:%S}  {output.escape(line.line)}"))


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


@jobs.command()
@on_app(action="jobs.cancel")
async def cancel(
    app: App,
    job_filter: JobFilter,
    ids: IdsArgument = None,
    reason: Annotated[str, typer.Option(help="Kept with the job.")] = "cancelled",
    everything: AllOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Take jobs back, by id or by filter. The handler of a running one is stopped."""
    action = bulk.Action(
        name="cancel",
        past_tense="cancelled",
        sources=MOVES[Move.CANCEL][0],
        act=lambda some: app.jobs.cancel(some, reason=reason),
        resource=app.jobs,
    )
    await bulk.run(action, ids or (), job_filter, everything=everything, yes=yes, dry_run=dry_run, json=json)


@jobs.command()
@on_app(action="jobs.replay")
async def replay(
    app: App,
    job_filter: JobFilter,
    ids: IdsArgument = None,
    everything: AllOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Re-enqueue failed, dead and cancelled jobs. By id or by filter, with a fresh attempt count."""
    action = bulk.Action(
        name="replay",
        past_tense="replayed",
        sources=MOVES[Move.REPLAY][0],
        act=app.jobs.replay,
        resource=app.jobs,
    )
    await bulk.run(action, ids or (), job_filter, everything=everything, yes=yes, dry_run=dry_run, json=json)


@jobs.command()
@on_app(action="jobs.delete")
async def delete(
    app: App,
    job_filter: JobFilter,
    ids: IdsArgument = None,
    everything: AllOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Remove jobs and their keys, by id or by filter. One that a worker holds stays."""
    action = bulk.Action(
        name="delete", past_tense="deleted", sources=WAITING | FINISHED, act=app.jobs.delete, resource=app.jobs
    )
    await bulk.run(action, ids or (), job_filter, everything=everything, yes=yes, dry_run=dry_run, json=json)
