"""``onward dead``: the jobs whose attempts are used up (O8)."""

from __future__ import annotations

import typer

from onward.app import App
from onward.cli import bulk
from onward.cli.command import AfterOption, DryRunOption, IdsArgument, JsonOption, LimitOption, YesOption, on_app
from onward.cli.jobs import AllOption, show_page
from onward.engine.values import JobFilter
from onward.lifecycle import State

dead = typer.Typer(no_args_is_help=True, help="Look at dead letters, and replay or purge them.")


@dead.command("list")
@on_app(with_states=False)
async def list_dead(
    app: App, which: JobFilter, limit: LimitOption = 50, after: AfterOption = None, json: JsonOption = False
) -> None:
    """List dead letters, the newest first."""
    show_page(await app.dead.find(which, limit=limit, after=after), json=json)


@dead.command()
@on_app(with_states=False)
async def replay(
    app: App,
    which: JobFilter,
    ids: IdsArgument = None,
    everything: AllOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Give dead letters a new life, by id or by filter: ready now, with all their attempts."""
    verb = bulk.Verb(name="replay", done="replayed", sources=_states(app), act=app.dead.replay, among=app.jobs)
    await bulk.do(verb, ids or (), which, everything=everything, yes=yes, dry_run=dry_run, json=json)


@dead.command()
@on_app(with_states=False)
async def purge(
    app: App,
    which: JobFilter,
    ids: IdsArgument = None,
    everything: AllOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Remove dead letters for good, by id or by filter."""
    verb = bulk.Verb(name="purge", done="purged", sources=_states(app), act=app.dead.purge, among=app.jobs)
    await bulk.do(verb, ids or (), which, everything=everything, yes=yes, dry_run=dry_run, json=json)


def _states(app: App) -> frozenset[State]:
    return frozenset({app.capabilities.shown(State.DEAD_LETTER)})
