"""The engine: each verb a plan, driven on a connection of ours, or on the caller's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import psycopg
from psycopg import errors as pg

from onward.batches.values import BatchInfo, Dependency, NewBatch
from onward.clock import Clock, moment_of
from onward.engine.access import (
    AuditQuery,
    AuditRecord,
    batch_count,
    counted,
)
from onward.engine.capabilities import NATIVE, Capabilities, Feature
from onward.engine.event_reader import EventReader, Events, check_settings
from onward.engine.restore import RESTORED, WENT_BACK, Home, RestoreGuard, no_claims, settle_only, without_claims
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
    Settlement,
    Signal,
    Term,
    Token,
    WorkerCommand,
    WorkerInfo,
)
from onward.engines.postgres import (
    admin,
    archived_jobs,
    batches,
    claims,
    diagnostics,
    enqueue,
    events,
    leases,
    maintenance,
    migrations,
    queries,
    settle,
    usage,
)
from onward.engines.postgres.batch_updater import RETRY_INTERVAL, BatchUpdater
from onward.engines.postgres.claim_on_notify import ClaimOnNotify, SentClaim
from onward.engines.postgres.enqueue import EnqueuePlan, SingleInsert
from onward.engines.postgres.enqueue_cache import EnqueueCache
from onward.engines.postgres.events import EventLog
from onward.engines.postgres.notify_throttle import NotifyOnCommit, NotifyThrottle
from onward.engines.postgres.single_producer import SingleProducer
from onward.engines.postgres.statements import DEFAULT, Schema
from onward.engines.postgres.usage import record as record_usage
from onward.errors import OnwardError, StoreBusy
from onward.events import AnyEvent, EventPage
from onward.job import Enqueued, Job, JobRef, NewJob, UniformJobs
from onward.metering import Usage, UsageQuery
from onward.pg import caller_transaction
from onward.pg.access import AccessTables, AccessVerbs, no_jobs
from onward.pg.coalescing import MAX_COALESCED, AuditedJobs, Coalescer, joined_audited, joined_jobs
from onward.pg.database import QUERY_TIMEOUT, Database
from onward.pg.errors import RETRYABLE
from onward.pg.exchange import release_claims
from onward.pg.listener import ALL_QUEUES, DUE, PRESENCE_LEASE, Listener
from onward.pg.per_loop import PerLoop
from onward.pg.plan_runner import Plan, Statement, arun, run
from onward.pg.pools import MAX_CONNECTIONS, ConnectionPools
from onward.pg.schedules import ScheduleTable
from onward.pg.store_identity import identity_of, same_store
from onward.schedule import Firing, Schedule

T = TypeVar("T")

log = logging.getLogger("onward.engines.postgres")

CAPABILITIES: Final = Capabilities(
    engine="PostgreSQL",
    features=dict.fromkeys(Feature, NATIVE),
    status_aliases={},
    split_settle_threshold=100,  # fewer take less time than it takes to begin two statements
)

_POOLED: Final = (
    "a pooler stands before the database, so nobody can be told of new jobs at once and workers look once a second: "
    "give them another address of it, listen_url=postgresql://… in the URL"
)
_MAX_STEPS: Final = 20
"""How many parts of what was left undone by others a promotion does at most."""
_MAX_TRIES: Final = 5
"""How often a statement is tried that the database gave up in favour of another's. It has changed nothing then."""
_PAUSES: Final = (0.1, 0.2, 0.4, 0.8)
"""Seconds in which claims go on before a queue is told something again, which had to wait for a job."""


class PostgresEngine(AccessVerbs):
    """Jobs in one schema of a PostgreSQL database, shared by all who can reach it."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT,
        notify: bool = True,
        listen_url: str | None = None,
        connections: int = MAX_CONNECTIONS,
        query_timeout: float = QUERY_TIMEOUT,
        clock: Clock | None = None,
        events: Events | None = None,
        max_events: int | None = None,
    ) -> None:
        """Name a store; nothing is connected to yet.

        Args:
            url: where the database is, as libpq reads it.
            schema: where in it the jobs are.
            notify: whether whoever listens is told of new jobs at once; without, workers find them by polling.
            listen_url: another address of the same database, past a pooler, to be told of new jobs there.
            connections: how many there may be for an event loop, and how many for threads.
            query_timeout: seconds after which a connection is given up on which no answer comes.
            clock: for tests; the database's own unless given.
            events: "all" has the store record events whether or not somebody listens, "on_demand" takes that back.
            max_events: about how many events the store keeps.
        """
        check_settings(events, max_events)
        grant_hint = f"then: select {schema}.allow_worker('{{user}}')"
        self.database = Database(url, query_timeout=query_timeout, grant_hint=grant_hint)
        self.schema = Schema(schema, clock=clock)
        self._access = AccessTables(schema, clock=clock, has_roles=True)
        self._schedules = ScheduleTable(schema, clock=clock)
        self._connections = ConnectionPools(self.database, max_size=connections)
        self._direct = (
            self.database
            if listen_url is None
            else Database(listen_url, query_timeout=query_timeout, grant_hint=grant_hint)
        )
        self._listener = Listener(
            self._direct,
            self.schema.channel,
            on_notification=self._on_notice,
            show_presence=Statement(self.schema.show_listener, (PRESENCE_LEASE,)),
        )
        self._rotations: dict[tuple[str, tuple[str, ...]], claims.RoundRobin] = {}
        """By who works, and for which queues. Those who claim now and then, a tick each time another, share one."""
        self._claim_on_notify = PerLoop(
            lambda: ClaimOnNotify(
                self.schema,
                send=self._listener.query,
                release_claims=partial(release_claims, self),
                fail_unreadable=self._fail_unreadable,
            )
        )
        self._notifies = notify
        self._queue_cache = EnqueueCache()
        self._notify_throttle = NotifyThrottle(self._notify, self._queue_cache)
        self._coalescers = PerLoop(
            lambda: Coalescer(
                self._enqueue_now, joined_jobs, write_alone=partial(self._enqueue_now, is_only_caller=True)
            )
        )
        self._audited_coalescers = PerLoop(lambda: Coalescer(self._enqueue_audited_now, joined_audited))
        self._enqueue_plan = enqueue.EnqueuePlan(None, frozenset())
        """Of the last task's jobs."""
        self._blocked: frozenset[Token] = frozenset()
        """Claims whose jobs somebody's transaction held when their outcomes were to be recorded."""
        self._single_producer: SingleProducer | None = None
        """Of one who adds jobs one by one, and nobody else does."""
        self._rescue_state = maintenance.RescueState()
        self._upkeep = maintenance.UpkeepSchedule()
        self._next_due = maintenance.NextDue()
        self._watermark_state = maintenance.WatermarkState()
        self._identity = ("", "")
        self._restore_guard = RestoreGuard()
        self._can_copy = False
        self._event_settings = (events, max_events)
        self._event_log = EventLog(self.schema, self._run)
        self._event_listener = Listener(self._direct, f"{self.schema.channel}.events")
        self._event_reader = EventReader(self._event_log, lambda: self._event_listener.signals((ALL_QUEUES,)))
        self._batch_updater = BatchUpdater(self._advance)
        self._caller_transactions = caller_transaction.CallerTransactions(
            self._connections,
            self.database,
            self._same_store,
            without_notices=partial(leases.without_notices, self.schema),
        )

    @property
    def capabilities(self) -> Capabilities:
        """What PostgreSQL can do."""
        return CAPABILITIES

    # Session

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        await asyncio.to_thread(self._open)
        self._restore_guard = RestoreGuard()  # the store may have been restored since it was closed
        self._connections.open()
        if self._event_settings != (None, None):
            await self._event_log.open(*self._event_settings)

    def _open(self) -> None:
        with self.database.connect() as connection, self.database.translated():
            migrations.migrate(connection, self.schema, self.database)
            self._identity = run(identity_of(self.schema.name), caller_transaction.on_psycopg(connection))
            ((self._can_copy,),) = connection.execute(self.schema.may_copy).fetchall()
            self.database.detect_settings(connection)
        if self._direct is not self.database:
            with self._direct.connect() as connection, self._direct.translated():
                run(self._same_store(), caller_transaction.on_psycopg(connection))
                self._direct.detect_settings(connection)
        if self._direct.is_pooled:
            log.info("%s: %s", self._direct, _POOLED)

    async def close(self) -> None:
        """Let go of all connections."""
        await self._claim_on_notify.current().close()
        await self._batch_updater.close()
        await asyncio.to_thread(self._notify_throttle.close)
        await self._listener.close()
        await self._event_listener.close()
        await self._connections.close()

    async def check(self) -> EngineInfo:
        """Say what the engine stands on; without opening it, and so without changing the schema."""
        return await asyncio.to_thread(self._check)

    def _check(self) -> EngineInfo:
        with self.database.connect() as connection, self.database.translated():
            schema = migrations.check(connection, self.schema, self.database)
            execute = caller_transaction.on_psycopg(connection)
            facts, problems, warnings = run(diagnostics.diagnose(self.schema), execute)
            home = run(maintenance.home(self.schema), execute)
            self.database.detect_settings(connection)
        if not home.is_same and home.has_jobs:
            problems.append(RESTORED)
        elif not home.is_same_timeline:
            warnings.append(WENT_BACK)
        if self._direct.is_pooled:
            warnings.append(_POOLED)
        return EngineInfo(
            engine="PostgreSQL",
            server=f"PostgreSQL {facts.version}",
            schema=schema,
            now=moment_of(self.schema.now or facts.now),
            durability=str(facts.durability),
            problems=tuple(problems),
            warnings=tuple(warnings),
        )

    def schema_script(self) -> str:
        """Write the whole schema as SQL."""
        return migrations.script(self.schema)

    def describe(self) -> Mapping[str, Any]:
        """Say which database this is, without secrets."""
        return {"engine": "PostgreSQL", **self.database.address, "schema": self.schema.name}

    # Enqueue

    def enqueue(
        self,
        jobs: Sequence[NewJob],
        *,
        connection: object | None = None,
        audit: AuditRecord | None = None,
    ) -> Coroutine[Any, Any, list[Enqueued]]:
        """See the contract."""
        if audit is not None:
            return self._enqueue_audited(jobs, connection, audit)
        if connection is not None and jobs:
            return self._caller_transactions.drive(
                connection,
                lambda: enqueue.enqueue(self.schema, jobs, notice=self._caller_notice),
                multi_statement=enqueue.is_multi_statement(jobs),
            )
        if (single_producer := self._single_producer) is not None and isinstance(jobs, UniformJobs):
            if single_producer.can_add(jobs):
                return single_producer.add(jobs)
            if single_producer.needs_yield(jobs):
                return self._yield_then_add(single_producer, jobs)
        return self._enqueue(jobs)

    def _enqueue(self, jobs: Sequence[NewJob]) -> Coroutine[Any, Any, list[Enqueued]]:
        self._single_producer = None
        if len(jobs) > MAX_COALESCED or enqueue.has_keys(jobs):
            return self._enqueue_now(jobs)
        return self._coalescers.current().enqueue(jobs)

    async def _enqueue_audited(
        self, jobs: Sequence[NewJob], connection: object | None, audit: AuditRecord
    ) -> list[Enqueued]:
        self._single_producer = None
        if connection is not None:
            return await self._caller_transactions.drive(
                connection, lambda: self._audited_plan(AuditedJobs.of(jobs, audit), self._caller_notice)
            )
        if not jobs:
            await self.record_audit(counted(audit, 0))
            return []
        audited_jobs = AuditedJobs.of(jobs, audit)
        if len(jobs) > MAX_COALESCED or enqueue.is_multi_statement(jobs):
            return await self._enqueue_audited_now(audited_jobs)
        return await self._audited_coalescers.current().enqueue(audited_jobs)

    async def _enqueue_audited_now(self, audited_jobs: AuditedJobs) -> list[Enqueued]:
        with self._notify_on_commit(audited_jobs.jobs) as notice:
            return await self._run(
                lambda: self._audited_plan(audited_jobs, notice),
                atomic=not enqueue.is_single_audited_statement(audited_jobs.jobs),
            )

    def _audited_plan(self, audited_jobs: AuditedJobs, notice: str | None) -> Plan[list[Enqueued]]:
        jobs, records = audited_jobs.jobs, audited_jobs.records
        if jobs and enqueue.is_single_audited_statement(jobs):
            return enqueue.enqueue_audited(self.schema, jobs, records, notice=notice, cache=self._queue_cache)
        plan = enqueue.enqueue(self.schema, jobs, notice=notice) if jobs else no_jobs()
        return self._access.audited_enqueue(plan, audited_jobs)

    async def _yield_then_add(self, single_producer: SingleProducer, jobs: UniformJobs) -> list[Enqueued]:
        await asyncio.sleep(0)
        return await (
            single_producer.add(jobs)
            if single_producer is self._single_producer and single_producer.can_add(jobs)
            else self._enqueue(jobs)
        )

    def enqueue_sync(self, jobs: Sequence[NewJob], *, connection: object | None = None) -> list[Enqueued]:
        """See the contract."""
        if not jobs:
            return []
        if connection is not None:
            return self._caller_transactions.drive_sync(
                connection,
                lambda: enqueue.enqueue(self.schema, jobs, notice=self._caller_notice),
                multi_statement=enqueue.is_multi_statement(jobs),
            )
        plan = self._plan_for(jobs)
        notice = self._notify_throttle.notice_for(plan.notification)
        try:
            single = enqueue.single_insert(plan, jobs, notice, self._queue_cache)
            if single is not None and self._add_sync(single):
                added = [single.added]
            else:
                added = self._run_sync(
                    lambda: enqueue.enqueue(
                        self.schema, jobs, notice=notice, can_copy=self._can_copy, cache=self._queue_cache
                    ),
                    atomic=enqueue.is_multi_statement(jobs),
                )
        except BaseException:
            self._notify_throttle.failed(notice)
            raise
        self._notify_throttle.committed(notice, plan.notification)
        return added

    async def _enqueue_now(self, jobs: Sequence[NewJob], *, is_only_caller: bool = False) -> list[Enqueued]:
        """Add jobs; ``is_only_caller``: nobody else does, so that whoever calls may go on without a check each time."""
        if not jobs:
            return []
        plan = self._plan_for(jobs)
        notice = self._notify_throttle.notice_for(plan.notification)
        try:
            single = enqueue.single_insert(plan, jobs, notice, self._queue_cache)
            if single is not None and await self._add(single):
                added = [single.added]
            else:
                added = await self._enqueue_any(jobs, notice)
        except BaseException:
            self._notify_throttle.failed(notice)
            raise
        self._notify_throttle.committed(notice, plan.notification)
        if is_only_caller and plan.statements is not None and self._queue_cache.is_fresh(plan.lane):
            self._single_producer = SingleProducer(
                plan,
                plan.statements,
                cache=self._queue_cache,
                throttle=self._notify_throttle,
                connections=self._connections.loop_pool(),
                translated=self.database.translated(),
                enqueue_normally=self._enqueue,
            )
        return added

    def _enqueue_any(self, jobs: Sequence[NewJob], notice: str | None) -> Coroutine[Any, Any, list[Enqueued]]:
        return self._run(
            lambda: enqueue.enqueue(self.schema, jobs, notice=notice, can_copy=self._can_copy, cache=self._queue_cache),
            atomic=enqueue.is_multi_statement(jobs),
        )

    def _plan_for(self, jobs: Sequence[NewJob]) -> EnqueuePlan:
        """Read what jobs have in common; of one task after the other, each once."""
        if not isinstance(jobs, UniformJobs):
            return enqueue.plan_for(self.schema, jobs, notifies=self._notifies)
        plan = self._enqueue_plan
        if plan.template is not jobs.template:
            plan = self._enqueue_plan = enqueue.plan_for(self.schema, jobs, notifies=self._notifies)
        return plan

    def _notify_on_commit(self, jobs: Sequence[NewJob]) -> NotifyOnCommit:
        return NotifyOnCommit(self._notify_throttle, self._plan_for(jobs).notification)

    @property
    def _caller_notice(self) -> str | None:
        # Always the same words: a transaction tells the same thing only once, however many jobs it adds (X4).
        return f"{ALL_QUEUES},{DUE}" if self._notifies else None

    # Work

    async def claim(self, request: ClaimRequest) -> Claims:
        """See the contract."""
        if self._restore_guard.may_be_held and await self._is_held():
            return no_claims()
        rotation = self._rotation(request.queues)
        taken = await self._run(lambda: claims.claim(self.schema, request, rotation))
        if taken.claims:
            self._mark_busy()
        return taken

    async def _fail_unreadable(self, jobs: Sequence[claims.UnreadableJob]) -> None:
        with suppress(OnwardError):  # otherwise their leases run out, and the next claim meets them again
            await self._run(lambda: claims.fail_unreadable(self.schema, jobs))

    async def start(self, claims: Sequence[Claim]) -> frozenset[Token]:
        """See the contract."""
        return await self._run(lambda: settle.start(self.schema, claims))

    async def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """See the contract."""
        if connection is not None:
            plan = partial(settle.settle_and_notify, self.schema, settlements)
            return await self._caller_transactions.drive(connection, plan, multi_statement=False)
        return self._without_batch_signals(await self._run(lambda: settle.settle(self.schema, settlements)))

    def settle_sync(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """See the contract."""
        if connection is not None:
            plan = partial(settle.settle_and_notify, self.schema, settlements)
            return self._caller_transactions.drive_sync(connection, plan, multi_statement=False)
        return self._run_sync(lambda: settle.settle_and_notify(self.schema, settlements))

    async def exchange(self, exchange: Exchange) -> Exchanged:
        """See the contract."""
        if (request := exchange.request) is None:
            return await self._exchange(exchange)
        if self._restore_guard.may_be_held and await self._is_held():
            return without_claims(await self._exchange(settle_only(exchange)))
        prefetch = self._claim_on_notify.current()
        if (sent := prefetch.take(request)) is None:
            exchanged = await self._exchange(exchange)
        else:
            try:
                exchanged = await self._exchange_with_prefetch(sent, exchange)
            except BaseException:
                prefetch.release(sent)
                raise
        prefetch.arm(request, exchanged.claimed, self._rotation(request.queues, request.worker_id))
        return exchanged

    async def _exchange_with_prefetch(self, sent: SentClaim, exchange: Exchange) -> Exchanged:
        """Settle and start, and take what a claim brings that is on its way."""
        if not exchange.settlements and not exchange.starts:
            claimed = await sent.claims()
            return await self._exchange(exchange) if claimed is None else Exchanged(claimed=claimed)
        done = await self._exchange(msgspec.structs.replace(exchange, request=None))
        # What has ended is recorded, and must not be said again: if nothing is brought, it is asked for the next time.
        received = await sent.claims() or Claims(retry_after=0.0)
        return Exchanged(lost=done.lost, busy=done.busy, claimed=received)

    async def _exchange(self, exchange: Exchange) -> Exchanged:
        request = exchange.request
        if self._blocked and any(settlement.claim.token in self._blocked for settlement in exchange.settlements):
            return await self._settle_available(exchange)
        rotation = claims.RoundRobin() if request is None else self._rotation(request.queues, request.worker_id)
        try:
            exchanged = await self._run(lambda: settle.exchange(self.schema, exchange, rotation))
        except StoreBusy as error:
            if not _is_lock_timeout(error):
                raise
            return await self._settle_available(exchange)
        if exchanged.claimed.claims:
            self._mark_busy()
        if exchanged.lost:
            exchanged = msgspec.structs.replace(exchanged, lost=self._without_batch_signals(exchanged.lost))
        return exchanged

    async def _settle_available(self, exchange: Exchange) -> Exchanged:
        """Record what nobody's transaction holds up. Nothing is started or claimed: that is for the next exchange."""
        lost = left = frozenset[Token]()
        if exchange.settlements:
            plan = partial(settle.settle_available, self.schema, exchange.settlements)
            lost, left = await self._run(plan, atomic=True)
            self._blocked = left
        busy = left.union(claim.token for claim in exchange.starts)
        return Exchanged(lost=self._without_batch_signals(lost), busy=busy, claimed=Claims(retry_after=0.0))

    def _without_batch_signals(self, lost: frozenset[Token]) -> frozenset[Token]:
        """Take news of batches out of what was answered, and have them acted on."""
        notified = lost & {settle.BATCH_CHANGED, settle.DEPENDENCY_ENDED}
        if notified:
            self._advance_soon(immediately=settle.DEPENDENCY_ENDED in notified)
        return lost - notified

    async def heartbeat(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        return await self._run(lambda: leases.heartbeat(self.schema, worker, claims))

    def heartbeat_sync(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        self._connections.check_open()
        with self._connections.for_heartbeat() as connection, self.database.translated():
            return run(leases.heartbeat(self.schema, worker, claims), caller_transaction.on_psycopg(connection))

    async def deregister(self, worker_id: str) -> None:
        """See the contract."""
        await self._claim_on_notify.current().deregister(worker_id)
        for key in [key for key in list(self._rotations) if key[0] == worker_id]:
            self._rotations.pop(key, None)
        await self._run(lambda: leases.deregister(self.schema, worker_id))

    async def report(
        self, claim: Claim, *, progress: int | None = None, message: str | None = None, lines: Sequence[str] = ()
    ) -> bool:
        """See the contract."""
        return await self._run(lambda: leases.report(self.schema, claim, progress, message, lines))

    async def record_crash(self, claim: Claim) -> bool:
        """See the contract."""
        return await self._run(lambda: leases.record_crash(self.schema, claim))

    def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """See the contract."""
        return self._listener.signals(queues)

    def _rotation(self, queues: tuple[str, ...], worker_id: str = "") -> claims.RoundRobin:
        key = worker_id, queues
        if (rotation := self._rotations.get(key)) is None:
            rotation = self._rotations[key] = claims.RoundRobin()
        rotation.is_listening = self._listener.is_listening
        return rotation

    @property
    def _is_listening(self) -> bool:
        """Whether what is heard, and a clock of one's own, say when there is something to do."""
        return self.schema.now is None and self._listener.is_listening

    def _mark_busy(self) -> None:
        """Note that jobs come and go: a leader has more to do then."""
        self._watermark_state.mark_busy()
        self._rescue_state.mark_busy()

    def _on_notice(self, notice: str) -> None:
        """Take in what is told to all."""
        names = notice.split(",")
        for (_, queues), rotation in list(self._rotations.items()):
            rotation.add_notice(queues, names)
        self._claim_on_notify.current().on_notification()  # and while the store is at it, the rest
        self._mark_busy()
        if DUE in names:
            self._next_due.reset()

    # Read

    async def get(self, ref: JobRef | str) -> Job | None:
        """See the contract."""
        return await self._run(lambda: queries.get(self.schema, ref))

    async def find(
        self, which: JobFilter, *, cursor: str | None = None, limit: int = 50, newest_first: bool = True
    ) -> Page[Job]:
        """See the contract."""
        return await self._run(
            lambda: queries.find(self.schema, which, cursor, limit, newest_first=newest_first), no_timeout=True
        )

    async def count(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        return await self._run(lambda: queries.count(self.schema, which, by), no_timeout=True)

    async def queues(self, pattern: str = "*") -> list[QueueInfo]:
        """See the contract."""
        return await self._run(lambda: queries.queues(self.schema, pattern), no_timeout=True)

    async def workers(self) -> list[WorkerInfo]:
        """See the contract."""
        return await self._run(lambda: queries.workers(self.schema))

    async def logs(self, ref: JobRef) -> list[LogLine]:
        """See the contract."""
        return await self._run(lambda: queries.logs(self.schema, ref))

    async def events(
        self, queues: Sequence[str], *, cursor: str | None = None, types: frozenset[str] | None = None
    ) -> AsyncGenerator[AnyEvent, None]:
        """See the contract."""
        return await self._event_reader.begin(queues, cursor, types)

    # Operate

    async def cancel(
        self,
        which: JobFilter,
        *,
        reason: str = "cancelled",
        limit: int = 1000,
        audit: AuditRecord | None = None,
    ) -> list[Changed]:
        """See the contract."""
        changed = await self._change(
            lambda: admin.cancel(self.schema, which, reason, limit), audit, len, no_timeout=True
        )
        if changed:
            self._advance_soon(immediately=True)
        return changed

    async def replay(
        self,
        which: JobFilter,
        *,
        limit: int = 1000,
        audit: AuditRecord | None = None,
    ) -> list[Changed]:
        """See the contract."""
        changed = await self._change(lambda: admin.replay(self.schema, which, limit), audit, len, no_timeout=True)
        if changed:
            self._advance_soon(immediately=True)
        return changed

    async def delete(
        self,
        which: JobFilter,
        *,
        limit: int = 1000,
        audit: AuditRecord | None = None,
    ) -> list[Changed]:
        """See the contract."""
        changed = await self._change(lambda: admin.delete(self.schema, which, limit), audit, len, no_timeout=True)
        if changed:
            self._advance_soon(immediately=True)
        return changed

    async def edit(self, ref: JobRef, change: JobChange, *, audit: AuditRecord | None = None) -> Job | None:
        """See the contract."""
        return await self._change(lambda: admin.edit(self.schema, ref, change), audit, lambda job: int(job is not None))

    async def configure(self, queue: str, change: QueueChange, *, audit: AuditRecord | None = None) -> QueueInfo:
        """See the contract. Meanwhile nobody claims; so it waits for no job for long, and comes again instead."""
        await self._run_with_pauses(
            lambda: self._access.audited(admin.configure(self.schema, queue, change), audit, lambda _: 1),
            atomic=audit is not None,
        )
        self._queue_cache.clear()
        self._single_producer = None
        (info,) = await self.queues(queue)
        return info

    async def _change(
        self,
        plan: Callable[[], Plan[T]],
        audit: AuditRecord | None,
        count: Callable[[T], int],
        *,
        no_timeout: bool = False,
    ) -> T:
        """Drive a plan, and write its record in the same transaction."""
        if audit is None:
            return await self._run(plan, no_timeout=no_timeout)
        return await self._run(lambda: self._access.audited(plan(), audit, count), atomic=True, no_timeout=no_timeout)

    async def command_worker(self, worker_id: str, command: WorkerCommand, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(lambda: leases.command_worker(self.schema, worker_id, command), audit, int)

    async def confirm_restore(self) -> None:
        """See the contract."""
        await self._run(lambda: maintenance.confirm_home(self.schema))

    async def _is_held(self) -> bool:
        home = await self._run(lambda: maintenance.home(self.schema))
        if home.needs_adoption:
            await self._run(lambda: maintenance.confirm_home(self.schema, only_if_empty=True))
            home = Home(is_same=True)
        return self._restore_guard.update(home, self.database)

    # Maintenance

    async def elect(self, candidate: str, *, lease: timedelta, current_term: Term | None = None) -> Term | None:
        """See the contract."""
        await self._is_held()
        return await self._run(lambda: maintenance.elect(self.schema, candidate, lease, current_term))

    async def resign(self, term: Term) -> None:
        """See the contract."""
        await self._run(lambda: maintenance.resign(self.schema, term))

    async def promote(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        is_listening = self._is_listening
        if self._watermark_state.is_due(is_listening=is_listening):
            await self._run(lambda: self._watermark_state.move(self.schema, term))
        if is_listening and (next_in := self._next_due.remaining()) is not None:
            return MaintenanceResult(next_in=next_in)
        more: bool | None
        batch, more = await self._run(lambda: maintenance.promote(self.schema, term, limit, self._next_due))
        for _ in range(_MAX_STEPS):
            if not more:
                if more is None:  # nobody is told when the transactions end that hold the rest
                    self._next_due.update(RETRY_INTERVAL)
                return batch
            try:
                more, ready = await self._run(lambda: batches.advance(self.schema, term), atomic=True)
            except BaseException:
                self._next_due.reset()
                raise
            batch = msgspec.structs.replace(batch, changed=batch.changed + ready)
        self._next_due.reset()
        return msgspec.structs.replace(batch, more=True)

    async def rescue(self, term: Term, *, lease: timedelta, max_crashes: int, limit: int = 1000) -> MaintenanceResult:  # noqa: ARG002 - workers count crashes here
        """See the contract."""
        if self._event_settings[0] == "all":  # else those who listen do it, every few seconds
            await self._event_log.trim()
        if self._is_listening and self._rescue_state.can_skip():
            return MaintenanceResult()
        known = self._rescue_state, self._upkeep, self._watermark_state
        return await self._run(lambda: maintenance.rescue(self.schema, term, lease, limit, *known))

    async def prune(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        await self._event_log.trim()
        plan = partial(maintenance.prune, self.schema, term, limit, self._upkeep)
        try:
            result = await self._run(plan, no_timeout=True)
        except StoreBusy as error:
            if isinstance(error.__cause__, pg.QueryCanceled):
                self._upkeep.prune_timed_out(limit)
            raise
        self._upkeep.prune_succeeded()
        return result

    # Calendar

    async def schedules(self) -> list[Schedule]:
        """See the contract."""
        return await self._run(self._schedules.schedules)

    async def save_schedule(self, schedule: Schedule, *, audit: AuditRecord | None = None) -> Schedule:
        """See the contract."""
        return await self._change(lambda: self._schedules.save(schedule), audit, lambda _: 1)

    async def delete_schedule(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(lambda: self._schedules.delete(name), audit, int)

    async def due_schedules(self, *, limit: int = 100) -> DueSchedules:
        """See the contract."""
        return await self._run(lambda: self._schedules.due(limit))

    async def fire(self, schedule: Schedule, firing: Firing) -> list[Enqueued] | None:
        """See the contract."""
        with self._notify_on_commit(firing.jobs) as notice:
            add = partial(enqueue.enqueue, self.schema, notice=notice)
            return await self._run(lambda: self._schedules.fire(schedule, firing, add), atomic=True)

    # Gather

    async def save_batch(
        self,
        batch: NewBatch,
        jobs: Sequence[NewJob] = (),
        *,
        connection: object | None = None,
        audit: AuditRecord | None = None,
    ) -> list[Enqueued]:
        """See the contract."""

        def plan(notice: str | None, *, can_copy: bool) -> Plan[list[Enqueued]]:
            upsert = batches.upsert(self.schema, batch, jobs, notice=notice, can_copy=can_copy)
            return self._access.audited(upsert, audit, lambda added: batch_count(added, has_jobs=bool(jobs)))

        if connection is not None:
            return await self._caller_transactions.drive(connection, lambda: plan(self._caller_notice, can_copy=False))
        with self._notify_on_commit(jobs) as notice:
            added = await self._run(lambda: plan(notice, can_copy=self._can_copy), atomic=True)
        self._advance_soon(immediately=True)
        return added

    async def batches(
        self, *, names: Sequence[str] | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[BatchInfo]:
        """See the contract."""
        return await self._run(lambda: batches.batches(self.schema, names, cursor, limit))

    async def delete_batch(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(lambda: batches.delete(self.schema, name), audit, int)

    async def dependencies(self, name: str) -> list[Dependency]:
        """See the contract."""
        return await self._run(lambda: batches.dependencies(self.schema, name), no_timeout=True)

    async def dependency_jobs(self, ref: JobRef) -> list[Job]:
        """See the contract."""
        return await self._run(lambda: batches.dependency_jobs(self.schema, ref))

    # Ledger

    async def record_usage(self, usage: Sequence[Usage]) -> None:
        """See the contract."""
        await self._run(lambda: record_usage(self.schema, usage))

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """See the contract."""
        return await self._run(lambda: usage.usage(self.schema, query), no_timeout=True)

    def _advance_soon(self, *, immediately: bool) -> None:
        if self.schema.now is None:  # in a test whose clock stands still, nothing happens by itself
            self._batch_updater.request(immediately=immediately)

    async def _advance(self) -> bool | None:
        more, _ = await self._run(lambda: batches.advance(self.schema), atomic=True)
        return more

    # Archive

    async def archived(self, which: JobFilter, *, cursor: str | None = None, limit: int = 50) -> Page[Job]:
        """See the contract."""
        return await self._run(lambda: archived_jobs.find(self.schema, which, cursor, limit), no_timeout=True)

    async def count_archived(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        return await self._run(lambda: archived_jobs.count(self.schema, which, by), no_timeout=True)

    async def purge_archived(
        self,
        which: JobFilter,
        *,
        limit: int = 1000,
        audit: AuditRecord | None = None,
    ) -> list[Changed]:
        """See the contract."""
        return await self._change(lambda: archived_jobs.purge(self.schema, which, limit), audit, len, no_timeout=True)

    # Bookmarks

    async def acquire_cursor(self, name: str, holder: str, *, lease: timedelta, anew: bool = False) -> str | None:
        """See the contract."""
        now = str(await self._event_log.begin(None))
        return await self._run(lambda: events.acquire_cursor(self.schema, name, holder, now, lease, reset=anew))

    async def read_events(
        self, queues: Sequence[str], *, cursor: str, types: frozenset[str] | None = None, limit: int = 500
    ) -> EventPage:
        """See the contract."""
        return await self._event_reader.read(queues, cursor, types, limit)

    async def commit_cursor(self, name: str, holder: str, cursor: str) -> bool:
        """See the contract."""
        return await self._run(lambda: events.commit_cursor(self.schema, name, holder, cursor))

    # AccessStore: see AccessVerbs

    async def audit(self, query: AuditQuery, *, cursor: str | None = None, limit: int = 50) -> Page[AuditRecord]:
        """See the contract. It looks at as much as there is, and may take long."""
        return await self._run(lambda: self._access.audit(query, cursor, limit), no_timeout=True)

    def _notify(self, notice: str) -> None:
        self._run_sync(lambda: leases.notify(self.schema, notice))

    # Driving plans

    async def _drive(self, plan: Callable[[], Plan[T]], *, atomic: bool = False) -> T:
        return await self._run(plan, atomic=atomic)

    async def _run(self, plan: Callable[[], Plan[T]], *, atomic: bool = False, no_timeout: bool = False) -> T:
        """Drive a plan on a connection of ours.

        ``atomic``: all of its statements, or none. ``no_timeout``: it looks at as much as there is, and may take long.
        """
        self._connections.check_open()
        with self.database.translated():
            for left in reversed(range(_MAX_TRIES)):
                try:
                    async with self._connections.borrowed(no_timeout=no_timeout) as connection:
                        execute = caller_transaction.on_async_psycopg(connection)
                        if not atomic:
                            return await arun(plan(), execute)
                        async with connection.transaction():
                            return await arun(plan(), execute)
                except (*RETRYABLE, pg.CheckViolation) as error:
                    if not left or not _is_retryable(error):
                        raise
        raise AssertionError

    async def _run_with_pauses(self, plan: Callable[[], Plan[T]], *, atomic: bool) -> T:
        """Drive a plan that somebody's transaction may hold up, some times, with pauses in between."""
        for pause in _PAUSES:
            try:
                return await self._run(plan, atomic=atomic)
            except StoreBusy as error:
                if not _is_lock_timeout(error):
                    raise
            await asyncio.sleep(pause)
        return await self._run(plan, atomic=atomic)

    async def _add(self, job: SingleInsert) -> int:
        """Add a job by a single statement on a connection of ours; 0: it had to give way."""
        self._connections.check_open()
        with self.database.translated():
            try:
                async with self._connections.borrowed() as connection:
                    return await connection.execute_rowcount(job.text, job.values)
            except RETRYABLE:
                return 0

    def _add_sync(self, job: SingleInsert) -> int:
        """Do the same from plain code."""
        self._connections.check_open()
        with self.database.translated():
            try:
                with self._connections.borrowed_sync() as connection:
                    return connection.execute_rowcount(job.text, job.values)
            except RETRYABLE:
                return 0

    def _run_sync(self, plan: Callable[[], Plan[T]], *, atomic: bool = False) -> T:
        """Do the same from plain code."""
        self._connections.check_open()
        with self.database.translated():
            for left in reversed(range(_MAX_TRIES)):
                try:
                    with self._connections.borrowed_sync() as connection:
                        execute = caller_transaction.on_psycopg(connection)
                        if not atomic:
                            return run(plan(), execute)
                        with connection.transaction():
                            return run(plan(), execute)
                except (*RETRYABLE, pg.CheckViolation) as error:
                    if not left or not _is_retryable(error):
                        raise
        raise AssertionError

    def _same_store(self) -> Plan[None]:
        return same_store(self.schema.name, self._identity, self.database)


def _is_lock_timeout(error: StoreBusy) -> bool:
    """Say whether it was somebody's transaction that was waited for, and not for long."""
    return isinstance(error.__cause__, pg.LockNotAvailable)


def _is_retryable(error: psycopg.Error) -> bool:
    """Say whether a statement changed nothing only because something else happened at the same moment."""
    # A job ended while its day of the history was being made: the next time it is there.
    return isinstance(error, RETRYABLE) or (error.diag.table_name or "").startswith("history_day")
