"""Node migrates pg-boss while Python works on it: the next statement is fitted to what is there then (P1)."""

from __future__ import annotations

import os

from onward.engine.checked import CheckedEngine
from onward.engine.values import ClaimRequest, Settlement
from onward.engines.pgboss.engine import PgBossEngine
from onward.job import NewJob
from onward.lifecycle import Complete, JobStatus
from tests.servers.pgboss import NodePgBoss, drop_schema, make_schema
from tests.servers.postgres import postgres_url


async def test_what_was_enqueued_before_is_run_after_and_new_columns_are_used():  # P1
    url, schema = postgres_url(), f"growing_{os.getpid()}"
    make_schema(url, schema, "11")
    inner = PgBossEngine(url, schema=schema)
    engine = CheckedEngine(inner)
    await engine.open()
    try:
        assert not inner.schema.has("job.heartbeat_on")
        old = inner.schema.probe.version
        with NodePgBoss(url, schema, "11") as node:
            node.createQueue("q")
        (before,) = await engine.enqueue([NewJob(type="q", queue="q", payload="1")])
        request = ClaimRequest(worker_id="python-1", queues=("q",), slots=5)
        (held,) = (await engine.claim(request)).claims
        (waiting,) = await engine.enqueue([NewJob(type="q", queue="q", payload="2")])

        with NodePgBoss(url, schema, "12") as node:
            assert not await engine.settle([Settlement(held, Complete('"kept"'))])
            inner.queue_cache.invalidate()
            (after,) = await engine.enqueue([NewJob(type="q", queue="q", payload="3")])
            assert inner.schema.probe.version > old
            assert inner.schema.has("job.heartbeat_on")
            claims = (await engine.claim(request)).claims
            assert [claim.ref for claim in claims] == [waiting.ref, after.ref]
            assert node.job("q", after.id)["heartbeatOn"] is not None
            assert node.job("q", before.id)["output"] == {"value": "kept"}
        job = await engine.get(before.ref)
        assert job is not None
        assert job.status is JobStatus.COMPLETED
    finally:
        await engine.close()
        drop_schema(url, schema)
