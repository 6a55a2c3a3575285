"""``onward doctor``: looks for what is wrong, says it in plain words, and says what to do.

:func:`examine` is pure: a picture in, findings out. A *problem* means that jobs are not run, or may be lost, until
somebody acts; a *warning* may well be meant so; a *note* is worth knowing. Only problems make the exit code 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from onward.app import App
from onward.arguments import nearest
from onward.cli import output
from onward.cli.command import JsonOption, on_app
from onward.cli.errors import trouble_of
from onward.cli.snapshot import Picture, take, where
from onward.cli.units import count, duration, read_duration
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.values import WorkerInfo
from onward.errors import OnwardError
from onward.lifecycle import HELD, WAITING, State
from onward.validation import matches

MEGABYTE: Final = 1024 * 1024
LONG_LOG: Final = 64 * MEGABYTE
"""A write-ahead log is overwritten from its start long before: somebody holds a read transaction open."""
LITTLE_SPACE: Final = 200 * MEGABYTE
LONG_WAIT: Final = timedelta(minutes=5)


class Level(StrEnum):
    """How bad it is."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True):
    """One thing that the doctor has to say."""

    level: Level
    what: str
    remedy: str = ""


@on_app(checks_store=False)
async def doctor(
    app: App,
    max_wait: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION",
            parser=read_duration,
            help="A ready job that has waited longer is a problem; 5m.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Look for what is wrong, and say what to do about it; exit 1 if something is."""
    picture: Picture | None = None
    try:
        picture = await take(app, with_types=True)
        found = list(examine(picture, app.capabilities, max_wait=LONG_WAIT if max_wait is None else max_wait))
    except OnwardError as error:
        trouble = trouble_of(error, app.capabilities.engine)
        found = [Finding(Level.PROBLEM, trouble.cause, "" if trouble.remedy == "onward doctor" else trouble.remedy)]
    ok = not any(finding.level is Level.PROBLEM for finding in found)
    if json:
        output.show_json({"ok": ok, "store": _facts(app, picture), "findings": found})
    else:
        _show(app, picture, found)
    if not ok:
        raise typer.Exit(1)


def examine(picture: Picture, capabilities: Capabilities, *, max_wait: timedelta = LONG_WAIT) -> Iterator[Finding]:
    """Look a picture over; the worst comes first."""
    found = [
        *_workers(picture, capabilities),
        *_stuck(picture),
        *_waits(picture, max_wait),
        *_file(picture),
        *_ends(picture),
        *(Finding(Level.PROBLEM, problem) for problem in picture.info.problems),
        *(Finding(Level.WARNING, warning) for warning in picture.info.warnings),
    ]
    yield from sorted(found, key=lambda finding: list(Level).index(finding.level))


def _workers(picture: Picture, capabilities: Capabilities) -> Iterator[Finding]:
    waiting = picture.count(*WAITING)
    for worker in picture.workers:
        if picture.is_silent(worker):
            yield Finding(
                Level.PROBLEM,
                f"worker {worker.id} has been silent for {_silence(picture, worker)}: it was killed, or "
                "cannot reach the store; its jobs are taken over by the next worker that leads",
                "start a worker, or onward tick: either takes the jobs back and forgets it",
            )
    live = picture.live_workers
    if live and capabilities.has(Feature.LEADER) and not any(worker.is_leader for worker in live):
        youngest = max((worker.started_at or picture.at) for worker in live)
        if picture.at - youngest > picture.worker_timeout:
            yield Finding(
                Level.PROBLEM,
                "no worker leads: delayed jobs are not made ready and the jobs of dead workers not taken back",
                "look at the workers' logs for errors of the part 'leader'",
            )
    if not live and waiting:
        yield Finding(
            Level.PROBLEM,
            f"no worker is there, and {count(waiting, 'job', 'wait')}",
            "onward work --app module:app (or onward tick from cron)",
        )
    if len({worker.version for worker in live}) > 1:
        versions = ", ".join(sorted({worker.version for worker in live}))
        yield Finding(Level.NOTE, f"workers of several versions are at work: {versions}")


def _silence(picture: Picture, worker: WorkerInfo) -> str:
    return duration(picture.at - (worker.last_heartbeat or picture.at))


def _stuck(picture: Picture) -> Iterator[Finding]:
    live = picture.live_workers
    for queue in picture.queues:
        ready = queue.counts.get(State.PENDING, 0)
        if not ready:
            continue
        if queue.settings.paused:
            yield Finding(
                Level.WARNING,
                f"queue {queue.name} is paused, and {count(ready, 'job', 'wait')} in it",
                f"onward queues resume {queue.name}",
            )
        elif live and not any(matches(pattern, queue.name) for worker in live for pattern in worker.queues):
            served = sorted({pattern for worker in live for pattern in worker.queues})
            yield Finding(
                Level.PROBLEM,
                f"no worker serves queue {queue.name}, and {count(ready, 'job', 'wait')} in it; "
                f"the workers serve {', '.join(served)}",
                f"onward work --app module:app --queues {queue.name}",
            )
    known = {type for worker in live for type in worker.types}
    for type, waiting in sorted(picture.waiting_types.items()) if live else ():
        if type not in known:
            yield Finding(
                Level.PROBLEM,
                f"no worker has a task {type!r}, and {count(waiting, 'job', 'wait')} for it: they will end as failed"
                f"{nearest(type, known)}",
                "deploy the code that has the task, or pause the queue until then",
            )


def _waits(picture: Picture, max_wait: timedelta) -> Iterator[Finding]:
    queue = picture.oldest_ready
    if queue is None or picture.waited(queue) <= max_wait:
        return
    limited = queue.settings.rate is not None or queue.settings.concurrency is not None
    yield Finding(
        Level.WARNING if limited else Level.PROBLEM,
        f"the oldest ready job, in queue {queue.name}, has waited {duration(picture.waited(queue))}"
        + (", and the queue is limited" if limited else ""),
        f"raise its limits: onward queues limit {queue.name}"
        if limited
        else "add workers, or raise their --concurrency",
    )


def _file(picture: Picture) -> Iterator[Finding]:
    if picture.wal_bytes is not None and picture.wal_bytes > LONG_LOG:
        yield Finding(
            Level.WARNING,
            f"the write-ahead log of {picture.path} has grown to {picture.wal_bytes // MEGABYTE} MB: a program keeps a "
            "read transaction open, so it cannot be started over",
            f"find it with: lsof {picture.path}",
        )
    if picture.free_bytes is not None and picture.free_bytes < LITTLE_SPACE:
        yield Finding(
            Level.PROBLEM,
            f"only {picture.free_bytes // MEGABYTE} MB are left on the disk of {picture.path}: soon no job can be kept",
            "free some space, or purge: onward dead purge --older-than 30d",
        )


def _ends(picture: Picture) -> Iterator[Finding]:
    dead = picture.count(State.DEAD_LETTER)
    if dead:
        yield Finding(Level.WARNING, f"{count(dead, 'dead letter', 'wait')} for somebody to look", "onward dead list")


def _facts(app: App, picture: Picture | None) -> dict[str, object]:
    known: dict[str, object] = dict(app.engine.describe())
    if picture is not None:
        leader = next((worker.id for worker in picture.live_workers if worker.is_leader), None)
        oldest = picture.oldest_ready
        known |= {
            "server": picture.info.server,
            "schema": picture.info.schema,
            "durability": picture.info.durability,
            "wal_bytes": picture.wal_bytes,
            "free_bytes": picture.free_bytes,
            "queues": len(picture.queues),
            "workers": len(picture.live_workers),
            "leader": leader,
            "waiting": picture.count(*WAITING),
            "running": picture.count(*HELD),
            "dead": picture.count(State.DEAD_LETTER),
            "oldest_ready_seconds": None if oldest is None else picture.waited(oldest).total_seconds(),
        }
    return known


def _show(app: App, picture: Picture | None, found: list[Finding]) -> None:
    console = output.output()
    facts = _facts(app, picture)

    def fact(name: str, value: object) -> None:
        if value not in (None, ""):
            console.print(Text.assemble((f"{name:>12}  ", "dim"), output.clean(value)))

    fact("store", f"{facts.get('server') or facts.get('engine', app.capabilities.engine)} {where(app)}")
    if picture is not None:
        fact("durability", facts["durability"])
        schema = facts["schema"]
        fact("schema", "not ours" if schema is None else f"{schema}, up to date")
        if picture.wal_bytes is not None and picture.free_bytes is not None:
            log, free = picture.wal_bytes / MEGABYTE, picture.free_bytes // MEGABYTE
            fact("file", f"write-ahead log {log:.1f} MB, {free} MB free on its disk")
        leader = facts["leader"]
        fact("workers", f"{len(picture.live_workers)}{f', {leader} leads' if leader else ''}")
        waiting, running = picture.count(*WAITING), picture.count(*HELD)
        fact("jobs", f"{waiting} wait, {running} run, {picture.count(State.DEAD_LETTER)} dead")
        oldest = picture.oldest_ready
        fact("oldest ready", "none" if oldest is None else f"{duration(picture.waited(oldest))}, in {oldest.name}")
    console.print()
    for finding in found:
        console.print(Text.assemble(output.state(finding.level), ": ", output.clean(finding.what)))
        if finding.remedy:
            console.print(Text.assemble(("    try: ", "bold"), output.clean(finding.remedy)))
    levels = Counter(finding.level for finding in found)
    if not levels[Level.PROBLEM]:
        warned = levels[Level.WARNING]
        well = f"no problem, and {count(warned, 'warning')}" if warned else "nothing is wrong"
        console.print(output.state("ok"), Text(well), sep=": ")
