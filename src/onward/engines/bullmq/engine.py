"""The engine: each verb a plan, driven on a client of the event loop, of threads, or of the pulse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Final, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from onward.clock import Clock, moment_of
from onward.engine.capabilities import Capabilities
from onward.engine.values import (
    Changed,
    Claim,
    ClaimRequest,
    Claims,
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
    WorkerInfo,
)
from onward.engines.bullmq import admin, claims, diagnostics, enqueue, leases, maintenance, queries, schedules, settle
from onward.engines.bullmq.capabilities import CAPABILITIES
from onward.engines.bullmq.commands import LOADING, Asked, Command, Plan, arun, run
from onward.engines.bullmq.connections import Connections
from onward.engines.bullmq.event_stream import Follower
from onward.engines.bullmq.keys import DEFAULT_PREFIX, Layout
from onward.engines.bullmq.listener import Listener
from onward.engines.bullmq.queue_registry import Names
from onward.engines.bullmq.server import Server
from onward.errors import InvalidJob
from onward.events import AnyEvent
from onward.job import Enqueued, Job, JobRef, NewJob
from onward.lifecycle import Release

T = TypeVar("T")

_REST: Final = 5.0
"""Seconds for which nothing is promoted that nobody has told of: as long as BullMQ's own workers trust markers."""
_FEW: Final = 20
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
        clock: Clock | None = None,
    ) -> None:
        """Name a store; nothing is connected to yet.

        Args:
            url: where the server is: see :class:`~onward.engines.bullmq.server.Server`.
            prefix: what the keys of all queues begin with, in Node too; a cluster needs one in braces, ``{bull}``, to
                keep all keys on one node.
            prioritized: queues, by names and patterns, in which jobs have priorities (B9).
            metrics: how many minutes of BullMQ's metrics to keep; none unless told.
            clock: for tests; the server's own unless given.
        """
        self.server = Server(url)
        if not prefix:
            raise InvalidJob("prefix", prefix, "must be a non-empty string")
        if self.server.is_cluster and not ("{" in prefix and "}" in prefix):
            raise InvalidJob("prefix", prefix, "must have braces on a cluster, such as {bull}: one script, one node")
        self.layout = Layout(prefix, clock=clock)
        self._asked_prioritized = frozenset(prioritized)
        self._prioritized = enqueue.Prioritized(self._asked_prioritized)
        self._metrics = metrics
        self._connections = Connections(self.server)
        self.names = Names(self.layout, looks=not self.server.is_cluster)
        self._listener = Listener(self.server, self.layout, self.names, self)
        self._follower = Follower(self.server, self.layout, self.names, self.ask)
        self._rounds: dict[tuple[str, ...], claims.Round] = {}
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
        with self.server.translated(), self.server.connected() as client:
            patterns = run(self._tell_prioritized(), client)
        self._prioritized = enqueue.Prioritized(patterns)
        self._connections.open()

    def _tell_prioritized(self) -> Plan[frozenset[str]]:
        if self._asked_prioritized:
            yield [("SADD", self.layout.prioritized, *self._asked_prioritized)]
        yield LOADING
        (known,) = yield [("SMEMBERS", self.layout.prioritized)]
        return frozenset(known)

    async def close(self) -> None:
        """Let go of all connections."""
        await self._listener.close()
        await self._connections.close()

    async def check(self) -> EngineInfo:
        """Say what the engine stands on."""
        return await asyncio.to_thread(self._check)

    def _check(self) -> EngineInfo:
        with self.server.translated(), self.server.connected() as client:
            facts = run(diagnostics.examine(self.layout), client)
        return EngineInfo(
            engine="BullMQ",
            server=facts.server,
            now=moment_of(facts.now),
            durability=facts.durability,
            warnings=tuple(diagnostics.warnings(facts)),
        )

    def schema_script(self) -> None:
        """Say that the schema is not ours: it is BullMQ's."""
        return

    def describe(self) -> Mapping[str, Any]:
        """Say which server this is, without secrets."""
        return {"engine": "BullMQ", **self.server.address, "prefix": self.layout.prefix}

    # Enqueue

    # `within` never comes this far: see capabilities.

    async def enqueue(self, jobs: Sequence[NewJob], *, within: object | None = None) -> list[Enqueued]:  # noqa: ARG002
        """See the contract."""
        if not jobs:
            return []
        if len(jobs) > _FEW:
            return await self._put(jobs)
        return await self._connections.of_loop().gathering(self._put).enqueue(jobs)

    async def _put(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        made = await self.ask(enqueue.enqueue(self.layout, self.names, jobs, self._prioritized))
        self._listener.tell(enqueue.queues_of(jobs))
        return made

    def enqueue_sync(self, jobs: Sequence[NewJob], *, within: object | None = None) -> list[Enqueued]:  # noqa: ARG002
        """See the contract."""
        if not jobs:
            return []
        made = self._ask_sync(enqueue.enqueue(self.layout, self.names, jobs, self._prioritized))
        self._listener.tell(enqueue.queues_of(jobs))
        return made

    # Work

    async def claim(self, request: ClaimRequest) -> Claims:
        """See the contract."""
        claimed = (await self._exchange(Exchange(request=request))).claimed
        self._note_hunger(request, claimed, comes_again=False)
        return claimed

    async def start(self, claims: Sequence[Claim]) -> frozenset[Token]:
        """See the contract."""
        return await self.ask(leases.start(self.layout, claims)) if claims else frozenset()

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        within: object | None = None,  # noqa: ARG002
    ) -> frozenset[Token]:
        """See the contract."""
        lost = await self.ask(settle.settle(self.layout, settlements, metrics=self._metrics))
        self._tell_settled(settlements)
        return lost

    def settle_sync(
        self,
        settlements: Sequence[Settlement],
        *,
        within: object | None = None,  # noqa: ARG002
    ) -> frozenset[Token]:
        """See the contract."""
        lost = self._ask_sync(settle.settle(self.layout, settlements, metrics=self._metrics))
        self._tell_settled(settlements)
        return lost

    async def exchange(self, exchange: Exchange) -> Exchanged:
        """See the contract."""
        request = exchange.request
        if request is None:
            return await self._exchange(exchange)
        wait = self._listener.wait_of(request)
        if wait is not None and wait.has_brought:
            settled = await self._exchange(replace(exchange, request=None))
            answer = Exchanged(lost=settled.lost, claimed=wait.take() or Claims())
        elif wait is not None and wait.promised:
            answer = await self._exchange(replace(exchange, request=wait.rest_of(request)))
        else:
            answer = await self._exchange(exchange)
        self._note_hunger(request, answer.claimed, comes_again=True)
        return answer

    async def _exchange(self, exchange: Exchange) -> Exchanged:
        request = exchange.request
        if request is None and not exchange.settlements and not exchange.starts:
            return Exchanged()
        round_ = claims.Round() if request is None else self._round(request)
        plan = settle.exchange(self.layout, self.names, exchange, round_, metrics=self._metrics)
        answer, taken = await self.ask(plan)
        await self._see_to(taken)
        if exchange.settlements:
            self._tell_settled(exchange.settlements)
        return answer

    async def claim_behind(self, asked: Asked, pop: Command, request: ClaimRequest) -> Claims:
        """Wait for a marker and claim, in one question: see :mod:`.waiting`."""
        round_ = self._round(request)
        plan = claims.claim(self.layout, self.names, request, round_, before=[pop], what="marker")
        _, taken = await arun(plan, asked)
        await self._see_to(taken)
        return claims.answer_of(taken)

    async def give_back(self, claims: Claims) -> None:
        """Release claims that nobody has begun."""
        await self.ask(settle.settle(self.layout, [Settlement(claim, Release()) for claim in claims.claims]))

    def _round(self, request: ClaimRequest) -> claims.Round:
        return self._rounds.setdefault(request.queues, claims.Round())

    async def _see_to(self, taken: claims.Taken) -> None:
        if taken.unfit:
            await self.ask(settle.fail_unfit(self.layout, taken))
        if taken.scheduled:
            await self.ask(schedules.go_on(self.layout, taken.scheduled, taken.now))

    def _note_hunger(self, request: ClaimRequest, found: Claims, *, comes_again: bool) -> None:
        if len(found.claims) < min(request.slots, claims.MOST_JOBS):
            self._listener.hunger(request, found, comes_again=comes_again)

    def tell(self, queues: Iterable[str]) -> None:
        """Tell this process's own workers that there may be work."""
        self._listener.tell(queues)

    def _tell_settled(self, settlements: Sequence[Settlement]) -> None:
        self._listener.tell({settlement.claim.ref.queue for settlement in settlements}, SignalKind.CHANGED)

    async def heartbeat(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        return await self.ask(leases.heartbeat(self.layout, worker, claims))

    def heartbeat_sync(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """See the contract."""
        with self.server.translated():
            return run(leases.heartbeat(self.layout, worker, claims), self._connections.for_heartbeat())

    async def deregister(self, worker_id: str) -> None:
        """See the contract."""
        await self._listener.deregister(worker_id)
        await self.ask(leases.deregister(self.layout, worker_id))

    async def report(
        self, claim: Claim, *, progress: int | None = None, message: str | None = None, lines: Sequence[str] = ()
    ) -> bool:
        """See the contract."""
        return await self.ask(leases.report(self.layout, claim, progress, message, lines))

    def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """See the contract."""
        return self._listener.signals(queues)

    # Read

    async def get(self, ref: JobRef | str) -> Job | None:
        """See the contract. A job may be named ``queue:id``: its id alone is not enough here."""
        return await self.ask(queries.get(self.layout, ref))

    async def find(
        self, which: JobFilter, *, after: str | None = None, limit: int = 50, newest_first: bool = True
    ) -> Page[Job]:
        """See the contract."""
        return await self.ask(queries.find(self.layout, self.names, which, after, limit, newest_first=newest_first))

    async def count(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """See the contract."""
        return await self.ask(queries.count(self.layout, self.names, which, by))

    async def queues(self, pattern: str = "*") -> list[QueueInfo]:
        """See the contract."""
        return await self.ask(queries.queues(self.layout, self.names, [pattern]))

    async def workers(self) -> list[WorkerInfo]:
        """See the contract."""
        return await self.ask(queries.workers(self.layout))

    async def log_lines(self, ref: JobRef) -> list[LogLine]:
        """See the contract."""
        return await self.ask(queries.log_lines(self.layout, ref))

    async def events(
        self, queues: Sequence[str], *, after: str | None = None, types: frozenset[str] | None = None
    ) -> AsyncGenerator[AnyEvent, None]:
        """See the contract."""
        return await self._follower.begin(tuple(queues), after, types)

    # Operate

    async def cancel(self, which: JobFilter, *, reason: str = "cancelled", limit: int = 1000) -> list[Changed]:
        """See the contract."""
        changed = await self.ask(admin.cancel(self.layout, self.names, which, limit))
        if changed:
            log.info("jobs taken back", extra={"count": len(changed), "reason": reason})
            self._listener.tell({change.ref.queue for change in changed}, SignalKind.CANCELLED)
        return changed

    async def replay(self, which: JobFilter, *, limit: int = 1000) -> list[Changed]:
        """See the contract."""
        changed = await self.ask(admin.replay(self.layout, self.names, which, limit))
        self._listener.tell({change.ref.queue for change in changed})
        return changed

    async def delete(self, which: JobFilter, *, limit: int = 1000) -> list[Changed]:
        """See the contract."""
        return await self.ask(admin.delete(self.layout, self.names, which, limit))

    async def edit(self, ref: JobRef, change: JobChange) -> Job | None:
        """See the contract."""
        is_prioritized = ref.queue in self._prioritized
        if change.priority is not UNSET and change.priority and not is_prioritized:
            raise InvalidJob("priority", change.priority, enqueue.NOT_PRIORITIZED.format(queue=ref.queue))
        return await self.ask(admin.edit(self.layout, ref, change, prioritized=is_prioritized))

    async def configure(self, queue: str, change: QueueChange) -> QueueInfo:
        """See the contract."""
        info = await self.ask(admin.configure(self.layout, self.names, queue, change))
        self._listener.tell((queue,), SignalKind.CHANGED)
        await self._listener.look_now(queue)
        return info

    # Steward

    async def elect(self, candidate: str, *, lease: timedelta, holding: Term | None = None) -> Term | None:
        """See the contract."""
        return await self.ask(maintenance.elect(self.layout, candidate, lease, holding))

    async def resign(self, term: Term) -> None:
        """See the contract."""
        await self.ask(maintenance.resign(self.layout, term))

    async def promote(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        # Every claim promotes too, and whoever delays a job leaves a marker: this is for what both have missed.
        if self.layout.clock is None and monotonic() < self._promote_at:
            return MaintenanceResult()
        batch = await self.ask(maintenance.promote(self.layout, self.names, term, limit))
        rest = _REST if batch.next_in is None else min(_REST, batch.next_in)
        self._promote_at = 0.0 if batch.more else monotonic() + rest
        return batch

    async def rescue(
        self, term: Term, *, worker_timeout: timedelta, max_crashes: int, limit: int = 1000
    ) -> MaintenanceResult:
        """See the contract."""
        return await self.ask(maintenance.rescue(self.layout, self.names, term, worker_timeout, max_crashes, limit))

    async def prune(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """See the contract."""
        return await self.ask(maintenance.prune(self.layout, self.names, term, limit, self._sweep))

    # Driving plans

    async def ask(self, plan: Plan[T]) -> T:
        """Drive a plan on the event loop's own lines."""
        with self.server.translated():
            return await arun(plan, self._connections.of_loop().asked)

    def _ask_sync(self, plan: Plan[T]) -> T:
        client = self._connections.plain()
        with self.server.translated():
            return run(plan, client)
