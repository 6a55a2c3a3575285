"""Ways to read a queue: by groups, by PGMQ's own order, under a condition; and what older versions have not."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onward.engine.checked import CheckedEngine
from onward.engine.values import JobFilter, QueueChange, Settlement
from onward.engines.pgmq.engine import PGMQEngine
from onward.engines.pgmq.settings import PgmqSettings, from_url
from onward.errors import InvalidValue, SchemaTooOld
from onward.job import NewJob
from onward.lifecycle import Complete, JobStatus, Retry
from tests.engines.pgmq.conftest import claim_jobs, settle
from tests.engines.pgmq.test_messages import BOOM
from tests.servers.pgmq import drop_database, make_database
from tests.servers.postgres import postgres_url

Sql = Callable[..., list[Any]]
Opened = Callable[..., Awaitable[CheckedEngine]]


@pytest.mark.parametrize("way", ["grouped", "grouped_rr", "grouped_head"])
async def test_a_group_is_read_in_order_and_not_past_what_is_held(opened: Opened, queue: str, way: str):
    engine = await opened(read_modes={queue: way})
    for org, payload in (("a", "1"), ("a", "2"), ("b", "3")):
        await engine.enqueue([NewJob(type="t", queue=queue, org_id=org, payload=payload)])
    (first,) = await claim_jobs(engine, queue, slots=1)
    assert (first.org_id, first.payload) == ("a", "1")
    assert [claim.payload for claim in await claim_jobs(engine, queue)] == ["3"]
    assert await settle(engine, first, Complete())
    assert [claim.payload for claim in await claim_jobs(engine, queue)] == ["2"]


@pytest.mark.parametrize("way", ["grouped", "grouped_rr", "grouped_head"])
async def test_a_group_runs_one_message_at_a_time_whatever_the_slots(opened: Opened, queue: str, way: str):  # G1
    engine, other = await opened(read_modes={queue: way}), await opened(read_modes={queue: way})
    for payload in ("1", "2", "3"):
        await engine.enqueue([NewJob(type="t", queue=queue, org_id="a", payload=payload)])
        await engine.enqueue([NewJob(type="t", queue=queue, org_id="b", payload=payload)])
    for payload in ("1", "2", "3"):
        claims = await claim_jobs(engine, queue, slots=100)
        assert [(claim.org_id, claim.payload) for claim in claims] == [("a", payload), ("b", payload)]
        assert await claim_jobs(other, queue, slots=100) == ()
        assert not await engine.settle([Settlement(claim, Complete()) for claim in claims])
    assert await claim_jobs(engine, queue, slots=100) == ()


@pytest.mark.parametrize("way", ["grouped", "grouped_rr", "grouped_head"])
async def test_a_message_that_fails_is_tried_again_before_the_rest_of_its_group(
    opened: Opened, queue: str, sql: Sql, way: str
):  # G1
    engine = await opened(read_modes={queue: way})
    for payload in ("1", "2"):
        await engine.enqueue([NewJob(type="t", queue=queue, org_id="a", payload=payload)])
    (claim,) = await claim_jobs(engine, queue, slots=100)
    assert await settle(engine, claim, Retry(timedelta(hours=1), BOOM))
    assert await claim_jobs(engine, queue, slots=100) == ()
    sql(f"update pgmq.q_{queue} set vt = now() where vt > now()")
    assert [claim.payload for claim in await claim_jobs(engine, queue, slots=100)] == ["1"]


@pytest.mark.parametrize("way", ["grouped", "grouped_rr"])
async def test_two_who_read_a_group_at_once_do_not_both_get_of_it(opened: Opened, queue: str, sql: Sql, way: str):  # G1
    engine = await opened(read_modes={queue: way})
    for payload in ("1", "2"):
        await engine.enqueue([NewJob(type="t", queue=queue, org_id="a", payload=payload)])
    sql("begin")
    sql(f"update pgmq.q_{queue} set vt = now() + interval '1 hour', read_ct = 1 where message = '1'")
    assert await claim_jobs(engine, queue, slots=100) == ()  # the first is being read, and the second waits for it
    sql("rollback")
    assert [claim.payload for claim in await claim_jobs(engine, queue, slots=100)] == ["1"]


@pytest.mark.parametrize("way", ["grouped", "grouped_rr", "grouped_head"])
async def test_a_message_that_is_committed_late_waits_for_the_one_of_its_group_that_runs(
    opened: Opened, queue: str, sql: Sql, way: str
):  # G1
    engine = await opened(read_modes={queue: way})
    sql("begin")
    sql("""select pgmq.send(%s, '1'::jsonb, '{"x-pgmq-group": "a"}'::jsonb)""", queue)
    for org in ("a", "b"):
        await engine.enqueue([NewJob(type="t", queue=queue, org_id=org, payload="2")])
    running, _ = await claim_jobs(engine, queue)
    sql("commit")
    assert await claim_jobs(engine, queue) == ()
    assert await settle(engine, running, Complete())
    assert [claim.payload for claim in await claim_jobs(engine, queue)] == ["1"]


async def test_a_message_read_too_often_is_poison_however_it_is_read(opened: Opened, queue: str, sql: Sql):  # G3
    engine = await opened(read_modes={"": "grouped"})
    sql("select pgmq.send(%s, '1'::jsonb)", queue)
    for _ in range(3):
        sql("select pgmq.read(%s, 0, 1)", queue)
    assert await claim_jobs(engine, queue) == ()
    assert sql(f"select headers -> 'onward' ->> 'status' from pgmq.a_{queue}") == [("failed",)]


async def test_pgmqs_own_order_is_by_id(opened: Opened, queue: str, sql: Sql):
    sql("select pgmq.send_batch(%s, array['1', '2']::jsonb[])", queue)
    fifo = await opened(read_modes={queue: "fifo"})
    (claim,) = await claim_jobs(fifo, queue, slots=1)
    assert await settle(fifo, claim, Retry(timedelta(0), BOOM))
    assert [claim.payload for claim in await claim_jobs(await opened(), queue, slots=1)] == ["2"]
    assert [claim.payload for claim in await claim_jobs(fifo, queue, slots=1)] == ["1"]


@pytest.mark.parametrize("way", ["ready", "fifo"])
async def test_only_messages_that_meet_the_condition_are_read(opened: Opened, queue: str, sql: Sql, way: str):
    engine = await opened(read_modes={queue: way}, conditions={queue: {"kind": "x"}})
    sql("""select pgmq.send_batch(%s, array['{"kind": "y"}', '{"kind": "x", "n": 1}', '7']::jsonb[])""", queue)
    assert [claim.ref.id for claim in await claim_jobs(engine, queue)] == ["2"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ([("max_reads", "0")], "max_reads"),
        ([("max_reads", "many")], "max_reads"),
        ([("completed", "keep")], "completed"),
        ([("read", "newest")], "read"),
        ([("read.q", "newest")], "read.q"),
        ([("where.q", "[1]")], "where.q"),
        ([("where.q", "{")], "where.q"),
        ([("where.q", "{}"), ("read.q", "grouped")], "where.q"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(asked: list[tuple[str, str]], field: str):
    with pytest.raises(InvalidValue) as refusal:
        PgmqSettings(**from_url(asked)[0])
    assert refusal.value.field == field


def test_what_is_not_ours_in_a_url_is_left_to_libpq():
    ours, rest = from_url(
        [("sslmode", "require"), ("read.a.b", "fifo"), ("type.q", "t"), ("listen_url", "postgresql://")]
    )
    assert ours == {"read_modes": {"a.b": "fifo"}, "types": {"q": "t"}, "listen_url": "postgresql://"}
    assert rest == [("sslmode", "require")]


# Versions


async def test_a_database_without_pgmq_is_refused_with_the_remedy_and_can_be_given_one():
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"create database bare_{os.getpid()}")
    url = psycopg.conninfo.make_conninfo(postgres_url(), dbname=f"bare_{os.getpid()}")
    try:
        engine = PGMQEngine(url)
        with pytest.raises(SchemaTooOld, match="onward migrate --pgmq"):
            await engine.open()
        assert (await engine.install() or "").startswith("1.")
        assert await engine.install() is None
        await engine.open()
        await engine.configure("q", QueueChange())
        await engine.close()
    finally:
        drop_database(url)


VERSIONS: dict[str, bytes | None] = {
    "of the wheel": None,
    **{path.stem: path.read_bytes() for path in sorted(Path(os.environ.get("ONWARD_TEST_PGMQ", "-")).glob("*.sql"))},
}
"""The SQL of what is installed, and of further versions in a folder that the environment names: 1.5.1.sql and so on."""


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_life_on_every_version(version: str):
    url = make_database(sql=VERSIONS[version])
    try:
        engine = CheckedEngine(PGMQEngine(url))
        await engine.open()
        await engine.configure("q", QueueChange())
        await engine.enqueue([NewJob(type="t", queue="q", payload=str(n)) for n in range(3)])
        done, failing, _ = await claim_jobs(engine, "q")
        assert await settle(engine, done, Complete())
        assert await settle(engine, failing, Retry(timedelta(0), BOOM))
        (again,) = await claim_jobs(engine, "q")
        assert again.attempts == 2
        states = [job.status for job in (await engine.find(JobFilter(), newest_first=False)).items]
        assert states == [JobStatus.COMPLETED, JobStatus.RUNNING, JobStatus.RUNNING]
        await engine.close()
    finally:
        drop_database(url)


async def test_what_would_lose_jobs_is_told(opened: Opened):  # X3
    info = await (await opened()).check()
    assert "may lose or corrupt everything" in info.durability
    assert "fsync is off" in " ".join(info.problems)  # of a server for tests
