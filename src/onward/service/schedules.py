"""Schedules."""

from __future__ import annotations

from onward.arguments import nearest
from onward.cron import trigger_of
from onward.errors import InvalidValue, ScheduleNotFound
from onward.schedule import Schedule
from onward.service.identity import Identity
from onward.service.new_jobs import new_job
from onward.service.operations import operation
from onward.service.scopes import sees
from onward.service.store import Store, record
from onward.service.values import EnqueuedJob, ScheduleRequest, ScheduleView, duration, payload_of, schedule_view
from onward.service.values import Schedules as ScheduleList
from onward.validation import check_name

_NOW = ("delay", "run_at", "start_by", "idempotency_key")
"""What belongs to one job, not to a schedule of jobs."""


class Schedules:
    """Schedules, as a caller may see and change them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @operation("schedules.list")
    async def list(self, identity: Identity) -> ScheduleList:
        """List schedules, by name."""
        return ScheduleList(items=tuple(map(self._view, await self._visible(identity))))

    @operation("schedules.get")
    async def get(self, identity: Identity, name: str) -> ScheduleView:
        """Read a schedule."""
        return self._view(await self._find(identity, name))

    @operation("schedules.set")
    async def set(self, identity: Identity, name: str, request: ScheduleRequest) -> ScheduleView:
        """Create a schedule, or change the one of that name."""
        check_name("name", name)
        for field in _NOW:
            if getattr(request.job, field) is not None:
                raise InvalidValue(f"job.{field}", getattr(request.job, field), "cannot be set for every run")
        engine = await self._store.engine()
        known = next((one for one in await engine.schedules() if one.name == name), None)
        if known is not None and not sees(identity, known.job.queue, known.job.org_id):
            raise InvalidValue("name", name, "is taken: choose another")
        every = None if request.every is None else duration("every", request.every)
        schedule = Schedule(
            name=name,
            job=new_job(self._store, identity, request.job, field="job"),
            trigger=trigger_of(request.cron, every=every, timezone=request.timezone),
            missed=engine.capabilities.missed_policy(request.missed),
        )
        return await self._resume(identity, "schedules.set", schedule)

    @operation("schedules.pause")
    async def pause(self, identity: Identity, name: str) -> ScheduleView:
        """Enqueue no job of the schedule until it is resumed."""
        schedule = await self._find(identity, name)
        audit = record(identity, "schedules.pause", target=name)
        return self._view(await (await self._store.engine()).save_schedule(schedule.stopped(), audit=audit))

    @operation("schedules.resume")
    async def resume(self, identity: Identity, name: str) -> ScheduleView:
        """Continue with the next time from now; those that passed meanwhile were not missed."""
        schedule = await self._find(identity, name)
        if not schedule.paused:
            engine = await self._store.engine()
            await engine.record_audit(record(identity, "schedules.resume", target=name, count=0))
            return self._view(schedule)
        return await self._resume(identity, "schedules.resume", schedule)

    @operation("schedules.run")
    async def run(self, identity: Identity, name: str) -> EnqueuedJob:
        """Enqueue the schedule's job now, besides its times."""
        schedule = await self._find(identity, name)
        audit = record(identity, "schedules.run", target=name)
        enqueued = (await (await self._store.engine()).enqueue([schedule.job], audit=audit))[0]
        return EnqueuedJob(id=enqueued.ref.id, queue=enqueued.ref.queue, enqueue_status=enqueued.enqueue_status)

    @operation("schedules.delete")
    async def delete(self, identity: Identity, name: str) -> None:
        """Delete a schedule. The jobs that it has enqueued stay."""
        await self._find(identity, name)
        audit = record(identity, "schedules.delete", target=name)
        await (await self._store.engine()).delete_schedule(name, audit=audit)

    async def _resume(self, identity: Identity, action: str, schedule: Schedule) -> ScheduleView:
        engine = await self._store.engine()
        now = (await engine.due_schedules(limit=1)).now
        audit = record(identity, action, target=schedule.name, detail={"type": schedule.job.type})
        return self._view(await engine.save_schedule(schedule.going_on(now), audit=audit))

    async def _visible(self, identity: Identity) -> tuple[Schedule, ...]:
        found = await (await self._store.engine()).schedules()
        return tuple(one for one in found if sees(identity, one.job.queue, one.job.org_id))

    async def _find(self, identity: Identity, name: str) -> Schedule:
        known = {schedule.name: schedule for schedule in await self._visible(identity)}
        if name not in known:
            raise ScheduleNotFound(f"there is no schedule {name!r}{nearest(name, known)}")
        return known[name]

    def _view(self, schedule: Schedule) -> ScheduleView:
        payload = payload_of(schedule.job.payload)
        return schedule_view(schedule, self._store.redactor.payload(schedule.job.type, payload))
