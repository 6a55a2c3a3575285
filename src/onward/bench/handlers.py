"""The handlers that are measured. Each notes its start, and returns its number, for which the store can be asked."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Any, Final

from onward.app import App
from onward.bench.stopwatch import Stopwatch
from onward.core import core_of
from onward.task import Task

QUEUE: Final = "bench"
SLEEP_SECONDS: Final = 0.010
"""Seconds that a napping handler sleeps."""


class Handler(StrEnum):
    """What kind of handler runs the jobs."""

    ASYNC = "async"
    """An ``async def`` that returns at once."""
    DEF = "def"
    """A plain function that does: it runs on a thread."""
    SLEEP10 = "sleep10"
    """An ``async def`` that sleeps for ten milliseconds."""


def make_app(url: str, watch: Stopwatch) -> App:
    """Make an App as any user would, with all its defaults."""
    app = App(url)

    @app.task(name=Handler.ASYNC, queue=QUEUE)
    async def noop(n: int) -> int:
        watch.start(n)
        return n

    @app.task(name=Handler.DEF, queue=QUEUE)
    def plain(n: int) -> int:
        watch.start(n)
        return n

    @app.task(name=Handler.SLEEP10, queue=QUEUE)
    async def sleep10(n: int) -> int:
        watch.start(n)
        await asyncio.sleep(SLEEP_SECONDS)
        return n

    @app.task(name="slow", queue=QUEUE)
    async def slow(n: int, seconds: float) -> int:
        watch.start(n)
        await asyncio.sleep(seconds)
        return n

    return app


def make_producer(url: str) -> App:
    """Make the same App for a process that only enqueues."""
    return make_app(url, Stopwatch(0))


def task_of(app: App, handler: Handler) -> Task[..., Any]:
    """Find the task of a kind of handler."""
    return core_of(app).find_task(handler)
