"""The engine: each verb a plan, driven on a connection of ours, or on the caller's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

import msgspec
import psycopg

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
from onward.engines.pgmq import admin, claims, enqueue, leases, maintenance, queries, schema_probe, settle
from onward.engines.pgmq.schema_probe import SchemaProbe
from onward.engines.pgmq.settings import PgmqSettings
from onward.engines.pgmq.statements import CHANNEL, MIGRATIONS, NAME, SQL
from onward.errors import Unsupported
from onward.events import AnyEvent
from onward.job import Enqueued, Job, JobRef, NewJob
from onward.lifecycle import JobStatus
from onward.pg import caller_transaction
from onward.pg.access import AccessTables, AccessVerbs, no_jobs
from onward.pg.claim_blockers import claim_problems
from onward.pg.coalescing import MAX_COALESCED, AuditedJobs, Coalescer, joined_audited, joined_jobs
from onward.pg.companion_store import CompanionSchema, grant_hint
from onward.pg.database import Database
from onward.pg.durability_report import Durability
from onward.pg.errors import RETRYABLE
from onward.pg.exchange import exchange_concurrently, exchange_in_order
from onward.pg.limits.queues import FOREIGN_WORKERS
from onward.pg.listener import ALL_QUEUES, Listener
from onward.pg.migrations import Migrations
from onward.pg.open_claims import OpenClaims
from onward.pg.per_loop import PerLoop
from onward.pg.plan_runner import Plan, arun, run
from onward.pg.pools import MAX_CONNECTIONS, ConnectionPools
from onward.pg.schedules import ScheduleTable
from onward.pg.store_identity import identity_of, same_store
from onward.schedule import Firing, Schedule

T = TypeVar("T")

log = logging.getLogger("onward.engines.pgmq")

_COMPANION_SCHEMA: Final = "kept in a small schema of our own beside PGMQ's"
_HEADERS: Final = "written into the message's headers"

CAPABILITIES: Final = Capabilities(
    engine="PGMQ",
    features={
        Feature.CLAIMED_STATE: absent("a message that is read is read; no more are read than there are free hands"),
        Feature.CANCELLED_STATE: emulated(f"the message is archived, and why is {_HEADERS}"),
        Feature.PRIORITY: absent("PGMQ gives messages in order; use a queue for each urgency"),
        Feature.DELAY: NATIVE,
        Feature.START_BY: absent("PGMQ has no such time; let the handler look at the clock"),
        Feature.IDEMPOTENCY: absent(
            "PGMQ has no unique keys; keep the key in a table of yours, in the same transaction"
        ),
        Feature.DEDUPLICATION: absent(
            "PGMQ has no unique keys; keep the key in a table of yours, in the same transaction"
        ),
        Feature.ORGANISATIONS: emulated(f"{_HEADERS}; to list by it, the queue is read through"),
        Feature.PAUSE: emulated(f"{_COMPANION_SCHEMA}; other consumers than Onward's workers go on"),
        Feature.RATE: emulated(FOREIGN_WORKERS),
        Feature.BURST: emulated(FOREIGN_WORKERS),
        Feature.CONCURRENCY: emulated(FOREIGN_WORKERS),
        Feature.WEIGHT: absent(
            "queues take turns, one like the other; give a worker of its own to one that needs more"
        ),
        Feature.PATTERNS: emulated("over the queues that there are, which take turns"),
        Feature.QUEUES_BY_USE: absent("a queue is two tables, so it is made on request: onward queues, or pgmq.create"),
        Feature.QUEUE_DEFAULTS: emulated(_COMPANION_SCHEMA),
        Feature.RETENTION: emulated("a leader removes from the archive what Onward has put there, and nothing else"),
        Feature.ERROR_HISTORY: emulated(f"{_HEADERS}; the last twenty"),
        Feature.PROGRESS: emulated(_HEADERS),
        Feature.LOG_LINES: absent("headers are no place for a thousand lines; write them to your log, with the id"),
        Feature.RESULTS: emulated(f"{_HEADERS}, in the archive"),
        Feature.SUSPECTS: emulated(f"{_COMPANION_SCHEMA}; not on queues that are read by groups"),
        Feature.EDIT: emulated("by changing the row, which PGMQ has no function for"),
        Feature.REPLAY: emulated("the message comes back from the archive with its id, which PGMQ has no function for"),
        Feature.TRANSACTIONS: NATIVE,
        Feature.PUSH: emulated(
            "Onward's producers tell; others do where PGMQ's insert-notify is on, else workers poll"
        ),
        Feature.SCHEDULES: emulated(_COMPANION_SCHEMA),
        Feature.INTERVALS: emulated(_COMPANION_SCHEMA),
        Feature.MISSED_TURNS: emulated(_COMPANION_SCHEMA),
        Feature.FIRING: NATIVE,
        Feature.THROTTLE: absent("PGMQ has none: use one of our own stores"),
        Feature.ARCHIVE: absent("ended messages are in PGMQ's archive, and are listed as jobs from there"),
        Feature.USAGE: absent("what PGMQ keeps is its own: see pgmq.metrics"),
        Feature.WEBHOOKS: absent("there are no events here to be posted"),
        Feature.BATCHES: absent("PGMQ has none: use one of our own stores"),
        Feature.EVENTS: absent("PGMQ keeps none: await job.result(), or look at app.jobs"),
        Feature.LEADER: emulated(_COMPANION_SCHEMA),
        Feature.LATE_OUTCOMES: NATIVE,
        Feature.CHANGE_TIMES: absent("PGMQ keeps when a message was sent, read and archived, and no other time"),
        Feature.READY_ORDER: emulated(
            "by a statement of our own, where pgmq.read has the oldest id first; read=fifo has that"
        ),
        Feature.PROMOTION: emulated("PGMQ makes messages visible by itself; a leader tells those who wait for them"),
    },
    status_aliases={JobStatus.CLAIMED: JobStatus.RUNNING},
    is_shared=True,
    has_global_ids=False,
    max_put_backs=2,
)

_POOLED: Final = (
    "a pooler is before the database, so nobody can be told of new messages at once, and workers look once a second: "
    "give them another address of it, listen_url=postgresql://… in the URL"
)
_PROBE_INTERVAL: Final = 5.0
"""Seconds between looks for queues that PGMQ has begun to tell of."""
_MAX_QUEUE_NAMES: Final = 20
"""Queues that a notice lists; beyond that it says that there is work somewhere."""
_MAX_TRIES: Final = 5
"""How often a statement is tried that the database gave up in favour of another's. It has changed nothing then."""


class PGMQEngine(AccessVerbs):
    """Jobs as messages in the queues of a PGMQ, shared with all its other clients."""

    def __init__(
        self,
        url: str,
        *,
        settings: PgmqSettings | None = None,
        notify: bool = True,
        listen_url: str | None = None,
        connections: int = MAX_CONNECTIONS,
    ) -> None:
        """Name a store; nothing is connected to yet.

        Args:
            url: where the database is, as libpq reads it.
            settings: how queues are read, and how messages of others are understood.
            notify: whether whoever listens is told of new jobs at once; without, workers find them by polling.
            listen_url: another address of the same database, past a pooler, to be told of new jobs there.
            connections: how many there may be for an event loop, and how many for threads.
        """
        hint = grant_hint("pgmq", NAME)
        self.database = Database(url, grant_hint=hint)
        self.settings = settings or PgmqSettings()
        self._companion = CompanionSchema(NAME)
        self._connections = ConnectionPools(self.database, max_size=connections)
        self._direct = self.database if listen_url is None else Database(listen_url, grant_hint=hint)
        self._listener = Listener(
            self._direct, CHANNEL, probe_interval=_PROBE_INTERVAL, external_channels=_notify_channels
        )
        self._round_robins: dict[tuple[str, ...], claims.RoundRobin] = {}
        self._batches = OpenClaims()
        self._limited: set[str] = set()
        """Queues that had a rate or a concurrency at the last claim from them."""
        self._notifies = notify
        self._coalescers = PerLoop(lambda: Coalescer(self._enqueue, joined_jobs))
        self._audited_coalescers = PerLoop(lambda: Coalescer(self._enqueue_audited, joined_audited))
        self._access = AccessTables(NAME)
        self._schedules = ScheduleTable(NAME)
        self._identity = ("", "")
        self._probe: SchemaProbe | None = None
        self._caller_transactions = caller_transaction.CallerTransactions(
            self._connections, self.database, self._same_store
        )

    @property
    def capabilities(self) -> Capabilities:
        """What PGMQ can do, with us beside it."""
        return CAPABILITIES

    # Session

    async def open(self) -> None:
        """Connect, look at what PGMQ there is, and bring our schema beside it up to date."""
        await asyncio.to_thread(self._open)
        self._connections.open()

    def _open(self) -> None:
        with self.database.connect() as connection, self.database.translated():
            execute = caller_transaction.on_psycopg(connection)
            found = run(schema_probe.probe(self.database), execute)
            found.check(self.settings, self.database)
            self._probe = found
            self._migrations.migrate(connection)
            self._identity = run(identity_of(self._companion.name), execute)
            self.database.detect_settings(connection)
        if self._direct is not self.database:
            with self._direct.connect() as connection, self._direct.translated():
                run(self._same_store(), caller_transaction.on_psycopg(connection))
                self._direct.detect_settings(connection)
        if self._direct.is_pooled:
            log.info("%s: %s", self._direct, _POOLED)

    @property
    def _migrations(self) -> Migrations:
        return Migrations(NAME, self.database, MIGRATIONS)

    @property
    def _columns(self) -> str:
        self._connections.check_open()
        assert self._probe is not None  # noqa: S101 - it was found when the engine was opened
        return self._probe.columns

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
            found = run(schema_probe.probe(self.database), caller_transaction.on_psycopg(connection))
            schema = self._migrations.check(connection)
            ((version, synchronous_commit, fsync, full_page_writes, now),) = connection.execute(
                SQL.server_settings
            ).fetchall()
            blockers = run(claim_problems(SQL.claim_blockers), caller_transaction.on_psycopg(connection))
            self.database.detect_settings(connection)
        durability = Durability(fsync, full_page_writes, synchronous_commit)
        return EngineInfo(
            engine="PGMQ",
            server=f"{found} on PostgreSQL {version}",
            schema=schema,
            now=now,
            durability=str(durability),
            problems=(*durability.problems(), *blockers),
            warnings=(*durability.warnings(), *((_POOLED,) if self._direct.is_pooled else ())),
        )

    def schema_script(self) -> str:
        """Write our schema beside PGMQ's as SQL."""
        return self._migrations.script()

    async def install(self) -> str | None:
        """Install PGMQ as plain SQL, where there is none; answer its version, or None where there is one already."""

        def install() -> str | None:
            with self.database.connect() as connection, self.database.translated():
                return schema_probe.install(connection)

        return await asyncio.to_thread(install)

    def describe(self) -> Mapping[str, Any]:
        """Say which database this is, without secrets."""
        return {"engine": "PGMQ", **self.database.address}

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
            if connection is not None:
                notification = ALL_QUEUES if self._notifies else None
                return await self._caller_transactions.drive(
                    connection, lambda: self._audited_plan(audited_jobs, notification)
                )
            if len(jobs) > MAX_COALESCED or not jobs:
                return await self._enqueue_audited(audited_jobs)
            return await self._audited_coalescers.current().enqueue(audited_jobs)
        if not jobs:
            return []
        if connection is not None:
            return await self._caller_transactions.drive(
                connection, lambda: self._enqueue_plan(jobs, ALL_QUEUES if self._notifies else None)
            )
        if len(jobs) > MAX_COALESCED:
            return await self._enqueue(jobs)
        return await self._coalescers.current().enqueue(jobs)

    def enqueue_sync(self, jobs: Sequence[NewJob], *, connection: object | None = None) -> list[Enqueued]:
        """See the contract."""
        if not jobs:
            return []
        if connection is not None:
            return self._caller_transactions.drive_sync(
                connection, lambda: self._enqueue_plan(jobs, ALL_QUEUES if self._notifies else None)
            )
        with self._notification(jobs) as notification:
            return self._run_plan_sync(lambda: self._enqueue_plan(jobs, notification))

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        with self._notification(jobs) as notification:
            return await self._drive(lambda: self._enqueue_plan(jobs, notification))

    async def _enqueue_audited(self, audited_jobs: AuditedJobs) -> list[Enqueued]:
        with self._notification(audited_jobs.jobs) as notification:
            return await self._drive(lambda: self._audited_plan(audited_jobs, notification), atomic=True)

    def _audited_plan(self, audited_jobs: AuditedJobs, notification: str | None) -> Plan[list[Enqueued]]:
        jobs = audited_jobs.jobs
        plan = self._enqueue_plan(jobs, notification) if jobs else no_jobs()
        return self._access.audited_enqueue(plan, audited_jobs)

    def _enqueue_plan(self, jobs: Sequence[NewJob], notification: str | None) -> Plan[list[Enqueued]]:
        return enqueue.enqueue(jobs, self.settings, CAPABILITIES, notification=notification)

    @contextmanager
    def _notification(self, jobs: Sequence[NewJob]) -> Iterator[str | None]:
        """Give the notification to be sent with the commit."""
        if not self._notifies:
            yield None
            return
        queues = sorted({job.queue for job in jobs})
        yield ",".join(queues) if len(queues) <= _MAX_QUEUE_NAMES else ALL_QUEUES

    # Consumer

    async def claim(self, request: ClaimRequest) -> Claims:
        """See the contract."""
        round_robin = self._round_robins.setdefault(request.queues, claims.RoundRobin())
        columns = self._columns
        return await self._drive(
            lambda: claims.claim(request, self.settings, columns, round_robin, self._batches, self._limited)
        )

    async def start(self, claims: Sequence[Claim]) -> frozenset[Token]:
        """See the contract: nothing is ever claimed without being started."""
        return frozenset(claim.token for claim in claims)

    async def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """See the contract."""
        if not settlements:
            return frozenset()
        if connection is not None:
            return await self._caller_transactions.drive(
                connection, lambda: caller_transaction.read_committed(self._settle_plan(settlements))
            )
        # Not where the caller may roll back: the leader removes the row of that batch when its time has run out.
        self._batches.mark_settled(each.claim for each in settlements)
        return await self._drive(lambda: self._settle_plan(settlements))

    def settle_sync(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """See the contract."""
        if not settlements:
            return frozenset()
        if connection is not None:
            return self._caller_transactions.drive_sync(
                connection, lambda: caller_transaction.read_committed(self._settle_plan(settlements))
            )
        self._batches.mark_settled(each.claim for each in settlements)
        return self._run_plan_sync(lambda: self._settle_plan(settlements))

    def _settle_plan(self, settlements: Sequence[Settlement]) -> Plan[frozenset[Token]]:
        return settle.settle(settlements, self.settings, self._columns)

    async def exchange(self, exchange: Exchange) -> Exchanged:
        """See the contract. Where no outcome makes a message ready, or room for one, both are done at the same time."""
        settlements, request = exchange.settlements, exchange.request
        if (
            request is not None
            and settlements
            and settle.can_exchange_concurrently(settlements, self.settings, self._limited)
        ):
            return await exchange_concurrently(self, settlements, request)
        return await exchange_in_order(self, settlements, request)

    async def heartbeat(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        return await self._drive(lambda: leases.heartbeat(self._companion, worker, claims, self._columns))

    def heartbeat_sync(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        self._connections.check_open()
        with self._connections.for_heartbeat() as connection, self.database.translated():
            return run(
                leases.heartbeat(self._companion, worker, claims, self._columns),
                caller_transaction.on_psycopg(connection),
            )

    async def deregister(self, worker_id: str) -> None:
        """See the contract."""
        await self._drive(lambda: self._companion.deregister(worker_id))

    async def report(
        self,
        claim: Claim,
        *,
        progress: int | None = None,
        message: str | None = None,
        lines: Sequence[str] = (),  # noqa: ARG002 - refused before they come here
    ) -> bool:
        """See the contract."""
        return await self._drive(lambda: leases.report(claim, progress, message, self._columns))

    async def record_crash(self, claim: Claim) -> bool:
        """See the contract."""
        return await self._drive(lambda: leases.record_crash(claim, self._columns))

    def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """See the contract."""
        return self._listener.signals(queues)

    # Reader

    async def get(self, ref: JobRef | str) -> Job | None:
        """See the contract."""
        columns = self._columns
        return await self._drive(lambda: queries.get(ref, self.settings, columns))

    async def find(
        self, which: JobFilter, *, cursor: str | None = None, limit: int = 50, newest_first: bool = True
    ) -> Page[Job]:
        """See the contract."""
        columns = self._columns
        return await self._drive(
            lambda: queries.find(which, cursor, limit, self.settings, columns, newest_first=newest_first)
        )

    async def count(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        columns = self._columns
        return await self._drive(lambda: queries.count(which, by, self.settings, columns))

    async def queues(self, pattern: str = "*") -> list[QueueInfo]:
        """See the contract."""
        columns = self._columns
        return await self._drive(lambda: queries.queues(pattern, self.settings, columns))

    async def workers(self) -> list[WorkerInfo]:
        """See the contract."""
        return await self._drive(self._companion.workers)

    async def logs(self, ref: JobRef) -> list[LogLine]:  # noqa: ARG002 - there are none of any job
        """See the contract."""
        raise Unsupported("PGMQ", Feature.LOG_LINES, CAPABILITIES.features[Feature.LOG_LINES].note)

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
        columns = self._columns
        return await self._drive_audited(lambda: admin.cancel(which, reason, limit, self.settings, columns), audit, len)

    async def replay(
        self,
        which: JobFilter,
        *,
        limit: int = 1000,
        audit: AuditRecord | None = None,
    ) -> list[Changed]:
        """See the contract."""
        columns = self._columns
        return await self._drive_audited(lambda: admin.replay(which, limit, self.settings, columns), audit, len)

    async def delete(
        self,
        which: JobFilter,
        *,
        limit: int = 1000,
        audit: AuditRecord | None = None,
    ) -> list[Changed]:
        """See the contract."""
        columns = self._columns
        return await self._drive_audited(lambda: admin.delete(which, limit, self.settings, columns), audit, len)

    async def edit(self, ref: JobRef, change: JobChange, *, audit: AuditRecord | None = None) -> Job | None:
        """See the contract."""
        columns = self._columns
        return await self._drive_audited(
            lambda: admin.edit(ref, change, self.settings, columns), audit, lambda job: int(job is not None)
        )

    async def configure(self, queue: str, change: QueueChange, *, audit: AuditRecord | None = None) -> QueueInfo:
        """See the contract."""
        columns = self._columns
        return await self._drive_audited(
            lambda: admin.configure(queue, change, self.settings, columns), audit, lambda _: 1
        )

    async def command_worker(self, worker_id: str, command: WorkerCommand, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._drive_audited(lambda: self._companion.command_worker(worker_id, command), audit, int)

    # Maintenance

    async def elect(self, candidate: str, *, lease: timedelta, current_term: Term | None = None) -> Term | None:
        """See the contract."""
        return await self._drive(lambda: self._companion.elect(candidate, lease, current_term))

    async def resign(self, term: Term) -> None:
        """See the contract."""
        await self._drive(lambda: self._companion.resign(term))

    async def promote(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        return await self._drive(lambda: maintenance.promote(term, limit))

    async def rescue(self, term: Term, *, lease: timedelta, max_crashes: int, limit: int = 1000) -> MaintenanceResult:  # noqa: ARG002 - workers count crashes here
        """See the contract."""
        return await self._drive(lambda: maintenance.rescue(term, lease, limit))

    async def prune(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        return await self._drive(lambda: maintenance.prune(term, limit))

    # ScheduleStore

    async def schedules(self) -> list[Schedule]:
        """See the contract."""
        return await self._drive(self._schedules.schedules)

    async def save_schedule(self, schedule: Schedule, *, audit: AuditRecord | None = None) -> Schedule:
        """See the contract."""

        def plan() -> Plan[Schedule]:
            yield from enqueue.check_queue(schedule.job.queue, CAPABILITIES)
            return (yield from self._schedules.save(schedule))

        return await self._drive_audited(plan, audit, lambda _: 1)

    async def delete_schedule(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._drive_audited(lambda: self._schedules.delete(name), audit, int)

    async def due_schedules(self, *, limit: int = 100) -> DueSchedules:
        """See the contract."""
        return await self._drive(lambda: self._schedules.due(limit))

    async def fire(self, schedule: Schedule, firing: Firing) -> list[Enqueued] | None:
        """See the contract. PGMQ has no idempotency keys: the schedule's row is what fires a turn once."""
        with self._notification(firing.jobs) as notification:

            def add(jobs: list[NewJob]) -> Plan[list[Enqueued]]:
                plain = [msgspec.structs.replace(job, idempotency_key=None) for job in jobs]
                return self._enqueue_plan(plain, notification)

            return await self._drive(lambda: self._schedules.fire(schedule, firing, add), atomic=True)

    # Driving plans

    async def _drive(self, plan: Callable[[], Plan[T]], *, atomic: bool = False) -> T:
        """Drive a plan on a connection of ours; ``atomic``: all of its statements, or none."""
        self._connections.check_open()
        with self.database.translated():
            for left in reversed(range(_MAX_TRIES)):
                try:
                    async with self._connections.borrowed() as connection:
                        execute = caller_transaction.on_async_psycopg(connection)
                        if not atomic:
                            return await arun(plan(), execute)
                        async with connection.transaction():
                            return await arun(plan(), execute)
                except RETRYABLE:
                    if not left:
                        raise
        raise AssertionError

    def _run_plan_sync(self, plan: Callable[[], Plan[T]]) -> T:
        """Do the same from plain code."""
        self._connections.check_open()
        with self.database.translated():
            for left in reversed(range(_MAX_TRIES)):
                try:
                    with self._connections.borrowed_sync() as connection:
                        return run(plan(), caller_transaction.on_psycopg(connection))
                except RETRYABLE:
                    if not left:
                        raise
        raise AssertionError

    def _same_store(self) -> Plan[None]:
        return same_store(self._companion.name, self._identity, self.database)


async def _notify_channels(connection: psycopg.AsyncConnection[Any]) -> Mapping[str, str]:
    return dict(await (await connection.execute(SQL.notify_channels)).fetchall())
