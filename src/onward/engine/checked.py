"""The one wrapper around every engine: checks before a write, an observation after each verb.

Engines hold neither: they trust what reaches them, and they are not instrumented. What must be the same on all five is
written here once (X1).
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET

from onward import validation
from onward.batches.values import BatchInfo, Dependency, NewBatch
from onward.engine.access import AccessSession, AccessToken, AuditQuery, AuditRecord
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.checks import Checks, check_digest, check_id, is_digest, is_id
from onward.engine.contract import (
    ArchiveStore,
    BatchStore,
    Engine,
    EventCursors,
    ForeignWorkers,
    ScheduleStore,
    UsageStore,
    WorkerCheck,
    WriteIsolation,
)
from onward.engine.declared_limits import DeclaredLimits, Limits
from onward.engine.values import (
    Changed,
    Claim,
    ClaimRequest,
    Claims,
    DueSchedules,
    EngineInfo,
    Exchange,
    Exchanged,
    GroupBy,
    HeartbeatReply,
    JobChange,
    JobFilter,
    LogLine,
    MaintenanceResult,
    Page,
    QueueChange,
    QueueInfo,
    QueueSettings,
    Settlement,
    Signal,
    Term,
    Token,
    WorkerCommand,
    WorkerInfo,
)
from onward.errors import InvalidValue, OnwardError, StoreUnavailable
from onward.events import AnyEvent, EventPage
from onward.job import Enqueued, Job, JobRef, NewJob, UniformJobs
from onward.metering import Usage, UsageQuery
from onward.own_loop import run_in_own_loop
from onward.schedule import Firing, Schedule


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One verb, asked and answered."""

    verb: str
    seconds: float
    count: int
    error: str | None = None
    """The class of what it raised."""


Observer = Callable[[Observation], None]


EnqueueMiddleware = Callable[[Sequence[NewJob]], Generator[Sequence[NewJob], list[Enqueued], None]]
"""Wraps every enqueue, sync and async alike: a generator function that yields the jobs once and receives the answers::

    def stamp(jobs: Sequence[NewJob]) -> Generator[Sequence[NewJob], list[Enqueued], None]:
        enqueued = yield [replace(job, org_id=current_org()) for job in jobs]
        log.info("enqueued %d jobs", len(enqueued))

An exception of the store, or of a middleware further in, is raised at the ``yield``. An exception that a middleware
raises after its ``yield`` is logged, since the jobs are stored; with ``connection=`` it is raised, so that the caller
rolls back.
"""

log = logging.getLogger("onward.engine")


_UNOBSERVED: Final = nullcontext()


class _Passage:
    """Jobs on their way through the middleware into the store, and the answers on their way back."""

    __slots__ = ("answers", "can_roll_back", "jobs")

    def __init__(self, jobs: Sequence[NewJob], connection: object | None) -> None:
        self.jobs = jobs
        self.can_roll_back = connection is not None
        self.answers: list[Enqueued] = []


@contextmanager
def _passing(middleware: Sequence[EnqueueMiddleware], passage: _Passage) -> Iterator[None]:
    """Take jobs through the middleware, the first one outermost."""
    if not middleware:
        yield
        return
    with _passing_one(middleware[0], passage), _passing(middleware[1:], passage):
        yield


@contextmanager
def _passing_one(middleware: EnqueueMiddleware, passage: _Passage) -> Iterator[None]:
    name = getattr(middleware, "__qualname__", repr(middleware))
    steps = middleware(passage.jobs)
    passed = next(steps, None)
    if passed is None or len(passed) != len(passage.jobs):
        steps.close()
        number = "none" if passed is None else len(passed)
        rule = f"must yield a job for each of the {len(passage.jobs)} that it was given, and yields {number}"
        raise InvalidValue("enqueue_middleware", name, f"{rule}; to refuse a job, raise an exception")
    passage.jobs = passed
    try:
        yield
    except BaseException as error:
        with suppress(StopIteration):  # it may not swallow the error: there is no answer to give instead
            steps.throw(error)
        raise
    try:
        _finish(steps, name, passage.answers)
    except Exception:
        # The jobs are stored: a caller that gets an error would enqueue them again. In its own transaction it can undo.
        if passage.can_roll_back:
            raise
        log.exception("enqueue middleware %s failed after the jobs were enqueued", name)


def _finish(steps: Generator[Sequence[NewJob], list[Enqueued], None], name: str, answers: list[Enqueued]) -> None:
    try:
        steps.send(answers)
    except StopIteration:
        return
    steps.close()
    raise InvalidValue("enqueue_middleware", name, "must yield once: the jobs are enqueued already")


class CheckedEngine:
    """An engine, with the rules kept and the verbs observed."""

    def __init__(
        self,
        engine: Engine,
        *,
        observer: Observer | None = None,
        max_payload: int = validation.MAX_PAYLOAD,
        enqueue_middleware: Sequence[EnqueueMiddleware] = (),
        limits: DeclaredLimits | None = None,
    ) -> None:
        self.inner = engine
        self.observer = observer
        self.enqueue_middleware = enqueue_middleware
        self._limits = DeclaredLimits() if limits is None else limits
        self._limited: set[str] = set()
        """Queues whose declared limits have been applied."""
        self._checks = Checks(engine.capabilities, max_payload=max_payload)
        self._foreign = engine.capabilities.is_shared

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return self.inner.capabilities

    def _observed(self, verb: str, count: int = 1) -> AbstractContextManager[None]:
        return _UNOBSERVED if self.observer is None else self._timed(verb, count)

    @contextmanager
    def _timed(self, verb: str, count: int) -> Iterator[None]:
        started = time.perf_counter()
        error: str | None = None
        try:
            yield
        except BaseException as raised:
            error = type(raised).__qualname__
            raise
        finally:
            self._tell(Observation(verb=verb, seconds=time.perf_counter() - started, count=count, error=error))

    def _tell(self, observation: Observation) -> None:
        try:
            if self.observer is not None:
                self.observer(observation)
        except Exception:  # what was done is done, whoever watched
            log.exception("an observer failed at %s", observation.verb)

    # Session

    async def open(self) -> None:
        """See the contract."""
        with self._observed("open"):
            await self.inner.open()

    async def close(self) -> None:
        """See the contract."""
        with self._observed("close"):
            await self.inner.close()

    async def confirm_restore(self) -> None:
        """See the contract."""
        with self._observed("confirm_restore"):
            await self.inner.confirm_restore()

    async def check_worker(self) -> None:
        """Check that a worker may start, where the engine's server can be set up so that it must not."""
        if isinstance(self.inner, WorkerCheck):
            with self._observed("check_worker"):
                await self.inner.check_worker()

    async def isolate_writes(self, *, on_demand: bool) -> None:
        """See the contract; without effect on engines whose write lock no handler can hold."""
        if isinstance(self.inner, WriteIsolation):
            with self._observed("isolate_writes"):
                await self.inner.isolate_writes(on_demand=on_demand)

    async def check(self) -> EngineInfo:
        """See the contract."""
        with self._observed("check"):
            return await self.inner.check()

    def schema_script(self) -> str | None:
        """See the contract."""
        return self.inner.schema_script()

    def describe(self) -> Mapping[str, Any]:
        """See the contract."""
        return self.inner.describe()

    # Producer

    async def enqueue(
        self, jobs: Sequence[NewJob], *, connection: object | None = None, audit: AuditRecord | None = None
    ) -> list[Enqueued]:
        """See the contract. Every job is checked before the first is written, as the middleware has left it."""
        if audit is None and self.observer is None and not self.enqueue_middleware:
            self._checks.jobs(jobs, connection)
            if self._limits and connection is None:
                await self._apply_limits(self._limits_of(jobs))
            return await self.inner.enqueue(jobs, connection=connection)
        self._checks.audit_record(audit)
        passage = _Passage(jobs, connection)
        with self._passing(passage):
            self._checks.jobs(passage.jobs, connection)
            if self._limits and connection is None:
                await self._apply_limits(self._limits_of(passage.jobs))
            with self._observed("enqueue", len(jobs)):
                passage.answers = await self.inner.enqueue(passage.jobs, connection=connection, audit=audit)
        return passage.answers

    def enqueue_sync(self, jobs: Sequence[NewJob], *, connection: object | None = None) -> list[Enqueued]:
        """See the contract. Every job is checked before the first is written, as the middleware has left it."""
        passage = _Passage(jobs, connection)
        with self._passing(passage):
            self._checks.jobs(passage.jobs, connection)
            if self._limits and connection is None and (declared := self._limits_of(passage.jobs)):
                run_in_own_loop(lambda: self._apply_limits(declared))
            with self._observed("enqueue", len(jobs)):
                passage.answers = self.inner.enqueue_sync(passage.jobs, connection=connection)
        return passage.answers

    def _passing(self, passage: _Passage) -> AbstractContextManager[None]:
        return _passing(self.enqueue_middleware, passage) if self.enqueue_middleware and passage.jobs else _UNOBSERVED

    # Consumer

    async def claim(self, request: ClaimRequest) -> Claims:
        """See the contract."""
        self._checks.claim_request(request)
        with self._observed("claim", request.slots + request.prefetch_started + request.prefetch_claimed):
            return await self.inner.claim(request)

    async def start(self, claims: Sequence[Claim]) -> frozenset[Token]:
        """See the contract."""
        with self._observed("start", len(claims)):
            return await self.inner.start(claims)

    async def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """See the contract."""
        self._checks.settlements(settlements, connection)
        with self._observed("settle", len(settlements)):
            return await self.inner.settle(settlements, connection=connection)

    def settle_sync(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """See the contract."""
        self._checks.settlements(settlements, connection)
        with self._observed("settle", len(settlements)):
            return self.inner.settle_sync(settlements, connection=connection)

    async def exchange(self, exchange: Exchange) -> Exchanged:
        """See the contract."""
        self._checks.settlements(exchange.settlements)
        if exchange.request is not None:
            self._checks.claim_request(exchange.request)
        with self._observed("exchange", len(exchange.settlements)):
            return await self.inner.exchange(exchange)

    async def heartbeat(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        with self._observed("heartbeat", len(claims)):
            return await self.inner.heartbeat(worker, claims)

    def heartbeat_sync(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        with self._observed("heartbeat", len(claims)):
            return self.inner.heartbeat_sync(worker, claims)

    async def deregister(self, worker_id: str) -> None:
        """See the contract."""
        with self._observed("deregister"):
            await self.inner.deregister(worker_id)

    async def report(
        self, claim: Claim, *, progress: int | None = None, message: str | None = None, lines: Sequence[str] = ()
    ) -> bool:
        """See the contract."""
        if progress is not None:
            validation.check_progress(progress)
            self.capabilities.require(Feature.PROGRESS)
        if lines:
            self.capabilities.require(Feature.LOG_LINES)
        for line in lines:
            validation.check_text("log line", line)
        if message is not None:
            validation.check_text("progress message", message)
        with self._observed("report", len(lines)):
            return await self.inner.report(claim, progress=progress, message=message, lines=lines)

    async def record_crash(self, claim: Claim) -> bool:
        """See the contract."""
        self.capabilities.require(Feature.SUSPECTS)
        with self._observed("record_crash"):
            return await self.inner.record_crash(claim)

    def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """See the contract."""
        self.capabilities.require(Feature.PUSH)
        for pattern in queues:
            validation.check_pattern(pattern, foreign=self._foreign)
        return self.inner.signals(queues)

    # Reader

    async def get(self, ref: JobRef | str) -> Job | None:
        """See the contract. ``queue:id`` is a name on every engine."""
        name = self.name_of(ref) if isinstance(ref, str) else ref
        with self._observed("get"):
            return await self.inner.get(name)

    def name_of(self, text: str) -> JobRef | str:
        """Read the name of a job: ``queue:id``, or its id alone where ids are global.

        Raises:
            InvalidValue: it is an id alone, and several queues may have a job of that id.
        """
        ref = JobRef.parse(text)
        if ref is not None:
            return ref
        self._checks.global_id("job", text)
        return text

    async def find(
        self, which: JobFilter, *, cursor: str | None = None, limit: int = 50, newest_first: bool = True
    ) -> Page[Job]:
        """See the contract."""
        self._checks.job_filter(which)
        validation.check_at_least("limit", limit, 1)
        with self._observed("find", limit):
            return await self.inner.find(which, cursor=cursor, limit=limit, newest_first=newest_first)

    async def count(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        self._checks.job_filter(which)
        if by is GroupBy.ORG:
            self.capabilities.require(Feature.ORGANISATIONS)
        with self._observed("count"):
            return await self.inner.count(which, by=by)

    async def queues(self, pattern: str = "*") -> list[QueueInfo]:
        """See the contract."""
        validation.check_pattern(pattern, foreign=self._foreign)
        with self._observed("queues"):
            return await self.inner.queues(pattern)

    async def workers(self) -> list[WorkerInfo]:
        """See the contract."""
        with self._observed("workers"):
            return await self.inner.workers()

    async def has_foreign_workers(self, queue: str) -> bool:
        """See the contract."""
        with self._observed("has_foreign_workers"):
            return await cast("ForeignWorkers", self.inner).has_foreign_workers(queue)

    async def logs(self, ref: JobRef) -> list[LogLine]:
        """See the contract."""
        self.capabilities.require(Feature.LOG_LINES)
        with self._observed("logs"):
            return await self.inner.logs(ref)

    async def events(
        self, queues: Sequence[str], *, cursor: str | None = None, types: frozenset[str] | None = None
    ) -> AsyncGenerator[AnyEvent, None]:
        """See the contract."""
        self.capabilities.require(Feature.EVENTS)
        for pattern in queues:
            validation.check_pattern(pattern, foreign=self._foreign)
        with self._observed("events"):
            return await self.inner.events(queues, cursor=cursor, types=types)

    # Admin

    async def cancel(
        self, which: JobFilter, *, reason: str = "cancelled", limit: int = 1000, audit: AuditRecord | None = None
    ) -> list[Changed]:
        """See the contract."""
        self._checks.job_filter(which)
        self._checks.audit_record(audit)
        validation.check_text("reason", reason)
        validation.check_at_least("limit", limit, 1)
        with self._observed("cancel", limit):
            return await self.inner.cancel(which, reason=reason, limit=limit, audit=audit)

    async def replay(self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None) -> list[Changed]:
        """See the contract."""
        self._checks.job_filter(which)
        self._checks.audit_record(audit)
        self.capabilities.require(Feature.REPLAY)
        validation.check_at_least("limit", limit, 1)
        with self._observed("replay", limit):
            return await self.inner.replay(which, limit=limit, audit=audit)

    async def delete(self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None) -> list[Changed]:
        """See the contract."""
        self._checks.job_filter(which)
        self._checks.audit_record(audit)
        validation.check_at_least("limit", limit, 1)
        with self._observed("delete", limit):
            return await self.inner.delete(which, limit=limit, audit=audit)

    async def edit(self, ref: JobRef, change: JobChange, *, audit: AuditRecord | None = None) -> Job | None:
        """See the contract."""
        self.capabilities.require(Feature.EDIT)
        self._checks.job_change(change)
        self._checks.audit_record(audit)
        with self._observed("edit"):
            return await self.inner.edit(ref, change, audit=audit)

    async def configure(self, queue: str, change: QueueChange, *, audit: AuditRecord | None = None) -> QueueInfo:
        """See the contract."""
        validation.check_queue_name(queue, foreign=self._foreign)
        self._checks.queue_change(change)
        self._checks.audit_record(audit)
        if audit is not None and change.paused is True and change.paused_by is UNSET:
            change = msgspec.structs.replace(change, paused_by=audit.actor)
        with self._observed("configure"):
            return await self.inner.configure(queue, change, audit=audit)

    def _limits_of(self, jobs: Sequence[NewJob]) -> dict[str, Limits]:
        """Choose the queues of jobs whose declared limits have not been applied yet."""
        queues = {job.queue for job in ([jobs.template] if isinstance(jobs, UniformJobs) else jobs)}
        return self._limits.limited(queues - self._limited)

    async def _apply_limits(self, declared: Mapping[str, Limits]) -> None:
        """Set declared limits on queues that have none of that kind, before the first job is enqueued there.

        Where that fails, the enqueue goes on: the program may have no right to it, and a worker does it too. A store
        that was unavailable is asked again by the next enqueue.
        """
        for name, limits in declared.items():
            try:
                found = await self.inner.queues(name)
                change = limits.change_of(found[0].settings if found else QueueSettings(), replaces=False)
                if change is not None:
                    await self.inner.configure(name, change)
            except OnwardError as error:
                log.warning("limits of queue not set: %s", error, extra={"queue": name})
                if isinstance(error, StoreUnavailable):
                    continue
            self._limited.add(name)

    async def set_limits(self, *, replaces: bool) -> None:
        """Set declared limits on all queues that exist, and on those that are named in full.

        ``replaces``: whether limits that a queue has already are replaced, with a warning; otherwise queues that were
        seen before are left alone. A queue that refuses its limits is logged once, and the others get theirs.

        Raises:
            StoreUnavailable: the store could not be asked; the next call goes on with the queues that are left.
        """
        settings = {queue.name: queue.settings for queue in await self.inner.queues("*")}
        declared = self._limits.limited([*self._limits.names, *settings])
        for name, limits in declared.items():
            if name in self._limited and not replaces:
                continue
            before = settings.get(name, QueueSettings())
            change = limits.change_of(before, replaces=replaces)
            try:
                if change is not None:
                    await self.inner.configure(name, change)
                    _log_replaced(name, before, change)
            except StoreUnavailable:
                raise
            except OnwardError as error:
                log.warning("limits of queue not set: %s", error, extra={"queue": name})
            self._limited.add(name)

    async def command_worker(self, worker_id: str, command: WorkerCommand, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        validation.check_text("worker_id", worker_id)
        command = validation.one_of("command", WorkerCommand, command)
        self._checks.audit_record(audit)
        with self._observed("command_worker"):
            return await self.inner.command_worker(worker_id, command, audit=audit)

    # Maintenance

    async def elect(self, candidate: str, *, lease: timedelta, current_term: Term | None = None) -> Term | None:
        """See the contract."""
        self.capabilities.require(Feature.LEADER)
        with self._observed("elect"):
            return await self.inner.elect(candidate, lease=lease, current_term=current_term)

    async def resign(self, term: Term) -> None:
        """See the contract."""
        with self._observed("resign"):
            await self.inner.resign(term)

    async def promote(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        with self._observed("promote", limit):
            return await self.inner.promote(term, limit=limit)

    async def rescue(self, term: Term, *, lease: timedelta, max_crashes: int, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        with self._observed("rescue", limit):
            return await self.inner.rescue(term, lease=lease, max_crashes=max_crashes, limit=limit)

    async def prune(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        with self._observed("prune", limit):
            return await self.inner.prune(term, limit=limit)

    # ScheduleStore

    @property
    def _schedule_store(self) -> ScheduleStore:
        self.capabilities.require(Feature.SCHEDULES)
        return cast("ScheduleStore", self.inner)

    async def schedules(self) -> list[Schedule]:
        """See the contract."""
        store = self._schedule_store
        with self._observed("schedules"):
            return await store.schedules()

    async def save_schedule(self, schedule: Schedule, *, audit: AuditRecord | None = None) -> Schedule:
        """See the contract. The job is checked as if it were enqueued now."""
        store = self._schedule_store
        self.capabilities.check_trigger(schedule.trigger)
        self.capabilities.missed_policy(schedule.missed)
        validation.check_name("schedule", schedule.name)
        if schedule.job.run_at is not None or schedule.job.start_by is not None:
            raise InvalidValue("schedule", schedule.name, "has a job with a date: each turn would have the same")
        if schedule.job.idempotency_key is not None:
            raise InvalidValue("schedule", schedule.name, "has a job with a key: only its first turn would make a job")
        self._checks.job(schedule.job)
        self._checks.audit_record(audit)
        with self._observed("save_schedule"):
            return await store.save_schedule(schedule, audit=audit)

    async def delete_schedule(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        store = self._schedule_store
        self._checks.audit_record(audit)
        with self._observed("delete_schedule"):
            return await store.delete_schedule(name, audit=audit)

    async def due_schedules(self, *, limit: int = 100) -> DueSchedules:
        """See the contract."""
        store = self._schedule_store
        with self._observed("due_schedules", limit):
            return await store.due_schedules(limit=limit)

    async def fire(self, schedule: Schedule, firing: Firing) -> list[Enqueued] | None:
        """See the contract."""
        store = self._schedule_store
        self.capabilities.require(Feature.FIRING)
        with self._observed("fire", len(firing.jobs)):
            return await store.fire(schedule, firing)

    # BatchStore

    @property
    def _batch_store(self) -> BatchStore:
        self.capabilities.require(Feature.BATCHES)
        return cast("BatchStore", self.inner)

    async def save_batch(
        self,
        batch: NewBatch,
        jobs: Sequence[NewJob] = (),
        *,
        connection: object | None = None,
        audit: AuditRecord | None = None,
    ) -> list[Enqueued]:
        """See the contract. Every job is checked before anything is written, callbacks too."""
        store = self._batch_store
        self._checks.audit_record(audit)
        validation.check_name("batch", batch.name)
        if batch.queue is not None:
            validation.check_queue_name(batch.queue, foreign=self._foreign)
        for field in batch.callbacks.__struct_fields__:
            callback: NewJob | None = getattr(batch.callbacks, field)
            if callback is not None:
                self._checks.job(callback)
                if callback.batch is not None:
                    raise InvalidValue(field, callback.batch, "must belong to no batch: this one would never finish")
        passage = _Passage(jobs, connection)
        with self._passing(passage):
            for job in [passage.jobs.template] if isinstance(passage.jobs, UniformJobs) else passage.jobs:
                if job.batch != batch.name:
                    raise InvalidValue("batch", job.batch, f"must be {batch.name}, since the job is added to it")
            self._checks.jobs(passage.jobs, connection)
            if self._limits and connection is None:
                await self._apply_limits(self._limits_of(passage.jobs))
            with self._observed("save_batch", len(jobs)):
                passage.answers = await store.save_batch(batch, passage.jobs, connection=connection, audit=audit)
        return passage.answers

    async def batches(
        self, *, names: Sequence[str] | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[BatchInfo]:
        """See the contract."""
        store = self._batch_store
        validation.check_at_least("limit", limit, 1)
        with self._observed("batches", limit):
            return await store.batches(names=names, cursor=cursor, limit=limit)

    async def delete_batch(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        store = self._batch_store
        self._checks.audit_record(audit)
        with self._observed("delete_batch"):
            return await store.delete_batch(name, audit=audit)

    async def dependencies(self, name: str) -> list[Dependency]:
        """See the contract."""
        store = self._batch_store
        with self._observed("dependencies"):
            return await store.dependencies(name)

    async def dependency_jobs(self, ref: JobRef) -> list[Job]:
        """See the contract."""
        store = self._batch_store
        with self._observed("dependency_jobs"):
            return await store.dependency_jobs(ref)

    # UsageStore

    @property
    def _usage_store(self) -> UsageStore:
        self.capabilities.require(Feature.USAGE)
        return cast("UsageStore", self.inner)

    async def record_usage(self, usage: Sequence[Usage]) -> None:
        """See the contract."""
        store = self._usage_store
        with self._observed("record_usage", len(usage)):
            return await store.record_usage(usage)

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """See the contract."""
        store = self._usage_store
        for field in ("since", "until"):
            moment = getattr(query, field)
            if moment is not None:
                validation.check_moment(field, moment)
        with self._observed("usage"):
            return await store.usage(query)

    # ArchiveStore

    @property
    def _archive_store(self) -> ArchiveStore:
        self.capabilities.require(Feature.ARCHIVE)
        return cast("ArchiveStore", self.inner)

    async def archived(self, which: JobFilter, *, cursor: str | None = None, limit: int = 50) -> Page[Job]:
        """See the contract."""
        store = self._archive_store
        self._checks.job_filter(which)
        validation.check_at_least("limit", limit, 1)
        with self._observed("archived", limit):
            return await store.archived(which, cursor=cursor, limit=limit)

    async def count_archived(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        store = self._archive_store
        self._checks.job_filter(which)
        with self._observed("count_archived"):
            return await store.count_archived(which, by=by)

    async def purge_archived(
        self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None
    ) -> list[Changed]:
        """See the contract."""
        store = self._archive_store
        self._checks.job_filter(which)
        self._checks.audit_record(audit)
        validation.check_at_least("limit", limit, 1)
        with self._observed("purge_archived", limit):
            return await store.purge_archived(which, limit=limit, audit=audit)

    # EventCursors

    @property
    def _event_cursors(self) -> EventCursors:
        self.capabilities.require(Feature.WEBHOOKS)
        return cast("EventCursors", self.inner)

    async def acquire_cursor(self, name: str, holder: str, *, lease: timedelta, anew: bool = False) -> str | None:
        """See the contract."""
        cursors = self._event_cursors
        validation.check_name("bookmark", name)
        with self._observed("acquire_cursor"):
            return await cursors.acquire_cursor(name, holder, lease=lease, anew=anew)

    async def read_events(
        self, queues: Sequence[str], *, cursor: str, types: frozenset[str] | None = None, limit: int = 500
    ) -> EventPage:
        """See the contract."""
        cursors = self._event_cursors
        for pattern in queues:
            validation.check_pattern(pattern, foreign=self._foreign)
        validation.check_at_least("limit", limit, 1)
        with self._observed("read_events", limit):
            return await cursors.read_events(queues, cursor=cursor, types=types, limit=limit)

    async def commit_cursor(self, name: str, holder: str, cursor: str) -> bool:
        """See the contract."""
        cursors = self._event_cursors
        with self._observed("commit_cursor"):
            return await cursors.commit_cursor(name, holder, cursor)

    # AccessStore

    async def save_token(self, token: AccessToken, *, audit: AuditRecord | None = None) -> None:
        """See the contract."""
        self._checks.access_token(token)
        self._checks.audit_record(audit)
        with self._observed("save_token"):
            await self.inner.save_token(token, audit=audit)

    async def tokens(self) -> list[AccessToken]:
        """See the contract."""
        with self._observed("tokens"):
            return await self.inner.tokens()

    async def find_token(self, token_id: str) -> AccessToken | None:
        """See the contract. What is not an id names no token, and the store is not asked: anyone can send one."""
        if not is_id(token_id):
            return None
        with self._observed("find_token"):
            return await self.inner.find_token(token_id)

    async def revoke_token(self, token_id: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        check_id("token_id", token_id)
        self._checks.audit_record(audit)
        with self._observed("revoke_token"):
            return await self.inner.revoke_token(token_id, audit=audit)

    async def touch_token(self, token_id: str) -> None:
        """See the contract."""
        check_id("token_id", token_id)
        with self._observed("touch_token"):
            await self.inner.touch_token(token_id)

    async def save_session(self, session: AccessSession, *, audit: AuditRecord | None = None) -> None:
        """See the contract."""
        self._checks.access_session(session)
        self._checks.audit_record(audit)
        with self._observed("save_session"):
            await self.inner.save_session(session, audit=audit)

    async def find_session(self, digest: str) -> tuple[AccessSession, AccessToken] | None:
        """See the contract. What is not a digest names no session, and the store is not asked."""
        if not is_digest(digest):
            return None
        with self._observed("find_session"):
            return await self.inner.find_session(digest)

    async def touch_session(self, digest: str) -> None:
        """See the contract."""
        check_digest("digest", digest)
        with self._observed("touch_session"):
            await self.inner.touch_session(digest)

    async def delete_session(self, digest: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        check_digest("digest", digest)
        self._checks.audit_record(audit)
        with self._observed("delete_session"):
            return await self.inner.delete_session(digest, audit=audit)

    async def record_audit(self, record: AuditRecord, *, operation: JobRef | None = None) -> bool:
        """See the contract."""
        self._checks.audit_record(record)
        with self._observed("record_audit"):
            return await self.inner.record_audit(record, operation=operation)

    async def audit(self, query: AuditQuery, *, cursor: str | None = None, limit: int = 50) -> Page[AuditRecord]:
        """See the contract."""
        self._checks.audit_query(query)
        validation.check_at_least("limit", limit, 1)
        with self._observed("audit", limit):
            return await self.inner.audit(query, cursor=cursor, limit=limit)

    async def prune_access(self, *, keep_audit: timedelta, keep_sessions: timedelta) -> int:
        """See the contract."""
        for field, kept in (("keep_audit", keep_audit), ("keep_sessions", keep_sessions)):
            validation.check_retention(field, kept)
        with self._observed("prune_access"):
            return await self.inner.prune_access(keep_audit=keep_audit, keep_sessions=keep_sessions)


def _log_replaced(queue: str, before: QueueSettings, change: QueueChange) -> None:
    for field in ("rate", "global_concurrency"):
        old, new = getattr(before, field), getattr(change, field)
        if old is not None and new is not UNSET:
            log.warning("%s of queue %s replaced as its task declares: was %s, is %s", field, queue, old, new)
