"""Schedules."""

from __future__ import annotations

from typing import Final

from onward.http.endpoints import Call, endpoint
from onward.service.values import EnqueuedJob, ScheduleRequest, Schedules, ScheduleView


async def list_schedules(call: Call) -> Schedules:
    return await call.services.schedules.list(call.identity)


async def get(call: Call) -> ScheduleView:
    return await call.services.schedules.get(call.identity, call.path["name"])


async def put(call: Call) -> ScheduleView:
    return await call.services.schedules.set(call.identity, call.path["name"], call.body)


async def pause(call: Call) -> ScheduleView:
    return await call.services.schedules.pause(call.identity, call.path["name"])


async def resume(call: Call) -> ScheduleView:
    return await call.services.schedules.resume(call.identity, call.path["name"])


async def run(call: Call) -> EnqueuedJob:
    return await call.services.schedules.run(call.identity, call.path["name"])


async def delete(call: Call) -> None:
    await call.services.schedules.delete(call.identity, call.path["name"])


ENDPOINTS: Final = (
    endpoint("GET", "/schedules", "schedules.list", list_schedules, returns=Schedules),
    endpoint("GET", "/schedules/{name}", "schedules.get", get, returns=ScheduleView),
    endpoint("PUT", "/schedules/{name}", "schedules.set", put, body=ScheduleRequest, returns=ScheduleView),
    endpoint("POST", "/schedules/{name}/pause", "schedules.pause", pause, returns=ScheduleView),
    endpoint("POST", "/schedules/{name}/resume", "schedules.resume", resume, returns=ScheduleView),
    endpoint("POST", "/schedules/{name}/run", "schedules.run", run, returns=EnqueuedJob, status=201),
    endpoint("DELETE", "/schedules/{name}", "schedules.delete", delete, status=204),
)
