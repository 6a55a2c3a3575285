"""A worker as a program, for the tests that need real processes.

``python -m tests.worker.program DIRECTORY [option=value]…``.
Handlers leave notes in files of that directory, by which a test follows them.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from onward.app import App
from onward.worker.log_format import configure
from onward.worker.serve import serve

HERE = Path(sys.argv[1] if __name__ == "__main__" else os.environ.get("ONWARD_TEST_HERE", "."))


def record(name: str, *more: object) -> None:
    """Append a line to the file of that name, in one write, so that lines of many processes do not mix."""
    line = " ".join(map(str, (os.getpid(), *more))) + "\n"
    with (HERE / name).open("ab", buffering=0) as file:
        file.write(line.encode())


def make_app(directory: Path) -> App:
    """Make the App that program and test share."""
    app = App(f"sqlite:///{directory}/jobs.db")

    @app.task(name="quick")
    async def quick(number: int) -> int:
        record("quick", number)
        return number

    @app.task(name="sleep")
    async def sleep(seconds: float) -> None:
        record("began", seconds)
        await asyncio.sleep(seconds)
        record("ended", seconds)

    @app.task(name="block")
    async def block(seconds: float) -> None:
        record("began", seconds)
        time.sleep(seconds)  # noqa: ASYNC251 - the loop is to be blocked
        record("ended", seconds)

    @app.task(name="unstoppable")
    async def unstoppable() -> None:
        record("began")
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                record("refused")

    @app.task(name="fork")
    async def fork() -> None:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
        child.start()
        child.terminate()
        await asyncio.to_thread(child.join, 30)
        record("forked", child.exitcode)

    @app.task(name="die", max_attempts=1)
    async def die() -> None:
        record("began")
        os.kill(os.getpid(), signal.SIGKILL)

    return app


def main() -> int:
    """Work until a signal."""
    options: dict[str, Any] = {"poll": timedelta(seconds=0.1)}
    for option in sys.argv[2:]:
        name, _, value = option.partition("=")
        options[name] = int(value) if name in {"concurrency", "max_jobs"} else timedelta(seconds=float(value))
    configure("json", level=logging.INFO)
    app = make_app(HERE)
    record("started")
    return serve(app.worker(**options), lifespan=app)


if __name__ == "__main__":
    sys.exit(main())
