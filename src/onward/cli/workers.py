"""``onward workers``: the registered workers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rich.text import Text

from onward.app import App
from onward.cli import output
from onward.cli.command import JsonOption, on_app
from onward.cli.units import age
from onward.core import core_of
from onward.engine.values import WorkerInfo
from onward.service.snapshot import is_silent


@on_app()
async def workers(app: App, json: JsonOption = False) -> None:
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
