"""Batches and flows."""

from __future__ import annotations

from typing import Final

from onward.http.endpoints import Call, Paging, endpoint
from onward.service.values import BatchPage, BatchRequest, BatchView, Cancelled, EnqueuedJobs, Graph, JobPage


async def list_batches(call: Call) -> BatchPage:
    return await call.services.batches.list(call.identity, cursor=call.query.cursor, limit=call.query.limit)


async def get(call: Call) -> BatchView:
    return await call.services.batches.get(call.identity, call.path["name"])


async def jobs(call: Call) -> JobPage:
    return await call.services.batches.jobs(
        call.identity, call.path["name"], cursor=call.query.cursor, limit=call.query.limit
    )


async def graph(call: Call) -> Graph:
    return await call.services.batches.graph(call.identity, call.path["name"])


async def create(call: Call) -> EnqueuedJobs:
    return await call.services.batches.create(call.identity, call.path["name"], call.body)


async def seal(call: Call) -> BatchView:
    return await call.services.batches.seal(call.identity, call.path["name"])


async def pause(call: Call) -> BatchView:
    return await call.services.batches.pause(call.identity, call.path["name"])


async def resume(call: Call) -> BatchView:
    return await call.services.batches.resume(call.identity, call.path["name"])


async def cancel(call: Call) -> Cancelled:
    return await call.services.batches.cancel(call.identity, call.path["name"])


async def delete(call: Call) -> None:
    await call.services.batches.delete(call.identity, call.path["name"])


ENDPOINTS: Final = (
    endpoint("GET", "/batches", "batches.list", list_batches, query=Paging, returns=BatchPage),
    endpoint("GET", "/batches/{name}", "batches.get", get, returns=BatchView),
    endpoint("GET", "/batches/{name}/jobs", "batches.jobs", jobs, query=Paging, returns=JobPage),
    endpoint("GET", "/batches/{name}/graph", "batches.graph", graph, returns=Graph),
    endpoint("POST", "/batches/{name}", "batches.create", create, body=BatchRequest, returns=EnqueuedJobs, status=201),
    endpoint("POST", "/batches/{name}/seal", "batches.seal", seal, returns=BatchView),
    endpoint("POST", "/batches/{name}/pause", "batches.pause", pause, returns=BatchView),
    endpoint("POST", "/batches/{name}/resume", "batches.resume", resume, returns=BatchView),
    endpoint("POST", "/batches/{name}/cancel", "batches.cancel", cancel, returns=Cancelled),
    endpoint("DELETE", "/batches/{name}", "batches.delete", delete, status=204),
)
