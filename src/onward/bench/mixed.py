"""Whether quick jobs wait for a slow one that was taken before them."""

from __future__ import annotations

import asyncio
import statistics
from typing import Final

from onward.bench.environment import Environment
from onward.bench.handlers import Handler, make_producer, task_of
from onward.bench.report import Report
from onward.bench.statistics import ReportProgress
from onward.bench.verification import finished_jobs, is_verified, wait_until_finished
from onward.bench.workers import WorkerProcesses
from onward.core import core_of

_WORKERS: Final = 2


def mixed(
    environment: Environment, *, jobs: int, rounds: int, report_progress: ReportProgress, concurrency: int, slow: float
) -> Report:
    """Enqueue a slow job and quick ones behind it, all at once, for two idle workers; time the quick ones."""
    quick: list[float] = []
    verified = True
    for number in range(1, rounds + 1):
        url = environment.fresh()
        with WorkerProcesses(url, workers=_WORKERS, concurrency=concurrency) as workers:
            quick.append(asyncio.run(_quick_ones(url, jobs, slow)))
        verified &= len(workers.ran) == jobs and is_verified(url, workers.ran)
        environment.remove(url)
        report_progress(f"round {number} of {rounds}: the quick ones took {quick[-1]:.3f} s")
    return Report(
        engine=environment.engine,
        scenario="mixed",
        jobs=jobs,
        onward=statistics.median(quick),
        unit="s until the last quick job was completed",
        verified=verified,
        against="nothing: it is a promise, not a speed",
        rounds=rounds,
        more={"slow_s": slow, "workers": _WORKERS, "concurrency": concurrency},
    )


async def _quick_ones(url: str, jobs: int, slow: float) -> float:
    """Enqueue, wait for all to end, and read from the store how long the quick ones took, from their creation."""
    async with make_producer(url) as app:
        quick = task_of(app, Handler.ASYNC)
        made = [core_of(app).find_task("slow").job(n=0, seconds=slow)]
        made += [quick.job(n=number) for number in range(1, jobs)]
        await app.enqueue_many(made)
        await wait_until_finished(app, jobs, max_wait=slow + 60)
        return max(
            [
                (job.completed_at - job.created_at).total_seconds()
                async for job in finished_jobs(app)
                if job.type == quick.name and job.completed_at is not None
            ],
            default=0.0,
        )
