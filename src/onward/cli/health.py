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
from onward.cli.errors import Trouble, told, usage
from onward.cli.target import find_app, refuse_missing_file
from onward.cli.units import count, duration, read_duration

_WITHIN: Final = timedelta(seconds=30)
_PATIENCE: Final = timedelta(seconds=5)


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
    within: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION", parser=read_duration, help="How fresh signs of life must be; 30s.", show_default=False
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
    """Say whether the store answers, for probes: exit 0 if it does, and 1 if not."""
    with told(debug=debug):
        if file is not None and worker:
            raise usage("--file and --worker do not go together: the file is one worker's")
        fresh = _WITHIN if within is None else within
        found = None if file is not None else find_app(app, url)
        try:
            if found is None:
                said = _ask_file(file or Path(), fresh)
            else:
                refuse_missing_file(found)
                patience = _PATIENCE if timeout is None else timeout
                said = asyncio.run(_ask_store(found, fresh if worker else None, patience))
        except Exception as error:
            if json:
                output.show_json({"ok": False, "error": str(error)})
            raise
        if json:
            output.show_json({"ok": True, "said": said})
        else:
            output.say(f"ok: {said}")


def _ask_file(file: Path, within: timedelta) -> str:
    from onward.worker.health import check_health  # noqa: PLC0415 - a probe that asks the store needs no worker

    # Where there are several processes, each has a file of its own: see onward.cli.worker_command.
    files = [file] if file.exists() else sorted(file.parent.glob(f"{glob.escape(file.name)}-[0-9]*"))
    files = [one for one in files if one.name.removeprefix(f"{file.name}-").isdecimal()] or [file]
    for one in files:
        if (wrong := check_health(one, max_age=within)) is not None:
            raise Trouble(wrong, remedy="look at the worker's log")
    return f"{count(len(files), 'worker', 'beat')} and {'polls' if len(files) == 1 else 'poll'}"


async def _ask_store(app: App, within: timedelta | None, patience: timedelta) -> str:
    try:
        async with asyncio.timeout(patience.total_seconds()):
            info = await app.engine.check()
            here = [] if within is None else await _fresh(app, within)
    except TimeoutError:
        raise Trouble(f"the store has not answered within {duration(patience)}", remedy="onward doctor") from None
    finally:
        await app.close()
    if within is None:
        return f"{info.server} answers"
    if not here:
        raise Trouble(
            f"no worker on {socket.gethostname()} has given a sign of life within {duration(within)}",
            remedy="onward workers",
        )
    return f"{info.server} answers, {count(len(here), 'worker')} here"


async def _fresh(app: App, within: timedelta) -> list[str]:
    now = datetime.now(UTC)
    return [
        worker.id
        for worker in await app.engine.workers()
        if worker.hostname == socket.gethostname()
        and worker.last_heartbeat is not None
        and now - worker.last_heartbeat <= within
    ]
