"""``onward work`` and ``onward tick``: what runs jobs.

One process is a worker. Several are started as commands of their own by a supervisor, which starts again what dies.
With ``--reload`` a watcher restarts all that whenever a source file changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from onward.app import App
from onward.cli import completion, output
from onward.cli.command import AppOption, DebugOption, JsonOption, UrlOption, on_app
from onward.cli.errors import report_errors, usage_error
from onward.cli.units import read_duration
from onward.core import core_of
from onward.service.identity import of_command_line
from onward.service.store import record
from onward.service.wording import count


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


class WriteProcess(StrEnum):
    """Whether a separate process writes to SQLite."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def work(
    app_path: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="The app, as module:name.", show_default=False)
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option(
            "--queues",
            "-q",
            metavar="PATTERNS",
            help="Queues to serve, and jobs at once: mail/*,video=2; all. On a foreign store: those of the tasks.",
            autocompletion=completion.queues,
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks",
            metavar="NAMES",
            help="Tasks to run: send,resize; all. Their queues must be theirs alone.",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Jobs at once in each process.")] = 100,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, help="Worker processes.")] = 1,
    process_slots: Annotated[
        int | None,
        typer.Option(min=1, help='Tasks with executor="process" at once; one per CPU by default.', show_default=False),
    ] = None,
    lease: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION",
            parser=read_duration,
            help="Job lease, renewed by heartbeats; 30s.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION",
            parser=read_duration,
            help="Time for running jobs to end at a stop; 25s.",
            show_default=False,
        ),
    ] = None,
    poll: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION",
            parser=read_duration,
            help="Polling interval behind notifications; 1s.",
            show_default=False,
        ),
    ] = None,
    leader_lease: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION",
            parser=read_duration,
            help="Length of a leader's term without renewal; 30s.",
            show_default=False,
        ),
    ] = None,
    max_crashes: Annotated[
        int | None,
        typer.Option(min=1, help="Child processes a suspect may end before on_crash applies; 3.", show_default=False),
    ] = None,
    burst: Annotated[
        bool, typer.Option("--burst", help="Exit when no job is ready to run.", show_default=False)
    ] = False,
    max_jobs: Annotated[
        int | None, typer.Option(min=1, help="Restart a process after this many jobs.", show_default=False)
    ] = None,
    max_memory: Annotated[
        int | None, typer.Option(min=1, metavar="MB", help="Restart a process at this memory size.", show_default=False)
    ] = None,
    health_file: Annotated[
        Path | None, typer.Option(help="File for heartbeats: see onward health.", show_default=False)
    ] = None,
    write_process: Annotated[
        WriteProcess | None,
        typer.Option(help="SQLite: whether a separate process writes for each worker; auto.", show_default=False),
    ] = None,
    log_format: Annotated[LogFormat, typer.Option("--log", help="How to write the log.")] = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log.")] = LogLevel.INFO,
    uvloop: Annotated[bool, typer.Option("--uvloop", help="Use uvloop's event loop.", show_default=False)] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a source file changes.", show_default=False)
    ] = False,
    app: AppOption = None,
    url: UrlOption = None,
    debug: DebugOption = False,
) -> None:
    """Run jobs until stopped. Ctrl-C or SIGTERM stops gracefully, a second one at once."""
    with report_errors(debug=debug):
        if app_path and app:
            raise usage_error("the app was given twice")
        if burst and reload:
            raise usage_error(
                "--burst ends when no job is left, and --reload never does", remedy="leave one of them out"
            )
        from onward.cli.worker_command import Settings, WorkerCommand, run  # noqa: PLC0415 - the other commands need no worker

        command = WorkerCommand(
            app=app or app_path,
            url=url,
            processes=processes,
            log_format=log_format.value,
            log_level=log_level.value.upper(),
            debug=debug,
            uvloop=uvloop,
            settings=Settings(
                queues=read_queues(queues, concurrency) if queues else None,
                tasks=[name.strip() for name in ",".join(tasks).split(",")] if tasks else None,
                process_slots=process_slots,
                concurrency=concurrency,
                lease=lease,
                grace=grace,
                poll=poll,
                leader_lease=leader_lease,
                max_crashes=max_crashes,
                burst=burst or None,
                max_jobs=max_jobs,
                max_memory=max_memory,
                health_file=None if health_file is None else str(health_file),
                write_process=None if write_process is None else write_process.value,
            ),
        )
        if reload:
            from onward.cli.reload import Command, Reloader  # noqa: PLC0415 - for development only
            from onward.worker.log_format import configure  # noqa: PLC0415

            configure(command.log_format, level=command.log_level)
            raise typer.Exit(Reloader([Command(command.argv)], Path.cwd()).run())
        raise typer.Exit(run(command))


def read_queues(texts: Sequence[str], concurrency: int) -> list[str] | dict[str, int]:
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
    return list(shares)


@on_app(needs_tasks=True, creates_store=True)
async def tick(
    app: App,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Run at most so many jobs.")] = 100,
    timeout: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION", parser=read_duration, help="Release what still runs then; no limit.", show_default=False
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run the jobs that are ready, once. For cron and serverless hosts: promotes, rescues, runs, and exits."""
    # Its own record alone: what handlers enqueue and change is the program's, not the caller's.
    await (await core_of(app).opened()).record_audit(record(of_command_line(), "tick.run"))
    report = await app.tick(limit, timeout=timeout)
    if json:
        output.show_json(report)
        return
    maintenance = {"promoted": report.promoted, "rescued": report.rescued, "pruned": report.pruned}
    outcomes = {
        "completed": report.completed,
        "to be retried": report.retried,
        "failed": report.failed,
        "dead": report.buried,
        "snoozed": report.snoozed,
        "cancelled": report.cancelled,
        "given back": report.released,
        "lost": report.lost,
    }
    parts = [f"{number} {what}" for what, number in (outcomes | maintenance).items() if number]
    output.write(", ".join([f"{count(report.claimed, 'job')} run", *parts]))
