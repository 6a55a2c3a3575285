"""Asks the store whether every job has been completed, once, with its result, and compares that with the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from onward.app import App
from onward.bench.handlers import QUEUE
from onward.engine.values import JobFilter
from onward.job import Job
from onward.lifecycle import JobStatus

_PAGE: Final = 2_000
_POLL_INTERVAL: Final = 0.02
"""Seconds between two looks at the store."""


def is_verified(url: str, ran: Sequence[int], *, waiting: int = 0) -> bool:
    """Say whether the store has completed exactly the jobs that ran, each once and with its own result.

    ``waiting`` more are to be there that have not run.
    """
    return asyncio.run(_verify(url, ran, waiting))


async def _verify(url: str, ran: Sequence[int], waiting: int) -> bool:
    seen: set[int] = set()
    async with App(url) as app:
        counts = await app.jobs.count(JobFilter(queues=(QUEUE,)))
        async for job in finished_jobs(app):
            if job.attempts != 1 or job.result != job.payload["n"] or job.result in seen:
                return False
            seen.add(job.result)
    others = sum(number for state, number in counts.items() if state != JobStatus.COMPLETED)
    return len(ran) == len(seen) and seen == set(ran) and others == waiting


async def finished_jobs(app: App) -> AsyncIterator[Job]:
    """Read all completed jobs of a benchmark."""
    job_filter, after = JobFilter(queues=(QUEUE,), status=frozenset({JobStatus.COMPLETED})), None
    while True:
        page = await app.jobs.list(job_filter, limit=_PAGE, cursor=after, newest_first=False)
        for job in page.items:
            yield job
        after = page.next_cursor
        if after is None:
            return


async def wait_until_finished(app: App, jobs: int, *, max_wait: float) -> bool:
    """Wait until so many jobs are completed; False: they were not, in so many seconds."""
    job_filter = JobFilter(queues=(QUEUE,))
    try:
        async with asyncio.timeout(max_wait):
            while (await app.jobs.count(job_filter)).get(JobStatus.COMPLETED, 0) < jobs:  # noqa: ASYNC110 - other processes work
                await asyncio.sleep(_POLL_INTERVAL)
    except TimeoutError:
        return False
    return True
