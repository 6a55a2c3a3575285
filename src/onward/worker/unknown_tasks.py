"""Puts back jobs whose task this worker does not have (O8).

During a rolling deploy, and where two apps share a store, a worker claims jobs that another worker knows. Such a job is
snoozed with growing delays, at no cost. It fails as ``NoHandler`` when no registered worker of its queue has had the
task for the whole grace period.

How often and since when a job has been put back is recorded in the job's own log, by the store's clock, so that it
survives restarts and is shared by all workers. Engines without log lines have it in this process's memory: a restarted
worker begins the grace period again, which loses nothing. The grace period also begins again when a registered worker
has the task, and after a time in which the job was not put back: its task may have run then.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import timedelta
from typing import Final, NamedTuple

from onward.arguments import nearest
from onward.backoff import Backoff
from onward.clock import MICROSECOND, Clock, SystemClock, micros_of
from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.values import ANY_TYPE, Claim
from onward.errors import StoreUnavailable
from onward.job import JobRef
from onward.lifecycle import Failure, Interrupted, Raised, Result, Snoozed
from onward.validation import matches
from onward.worker_options import UNKNOWN_TASK_GRACE, UnknownTaskPolicy

log = logging.getLogger("onward.worker")

_DELAYS: Final = Backoff.exponential(1, cap=300, jitter=0.1)
_SERVED_DELAYS: Final = Backoff.exponential(1, cap=10, jitter=0.1)
"""While another worker has the task: the job should reach it soon."""
_PUT_BACK: Final = "NoHandler: put back"
_LEFT: Final = "NoHandler: left to another worker"
_GAVE_UP: Final = "NoHandler: gave up"
"""How lines in a job's log begin: no worker has the task, another has it, and after the grace period. A job that is
replayed after it failed has its grace period again."""
_MAX_GAP: Final = timedelta(minutes=10)
"""Time between two put-backs after which the grace period begins again. Twice the longest delay."""
_MAX_REMEMBERED: Final = 10_000
"""Jobs remembered in memory, on engines without log lines."""
_WARNING_INTERVAL: Final = timedelta(minutes=1)
"""Time between two warnings about the same task."""
_SERVED_TTL: Final = timedelta(seconds=5)
"""For how long another worker is believed to have a task: a backlog of unknown jobs must not read the list for each."""
_UNSERVED_TTL: Final = timedelta(seconds=0.5)
"""For how long no other worker is believed to have a task: the job may fail for it."""


class _PutBacks(NamedTuple):
    """The last put-backs of a job, as long as nothing has interrupted them."""

    times: int
    first_at: int
    last_at: int
    is_served: bool
    """Whether another worker had the task."""

    def then(self, at: int, *, is_served: bool) -> _PutBacks:
        """Add one, in microseconds since 1970; return those that it follows without interruption, with it."""
        if is_served != self.is_served or (at - self.last_at) * MICROSECOND > _MAX_GAP:
            return _PutBacks(1, at, at, is_served)
        return self._replace(times=self.times + 1, last_at=at)

    @property
    def elapsed(self) -> timedelta:
        """The time from the first to the last."""
        return (self.last_at - self.first_at) * MICROSECOND


class UnknownTasks:
    """Decides what becomes of a job whose task the worker does not have."""

    def __init__(
        self,
        engine: CheckedEngine,
        *,
        worker_id: str,
        policy: UnknownTaskPolicy = "wait",
        grace: timedelta = UNKNOWN_TASK_GRACE,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._worker_id = worker_id
        self._policy = policy
        self._grace = grace
        self._clock = clock or SystemClock()
        self._put_backs: dict[JobRef, _PutBacks] = {}
        """On engines without log lines: how each job was put back."""
        self._warned_at: dict[str, int] = {}
        self._peers: tuple[int, dict[str, frozenset[str]]] | None = None
        """When the other workers were listed, and the queues that each task is served in."""

    async def result_of(self, claim: Claim, known: Collection[str]) -> Result:
        """Return how the run of an unknown task ends: put back, or failed."""
        try:
            return await self._decide(claim, known)
        except StoreUnavailable:
            return Snoozed(_DELAYS.delay(1), is_put_back=True)

    async def _decide(self, claim: Claim, known: Collection[str]) -> Result:
        message = f"this worker has no task {claim.type!r}{nearest(claim.type, known)}"
        no_handler = Raised(Failure("NoHandler", message), retryable=False)
        capabilities = self._engine.capabilities
        if self._policy == "fail":
            return no_handler
        if capabilities.max_put_backs is not None and claim.put_backs >= capabilities.max_put_backs:
            return no_handler
        is_served = await self._is_served(claim)
        if capabilities.put_back_needs_peer and not is_served:
            return no_handler
        recorded = await self._record(claim, is_served=is_served)
        if recorded is None:
            return Interrupted()
        if recorded.elapsed >= self._grace and not is_served:
            await self._forget(claim)
            return no_handler
        delay = (_SERVED_DELAYS if is_served else _DELAYS).delay(recorded.times)
        if not is_served:
            delay = min(delay, max(self._grace - recorded.elapsed, timedelta(seconds=1)))
        self._warn(claim, message, delay)
        return Snoozed(delay, is_put_back=True)

    async def _is_served(self, claim: Claim) -> bool:
        """Say whether another registered worker of the job's queue may have its task."""
        now = self._clock.micros()
        age = timedelta.max if self._peers is None else (now - self._peers[0]) * MICROSECOND
        if age >= _UNSERVED_TTL and not (age < _SERVED_TTL and self._has_peer(claim)):
            served: dict[str, set[str]] = {}
            for worker in await self._engine.workers():
                if worker.id != self._worker_id:
                    for type_ in worker.types:
                        served.setdefault(type_, set()).update(worker.queues)
            self._peers = now, {type_: frozenset(patterns) for type_, patterns in served.items()}
        if self._has_peer(claim):
            return True
        return self._engine.capabilities.put_back_needs_peer and await self._engine.has_foreign_workers(claim.ref.queue)

    def _has_peer(self, claim: Claim) -> bool:
        """Say whether one of the listed workers has the task, or takes any."""
        served = {} if self._peers is None else self._peers[1]
        patterns = served.get(claim.type, frozenset()) | served.get(ANY_TYPE, frozenset())
        return any(matches(pattern, claim.ref.queue) for pattern in patterns)

    async def _record(self, claim: Claim, *, is_served: bool) -> _PutBacks | None:
        """Record one more put-back; return it with those that it follows; None: the claim is lost."""
        recorded: _PutBacks | None
        if not self._engine.capabilities.has(Feature.LOG_LINES):
            now = self._clock.micros()
            recorded = self._put_backs.pop(claim.ref, None)
            while len(self._put_backs) >= _MAX_REMEMBERED:
                self._put_backs.pop(next(iter(self._put_backs)))
            recorded = (recorded or _PutBacks(0, now, now, is_served)).then(now, is_served=is_served)
            self._put_backs[claim.ref] = recorded
            return recorded
        line = f"{_LEFT if is_served else _PUT_BACK} by {self._worker_id}, which has no task {claim.type!r}"
        if not await self._engine.report(claim, lines=[line]):
            return None
        recorded = None
        for entry in await self._engine.logs(claim.ref):
            if entry.line.startswith(_GAVE_UP):
                recorded = None
            elif entry.line.startswith((_PUT_BACK, _LEFT)):
                at, left = micros_of(entry.at), entry.line.startswith(_LEFT)
                recorded = (recorded or _PutBacks(0, at, at, left)).then(at, is_served=left)
        return recorded

    async def _forget(self, claim: Claim) -> None:
        self._put_backs.pop(claim.ref, None)
        if self._engine.capabilities.has(Feature.LOG_LINES):
            await self._engine.report(claim, lines=[f"{_GAVE_UP} after {self._grace}"])

    def _warn(self, claim: Claim, message: str, delay: timedelta) -> None:
        now = self._clock.micros()
        warned_at = self._warned_at.get(claim.type)
        if warned_at is not None and (now - warned_at) * MICROSECOND < _WARNING_INTERVAL:
            return
        if len(self._warned_at) >= _MAX_REMEMBERED:
            self._warned_at.clear()
        self._warned_at[claim.type] = now
        fields = {
            "job_id": claim.ref.id,
            "queue": claim.ref.queue,
            "task": claim.type,
            "delay": delay.total_seconds(),
            "error": message,
        }
        log.warning("no task for the job, put back for another worker", extra=fields)
