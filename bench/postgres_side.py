"""Python's queues on PostgreSQL, by Onward's own stop-watch, each in a virtualenv of its own: see peers.py.

    python postgres_side.py PEER prepare|fill STOPWATCH.PY URL JOBS
    python postgres_side.py PEER drain        STOPWATCH.PY URL JOBS     prints one JSON object

In one process, with the log off, tuned as their documentation advises and as was fastest of what was tried.
"""
# ruff: noqa: PLC0415 - a virtualenv has the packages of one peer only

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from types import ModuleType
from typing import Any

from side import CONCURRENCY, TOGETHER, Measure


async def procrastinate(measure: Measure) -> None:
    """Procrastinate: twenty jobs at once, woken by NOTIFY; more at once are slower. Finished jobs stay, as they do."""
    import procrastinate as package

    app = package.App(connector=package.PsycopgConnector(conninfo=measure.url, min_size=1, max_size=20))

    @app.task(name="noop", queue="bench")
    async def noop(n: int) -> None:
        measure.start(n)

    async with app.open_async():
        if measure.what == "prepare":
            await app.schema_manager.apply_schema_async()
        elif measure.is_fill:
            for first in range(0, measure.jobs, TOGETHER):
                some = range(first, min(first + TOGETHER, measure.jobs))
                await noop.batch_defer_async(*[{"n": n} for n in some])
        else:
            working = asyncio.create_task(
                app.run_worker_async(
                    queues=["bench"], concurrency=20, listen_notify=True, install_signal_handlers=False
                )
            )
            await measure.until_done()
            left = await _until_none(lambda: _count(app, "status <> 'succeeded'"))
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working
            measure.tell(left)


async def _count(app: Any, where: str) -> int:
    row = await app.connector.execute_query_one_async(f"select count(*) from procrastinate_jobs where {where}")
    return int(row["count"])


async def _until_none(count: Any) -> int:
    """Wait for the last outcomes to be stored, a moment after their handlers have started; say how many never were."""
    left = 0
    for _ in range(500):
        left = await count()
        if not left:
            break
        await asyncio.sleep(0.01)
    return left


async def chancy(measure: Measure) -> None:
    """Chancy: a hundred jobs at once on its asynchronous executor, which asks for more while there are (eager)."""
    from chancy import Chancy, Queue, Worker, job

    async def run(*, n: int) -> None:
        measure.start(n)

    run.__module__, run.__name__, run.__qualname__ = "chancy_noop", "noop", "noop"
    sys.modules["chancy_noop"] = module = ModuleType("chancy_noop")  # it finds its functions by their names
    module.noop = noop = job(queue="bench")(run)
    async with Chancy(measure.url) as app:
        if measure.what == "prepare":
            await app.migrate()
            eager = {"polling_interval": 1, "eager_polling": True}
            await app.declare(Queue("bench", concurrency=100, executor=Chancy.Executor.Async, **eager))
        elif measure.is_fill:
            async for _ in app.push_many([noop.job.with_kwargs(n=n) for n in range(measure.jobs)]):
                pass
        else:
            async with Worker(app):
                await measure.until_done()

                async def unfinished() -> int:
                    async with app.pool.connection() as connection:
                        found = await connection.execute("select count(*) from chancy_jobs where state <> 'succeeded'")
                        return int((await found.fetchone())[0])

                left = await _until_none(unfinished)
            measure.tell(left)


async def saq(measure: Measure) -> None:
    """SAQ on PostgreSQL."""
    from saq import Queue, Worker

    async def noop(_: Any, *, n: int) -> int:
        measure.start(n)
        return n

    queue = Queue.from_url(measure.url, name="bench", max_size=CONCURRENCY)
    await queue.connect()
    if measure.is_fill:
        for n in range(measure.jobs):
            await queue.enqueue("noop", n=n)
    elif measure.what == "drain":
        worker = Worker(queue, [("noop", noop)], concurrency=CONCURRENCY)
        working = asyncio.create_task(worker.start())
        await measure.until_done()
        left = await _until_none(lambda: queue.count("incomplete"))
        await worker.stop()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        measure.tell(left)
    await queue.disconnect()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    peer, what, stopwatch, url, number = sys.argv[1:]
    asyncio.run(globals()[peer](Measure(what, stopwatch, url, int(number))))
