"""``onward schedules``: look at what is enqueued again and again, make and change it, pause, resume, delete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

from onward.app import App
from onward.cli import bulk, completion, output
from onward.cli.command import JsonOption, YesOption, list_by_default, on_app
from onward.cli.enqueue import read_job
from onward.cli.errors import refusal, usage_error
from onward.cli.units import read_duration
from onward.errors import InvalidValue
from onward.schedule import Missed, Schedule
from onward.service.wording import duration

schedules = typer.Typer(help="Look at what is enqueued again and again, and change it.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", autocompletion=completion.schedules)]


@schedules.command("list")
@on_app()
async def list_schedules(app: App, json: JsonOption = False) -> None:
    """List schedules with their next turns."""
    found = await app.schedules.list()
    if not found and not json:
        output.note("no schedules yet: @app.every makes one, and so does onward schedules set")
        return
    _show(found, json=json)


list_by_default(schedules, list_schedules)


@schedules.command()
@on_app()
async def show(
    app: App,
    name: NameArgument,
    upcoming: Annotated[int, typer.Option(min=1, max=1000, help="Number of upcoming runs to show.")] = 5,
    json: JsonOption = False,
) -> None:
    """Show a schedule, its job, and when its next turns are."""
    schedule = await _find(app, name)
    runs = schedule.upcoming(upcoming)
    if json:
        output.show_json({"schedule": schedule, "upcoming": runs})
        return
    _show([schedule], json=False)
    output.write(f"job    {schedule.job.type} in {schedule.job.queue}, {schedule.job.payload}")
    output.write(f"missed {schedule.missed}")
    for run in runs:
        output.write(f"next   {run.isoformat()}")


@schedules.command("set")
@on_app(creates_store=True, action="schedules.set")
async def set_schedule(
    app: App,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name.", autocompletion=completion.tasks)],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JSON | NAME=VALUE...]", help="Its arguments, as onward enqueue takes them.", show_default=False
        ),
    ] = None,
    cron: Annotated[
        str | None, typer.Option(metavar="CRON", help='When: "30 6 * * mon-fri".', show_default=False)
    ] = None,
    every: Annotated[
        timedelta | None,
        typer.Option(metavar="DURATION", parser=read_duration, help="Or how often: 5m.", show_default=False),
    ] = None,
    timezone: Annotated[str, typer.Option(help="Whose clocks the expression is about.")] = "UTC",
    missed: Annotated[
        Missed | None, typer.Option(help="Turns missed while no worker ran; the store's default.", show_default=False)
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Another than the task's.", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a schedule, or change the one of that name."""
    if (cron is None) == (every is None):
        raise usage_error(
            "when? give --cron or --every", remedy=f'onward schedules set {name} {task} --cron "0 6 * * *"'
        )
    job = read_job(app, task, arguments or [], {} if queue is None else {"queue": queue})
    try:
        made = await app.schedules.set(
            name, job, cron, every=every, timezone=timezone, missed=None if missed is None else missed.value
        )
    except InvalidValue as error:
        raise usage_error(str(error)) from None
    _show([made], json=json)


@schedules.command()
@on_app(action="schedules.pause")
async def pause(app: App, name: NameArgument, json: JsonOption = False) -> None:
    """Let no turn come until it is resumed."""
    await _find(app, name)
    _show([await app.schedules.pause(name)], json=json)


@schedules.command()
@on_app(action="schedules.resume")
async def resume(app: App, name: NameArgument, json: JsonOption = False) -> None:
    """Go on with the next turn from now."""
    await _find(app, name)
    _show([await app.schedules.resume(name)], json=json)


@schedules.command()
@on_app(action="schedules.run")
async def run(app: App, name: NameArgument, json: JsonOption = False) -> None:
    """Enqueue its job now, besides its turns, and write the job's id."""
    await _find(app, name)
    handle = await app.schedules.run(name)
    if json:
        output.show_json({"id": handle.id, "queue": handle.ref.queue})
    else:
        output.write(bulk.name_of(handle, app.capabilities))


@schedules.command()
@on_app(action="schedules.delete")
async def delete(app: App, name: NameArgument, yes: YesOption = False) -> None:
    """Remove a schedule. The jobs that it made stay."""
    await _find(app, name)
    bulk.confirm(f"the schedule {name} will be deleted", yes=yes)
    await app.schedules.delete(name)
    output.note(f"{name} is deleted; if the code declares it, the next worker to start makes it again")


async def _find(app: App, name: str) -> Schedule:
    try:
        return await app.schedules.get(name)
    except InvalidValue as error:
        nearby = error.rule.removeprefix("there is no such schedule")
        raise refusal(f"there is no schedule {name!r}{nearby}", remedy="onward schedules list") from None


def _show(found: list[Schedule], *, json: bool) -> None:
    if json:
        output.show_json({"schedules": found})
        return
    now = datetime.now(UTC)
    output.show_table(
        ("schedule", "status", "when", "type", "queue", "next", "last"), [_row(one, now) for one in found]
    )


def _row(schedule: Schedule, now: datetime) -> tuple[str | Text, ...]:
    return (
        schedule.name,
        Text("paused", style="bold yellow") if schedule.paused else Text("on", style="dim"),
        str(schedule.trigger),
        schedule.job.type,
        schedule.job.queue,
        "" if schedule.next_at is None else _in(schedule.next_at - now),
        "never" if schedule.last_at is None else f"{duration(max(now - schedule.last_at, timedelta(0)))} ago",
    )


def _in(left: timedelta) -> str:
    return f"in {duration(left)}" if left > timedelta(0) else "due"
