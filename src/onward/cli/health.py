"""``onward health``: an exit code for probes."""

from __future__ import annotations

import asyncio
import glob
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from onward.app import App
from onward.cli import output
from onward.cli.command import AppOption, DebugOption, JsonOption, UrlOption
from onward.cli.errors import EXIT_STORE_UNREACHABLE, CommandError, report_errors, usage_error
from onward.cli.target import find_app, refuse_missing_file
from onward.cli.units import read_duration
from onward.core import core_of
from onward.service.wording import count, duration

_MAX_AGE: Final = timedelta(seconds=30)
_TIMEOUT: Final = timedelta(seconds=5)


def health(
    worker: Annotated[
        bool,
        typer.Option(
            "--worker", help="Also ask that a worker on this machine gives signs of life.", show_default=False
        ),
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(help="Ask the file that onward work --health-file writes, not the store.", show_default=False),
    ] = None,
    max_age: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION", parser=read_duration, help="Oldest heartbeat that is accepted; 30s.", show_default=False
        ),
    ] = None,
    timeout: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION", parser=read_duration, help="How long to ask the store; 5s.", show_default=False
        ),
    ] = None,
    json: JsonOption = False,
    app: AppOption = None,
    url: UrlOption = None,
    debug: DebugOption = False,
) -> None:
    """Check the store, for probes. Exits 0 if it answers, 3 if not, 1 if a worker is missing or stale."""
    with report_errors(debug=debug):
        if file is not None and worker:
            raise usage_error("--file and --worker do not go together: the file is one worker's")
        accepted_age = _MAX_AGE if max_age is None else max_age
        found = None if file is not None else find_app(app, url)
        try:
            if found is None:
                message = _check_file(file or Path(), accepted_age)
            else:
                refuse_missing_file(found)
                deadline = _TIMEOUT if timeout is None else timeout
                message = asyncio.run(_check_store(found, accepted_age if worker else None, deadline))
        except Exception as error:
            if json:
                output.show_json({"ok": False, "message": str(error)})
            raise
        if json:
            output.show_json({"ok": True, "message": message})
        else:
            output.write(f"ok: {message}")


def _check_file(file: Path, max_age: timedelta) -> str:
    from onward.worker.health import check_health  # noqa: PLC0415 - a probe that asks the store needs no worker

    # Where there are several processes, each has a file of its own: see onward.cli.worker_command.
    files = [file] if file.exists() else sorted(file.parent.glob(f"{glob.escape(file.name)}-[0-9]*"))
    files = [one for one in files if one.name.removeprefix(f"{file.name}-").isdecimal()] or [file]
    for one in files:
        if (error_text := check_health(one, max_age=max_age)) is not None:
            raise CommandError(error_text, remedy="look at the worker's log")
    return f"{count(len(files), 'worker', 'beat')} and {'polls' if len(files) == 1 else 'poll'}"


async def _check_store(app: App, max_age: timedelta | None, max_wait: timedelta) -> str:
    try:
        async with asyncio.timeout(max_wait.total_seconds()):
            info = await core_of(app).engine.check()
            here = [] if max_age is None else await _live_workers(app, max_age)
    except TimeoutError:
        raise CommandError(
            f"the store has not answered within {duration(max_wait)}",
            remedy="onward doctor",
            code=EXIT_STORE_UNREACHABLE,
        ) from None
    finally:
        await app.close()
    if max_age is None:
        return f"{info.server} answers"
    if not here:
        raise CommandError(
            f"no worker on {socket.gethostname()} has given a sign of life within {duration(max_age)}",
            remedy="onward workers list",
        )
    return f"{info.server} answers, {count(len(here), 'worker')} here"


async def _live_workers(app: App, max_age: timedelta) -> list[str]:
    now = datetime.now(UTC)
    return [
        worker.id
        for worker in await core_of(app).engine.workers()
        if worker.hostname == socket.gethostname()
        and worker.last_heartbeat is not None
        and now - worker.last_heartbeat <= max_age
    ]
