"""Calls that come while one is under way share the next statement.

A commit waits for the disk, and many small ones wait one after the other. While one call's jobs are being written,
those of other callers on the same event loop gather, and go out together when it has come back: sixty-four concurrent
callers cost a few commits, and each is answered only when its own jobs are durable. If the database refuses a shared
statement, each call is tried again by itself, so that nobody suffers for another's fault.

Who calls again while nobody else has is alone: nothing would gather meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from onward.engine.access import AuditRecord, counted, enqueued_count
from onward.errors import StoreUnavailable
from onward.job import Enqueued, NewJob, UniformJobs

MAX_COALESCED: Final = 1000
"""Jobs in one shared statement: enough to share the disk's flush, few enough to keep the locks short."""

Jobs = TypeVar("Jobs", bound=Sized)


@dataclass(frozen=True, slots=True)
class AuditedJobs:
    """Jobs of some callers, and the record of each call with the number of its jobs."""

    jobs: Sequence[NewJob]
    records: Sequence[AuditRecord]

    @classmethod
    def of(cls, jobs: Sequence[NewJob], record: AuditRecord) -> AuditedJobs:
        """Put the jobs of one call and its record together."""
        return cls(jobs, [counted(record, len(jobs))])

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.jobs)

    def counted(self, answers: Sequence[Enqueued]) -> list[AuditRecord]:
        """Set in each record how many jobs of its call were added or changed."""
        records: list[AuditRecord] = []
        start = 0
        for record in self.records:
            end = start + (record.count or 0)
            records.append(counted(record, enqueued_count(answers[start:end])))
            start = end
        return records


@dataclass(slots=True)
class _Call(Generic[Jobs]):
    jobs: Jobs
    result: asyncio.Future[list[Enqueued]]


class Coalescer(Generic[Jobs]):
    """The calls of one event loop."""

    def __init__(
        self,
        write: Callable[[Jobs], Awaitable[list[Enqueued]]],
        join: Callable[[Sequence[Jobs]], Jobs],
        *,
        write_alone: Callable[[Jobs], Awaitable[list[Enqueued]]] | None = None,
    ) -> None:
        """``write_alone`` is for one who calls again while nobody else has; ``join`` makes one call of several."""
        self._write = write
        self._join = join
        self._write_alone = write_alone or write
        self._last_caller = 0
        self._waiting: deque[_Call[Jobs]] = deque()
        self._is_busy = False
        self._drain_task: asyncio.Task[None] | None = None

    async def enqueue(self, jobs: Jobs) -> list[Enqueued]:
        """Write jobs, alone if nobody else does, else with others."""
        if self._is_busy:
            call = _Call(jobs, asyncio.get_running_loop().create_future())
            self._waiting.append(call)
            return await call.result
        self._is_busy = True
        caller = id(asyncio.current_task())
        is_alone, self._last_caller = caller == self._last_caller, caller
        try:
            return await (self._write_alone(jobs) if is_alone else self._write(jobs))
        finally:
            if self._waiting:
                self._drain_task = asyncio.create_task(self._write_waiting(), name="onward-postgres-coalescer")
            else:
                self._is_busy = False

    async def _write_waiting(self) -> None:
        try:
            while calls := self._take():
                await self._write_together(calls)
        finally:
            self._is_busy = False
            for call in self._waiting:  # only if we were cancelled: the loop is closing
                call.result.cancel()

    def _take(self) -> list[_Call[Jobs]]:
        calls: list[_Call[Jobs]] = []
        count = 0
        while self._waiting and (not calls or count + len(self._waiting[0].jobs) <= MAX_COALESCED):
            call = self._waiting.popleft()
            if not call.result.done():  # who has gone away does not want it any more
                calls.append(call)
                count += len(call.jobs)
        return calls

    async def _write_together(self, calls: list[_Call[Jobs]]) -> None:
        if len(calls) > 1:
            try:
                combined = await self._write(self._join([call.jobs for call in calls]))
            except StoreUnavailable as error:  # it may have been written: to try again could do it twice
                for call in calls:
                    _reject(call, error)
                return
            except Exception:  # noqa: BLE001, S110 - nothing was written, and whose fault it is will show
                pass
            else:
                for call in calls:
                    results, combined = combined[: len(call.jobs)], combined[len(call.jobs) :]
                    _resolve(call, results)
                return
        for call in calls:
            try:
                results = await self._write(call.jobs)
            except Exception as error:  # noqa: BLE001 - whatever it is belongs to the one who asked
                _reject(call, error)
            else:
                _resolve(call, results)


def joined_audited(parts: Sequence[AuditedJobs]) -> AuditedJobs:
    """Put audited calls together."""
    return AuditedJobs(
        joined_jobs([part.jobs for part in parts]), [record for part in parts for record in part.records]
    )


def joined_jobs(parts: Sequence[Sequence[NewJob]]) -> Sequence[NewJob]:
    """Put jobs together; those that are alike stay so."""
    first = parts[0]
    if isinstance(first, UniformJobs):
        payloads: list[str] = []
        for part in parts:
            if not isinstance(part, UniformJobs) or part.template is not first.template:
                break
            payloads += part.payloads
        else:
            return UniformJobs(first.template, payloads)
    return [job for part in parts for job in part]


def _resolve(call: _Call[Jobs], results: list[Enqueued]) -> None:
    if not call.result.done():
        call.result.set_result(results)


def _reject(call: _Call[Jobs], error: Exception) -> None:
    if not call.result.done():
        call.result.set_exception(error)
