"""What a worker process is told, and how it obeys.

``onward work`` writes orders and obeys them. Processes that it starts are handed theirs as JSON,
``python -m onward.cli.worker_command …``, and import no command line: each of them starts sooner and is a good deal
smaller.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from onward.app import App
from onward.cli.errors import trouble_of
from onward.cli.target import find_app
from onward.errors import StoreUnavailable
from onward.worker import logs
from onward.worker.serve import serve
from onward.worker.supervisor import Supervisor

log = logging.getLogger("onward.worker")

_LAST_WORDS: Final = timedelta(seconds=10)
"""What a child may need beyond its grace to store what its jobs have said."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a worker that were given; None: as :class:`~onward.worker.options.WorkerOptions` has it."""

    queues: list[str] | dict[str, int] | None = None
    only: list[str] | None = None
    concurrency: int | None = None
    lease: timedelta | None = None
    grace: timedelta | None = None
    poll: timedelta | None = None
    leader_lease: timedelta | None = None
    max_crashes: int | None = None
    max_jobs: int | None = None
    max_memory: int | None = None
    health_file: str | None = None

    def given(self) -> dict[str, Any]:
        """Lay them out for :meth:`App.worker`."""
        known = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if self.health_file is not None:
            known["health_file"] = place_file(Path(self.health_file), os.environ.get("ONWARD_PROCESS_NUMBER"))
        return known


class Orders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker process is told."""

    app: str | None = None
    url: str | None = None
    processes: int = 1
    log_format: logs.LogFormat = "text"
    log_level: str = "INFO"
    debug: bool = False
    settings: Settings = Settings()

    @property
    def command(self) -> list[str]:
        """The command of a process that obeys them."""
        return [sys.executable, "-m", "onward.cli.worker_command", msgspec.json.encode(self).decode()]


def place_file(file: Path, place: str | None) -> Path:
    """Name the health file of one of several processes: ``health-0``, ``health-1``."""
    return file if place is None else file.with_name(f"{file.name}-{place}")


def obey(orders: Orders) -> int:
    """Work until told to stop; answer the exit code."""
    logs.configure(orders.log_format, level=orders.log_level)
    app = find_app(orders.app, orders.url, needs_tasks=True)
    # Made here even where children do the work: settings that cannot be kept are refused once, and at once.
    worker = app.worker(**orders.settings.given())
    if orders.processes > 1:
        if not app.tasks:
            _warn_of_no_tasks()
        each = msgspec.structs.replace(orders, processes=1)
        return Supervisor(each.command, orders.processes, grace=worker.options.grace + _LAST_WORDS).run()
    return serve(worker, lifespan=_stated(app))


@asynccontextmanager
async def _stated(app: App) -> AsyncIterator[None]:
    """Say what the worker stands on, and close it in the end. A store that is away is left to the worker's patience."""
    try:
        if not app.tasks:
            _warn_of_no_tasks()
        with suppress(StoreUnavailable):
            await app.open()
            info = await app.engine.check()
            log.info("store", extra={"server": info.server, "schema": info.schema, "durability": info.durability})
            for warning in (*info.problems, *info.warnings):
                log.warning("store: %s", warning)
        yield
    finally:
        await app.close()


def _warn_of_no_tasks() -> None:
    log.warning("this app has no tasks: import the modules that define them where the app is made")


def main() -> None:
    """Obey the orders that this process was started with."""
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    try:
        code = obey(orders)
    except Exception as error:  # noqa: BLE001 - whoever reads the log wants to know what to do
        if orders.debug:
            traceback.print_exc()
        trouble = trouble_of(error)
        log.critical("%s", trouble.cause, extra={"remedy": trouble.remedy} if trouble.remedy else {})
        code = trouble.code
    sys.exit(code)


if __name__ == "__main__":
    main()
