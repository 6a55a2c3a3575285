"""The engine: each verb is handed to the writer or the reader, or done on the caller's own connection."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple

from onward.batches.values import BatchInfo, Dependency, NewBatch
from onward.clock import Clock, SystemClock, moment_of
from onward.engine.access import (
    AccessSession,
    AccessToken,
    AuditQuery,
    AuditRecord,
    batch_count,
    enqueued_count,
)
from onward.engine.capabilities import NATIVE, Capabilities, Feature, emulated
from onward.engine.event_reader import EventReader, Events, check_settings
from onward.engine.restore import RESTORED, Home, RestoreGuard, no_claims, settle_only, without_claims
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
from onward.engines.sqlite import (
    access,
    admin,
    archived_jobs,
    batches,
    claims,
    enqueue,
    events,
    leases,
    maintenance,
    migrations,
    queries,
    schedules,
    settle,
    usage,
)
from onward.engines.sqlite.caller_transaction import CallerTransactions
from onward.engines.sqlite.database import SAFE_CHECKPOINT_VERSION, Database, Synchronous
from onward.engines.sqlite.events import EventLog
from onward.engines.sqlite.file_watcher import FileWatcher
from onward.engines.sqlite.transaction import Transaction
from onward.engines.sqlite.usage import record as record_usage
from onward.engines.sqlite.write_process import WriteProcess, can_start
from onward.engines.sqlite.writer import SharedConnection
from onward.errors import InvalidValue
from onward.events import AnyEvent, EventPage
from onward.job import Enqueued, Job, JobRef, NewJob
from onward.metering import Usage, UsageQuery
from onward.schedule import Firing, Schedule

log = logging.getLogger("onward.sqlite")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CAPABILITIES: Final = Capabilities(
    engine="SQLite",
    features={
        **dict.fromkeys(Feature, NATIVE),
        Feature.PUSH: emulated("at once within a process; other processes see a change within a few milliseconds"),
    },
    status_aliases={},
)


def _one(_: object) -> int:
    return 1


def _is_found(job: Job | None) -> int:
    return int(job is not None)


class SQLiteEngine:
    """Jobs in one SQLite file, shared by the processes of one machine.

    ``path`` None is a private temporary file that goes when the engine is closed. ``synchronous="full"`` keeps every
    acknowledged job through a power cut; "normal" may lose the last moments, and never corrupts. ``events="all"`` has
    this file record events whether or not somebody listens, ``"on_demand"`` takes that back; it keeps about
    ``max_events`` of them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        clock: Clock | None = None,
        synchronous: Synchronous = "full",
        busy_timeout: float = 5.0,
        events: Events | None = None,
        max_events: int | None = None,
    ) -> None:
        check_settings(events, max_events)
        if synchronous not in ("full", "normal"):
            raise InvalidValue("synchronous", synchronous, "must be 'full' or 'normal'")
        self.database = Database(path, synchronous=synchronous, busy_timeout=busy_timeout)
        self._clock = clock or SystemClock()
        self._watcher = FileWatcher(self.database)
        self._callers = CallerTransactions(self.database, self._clock)
        self._writer = SharedConnection(
            self.database, self._clock, writes=True, on_wake=self._watcher.notify, on_long_hold=self._on_long_hold
        )
        self._isolates_on_demand = False
        self._reader = SharedConnection(self.database, self._clock, writes=False)
        self._restore_guard = RestoreGuard()
        self._event_settings = (events, max_events)
        self._event_log = EventLog(self._writer, self._reader)
        self._event_reader = EventReader(self._event_log, self._watcher.signals)

    @property
    def capabilities(self) -> Capabilities:
        """What SQLite can do."""
        return CAPABILITIES

    # Session

    async def open(self) -> None:
        """Make the file where there is none, and bring its schema up to date."""
        self.database.check_location()
        self._writer.open()
        self._reader.open()
        # Who finds all in place takes no lock: a caller may be in the middle of a transaction of its own.
        if not self.database.path.exists() or not await self._reader.run(
            lambda transaction: migrations.is_up_to_date(transaction.connection, self.database)
        ):
            await self._writer.run(migrations.migrate, self.database)
        self.database.must_exist = True
        self._restore_guard = RestoreGuard()  # the file may have been restored since it was closed
        if self._event_settings != (None, None):
            await self._writer.run(events.configure, *self._event_settings)

    async def close(self) -> None:
        """Write what was asked, and let go of the file."""
        self._watcher.close()
        self._reader.close()
        self._isolates_on_demand = False
        write_process, self._writer.write_process = self._writer.write_process, None
        if write_process is not None:
            await asyncio.to_thread(write_process.close)
        self._writer.close()
        self.database.must_exist = False
        self.database.remove_if_temporary()

    async def isolate_writes(self, *, on_demand: bool) -> None:
        """See the contract. Without effect where the clock is not the machine's, which another process cannot read."""
        if not can_start() or not isinstance(self._clock, SystemClock) or self._writer.write_process is not None:
            return
        # Made here also where it starts later: a long hold is noticed under the connection's lock. A fork that waits
        # for that lock keeps others from registering for forks, which a write process does when it is made.
        self._writer.write_process = WriteProcess(self.database, self._watcher.notify)
        if on_demand:
            self._isolates_on_demand = True
        else:
            await asyncio.to_thread(self._writer.write_process.start)

    def _on_long_hold(self, seconds: float) -> None:
        """Name the cause of a lock that this process has held for too long; start a write process, if allowed."""
        starts, self._isolates_on_demand = self._isolates_on_demand, False
        log.warning(
            "no other process could write for %.1f s, because this one held the write lock. A handler that holds "
            "Python's global lock in one long call causes that (a regular expression, a sort, a C extension), or a "
            "very slow disk: %s",
            seconds,
            "a separate process writes for this worker from now on"
            if starts
            else 'give its task executor="process", or start the worker with --write-process always',
        )
        if starts and self._writer.write_process is not None:
            self._writer.write_process.start_in_background()

    async def check(self) -> EngineInfo:
        """Say what the engine stands on; without opening it, and so without changing the schema."""
        self.database.check_location()
        self._reader.open()
        schema = await self._reader.run(lambda transaction: migrations.check(transaction.connection, self.database))
        durability = (
            "every acknowledged job survives a power cut (synchronous=full)"
            if self.database.synchronous == "full"
            else "a power cut may lose the last moments; nothing is corrupted (synchronous=normal)"
        )
        warnings = []
        if sqlite3.sqlite_version_info < SAFE_CHECKPOINT_VERSION:
            warnings.append(
                f"SQLite {sqlite3.sqlite_version} can corrupt a database when two connections checkpoint at once "
                f"(fixed in {'.'.join(map(str, SAFE_CHECKPOINT_VERSION))}). Onward's processes take turns. Open "
                "your own connections to this file by onward.sqlite.connect() or onward.sqlite.prepare(), or run on "
                "each: pragma wal_autocheckpoint = 0"
            )
        home = await self._reader.run(lambda transaction: maintenance.home(transaction, self.database))
        problems = () if home.is_same or not home.has_jobs else (RESTORED,)
        return EngineInfo(
            engine="SQLite",
            server=f"SQLite {sqlite3.sqlite_version}",
            schema=schema,
            now=moment_of(self._clock.micros()),
            durability=durability,
            problems=problems,
            warnings=tuple(warnings),
        )

    def schema_script(self) -> str:
        """Write the whole schema as SQL."""
        return migrations.script()

    def describe(self) -> Mapping[str, Any]:
        """Say which file this is."""
        return {"engine": "SQLite", "path": str(self.database.path), "synchronous": self.database.synchronous}

    # Producer

    async def enqueue(
        self, jobs: Sequence[NewJob], *, connection: object | None = None, audit: AuditRecord | None = None
    ) -> list[Enqueued]:
        """See the contract."""
        if audit is not None:
            return await self._enqueue_audited(jobs, connection, audit)
        if not jobs:
            return []
        if connection is not None:
            return await self._callers.run(connection, enqueue.enqueue, jobs)
        return await self._writer.run_coalesced(enqueue.enqueue_all, jobs, enqueue.enqueue_one)

    async def _enqueue_audited(
        self, jobs: Sequence[NewJob], connection: object | None, audit: AuditRecord
    ) -> list[Enqueued]:
        if connection is not None or not jobs:
            work = access.Audited(enqueue.enqueue, audit, enqueued_count)
            if connection is None:
                return await self._writer.run(work, jobs)
            return await self._callers.run(connection, work, jobs)
        item = enqueue.AuditedJobs(jobs, audit)
        return await self._writer.run_coalesced(enqueue.enqueue_all_audited, item, None)

    def enqueue_sync(self, jobs: Sequence[NewJob], *, connection: object | None = None) -> list[Enqueued]:
        """See the contract."""
        if not jobs:
            return []
        if connection is not None:
            return self._callers.run_sync(connection, enqueue.enqueue, jobs)
        return self._writer.run_coalesced_sync(enqueue.enqueue_all, jobs, enqueue.enqueue_one)

    # Consumer

    async def claim(self, request: ClaimRequest) -> Claims:
        """See the contract."""
        if self._restore_guard.may_be_held and await self._is_held():
            return no_claims()
        return await self._writer.run(claims.claim, request)

    async def start(self, claims: Sequence[Claim]) -> frozenset[Token]:
        """See the contract."""
        return await self._writer.run(settle.start, claims)

    async def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """See the contract."""
        if connection is not None:
            return await self._callers.run(connection, settle.settle, settlements)
        return await self._writer.run(settle.settle, settlements)

    def settle_sync(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """See the contract."""
        if connection is not None:
            return self._callers.run_sync(connection, settle.settle, settlements)
        return self._writer.run_sync(settle.settle, settlements)

    async def exchange(self, exchange: Exchange) -> Exchanged:
        """See the contract."""
        if exchange.request is not None and self._restore_guard.may_be_held and await self._is_held():
            return without_claims(await self.exchange(settle_only(exchange)))
        return await self._writer.run(settle.exchange, exchange)

    async def heartbeat(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        return await self._writer.run(leases.heartbeat, worker, claims, urgent=True)

    def heartbeat_sync(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        return self._writer.run_sync(leases.heartbeat, worker, claims, urgent=True)

    async def deregister(self, worker_id: str) -> None:
        """See the contract."""
        await self._writer.run(leases.deregister, worker_id)

    async def report(
        self, claim: Claim, *, progress: int | None = None, message: str | None = None, lines: Sequence[str] = ()
    ) -> bool:
        """See the contract."""
        return await self._writer.run(leases.report, claim, progress, message, lines)

    async def record_crash(self, claim: Claim) -> bool:
        """See the contract."""
        return await self._writer.run(leases.record_crash, claim)

    def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:  # noqa: ARG002 - a file changes as a whole
        """See the contract."""
        return self._watcher.signals()

    # Reader

    async def get(self, ref: JobRef | str) -> Job | None:
        """See the contract."""
        return await self._reader.run_lookup(lambda transaction: queries.get(transaction, ref))

    async def find(
        self, which: JobFilter, *, cursor: str | None = None, limit: int = 50, newest_first: bool = True
    ) -> Page[Job]:
        """See the contract."""
        return await self._reader.run(
            lambda transaction: queries.find(transaction, which, cursor, limit, newest_first=newest_first)
        )

    async def count(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        return await self._reader.run(lambda transaction: queries.count(transaction, which, by))

    async def queues(self, pattern: str = "*") -> list[QueueInfo]:
        """See the contract."""
        return await self._reader.run(lambda transaction: queries.queues(transaction, pattern))

    async def workers(self) -> list[WorkerInfo]:
        """See the contract."""
        return await self._reader.run(queries.workers)

    async def logs(self, ref: JobRef) -> list[LogLine]:
        """See the contract."""
        return await self._reader.run(lambda transaction: queries.logs(transaction, ref))

    async def events(
        self, queues: Sequence[str], *, cursor: str | None = None, types: frozenset[str] | None = None
    ) -> AsyncGenerator[AnyEvent, None]:
        """See the contract."""
        return await self._event_reader.begin(queues, cursor, types)

    # Admin

    async def cancel(
        self, which: JobFilter, *, reason: str = "cancelled", limit: int = 1000, audit: AuditRecord | None = None
    ) -> list[Changed]:
        """See the contract."""
        return await self._change(admin.cancel, which, reason, limit, audit=audit, count=len)

    async def replay(self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None) -> list[Changed]:
        """See the contract."""
        return await self._change(admin.replay, which, limit, audit=audit, count=len)

    async def delete(self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None) -> list[Changed]:
        """See the contract."""
        return await self._change(admin.delete, which, limit, audit=audit, count=len)

    async def edit(self, ref: JobRef, change: JobChange, *, audit: AuditRecord | None = None) -> Job | None:
        """See the contract."""
        return await self._change(admin.edit, ref, change, audit=audit, count=_is_found)

    async def configure(self, queue: str, change: QueueChange, *, audit: AuditRecord | None = None) -> QueueInfo:
        """See the contract."""
        return await self._change(admin.configure, queue, change, audit=audit)

    async def _change(
        self,
        work: Callable[[Transaction, *Ts], T],
        *args: *Ts,
        audit: AuditRecord | None,
        count: Callable[[T], int] = _one,
    ) -> T:
        return await self._writer.run(access.Audited(work, audit, count), *args)

    async def command_worker(self, worker_id: str, command: WorkerCommand, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(leases.command_worker, worker_id, command, audit=audit, count=int)

    async def confirm_restore(self) -> None:
        """See the contract."""
        await self._writer.run(maintenance.confirm_home, self.database.inode())

    async def _is_held(self) -> bool:
        home = await self._reader.run(lambda transaction: maintenance.home(transaction, self.database))
        if home.needs_adoption:  # without a write otherwise: an idle worker takes no lock for it
            await self.confirm_restore()
            home = Home(is_same=True)
        return self._restore_guard.update(home, self.database)

    # Maintenance

    async def elect(self, candidate: str, *, lease: timedelta, current_term: Term | None = None) -> Term | None:
        """See the contract."""
        await self._is_held()
        return await self._writer.run(maintenance.elect, candidate, lease, current_term)

    async def resign(self, term: Term) -> None:
        """See the contract."""
        await self._writer.run(maintenance.resign, term)

    async def promote(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        return await self._writer.run(maintenance.promote, term, limit)

    async def rescue(self, term: Term, *, lease: timedelta, max_crashes: int, limit: int = 1000) -> MaintenanceResult:  # noqa: ARG002 - workers count crashes here
        """See the contract."""
        return await self._writer.run(maintenance.rescue, term, lease, limit)

    async def prune(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        await self._event_log.trim()
        return await self._writer.run(maintenance.prune, term, limit)

    # ScheduleStore

    async def schedules(self) -> list[Schedule]:
        """See the contract."""
        return await self._reader.run(schedules.schedules)

    async def save_schedule(self, schedule: Schedule, *, audit: AuditRecord | None = None) -> Schedule:
        """See the contract."""
        return await self._change(schedules.save, schedule, audit=audit)

    async def delete_schedule(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(schedules.delete, name, audit=audit, count=int)

    async def due_schedules(self, *, limit: int = 100) -> DueSchedules:
        """See the contract."""
        return await self._reader.run(lambda transaction: schedules.due(transaction, limit))

    async def fire(self, schedule: Schedule, firing: Firing) -> list[Enqueued] | None:
        """See the contract."""
        return await self._writer.run(schedules.fire, schedule, firing)

    # BatchStore

    async def save_batch(
        self,
        batch: NewBatch,
        jobs: Sequence[NewJob] = (),
        *,
        connection: object | None = None,
        audit: AuditRecord | None = None,
    ) -> list[Enqueued]:
        """See the contract."""
        work = access.Audited(batches.save, audit, partial(batch_count, has_jobs=bool(jobs)))
        if connection is not None:
            return await self._callers.run(connection, work, batch, jobs)
        return await self._writer.run(work, batch, jobs)

    async def batches(
        self, *, names: Sequence[str] | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[BatchInfo]:
        """See the contract."""
        return await self._reader.run(lambda transaction: batches.batches(transaction, names, cursor, limit))

    async def delete_batch(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(batches.delete, name, audit=audit, count=int)

    async def dependencies(self, name: str) -> list[Dependency]:
        """See the contract."""
        return await self._reader.run(lambda transaction: batches.dependencies(transaction, name))

    async def dependency_jobs(self, ref: JobRef) -> list[Job]:
        """See the contract."""
        return await self._reader.run(lambda transaction: batches.dependency_jobs(transaction, ref))

    # UsageStore

    async def record_usage(self, usage: Sequence[Usage]) -> None:
        """See the contract."""
        await self._writer.run(record_usage, usage)

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """See the contract."""
        return await self._reader.run(lambda transaction: usage.usage(transaction, query))

    # ArchiveStore

    async def archived(self, which: JobFilter, *, cursor: str | None = None, limit: int = 50) -> Page[Job]:
        """See the contract."""
        return await self._reader.run(lambda transaction: archived_jobs.find(transaction, which, cursor, limit))

    async def count_archived(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        return await self._reader.run(lambda transaction: queries.count(transaction, which, by, "onward_archive"))

    async def purge_archived(
        self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None
    ) -> list[Changed]:
        """See the contract."""
        return await self._change(archived_jobs.purge, which, limit, audit=audit, count=len)

    # EventCursors

    async def acquire_cursor(self, name: str, holder: str, *, lease: timedelta, anew: bool = False) -> str | None:
        """See the contract."""
        return await self._writer.run(partial(events.acquire_cursor, reset=anew), name, holder, lease)

    async def read_events(
        self, queues: Sequence[str], *, cursor: str, types: frozenset[str] | None = None, limit: int = 500
    ) -> EventPage:
        """See the contract."""
        return await self._event_reader.read(queues, cursor, types, limit)

    async def commit_cursor(self, name: str, holder: str, cursor: str) -> bool:
        """See the contract."""
        return await self._writer.run(events.commit_cursor, name, holder, cursor)

    # AccessStore

    async def save_token(self, token: AccessToken, *, audit: AuditRecord | None = None) -> None:
        """See the contract."""
        await self._change(access.save_token, token, audit=audit)

    async def tokens(self) -> list[AccessToken]:
        """See the contract."""
        return await self._reader.run(access.tokens)

    async def find_token(self, token_id: str) -> AccessToken | None:
        """See the contract."""
        found = await self._reader.run_lookup(lambda transaction: access.tokens(transaction, token_id))
        return found[0] if found else None

    async def revoke_token(self, token_id: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(access.revoke_token, token_id, audit=audit, count=int)

    async def touch_token(self, token_id: str) -> None:
        """See the contract."""
        if await self._reader.run(lambda transaction: access.token_needs_touch(transaction, token_id)):
            await self._writer.run(access.touch_token, token_id)

    async def save_session(self, session: AccessSession, *, audit: AuditRecord | None = None) -> None:
        """See the contract."""
        await self._change(access.save_session, session, audit=audit)

    async def find_session(self, digest: str) -> tuple[AccessSession, AccessToken] | None:
        """See the contract."""
        return await self._reader.run_lookup(lambda transaction: access.find_session(transaction, digest))

    async def touch_session(self, digest: str) -> None:
        """See the contract."""
        if await self._reader.run(lambda transaction: access.session_needs_touch(transaction, digest)):
            await self._writer.run(access.touch_session, digest)

    async def delete_session(self, digest: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(access.delete_session, digest, audit=audit, count=int)

    async def record_audit(
        self,
        record: AuditRecord,
        *,
        operation: JobRef | None = None,  # noqa: ARG002 - there are no roles
    ) -> bool:
        """See the contract."""
        return bool(await self._writer.run(access.record, [record]))

    async def audit(self, query: AuditQuery, *, cursor: str | None = None, limit: int = 50) -> Page[AuditRecord]:
        """See the contract."""
        return await self._reader.run(lambda transaction: access.audit(transaction, query, cursor, limit))

    async def prune_access(self, *, keep_audit: timedelta, keep_sessions: timedelta) -> int:
        """See the contract."""
        return await self._writer.run(access.prune, keep_audit, keep_sessions)
