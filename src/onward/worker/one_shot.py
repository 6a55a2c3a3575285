"""Does by one call what a worker does all the time (H7): for a serverless host, a plain cron, a test.

In order: lead if nobody does, and fire, rescue, promote and prune; then claim what is ready, run it in this process,
and record how it ended. Each outcome is recorded when its run ends; leases are kept alive while anything runs. Nothing
is left behind: no claim that is not settled, no term that is not given up.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from onward.clock import Clock
from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.declared_limits import DeclaredLimits
from onward.engine.values import (
    ANY_TYPE,
    Claim,
    ClaimRequest,
    HeartbeatReply,
    MaintenanceResult,
    Settlement,
    Term,
    Token,
    WorkerInfo,
)
from onward.handler import Handler
from onward.lifecycle import (
    MOVE_OF,
    Commit,
    Complete,
    Interrupted,
    Move,
    Outcome,
    Release,
    Result,
    SelfCompleted,
    decide,
)
from onward.schedule import Schedule
from onward.validation import check_at_least
from onward.worker.alerts import Alerts
from onward.worker.heartbeat import HEARTBEATS_PER_LEASE, Heartbeat
from onward.worker.hooks import Hooks
from onward.worker.identity import new_worker_id, onward_version
from onward.worker.inflight import Inflight
from onward.worker.isolation import IsolatedRunner
from onward.worker.limit_keeper import LimitKeeper
from onward.worker.metering import Metering
from onward.worker.runner import Middleware, Runner
from onward.worker.scheduler import Scheduler
from onward.worker.unknown_tasks import UnknownTasks
from onward.worker_options import UNKNOWN_TASK_GRACE, UnknownTaskPolicy

log = logging.getLogger("onward.tick")

_CONCURRENCY: Final = 100
"""Jobs run at once."""
_MAX_ROUNDS: Final = 10
"""Statements of one kind of maintenance in one tick: the next tick goes on with the rest."""
_HEARTBEAT_JOIN_TIMEOUT: Final = 5.0
"""Seconds that a beat under way is waited for."""
_HOOKS_TIMEOUT: Final = 5.0
"""Seconds that hooks have to end in a tick whose time is up."""


class TickReport(msgspec.Struct, kw_only=True):
    """What a tick has done."""

    ok: bool = True
    fired: int = 0
    """Jobs that schedules have made."""
    promoted: int = 0
    """Jobs whose time had come."""
    rescued: int = 0
    """Jobs taken back from workers that went silent."""
    pruned: int = 0
    """Finished jobs that are kept no longer."""
    claimed: int = 0
    completed: int = 0
    retried: int = 0
    """Failed, and to be tried again."""
    failed: int = 0
    """Ended at once: no handler, do-not-retry."""
    buried: int = 0
    """Ended with their attempts used up."""
    snoozed: int = 0
    cancelled: int = 0
    released: int = 0
    """Given back, not run."""
    lost: int = 0
    """Taken from this tick while they ran: not recorded here."""
    timed_out: bool = False
    """The time was up: handlers that still ran were cancelled, and their jobs released."""

    def add(self, other: TickReport) -> None:
        """Count another tick in."""
        for field in _COUNTS:
            setattr(self, field, getattr(self, field) + getattr(other, field))
        self.timed_out = self.timed_out or other.timed_out


_COUNTS: Final = tuple(field for field in TickReport.__struct_fields__ if field not in {"ok", "timed_out"})
_REPORT_FIELDS: Final[Mapping[Move, str]] = {
    Move.COMPLETE: "completed",
    Move.RETRY: "retried",
    Move.FAIL: "failed",
    Move.BURY: "buried",
    Move.SNOOZE: "snoozed",
    Move.CANCEL: "cancelled",
    Move.RELEASE: "released",
}


class Ticker:
    """Ticks: see :meth:`tick`. Made for one tick, or for a few in a row on the same event loop."""

    def __init__(
        self,
        *,
        handlers: Mapping[str, Handler],
        engine: CheckedEngine,
        lease: timedelta,
        max_crashes: int,
        max_result: int,
        middleware: Sequence[Middleware] = (),
        clock: Clock | None = None,
        decide: Callable[[Claim, Result], Outcome] = decide,
        declared: Callable[[], Sequence[Schedule]] = tuple,
        catch_all: Mapping[str, Handler] | None = None,
        unknown_tasks: UnknownTaskPolicy = "wait",
        unknown_task_grace: timedelta = UNKNOWN_TASK_GRACE,
        limits: DeclaredLimits | None = None,
        state: Any = None,
        app_place: tuple[str, str] | None = None,
        alerts: Alerts | None = None,
    ) -> None:
        self.worker_id = new_worker_id()
        self._engine = engine
        self._handlers = handlers
        self._catch_all = catch_all
        self._worker_timeout = lease
        self._max_crashes = max_crashes
        self._decide = decide
        self._scheduler = Scheduler(engine, declared)
        self._alerts = alerts
        self._inflight = Inflight()
        self._metering = Metering(engine)
        self._runner = Runner(
            handlers=handlers,
            catch_all=catch_all,
            engine=engine,
            worker_id=self.worker_id,
            middleware=middleware,
            clock=clock,
            max_result=max_result,
            state=state,
            unknown_tasks=UnknownTasks(
                engine, worker_id=self.worker_id, policy=unknown_tasks, grace=unknown_task_grace, clock=clock
            ),
        )
        self._hooks = Hooks(
            (*handlers.values(), *(catch_all or {}).values()),
            handler_for=self._runner.handler_for,
            worker_id=self.worker_id,
            clock=clock,
        )
        self._record = self._hooks.after(self._metering.count)
        self._isolated_runner = IsolatedRunner(
            engine,
            worker_id=self.worker_id,
            size=1,
            max_crashes=max_crashes,
            handler_for=self._runner.handler_for,
            run_here=self._runner.run,
            app_place=app_place,
        )
        self._limit_keeper = LimitKeeper(engine, DeclaredLimits() if limits is None else limits, replaces=False)
        self._is_checked = False
        """Whether the store's settings have been checked, as a worker does when it starts."""
        self._is_stopping = False
        self._is_timed_out = False
        self._running: set[asyncio.Task[None]] = set()
        """Those of the runs that may be cancelled: a handler is at work."""
        self.next_in: float | None = None
        """Seconds until there will be something to do, as far as the last tick could see; None: it saw nothing."""

    async def tick(self, limit: int, *, queues: tuple[str, ...] = ("*",), timeout: float | None = None) -> TickReport:
        """Run maintenance, then run at most ``limit`` jobs, for at most ``timeout`` seconds.

        At the time limit no further job is claimed, running handlers are cancelled, and their jobs released (A6).

        Cancelled, it stops its handlers, gives back its claims and its term, and only then raises. Cancelled once more,
        it raises at once, and the rest of that goes on by itself.

        Raises:
            StoreMisconfigured: the server would lose jobs.
        """
        check_at_least("limit", limit, 1)
        # In a task that is never cancelled: a claim or a term that the store has granted would be lost with its answer.
        self._is_stopping = self._is_timed_out = False
        work = asyncio.create_task(self._tick(limit, queues), name="onward-tick")
        timer = None if timeout is None else asyncio.get_running_loop().call_later(timeout, self._time_out)
        try:
            report = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stop()
            await asyncio.wait([work])
            raise
        finally:
            if timer is not None:
                timer.cancel()
        report.timed_out = self._is_timed_out
        return report

    def _time_out(self) -> None:
        self._is_timed_out = True
        self._stop()

    def _stop(self) -> None:
        self._is_stopping = True
        for run in self._running:
            run.cancel()

    async def _tick(self, limit: int, queues: tuple[str, ...]) -> TickReport:
        report = TickReport()
        self.next_in = None
        if not self._is_checked:
            await self._engine.check_worker()
            self._is_checked = True
        await self._limit_keeper.step()
        await self._run_maintenance(report)
        heartbeat = self._new_heartbeat()
        loop = asyncio.get_running_loop()
        # Most ticks are over long before a lease is in danger, and need no sign of life.
        heartbeat_start = loop.call_later(self._worker_timeout.total_seconds() / HEARTBEATS_PER_LEASE, heartbeat.start)
        try:
            while report.claimed < limit and not self._is_stopping:
                requested_at = time.monotonic()
                claims = await self._claim(queues, min(limit - report.claimed, _CONCURRENCY))
                if not claims:
                    break
                report.claimed += len(claims)
                async with asyncio.TaskGroup() as group:
                    for claim in claims:
                        self._inflight.add(claim, requested_at)
                        group.create_task(self._run(claim, requested_at, report), name=f"onward-run-{claim.ref}")
        finally:
            heartbeat_start.cancel()
            heartbeat.stop()
            self._isolated_runner.close()
            await self._hooks.finish(_HOOKS_TIMEOUT if self._is_stopping else None)
            await self._metering.send()
            if loop.time() >= heartbeat_start.when():
                await asyncio.to_thread(
                    heartbeat.join, _HEARTBEAT_JOIN_TIMEOUT
                )  # one under way would register us again
                await self._engine.deregister(self.worker_id)
        return report

    async def _run_maintenance(self, report: TickReport) -> None:
        if not self._engine.capabilities.has(Feature.LEADER):
            return
        if self._is_stopping:
            return
        term = await self._engine.elect(self.worker_id, lease=self._worker_timeout)
        if term is None:
            return  # somebody leads, and does this all the time
        try:
            report.rescued = await self._repeat(
                lambda: self._engine.rescue(term, lease=self._worker_timeout, max_crashes=self._max_crashes)
            )
            if self._engine.capabilities.has(Feature.SCHEDULES):
                await self._scheduler.declare()
            if self._engine.capabilities.has(Feature.FIRING):
                report.fired = await self._repeat(lambda: self._fire(term))
            report.promoted = await self._repeat(lambda: self._promote(term))
            report.pruned = await self._repeat(lambda: self._engine.prune(term))
            if self._alerts is not None and not self._is_stopping:
                await self._alerts.evaluate(term)
        finally:
            await self._engine.resign(term)

    async def _repeat(self, step: Callable[[], Awaitable[MaintenanceResult]]) -> int:
        """Do a step of maintenance until it has nothing more to do, or the tick is to stop."""
        done = 0
        for _ in range(_MAX_ROUNDS):
            if self._is_stopping:
                break
            result = await step()
            done += result.changed
            if not result.more:
                break
        return done

    async def _promote(self, term: Term) -> MaintenanceResult:
        result = await self._engine.promote(term)
        self._note_next(result.next_in)
        return result

    async def _fire(self, term: Term) -> MaintenanceResult:
        result = await self._scheduler.fire(term)
        self._note_next(result.next_in)
        return result

    async def _claim(self, queues: tuple[str, ...], slots: int) -> tuple[Claim, ...]:
        request = ClaimRequest(worker_id=self.worker_id, queues=queues, slots=slots, lease=self._worker_timeout)
        claims = await self._engine.claim(request)
        self._note_next(claims.retry_after)
        if not claims.claims and claims.has_suspects:
            claims = await self._engine.claim(msgspec.structs.replace(request, slots=1, alone=True))
        return claims.claims

    async def _run(self, claim: Claim, requested_at: float, report: TickReport) -> None:
        began = time.monotonic()
        try:
            result = await self._run_handler(claim, requested_at)
        except asyncio.CancelledError:
            await self._settle(claim, Release(), report)
            raise
        if isinstance(result, SelfCompleted):
            self._inflight.remove(claim.token)
            if result.commit is Commit.COMMITTED:
                report.completed += 1
                self._record([Settlement(claim, Complete(result.result), time.monotonic() - began)])
            elif result.commit is Commit.LOST:
                report.lost += 1
        else:
            await self._settle(claim, self._decide(claim, result), report, time.monotonic() - began)

    async def _run_handler(self, claim: Claim, requested_at: float) -> Result | SelfCompleted:
        start_within = self._worker_timeout.total_seconds() if claim.start_within is None else claim.start_within
        if time.monotonic() - requested_at > start_within or self._is_stopping:
            return Interrupted()
        run = asyncio.current_task()
        assert run is not None  # noqa: S101 - for the type checker
        self._running.add(run)
        try:
            return await (self._isolated_runner if claim.is_suspect else self._runner).run(claim)
        finally:
            self._running.discard(run)

    async def _settle(self, claim: Claim, outcome: Outcome, report: TickReport, seconds: float = 0.0) -> None:
        settlements = [Settlement(claim, outcome, seconds)]
        lost = await self._engine.settle(settlements)
        self._inflight.remove(claim.token)
        if not lost:
            self._record(settlements)
        field = "lost" if lost else _REPORT_FIELDS[MOVE_OF[type(outcome)]]
        setattr(report, field, getattr(report, field) + 1)

    def _cancel(self, token: Token) -> None:
        if not self._runner.cancel(token):
            self._isolated_runner.cancel(token)

    def _note_next(self, seconds: float | None) -> None:
        if seconds is not None:
            self.next_in = seconds if self.next_in is None else min(self.next_in, seconds)

    def _new_heartbeat(self) -> Heartbeat:
        loop = asyncio.get_running_loop()
        info = WorkerInfo(
            id=self.worker_id,
            hostname=socket.gethostname(),
            pool_size=_CONCURRENCY,
            version=onward_version(),
            types=(*sorted(self._handlers), *((ANY_TYPE,) if self._catch_all else ())),
        )

        def on_reply(answer: HeartbeatReply) -> None:
            for token in answer.lost:
                loop.call_soon_threadsafe(self._cancel, token)

        return Heartbeat(self._engine, self._inflight, info=info, lease=self._worker_timeout, on_reply=on_reply)
