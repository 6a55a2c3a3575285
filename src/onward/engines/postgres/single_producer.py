"""Lets one who is alone add jobs on the spot.

Whoever adds one job after the other, while nobody else does, would find out the same for each: which statement adds it,
that its lane is there, which connection is idle. On a busy machine, where nothing of that is in a cache of the
processor any more, to find it out costs as much as to send the job, and to go through the event loop costs three times
as much. So the one who has added a job the long way is given a permit, and until that lapses its next ones are sent at
once, and their answers waited for while the loop is held up: see ``try_execute`` in :mod:`onward.pg.timed_connection`.

Now and then the loop has a turn, so that others can come. When what was seen has to be looked at again, and nobody was
there to be told of jobs, the next job looks on its way: if all is still so the permit holds on, and if not the job is
not added by it. Otherwise the permit lapses then. It is withdrawn when somebody else adds jobs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final
from weakref import ref

from onward.engines.postgres.enqueue import EnqueuePlan, SingleInsert, SingleInsertStatements
from onward.engines.postgres.enqueue_cache import EnqueueCache
from onward.engines.postgres.notify_throttle import NotifyThrottle
from onward.job import Enqueued, UniformJobs
from onward.pg.errors import RETRYABLE, Translated
from onward.pg.pools import LoopPool
from onward.pg.timed_connection import TimedAsyncConnection

EnqueueNormally = Callable[[UniformJobs], Coroutine[Any, Any, list[Enqueued]]]

_YIELD_INTERVAL: Final = 0.02
"""Seconds without a turn of the loop after which it has one. To turn it costs as much as to add half a job."""


class SingleProducer:
    """Whose jobs are added on the spot, and how."""

    __slots__ = (
        "_cache",
        "_caller",
        "_check_at",
        "_connections",
        "_enqueue_normally",
        "_has_listener",
        "_is_yield_scheduled",
        "_plan",
        "_statements",
        "_throttle",
        "_translated",
        "_valid_until",
    )

    def __init__(
        self,
        plan: EnqueuePlan,
        statements: SingleInsertStatements,
        *,
        cache: EnqueueCache,
        throttle: NotifyThrottle,
        connections: LoopPool,
        translated: Translated,
        enqueue_normally: EnqueueNormally,
    ) -> None:
        """Permit it to the asyncio task that runs now, for jobs of a plan; ``enqueue_normally`` adds the others."""
        caller = asyncio.current_task()
        self._caller = None if caller is None else ref(caller)
        self._plan = plan
        self._statements = statements
        self._cache = cache
        self._throttle = throttle
        self._connections = connections
        self._translated = translated
        self._enqueue_normally = enqueue_normally
        self._has_listener = cache.has_listener
        self._check_at = self._next_check()
        self._yielded()

    def _next_check(self) -> float:
        """Say until when what was seen is relied on."""
        fresh_until = self._cache.fresh_until(self._plan.lane)
        # Where nobody was there to be told, it is looked again whether somebody is.
        return (
            fresh_until
            if self._has_listener
            else min(fresh_until, self._throttle.next_notice_at(self._plan.notification))
        )

    def _checked(self, began: float) -> None:
        """Note that all is still as it was seen before."""
        self._cache.store(self._plan.lane, began, is_plain=True, has_listener=False)
        self._check_at = self._next_check()

    def can_add(self, jobs: UniformJobs) -> bool:
        """Say whether it is permitted to add these here and now."""
        return monotonic() < self._valid_until and self._matches(jobs) and self._has_connection()

    def needs_yield(self, jobs: UniformJobs) -> bool:
        """Say whether these are not covered only because the loop is to have a turn first."""
        return self._valid_until <= monotonic() < self._expires_at and self._matches(jobs)

    @property
    def _expires_at(self) -> float:
        return self._check_at if self._has_listener else math.inf

    def _yielded(self) -> None:
        """Note that the loop has had a turn."""
        self._is_yield_scheduled = False
        self._valid_until = self._expires_at

    def _matches(self, jobs: UniformJobs) -> bool:
        is_uniform = jobs.template is self._plan.template and len(jobs.payloads) == 1
        return is_uniform and self._caller is not None and self._caller() is asyncio.current_task()

    def _has_connection(self) -> bool:
        """Say whether there is one to send them on; one that has answered since the last turn is not looked at."""
        return bool(self._connections.idle) if self._is_yield_scheduled else self._connections.has_healthy()

    def add(self, jobs: UniformJobs) -> Coroutine[Any, Any, list[Enqueued]]:
        """Add a job, which must be covered. It is there before this returns, unless it takes longer than a moment."""
        notice = self._throttle.notice_for(self._plan.notification)
        began = monotonic()
        checks = began >= self._check_at
        job = (
            self._statements.checked_insert(jobs.payloads[0])
            if checks
            else self._statements.single_insert(jobs.payloads[0], notice)
        )
        connection = self._connections.idle.pop()
        try:
            count = connection.try_execute(job.text, job.values)
        except RETRYABLE:
            count = 0
        except BaseException:
            self._has_failed(connection, notice)
            with self._translated:
                raise
        if count is None:
            return self._finish_add(connection, job, notice, jobs, began if checks else None)
        if not count:
            self._was_refused(connection, notice)
            return self._enqueue_normally(jobs)
        self._connections.idle.append(connection)
        self._throttle.committed(notice, self._plan.notification)
        if checks:
            self._checked(began)
        if not self._is_yield_scheduled:  # it is the first since the loop has had a turn
            self._is_yield_scheduled = True
            self._valid_until = min(monotonic() + _YIELD_INTERVAL, self._expires_at)
            asyncio.get_running_loop().call_soon(self._yielded)
        return _result_of(job.added)

    async def _finish_add(
        self,
        connection: TimedAsyncConnection,
        job: SingleInsert,
        notice: str | None,
        jobs: UniformJobs,
        checked_at: float | None,
    ) -> list[Enqueued]:
        """Go on with a statement that takes longer; it began to look at that moment, if it does."""
        connection.query_timeout = self._connections.query_timeout
        try:
            async with self._connections.semaphore:  # there is some, since one was idle
                count = await connection.execute_rowcount(job.text, job.values)
        except RETRYABLE:
            count = 0
        except BaseException:
            self._has_failed(connection, notice)
            with self._translated:
                raise
        if not count:
            self._was_refused(connection, notice)
            return await self._enqueue_normally(jobs)
        self._connections.put_back(connection)
        self._throttle.committed(notice, self._plan.notification)
        if checked_at is not None:
            self._checked(checked_at)
        return [job.added]

    def _was_refused(self, connection: TimedAsyncConnection, notice: str | None) -> None:
        self._connections.put_back(connection)
        self._throttle.not_sent(notice)

    def _has_failed(self, connection: TimedAsyncConnection, notice: str | None) -> None:
        self._connections.put_back(connection)
        self._throttle.failed(notice)


async def _result_of(added: Enqueued) -> list[Enqueued]:
    return [added]
