"""``onward work`` and ``onward tick``: what runs jobs.

One process is a worker. Several are started as commands of their own by a supervisor, which starts again what dies.
With ``--reload`` a watcher restarts all that whenever a source file changes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from onward.app import App
from onward.cli import completion, screen
from onward.cli.command import AppOption, DebugOption, JsonOption, UrlOption, on_app
from onward.cli.quantities import count, read_duration
from onward.cli.target import find_app
from onward.cli.trouble import told, usage
from onward.errors import StoreUnavailable

log = logging.getLogger("onward.worker")


class LogFormat(StrEnum):
    """How the log is written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def work(
    named: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="The app, as module:name.", show_default=False)
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option(
            "--queues",
            "-q",
            metavar="PATTERNS",
            help="Which to serve, and how many of each at once: mail/*,video=2. All, if not given.",
            autocompletion=completion.queues,
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Jobs at once in each process.")] = 100,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, help="Worker processes.")] = 1,
    lease: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION",
            parser=read_duration,
            help="How long jobs stay ours when the store hears nothing of us; 30s.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION",
            parser=read_duration,
            help="How long running jobs are waited for at a stop; 25s.",
            show_default=False,
        ),
    ] = None,
    poll: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION",
            parser=read_duration,
            help="How long new work can go unseen if a signal was missed; 1s.",
            show_default=False,
        ),
    ] = None,
    leader_lease: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION",
            parser=read_duration,
            help="How long a dead leader is waited for; 30s.",
            show_default=False,
        ),
    ] = None,
    max_crashes: Annotated[
        int | None,
        typer.Option(min=1, help="How often a job may take its process down before it is buried.", show_default=False),
    ] = None,
    max_jobs: Annotated[
        int | None, typer.Option(min=1, help="Start a process afresh after so many jobs.", show_default=False)
    ] = None,
    max_memory: Annotated[
        int | None, typer.Option(min=1, metavar="MB", help="… or when it has grown so large.", show_default=False)
    ] = None,
    health_file: Annotated[
        Path | None, typer.Option(help="Where to write signs of life: see onward health.", show_default=False)
    ] = None,
    log_format: Annotated[LogFormat, typer.Option("--log", help="How to write the log.")] = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log.")] = LogLevel.INFO,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="For development: start afresh when a source file changes.", show_default=False),
    ] = False,
    app: AppOption = None,
    url: UrlOption = None,
    debug: DebugOption = False,
) -> None:
    """Run jobs until told to stop: by Ctrl-C or SIGTERM in good order, by a second one at once."""
    from onward.worker import logs  # noqa: PLC0415 - the other commands need no worker

    settings: dict[str, Any] = {
        "queues": read_queues(queues or ["*"], concurrency),
        "concurrency": concurrency,
        "lease": lease,
        "grace": grace,
        "poll": poll,
        "leader_lease": leader_lease,
        "max_crashes": max_crashes,
        "max_jobs": max_jobs,
        "max_memory": None if max_memory is None else max_memory * 1024 * 1024,
        "health_file": health_file,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    with told(debug=debug):
        if named and app:
            raise usage("the app was given twice")
        app = app or named
        logs.configure(log_format.value, level=log_level.value.upper())
        again = _again(app, url, settings, log_format, log_level, debug=debug)
        if reload:
            from onward.cli.reload import Reloader  # noqa: PLC0415 - for development only

            raise typer.Exit(Reloader([*again, "--processes", str(processes)], Path.cwd()).run())
        found = find_app(app, url, needs_tasks=True)
        # Made here even where children do the work: settings that cannot be kept are refused once, and at once.
        worker = found.worker(**settings)
        if not found.tasks:
            screen.warn("this app has no tasks: import the modules that define them where the app is made")
        if processes > 1:
            from onward.worker.supervisor import Supervisor  # noqa: PLC0415 - as above

            patience = worker.options.grace + timedelta(seconds=10)  # a child may need a while for its last words
            raise typer.Exit(Supervisor(again, processes, grace=patience).run())
        from onward.worker.serve import serve  # noqa: PLC0415 - as above

        raise typer.Exit(serve(worker, opened=_stated(found)))


def read_queues(texts: Sequence[str], concurrency: int) -> tuple[str, ...] | Mapping[str, int]:
    """Read ``mail/*,video=2``: patterns, some with a number of their own."""
    shares: dict[str, int | None] = {}
    for part in ",".join(texts).split(","):
        pattern, equals, number = (piece.strip() for piece in part.partition("="))
        if equals and (not number.isdecimal() or int(number) < 1):
            raise typer.BadParameter(f"{part!r}: write the number of jobs at once behind the =: video=2")
        if pattern:
            shares[pattern] = int(number) if equals else None
    if not shares:
        raise typer.BadParameter("no queue was named")
    if any(shares.values()):
        return {pattern: number or concurrency for pattern, number in shares.items()}
    return tuple(shares)


def _again(
    app: str | None,
    url: str | None,
    settings: Mapping[str, Any],
    log_format: LogFormat,
    log_level: LogLevel,
    *,
    debug: bool,
) -> list[str]:
    """Write the command of one worker process."""
    command = [sys.executable, "-m", "onward.cli", "work", "--log", log_format, "--log-level", log_level]
    command += ["--app", app] if app else []
    command += ["--url", url] if url else []
    command += ["--debug"] if debug else []
    for name, value in settings.items():
        command += [f"--{name.replace('_', '-')}", _written(name, value)]
    return command


def _written(name: str, value: Any) -> str:
    match value:
        case timedelta():
            return f"{value.total_seconds()}s"
        case Mapping():
            return ",".join(f"{pattern}={number}" for pattern, number in value.items())
        case tuple():
            return ",".join(value)
        case _ if name == "max_memory":
            return str(value // (1024 * 1024))
        case _:
            return str(value)


@asynccontextmanager
async def _stated(app: App) -> AsyncIterator[None]:
    """Say what the worker stands on, and close it in the end. A store that is away is left to the worker's patience."""
    try:
        with suppress(StoreUnavailable):
            await app.open()
            info = await app.engine.check()
            log.info("store", extra={"server": info.server, "schema": info.schema, "durability": info.durability})
            for warning in info.warnings:
                log.warning("store: %s", warning)
        yield
    finally:
        await app.close()


@on_app(needs_tasks=True, makes_store=True)
async def tick(
    app: App,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Run at most so many jobs.")] = 100,
    json: JsonOption = False,
) -> None:
    """Do once what a worker does all the time: promote, rescue, run what is ready. For cron and serverless hosts."""
    report = await app.tick(limit)
    if json:
        screen.show_json(report)
        return
    kept = {"promoted": report.promoted, "rescued": report.rescued, "pruned": report.pruned}
    ended = {
        "completed": report.completed,
        "to be retried": report.retried,
        "failed": report.failed,
        "dead": report.buried,
        "snoozed": report.snoozed,
        "cancelled": report.cancelled,
        "given back": report.released,
        "lost": report.lost,
    }
    did = [f"{number} {what}" for what, number in (ended | kept).items() if number]
    screen.say(", ".join([f"{count(report.claimed, 'job')} run", *did]))
