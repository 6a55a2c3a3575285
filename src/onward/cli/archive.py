"""``onward archive``: ended jobs that their queue no longer keeps, for a while longer (P9)."""

from __future__ import annotations

from typing import Annotated

import typer

from onward.app import App
from onward.cli import bulk
from onward.cli.command import (
    CursorOption,
    DryRunOption,
    IdsArgument,
    JsonOption,
    LimitOption,
    YesOption,
    list_by_default,
    on_app,
)
from onward.cli.jobs import AllOption, ByOption, show_counts, show_job, show_page
from onward.engine.values import JobFilter
from onward.lifecycle import FINISHED

archive = typer.Typer(help="Look at archived jobs, and purge them.")


@archive.command("list")
@on_app()
async def list_archived(
    app: App, job_filter: JobFilter, limit: LimitOption = 50, cursor: CursorOption = None, json: JsonOption = False
) -> None:
    """List archived jobs, the last one first."""
    show_page(await app.archive.list(job_filter, limit=limit, cursor=cursor), app.capabilities, json=json)


list_by_default(archive, list_archived)


@archive.command("count")
@on_app()
async def count_archived(app: App, job_filter: JobFilter, by: ByOption = "status", json: JsonOption = False) -> None:
    """Count archived jobs."""
    show_counts(by, await app.archive.count(job_filter, by=by), json=json)


@archive.command()
@on_app()
async def show(app: App, id: Annotated[str, typer.Argument(help="The job's id.")], json: JsonOption = False) -> None:
    """Show one archived job. Its arguments, result and errors."""
    show_job(await bulk.find_job(app.archive, id), [], json=json)


@archive.command()
@on_app(action="archive.purge")
async def purge(
    app: App,
    job_filter: JobFilter,
    ids: IdsArgument = None,
    everything: AllOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Remove archived jobs before their time, by id or by filter."""
    action = bulk.Action(
        name="purge", past_tense="purged", sources=FINISHED, act=app.archive.purge, resource=app.archive
    )
    await bulk.run(action, ids or (), job_filter, everything=everything, yes=yes, dry_run=dry_run, json=json)
