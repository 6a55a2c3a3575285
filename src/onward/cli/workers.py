"""``onward workers``: look at the registered workers, and have one claim no more jobs, or stop."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

from onward.app import App
from onward.arguments import nearest
from onward.cli import bulk, output
from onward.cli.command import JsonOption, YesOption, list_by_default, on_app
from onward.cli.errors import CommandError
from onward.cli.units import age
from onward.core import core_of
from onward.engine.values import WorkerInfo
from onward.service.snapshot import is_silent

workers = typer.Typer(help="Look at workers, quiet, resume and stop them.")

WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Its id.", show_default=False)]


@workers.command("list")
@on_app()
async def list_workers(app: App, json: JsonOption = False) -> None:
    """List the workers that have registered and not gone."""
    found = await app.workers.list()
    if json:
        now = datetime.now(UTC)
        silent = [worker.id for worker in found if is_silent(worker, core_of(app).config.lease, now)]
        output.show_json({"workers": found, "silent": silent})
    elif found:
        show_workers(found, core_of(app).config.lease)
    else:
        output.note("no workers: start one with onward work --app module:app")


list_by_default(workers, list_workers)


@workers.command()
@on_app(action="workers.quiet")
async def quiet(app: App, worker: WorkerArgument) -> None:
    """Have a worker claim no more jobs; those that it holds go on."""
    await _refuse_unknown(app, worker)
    await app.workers.quiet(worker)
    output.note(f"{worker} claims no more jobs after its next heartbeat")


@workers.command()
@on_app(action="workers.resume")
async def resume(app: App, worker: WorkerArgument) -> None:
    """Have a quiet worker claim jobs again."""
    await _refuse_unknown(app, worker)
    await app.workers.resume(worker)
    output.note(f"{worker} claims jobs again after its next heartbeat")


@workers.command()
@on_app(action="workers.stop")
async def stop(app: App, worker: WorkerArgument, yes: YesOption = False) -> None:
    """Stop a worker gracefully, as after SIGTERM."""
    await _refuse_unknown(app, worker)
    bulk.confirm(f"the worker {worker} will stop", yes=yes)
    await app.workers.stop(worker)
    output.note(f"{worker} stops after its next heartbeat")


async def _refuse_unknown(app: App, worker: str) -> None:
    known = [one.id for one in await app.workers.list()]
    if worker not in known:
        raise CommandError(f"there is no worker {worker}{nearest(worker, known)}", remedy="onward workers list")


def show_workers(found: list[WorkerInfo], timeout: timedelta) -> None:
    """Write workers with their last sign of life."""
    now = datetime.now(UTC)
    output.show_table(COLUMNS, [row(worker, timeout, now) for worker in found], right=("slots", "tasks"))


COLUMNS = ("worker", "status", "queues", "slots", "tasks", "heartbeat", "started", "version")


def row(worker: WorkerInfo, timeout: timedelta, now: datetime) -> tuple[str | Text, ...]:
    """Lay out one worker."""
    if is_silent(worker, timeout, now):
        status = Text("silent", style="bold red")
    else:
        status = Text("leader", style="green") if worker.is_leader else Text("live", style="dim")
        if worker.is_quiet:
            status = Text("quiet", style="bold yellow")
    return (
        worker.id,
        status,
        " ".join(worker.queues),
        str(worker.pool_size),
        str(len(worker.types)),
        age(worker.last_heartbeat, now),
        age(worker.started_at, now),
        worker.version,
    )
