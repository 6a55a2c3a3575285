"""The command that a worker process runs, and its settings.

``onward work`` makes a :class:`WorkerCommand` and runs it. Processes that it starts receive theirs as JSON,
``python -m onward.cli.worker_command …``, and import no command line: each of them starts sooner and is a good deal
smaller.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from onward.app import App
from onward.arguments import nearest
from onward.cli.errors import CommandError, to_command_error
from onward.cli.target import find_app
from onward.core import core_of
from onward.errors import OnwardError, StoreUnavailable
from onward.task import queue_pattern
from onward.validation import matches
from onward.worker import log_format
from onward.worker.serve import serve, uvloop_factory
from onward.worker.supervisor import Supervisor, report_final_exit
from onward.worker_options import WriteProcessPolicy

log = logging.getLogger("onward.worker")

_FLUSH_TIMEOUT: Final = timedelta(seconds=10)
"""What a child may need beyond its grace to store what its jobs have said."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a worker that were given; None: as :class:`~onward.worker.options.WorkerSettings` has it."""

    queues: list[str] | dict[str, int] | None = None
    tasks: list[str] | None = None
    concurrency: int | None = None
    process_slots: int | None = None
    lease: timedelta | None = None
    grace: timedelta | None = None
    poll: timedelta | None = None
    leader_lease: timedelta | None = None
    max_crashes: int | None = None
    burst: bool | None = None
    max_jobs: int | None = None
    max_memory: int | None = None
    health_file: str | None = None
    write_process: WriteProcessPolicy | None = None

    def given(self) -> dict[str, Any]:
        """Lay them out for :meth:`App.worker`."""
        known = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if self.health_file is not None:
            known["health_file"] = health_file_for(Path(self.health_file), os.environ.get("ONWARD_PROCESS_NUMBER"))
        return known


class WorkerCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker process runs."""

    app: str | None = None
    url: str | None = None
    processes: int = 1
    is_supervised: bool = False
    """Whether this process does the work; False: it supervises processes that do."""
    log_format: log_format.LogFormat = "text"
    log_level: str = "INFO"
    debug: bool = False
    uvloop: bool = False
    settings: Settings = Settings()

    @property
    def argv(self) -> list[str]:
        """The arguments that start a process which runs it."""
        return [sys.executable, "-m", "onward.cli.worker_command", msgspec.json.encode(self).decode()]


def health_file_for(file: Path, index: str | None) -> Path:
    """Name the health file of one of several processes: ``health-0``, ``health-1``."""
    return file if index is None else file.with_name(f"{file.name}-{index}")


def run(command: WorkerCommand) -> int:
    """Work until told to stop; answer the exit code."""
    log_format.configure(command.log_format, level=command.log_level)
    app = find_app(command.app, command.url, needs_tasks=True)
    # Made here even where children do the work: settings that cannot be kept are refused once, and at once.
    worker = app.worker(**command.settings.given())
    if command.uvloop:
        uvloop_factory()
    if command.is_supervised:
        return serve(worker, lifespan=_opened(app, worker.options.patterns), uses_uvloop=command.uvloop)
    # A single process, too: a job that ends its process must not end the worker for good.
    if not app.tasks:
        _warn_of_no_tasks()
    each = msgspec.structs.replace(command, is_supervised=True)
    return Supervisor(
        each.argv,
        command.processes,
        grace=worker.options.grace + _FLUSH_TIMEOUT,
        replaces_finished=not worker.options.burst,
    ).run()


@asynccontextmanager
async def _opened(app: App, patterns: Sequence[str]) -> AsyncIterator[None]:
    """Say what the worker stands on, and close it in the end. A store that is away is left to the worker's patience."""
    try:
        with suppress(StoreUnavailable):
            await app.open()
            info = await core_of(app).engine.check()
            log.info("store", extra={"server": info.server, "schema": info.schema, "durability": info.durability})
            for warning in (*info.problems, *info.warnings):
                log.warning("store: %s", warning)
            await _warn_of_unknown_queues(app, patterns)
        yield
    finally:
        await app.close()


async def _warn_of_unknown_queues(app: App, patterns: Sequence[str]) -> None:
    """Warn of queues that nothing has created and no task uses: perhaps the name is misspelt."""
    known = {queue.name for queue in await app.queues.list()} | {
        queue_pattern(task.options.queue) for task in app.tasks.values()
    }
    for pattern in patterns:
        if not any(matches(pattern, queue) or matches(queue, pattern) for queue in known):
            log.warning("queue %r does not exist and no task uses it%s", pattern, nearest(pattern, known))


def _warn_of_no_tasks() -> None:
    log.warning("this app has no tasks: import the modules that define them where the app is made")


def main() -> None:
    """Run the command that this process was started with."""
    command = msgspec.json.decode(sys.argv[1], type=WorkerCommand)
    try:
        code = run(command)
    except Exception as error:  # noqa: BLE001 - whoever reads the log wants to know what to do
        if command.debug:
            traceback.print_exc()
        failure = to_command_error(error)
        log.critical("%s", failure.cause, extra={"remedy": failure.remedy} if failure.remedy else {})
        code = failure.code
        if command.is_supervised and _is_final(error):
            report_final_exit(code)
    sys.exit(code)


def _is_final(error: Exception) -> bool:
    """Say whether another start would end in the same way, until a person changes something."""
    if isinstance(error, StoreUnavailable):
        return error.is_permanent
    return isinstance(error, OnwardError | CommandError)


if __name__ == "__main__":
    main()
