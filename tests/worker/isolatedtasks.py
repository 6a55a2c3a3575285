"""Tasks that run as suspects: a child process imports this module, and finds its App on the same store.

The store is where ``ONWARD_TEST_STORE`` says: a test sets it before it imports this module anew.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from onward.app import App
from onward.blueprint import Tasks
from onward.context import CallNext, JobContext

STORE = "ONWARD_TEST_STORE"
DIRECTORY = Path(os.environ[STORE])

app = App(f"sqlite:///{DIRECTORY / 'jobs.db'}", lease=1)


@app.middleware.append
async def _record(context: JobContext, call_next: CallNext) -> object:
    context.log("by the middleware")
    return await call_next()


def _note(context: JobContext, what: str) -> None:
    """Leave a line that another process can read."""
    with (DIRECTORY / "runs").open("a", encoding="utf-8") as file:
        file.write(f"{context.type} {what} {os.getpid()}\n")


def runs(what: str) -> list[int]:
    """List the processes that have left such a line."""
    file = DIRECTORY / "runs"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [int(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == what]


@app.task
async def innocent(context: JobContext) -> int:
    _note(context, "ran")
    context.set_progress(50, "half-way")
    await asyncio.sleep(0)
    return os.getpid()


@app.task
def plain(context: JobContext) -> int:
    _note(context, "ran")
    return os.getpid()


@app.task(max_attempts=1)
async def crash(context: JobContext) -> None:
    _note(context, "ran")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(max_attempts=2, on_crash="retry")
async def crash_retry(context: JobContext) -> None:
    await crash.function(context)


@app.task(on_crash="fail")
async def crash_fail(context: JobContext) -> None:
    await crash.function(context)


@app.task(on_crash="hold")
async def crash_hold(context: JobContext) -> None:
    if not (DIRECTORY / "proceed").exists():
        await crash.function(context)


@app.task
async def fail(context: JobContext) -> None:
    _note(context, "ran")
    raise ValueError("as any other")


@app.task
async def wait_for_file(context: JobContext) -> None:
    _note(context, "began")
    while not (DIRECTORY / "proceed").exists():
        await asyncio.sleep(0.01)


@app.task(max_attempts=1)
def hold_interpreter(context: JobContext, seconds: float) -> int:
    """Keep every thread of the process from running, as C code may."""
    _note(context, "ran")
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))
    return os.getpid()


@app.task(timeout=timedelta(seconds=0.2), max_attempts=1)
def sleep(seconds: float) -> None:
    time.sleep(seconds)


blueprint = Tasks()


@blueprint.task
async def stateful(context: JobContext) -> list[int]:
    return [os.getpid(), context.state]


@asynccontextmanager
async def lifespan(_: App) -> AsyncIterator[int]:
    yield os.getpid()


def create_app() -> App:
    """Make an App that does not know its store: the worker does."""
    made = App(lifespan=lifespan, lease=1)
    made.include(blueprint)
    return made
