"""The tasks of the demo. Each takes down in the ledger that it has begun, and that its work is done."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from onward.app import App
from onward.backoff import Backoff
from onward.cli.demo.kinds import ATTEMPTS
from onward.cli.demo.ledger import Ledger
from onward.context import JobContext

RETRY_DELAY = Backoff.fixed(0.3)


def make_app(url: str, ledger: Ledger) -> App:
    """Make an App whose handlers write to a ledger."""
    app = App(url)

    @contextmanager
    def recorded(context: JobContext) -> Iterator[None]:
        ledger.write(context.id, context.type, context.attempt, done=False)
        yield
        ledger.write(context.id, context.type, context.attempt, done=True)

    @app.task(queue="quick")
    async def quick(context: JobContext, seconds: float) -> float:
        with recorded(context):
            await asyncio.sleep(seconds)
        return seconds

    @app.task(queue="slow")
    def slow(context: JobContext, seconds: float) -> str:
        with recorded(context):
            time.sleep(seconds)
        return f"blocked a thread of process {os.getpid()}"

    @app.task(queue="flaky", max_attempts=ATTEMPTS, backoff=RETRY_DELAY)
    async def flaky(context: JobContext, failures: int) -> str:
        with recorded(context):
            await asyncio.sleep(0.05)
            if context.attempt <= failures:
                raise ConnectionError(f"no answer, for the {context.attempt}. time")
        return f"succeeded on attempt {context.attempt}"

    @app.task(queue="delayed")
    async def delayed(context: JobContext) -> None:
        with recorded(context):
            await asyncio.sleep(0.01)

    @app.task(queue="limited")
    async def limited(context: JobContext) -> None:
        with recorded(context):
            await asyncio.sleep(0.01)

    @app.task(queue="progress")
    async def progress(context: JobContext, steps: int) -> None:
        with recorded(context):
            for step in range(steps):
                context.set_progress(100 * step // steps, f"step {step + 1} of {steps}")
                await asyncio.sleep(0.1)

    @app.task(queue="poison", max_attempts=ATTEMPTS, backoff=RETRY_DELAY)
    async def poison(context: JobContext) -> None:
        with recorded(context):
            raise ValueError("this can never work")

    @app.task(queue="crasher")
    async def crasher(context: JobContext) -> None:
        with recorded(context):
            os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(60)  # the signal is on its way

    return app
