"""The queue as a dictionary: what every verb must do, in plain Python, with :data:`onward.lifecycle.MOVES` as its law.

It knows rates, concurrency and pauses, and says of a claim exactly how many jobs each queue may give and in which
order. Which of several queues gives, it leaves open, as the contract does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from onward.clock import MICROSECOND, ManualClock, micros_of
from onward.engine.values import Claim, ClaimRequest, Claims, Rate
from onward.job import EnqueueStatus, Job, JobRef, NewJob
from onward.lifecycle import (
    FINISHED,
    HELD,
    MOVE_OF,
    MOVES,
    WAITING,
    JobStatus,
    Move,
    Outcome,
    Release,
    Retry,
    Snooze,
)
from onward.validation import matches


@dataclass
class ModelJob:
    """What is known of a job."""

    ref: JobRef
    number: int
    """In the order of arrival."""
    priority: int
    type: str
    state: JobStatus
    ready_at: int
    due: int
    attempts: int = 0
    crashes: int = 0
    suspect: bool = False
    was_lost: bool = False
    lease: int = 0
    lease_until: int = 0
    claim: Claim | None = None
    """The newest."""
    key: str | None = None
    dedupe: str | None = None


@dataclass
class ModelQueue:
    """What is known of a queue."""

    paused: bool = False
    global_concurrency: int | None = None
    weight: int = 1
    rate: Rate | None = None
    slot: int = 0
    starts: list[int] = field(default_factory=list)
    """Since the rate was last changed."""

    @property
    def spacing(self) -> int:
        """Microseconds between slots, never too few."""
        assert self.rate is not None
        return -(-(self.rate.period + self.rate.slack) // (MICROSECOND * (self.rate.count - self.rate.burst + 1)))

    def _next(self, now: int) -> int:
        """When the next slot is free; never further away than one spacing after a whole burst."""
        assert self.rate is not None
        reach = (self.rate.burst - 1) * self.spacing
        return min(self.slot, now + self.spacing + reach) - reach

    def free_slots(self, now: int, wanted: int) -> int:
        """Count how many could start now."""
        if self.rate is None:
            return wanted
        trial = ModelQueue(rate=self.rate, slot=self.slot)
        count = 0
        while count < wanted and trial._next(now) <= now:
            trial.use_slot(now)
            count += 1
        return count

    def use_slot(self, now: int) -> None:
        """Let one job start. One that comes late for its slot may be followed sooner, within half the slack."""
        if self.rate is None:
            return
        reach = (self.rate.burst - 1) * self.spacing
        late = now - self.rate.slack // MICROSECOND // 2
        self.slot = max(self._next(now) + reach, late) + self.spacing
        self.starts.append(now)

    def slot_in(self, now: int) -> int:
        """Microseconds until the next slot."""
        return max(0, self._next(now) - now)

    @property
    def is_limited(self) -> bool:
        """Never claimed ahead of a free slot."""
        return self.rate is not None or self.global_concurrency is not None


class Model:
    """The whole store."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.jobs: dict[JobRef, ModelJob] = {}
        self.queues: dict[str, ModelQueue] = {}
        self._arrivals = 0

    @property
    def now(self) -> int:
        """The store's time."""
        return self.clock.micros()

    def queue(self, name: str) -> ModelQueue:
        """A queue is there as soon as it is spoken of."""
        return self.queues.setdefault(name, ModelQueue())

    # Enqueue

    def standing_for(self, new: NewJob) -> tuple[JobRef | None, EnqueueStatus]:
        """Say which job stands for a new one already."""
        for job in self.jobs.values():
            if new.idempotency_key is not None and (job.type, job.key) == (new.type, new.idempotency_key):
                return job.ref, EnqueueStatus.SAME_KEY
        for job in self.jobs.values():
            if new.dedupe_key is not None and job.dedupe == new.dedupe_key and job.state not in FINISHED:
                return job.ref, EnqueueStatus.DEDUPED
        return None, EnqueueStatus.INSERTED

    def enqueue(self, new: NewJob, ref: JobRef) -> None:
        """Take in a job that was inserted under this name."""
        self.queue(new.queue)
        delay = (new.delay or timedelta(0)) // MICROSECOND
        self._arrivals += 1
        self.jobs[ref] = ModelJob(
            ref=ref,
            number=self._arrivals,
            priority=new.priority,
            type=new.type,
            state=JobStatus.SCHEDULED if delay else JobStatus.PENDING,
            ready_at=self.now,
            due=self.now + delay,
            key=new.idempotency_key,
            dedupe=new.dedupe_key,
        )

    # Claim

    def ready(self, queue: str, *, suspects: bool = False) -> list[ModelJob]:
        """List a queue's ready jobs, in the order in which they must come."""
        found = [
            job
            for job in self.jobs.values()
            if job.ref.queue == queue and job.state is JobStatus.PENDING and job.suspect is suspects
        ]
        return sorted(found, key=lambda job: (-job.priority, job.ready_at, job.number))

    def _places(self, name: str) -> int:
        """Count the places that concurrency leaves."""
        limit = self.queue(name).global_concurrency
        held = sum(job.ref.queue == name and job.state in HELD for job in self.jobs.values())
        return 1_000_000 if limit is None else max(0, limit - held)

    def capacity(self, name: str, *, suspects: bool = False) -> int:
        """Count the jobs that a queue would give to somebody who takes all."""
        queue = self.queue(name)
        if queue.paused:
            return 0
        return queue.free_slots(self.now, min(len(self.ready(name, suspects=suspects)), self._places(name)))

    def _matching(self, patterns: Iterable[str]) -> list[str]:
        return [name for name in self.queues if any(matches(pattern, name) for pattern in patterns)]

    def check_claim(self, request: ClaimRequest, answer: Claims) -> None:
        """Hold a claim's answer against what may be given, and take it over."""
        names = self._matching(request.queues)
        if request.alone:
            self._check_alone(names, answer)
        else:
            self._check_share(names, request, answer)
        for claim in answer.claims:
            self._take(claim, request)

    def _check_share(self, names: Sequence[str], request: ClaimRequest, answer: Claims) -> None:
        capacity = {name: self.capacity(name) for name in names}
        given = Counter(claim.ref.queue for claim in answer.claims)
        assert set(given) <= set(names), "from a queue that was not asked for"
        for name, count in given.items():
            assert count <= capacity[name], f"{name} may give {capacity[name]}, not {count}"
            came = [claim.ref for claim in answer.claims if claim.ref.queue == name]
            assert came == [job.ref for job in self.ready(name)[:count]], "not in order"

        started = [claim for claim in answer.claims if claim.started]
        assert len(started) == min(request.slots, sum(capacity.values())), "slots were left empty, or overfilled"
        prefetch_claimed = [claim for claim in answer.claims if not claim.started]
        free = {name for name in names if not self.queue(name).is_limited}
        assert {claim.ref.queue for claim in prefetch_claimed} <= free, "a limited queue was claimed ahead"
        left = sum(capacity[name] for name in free) - sum(claim.ref.queue in free for claim in started)
        assert len(prefetch_claimed) <= min(request.prefetch_claimed, left), "more were claimed ahead than could be"

        # An engine may take a moment to see that a queue has run empty; where none has, each has its turn.
        if (
            not request.prefetch_claimed
            and all(capacity.values())
            and request.slots >= sum(self.queue(q).weight for q in names)
        ):
            assert set(names) == set(given), "a queue was passed over though there was room for a turn of each"
        if request.slots + request.prefetch_claimed:
            waiting = [name for name in names if self.ready(name, suspects=True)]
            assert answer.has_suspects or all(self.queue(name).paused for name in waiting)
            assert waiting or not answer.has_suspects
        if len(answer.claims) < request.slots:
            self._check_again(names, given, answer)

    def _check_again(self, names: Sequence[str], given: Counter[str], answer: Claims) -> None:
        """Where only a rate keeps jobs back, the answer says when to come again, and no later than that."""
        for name in names:
            queue, trial = self.queue(name), ModelQueue(rate=self.queue(name).rate, slot=self.queue(name).slot)
            for _ in range(given[name]):
                trial.use_slot(self.now)
            waits = len(self.ready(name)) > given[name] and self._places(name) > given[name] and not queue.paused
            if waits and queue.rate is not None and trial.slot_in(self.now):
                assert answer.retry_after is not None, f"nobody says when {name} has its next slot"
                assert answer.retry_after * 1e6 <= trial.slot_in(self.now) + 1

    def _check_alone(self, names: Sequence[str], answer: Claims) -> None:
        allowed = {
            job.ref for name in names if self.capacity(name, suspects=True) for job in self.ready(name, suspects=True)
        }
        assert len(answer.claims) == min(1, len(allowed))
        for claim in answer.claims:
            assert claim.ref in allowed
            assert claim.started
            assert claim.is_suspect

    def _take(self, claim: Claim, request: ClaimRequest) -> None:
        job = self.jobs[claim.ref]
        assert job.state in MOVES[Move.CLAIM][0]
        job.claim = claim
        job.lease = request.lease // MICROSECOND
        job.lease_until = self.now + job.lease
        job.state = MOVES[Move.CLAIM][1]
        if claim.started:
            self.queue(job.ref.queue).use_slot(self.now)
            self._start(job)
        assert (claim.attempts, claim.crashes) == (job.attempts, job.crashes)

    def _start(self, job: ModelJob) -> None:
        job.state = MOVES[Move.START][1]
        job.attempts += 1

    # Work

    def holder(self, claim: Claim) -> ModelJob | None:
        """Find the job that a claim holds."""
        job = self.jobs.get(claim.ref)
        return job if job is not None and job.claim is not None and job.claim.token == claim.token else None

    def start(self, claim: Claim) -> bool:
        """Start a claimed job; False: the claim is lost."""
        job = self.holder(claim)
        if job is None or job.state not in MOVES[Move.START][0]:
            return False
        self._start(job)
        return True

    def settle(self, claim: Claim, outcome: Outcome) -> bool:
        """End a run; False: the claim is lost."""
        job = self.holder(claim)
        move = MOVE_OF[type(outcome)]
        sources, target = MOVES[move]
        if job is None or job.state not in sources & HELD:
            return False
        if isinstance(outcome, Snooze | Release):
            job.attempts -= job.state is JobStatus.RUNNING
        if not isinstance(outcome, Release):
            job.suspect = job.was_lost = False
        if isinstance(outcome, Retry | Snooze):
            job.due = self.now + outcome.delay // MICROSECOND
        job.state = target
        return True

    def beat(self, claim: Claim) -> bool:
        """Extend a lease; False: the claim is lost."""
        job = self.holder(claim)
        if job is None or job.state not in HELD:
            return False
        job.lease_until = self.now + job.lease
        return True

    # Operate

    def configure(self, name: str, **change: Any) -> None:
        """Change a queue's settings."""
        queue = self.queue(name)
        if change.get("rate", queue.rate) != queue.rate:
            queue.starts.clear()
        for setting, value in change.items():
            setattr(queue, setting, value)

    def cancel(self, refs: Iterable[JobRef]) -> set[JobRef]:
        """Take jobs back."""
        sources, target = MOVES[Move.CANCEL]
        moved = [job for ref in refs if (job := self.jobs.get(ref)) is not None and job.state in sources]
        for job in moved:
            job.state = target
        return {job.ref for job in moved}

    def replay(self, refs: Iterable[JobRef]) -> set[JobRef]:
        """Give ended jobs a new life, where no living one has their dedupe key."""
        sources, target = MOVES[Move.REPLAY]
        moved = set()
        for job in sorted((self.jobs[ref] for ref in refs if ref in self.jobs), key=lambda job: job.number):
            rivals = {other.dedupe for other in self.jobs.values() if other.state not in FINISHED} - {None}
            if job.state in sources and job.dedupe not in rivals:
                job.state, job.ready_at = target, self.now
                job.attempts = job.crashes = 0
                job.suspect = job.was_lost = False
                moved.add(job.ref)
        return moved

    def delete(self, refs: Iterable[JobRef]) -> set[JobRef]:
        """Remove jobs that nobody holds."""
        gone = {ref for ref in refs if ref in self.jobs and self.jobs[ref].state in WAITING | FINISHED}
        for ref in gone:
            del self.jobs[ref]
        return gone

    # Maintenance

    def promote(self) -> int:
        """Make due jobs ready, as of when they were due."""
        sources, target = MOVES[Move.PROMOTE]
        due = [job for job in self.jobs.values() if job.state in sources and job.due <= self.now]
        for job in due:
            job.state, job.ready_at = target, job.due
        return len(due)

    def crash(self, claim: Claim) -> bool:
        """Count a crash; False: the claim is lost."""
        job = self.holder(claim)
        if job is None or job.state is not JobStatus.RUNNING:
            return False
        job.crashes = claim.crashes + 1
        return True

    def rescue(self) -> int:
        """Give back what was lost; answer how many."""
        lost = [job for job in self.jobs.values() if job.state in HELD and job.lease_until <= self.now]
        for job in lost:
            if job.state is JobStatus.RUNNING:
                job.attempts -= 1
                job.suspect |= job.was_lost
                job.was_lost = True
            job.state = JobStatus.PENDING
        return len(lost)

    # Looking

    def compare(self, jobs: Sequence[Job]) -> None:
        """Hold all that the store shows against all that is known."""
        assert [job.ref for job in jobs] == sorted(self.jobs, key=lambda ref: self.jobs[ref].number)
        for job in jobs:
            known = self.jobs[job.ref]
            assert job.status is known.state, f"{job.ref}: {job.status}, should be {known.state}"
            assert (job.attempts, job.crashes) == (known.attempts, known.crashes), job.ref
            if job.status not in FINISHED:
                assert job.is_suspect is known.suspect, job.ref
            if job.status is JobStatus.SCHEDULED:
                assert job.next_run_at is not None
                assert micros_of(job.next_run_at) == known.due
        for name, queue in self.queues.items():
            held = sum(job.queue == name and job.status in HELD for job in jobs)
            counted = [job for job in self.jobs.values() if job.ref.queue == name and job.state in HELD]
            assert held == len(counted)
            if queue.rate is not None:
                self._check_window(queue)

    def _check_window(self, queue: ModelQueue) -> None:
        """No half-open window of the period holds more starts than the rate allows."""
        assert queue.rate is not None
        period, count = queue.rate.period // MICROSECOND, queue.rate.count
        for first, last in zip(queue.starts, queue.starts[count:], strict=False):
            assert last - first >= period, "more starts in a window than the rate allows"
