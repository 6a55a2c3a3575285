"""What only the comparison on Redis asks of Onward: how late delayed jobs start."""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import timedelta

from onward import App


def delay(url: str, jobs: int) -> dict[str, float]:
    """Add jobs that are due at moments spread over two seconds, and say in seconds how late they start."""
    return asyncio.run(_delay(url, jobs))


async def _delay(url: str, jobs: int) -> dict[str, float]:
    app, late, done = App(url), [], asyncio.Event()

    @app.task(name="noop", queue="bench")
    async def noop(n: int, due: float) -> int:
        late.append(time.time() - due)
        if len(late) == jobs:
            done.set()
        return n

    async with app, app.worker(concurrency=50):
        await asyncio.sleep(1)
        for n in range(jobs):
            wait = 200 + (n * 7919) % 2000
            task = noop.using(delay=timedelta(milliseconds=wait))
            await task.enqueue(n=n, due=time.time() + wait / 1000)
        await asyncio.wait_for(done.wait(), 60)
    return {"median": statistics.median(late), "worst": max(late)}
