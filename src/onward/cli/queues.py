"""``onward queues``: look at queues, pause, resume and configure them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from msgspec import UNSET, UnsetType, structs
from rich.text import Text

from onward.app import App
from onward.arguments import nearest
from onward.cli import bulk, completion, identity, output
from onward.cli.command import JsonOption, YesOption, list_by_default, on_app
from onward.cli.errors import refusal, usage_error
from onward.cli.units import (
    describe_backoff,
    rate,
    read_backoff,
    read_limit,
    read_optional_duration,
    read_rate,
    read_retention,
)
from onward.engine.values import QueueInfo, Rate, Retention
from onward.lifecycle import HELD, JobStatus
from onward.service.wording import count, duration

queues = typer.Typer(help="Look at queues, pause, resume and configure them.")

PatternArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A name, or a pattern: mail/*.", autocompletion=completion.queues)
]


def _retention_option(what: str) -> Any:
    return typer.Option(metavar="DURATION", help=f"Retention of {what.lower()}: 12h, forever, 0.", show_default=False)


CreateOption = Annotated[bool, typer.Option("--create", help="Make it if there is none.", show_default=False)]


@queues.command("list")
@on_app()
async def list_queues(app: App, pattern: PatternArgument = "*", json: JsonOption = False) -> None:
    """List queues with what waits in them."""
    found = await app.queues.list(pattern)
    if not found and pattern != "*":
        found = await find_queues(app, pattern)
    if not found and not json:
        output.note("no queues yet: the first job makes one")
        return
    show_queues(found, json=json)


list_by_default(queues, list_queues)


@queues.command()
@on_app(action="queues.pause")
async def pause(
    app: App,
    queue: PatternArgument,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why; shown with the queue.", show_default=False)
    ] = None,
    create: CreateOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Start no more jobs of a queue until it is resumed. Those that run go on."""
    selected = await _select(app, queue, create=create)
    names = [name for name, paused in selected.items() if not paused or reason is not None]
    if len(names) > 1:
        bulk.confirm(f"{count(len(names), 'queue')} will be paused", yes=yes)
    paused = [await app.queues.pause(name, reason=reason, by=identity.actor()) for name in names]
    _report(paused, "paused", json=json)


@queues.command()
@on_app(action="queues.resume")
async def resume(app: App, queue: PatternArgument, yes: YesOption = False, json: JsonOption = False) -> None:
    """Go on with a paused queue."""
    names = [name for name, paused in (await _select(app, queue, create=False)).items() if paused]
    if len(names) > 1:
        bulk.confirm(f"{count(len(names), 'queue')} will be resumed", yes=yes)
    _report([await app.queues.resume(name) for name in names], "resumed", json=json)


@queues.command()
@on_app(action="queues.configure")
async def configure(
    app: App,
    queue: PatternArgument,
    rate: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Starts per period: 600/min, 10/s, none.", show_default=False),
    ] = None,
    burst: Annotated[
        int | None, typer.Option(min=1, help="Starts at once after a quiet time.", show_default=False)
    ] = None,
    global_concurrency: Annotated[
        str | None,
        typer.Option(metavar="N", help="Running jobs over all workers: 10, none.", show_default=False),
    ] = None,
    weight: Annotated[
        int | None, typer.Option(min=1, help="Share of a claim over several queues.", show_default=False)
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Job lease: 5m; none: the worker's.", show_default=False),
    ] = None,
    max_attempts: Annotated[
        str | None,
        typer.Option(metavar="N", help="Attempts of jobs without their own: 5, none.", show_default=False),
    ] = None,
    backoff: Annotated[
        str | None,
        typer.Option(
            metavar="BACKOFF", help="Delay before a retry: 30s, 1s..10m (doubling), none.", show_default=False
        ),
    ] = None,
    keep_completed: Annotated[str | None, _retention_option("Completed jobs")] = None,
    keep_failed: Annotated[str | None, _retention_option("Failed and dead jobs")] = None,
    keep_cancelled: Annotated[str | None, _retention_option("Cancelled jobs")] = None,
    keep_archived: Annotated[str | None, _retention_option("Jobs in the archive")] = None,
    create: CreateOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Change a queue's settings. Limits, lease, retry defaults and retention; what is not given stays."""
    changes: dict[str, Any] = {
        "rate": _rate(rate, burst),
        "global_concurrency": UNSET if global_concurrency is None else read_limit(global_concurrency),
        "weight": UNSET if weight is None else weight,
        "lease": UNSET if lease is None else read_optional_duration(lease),
        "max_attempts": UNSET if max_attempts is None else read_limit(max_attempts),
        "backoff": UNSET if backoff is None else read_backoff(backoff),
    }
    changes = {name: value for name, value in changes.items() if value is not UNSET}
    texts = {"completed": keep_completed, "failed": keep_failed, "cancelled": keep_cancelled, "archived": keep_archived}
    kept = {status: read_retention(text) for status, text in texts.items() if text is not None}
    if not changes and not kept:
        raise usage_error(
            "nothing to configure: no setting was given",
            remedy=f"onward queues configure {queue} --rate 600/min --keep-completed 12h",
        )
    names = await _select(app, queue, create=create)
    if len(names) > 1:
        bulk.confirm(f"{count(len(names), 'queue')} will be configured, each by itself", yes=yes)
    changed = []
    for name in names:
        retention: Retention | UnsetType = UNSET
        if kept:
            known = await app.queues.list(name)
            retention = structs.replace(known[0].settings.retention if known else Retention(), **kept)
        changed.append(await app.queues.configure(name, **changes, retention=retention))
    if json:
        output.show_json({"queues": changed})
        return
    for one in changed:
        _show_settings(one)


def _show_settings(queue: QueueInfo) -> None:
    settings = queue.settings
    rate_text = rate(settings.rate) or "unlimited"
    if settings.rate is not None and settings.rate.burst > 1:
        rate_text += f", burst {settings.rate.burst}"
    facts = {
        "queue": queue.name,
        "rate": rate_text,
        "global concurrency": "unlimited" if settings.global_concurrency is None else str(settings.global_concurrency),
        "weight": str(settings.weight),
        "lease": "the worker's" if settings.lease is None else duration(settings.lease),
        "max attempts": "the task's" if settings.max_attempts is None else str(settings.max_attempts),
        "backoff": "the task's" if settings.backoff is None else describe_backoff(settings.backoff),
        "retention": _describe_retention(settings.retention),
    }
    for name, value in facts.items():
        output.write(Text.assemble((f"{name:>18}  ", "dim"), output.escape(value)))


def _describe_retention(retention: Retention) -> str:
    counts = {"completed": retention.completed_count, "failed": retention.failed_count}
    parts = []
    for status in ("completed", "failed", "cancelled", "archived"):
        age, max_count = getattr(retention, status), counts.get(status)
        text = "forever" if age is None else duration(age) if age else "not kept"
        parts.append(f"{status} {text}" + (f", at most {max_count:,}" if max_count is not None else ""))
    return "; ".join(parts)


def _rate(text: str | None, burst: int | None) -> Rate | UnsetType | None:
    if text is None:
        if burst is not None:
            raise usage_error("--burst goes with --rate")
        return UNSET
    read = read_rate(text)
    return Rate(read.count, read.period, burst) if read is not None and burst is not None else read


async def _select(app: App, pattern: str, *, create: bool) -> dict[str, bool]:
    """Name the queues that a pattern chooses, and say of each whether it is paused."""
    if create and not pattern.endswith("*") and not await app.queues.list(pattern):
        return {pattern: False}
    found = await find_queues(app, pattern)
    if not found:
        raise refusal(f"no queue is below {pattern.removesuffix('*')}", remedy="onward queues list")
    return {queue.name: queue.settings.paused for queue in found}


async def find_queues(app: App, pattern: str) -> list[QueueInfo]:
    """Find the queues of a pattern; a name that there is not is refused, with the nearest that there is."""
    found = await app.queues.list(pattern)
    if not found and not pattern.endswith("*"):
        known = [queue.name for queue in await app.queues.list()]
        raise refusal(f"there is no queue {pattern!r}{nearest(pattern, known)}", remedy="onward queues list")
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
    for queue in found:
        if (text := describe_pause(queue)) is not None:
            output.write(Text(text, style="yellow"))


def describe_pause(queue: QueueInfo) -> str | None:
    """Say since when, by whom and why a queue is paused; None: it is not, or nothing is known of it."""
    settings = queue.settings
    known = (settings.paused_at, settings.paused_by, settings.pause_reason)
    if not settings.paused or known.count(None) == len(known):
        return None
    text = f"{output.escape(queue.name)} is paused"
    if settings.paused_at is not None:
        text += f" since {settings.paused_at:%Y-%m-%d %H:%M:%S} UTC"
    if settings.paused_by is not None:
        text += f" by {output.escape(settings.paused_by)}"
    return text if settings.pause_reason is None else f"{text}: {output.escape(settings.pause_reason)}"


COLUMNS = ("queue", "status", "ready", "scheduled", "running", "completed", "failed", "dead", "oldest", "limits")
NUMBERS = ("ready", "scheduled", "running", "completed", "failed", "dead", "oldest")


def row(queue: QueueInfo, now: datetime) -> tuple[str | Text, ...]:
    """Lay out one queue."""
    counts = queue.counts
    oldest = "" if queue.oldest_ready_at is None else duration(max(0.0, (now - queue.oldest_ready_at).total_seconds()))
    waiting = counts.get(JobStatus.SCHEDULED, 0) + counts.get(JobStatus.BLOCKED, 0)
    return (
        queue.name,
        Text("paused", style="bold yellow") if queue.settings.paused else Text("open", style="dim"),
        output.number(counts.get(JobStatus.PENDING, 0), output.STYLES[JobStatus.PENDING]),
        output.number(waiting, output.STYLES[JobStatus.SCHEDULED]),
        output.number(sum(counts.get(state, 0) for state in HELD), output.STYLES[JobStatus.RUNNING]),
        output.number(counts.get(JobStatus.COMPLETED, 0), output.STYLES[JobStatus.COMPLETED]),
        output.number(counts.get(JobStatus.FAILED, 0), output.STYLES[JobStatus.FAILED]),
        output.number(counts.get(JobStatus.DEAD_LETTER, 0), output.STYLES[JobStatus.DEAD_LETTER]),
        oldest,
        limits_of(queue),
    )


def limits_of(queue: QueueInfo) -> str:
    """Say what limits a queue has."""
    limits = [rate(queue.settings.rate)]
    if queue.settings.global_concurrency is not None:
        limits.append(f"{queue.settings.global_concurrency} at once")
    return ", ".join(filter(None, limits))
