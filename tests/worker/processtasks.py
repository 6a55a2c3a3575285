"""Tasks that run in a process of their own; a child imports this module by its name."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from onward.app import App
from onward.context import JobContext
from onward.control_flow import Cancel, DoNotRetry, Retry, Snooze

app = App("sqlite://")


class CustomError(Exception):
    """An exception of the application's own."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class KeywordOnlyError(Exception):
    """An exception that cannot be made from its message."""

    def __new__(cls, *, code: int) -> Self:
        """Ask for a keyword."""
        return super().__new__(cls)

    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code

    def __str__(self) -> str:
        """Need an attribute."""
        return f"code {self.code}"


class UnprintableError(Exception):
    """An exception whose message cannot be made."""

    def __str__(self) -> str:
        """Fail."""
        raise AttributeError


class SnoozeForever(Snooze):
    """A subclass of a control flow exception."""


UNTIL = datetime(2126, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)


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
    if how == "snooze until":
        raise Snooze(until=UNTIL)
    if how == "snooze subclass":
        raise SnoozeForever(until=UNTIL)
    if how == "retry":
        raise Retry(3600, reason="busy") from ConnectionError("no line free")
    if how == "called process":
        raise subprocess.CalledProcessError(7, ["ls", "-l"])
    if how == "group":
        raise ExceptionGroup("several", [ValueError("one"), KeywordOnlyError(code=2)])
    if how == "lone group":
        raise ExceptionGroup("one of one", [TimeoutError("too late")])
    if how == "unicode":
        b"\xff".decode("utf-8")
    if how == "surrogate":
        raise ValueError("half of an emoji: \ud83d")
    if how == "keyword":
        raise KeywordOnlyError(code=3)
    if how == "unprintable":
        raise UnprintableError
    if how == "local":

        class LocalError(LookupError):
            pass

        raise LocalError("defined within")
    if how == "exit":
        raise SystemExit(4)
    if how == "interrupt":
        raise KeyboardInterrupt("by hand")
    raise ValueError(how)


@app.task(executor="process")
def run_forever(path: str) -> None:
    Path(path).write_text(f"{os.getpid()}\n", encoding="utf-8")
    time.sleep(3600)


def end_before_ready(_: Connection) -> None:
    """Stand for a child that the system gives no thread."""
    raise SystemExit(1)


@app.task(executor="process")
def read_state(context: JobContext) -> object:
    return context.state
