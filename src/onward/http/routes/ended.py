"""Dead letters and the archive."""

from __future__ import annotations

from typing import Final

from onward.http.endpoints import Call, Reply, endpoint
from onward.http.routes.jobs import CountQuery, ListQuery, accepted
from onward.job import Job
from onward.service.values import BulkOperation, Counts, JobPage, Selection


async def list_dead(call: Call) -> JobPage:
    return await call.services.dead.list(call.identity, call.query, cursor=call.query.cursor, limit=call.query.limit)


async def count_dead(call: Call) -> Counts:
    return await call.services.dead.count(call.identity, call.query, by=call.query.by)


async def replay_dead(call: Call) -> Reply:
    return accepted(await call.services.bulk.replay_dead(call.identity, call.body))


async def purge_dead(call: Call) -> Reply:
    return accepted(await call.services.bulk.purge_dead(call.identity, call.body))


async def list_archived(call: Call) -> JobPage:
    return await call.services.archive.list(call.identity, call.query, cursor=call.query.cursor, limit=call.query.limit)


async def count_archived(call: Call) -> Counts:
    return await call.services.archive.count(call.identity, call.query, by=call.query.by)


async def get_archived(call: Call) -> Job:
    return await call.services.archive.get(call.identity, call.job)


async def purge_archive(call: Call) -> Reply:
    return accepted(await call.services.bulk.purge_archive(call.identity, call.body))


ENDPOINTS: Final = (
    endpoint("GET", "/dead", "dead.list", list_dead, query=ListQuery, returns=JobPage),
    endpoint("GET", "/dead/count", "dead.count", count_dead, query=CountQuery, returns=Counts),
    endpoint("POST", "/dead/replay", "dead.replay", replay_dead, body=Selection, returns=BulkOperation, status=202),
    endpoint("POST", "/dead/purge", "dead.purge", purge_dead, body=Selection, returns=BulkOperation, status=202),
    endpoint("GET", "/archive", "archive.list", list_archived, query=ListQuery, returns=JobPage),
    endpoint("GET", "/archive/count", "archive.count", count_archived, query=CountQuery, returns=Counts),
    endpoint("POST", "/archive/purge", "archive.purge", purge_archive, body=Selection, returns=BulkOperation,
             status=202),
    endpoint("GET", "/archive/{id}", "archive.get", get_archived, returns=Job),
    endpoint("GET", "/queues/{queue}/archive/{id}", "archive.get", get_archived, returns=Job, id_suffix=".in_queue"),
)  # fmt: skip
