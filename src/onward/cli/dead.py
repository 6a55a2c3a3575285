"""``onward dead``: the jobs whose attempts are used up (O8)."""

from __future__ import annotations

import typer
from msgspec import structs

from onward.app import App
from onward.cli import bulk, output
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
from onward.cli.jobs import AllOption, note_other_failures, show_page
from onward.engine.values import JobFilter
from onward.lifecycle import JobStatus

dead = typer.Typer(help="Look at dead letters, and replay or purge them.")


@dead.command("list")
@on_app(has_status_option=False)
async def list_dead(
    app: App, job_filter: JobFilter, limit: LimitOption = 50, cursor: CursorOption = None, json: JsonOption = False
) -> None:
    """List dead letters, the newest first."""
    show_page(await app.dead.list(job_filter, limit=limit, cursor=cursor), app.capabilities, json=json)
    await note_other_failures(app, structs.replace(job_filter, status=_states(app)))


list_by_default(dead, list_dead)


@dead.command("count")
@on_app(has_status_option=False)
async def count_dead(app: App, job_filter: JobFilter, json: JsonOption = False) -> None:
    """Count dead letters."""
    total = await app.dead.count(job_filter)
    if json:
        output.show_json({"total": total})
    else:
        output.write(str(total))


@dead.command()
@on_app(has_status_option=False, action="dead.replay")
async def replay(
    app: App,
    job_filter: JobFilter,
    ids: IdsArgument = None,
    everything: AllOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Re-enqueue dead letters. By id or by filter, with a fresh attempt count."""
    action = bulk.Action(
        name="replay", past_tense="replayed", sources=_states(app), act=app.dead.replay, resource=app.jobs
    )
    await bulk.run(action, ids or (), job_filter, everything=everything, yes=yes, dry_run=dry_run, json=json)


@dead.command()
@on_app(has_status_option=False, action="dead.purge")
async def purge(
    app: App,
    job_filter: JobFilter,
    ids: IdsArgument = None,
    everything: AllOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Remove dead letters for good, by id or by filter."""
    action = bulk.Action(name="purge", past_tense="purged", sources=_states(app), act=app.dead.purge, resource=app.jobs)
    await bulk.run(action, ids or (), job_filter, everything=everything, yes=yes, dry_run=dry_run, json=json)


def _states(app: App) -> frozenset[JobStatus]:
    return frozenset({app.capabilities.shown(JobStatus.DEAD_LETTER)})
