"""Tasks that run in a process of their own; a child imports this module by its name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from onward.app import App
from onward.context import JobContext
from onward.control_flow import Cancel, DoNotRetry, Snooze

app = App("sqlite://")


class CustomError(Exception):
    """An exception of the application's own."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@app.task(executor="process")
def add(one: int, two: int) -> dict[str, int]:
    return {"sum": one + two, "pid": os.getpid()}


@app.task(executor="process")
def attempt(context: JobContext) -> int:
    return context.attempt


@app.task(executor="process")
def report(context: JobContext) -> None:
    context.log("first")
    context.set_progress(50, "half-way")
    context.log("second")


@app.task(executor="process", max_attempts=1)
def die(how: str) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(3)
    if how == "abort":
        os.abort()


@app.task(executor="process", max_attempts=1)
def fail(how: str) -> None:
    if how == "odd":
        raise CustomError(1, 2)
    if how == "cancel":
        raise Cancel("not needed")
    if how == "never":
        raise DoNotRetry("hopeless")
    if how == "snooze":
        raise Snooze(3600)
    raise ValueError(how)


@app.task(executor="process")
def run_forever(path: str) -> None:
    Path(path).write_text(f"{os.getpid()}\n", encoding="utf-8")
    time.sleep(3600)
