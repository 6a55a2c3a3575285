"""``onward top``: queues, workers and rates, live, on the whole screen."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from onward.app import App
from onward.cli import output, queues, workers
from onward.cli.command import on_app
from onward.cli.units import read_duration
from onward.engine.values import QueueInfo
from onward.errors import StoreUnavailable
from onward.lifecycle import FINISHED, HELD, JobStatus
from onward.service.snapshot import Snapshot, take_snapshot
from onward.service.wording import count, duration

_INTERVAL: Final = timedelta(seconds=1)
_MAX_UNKNOWN: Final = 3
"""Tasks without a worker that are named."""
_MAX_WORKERS: Final = 8
"""How many of them are shown: there is as much to say about queues."""
_TYPES_INTERVAL: Final = 10
"""Looks between two counts by task: they cost more than all else."""
_RATE_SNAPSHOTS: Final = 10
"""Snapshots over which rates are taken: fewer would flicker."""


@on_app()
async def top(
    app: App,
    interval: Annotated[
        timedelta | None,
        typer.Option(metavar="DURATION", parser=read_duration, help="Time between two looks; 1s.", show_default=False),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Write one frame and end.", show_default=False)] = False,
) -> None:
    """Watch queues and workers, live. Leave with q."""
    if once or not sys.stdout.isatty():
        _write(await take_snapshot(app, with_types=True))
        return
    pause = max((_INTERVAL if interval is None else interval).total_seconds(), 0.1)
    snapshots = [await take_snapshot(app, with_types=True)]
    looks = 0
    console = output.stdout()
    error_text = ""
    with _quit_key() as quitting, Live(console=console, screen=True, auto_refresh=False) as live:
        while not quitting.is_set():
            live.update(frame(snapshots, height=console.height, error_text=error_text), refresh=True)
            try:
                async with asyncio.timeout(pause):
                    await quitting.wait()
            except TimeoutError:
                pass
            try:
                looks += 1
                snapshot = await take_snapshot(app, with_types=looks % _TYPES_INTERVAL == 0)
                if looks % _TYPES_INTERVAL:
                    snapshot = msgspec.structs.replace(snapshot, waiting_types=snapshots[-1].waiting_types)
                snapshots = [*snapshots[-_RATE_SNAPSHOTS:], snapshot]
                error_text = ""
            except StoreUnavailable as error:
                error_text = str(error)  # the last snapshot stays: the store may come back


def _write(snapshot: Snapshot) -> None:
    """Write one frame for whoever reads the output."""
    if sys.stdout.isatty():
        output.stdout().print(frame([snapshot], height=None))
        return
    output.write(_totals(snapshot, {}))
    output.write()
    queues.show_queues(list(snapshot.queues), json=False)
    output.write()
    workers.show_workers(list(snapshot.workers), snapshot.lease)
    for line in _unknown_tasks(snapshot):
        output.write(line)


@contextmanager
def _quit_key() -> Iterator[asyncio.Event]:
    """Listen for the key that ends it, without waiting for Enter."""
    quitting = asyncio.Event()
    if not sys.stdin.isatty():
        yield quitting
        return
    import termios  # noqa: PLC0415 - not everywhere, and only a terminal needs it
    import tty  # noqa: PLC0415

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    loop = asyncio.get_running_loop()

    def on_key() -> None:
        if sys.stdin.read(1) in {"q", "Q", "\x1b", ""}:
            quitting.set()

    tty.setcbreak(keys)
    loop.add_reader(keys, on_key)
    try:
        yield quitting
    finally:
        loop.remove_reader(keys)
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def frame(snapshots: list[Snapshot], *, height: int | None, error_text: str = "") -> RenderableType:
    """Lay out the last of some snapshots; the others give the rates."""
    now = snapshots[-1]
    rates = rates_of(snapshots)
    busiest = sorted(now.queues, key=lambda queue: _importance(queue, rates), reverse=True)
    # Besides the rows: two headlines, two blank lines, two headings of two lines, two remarks, one error, tasks.
    max_queues = (
        None if height is None else max(3, height - 12 - len(_unknown_tasks(now)) - min(len(now.workers), _MAX_WORKERS))
    )
    shown = busiest[:max_queues]
    parts: list[RenderableType] = [_headline(now, rates, error_text), Text()]
    if shown:
        columns = (
            "queue",
            "status",
            "ready",
            "scheduled",
            "running",
            "completed",
            "per s",
            "failed",
            "dead",
            "oldest",
            "limits",
        )
        rows = []
        for queue in shown:
            cells = list(queues.row(queue, now.at))
            cells.insert(6, _rate(rates.get(queue.name)))
            rows.append(cells)
        parts.append(output.table(columns, rows, right=(*queues.NUMBERS, "per s")))
        if len(shown) < len(busiest):
            parts.append(Text(f"… and {len(busiest) - len(shown)} more queues", style="dim"))
    else:
        parts.append(Text("no queues yet: the first job makes one", style="dim"))
    parts.append(Text())
    if now.workers:
        shown_workers = now.workers if height is None else now.workers[:_MAX_WORKERS]
        rows = [list(workers.row(worker, now.lease, now.at)) for worker in shown_workers]
        parts.append(output.table(workers.COLUMNS, rows, right=("slots", "tasks")))
        if len(shown_workers) < len(now.workers):
            parts.append(Text(f"… and {len(now.workers) - len(shown_workers)} more workers", style="dim"))
    else:
        parts.append(Text("no workers: start one with onward work --app module:app", style="yellow"))
    parts += [Text(output.escape(line), style="yellow") for line in _unknown_tasks(now)]
    return Group(*parts)


def _unknown_tasks(now: Snapshot) -> list[str]:
    """Say for which tasks no live worker exists, the most jobs first."""
    unknown = sorted(now.unknown_types.items(), key=lambda item: -item[1])
    lines = [f"no worker has a task {type_!r}, and {count(waiting, 'job', 'wait')}" for type_, waiting in unknown]
    more = len(lines) - _MAX_UNKNOWN
    return lines if more <= 0 else [*lines[:_MAX_UNKNOWN], f"… and {more} more tasks"]


def _headline(now: Snapshot, rates: dict[str, float], error_text: str) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="right")
    line.add_row(
        Text.assemble(("onward top  ", "bold"), (f"{now.info.server}  {now.path or ''}", "dim")),
        Text(f"{now.at.astimezone():%H:%M:%S}  q leaves", style="dim"),
    )
    if error_text:
        return Group(line, _totals(now, rates), Text(output.escape(error_text), style="bold red"))
    return Group(line, _totals(now, rates))


def _totals(now: Snapshot, rates: dict[str, float]) -> Text:
    oldest = now.oldest_ready
    return Text.assemble(
        ("ready ", "dim"),
        (f"{now.count(JobStatus.PENDING):,}", output.STYLES[JobStatus.PENDING]),
        ("   scheduled ", "dim"),
        (f"{now.count(JobStatus.SCHEDULED, JobStatus.BLOCKED):,}", output.STYLES[JobStatus.SCHEDULED]),
        ("   running ", "dim"),
        (f"{now.count(*HELD):,}", output.STYLES[JobStatus.RUNNING]),
        ("   done ", "dim"),
        (f"{now.count(*FINISHED):,}", output.STYLES[JobStatus.COMPLETED]),
        ("   per s ", "dim"),
        f"{sum(rates.values()):,.1f}" if rates else "–",
        ("   oldest ", "dim"),
        "none" if oldest is None else f"{duration(now.wait_seconds(oldest))} ({oldest.name})",
        ("   workers ", "dim"),
        str(len(now.live_workers)),
    )


def rates_of(snapshots: list[Snapshot]) -> dict[str, float]:
    """Say for each queue how many jobs have ended a second, from the first snapshot to the last."""
    first, last = snapshots[0], snapshots[-1]
    seconds = (last.at - first.at).total_seconds()
    if seconds <= 0:
        return {}
    before = {queue.name: _ended(queue) for queue in first.queues}
    # Retention takes ended jobs away: fewer than before means that nothing can be told.
    return {queue.name: max(0, _ended(queue) - before.get(queue.name, 0)) / seconds for queue in last.queues}


def _ended(queue: QueueInfo) -> int:
    return sum(queue.counts.get(state, 0) for state in FINISHED)


def _importance(queue: QueueInfo, rates: dict[str, float]) -> tuple[float, ...]:
    busy = sum(queue.counts.get(state, 0) for state in (*HELD, JobStatus.PENDING))
    return (busy > 0, rates.get(queue.name, 0.0), busy, sum(queue.counts.values()))


def _rate(per_second: float | None) -> Text:
    if not per_second:
        return Text("·", style="dim")
    return Text(f"{per_second:,.1f}")
