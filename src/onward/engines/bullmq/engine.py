"""The engine: each verb a plan, driven on a client of the event loop, of threads, or of heartbeats."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Final, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from onward.clock import Clock, moment_of
from onward.engine.access import AccessSession, AccessToken, AuditQuery, AuditRecord, enqueued_count
from onward.engine.capabilities import Capabilities, Feature
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
    SignalKind,
    Term,
    Token,
    WorkerCommand,
    WorkerInfo,
)
from onward.engines.bullmq import (
    access,
    admin,
    claims,
    diagnostics,
    enqueue,
    leases,
    maintenance,
    queries,
    schedule_store,
    schedules,
    settle,
)
from onward.engines.bullmq.capabilities import CAPABILITIES
from onward.engines.bullmq.client_factory import Server
from onward.engines.bullmq.connections import Connections
from onward.engines.bullmq.event_stream import EventStream
from onward.engines.bullmq.keys import DEFAULT_PREFIX, Keys
from onward.engines.bullmq.plan_runner import LOAD_SCRIPTS, AsyncClient, Command, Plan, arun, run
from onward.engines.bullmq.presence import Presence
from onward.engines.bullmq.queue_registry import QueueRegistry
from onward.engines.bullmq.work_signals import Listener
from onward.errors import InvalidValue, StoreMisconfigured, StoreUnavailable, Unsupported
from onward.events import AnyEvent
from onward.job import Enqueued, Job, JobRef, NewJob
from onward.lifecycle import Release, Snooze
from onward.schedule import Firing, Schedule

T = TypeVar("T")

_PROMOTE_INTERVAL: Final = 5.0
"""Seconds for which nothing is promoted that nobody has told of: as long as BullMQ's own workers trust markers."""
_MAX_JOBS_TO_COALESCE: Final = 20
"""Jobs that a call may have to go out with others'."""

log = logging.getLogger("onward.engines.bullmq")


class BullMQEngine:
    """Jobs in the queues of a BullMQ, under one prefix of a Redis or Valkey, shared with all who can reach it."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        prioritized: Iterable[str] = (),
        metrics: int = 0,
        allow_eviction: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Name a store; nothing is connected to yet.

        Args:
            url: where the server is: see :class:`~onward.engines.bullmq.client_factory.Server`.
            prefix: what the keys of all queues begin with, in Node too; a cluster needs one in braces, ``{bull}``, to
                keep all keys on one node.
            prioritized: queues, by names and patterns, in which jobs have priorities (B9).
            metrics: how many minutes of BullMQ's metrics to keep; none unless told.
            allow_eviction: let workers start although the server may evict any key, jobs too.
            clock: for tests; the server's own unless given.
        """
        self.server = Server(url)
        self._allow_eviction = allow_eviction
        if not prefix:
            raise InvalidValue("prefix", prefix, "must be a non-empty string")
        if self.server.is_cluster and not ("{" in prefix and "}" in prefix):
            raise InvalidValue("prefix", prefix, "must have braces on a cluster, such as {bull}: one script, one node")
        self.keys = Keys(prefix, clock=clock)
        self._requested_prioritized = frozenset(prioritized)
        self._prioritized = enqueue.Prioritized(self._requested_prioritized)
        self._metrics = metrics
        self._connections = Connections(self.server)
        self._presence = Presence(self.server, prefix)
        self.registry = QueueRegistry(self.keys, can_scan=not self.server.is_cluster)
        self._listener = Listener(self.server, self.keys, self.registry, self)
        self._event_stream = EventStream(self.server, self.keys, self.registry, self.run_plan)
        self._rotations: dict[tuple[str, ...], claims.Rotation] = {}
        self._sweep = maintenance.Sweep()
        self._promote_at = 0.0

    @property
    def capabilities(self) -> Capabilities:
        """What BullMQ can do."""
        return CAPABILITIES

    # Session

    async def open(self) -> None:
        """Connect, and read which queues are prioritized. There is no schema to be made."""
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        self.server.check_tls()
        with self.server.translate_errors(), self.server.connected() as client:
            patterns = run(self._register_prioritized(), client)
        self._prioritized = enqueue.Prioritized(patterns)
        self._connections.open()

    def _register_prioritized(self) -> Plan[frozenset[str]]:
        if self._requested_prioritized:
            yield [("SADD", self.keys.prioritized, *self._requested_prioritized)]
        yield LOAD_SCRIPTS
        (known,) = yield [("SMEMBERS", self.keys.prioritized)]
        return frozenset(known)

    async def close(self) -> None:
        """Let go of all connections."""
        await self._listener.close()
        await asyncio.to_thread(self._presence.hide)
        await self._connections.close()

    async def confirm_restore(self) -> None:
        """Do nothing: a store whose schema is not ours has no place for where it is."""

    async def check(self) -> EngineInfo:
        """Say what the engine stands on."""
        return await asyncio.to_thread(self._check)

    def _check(self) -> EngineInfo:
        self.server.check_tls()
        with self.server.translate_errors(), self.server.connected() as client:
            facts = run(diagnostics.collect(self.keys), client)
        return EngineInfo(
            engine="BullMQ",
            server=facts.server,
            now=moment_of(facts.now),
            durability=facts.durability,
            warnings=tuple(diagnostics.warnings(facts)),
        )

    async def check_worker(self) -> None:
        """See :class:`~onward.engine.contract.WorkerCheck`."""
        if not self._allow_eviction:
            await asyncio.to_thread(self._check_eviction)

    def _check_eviction(self) -> None:
        with self.server.translate_errors(), self.server.connected() as client:
            policy = run(diagnostics.eviction_policy(), client)
        if policy.startswith("allkeys-"):
            raise StoreMisconfigured(
                f"{self.server} evicts any key when memory is short (maxmemory-policy {policy}), and jobs are keys",
                remedy="set maxmemory-policy noeviction, or add eviction=allow to the URL to accept lost jobs",
            )

    def schema_script(self) -> None:
        """Say that the schema is not ours: it is BullMQ's."""
        return

    def describe(self) -> Mapping[str, Any]:
        """Say which server this is, without secrets."""
        return {"engine": "BullMQ", **self.server.address, "prefix": self.keys.prefix}

    # Producer

    # `within` never comes this far: see capabilities.

    async def enqueue(
        self,
        jobs: Sequence[NewJob],
        *,
        connection: object | None = None,  # noqa: ARG002
        audit: AuditRecord | None = None,
    ) -> list[Enqueued]:
        """See the contract."""
        if audit is not None:
            return await self._audited(lambda: self.enqueue(jobs), audit, enqueued_count)
        if not jobs:
            return []
        if len(jobs) > _MAX_JOBS_TO_COALESCE:
            return await self._enqueue(jobs)
        return await self._connections.for_loop().coalescer(self._enqueue).enqueue(jobs)

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        made = await self.run_plan(enqueue.enqueue(self.keys, self.registry, jobs, self._prioritized))
        self._listener.notify(enqueue.queues_of(jobs))
        return made

    def enqueue_sync(self, jobs: Sequence[NewJob], *, connection: object | None = None) -> list[Enqueued]:  # noqa: ARG002
        """See the contract."""
        if not jobs:
            return []
        made = self._run_plan_sync(enqueue.enqueue(self.keys, self.registry, jobs, self._prioritized))
        self._listener.notify(enqueue.queues_of(jobs))
        return made

    # Consumer

    async def claim(self, request: ClaimRequest) -> Claims:
        """See the contract."""
        claimed = (await self._exchange(Exchange(request=request))).claimed
        self._request_more(request, claimed, may_pipeline=False)
        return claimed

    async def start(self, claims: Sequence[Claim]) -> frozenset[Token]:
        """See the contract."""
        return await self.run_plan(leases.start(self.keys, claims)) if claims else frozenset()

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        connection: object | None = None,  # noqa: ARG002
    ) -> frozenset[Token]:
        """See the contract."""
        await self._step_aside(settlements)
        lost = await self.run_plan(settle.settle(self.keys, settlements, metrics=self._metrics))
        self._notify_settled(settlements)
        return lost

    def settle_sync(
        self,
        settlements: Sequence[Settlement],
        *,
        connection: object | None = None,  # noqa: ARG002
    ) -> frozenset[Token]:
        """See the contract."""
        lost = self._run_plan_sync(settle.settle(self.keys, settlements, metrics=self._metrics))
        self._notify_settled(settlements)
        return lost

    async def exchange(self, exchange: Exchange) -> Exchanged:
        """See the contract."""
        request = exchange.request
        if request is None:
            return await self._exchange(exchange)
        blocking_claim = self._listener.blocking_claim_of(request)
        if blocking_claim is not None and blocking_claim.has_claims:
            settled = await self._exchange(replace(exchange, request=None))
            answer = Exchanged(lost=settled.lost, claimed=blocking_claim.take() or Claims())
        elif blocking_claim is not None and blocking_claim.reserved_slots:
            answer = await self._exchange(replace(exchange, request=blocking_claim.remaining_request(request)))
        else:
            answer = await self._exchange(exchange)
        self._request_more(request, answer.claimed, may_pipeline=True)
        return answer

    async def _exchange(self, exchange: Exchange) -> Exchanged:
        request = exchange.request
        if request is None and not exchange.settlements and not exchange.starts:
            return Exchanged()
        await self._step_aside(exchange.settlements)
        rotation = claims.Rotation() if request is None else self._rotation(request)
        plan = settle.exchange(self.keys, self.registry, exchange, rotation, metrics=self._metrics)
        answer, result = await self.run_plan(plan)
        await self._process_result(result)
        if exchange.settlements:
            self._notify_settled(exchange.settlements)
        return answer

    async def block_and_claim(self, client: AsyncClient, pop: Command, request: ClaimRequest) -> Claims:
        """Wait for a marker and claim, in one question: see :mod:`.blocking_claim`."""
        rotation = self._rotation(request)
        plan = claims.claim(self.keys, self.registry, request, rotation, before=[pop], preceded_by="marker")
        _, result = await arun(plan, client)
        await self._process_result(result)
        return claims.claims_of(result)

    async def release(self, claims: Claims) -> None:
        """Release claims that nobody has begun."""
        await self.run_plan(settle.settle(self.keys, [Settlement(claim, Release()) for claim in claims.claims]))

    def _rotation(self, request: ClaimRequest) -> claims.Rotation:
        return self._rotations.setdefault(request.queues, claims.Rotation())

    async def _process_result(self, result: claims.ClaimResult) -> None:
        if result.unrunnable:
            await self.run_plan(settle.fail_unrunnable(self.keys, result))
        if result.deferred:
            await self.run_plan(settle.defer(self.keys, result))
        if result.scheduled:
            await self.run_plan(schedules.add_next_jobs(self.keys, result.scheduled, result.now))

    def _request_more(self, request: ClaimRequest, found: Claims, *, may_pipeline: bool) -> None:
        # Who gives way takes no marker: a marker wakes one worker only, and it should be another.
        if len(found.claims) < min(request.slots, claims.MAX_JOBS) and not request.gives_way:
            self._listener.request_more(request, found, may_pipeline=may_pipeline)

    async def _step_aside(self, settlements: Sequence[Settlement]) -> None:
        """Leave the marker of a job that is put back for another worker to that worker.

        A marker wakes one worker and has the time at which the job is due. If a wait of this process takes it, an idle
        worker of Node's learns of the job only when its own wait ends, seconds later, and the job comes back here.
        """
        queues = {
            settlement.claim.ref.queue
            for settlement in settlements
            if isinstance(settlement.outcome, Snooze) and settlement.outcome.is_put_back
        }
        if queues:
            await self._listener.step_aside(queues)

    def notify(self, queues: Iterable[str]) -> None:
        """Tell this process's own workers that there may be work."""
        self._listener.notify(queues)

    def _notify_settled(self, settlements: Sequence[Settlement]) -> None:
        self._listener.notify({settlement.claim.ref.queue for settlement in settlements}, SignalKind.CHANGED)

    async def heartbeat(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        reply = await self.run_plan(leases.heartbeat(self.keys, worker, claims))
        self._presence.show(worker.id, worker.queues)
        return reply

    def heartbeat_sync(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        with self.server.translate_errors():
            reply = run(leases.heartbeat(self.keys, worker, claims), self._connections.for_heartbeat())
        self._presence.show(worker.id, worker.queues)
        return reply

    async def deregister(self, worker_id: str) -> None:
        """See the contract."""
        await self._listener.deregister(worker_id)
        await asyncio.to_thread(self._presence.hide, worker_id)
        await self.run_plan(leases.deregister(self.keys, worker_id))

    async def report(
        self, claim: Claim, *, progress: int | None = None, message: str | None = None, lines: Sequence[str] = ()
    ) -> bool:
        """See the contract."""
        return await self.run_plan(leases.report(self.keys, claim, progress, message, lines))

    async def record_crash(self, claim: Claim) -> bool:  # noqa: ARG002 - absent
        """See the contract."""
        raise Unsupported(CAPABILITIES.engine, Feature.SUSPECTS, CAPABILITIES.features[Feature.SUSPECTS].note)

    def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """See the contract."""
        return self._listener.signals(queues)

    # Reader

    async def get(self, ref: JobRef | str) -> Job | None:
        """See the contract. A job may be named ``queue:id``: its id alone is not enough here."""
        return await self.run_plan(queries.get(self.keys, ref))

    async def find(
        self, which: JobFilter, *, cursor: str | None = None, limit: int = 50, newest_first: bool = True
    ) -> Page[Job]:
        """See the contract."""
        return await self.run_plan(
            queries.find(self.keys, self.registry, which, cursor, limit, newest_first=newest_first)
        )

    async def count(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        return await self.run_plan(queries.count(self.keys, self.registry, which, by))

    async def queues(self, pattern: str = "*") -> list[QueueInfo]:
        """See the contract."""
        return await self.run_plan(queries.queues(self.keys, self.registry, [pattern]))

    async def workers(self) -> list[WorkerInfo]:
        """See the contract."""
        return await self.run_plan(queries.workers(self.keys))

    async def has_foreign_workers(self, queue: str) -> bool:
        """See the contract."""
        try:
            return await self.run_plan(queries.has_foreign_workers(self.keys, queue))
        except StoreUnavailable:
            return True  # managed servers may forbid CLIENT LIST

    async def logs(self, ref: JobRef) -> list[LogLine]:
        """See the contract."""
        return await self.run_plan(queries.logs(self.keys, ref))

    async def events(
        self, queues: Sequence[str], *, cursor: str | None = None, types: frozenset[str] | None = None
    ) -> AsyncGenerator[AnyEvent, None]:
        """See the contract."""
        return await self._event_stream.open(tuple(queues), cursor, types)

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
        if audit is not None:
            return await self._audited(lambda: self.cancel(which, reason=reason, limit=limit), audit, len)
        changed = await self.run_plan(admin.cancel(self.keys, self.registry, which, limit))
        if changed:
            log.info("jobs taken back", extra={"count": len(changed), "reason": reason})
            self._listener.notify({change.ref.queue for change in changed}, SignalKind.CANCELLED)
        return changed

    async def replay(
        self,
        which: JobFilter,
        *,
        limit: int = 1000,
        audit: AuditRecord | None = None,
    ) -> list[Changed]:
        """See the contract."""
        if audit is not None:
            return await self._audited(lambda: self.replay(which, limit=limit), audit, len)
        changed = await self.run_plan(admin.replay(self.keys, self.registry, which, limit))
        self._listener.notify({change.ref.queue for change in changed})
        return changed

    async def delete(
        self,
        which: JobFilter,
        *,
        limit: int = 1000,
        audit: AuditRecord | None = None,
    ) -> list[Changed]:
        """See the contract."""
        if audit is not None:
            return await self._audited(lambda: self.delete(which, limit=limit), audit, len)
        return await self.run_plan(admin.delete(self.keys, self.registry, which, limit))

    async def edit(self, ref: JobRef, change: JobChange, *, audit: AuditRecord | None = None) -> Job | None:
        """See the contract."""
        if audit is not None:
            return await self._audited(lambda: self.edit(ref, change), audit, lambda job: int(job is not None))
        is_prioritized = ref.queue in self._prioritized
        if change.priority is not UNSET and change.priority and not is_prioritized:
            raise InvalidValue("priority", change.priority, enqueue.NOT_PRIORITIZED.format(queue=ref.queue))
        return await self.run_plan(admin.edit(self.keys, ref, change, is_prioritized=is_prioritized))

    async def configure(self, queue: str, change: QueueChange, *, audit: AuditRecord | None = None) -> QueueInfo:
        """See the contract."""
        if audit is not None:
            return await self._audited(lambda: self.configure(queue, change), audit, lambda _: 1)
        info = await self.run_plan(admin.configure(self.keys, self.registry, queue, change))
        self._listener.notify((queue,), SignalKind.CHANGED)
        await self._listener.claim_now(queue)
        return info

    async def command_worker(self, worker_id: str, command: WorkerCommand, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(
            lambda: self.run_plan(leases.command_worker(self.keys, worker_id, command)), audit, int
        )

    # Maintenance

    async def elect(self, candidate: str, *, lease: timedelta, current_term: Term | None = None) -> Term | None:
        """See the contract."""
        return await self.run_plan(maintenance.elect(self.keys, candidate, lease, current_term))

    async def resign(self, term: Term) -> None:
        """See the contract."""
        await self.run_plan(maintenance.resign(self.keys, term))

    async def promote(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        # Every claim promotes too, and whoever delays a job leaves a marker: this is for what both have missed.
        if self.keys.clock is None and monotonic() < self._promote_at:
            return MaintenanceResult()
        batch = await self.run_plan(maintenance.promote(self.keys, self.registry, term, limit))
        interval = _PROMOTE_INTERVAL if batch.next_in is None else min(_PROMOTE_INTERVAL, batch.next_in)
        self._promote_at = 0.0 if batch.more else monotonic() + interval
        return batch

    async def rescue(self, term: Term, *, lease: timedelta, max_crashes: int, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        return await self.run_plan(maintenance.rescue(self.keys, self.registry, term, lease, max_crashes, limit))

    async def prune(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        return await self.run_plan(maintenance.prune(self.keys, self.registry, term, limit, self._sweep))

    # ScheduleStore

    async def schedules(self) -> list[Schedule]:
        """See the contract."""
        entries = await self.run_plan(schedule_store.read(self.keys, self.registry))
        return [entry.schedule for entry in entries]

    async def save_schedule(self, schedule: Schedule, *, audit: AuditRecord | None = None) -> Schedule:
        """See the contract."""

        async def save() -> Schedule:
            plan = schedule_store.save(self.keys, self.registry, schedule, self._prioritized)
            saved = await self.run_plan(plan)
            self._listener.notify({schedule.job.queue})
            return saved

        return await self._change(save, audit, lambda _: 1)

    async def delete_schedule(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(
            lambda: self.run_plan(schedule_store.delete(self.keys, self.registry, name)), audit, int
        )

    async def due_schedules(self, *, limit: int = 100) -> DueSchedules:  # noqa: ARG002 - none is due here
        """See the contract."""
        return await self.run_plan(schedule_store.now(self.keys))

    async def fire(self, schedule: Schedule, firing: Firing) -> list[Enqueued] | None:
        """Absent: see the capabilities."""
        del schedule, firing
        raise Unsupported(CAPABILITIES.engine, Feature.FIRING, CAPABILITIES.features[Feature.FIRING].note)

    # AccessStore

    async def save_token(self, token: AccessToken, *, audit: AuditRecord | None = None) -> None:
        """See the contract."""
        await self._change(lambda: self.run_plan(access.save_token(self.keys, token)), audit, lambda _: 1)

    async def tokens(self) -> list[AccessToken]:
        """See the contract."""
        return await self.run_plan(access.tokens(self.keys))

    async def find_token(self, token_id: str) -> AccessToken | None:
        """See the contract."""
        return await self.run_plan(access.find_token(self.keys, token_id))

    async def revoke_token(self, token_id: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(lambda: self.run_plan(access.revoke_token(self.keys, token_id)), audit, int)

    async def touch_token(self, token_id: str) -> None:
        """See the contract."""
        await self.run_plan(access.touch_token(self.keys, token_id))

    async def save_session(self, session: AccessSession, *, audit: AuditRecord | None = None) -> None:
        """See the contract."""
        await self._change(lambda: self.run_plan(access.save_session(self.keys, session)), audit, lambda _: 1)

    async def find_session(self, digest: str) -> tuple[AccessSession, AccessToken] | None:
        """See the contract."""
        return await self.run_plan(access.find_session(self.keys, digest))

    async def touch_session(self, digest: str) -> None:
        """See the contract."""
        await self.run_plan(access.touch_session(self.keys, digest))

    async def delete_session(self, digest: str, *, audit: AuditRecord | None = None) -> bool:
        """See the contract."""
        return await self._change(lambda: self.run_plan(access.delete_session(self.keys, digest)), audit, int)

    async def record_audit(
        self,
        record: AuditRecord,
        *,
        operation: JobRef | None = None,  # noqa: ARG002 - there are no roles
    ) -> bool:
        """See the contract."""
        return await self.run_plan(access.record(self.keys, record))

    async def audit(self, query: AuditQuery, *, cursor: str | None = None, limit: int = 50) -> Page[AuditRecord]:
        """See the contract."""
        return await self.run_plan(access.audit(self.keys, query, cursor, limit))

    async def prune_access(self, *, keep_audit: timedelta, keep_sessions: timedelta) -> int:
        """See the contract."""
        return await self.run_plan(access.prune(self.keys, keep_audit, keep_sessions))

    async def _change(
        self, change: Callable[[], Awaitable[T]], audit: AuditRecord | None, count: Callable[[T], int]
    ) -> T:
        return await change() if audit is None else await self._audited(change, audit, count)

    async def _audited(self, change: Callable[[], Awaitable[T]], audit: AuditRecord, count: Callable[[T], int]) -> T:
        """Write the record, then do the change, then note its count: there is no change without a record (S5)."""
        is_new = await self.run_plan(access.record(self.keys, replace(audit, count=None)))
        result = await change()
        if is_new:
            await self.run_plan(access.set_count(self.keys, audit.id, count(result)))
        return result

    # Driving plans

    async def run_plan(self, plan: Plan[T]) -> T:
        """Drive a plan on the event loop's own connections."""
        with self.server.translate_errors():
            return await arun(plan, self._connections.for_loop().client)

    def _run_plan_sync(self, plan: Plan[T]) -> T:
        client = self._connections.for_threads()
        with self.server.translate_errors():
            return run(plan, client)
