"""``onward queues``: look at queues, pause and resume them, limit them, say how long they keep jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from msgspec import UNSET, UnsetType, structs
from rich.text import Text

from onward.app import App
from onward.arguments import nearest
from onward.cli import bulk, completion, output
from onward.cli.command import JsonOption, YesOption, on_app
from onward.cli.errors import usage
from onward.cli.units import count, duration, rate, read_keeping, read_limit, read_rate
from onward.engine.values import QueueInfo, Rate, Retention
from onward.lifecycle import HELD, State

queues = typer.Typer(no_args_is_help=True, help="Look at queues, pause, resume and limit them.")

PatternArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A name, or a pattern: mail/*.", autocompletion=completion.queues)
]


def _keeping(what: str) -> Any:
    return typer.Option(metavar="TIME", help=f"{what}: 12h, 30d, forever, 0.", show_default=False)


CreateOption = Annotated[bool, typer.Option("--create", help="Make it if there is none.", show_default=False)]


@queues.command("list")
@on_app()
async def list_queues(app: App, pattern: PatternArgument = "*", json: JsonOption = False) -> None:
    """List queues with what waits in them."""
    found = await app.queues.list(pattern)
    if not found and pattern != "*":
        found = await named(app, pattern)
    if not found and not json:
        output.note("no queues yet: the first job makes one")
        return
    show_queues(found, json=json)


@queues.command()
@on_app()
async def pause(
    app: App,
    queue: PatternArgument,
    create: CreateOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Start no more jobs of a queue until it is resumed. Those that run go on."""
    names = [name for name, paused in (await _chosen(app, queue, create=create)).items() if not paused]
    if len(names) > 1:
        bulk.agree(f"{count(len(names), 'queue')} will be paused", yes=yes)
    _report([await app.queues.pause(name) for name in names], "paused", json=json)


@queues.command()
@on_app()
async def resume(app: App, queue: PatternArgument, yes: YesOption = False, json: JsonOption = False) -> None:
    """Go on with a paused queue."""
    names = [name for name, paused in (await _chosen(app, queue, create=False)).items() if paused]
    if len(names) > 1:
        bulk.agree(f"{count(len(names), 'queue')} will be resumed", yes=yes)
    _report([await app.queues.resume(name) for name in names], "resumed", json=json)


@queues.command()
@on_app()
async def limit(
    app: App,
    queue: PatternArgument,
    rate: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="How often its jobs may start: 600/min, 10/s, none.", show_default=False),
    ] = None,
    burst: Annotated[
        int | None, typer.Option(min=1, help="How many of them at once after a quiet time.", show_default=False)
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="How many may run at once, on all workers together: 10, none.", show_default=False
        ),
    ] = None,
    create: CreateOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Limit a queue, across all workers; "none" takes a limit away."""
    if rate is None and concurrency is None:
        raise usage(
            "which limit? none was given", remedy=f"onward queues limit {queue} --rate 600/min --concurrency 10"
        )
    limited = _rate(rate, burst)
    most = UNSET if concurrency is None else read_limit(concurrency)
    names = await _chosen(app, queue, create=create)
    if len(names) > 1:
        bulk.agree(f"{count(len(names), 'queue')} will be limited, each by itself", yes=yes)
    _report([await app.queues.limit(name, rate=limited, concurrency=most) for name in names], "limited", json=json)


@queues.command()
@on_app()
async def keep(
    app: App,
    queue: PatternArgument,
    completed: Annotated[str | None, _keeping("Completed jobs")] = None,
    failed: Annotated[str | None, _keeping("Failed jobs and dead letters")] = None,
    cancelled: Annotated[str | None, _keeping("Cancelled jobs")] = None,
    archived: Annotated[str | None, _keeping("All of them from then on, in the archive")] = None,
    create: CreateOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Say how long a queue keeps jobs that have ended: 12h, 30d, forever; 0: not at all."""
    given = {"completed": completed, "failed": failed, "cancelled": cancelled, "archived": archived}
    told = {kind: read_keeping(text) for kind, text in given.items() if text is not None}
    if not told:
        raise usage(
            "which jobs, and for how long?", remedy=f"onward queues keep {queue} --completed 12h --archived 90d"
        )
    names = await _chosen(app, queue, create=create)
    if len(names) > 1:
        bulk.agree(f"{count(len(names), 'queue')} will be told how long to keep jobs", yes=yes)
    changed = []
    for name in names:
        known = await app.queues.list(name)
        before = known[0].settings.retention if known else Retention()
        changed.append(await app.queues.configure(name, retention=structs.replace(before, **told)))
    if json:
        output.show_json({"queues": changed})
        return
    for one in changed:
        output.say(f"{one.name} keeps jobs that have ended: {_kept(one.settings.retention)}")


def _kept(retention: Retention) -> str:
    counts = {"completed": retention.completed_count, "failed": retention.failed_count}
    parts = []
    for kind in ("completed", "failed", "cancelled", "archived"):
        age, most = getattr(retention, kind), counts.get(kind)
        said = "for ever" if age is None else duration(age) if age else "not at all"
        parts.append(f"{kind} {said}" + (f", at most {most:,}" if most is not None else ""))
    return "; ".join(parts)


def _rate(text: str | None, burst: int | None) -> Rate | UnsetType | None:
    if text is None:
        if burst is not None:
            raise usage("--burst goes with --rate")
        return UNSET
    read = read_rate(text)
    return Rate(read.count, read.period, burst) if read is not None and burst is not None else read


async def _chosen(app: App, pattern: str, *, create: bool) -> dict[str, bool]:
    """Name the queues that a pattern chooses, and say of each whether it is paused."""
    if create and not pattern.endswith("*") and not await app.queues.list(pattern):
        return {pattern: False}
    found = await named(app, pattern)
    if not found:
        raise usage(f"no queue is below {pattern.removesuffix('*')}", remedy="onward queues list")
    return {queue.name: queue.settings.paused for queue in found}


async def named(app: App, pattern: str) -> list[QueueInfo]:
    """Find the queues of a pattern; a name that there is not is refused, with the nearest that there is."""
    found = await app.queues.list(pattern)
    if not found and not pattern.endswith("*"):
        known = [queue.name for queue in await app.queues.list()]
        raise usage(f"there is no queue {pattern!r}{nearest(pattern, known)}", remedy="onward queues list")
    return found


def _report(changed: list[QueueInfo], done: str, *, json: bool) -> None:
    if json:
        output.show_json({"queues": changed})
    elif changed:
        show_queues(changed, json=False)
        output.note(f"{count(len(changed), 'queue')} {done}")
    else:
        output.note(f"nothing to do: already {done}")


def show_queues(found: list[QueueInfo], *, json: bool) -> None:
    """Write queues with their depth and their limits."""
    if json:
        output.show_json({"queues": found})
        return
    output.show_table(COLUMNS, [row(queue, datetime.now(UTC)) for queue in found], right=NUMBERS)


COLUMNS = ("queue", "status", "ready", "scheduled", "running", "completed", "failed", "dead", "oldest", "limits")
NUMBERS = ("ready", "scheduled", "running", "completed", "failed", "dead", "oldest")


def row(queue: QueueInfo, now: datetime) -> tuple[str | Text, ...]:
    """Lay out one queue."""
    counts = queue.counts
    oldest = "" if queue.oldest_ready_at is None else duration(max(0.0, (now - queue.oldest_ready_at).total_seconds()))
    waiting = counts.get(State.SCHEDULED, 0) + counts.get(State.BLOCKED, 0)
    return (
        queue.name,
        Text("paused", style="bold yellow") if queue.settings.paused else Text("open", style="dim"),
        output.number(counts.get(State.PENDING, 0), output.STYLES[State.PENDING]),
        output.number(waiting, output.STYLES[State.SCHEDULED]),
        output.number(sum(counts.get(state, 0) for state in HELD), output.STYLES[State.RUNNING]),
        output.number(counts.get(State.COMPLETED, 0), output.STYLES[State.COMPLETED]),
        output.number(counts.get(State.FAILED, 0), output.STYLES[State.FAILED]),
        output.number(counts.get(State.DEAD_LETTER, 0), output.STYLES[State.DEAD_LETTER]),
        oldest,
        limits_of(queue),
    )


def limits_of(queue: QueueInfo) -> str:
    """Say what limits a queue has."""
    limits = [rate(queue.settings.rate)]
    if queue.settings.concurrency is not None:
        limits.append(f"{queue.settings.concurrency} at once")
    return ", ".join(filter(None, limits))
