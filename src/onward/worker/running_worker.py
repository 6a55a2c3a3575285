"""One run of a worker: its actors, wired together, from the first heartbeat to the last outcome stored."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from onward.context import Middleware
from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.declared_limits import DeclaredLimits
from onward.engine.values import ANY_TYPE, Claims, HeartbeatReply, WorkerCommand, WorkerInfo
from onward.errors import InvalidValue, StoreUnavailable
from onward.handler import Handler
from onward.worker.cancellation_watcher import CancellationWatcher
from onward.worker.claimer import Claimer
from onward.worker.deadline import Deadline
from onward.worker.event_relay import POLL_INTERVAL as EVENT_POLL_INTERVAL
from onward.worker.event_relay import Relay
from onward.worker.health import HealthRecorder
from onward.worker.heartbeat import HEARTBEATS_PER_LEASE, Heartbeat
from onward.worker.heartbeat_interval import CHECK_INTERVAL as LEASE_CHECK_INTERVAL
from onward.worker.heartbeat_interval import QueueLeases
from onward.worker.hooks import Hooks
from onward.worker.identity import new_worker_id, onward_version
from onward.worker.inflight import LOST, RUNNING, SETTLING, Inflight
from onward.worker.isolation import IsolatedRunner
from onward.worker.leader import Leader
from onward.worker.limit_keeper import CHECK_INTERVAL as LIMIT_CHECK_INTERVAL
from onward.worker.limit_keeper import LimitKeeper
from onward.worker.loop_watchdog import LoopWatchdog
from onward.worker.maintenance import MaintenanceLoops, MaintenanceTask, default_maintenance_tasks
from onward.worker.metering import Metering
from onward.worker.options import WorkerSettings
from onward.worker.periodic import STORE_RETRY_BACKOFF, Periodic, log_failure
from onward.worker.processes import Processes
from onward.worker.resident_memory import resident_memory
from onward.worker.runner import Invocation, Runner
from onward.worker.scheduler import Scheduler
from onward.worker.settler import Settler
from onward.worker.slot_pool import Pool
from onward.worker.threads import Threads
from onward.worker.unknown_tasks import UnknownTasks
from onward.worker.waker import Waker

_MEBIBYTE: Final = 1024 * 1024
log = logging.getLogger("onward.worker")

_FLUSH_TIMEOUT: Final = 5.0
"""Seconds in which a stopping worker tries to store its outcomes; after that the leases tell."""
_CLEAN_UP_SHARE: Final = 0.2
"""The part of the grace that is for handlers to clean up once they have been cancelled, up to the flush timeout."""
_MIN_CLEAN_UP: Final = 0.5
"""Seconds that they have even without a grace."""
_FORCED_STOP_TIMEOUT: Final = 0.5
"""Seconds that a worker which is cancelled twice gives its handlers to stop, and then itself to flush. Some
who cancel do it again at every turn of the loop (anyio), so that twice cannot mean: without a word."""
_RELISTEN_INTERVAL: Final = timedelta(seconds=1)
_MEMORY_CHECK_INTERVAL: Final = timedelta(seconds=5)
_DECLARE_INTERVAL: Final = timedelta(days=1)
"""Once is enough."""
_USAGE_INTERVAL: Final = timedelta(seconds=1)
_BURST_CHECK_INTERVAL: Final = timedelta(milliseconds=50)


class RunningWorker:
    """The actors of one run."""

    def __init__(
        self,
        engine: CheckedEngine,
        handlers: Mapping[str, Handler],
        options: WorkerSettings,
        *,
        middleware: Sequence[Middleware],
        maintenance_tasks: Sequence[MaintenanceTask],
        stopping: asyncio.Event,
        scheduler: Scheduler,
        relays: Callable[[str], Sequence[Relay]],
        catch_all: Mapping[str, Handler],
        limits: DeclaredLimits,
        app_place: tuple[str, str] | None,
    ) -> None:
        self.worker_id = new_worker_id()
        self._relays = relays(self.worker_id)
        self.inflight = Inflight()
        self.unstoppable = 0
        """Handlers that would not stop."""
        self._grace_deadline = Deadline()
        """For handlers to end."""
        self._stop_deadline = Deadline()
        """For those to stop that did not."""
        self._flush_deadline = Deadline()
        """For all that is to be stored then."""
        self._clean_up_seconds = min(options.grace.total_seconds() * _CLEAN_UP_SHARE, _FLUSH_TIMEOUT)
        self._is_force_stopped = False
        self._engine = engine
        self._options = options
        self._scheduler = scheduler
        self._limit_keeper = LimitKeeper(engine, limits, replaces=True)
        self._app_place = app_place
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._created_at = self._loop.time()
        self._threads = Threads(options.pool_size)
        self._processes = Processes(options.process_slots or os.cpu_count() or 1)
        self._runner = Runner(
            handlers=handlers,
            catch_all=catch_all,
            engine=engine,
            worker_id=self.worker_id,
            middleware=middleware,
            thread=self._run_in_thread,
            process=self._run_in_process,
            unknown_tasks=UnknownTasks(
                engine,
                worker_id=self.worker_id,
                policy=options.unknown_tasks,
                grace=options.unknown_task_grace,
            ),
            on_unfit=self._give_way,
        )
        self._health = HealthRecorder(self.worker_id, poll_interval=options.poll, file=options.health_file)
        self._metering = Metering(engine)
        self._hooks = Hooks(
            (*handlers.values(), *catch_all.values()), handler_for=self._runner.handler_for, worker_id=self.worker_id
        )
        self._record = self._hooks.after(self._metering.count)
        self._loop_watchdog = LoopWatchdog(running=lambda: self._runner.running, run_of=self._runner.run_of)
        self._pools: list[Pool] = []
        self._claimers: list[Claimer] = []
        self._isolated_runner: IsolatedRunner | None = None
        self._suspect_claimer: Claimer | None = None
        for queues, size in options.pools:
            self._add_pool(queues, size)
        if engine.capabilities.has(Feature.SUSPECTS):
            self._add_quarantine()
        info = WorkerInfo(
            id=self.worker_id,
            hostname=socket.gethostname(),
            pool_size=options.pool_size,
            version=onward_version(),
            queues=options.patterns,
            types=(*handlers, *((ANY_TYPE,) if catch_all else ())),
        )
        self._command: WorkerCommand | None = None
        """What the worker was told with the last heartbeat."""
        self._heartbeat = Heartbeat(engine, self.inflight, info=info, lease=options.lease, on_reply=self._on_heartbeat)
        self._queue_leases = QueueLeases(
            engine, self.inflight, lease=options.lease, set_interval=self._set_heartbeat_interval
        )
        for pool in self._pools:
            pool.lease, pool.confirmed_at = options.lease.total_seconds(), self._heartbeat.confirmed_at
        self._cancellation_watcher = CancellationWatcher(engine, self.inflight, on_cancelled=self._heartbeat.wake)
        self.leader = Leader(engine, self.worker_id, lease=options.leader_lease)
        self._maintenance_tasks = (
            *default_maintenance_tasks(engine, lease=options.lease, max_crashes=options.max_crashes),
            *scheduler.maintenance_tasks,
            *maintenance_tasks,
        )
        self._maintenance = MaintenanceLoops(
            self.leader, self._maintenance_tasks, on_ready=lambda _: self._notify_claimers()
        )
        self.leader.on_elected = self._maintenance.wake
        self._waker = Waker(
            engine,
            options.patterns,
            on_work=self._notify_claimers,
            on_change=self._on_change,
            on_cancelled=self._heartbeat.wake,
            on_due=self._maintenance.promote_now,
        )

    def _give_way(self) -> None:
        for claimer in self._claimers:
            claimer.give_way()

    def _add_pool(self, queues: tuple[str, ...], size: int) -> None:
        settler = Settler(self.inflight, self._record)
        pool = Pool(self._runner, size=size, settle=settler.add)
        claimer = Claimer(
            self._engine,
            pool,
            settler,
            self.inflight,
            worker_id=self.worker_id,
            queues=queues,
            lease=self._options.lease,
            poll=self._options.poll,
            on_claimed=self._on_claimed,
            on_answer=self._on_answer,
        )
        self._pools.append(pool)
        self._claimers.append(claimer)

    def _add_quarantine(self) -> None:
        """Add the pool whose jobs run alone in child processes, beside all others."""
        options, size = self._options, self._options.process_slots or os.cpu_count() or 1
        self._isolated_runner = IsolatedRunner(
            self._engine,
            worker_id=self.worker_id,
            size=size,
            max_crashes=options.max_crashes,
            handler_for=self._runner.handler_for,
            run_here=self._runner.run,
            app_place=self._app_place,
        )
        settler = Settler(self.inflight, self._record)
        pool = Pool(self._isolated_runner, size=size, settle=settler.add)
        self._suspect_claimer = Claimer(
            self._engine,
            pool,
            settler,
            self.inflight,
            worker_id=self.worker_id,
            queues=options.patterns,
            lease=options.lease,
            poll=options.poll,
            claims_suspects=True,
            on_answer=self._on_answer,
        )
        self._pools.append(pool)
        self._claimers.append(self._suspect_claimer)

    # Its life

    async def run(self, started: asyncio.Event, state: Any = None) -> None:
        """Work until stopping, then stop in good order. ``state`` is the value of the App's lifespan.

        In a task of its own that nobody cancels: what an exchange has brought would be lost with its answer, and stay
        held for as long as a lease. Who is in a hurry says so by :meth:`force_stop`.
        """
        self._runner.state = state
        self._check_memory_limit()
        fields = {"worker_id": self.worker_id, "queues": ",".join(self._options.patterns), **self._engine.describe()}
        log.info("worker started", extra=fields)
        self._heartbeat.start()
        self._loop_watchdog.start()
        try:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(service.run(), name=f"onward-{service.name}") for service in self._services()
                ]
                services.append(group.create_task(self._watch_store(), name="onward-store-watch"))
                claimer_tasks = [group.create_task(claimer.run(), name="onward-claimer") for claimer in self._claimers]
                started.set()
                await self._stopping.wait()
                log.info("worker stopping", extra={"worker_id": self.worker_id, "held": len(self.inflight)})
                for claimer in self._claimers:
                    claimer.close()
                with contextlib.suppress(TimeoutError):
                    # A handler may catch its cancellation and go on: that, too, ends within the grace.
                    async with self._grace_deadline.timeout(
                        self._options.grace.total_seconds() - self._clean_up_seconds
                    ):
                        await asyncio.wait(claimer_tasks)
                await self._stop_handlers()
                with contextlib.suppress(TimeoutError):
                    async with self._flush_deadline.timeout(_FLUSH_TIMEOUT):
                        await asyncio.wait(claimer_tasks)
                for task in (*claimer_tasks, *services):
                    task.cancel()
        finally:
            await self._stop_handlers()
            await self._deregister()

    def force_stop(self) -> None:
        """Stop, and wait for no handler. Said again: come to an end, whatever the store still owes an answer to."""
        if self._is_force_stopped:
            self._stop_deadline.bring_forward(_FORCED_STOP_TIMEOUT)
            self._flush_deadline.bring_forward(2 * _FORCED_STOP_TIMEOUT)
        self._is_force_stopped = True
        self._grace_deadline.bring_forward(0)
        self._stopping.set()

    async def open(self, started: asyncio.Event) -> bool:
        """Open the store if it is not, however long that takes; False: told to stop before it could be."""
        failures = 0
        while not self._stopping.is_set():
            try:
                await self._engine.open()
                await self._engine.check_worker()
                if self._options.write_process != "never":
                    await self._engine.isolate_writes(on_demand=self._options.write_process == "auto")
            except StoreUnavailable as error:
                if error.is_permanent:
                    raise
                failures += 1
                log_failure("worker", error, failures)
                started.set()  # as far as that goes: whoever starts us need not wait for the store as well
                give_up_after = self._options.give_up_after
                if give_up_after is not None and self._loop.time() - self._created_at > give_up_after.total_seconds():
                    raise
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STORE_RETRY_BACKOFF.delay(failures).total_seconds()):
                        await self._stopping.wait()
            else:
                return True
        return False

    async def _stop_handlers(self) -> None:
        """Stop what still runs, at no cost to the jobs."""
        with contextlib.suppress(TimeoutError):
            async with self._stop_deadline.timeout(max(self._clean_up_seconds, _MIN_CLEAN_UP)):
                await asyncio.gather(*(pool.close() for pool in self._pools))
        self.unstoppable = sum(pool.unstoppable for pool in self._pools)
        if self.unstoppable:
            for claimer in self._claimers:
                claimer.release_running()

    async def _deregister(self) -> None:
        """Give back whatever is still held, the term, and the place on the list of workers."""
        self._loop_watchdog.stop()
        self._heartbeat.stop()
        # A beat that is under way would put us on the list again after we have left it.
        with contextlib.suppress(TimeoutError):
            async with self._flush_deadline.timeout(_FLUSH_TIMEOUT):
                await asyncio.to_thread(self._heartbeat.join, _FLUSH_TIMEOUT)
        try:
            async with self._flush_deadline.timeout(_FLUSH_TIMEOUT):
                await _run_each(
                    *(claimer.flush for claimer in self._claimers),
                    self._metering.send,
                    *(relay.release for relay in self._relays),
                    self.leader.resign,
                    lambda: self._engine.deregister(self.worker_id),
                )
        except (StoreUnavailable, TimeoutError):
            log.warning(
                "worker not deregistered: store unavailable, leases will expire", extra={"worker_id": self.worker_id}
            )
        with contextlib.suppress(TimeoutError):
            async with self._flush_deadline.timeout(_FLUSH_TIMEOUT):
                await self._hooks.finish()
        self._threads.close()
        self._processes.close()
        if self._isolated_runner is not None:
            self._isolated_runner.close()
        self._health.remove()
        log.info("worker stopped", extra={"worker_id": self.worker_id, **self.inflight.tally})

    def _services(self) -> list[Periodic]:
        services = [
            Periodic("waker", self._waker.step, interval=_RELISTEN_INTERVAL),
            Periodic("cancellation", self._cancellation_watcher.step, interval=_RELISTEN_INTERVAL),
            Periodic("leases", self._queue_leases.step, interval=LEASE_CHECK_INTERVAL),
        ]
        if self._limit_keeper.has_limits:
            services.append(Periodic("limits", self._limit_keeper.step, interval=LIMIT_CHECK_INTERVAL))
        if self._options.burst:
            services.append(Periodic("burst", self._check_exhausted, interval=_BURST_CHECK_INTERVAL))
        has = self._engine.capabilities.has
        if has(Feature.LEADER):
            services.append(Periodic("leader", self.leader.step, interval=self.leader.interval))
            services.extend(self._maintenance.loops)
        if has(Feature.SCHEDULES):
            services.append(Periodic("schedules", self._scheduler.declare, interval=_DECLARE_INTERVAL))
        if has(Feature.USAGE):
            services.append(Periodic("usage", self._metering.send, interval=_USAGE_INTERVAL))
        services += [Periodic("webhook", relay.step, interval=EVENT_POLL_INTERVAL) for relay in self._relays]
        if self._options.max_memory is not None:
            services.append(Periodic("memory", self._check_memory, interval=_MEMORY_CHECK_INTERVAL))
        return services

    async def _watch_store(self) -> None:
        """Give up when the store has owed an answer for too long."""
        if self._options.give_up_after is None:
            return
        timeout = self._options.give_up_after.total_seconds()
        while True:
            await asyncio.sleep(timeout / 10)
            if self._unanswered_seconds() > timeout:
                raise StoreUnavailable(f"the store has not answered for {timeout:g} s: {dict(self._engine.describe())}")

    def _unanswered_seconds(self) -> float:
        """Say for how many seconds the store has owed an answer."""
        since = [claimer.unanswered_since for claimer in self._claimers if claimer.unanswered_since is not None]
        return self._loop.time() - min(since) if since else 0.0

    def _check_memory_limit(self) -> None:
        """Refuse a limit that the process exceeds before its first job: it would end and be started again for ever."""
        limit, held = self._options.max_memory, resident_memory() // _MEBIBYTE
        if limit is not None and held >= limit:
            raise InvalidValue(
                "max_memory", limit, f"must be more than the {held} MiB that this process holds before its first job"
            )

    async def _check_exhausted(self) -> None:
        """Stop when there is no job left to run now: none is ready, and none that is due waits for its promotion."""
        has_promoted = self._maintenance.has_promoted or not self._engine.capabilities.has(Feature.LEADER)
        if not has_promoted or self._stopping.is_set():
            return
        idle = [claimer for claimer in self._claimers if not claimer.is_exhausted]
        for claimer in idle:
            if claimer.is_drained:
                claimer.notify()  # look at once for what is left, not at the next poll
        if not idle:
            log.info("worker stopping: no jobs left", extra={"worker_id": self.worker_id})
            self._stopping.set()

    async def _check_memory(self) -> None:
        memory = resident_memory()
        if self._options.max_memory is not None and memory > self._options.max_memory * _MEBIBYTE:
            log.info("worker stopping: memory limit reached", extra={"worker_id": self.worker_id, "memory": memory})
            self._stopping.set()

    # What its actors tell each other

    def _on_answer(self) -> None:
        self._health.record_poll()
        max_jobs = self._options.max_jobs
        if (
            max_jobs is not None
            and sum(pool.finished for pool in self._pools) >= max_jobs
            and not self._stopping.is_set()
        ):
            log.info("worker stopping: job limit reached", extra={"worker_id": self.worker_id, "jobs": max_jobs})
            self._stopping.set()

    def _on_claimed(self, claimed: Claims) -> None:
        if claimed.has_suspects and self._suspect_claimer is not None:
            self._suspect_claimer.notify()

    def _notify_claimers(self) -> None:
        for claimer in self._claimers:
            if claimer is not self._suspect_claimer:
                claimer.notify()

    def _on_change(self) -> None:
        self._notify_claimers()
        self._cancellation_watcher.notify_change()

    def _set_heartbeat_interval(self, seconds: float) -> None:
        self._heartbeat.set_interval(seconds)
        for pool in self._pools:
            pool.lease = seconds * HEARTBEATS_PER_LEASE

    def _on_heartbeat(self, answer: HeartbeatReply) -> None:
        """Take a beat's answer, on the heartbeat's thread, to the loop."""
        self._health.record_heartbeat()
        with contextlib.suppress(RuntimeError):  # the loop has closed: there is nobody left to tell
            self._loop.call_soon_threadsafe(self._apply_reply, answer)

    def _apply_reply(self, answer: HeartbeatReply) -> None:
        """Stop the handlers of claims that are ours no longer, and obey what the worker has been told."""
        if not self._unanswered_seconds():
            self._health.record_poll()
        self._obey(answer.command)
        for token in answer.lost:
            held = self.inflight.get(token)
            # An outcome on its way has the store's own answer coming: a beat that overtook it knows less.
            if held is None or held.stage is SETTLING:
                continue
            was_running, held.stage = held.stage is RUNNING, LOST
            self.inflight.remove(token)
            cancelled = token in answer.cancelled
            fields = {"job_id": held.claim.ref.id, "queue": held.claim.ref.queue, "task": held.claim.type}
            if cancelled:
                log.info("job cancelled, stopping its handler", extra=fields)
            else:
                log.warning("claim lost, stopping its handler", extra=fields)
            if was_running and not self._runner.cancel(token) and self._isolated_runner is not None:
                self._isolated_runner.cancel(token)

    def _obey(self, command: WorkerCommand | None) -> None:
        """Claim, claim no more, or stop: the same command comes with every answer until there is another."""
        if command is not self._command:
            fields = {"worker_id": self.worker_id, "command": command or WorkerCommand.RESUME}
            log.info("worker told what to do", extra=fields)
            self._command = command
        for claimer in self._claimers:
            claimer.set_quiet(is_quiet=command is not None)
        if command is WorkerCommand.STOP:
            self._stopping.set()

    # Where plain functions run

    def _run_in_thread(self, invocation: Invocation) -> Awaitable[Any]:
        return self._threads.call(invocation.call)

    def _run_in_process(self, invocation: Invocation) -> Awaitable[Any]:
        function = invocation.handler.function
        return self._processes.call(
            function.__module__,
            function.__qualname__,
            invocation.run,
            ignores_unknown=invocation.handler.arguments.ignores_unknown,
        )


async def _run_each(*steps: Callable[[], Awaitable[object]]) -> None:
    """Run steps in order. One that fails does not keep the next from running, unless the store is away."""
    for step in steps:
        try:
            await step()
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - it is logged, and nothing comes after the last step
            log_failure("worker", error, 1)
