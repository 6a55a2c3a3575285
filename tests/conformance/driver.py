"""The short sentences that the tests are written in.

A :class:`Driver` speaks to one handle of the engine and fills in what a test does not care for: *add* a job, *take* it,
*end* it, look at the *job*, let time pass, do a leader's upkeep. It checks nothing that a test should check itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.values import (
    Changed,
    Claim,
    ClaimRequest,
    Claims,
    HeartbeatReply,
    JobFilter,
    MaintenanceResult,
    QueueChange,
    QueueInfo,
    Settlement,
    Term,
    WorkerInfo,
)
from onward.job import Enqueued, Job, JobRef, NewJob
from onward.lifecycle import MAX_CRASHES, JobStatus, Outcome
from tests.conformance.cases import Store

LEASE = timedelta(seconds=30)
PAST_LEASE = timedelta(seconds=31)
EVERY = JobFilter()


def new_job(**fields: Any) -> NewJob:
    """Make a job to be, of which only some fields matter."""
    return NewJob(**{"type": "greet", **fields})


def worker_info(worker_id: str, **fields: Any) -> WorkerInfo:
    """Make a worker's card, of which only the id matters."""
    return WorkerInfo(**{"id": worker_id, "hostname": "host", "pool_size": 4, "version": "1.0", **fields})


@dataclass(frozen=True)
class Driver:
    """One handle of the engine, spoken to in short sentences."""

    store: Store
    engine: CheckedEngine

    # Time

    @property
    def now(self) -> datetime:
        """The store's time."""
        return self.store.clock.now()

    async def advance(self, by: timedelta | float) -> None:
        """Let time pass, and do nothing."""
        await self.store.advance(by)

    # Jobs in

    async def add(self, **fields: Any) -> JobRef:
        """Enqueue one job."""
        return (await self.enqueue(**fields)).ref

    async def enqueue(self, **fields: Any) -> Enqueued:
        """Enqueue one job, and hear what became of it."""
        (answer,) = await self.put([new_job(**fields)])
        return answer

    async def add_many(self, count: int, **fields: Any) -> list[JobRef]:
        """Enqueue jobs that are all alike, in one bulk."""
        return [answer.ref for answer in await self.put([new_job(**fields)] * count)]

    async def put(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueue jobs; where queues are not made by use, make them first."""
        await self.make(*{job.queue for job in jobs})
        return await self.engine.enqueue(jobs)

    async def make(self, *queues: str) -> None:
        """Make queues, where they are not made by use."""
        if not self.engine.capabilities.has(Feature.QUEUES_BY_USE):
            for queue in queues:
                await self.set(queue)

    # Work

    async def claim(self, *queues: str, worker: str = "worker-1", slots: int = 1, **fields: Any) -> Claims:
        """Ask for jobs, and hear all of the answer."""
        return await self.engine.claim(
            ClaimRequest(worker_id=worker, queues=queues or ("default",), slots=slots, **fields)
        )

    async def take(self, *queues: str, worker: str = "worker-1", slots: int = 1, **fields: Any) -> tuple[Claim, ...]:
        """Ask for jobs."""
        return (await self.claim(*queues, worker=worker, slots=slots, **fields)).claims

    async def take_one(self, *queues: str, worker: str = "worker-1", **fields: Any) -> Claim:
        """Ask for a job that must be there."""
        (claim,) = await self.take(*queues, worker=worker, **fields)
        return claim

    async def take_ahead(self, *queues: str, worker: str = "worker-1", count: int = 1) -> tuple[Claim, ...]:
        """Claim jobs without starting them."""
        return await self.take(*queues, worker=worker, slots=0, prefetch_claimed=count)

    async def taken(self, *queues: str, slots: int = 1000, **fields: Any) -> list[JobRef]:
        """Take all there is, and hear the names in the order they came."""
        return [claim.ref for claim in await self.take(*queues, slots=slots, **fields)]

    async def end(self, claim: Claim, outcome: Outcome) -> bool:
        """Settle one claim, and hear whether it was recorded."""
        lost = await self.engine.settle([Settlement(claim, outcome)])
        assert lost <= {claim.token}
        return not lost

    async def end_all(self, claims: Sequence[Claim], outcome: Outcome) -> None:
        """Settle claims that must be recorded."""
        assert not await self.engine.settle([Settlement(claim, outcome) for claim in claims])

    async def beat(self, *claims: Claim, worker: str = "worker-1") -> HeartbeatReply:
        """Say that a worker is alive and holds these."""
        return await self.engine.heartbeat(worker_info(worker), claims)

    # Looking

    async def job(self, ref: JobRef) -> Job:
        """Read a job that must be there."""
        job = await self.engine.get(ref)
        assert job is not None, f"{ref} is gone"
        return job

    async def state(self, ref: JobRef) -> JobStatus:
        """Read where a job is."""
        return (await self.job(ref)).status

    def shown(self, state: JobStatus) -> JobStatus:
        """Say which state the engine shows for this one."""
        return self.engine.capabilities.shown(state)

    @property
    def keeps_change_times(self) -> bool:
        """Whether the store knows when a job was last changed, and since when it is ready."""
        return self.engine.capabilities.has(Feature.CHANGE_TIMES)

    def promoted(self, count: int) -> int:
        """Say how many of so many due jobs a promotion makes ready: none, where they become so by themselves."""
        return count if self.engine.capabilities.has(Feature.PROMOTION) else 0

    async def jobs(self, which: JobFilter = EVERY) -> tuple[Job, ...]:
        """List all jobs, the oldest first."""
        items: list[Job] = []
        after = None
        while True:
            page = await self.engine.find(which, cursor=after, limit=500, newest_first=False)
            items += page.items
            after = page.next_cursor
            if after is None:
                return tuple(items)

    async def found(self, which: JobFilter) -> set[JobRef]:
        """List the names of all jobs that a filter lets through."""
        return {job.ref for job in await self.jobs(which)}

    async def snapshot(self) -> tuple[object, ...]:
        """Everything that can be seen of the store, to be compared with a later look."""
        return (
            await self.jobs(),
            sorted(await self.engine.queues(), key=lambda queue: queue.name),
            sorted(await self.engine.workers(), key=lambda worker: worker.id),
        )

    # Operating

    async def set(self, queue: str, **change: Any) -> QueueInfo:
        """Change a queue's settings."""
        return await self.engine.configure(queue, QueueChange(**change))

    async def cancel(self, *refs: JobRef, reason: str = "no longer wanted") -> list[Changed]:
        """Take jobs back."""
        return await self.engine.cancel(JobFilter(refs=refs), reason=reason)

    async def replay(self, *refs: JobRef) -> list[Changed]:
        """Give jobs a new life."""
        return await self.engine.replay(JobFilter(refs=refs))

    # Upkeep

    async def lead(self, leader: str = "leader-1", *, lease: timedelta = LEASE) -> Term:
        """Become leader, who must not be there yet."""
        term = await self.engine.elect(leader, lease=lease)
        assert term is not None, "somebody else leads"
        return term

    async def promote(self, *, limit: int = 1000) -> MaintenanceResult:
        """Make what is due ready, as the leader of the moment."""
        term = await self.lead()
        batch = await self.engine.promote(term, limit=limit)
        await self.engine.resign(term)
        return batch

    async def rescue(self, *, max_crashes: int = MAX_CRASHES, limit: int = 1000) -> MaintenanceResult:
        """Give back what has been lost, as the leader of the moment."""
        term = await self.lead()
        batch = await self.rescue_as(term, max_crashes=max_crashes, limit=limit)
        await self.engine.resign(term)
        return batch

    async def rescue_as(self, term: Term, *, max_crashes: int = MAX_CRASHES, limit: int = 1000) -> MaintenanceResult:
        """Give back what has been lost, as a leader: at once, or where the store says so, at a second look."""
        batch = await self.engine.rescue(term, lease=LEASE, max_crashes=max_crashes, limit=limit)
        if batch.changed or batch.next_in is None:
            return batch
        return await self.engine.rescue(term, lease=LEASE, max_crashes=max_crashes, limit=limit)

    async def prune(self, *, limit: int = 1000) -> MaintenanceResult:
        """Remove what need not be kept, as the leader of the moment."""
        term = await self.lead()
        batch = await self.engine.prune(term, limit=limit)
        await self.engine.resign(term)
        return batch

    async def wait(self, by: timedelta | float) -> MaintenanceResult:
        """Let time pass, and make ready what has become due."""
        await self.advance(by)
        return await self.promote()

    async def suspect(self, queue: str = "default") -> Job:
        """Let two workers in a row die with the next job of a queue in their hands: it is a suspect then."""
        await self.lose(await self.take_one(queue))
        return await self.lose(await self.take_one(queue))

    async def lose(self, claim: Claim, *, max_crashes: int = MAX_CRASHES) -> Job:
        """Let a worker die with this job in its hands, and have the job given back."""
        await self.advance(PAST_LEASE)
        await self.rescue(max_crashes=max_crashes)
        return await self.job(claim.ref)
