"""What the shell offers at a press of the tab key: statuses, and the names of what the store knows.

It must be quick and must never be in the way: whatever goes wrong, nothing is offered and nothing is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Awaitable, Callable
from typing import Final

import typer

from onward.app import App
from onward.lifecycle import JobStatus

_TIMEOUT: Final = 1.0
"""Seconds: nobody waits longer for a suggestion."""


def statuses() -> list[str]:
    """Offer the statuses."""
    return [*(status.value for status in JobStatus), "unsuccessful"]


def queues(ctx: typer.Context) -> list[str]:
    """Offer the queues that there are."""
    return _complete(ctx, _queues)


def tasks(ctx: typer.Context) -> list[str]:
    """Offer the tasks of the app, and those that the workers have registered."""
    return _complete(ctx, _tasks)


def schedules(ctx: typer.Context) -> list[str]:
    """Offer the schedules that there are."""
    return _complete(ctx, _schedules)


def batches(ctx: typer.Context) -> list[str]:
    """Offer the newest batches."""
    return _complete(ctx, _batches)


async def _batches(app: App) -> list[str]:
    return [batch.name for batch in (await app.batches.list()).items]


async def _schedules(app: App) -> list[str]:
    return [schedule.name for schedule in await app.schedules.list()]


async def _queues(app: App) -> list[str]:
    return [queue.name for queue in await app.queues.list()]


async def _tasks(app: App) -> list[str]:
    return sorted({*app.tasks, *(type for worker in await app.workers.list() for type in worker.types)})


def _complete(ctx: typer.Context, query: Callable[[App], Awaitable[list[str]]]) -> list[str]:
    async def run(app: App) -> list[str]:
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await query(app)
        finally:
            await app.close()

    # The user's module may print, and that would be offered too.
    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        from onward.cli.target import find_app, refuse_missing_file  # noqa: PLC0415 - a name to complete is seldom

        app = find_app(ctx.params.get("app"), ctx.params.get("url"))
        refuse_missing_file(app)
        return asyncio.run(run(app))
    return []
