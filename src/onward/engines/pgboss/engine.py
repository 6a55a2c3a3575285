"""The engine: each verb a plan, driven on a connection of ours, or on the caller's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from psycopg import errors as pg

from onward.clock import Clock
from onward.engine.access import AuditRecord
from onward.engine.capabilities import NATIVE, Capabilities, Feature, absent, emulated
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
from onward.engines.pgboss import admin, claims, cron, enqueue, leases, maintenance, queries, schedules, settle
from onward.engines.pgboss.queue_cache import QueueCache, SchemaMigrated
from onward.engines.pgboss.schema_probe import SchemaProbe
from onward.engines.pgboss.statements import DEFAULT, MIGRATIONS, Schema
from onward.errors import SchemaTooOld, Unsupported
from onward.events import AnyEvent
from onward.job import Enqueued, Job, JobRef, NewJob, UniformJobs
from onward.lifecycle import JobStatus
from onward.pg.access import AccessTables, AccessVerbs, no_jobs
from onward.pg.caller_transaction import CallerTransactions, on_async_psycopg, on_psycopg, read_committed
from onward.pg.claim_blockers import claim_problems
from onward.pg.coalescing import MAX_COALESCED, AuditedJobs, Coalescer, joined_audited, joined_jobs
from onward.pg.companion_store import grant_hint
from onward.pg.database import Database
from onward.pg.durability_report import Durability
from onward.pg.errors import RETRYABLE
from onward.pg.exchange import exchange_concurrently, exchange_in_order
from onward.pg.limits.queues import FOREIGN_WORKERS
from onward.pg.listener import Listener
from onward.pg.migrations import Migrations
from onward.pg.open_claims import OpenClaims
from onward.pg.per_loop import PerLoop
from onward.pg.plan_runner import Plan, Row, Statement, arun, run
from onward.pg.pools import MAX_CONNECTIONS, ConnectionPools
from onward.pg.store_identity import identity_of, same_store
from onward.schedule import Firing, Missed, Schedule

T = TypeVar("T")

log = logging.getLogger("onward.engines.pgboss")

CAPABILITIES: Final = Capabilities(
    engine="pg-boss",
    features={
        **dict.fromkeys(Feature, NATIVE),
        Feature.CLAIMED_STATE: absent("pg-boss starts a job with its claim: ask for no more than there are hands"),
        Feature.START_BY: absent("pg-boss removes what has waited longer than its queue's retention: set that"),
        Feature.IDEMPOTENCY: absent(
            "pg-boss keeps no keys of ended jobs: use a dedupe key, which holds while it lives"
        ),
        Feature.DEDUPLICATION: emulated(
            "pg-boss's singleton key, within a queue; where the queue's policy does not hold it, Onward does, among "
            "those who enqueue through Onward"
        ),
        Feature.ORGANISATIONS: emulated("the group of pg-boss 12, and in the data of the job before that"),
        Feature.PAUSE: emulated(FOREIGN_WORKERS),
        Feature.RATE: emulated(FOREIGN_WORKERS),
        Feature.BURST: emulated(FOREIGN_WORKERS),
        Feature.CONCURRENCY: emulated(f"{FOREIGN_WORKERS}, but their active jobs count"),
        Feature.WEIGHT: absent("pg-boss has no place for weights: give workers the queues they are to take"),
        Feature.PATTERNS: emulated("over the queues there are; one that Node makes is found within a second"),
        Feature.QUEUES_BY_USE: absent(
            "pg-boss wants a queue made before jobs are sent to it: make it in Node, or by configuring it here"
        ),
        Feature.RETENTION: absent(
            "pg-boss keeps ended jobs for one time, however they ended: give the queue its deleteAfterSeconds"
        ),
        Feature.ERROR_HISTORY: absent("pg-boss keeps the last error only"),
        Feature.PROGRESS: absent("pg-boss has no place for progress: keep it in a table of yours"),
        Feature.LOG_LINES: absent("pg-boss has no place for log lines: use the program's own log"),
        Feature.SUSPECTS: absent(
            "pg-boss would give a suspect to any Node worker; a job that loses its workers too often costs attempts"
        ),
        Feature.PUSH: emulated(
            "at once for jobs that Onward enqueues, and for Node's where the queue has notify (since pg-boss 12.21); "
            "others are found by polling"
        ),
        Feature.LEADER: emulated("a lease in a schema of Onward's own beside pg-boss's"),
        Feature.SCHEDULES: emulated(
            "in pg-boss's own table; fired by any Node instance or by Onward's leader, each turn once. Paused ones are "
            "kept in Onward's companion schema"
        ),
        Feature.INTERVALS: absent("pg-boss has cron expressions only: */5 * * * * is every five minutes"),
        Feature.MISSED_TURNS: absent('pg-boss skips the turns that nobody fired within a minute: missed="skip"'),
        Feature.FIRING: absent("pg-boss's own protocol fires schedules, in the same places as Node does"),
        Feature.THROTTLE: absent("pg-boss has its own: pgboss_of(app).send_throttled(…) and send_debounced(…)"),
        Feature.ARCHIVE: absent("ended jobs go by pg-boss's own keep times, and since version 11 it has no archive"),
        Feature.USAGE: absent("what pg-boss keeps is its own: count its jobs by app.jobs.count(…)"),
        Feature.WEBHOOKS: absent("there are no events here to be posted"),
        Feature.BATCHES: absent("pg-boss has none: use one of our own stores"),
        Feature.EVENTS: absent("pg-boss keeps none: await job.result(), or look at app.jobs"),
        Feature.CHANGE_TIMES: absent("pg-boss does not keep when a job was changed"),
        Feature.READY_ORDER: absent("pg-boss hands out jobs of one priority by age, not by when they became ready"),
        Feature.PROMOTION: absent("on pg-boss a job is ready when its time has come, without anybody doing anything"),
    },
    status_aliases={JobStatus.CLAIMED: JobStatus.RUNNING},
    is_shared=True,
    has_global_ids=False,
    default_missed=Missed.SKIP,
)

_MAX_TRIES: Final = 5
"""How often a statement is tried that the database gave up in favour of another's. It has changed nothing then."""
_RETRYABLE: Final = (*RETRYABLE, pg.UniqueViolation)
_SCHEMA_CHANGED: Final = (SchemaMigrated, pg.UndefinedColumn, pg.UndefinedTable, pg.UndefinedFunction)
"""What is met where Node has migrated pg-boss meanwhile."""


class PgBossEngine(AccessVerbs):
    """Jobs in the queues of a pg-boss, shared with its Node producers and workers."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT,
        notify: bool = True,
        supervise: bool = False,
        listen_url: str | None = None,
        connections: int = MAX_CONNECTIONS,
        clock: Clock | None = None,
    ) -> None:
        """Name a store; nothing is connected to yet.

        Args:
            url: where the database is, as libpq reads it.
            schema: where in it pg-boss is.
            notify: whether whoever listens is told of new jobs at once; without, workers find them by polling.
            supervise: whether to do what a Node instance does besides: expiry, retention and Node's own schedules.
            listen_url: another address of the same database, past a pooler, to be told of new jobs there.
            connections: how many there may be for an event loop, and how many for threads.
            clock: for tests; the database's own unless given.
        """
        self.schema = Schema(schema, clock=clock)
        hint = grant_hint(self.schema.name, self.schema.companion.name)
        self.database = Database(url, grant_hint=hint)
        self.queue_cache = QueueCache(self.schema, CAPABILITIES)
        self.notifies = notify
        self.supervises = supervise
        self._connections = ConnectionPools(self.database, max_size=connections)
        self._direct = self.database if listen_url is None else Database(listen_url, grant_hint=hint)
        self._listener = Listener(self._direct, self.schema.channel)
        self._migrations = Migrations(self.schema.companion.name, self.database, MIGRATIONS)
        self.ids = enqueue.IdGenerator()
        self._round_robins: dict[tuple[str, ...], claims.RoundRobin] = {}
        self._batches = OpenClaims()
        self._cron_check = cron.CronCheck()
        self._coalescers = PerLoop(lambda: Coalescer(self._enqueue, joined_jobs))
        self._audited_coalescers = PerLoop(lambda: Coalescer(self._enqueue_audited, joined_audited))
        self._access = AccessTables(self.schema.companion.name, clock=clock)
        self._identity = ("", "")
        self._caller_transactions = CallerTransactions(self._connections, self.database, self._same_store)

    @property
    def capabilities(self) -> Capabilities:
        """What pg-boss can do."""
        return CAPABILITIES

    # Session

    async def open(self) -> None:
        """Connect, look at what pg-boss is there, and make what we keep beside it."""
        await asyncio.to_thread(self._open)
        self._connections.open()

    def _open(self) -> None:
        with self.database.connect() as connection, self.database.translated():
            execute = on_psycopg(connection)
            run(self._detect(), execute)
            self._migrations.migrate(connection)
            self._identity = run(identity_of(self.schema.companion.name), execute)
            self.database.detect_settings(connection)
        if self._direct is not self.database:
            with self._direct.connect() as connection, self._direct.translated():
                run(self._same_store(), on_psycopg(connection))
                self._direct.detect_settings(connection)

    def _detect(self) -> Plan[None]:
        """Look at what is installed, and fit the statements to it."""
        # Not to_regclass(): it may remember that there was none before somebody else's transaction made it.
        found = yield Statement(
            "select from pg_catalog.pg_tables where schemaname = $1 and tablename = 'version'", [self.schema.name]
        )
        rows = (yield Statement(f'select version from "{self.schema.name}".version')) if found else ()  # noqa: S608
        if not rows:
            message = (
                f"{self} is not there: start a pg-boss once on this database (new PgBoss(url).start()), it makes its "
                "tables itself; Onward never does"
            )
            raise SchemaTooOld(message)
        probe = SchemaProbe(rows[0][0], (yield self.schema.statement("probe", [self.schema.name])))
        probe.check(str(self))
        self.schema.adapt(probe)
        self.queue_cache.invalidate()

    async def close(self) -> None:
        """Let go of all connections."""
        await self._listener.close()
        await self._connections.close()

    async def confirm_restore(self) -> None:
        """Do nothing: a store whose schema is not ours has no place for where it is."""

    async def check(self) -> EngineInfo:
        """Say what the engine stands on; without opening it, and so without changing anything."""
        return await asyncio.to_thread(self._check)

    def _check(self) -> EngineInfo:
        with self.database.connect() as connection, self.database.translated():
            execute = on_psycopg(connection)
            run(self._detect(), execute)
            self._migrations.check(connection)
            ((server, fsync, full_page_writes, synchronous_commit, now),) = run(_facts(), execute)
            blockers = run(claim_problems(self.schema.text("claim_blockers")), execute)
        durability = Durability(fsync, full_page_writes, synchronous_commit)
        warning = self.schema.probe.warning
        return EngineInfo(
            engine="pg-boss",
            server=f"PostgreSQL {server}, pg-boss schema {self.schema.probe.version}",
            schema=self.schema.probe.version,
            now=self.schema.companion.now or now,
            durability=str(durability),
            problems=(*durability.problems(), *blockers),
            warnings=(*durability.warnings(), *(() if warning is None else (warning,))),
        )

    def schema_script(self) -> str:
        """Write what we keep beside pg-boss as SQL; pg-boss's own schema is not ours to write."""
        return self._migrations.script()

    def describe(self) -> Mapping[str, Any]:
        """Say which database this is, without secrets."""
        return {"engine": "pg-boss", **self.database.address, "schema": self.schema.name}

    def __str__(self) -> str:
        """Name it as errors do."""
        return f"pg-boss in schema {self.schema.name} of {self.database}"

    # Producer

    async def enqueue(
        self,
        jobs: Sequence[NewJob],
        *,
        connection: object | None = None,
        audit: AuditRecord | None = None,
    ) -> list[Enqueued]:
        """See the contract."""
        if audit is not None:
            audited_jobs = AuditedJobs.of(jobs, audit)
            if connection is not None or len(jobs) > MAX_COALESCED or not jobs or enqueue.has_keys(jobs):
                return await self._enqueue_audited(audited_jobs, connection)
            return await self._audited_coalescers.current().enqueue(audited_jobs)
        if not jobs:
            return []
        if connection is not None:
            return await self.run_plan(lambda: self._enqueue_plan(jobs), connection=connection)
        if len(jobs) > MAX_COALESCED or enqueue.has_keys(jobs):
            return await self._enqueue(jobs)
        return await self._coalescers.current().enqueue(jobs)

    def enqueue_sync(self, jobs: Sequence[NewJob], *, connection: object | None = None) -> list[Enqueued]:
        """See the contract."""
        if not jobs:
            return []
        if connection is not None:
            return self._caller_transactions.drive_sync(connection, lambda: self._enqueue_plan(jobs))
        return self.run_plan_sync(lambda: self._enqueue_plan(jobs), atomic=_is_more_than_one_statement(jobs))

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return await self.run_plan(lambda: self._enqueue_plan(jobs), atomic=_is_more_than_one_statement(jobs))

    async def _enqueue_audited(self, audited_jobs: AuditedJobs, connection: object | None = None) -> list[Enqueued]:
        def plan() -> Plan[list[Enqueued]]:
            jobs = audited_jobs.jobs
            return self._access.audited_enqueue(self._enqueue_plan(jobs) if jobs else no_jobs(), audited_jobs)

        return await self.run_plan(plan, atomic=True, connection=connection)

    def _enqueue_plan(self, jobs: Sequence[NewJob]) -> Plan[list[Enqueued]]:
        ids = self.ids.generate(len(jobs))
        return enqueue.enqueue(self.schema, self.queue_cache, jobs, ids, notify=self.notifies)

    # Consumer

    async def claim(self, request: ClaimRequest) -> Claims:
        """See the contract."""
        is_atomic = self.queue_cache.has_limits(request.queues)  # a claim without limits needs no transaction
        claimed = await self._claim(request, is_atomic=is_atomic)
        if claimed is None:
            claimed = await self._claim(request, is_atomic=True)
        return claimed or Claims()

    async def _claim(self, request: ClaimRequest, *, is_atomic: bool) -> Claims | None:
        round_robin = self._round_robins.setdefault(request.queues, claims.RoundRobin())

        def plan() -> Plan[Claims | None]:
            return claims.claim(self.schema, self.queue_cache, request, round_robin, self._batches, is_atomic=is_atomic)

        return await self.run_plan(plan, atomic=is_atomic)

    async def start(self, claims: Sequence[Claim]) -> frozenset[Token]:
        """See the contract."""
        return await self.run_plan(lambda: settle.start(claims))

    async def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """See the contract."""
        if connection is not None:
            return await self._caller_transactions.drive(connection, lambda: read_committed(self._settle(settlements)))
        lost = await self.run_plan(lambda: self._settle(settlements))
        # Not where the caller may roll back: the leader removes the row of that batch when its time has run out.
        self._batches.mark_settled(each.claim for each in settlements)
        return lost

    def settle_sync(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """See the contract."""
        if connection is not None:
            return self._caller_transactions.drive_sync(connection, lambda: read_committed(self._settle(settlements)))
        lost = self.run_plan_sync(lambda: self._settle(settlements))
        self._batches.mark_settled(each.claim for each in settlements)
        return lost

    def _settle(self, settlements: Sequence[Settlement]) -> Plan[frozenset[Token]]:
        return settle.settle(self.schema, self.queue_cache, settlements, notify=self.notifies)

    async def exchange(self, exchange: Exchange) -> Exchanged:
        """See the contract. Where no outcome makes a job ready, or room for one, both are done at the same time."""
        settlements, request = exchange.settlements, exchange.request
        if request is not None and settlements and settle.can_exchange_concurrently(self.queue_cache, settlements):
            return await exchange_concurrently(self, settlements, request)
        return await exchange_in_order(self, settlements, request)

    async def heartbeat(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        return await self.run_plan(lambda: leases.heartbeat(self.schema, worker, claims))

    def heartbeat_sync(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        self._connections.check_open()
        with self._connections.for_heartbeat() as connection, self.database.translated():
            return run(leases.heartbeat(self.schema, worker, claims), on_psycopg(connection))

    async def deregister(self, worker_id: str) -> None:
        """See the contract."""
        await self.run_plan(lambda: self.schema.companion.deregister(worker_id))

    async def report(
        self, claim: Claim, *, progress: int | None = None, message: str | None = None, lines: Sequence[str] = ()
    ) -> bool:
        """Nothing of this can be kept, and asking for it is refused: see the capabilities."""
        del claim, progress, message, lines
        return False

    async def record_crash(self, claim: Claim) -> bool:  # noqa: ARG002 - absent
        """See the contract."""
        raise Unsupported(CAPABILITIES.engine, Feature.SUSPECTS, CAPABILITIES.features[Feature.SUSPECTS].note)

    def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """See the contract."""
        return self._listener.signals(queues)

    # Reader

    async def get(self, ref: JobRef | str) -> Job | None:
        """See the contract."""
        return await self.run_plan(lambda: queries.get(self.schema, ref))

    async def find(
        self, which: JobFilter, *, cursor: str | None = None, limit: int = 50, newest_first: bool = True
    ) -> Page[Job]:
        """See the contract."""
        return await self.run_plan(lambda: queries.find(self.schema, which, cursor, limit, newest_first=newest_first))

    async def count(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        return await self.run_plan(lambda: queries.count(self.schema, which, by))

    async def queues(self, pattern: str = "*") -> list[QueueInfo]:
        """See the contract."""
        return await self.run_plan(lambda: queries.queues(self.schema, self.queue_cache, pattern))

    async def workers(self) -> list[WorkerInfo]:
        """See the contract."""
        return await self.run_plan(self.schema.companion.workers)

    async def logs(self, ref: JobRef) -> list[LogLine]:
        """There are none, and asking for them is refused: see the capabilities."""
        del ref
        return []

    async def events(self, *_: object, **__: object) -> AsyncGenerator[AnyEvent, None]:
        """There are none, and asking for them is refused: see the capabilities."""
        raise Unsupported(CAPABILITIES.engine, Feature.EVENTS, CAPABILITIES.features[Feature.EVENTS].note)

    # Admin

    async def cancel(
        self,
        which: JobFilter,
        *,
        reason: str = "cancelled",
        limit: int = 1000,
        audit: AuditRecord | None = None,
    ) -> list[Changed]:
        """See the contract."""
        return await self._drive_audited(lambda: admin.cancel(self.schema, which, reason, limit), audit, len)

    async def replay(
        self,
        which: JobFilter,
        *,
        limit: int = 1000,
        audit: AuditRecord | None = None,
    ) -> list[Changed]:
        """See the contract."""
        in_transaction = audit is not None
        return await self._drive_audited(
            lambda: admin.replay(self.schema, which, limit, notify=self.notifies, in_transaction=in_transaction),
            audit,
            len,
        )

    async def delete(
        self,
        which: JobFilter,
        *,
        limit: int = 1000,
        audit: AuditRecord | None = None,
    ) -> list[Changed]:
        """See the contract."""
        return await self._drive_audited(lambda: admin.delete(self.schema, which, limit), audit, len)

    async def edit(self, ref: JobRef, change: JobChange, *, audit: AuditRecord | None = None) -> Job | None:
        """See the contract."""
        return await self._drive_audited(
            lambda: admin.edit(self.schema, ref, change, notify=self.notifies), audit, lambda job: int(job is not None)
        )

    async def configure(self, queue: str, change: QueueChange, *, audit: AuditRecord | None = None) -> QueueInfo:
        """See the contract."""
        return await self.run_plan(
            lambda: self._access.audited(
                admin.configure(self.schema, self.queue_cache, queue, change), audit, lambda _: 1
            ),
            atomic=True,
        )

    async def command_worker(self, worker_id: str, command: WorkerCommand, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._drive_audited(lambda: self.schema.companion.command_worker(worker_id, command), audit, int)

    # Maintenance

    async def elect(self, candidate: str, *, lease: timedelta, current_term: Term | None = None) -> Term | None:
        """See the contract."""
        return await self.run_plan(lambda: self.schema.companion.elect(candidate, lease, current_term))

    async def resign(self, term: Term) -> None:
        """See the contract."""
        await self.run_plan(lambda: self.schema.companion.resign(term))

    async def promote(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract. Jobs become ready by themselves: it only says when the next does.

        Fires the schedules whose turn has come. With ``supervise`` it also unblocks jobs whose dependencies have ended.
        """
        batch = await self.run_plan(lambda: maintenance.promote(self.schema, self.queue_cache))
        fired = await self._fire_schedules(term)
        next_in = min((each for each in (batch.next_in, fired.next_in) if each is not None), default=None)
        if not self.supervises:
            return MaintenanceResult(queues=fired.queues, next_in=next_in)
        unblocked = await self.run_plan(lambda: maintenance.unblock(self.schema, term, limit))
        return MaintenanceResult(
            changed=unblocked.changed, queues=unblocked.queues | fired.queues, more=unblocked.more, next_in=next_in
        )

    async def _fire_schedules(self, term: Term) -> cron.Fired:
        if self.schema.companion.now is None and not self._cron_check.is_due:
            return cron.Fired()
        fired = await self.run_plan(
            lambda: cron.send_due_schedules(
                self.schema,
                self.queue_cache,
                term,
                self.ids,
                self._cron_check,
                notify=self.notifies,
                supervises=self.supervises,
            ),
            atomic=True,
        )
        self._cron_check.mark_fired(fired)
        return fired

    async def rescue(self, term: Term, *, lease: timedelta, max_crashes: int, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        return await self.run_plan(
            lambda: maintenance.rescue(self.schema, term, lease, max_crashes, limit, supervises=self.supervises)
        )

    async def prune(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract. Node does it, unless we are asked to supervise."""
        if not self.supervises:
            return MaintenanceResult()
        return await self.run_plan(lambda: maintenance.prune(self.schema, term, limit))

    # ScheduleStore

    async def schedules(self) -> list[Schedule]:
        """See the contract."""
        return await self.run_plan(lambda: schedules.schedules(self.schema))

    async def save_schedule(self, schedule: Schedule, *, audit: AuditRecord | None = None) -> Schedule:
        """See the contract."""
        return await self._change_schedules(
            lambda: schedules.save(self.schema, self.queue_cache, schedule), audit, lambda _: 1
        )

    async def delete_schedule(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change_schedules(lambda: schedules.delete(self.schema, name), audit, int)

    async def _change_schedules(
        self, plan: Callable[[], Plan[T]], audit: AuditRecord | None, count: Callable[[T], int]
    ) -> T:
        return await self.run_plan(lambda: self._access.audited(plan(), audit, count), atomic=True)

    async def due_schedules(self, *, limit: int = 100) -> DueSchedules:  # noqa: ARG002 - none is due here
        """See the contract."""
        return await self.run_plan(lambda: schedules.now(self.schema))

    async def fire(self, schedule: Schedule, firing: Firing) -> list[Enqueued] | None:
        """Absent: see the capabilities."""
        del schedule, firing
        raise Unsupported(CAPABILITIES.engine, Feature.FIRING, CAPABILITIES.features[Feature.FIRING].note)

    # Driving plans

    async def _drive(self, plan: Callable[[], Plan[T]], *, atomic: bool = False) -> T:
        return await self.run_plan(plan, atomic=atomic)

    async def execute(self, name: str, values: list[Any] | None = None) -> Sequence[Row]:
        """Execute one statement of ours, by its name."""

        def plan() -> Plan[Sequence[Row]]:
            return (yield self.schema.statement(name, values))

        return await self.run_plan(plan)

    async def run_plan(
        self, plan: Callable[[], Plan[T]], *, atomic: bool = False, connection: object | None = None
    ) -> T:
        """Drive a plan on a connection of ours, or the caller's; ``atomic``: all of its statements, or none."""
        if connection is not None:
            return await self._caller_transactions.drive(connection, plan)
        self._connections.check_open()
        with self.database.translated():
            for left in reversed(range(_MAX_TRIES)):
                try:
                    async with self._connections.borrowed() as borrowed:
                        execute = on_async_psycopg(borrowed)
                        if not atomic:
                            return await arun(plan(), execute)
                        async with borrowed.transaction():
                            return await arun(plan(), execute)
                except (*_RETRYABLE, *_SCHEMA_CHANGED) as error:
                    if not left:
                        raise
                    if isinstance(error, _SCHEMA_CHANGED):
                        async with self._connections.borrowed() as borrowed:
                            await arun(self._detect(), on_async_psycopg(borrowed))
        raise AssertionError

    def run_plan_sync(self, plan: Callable[[], Plan[T]], *, atomic: bool = False) -> T:
        """Do the same from plain code."""
        self._connections.check_open()
        with self.database.translated():
            for left in reversed(range(_MAX_TRIES)):
                try:
                    with self._connections.borrowed_sync() as connection:
                        execute = on_psycopg(connection)
                        if not atomic:
                            return run(plan(), execute)
                        with connection.transaction():
                            return run(plan(), execute)
                except (*_RETRYABLE, *_SCHEMA_CHANGED) as error:
                    if not left:
                        raise
                    if isinstance(error, _SCHEMA_CHANGED):
                        with self._connections.borrowed_sync() as connection:
                            run(self._detect(), on_psycopg(connection))
        raise AssertionError

    def _same_store(self) -> Plan[None]:
        return same_store(self.schema.companion.name, self._identity, self)


def _is_more_than_one_statement(jobs: Sequence[NewJob]) -> bool:
    if enqueue.has_keys(jobs):
        return True
    return not isinstance(jobs, UniformJobs) and len({job.queue for job in jobs}) > 1


def _facts() -> Plan[Sequence[Any]]:
    return (
        yield Statement(
            "select current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'),"
            " current_setting('synchronous_commit'), clock_timestamp()"
        )
    )
