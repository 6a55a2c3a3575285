"""Jobs, and changes by filter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from starlette.types import Receive, Scope, Send

from onward.errors import InvalidValue
from onward.http.bodies import NDJSON, check_media_type, decode, decode_lines
from onward.http.endpoints import JSON, Call, Endpoint, Paging, Reply, endpoint
from onward.http.request_headers import header
from onward.http.security import raw_headers
from onward.job import Job
from onward.service.export import csv_chunks, ndjson_chunks
from onward.service.jobs import MAX_ENQUEUED
from onward.service.values import (
    BulkOperation,
    BulkOperationPage,
    ChangedJob,
    Counts,
    EnqueuedJob,
    EnqueuedJobs,
    EnqueueRequest,
    JobEdit,
    JobPage,
    JobQuery,
    JobResult,
    LogLines,
    Reasons,
    Selection,
)


class ListQuery(JobQuery, frozen=True, kw_only=True):
    """Which jobs, and which page of them."""

    cursor: str | None = None
    limit: int = 50
    order: Literal["newest", "oldest"] = "newest"


class CountQuery(JobQuery, frozen=True, kw_only=True):
    """Which jobs, and by what to count them."""

    by: Literal["status", "queue", "type", "org_id"] = "status"


class ExportQuery(JobQuery, frozen=True, kw_only=True):
    """Which jobs, and how to write them."""

    format: Literal["csv", "ndjson"] = "ndjson"
    limit: int = 10_000


class ResultQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to wait."""

    timeout: float = 0.0
    """Seconds, at most 60."""


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a job is cancelled."""

    reason: str = "cancelled"


class NoQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No parameters."""


# Read


async def list_jobs(call: Call) -> JobPage:
    query: ListQuery = call.query
    return await call.services.jobs.list(
        call.identity, query, cursor=query.cursor, limit=query.limit, oldest=query.order == "oldest"
    )


async def list_jobs_of_queue(call: Call) -> JobPage:
    query: ListQuery = call.query
    if query.queue:
        raise InvalidValue("queue", list(query.queue), "must not be given: the path names the queue")
    narrowed = msgspec.structs.replace(query, queue=(call.path["queue"],))
    return await call.services.jobs.list(
        call.identity, narrowed, cursor=query.cursor, limit=query.limit, oldest=query.order == "oldest"
    )


async def count(call: Call) -> Counts:
    return await call.services.jobs.count(call.identity, call.query, by=call.query.by)


async def get(call: Call) -> Job:
    return await call.services.jobs.get(call.identity, call.job)


async def logs(call: Call) -> LogLines:
    return await call.services.jobs.logs(call.identity, call.job)


async def explain(call: Call) -> Reasons:
    return await call.services.jobs.explain(call.identity, call.job)


async def result(call: Call) -> JobResult:
    return await call.services.jobs.result(call.identity, call.job, timeout=call.query.timeout)


async def reveal(call: Call) -> Job:
    return await call.services.jobs.reveal(call.identity, call.job)


# Enqueue


async def enqueue(call: Call) -> Reply:
    request: EnqueueRequest = call.body
    key = header(call.request, b"idempotency-key")
    if key is not None:
        if request.idempotency_key not in {None, key}:
            raise InvalidValue("idempotency_key", request.idempotency_key, "differs from the Idempotency-Key header")
        request = msgspec.structs.replace(request, idempotency_key=key)
    enqueued = await call.services.jobs.enqueue(call.identity, request)
    return Reply(value=enqueued, status=201 if enqueued.enqueue_status == "inserted" else 200)


async def enqueue_many(call: Call) -> EnqueuedJobs:
    if header(call.request, b"idempotency-key") is not None:
        rule = "is for one job: give each job of the body its idempotency_key"
        raise InvalidValue("Idempotency-Key", "…", rule)
    if check_media_type(call.request, frozenset({JSON}) | NDJSON) in NDJSON:
        requests = decode_lines(call.body, EnqueueRequest, most=MAX_ENQUEUED)
    else:
        requests = decode(call.body, list[EnqueueRequest])
    return await call.services.jobs.enqueue_many(call.identity, requests)


# Change


async def cancel(call: Call) -> ChangedJob:
    reason = "cancelled" if call.body is None else call.body.reason
    return await call.services.jobs.cancel(call.identity, call.job, reason=reason)


async def replay(call: Call) -> ChangedJob:
    return await call.services.jobs.replay(call.identity, call.job)


async def delete(call: Call) -> ChangedJob:
    return await call.services.jobs.delete(call.identity, call.job)


async def edit(call: Call) -> Job:
    return await call.services.jobs.edit(call.identity, call.job, call.body)


async def cancel_many(call: Call) -> Reply:
    return accepted(await call.services.bulk.cancel(call.identity, call.body))


async def replay_many(call: Call) -> Reply:
    return accepted(await call.services.bulk.replay(call.identity, call.body))


async def delete_many(call: Call) -> Reply:
    return accepted(await call.services.bulk.delete(call.identity, call.body))


def accepted(operation: BulkOperation) -> Reply:
    """Answer 202 for a change that is still to be made."""
    return Reply(value=operation, status=200 if operation.id is None else 202)


async def list_operations(call: Call) -> BulkOperationPage:
    return await call.services.bulk.list(call.identity, cursor=call.query.cursor, limit=call.query.limit)


async def get_operation(call: Call) -> BulkOperation:
    return await call.services.bulk.get(call.identity, call.path["id"])


async def cancel_operation(call: Call) -> BulkOperation:
    return await call.services.bulk.stop(call.identity, call.path["id"])


# Export


async def export(call: Call) -> Reply:
    query: ExportQuery = call.query
    pages = await call.services.jobs.export(call.identity, query, limit=query.limit)
    is_csv = query.format == "csv"

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        media_type = "text/csv; charset=utf-8" if is_csv else "application/x-ndjson"
        headers = {
            "Content-Type": media_type,
            "Content-Disposition": f'attachment; filename="jobs.{query.format}"',
        }
        await send({"type": "http.response.start", "status": 200, "headers": raw_headers(headers)})
        async for chunk in csv_chunks(pages) if is_csv else ndjson_chunks(pages):
            if not await call.services.access.is_valid(call.identity):
                raise ConnectionAbortedError("the token was revoked")  # the rest must not look like the end
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return Reply(stream=stream)


def _of_one_job() -> Iterable[Endpoint]:
    """The verbs of one job, by its id and by its queue and id."""
    for prefix, suffix in (("/jobs/{id}", ""), ("/queues/{queue}/jobs/{id}", ".in_queue")):
        both: dict[str, Any] = {"id_suffix": suffix}
        yield endpoint("GET", prefix, "jobs.get", get, returns=Job, **both)
        yield endpoint("GET", f"{prefix}/result", "jobs.result", result, query=ResultQuery, returns=JobResult, **both)
        yield endpoint("GET", f"{prefix}/logs", "jobs.logs", logs, returns=LogLines, **both)
        yield endpoint("GET", f"{prefix}/explain", "jobs.explain", explain, returns=Reasons, **both)
        yield endpoint("POST", f"{prefix}/reveal", "jobs.reveal", reveal, returns=Job, **both)
        yield endpoint(
            "POST",
            f"{prefix}/cancel",
            "jobs.cancel",
            cancel,
            body=CancelRequest,
            optional_body=True,
            returns=ChangedJob,
            **both,
        )
        yield endpoint("POST", f"{prefix}/replay", "jobs.replay", replay, returns=ChangedJob, **both)
        yield endpoint("DELETE", prefix, "jobs.delete", delete, returns=ChangedJob, **both)
        yield endpoint("PATCH", prefix, "jobs.edit", edit, body=JobEdit, returns=Job, **both)


ENDPOINTS: Final = (
    endpoint("POST", "/jobs", "jobs.enqueue", enqueue, body=EnqueueRequest, returns=EnqueuedJob, status=201),
    endpoint("GET", "/jobs", "jobs.list", list_jobs, query=ListQuery, returns=JobPage),
    endpoint("POST", "/jobs/bulk", "jobs.enqueue_many", enqueue_many, is_bulk=True, body=list[EnqueueRequest],
             returns=EnqueuedJobs),
    endpoint("GET", "/jobs/count", "jobs.count", count, query=CountQuery, returns=Counts),
    endpoint("GET", "/jobs/export", "jobs.export", export, query=ExportQuery, returns=str,
             media_types=("application/x-ndjson", "text/csv")),
    endpoint("POST", "/jobs/cancel", "jobs.cancel_many", cancel_many, body=Selection, returns=BulkOperation,
             status=202),
    endpoint("POST", "/jobs/replay", "jobs.replay_many", replay_many, body=Selection, returns=BulkOperation,
             status=202),
    endpoint("POST", "/jobs/delete", "jobs.delete_many", delete_many, body=Selection, returns=BulkOperation,
             status=202),
    *_of_one_job(),
    endpoint("GET", "/queues/{queue}/jobs", "jobs.list", list_jobs_of_queue, query=ListQuery, returns=JobPage,
             id_suffix=".in_queue"),
    endpoint("GET", "/operations", "operations.list", list_operations, query=Paging, returns=BulkOperationPage),
    endpoint("GET", "/operations/{id}", "operations.get", get_operation, returns=BulkOperation),
    endpoint("POST", "/operations/{id}/cancel", "operations.cancel", cancel_operation, returns=BulkOperation),
)  # fmt: skip
