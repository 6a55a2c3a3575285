"""Queues and workers."""

from __future__ import annotations

from typing import Final

import msgspec

from onward.http.endpoints import Call, endpoint
from onward.service.values import Queues, QueueSettingsChange, QueueView, WorkerList


class QueuesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which queues."""

    pattern: str = "*"


class PauseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a queue is paused."""

    reason: str | None = None


async def list_queues(call: Call) -> Queues:
    return await call.services.queues.list(call.identity, pattern=call.query.pattern)


async def get(call: Call) -> QueueView:
    return await call.services.queues.get(call.identity, call.path["queue"])


async def pause(call: Call) -> QueueView:
    reason = None if call.body is None else call.body.reason
    return await call.services.queues.pause(call.identity, call.path["queue"], reason=reason)


async def resume(call: Call) -> QueueView:
    return await call.services.queues.resume(call.identity, call.path["queue"])


async def configure(call: Call) -> QueueView:
    return await call.services.queues.configure(call.identity, call.path["queue"], call.body)


async def list_workers(call: Call) -> WorkerList:
    return await call.services.workers.list(call.identity)


async def quiet(call: Call) -> None:
    await call.services.workers.quiet(call.identity, call.path["id"])


async def resume_worker(call: Call) -> None:
    await call.services.workers.resume(call.identity, call.path["id"])


async def stop(call: Call) -> None:
    await call.services.workers.stop(call.identity, call.path["id"])


ENDPOINTS: Final = (
    endpoint("GET", "/queues", "queues.list", list_queues, query=QueuesQuery, returns=Queues),
    endpoint("GET", "/queues/{queue}", "queues.get", get, returns=QueueView),
    endpoint("POST", "/queues/{queue}/pause", "queues.pause", pause, body=PauseRequest, optional_body=True,
             returns=QueueView),
    endpoint("POST", "/queues/{queue}/resume", "queues.resume", resume, returns=QueueView),
    endpoint("PATCH", "/queues/{queue}", "queues.configure", configure, body=QueueSettingsChange, returns=QueueView),
    endpoint("GET", "/workers", "workers.list", list_workers, returns=WorkerList),
    endpoint("POST", "/workers/{id}/quiet", "workers.quiet", quiet, status=204),
    endpoint("POST", "/workers/{id}/resume", "workers.resume", resume_worker, status=204),
    endpoint("POST", "/workers/{id}/stop", "workers.stop", stop, status=204),
)  # fmt: skip
