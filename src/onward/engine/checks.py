"""Checks before a write: whether the values are valid, and whether the engine offers what they ask for.

What must be the same on all engines is written here once (X1): a refusal comes before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec import UNSET

from onward import validation
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.values import ClaimRequest, JobChange, JobFilter, QueueChange, Retention, Settlement
from onward.errors import InvalidValue, PayloadTooLarge
from onward.job import NewJob, UniformJobs
from onward.lifecycle import Complete, JobStatus


class Checks:
    """Refuses what breaks a rule, or what the engine does not offer."""

    def __init__(self, capabilities: Capabilities, *, max_payload: int) -> None:
        self.capabilities = capabilities
        self._max_payload = max_payload
        self._keeps_results = capabilities.has(Feature.RESULTS)
        self._foreign = capabilities.is_shared
        self._checked: tuple[NewJob | None, int] = (None, 0)
        """The template of the last uniform jobs that passed, and how long a payload may be with it."""
        self._checked_queues: tuple[str, ...] = ()
        """The queues of the last claim request that passed."""

    def jobs(self, jobs: Sequence[NewJob], connection: object | None) -> None:
        """Check new jobs, before they are stored."""
        if connection is not None:
            self.capabilities.require(Feature.TRANSACTIONS)
        if isinstance(jobs, UniformJobs):
            template, room = self._checked
            if template is not jobs.template or max(map(len, jobs.payloads), default=0) > room:
                self._uniform_jobs(jobs)
        else:
            for place, job in enumerate(jobs):
                self.job(job)
                if job.after:
                    validation.check_places(job, place)

    def _uniform_jobs(self, jobs: UniformJobs) -> None:
        """Check one for all, unless a payload is so long that it counts; and of one task after the other, each once."""
        if not jobs:
            return
        self.job(jobs[0])
        validation.check_places(jobs.template, 0)
        room = validation.room_for_payload(jobs.template, self._max_payload)
        self._checked = jobs.template, room
        if max(map(len, jobs.payloads)) > room:
            for job in jobs:
                self.job(job)

    def job(self, job: NewJob) -> None:
        """Check one new job."""
        require = self.capabilities.require
        validation.check_job(job, max_payload=self._max_payload, foreign=self._foreign)
        if job.priority:
            require(Feature.PRIORITY)
        if job.delay or job.run_at is not None:
            require(Feature.DELAY)
        if job.start_by is not None:
            require(Feature.START_BY)
        if job.idempotency_key is not None:
            require(Feature.IDEMPOTENCY)
        if job.throttle is not None or job.debounce is not None:
            require(Feature.THROTTLE)  # first: what was asked for is this, and the key is how it is kept
        if job.dedupe_key is not None:
            require(Feature.DEDUPLICATION)
        if job.org_id is not None:
            require(Feature.ORGANISATIONS)
        if job.batch is not None:
            require(Feature.BATCHES)

    def settlements(self, settlements: Sequence[Settlement], connection: object | None = None) -> None:
        """Check outcomes, before they are recorded."""
        if connection is not None:
            self.capabilities.require(Feature.TRANSACTIONS)
        if not self._keeps_results:
            for settlement in settlements:
                if isinstance(settlement.outcome, Complete) and settlement.outcome.result is not None:
                    self.capabilities.require(Feature.RESULTS)

    def claim_request(self, request: ClaimRequest) -> None:
        """Check what a worker asks for."""
        validation.check_at_least("slots", request.slots, 0)
        validation.check_at_least("prefetch_started", request.prefetch_started, 0)
        validation.check_at_least("prefetch_claimed", request.prefetch_claimed, 0)
        if request.queues is not self._checked_queues:
            for pattern in request.queues:
                validation.check_pattern(pattern, foreign=self._foreign)
                if pattern.endswith("*"):
                    self.capabilities.require(Feature.PATTERNS)
            self._checked_queues = request.queues
        if request.prefetch_claimed:
            self.capabilities.require(Feature.CLAIMED_STATE)
        if request.alone:
            self.capabilities.require(Feature.SUSPECTS)

    def job_filter(self, which: JobFilter) -> None:
        """Check a filter."""
        for id in which.ids or ():
            self.global_id("ids", id)
        for pattern in which.queues or ():
            validation.check_pattern(pattern, foreign=self._foreign)
        if which.status is not None and JobStatus.CANCELLED in which.status:
            self.capabilities.require(Feature.CANCELLED_STATE)
        if which.org_id is not None:
            self.capabilities.require(Feature.ORGANISATIONS)
        if which.batch is not None:
            self.capabilities.require(Feature.BATCHES)
        for field in ("org_id", "batch", "worker_id", "error_contains"):
            text = getattr(which, field)
            if text is not None:
                validation.check_text(field, text)
        for type_ in which.types or ():
            validation.check_text("types", type_)
        for field in ("created_after", "created_before", "finished_before"):
            moment = getattr(which, field)
            if moment is not None:
                validation.check_moment(field, moment)

    def global_id(self, field: str, id: str) -> None:
        """Check that an id alone names one job."""
        if not self.capabilities.has_global_ids:
            rule = (
                f"does not name one job: on {self.capabilities.engine} an id is unique only within its queue. "
                'Give "queue:id", a JobRef or the handle'
            )
            raise InvalidValue(field, id, rule)

    def queue_change(self, change: QueueChange) -> None:
        """Check new settings of a queue."""
        require = self.capabilities.require
        if change.paused is not UNSET:
            require(Feature.PAUSE)
        if change.rate is not UNSET:
            if change.rate is not None and change.rate.burst > 1:
                require(Feature.BURST)
            require(Feature.RATE)
        if change.global_concurrency is not UNSET:
            require(Feature.CONCURRENCY)
            if change.global_concurrency is not None:
                validation.check_at_least("global_concurrency", change.global_concurrency, 1)
        if change.weight is not UNSET:
            require(Feature.WEIGHT)
            validation.check_at_least("weight", change.weight, 1)
        if change.lease is not UNSET and change.lease is not None and change.lease < timedelta(seconds=1):
            raise InvalidValue(
                "lease", change.lease, "must be at least a second: a worker beats several times within it"
            )
        if change.max_attempts is not UNSET or change.backoff is not UNSET:
            require(Feature.QUEUE_DEFAULTS)
            if change.max_attempts is not UNSET and change.max_attempts is not None:
                validation.check_at_least("max_attempts", change.max_attempts, 1)
        if change.retention is not UNSET:
            require(Feature.RETENTION)
            if change.retention.archived != Retention().archived:
                require(Feature.ARCHIVE)

    def job_change(self, change: JobChange) -> None:
        """Check what is to be changed of a waiting job."""
        if change.priority is not UNSET:
            validation.check_priority(change.priority)
            self.capabilities.require(Feature.PRIORITY)
        if change.run_at is not UNSET:
            validation.check_moment("run_at", change.run_at)
            self.capabilities.require(Feature.DELAY)
        if change.payload is not UNSET:
            if (size := len(change.payload.encode())) > self._max_payload:
                raise PayloadTooLarge(size, self._max_payload)
            validation.check_json_text("payload", change.payload)
        if change.max_attempts is not UNSET:
            validation.check_at_least("max_attempts", change.max_attempts, 1)
