"""The engine: each verb a plan, driven on a connection of ours, or on the caller's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import psycopg
from psycopg import errors as pg

from onward.batches.values import BatchInfo, Link, NewBatch
from onward.clock import Clock, moment_of
from onward.engine.capabilities import NATIVE, Capabilities, Feature
from onward.engine.event_reader import EventReader, Events, check_settings
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
    WorkerInfo,
)
from onward.engines.postgres import (
    admin,
    archive,
    batches,
    claims,
    diagnostics,
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
from onward.engines.postgres.batch_progress import HELD, Advancer
from onward.engines.postgres.claim_prefetch import Sent, Standing
from onward.engines.postgres.enqueue import Kind, Lone
from onward.engines.postgres.events import EventLog
from onward.engines.postgres.fast_enqueue import Permit
from onward.engines.postgres.notify_throttle import Bell, Telling
from onward.engines.postgres.queue_cache import Seen
from onward.engines.postgres.schema import DEFAULT, Schema
from onward.engines.postgres.usage import record as record_usage
from onward.errors import StoreBusy
from onward.events import AnyEvent, EventPage
from onward.job import Enqueued, Job, JobRef, NewJob, UniformJobs
from onward.metering import Usage, UsageQuery
from onward.pg import caller_transaction
from onward.pg.coalescing import MAX_COALESCED, Coalescer
from onward.pg.database import QUERY_TIMEOUT, RETRYABLE, Database
from onward.pg.exchange import release_claims
from onward.pg.identity import identity_of, same_store
from onward.pg.listener import ALL_QUEUES, DUE, Listener
from onward.pg.per_loop import PerLoop
from onward.pg.plans import Plan, arun, run
from onward.pg.pools import MAX_CONNECTIONS, ConnectionPools
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
    "give them another address of it, direct=postgresql://… in the URL"
)
_STEPS: Final = 20
"""How many parts of what was left undone by others a promotion does at most."""
_TRIES: Final = 5
"""How often a statement is tried that the database gave up in favour of another's. It has changed nothing then."""
_PAUSES: Final = (0.1, 0.2, 0.4, 0.8)
"""Seconds in which claims go on before a queue is told something again, which had to wait for a job."""


class PostgresEngine:
    """Jobs in one schema of a PostgreSQL database, shared by all who can reach it."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT,
        notify: bool = True,
        direct: str | None = None,
        connections: int = MAX_CONNECTIONS,
        answer_within: float = QUERY_TIMEOUT,
        clock: Clock | None = None,
        events: Events | None = None,
        keep_events: int | None = None,
    ) -> None:
        """Name a store; nothing is connected to yet.

        Args:
            url: where the database is, as libpq reads it.
            schema: where in it the jobs are.
            notify: whether whoever listens is told of new jobs at once; without, workers find them by polling.
            direct: another address of the same database, past a pooler, to be told of new jobs there.
            connections: how many there may be for an event loop, and how many for threads.
            answer_within: seconds after which a connection is given up on which no answer comes.
            clock: for tests; the database's own unless given.
            events: "all" has the store record events whether or not somebody listens, "listened" takes that back.
            keep_events: about how many events the store keeps.
        """
        check_settings(events, keep_events)
        grant_hint = f"then: select {schema}.allow_worker('{{user}}')"
        self.database = Database(url, query_timeout=answer_within, grant_hint=grant_hint)
        self.schema = Schema(schema, clock=clock)
        self._connections = ConnectionPools(self.database, most=connections)
        self._direct = (
            self.database if direct is None else Database(direct, query_timeout=answer_within, grant_hint=grant_hint)
        )
        self._listener = Listener(self._direct, self.schema.channel, on_notice=self._hear)
        self._rounds: dict[tuple[str, tuple[str, ...]], claims.Round] = {}
        """By who works, and for which queues. Those who claim now and then, a tick each time another, share one."""
        self._standing = PerLoop(
            lambda: Standing(self.schema, ask=self._listener.ask, give_back=partial(release_claims, self))
        )
        self._notifies = notify
        self._seen = Seen()
        self._bell = Bell(self._tell, self._seen)
        self._gatherings = PerLoop(lambda: Coalescer(self._put, write_alone=partial(self._put, alone=True)))
        self._kind = enqueue.Kind(None, frozenset())
        """Of the last task's jobs."""
        self._held_up: frozenset[Token] = frozenset()
        """Claims whose jobs somebody's transaction held when their outcomes were to be recorded."""
        self._permit: Permit | None = None
        """Of one who adds jobs one by one, and nobody else does."""
        self._rescuing = maintenance.Rescuing()
        self._tending = maintenance.Tending()
        self._next_due = maintenance.NextDue()
        self._sweeping = maintenance.Sweeping()
        self._identity = ("", "")
        self._copies = False
        self._told = (events, keep_events)
        self._record = EventLog(self.schema, self._ask)
        self._event_listener = Listener(self._direct, f"{self.schema.channel}.events")
        self._teller = EventReader(self._record, lambda: self._event_listener.signals((ALL_QUEUES,)))
        self._advancer = Advancer(self._advance)
        self._guests = caller_transaction.CallerTransactions(self._connections, self.database, self._same_store)

    @property
    def capabilities(self) -> Capabilities:
        """What PostgreSQL can do."""
        return CAPABILITIES

    # Session

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        await asyncio.to_thread(self._open)
        self._connections.open()
        if self._told != (None, None):
            await self._record.open(*self._told)

    def _open(self) -> None:
        with self.database.connect() as connection, self.database.translated():
            migrations.migrate(connection, self.schema, self.database)
            self._identity = run(identity_of(self.schema.name), caller_transaction.on_psycopg(connection))
            ((self._copies,),) = connection.execute(self.schema.may_copy).fetchall()
            self.database.detect_settings(connection)
        if self._direct is not self.database:
            with self._direct.connect() as connection, self._direct.translated():
                run(self._same_store(), caller_transaction.on_psycopg(connection))
                self._direct.detect_settings(connection)
        if self._direct.is_pooled:
            log.info("%s: %s", self._direct, _POOLED)

    async def close(self) -> None:
        """Let go of all connections."""
        await self._standing.here().close()
        await self._advancer.close()
        await asyncio.to_thread(self._bell.close)
        await self._listener.close()
        await self._event_listener.close()
        await self._connections.close()

    async def check(self) -> EngineInfo:
        """Say what the engine stands on; without opening it, and so without changing the schema."""
        return await asyncio.to_thread(self._check)

    def _check(self) -> EngineInfo:
        with self.database.connect() as connection, self.database.translated():
            schema = migrations.check(connection, self.schema, self.database)
            facts, problems, warnings = run(diagnostics.examine(self.schema), caller_transaction.on_psycopg(connection))
            self.database.detect_settings(connection)
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

    def enqueue(self, jobs: Sequence[NewJob], *, within: object | None = None) -> Coroutine[Any, Any, list[Enqueued]]:
        """See the contract."""
        if within is not None and jobs:
            return self._guests.drive(
                within,
                lambda: enqueue.enqueue(self.schema, jobs, notice=self._notice_within),
                in_parts=enqueue.takes_several(jobs),
            )
        if (permit := self._permit) is not None and isinstance(jobs, UniformJobs):
            if permit.covers(jobs):
                return permit.add(jobs)
            if permit.wants_turn(jobs):
                return self._have_a_turn(permit, jobs)
        return self._enqueue(jobs)

    def _enqueue(self, jobs: Sequence[NewJob]) -> Coroutine[Any, Any, list[Enqueued]]:
        self._permit = None
        if len(jobs) > MAX_COALESCED or enqueue.has_keys(jobs):
            return self._put(jobs)
        return self._gatherings.here().enqueue(jobs)

    async def _have_a_turn(self, permit: Permit, jobs: UniformJobs) -> list[Enqueued]:
        await asyncio.sleep(0)
        return await (permit.add(jobs) if permit is self._permit and permit.covers(jobs) else self._enqueue(jobs))

    def enqueue_sync(self, jobs: Sequence[NewJob], *, within: object | None = None) -> list[Enqueued]:
        """See the contract."""
        if not jobs:
            return []
        if within is not None:
            return self._guests.drive_sync(
                within,
                lambda: enqueue.enqueue(self.schema, jobs, notice=self._notice_within),
                in_parts=enqueue.takes_several(jobs),
            )
        kind = self._kind_of(jobs)
        notice = self._bell.notice_for(kind.tidings)
        try:
            lone = enqueue.lone(kind, jobs, notice, self._seen)
            if lone is not None and self._add_sync(lone):
                added = [lone.added]
            else:
                added = self._ask_sync(
                    lambda: enqueue.enqueue(self.schema, jobs, notice=notice, copies=self._copies, seen=self._seen),
                    atomic=enqueue.takes_several(jobs),
                )
        except BaseException:
            self._bell.failed(notice)
            raise
        self._bell.committed(notice, kind.tidings)
        return added

    async def _put(self, jobs: Sequence[NewJob], *, alone: bool = False) -> list[Enqueued]:
        """Add jobs; ``alone``: nobody else does, so that whoever calls may go on without being looked at each time."""
        if not jobs:
            return []
        kind = self._kind_of(jobs)
        notice = self._bell.notice_for(kind.tidings)
        try:
            lone = enqueue.lone(kind, jobs, notice, self._seen)
            if lone is not None and await self._add(lone):
                added = [lone.added]
            else:
                added = await self._put_any(jobs, notice)
        except BaseException:
            self._bell.failed(notice)
            raise
        self._bell.committed(notice, kind.tidings)
        if alone and kind.shortcut is not None and self._seen.is_plain(kind.lane):
            self._permit = Permit(
                kind,
                kind.shortcut,
                seen=self._seen,
                bell=self._bell,
                connections=self._connections.here(),
                translated=self.database.translated(),
                add_anyhow=self._enqueue,
            )
        return added

    def _put_any(self, jobs: Sequence[NewJob], notice: str | None) -> Coroutine[Any, Any, list[Enqueued]]:
        return self._ask(
            lambda: enqueue.enqueue(self.schema, jobs, notice=notice, copies=self._copies, seen=self._seen),
            atomic=enqueue.takes_several(jobs),
        )

    def _kind_of(self, jobs: Sequence[NewJob]) -> Kind:
        """Read what jobs have in common; of one task after the other, each once."""
        if not isinstance(jobs, UniformJobs):
            return enqueue.kind_of(self.schema, jobs, is_told=self._notifies)
        kind = self._kind
        if kind.template is not jobs.template:
            kind = self._kind = enqueue.kind_of(self.schema, jobs, is_told=self._notifies)
        return kind

    def _telling(self, jobs: Sequence[NewJob]) -> Telling:
        return Telling(self._bell, self._kind_of(jobs).tidings)

    @property
    def _notice_within(self) -> str | None:
        # Always the same words: a transaction tells the same thing only once, however many jobs it adds (X4).
        return f"{ALL_QUEUES},{DUE}" if self._notifies else None

    # Work

    async def claim(self, request: ClaimRequest) -> Claims:
        """See the contract."""
        round_ = self._round(request.queues)
        taken = await self._ask(lambda: claims.claim(self.schema, request, round_))
        if taken.claims:
            self._stir()
        return taken

    async def start(self, claims: Sequence[Claim]) -> frozenset[Token]:
        """See the contract."""
        return await self._ask(lambda: settle.start(self.schema, claims))

    async def settle(self, settlements: Sequence[Settlement], *, within: object | None = None) -> frozenset[Token]:
        """See the contract."""
        if within is not None:
            plan = partial(settle.settle_and_tell, self.schema, settlements)
            return await self._guests.drive(within, plan, in_parts=False)
        return self._without_news(await self._ask(lambda: settle.settle(self.schema, settlements)))

    def settle_sync(self, settlements: Sequence[Settlement], *, within: object | None = None) -> frozenset[Token]:
        """See the contract."""
        if within is not None:
            plan = partial(settle.settle_and_tell, self.schema, settlements)
            return self._guests.drive_sync(within, plan, in_parts=False)
        return self._ask_sync(lambda: settle.settle_and_tell(self.schema, settlements))

    async def exchange(self, exchange: Exchange) -> Exchanged:
        """See the contract."""
        if (request := exchange.request) is None:
            return await self._exchange(exchange)
        standing = self._standing.here()
        if (sent := standing.take(request)) is None:
            exchanged = await self._exchange(exchange)
        else:
            try:
                exchanged = await self._exchange_with(sent, exchange)
            except BaseException:
                standing.let_go(sent)
                raise
        standing.stand(request, exchanged.claimed, self._round(request.queues, request.worker_id))
        return exchanged

    async def _exchange_with(self, sent: Sent, exchange: Exchange) -> Exchanged:
        """Settle and start, and take what a claim brings that is on its way."""
        if not exchange.settlements and not exchange.starts:
            claimed = await sent.claims()
            return await self._exchange(exchange) if claimed is None else Exchanged(claimed=claimed)
        done = await self._exchange(msgspec.structs.replace(exchange, request=None))
        # What has ended is recorded, and must not be said again: if nothing is brought, it is asked for the next time.
        brought = await sent.claims() or Claims(retry_after=0.0)
        return Exchanged(lost=done.lost, busy=done.busy, claimed=brought)

    async def _exchange(self, exchange: Exchange) -> Exchanged:
        request = exchange.request
        if self._held_up and any(settlement.claim.token in self._held_up for settlement in exchange.settlements):
            return await self._settle_free(exchange)
        round_ = claims.Round() if request is None else self._round(request.queues, request.worker_id)
        try:
            exchanged = await self._ask(lambda: settle.exchange(self.schema, exchange, round_))
        except StoreBusy as error:
            if not _is_held_up(error):
                raise
            return await self._settle_free(exchange)
        if exchanged.claimed.claims:
            self._stir()
        if exchanged.lost:
            exchanged = msgspec.structs.replace(exchanged, lost=self._without_news(exchanged.lost))
        return exchanged

    async def _settle_free(self, exchange: Exchange) -> Exchanged:
        """Record what nobody's transaction holds up. Nothing is started or claimed: that is for the next exchange."""
        lost = left = frozenset[Token]()
        if exchange.settlements:
            plan = partial(settle.settle_free, self.schema, exchange.settlements)
            lost, left = await self._ask(plan, atomic=True)
            self._held_up = left
        busy = left.union(claim.token for claim in exchange.starts)
        return Exchanged(lost=self._without_news(lost), busy=busy, claimed=Claims(retry_after=0.0))

    def _without_news(self, lost: frozenset[Token]) -> frozenset[Token]:
        """Take news of batches out of what was answered, and have them acted on."""
        news = lost & {settle.NEWS, settle.AWAITED}
        if news:
            self._act_soon(at_once=settle.AWAITED in news)
        return lost - news

    async def heartbeat(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        return await self._ask(lambda: leases.heartbeat(self.schema, worker, claims))

    def heartbeat_sync(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        self._connections.check_open()
        with self._connections.for_heartbeat() as connection, self.database.translated():
            return run(leases.heartbeat(self.schema, worker, claims), caller_transaction.on_psycopg(connection))

    async def deregister(self, worker_id: str) -> None:
        """See the contract."""
        await self._standing.here().deregister(worker_id)
        for key in [key for key in list(self._rounds) if key[0] == worker_id]:
            self._rounds.pop(key, None)
        await self._ask(lambda: leases.deregister(self.schema, worker_id))

    async def report(
        self, claim: Claim, *, progress: int | None = None, message: str | None = None, lines: Sequence[str] = ()
    ) -> bool:
        """See the contract."""
        return await self._ask(lambda: leases.report(self.schema, claim, progress, message, lines))

    def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """See the contract."""
        return self._listener.signals(queues)

    def _round(self, queues: tuple[str, ...], worker_id: str = "") -> claims.Round:
        key = worker_id, queues
        if (round_ := self._rounds.get(key)) is None:
            round_ = self._rounds[key] = claims.Round()
        round_.is_told = self._listener.is_listening
        return round_

    @property
    def _hears(self) -> bool:
        """Whether what is heard, and a clock of one's own, say when there is something to do."""
        return self.schema.now is None and self._listener.is_listening

    def _stir(self) -> None:
        """Note that jobs come and go: a leader has more to do then."""
        self._sweeping.stir()
        self._rescuing.stir()

    def _hear(self, notice: str) -> None:
        """Take in what is told to all."""
        names = notice.split(",")
        for (_, queues), round_ in list(self._rounds.items()):
            round_.hear(queues, names)
        self._standing.here().hear()  # and while the store is at it, the rest
        self._stir()
        if DUE in names:
            self._next_due.forget()

    # Read

    async def get(self, ref: JobRef | str) -> Job | None:
        """See the contract."""
        return await self._ask(lambda: queries.get(self.schema, ref))

    async def find(
        self, which: JobFilter, *, after: str | None = None, limit: int = 50, newest_first: bool = True
    ) -> Page[Job]:
        """See the contract."""
        return await self._ask(
            lambda: queries.find(self.schema, which, after, limit, newest_first=newest_first), no_timeout=True
        )

    async def count(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        return await self._ask(lambda: queries.count(self.schema, which, by), no_timeout=True)

    async def queues(self, pattern: str = "*") -> list[QueueInfo]:
        """See the contract."""
        return await self._ask(lambda: queries.queues(self.schema, pattern), no_timeout=True)

    async def workers(self) -> list[WorkerInfo]:
        """See the contract."""
        return await self._ask(lambda: queries.workers(self.schema))

    async def log_lines(self, ref: JobRef) -> list[LogLine]:
        """See the contract."""
        return await self._ask(lambda: queries.log_lines(self.schema, ref))

    async def events(
        self, queues: Sequence[str], *, after: str | None = None, types: frozenset[str] | None = None
    ) -> AsyncGenerator[AnyEvent, None]:
        """See the contract."""
        return await self._teller.begin(queues, after, types)

    # Operate

    async def cancel(self, which: JobFilter, *, reason: str = "cancelled", limit: int = 1000) -> list[Changed]:
        """See the contract."""
        changed = await self._ask(lambda: admin.cancel(self.schema, which, reason, limit), no_timeout=True)
        if changed:
            self._act_soon(at_once=True)
        return changed

    async def replay(self, which: JobFilter, *, limit: int = 1000) -> list[Changed]:
        """See the contract."""
        changed = await self._ask(lambda: admin.replay(self.schema, which, limit), no_timeout=True)
        if changed:
            self._act_soon(at_once=True)
        return changed

    async def delete(self, which: JobFilter, *, limit: int = 1000) -> list[Changed]:
        """See the contract."""
        changed = await self._ask(lambda: admin.delete(self.schema, which, limit), no_timeout=True)
        if changed:
            self._act_soon(at_once=True)
        return changed

    async def edit(self, ref: JobRef, change: JobChange) -> Job | None:
        """See the contract."""
        return await self._ask(lambda: admin.edit(self.schema, ref, change))

    async def configure(self, queue: str, change: QueueChange) -> QueueInfo:
        """See the contract. Meanwhile nobody claims; so it waits for no job for long, and comes again instead."""
        info = await self._ask_again(lambda: admin.configure(self.schema, queue, change))
        self._seen.forget()
        self._permit = None
        return info

    # Steward

    async def elect(self, candidate: str, *, lease: timedelta, holding: Term | None = None) -> Term | None:
        """See the contract."""
        return await self._ask(lambda: maintenance.elect(self.schema, candidate, lease, holding))

    async def resign(self, term: Term) -> None:
        """See the contract."""
        await self._ask(lambda: maintenance.resign(self.schema, term))

    async def promote(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        hears = self._hears
        if self._sweeping.is_due(hears=hears):
            await self._ask(lambda: self._sweeping.sweep(self.schema, term))
        if hears and (next_in := self._next_due.wait()) is not None:
            return MaintenanceResult(next_in=next_in)
        more: bool | None
        batch, more = await self._ask(lambda: maintenance.promote(self.schema, term, limit, self._next_due))
        for _ in range(_STEPS):
            if not more:
                if more is None:  # nobody is told when the transactions end that hold the rest
                    self._next_due.learn(HELD)
                return batch
            try:
                more, ready = await self._ask(lambda: batches.advance(self.schema, term), atomic=True)
            except BaseException:
                self._next_due.forget()
                raise
            batch = msgspec.structs.replace(batch, changed=batch.changed + ready)
        self._next_due.forget()
        return msgspec.structs.replace(batch, more=True)

    async def rescue(
        self, term: Term, *, worker_timeout: timedelta, max_crashes: int, limit: int = 1000
    ) -> MaintenanceResult:
        """See the contract."""
        if self._hears and self._rescuing.may_wait():
            return MaintenanceResult()
        known = self._rescuing, self._tending, self._sweeping
        return await self._ask(
            lambda: maintenance.rescue(self.schema, term, worker_timeout, max_crashes, limit, *known)
        )

    async def prune(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        await self._record.tend()
        return await self._ask(lambda: maintenance.prune(self.schema, term, limit, self._tending), no_timeout=True)

    # Calendar

    async def schedules(self) -> list[Schedule]:
        """See the contract."""
        return await self._ask(lambda: schedules.schedules(self.schema))

    async def save_schedule(self, schedule: Schedule) -> Schedule:
        """See the contract."""
        return await self._ask(lambda: schedules.put(self.schema, schedule))

    async def delete_schedule(self, name: str) -> bool:
        """See the contract."""
        return await self._ask(lambda: schedules.drop(self.schema, name))

    async def due_schedules(self, *, limit: int = 100) -> DueSchedules:
        """See the contract."""
        return await self._ask(lambda: schedules.due(self.schema, limit))

    async def fire(self, schedule: Schedule, firing: Firing) -> list[Enqueued] | None:
        """See the contract."""
        with self._telling(firing.jobs) as notice:
            return await self._ask(lambda: schedules.fire(self.schema, schedule, firing, notice=notice), atomic=True)

    # Gather

    async def save_batch(
        self, batch: NewBatch, jobs: Sequence[NewJob] = (), *, within: object | None = None
    ) -> list[Enqueued]:
        """See the contract."""
        if within is not None:
            return await self._guests.drive(
                within,
                lambda: batches.put(self.schema, batch, jobs, notice=self._notice_within, copies=False),
            )
        with self._telling(jobs) as notice:
            added = await self._ask(
                lambda: batches.put(self.schema, batch, jobs, notice=notice, copies=self._copies), atomic=True
            )
        self._act_soon(at_once=True)
        return added

    async def batches(
        self, *, names: Sequence[str] | None = None, after: str | None = None, limit: int = 50
    ) -> Page[BatchInfo]:
        """See the contract."""
        return await self._ask(lambda: batches.batches(self.schema, names, after, limit))

    async def delete_batch(self, name: str) -> bool:
        """See the contract."""
        return await self._ask(lambda: batches.drop(self.schema, name))

    async def links(self, name: str) -> list[Link]:
        """See the contract."""
        return await self._ask(lambda: batches.links(self.schema, name), no_timeout=True)

    async def parents(self, ref: JobRef) -> list[Job]:
        """See the contract."""
        return await self._ask(lambda: batches.parents(self.schema, ref))

    # Ledger

    async def record_usage(self, usage: Sequence[Usage]) -> None:
        """See the contract."""
        await self._ask(lambda: record_usage(self.schema, usage))

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """See the contract."""
        return await self._ask(lambda: usage.usage(self.schema, query), no_timeout=True)

    def _act_soon(self, *, at_once: bool) -> None:
        if self.schema.now is None:  # in a test whose clock stands still, nothing happens by itself
            self._advancer.soon(at_once=at_once)

    async def _advance(self) -> bool | None:
        more, _ = await self._ask(lambda: batches.advance(self.schema), atomic=True)
        return more

    # Archive

    async def archived(self, which: JobFilter, *, after: str | None = None, limit: int = 50) -> Page[Job]:
        """See the contract."""
        return await self._ask(lambda: archive.find(self.schema, which, after, limit), no_timeout=True)

    async def count_archived(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        return await self._ask(lambda: archive.count(self.schema, which, by), no_timeout=True)

    async def purge_archived(self, which: JobFilter, *, limit: int = 1000) -> list[Changed]:
        """See the contract."""
        return await self._ask(lambda: archive.purge(self.schema, which, limit), no_timeout=True)

    # Bookmarks

    async def acquire_cursor(self, name: str, holder: str, *, lease: timedelta, anew: bool = False) -> str | None:
        """See the contract."""
        now = str(await self._record.begin(None))
        return await self._ask(lambda: events.hold(self.schema, name, holder, now, lease, anew=anew))

    async def read_events(
        self, queues: Sequence[str], *, after: str, types: frozenset[str] | None = None, limit: int = 500
    ) -> EventPage:
        """See the contract."""
        return await self._teller.read(queues, after, types, limit)

    async def commit_cursor(self, name: str, holder: str, cursor: str) -> bool:
        """See the contract."""
        return await self._ask(lambda: events.move(self.schema, name, holder, cursor))

    def _tell(self, notice: str) -> None:
        self._ask_sync(lambda: leases.tell(self.schema, notice))

    # Driving plans

    async def _ask(self, plan: Callable[[], Plan[T]], *, atomic: bool = False, no_timeout: bool = False) -> T:
        """Drive a plan on a connection of ours.

        ``atomic``: all of its statements, or none. ``at_leisure``: it looks at as much as there is, and may take long.
        """
        self._connections.check_open()
        with self.database.translated():
            for left in reversed(range(_TRIES)):
                try:
                    async with self._connections.borrowed(no_timeout=no_timeout) as connection:
                        execute = caller_transaction.on_async_psycopg(connection)
                        if not atomic:
                            return await arun(plan(), execute)
                        async with connection.transaction():
                            return await arun(plan(), execute)
                except (*RETRYABLE, pg.CheckViolation) as error:
                    if not left or not _is_to_be_tried_again(error):
                        raise
        raise AssertionError

    async def _ask_again(self, plan: Callable[[], Plan[T]]) -> T:
        """Drive a plan that somebody's transaction may hold up, some times, with pauses in between."""
        for pause in _PAUSES:
            try:
                return await self._ask(plan)
            except StoreBusy as error:
                if not _is_held_up(error):
                    raise
            await asyncio.sleep(pause)
        return await self._ask(plan)

    async def _add(self, job: Lone) -> int:
        """Add a job by a single statement on a connection of ours; 0: it had to give way."""
        self._connections.check_open()
        with self.database.translated():
            try:
                async with self._connections.borrowed() as connection:
                    return await connection.do(job.text, job.values)
            except RETRYABLE:
                return 0

    def _add_sync(self, job: Lone) -> int:
        """Do the same from plain code."""
        self._connections.check_open()
        with self.database.translated():
            try:
                with self._connections.borrowed_sync() as connection:
                    return connection.do(job.text, job.values)
            except RETRYABLE:
                return 0

    def _ask_sync(self, plan: Callable[[], Plan[T]], *, atomic: bool = False) -> T:
        """Do the same from plain code."""
        self._connections.check_open()
        with self.database.translated():
            for left in reversed(range(_TRIES)):
                try:
                    with self._connections.borrowed_sync() as connection:
                        execute = caller_transaction.on_psycopg(connection)
                        if not atomic:
                            return run(plan(), execute)
                        with connection.transaction():
                            return run(plan(), execute)
                except (*RETRYABLE, pg.CheckViolation) as error:
                    if not left or not _is_to_be_tried_again(error):
                        raise
        raise AssertionError

    def _same_store(self) -> Plan[None]:
        return same_store(self.schema.name, self._identity, self.database)


def _is_held_up(error: StoreBusy) -> bool:
    """Say whether it was somebody's transaction that was waited for, and not for long."""
    return isinstance(error.__cause__, pg.LockNotAvailable)


def _is_to_be_tried_again(error: psycopg.Error) -> bool:
    """Say whether a statement changed nothing only because something else happened at the same moment."""
    # A job ended while its day of the history was being made: the next time it is there.
    return isinstance(error, RETRYABLE) or (error.diag.table_name or "").startswith("history_day")
