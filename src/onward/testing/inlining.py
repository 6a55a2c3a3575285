"""Makes an enqueue run its job at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Final

import msgspec

from onward.app import App
from onward.control_flow import DoNotRetry
from onward.core import core_of
from onward.engine.access import AuditRecord
from onward.engine.contract import Producer
from onward.engine.values import Claim, JobFilter
from onward.job import Enqueued, JobRef, NewJob
from onward.lifecycle import HELD, Outcome, Result, Retry, Snooze, decide
from onward.own_loop import run_in_own_loop

_TOGETHER: Final = 1_000
_DEEPEST: Final = 20
"""How many jobs may be enqueued each by the one before: more look like one that enqueues itself for ever."""
_SNOOZE: Final = timedelta(seconds=1)
"""The least that a snooze lasts here, so that the job is really left alone."""

_depth: ContextVar[int] = ContextVar("onward_inline_depth", default=0)


@contextmanager
def inline(app: App) -> Iterator[None]:
    """Within the block, an enqueue runs its job in this process before it returns: delays and retries take no time.

    The job is stored and claimed as ever, so keys, refusals and the history are the real ones; its handle is
    finished. What a job enqueues runs within it. Three things wait all the same: a job that snoozes, a job of a queue
    that is paused or has no slot free, and a job enqueued ``within=`` a transaction, which nobody can see before that
    commits.
    """
    before = core_of(app).producer
    core_of(app).producer = _Inline(app, before)
    try:
        yield
    finally:
        core_of(app).producer = before


class _Inline:
    """Stores jobs, and runs them."""

    def __init__(self, app: App, enqueuer: Producer) -> None:
        self._app = app
        self._enqueuer = enqueuer

    async def enqueue(
        self, jobs: Sequence[NewJob], *, connection: object | None = None, audit: AuditRecord | None = None
    ) -> list[Enqueued]:
        if connection is not None:
            return await self._enqueuer.enqueue(jobs, connection=connection, audit=audit)
        _check_depth()
        enqueued = await self._enqueuer.enqueue([_due(job) for job in jobs], audit=audit)
        await self._run(enqueued)
        return enqueued

    def enqueue_sync(self, jobs: Sequence[NewJob], *, connection: object | None = None) -> list[Enqueued]:
        if connection is not None:
            return self._enqueuer.enqueue_sync(jobs, connection=connection)
        _check_depth()
        enqueued = self._enqueuer.enqueue_sync([_due(job) for job in jobs])
        # Not on the App's loop thread: each job that enqueues another would keep one of its pool's threads waiting.
        run_in_own_loop(lambda: self._run(enqueued))
        return enqueued

    async def _run(self, enqueued: Sequence[Enqueued]) -> None:
        refs = [one.ref for one in enqueued if one.is_new]
        if not refs:
            return
        queues = tuple({ref.queue for ref in refs})
        async with core_of(self._app).alive() as state:
            ticker = core_of(self._app).ticker(state=state, decide=_decide_at_once)
            deeper = _depth.set(_depth.get() + 1)
            try:
                while (await ticker.tick(_TOGETHER, queues=queues)).claimed or await self._wait_for_others(refs):
                    pass
            finally:
                _depth.reset(deeper)

    async def _wait_for_others(self, refs: Sequence[JobRef]) -> bool:
        """Wait for jobs of ours that another inline enqueue, or a worker, has taken; False: there are none."""
        wait_seconds = False
        for start in range(0, len(refs), _TOGETHER):
            chunk = tuple(refs[start : start + _TOGETHER])
            page = await self._app.jobs.list(JobFilter(refs=chunk, status=HELD), limit=len(chunk))
            for job in page.items:
                await core_of(self._app).results.wait(job.ref, None)
                wait_seconds = True
        return wait_seconds


def _due(job: NewJob) -> NewJob:
    return msgspec.structs.replace(job, delay=None, run_at=None)


def _check_depth() -> None:
    if _depth.get() >= _DEEPEST:
        raise DoNotRetry(f"inline: {_DEEPEST} jobs have enqueued each the next: does one enqueue itself for ever?")


def _decide_at_once(claim: Claim, result: Result) -> Outcome:
    outcome = decide(claim, result)
    match outcome:
        case Retry():
            return msgspec.structs.replace(outcome, delay=timedelta(0))
        case Snooze(delay):
            return Snooze(max(delay, _SNOOZE))
        case _:
            return outcome
