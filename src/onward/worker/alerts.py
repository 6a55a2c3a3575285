"""Evaluates alert rules: the leader does, now and then, for all rules at once.

A rule that changes its state enqueues one delivery. Its key names the delivery before it, so two leaders that evaluate
the same change for a moment add one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any, Final

from onward.alert import AlertRule, AlertState, Condition
from onward.engine.checked import CheckedEngine
from onward.engine.values import JobFilter, MaintenanceResult, Term
from onward.job import Job, NewJob
from onward.metering import Bucket, Usage, UsageBy, UsageQuery
from onward.webhook import TASK
from onward.worker.maintenance import MaintenanceTask

INTERVAL: Final = timedelta(seconds=15)
"""Between two evaluations: two or three reads of the store, however many rules there are."""

MakeJob = Callable[[AlertRule, dict[str, Any], str], NewJob]
"""Makes the job that delivers a message, with an idempotency key."""


class Alerts:
    """Rules, evaluated on one store."""

    def __init__(self, engine: CheckedEngine, rules: Collection[AlertRule], job_of: MakeJob) -> None:
        self._engine = engine
        self._rules = rules
        self._job_of = job_of

    @property
    def task(self) -> MaintenanceTask:
        """What a leader does."""
        return MaintenanceTask("alerts", self.evaluate, INTERVAL)

    async def evaluate(self, term: Term) -> MaintenanceResult:  # noqa: ARG002 - deliveries are keyed, and need no fence
        """Deliver what has changed."""
        now = (await self._engine.due_schedules(limit=1)).now
        queues = await self._engine.queues()
        usage = await self._usage(now)
        jobs = []
        for rule in self._rules:
            last = await newest_delivery(self._engine, rule)
            state, measured = rule.state_of(last), rule.measure(queues, usage, now)
            is_early = state.since is not None and now - state.since < rule.min_interval
            if measured.is_firing is not state.is_firing and not is_early:
                key = f"{rule.name}:{'first' if last is None else last.id}"
                jobs.append(self._job_of(rule, rule.message(measured, now), key))
        if jobs:
            await self._engine.enqueue(jobs)
        return MaintenanceResult(changed=len(jobs), queues=frozenset(job.queue for job in jobs))

    async def _usage(self, now: datetime) -> list[Usage]:
        windows = [rule.window for rule in self._rules if rule.condition is Condition.FAILURE_RATE]
        if not windows:
            return []
        by = frozenset({UsageBy.QUEUE, UsageBy.OUTCOME})
        return await self._engine.usage(UsageQuery(bucket=Bucket.MINUTE, by=by, since=now - max(windows)))


async def newest_delivery(engine: CheckedEngine, rule: AlertRule) -> Job | None:
    """Find what a rule has delivered last, or will have."""
    found = (await engine.find(JobFilter(queues=(rule.queue,), types=(TASK,)), limit=1)).items
    return found[0] if found else None


async def states_of(engine: CheckedEngine, rules: Collection[AlertRule]) -> tuple[AlertState, ...]:
    """Read how rules stand."""
    return tuple([rule.state_of(await newest_delivery(engine, rule)) for rule in rules])
