"""How jobs come in by the database's own clock: a lone one by a plain insert, many by COPY; what is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from time import monotonic
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row

from onward.backoff import Backoff
from onward.clock import SystemClock, moment_of
from onward.engine.values import ClaimRequest, Exchange, QueueChange, Settlement, SignalKind
from onward.engines.postgres import enqueue_cache
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.enqueue import notification_of
from onward.engines.postgres.enqueue_cache import EnqueueCache
from onward.engines.postgres.maintenance import NextDue
from onward.errors import InvalidValue
from onward.job import NewJob, UniformJobs
from onward.lifecycle import Complete, JobStatus
from onward.pg.listener import DUE
from tests.conformance.driver import new_job
from tests.conformance.postgres_case import PostgresStore

MANY = 500
"""Jobs that are copied in."""
ODD = '{"path": "C:\\\\new\\ttab", "quote": "\\"", "nothing": "\\\\N", "wide": "äöü€"}'


@pytest.fixture
async def clocked(store: PostgresStore) -> AsyncIterator[PostgresEngine]:
    """An engine that goes by the database's clock, as all do outside of tests."""
    engine = PostgresEngine(store.url, schema=store.schema)
    await engine.open()
    yield engine
    await engine.close()


def request(slots: int, **more: Any) -> ClaimRequest:
    return ClaimRequest(worker_id="w", slots=slots, **more)


@pytest.mark.parametrize("count", [1, 2, MANY])
async def test_jobs_come_in_as_they_are_however_many(clocked: PostgresEngine, count: int):  # O2
    template = NewJob(type="odd\tname\\", queue="q", org_id="a\nb\\", priority=3, max_attempts=2, backoff=Backoff())
    payloads = [ODD.replace("new", str(number)) for number in range(count)]
    added = await clocked.enqueue(UniformJobs(template, payloads))
    claimed = (await clocked.claim(request(count))).claims
    assert [claim.ref for claim in claimed] == [each.ref for each in added]  # O3
    assert [claim.payload for claim in claimed] == payloads
    assert {(claim.type, claim.org_id, claim.priority, claim.max_attempts, claim.backoff) for claim in claimed} == {
        ("odd\tname\\", "a\nb\\", 3, 2, Backoff())
    }


@pytest.mark.parametrize("count", [1, MANY])
async def test_jobs_get_what_their_queue_says(clocked: PostgresEngine, count: int):
    await clocked.enqueue([new_job(queue="told")])
    await clocked.configure("told", QueueChange(max_attempts=7, backoff=Backoff.exponential(9, cap=90)))
    await clocked.enqueue(UniformJobs(new_job(queue="told"), ["{}"] * count))
    newest = (await clocked.claim(request(count + 1))).claims[1:]
    assert len(newest) == count
    assert {(claim.max_attempts, claim.backoff) for claim in newest} == {(7, Backoff.exponential(9, cap=90))}


FULL = NewJob(
    type="full",
    queue="full",
    org_id="o",
    priority=3,
    max_attempts=2,
    backoff=Backoff.exponential(9, cap=90),
    start_by=moment_of(SystemClock().micros()) + timedelta(days=1),
    trace='{"traceparent": "00"}',
)


@pytest.mark.parametrize("notifies", [False, True])
@pytest.mark.parametrize("template", [FULL, NewJob(type="plain", queue="full", priority=3)])
async def test_who_relies_on_what_was_seen_writes_what_who_looks_writes(
    clocked: PostgresEngine, store: PostgresStore, template: NewJob, notifies: bool
):  # O2
    signals: Any = clocked.signals(["*"])
    async with aclosing(signals):
        await anext(signals)
        await clocked.enqueue(UniformJobs(template, [ODD]))
        assert clocked._queue_cache.is_fresh(("full", 3))
        clocked._queue_cache.has_listener = True
        clocked._notify_throttle._interval = 0 if notifies else 60
        await clocked.enqueue(UniformJobs(template, [ODD]))
        await clocked.enqueue([msgspec.structs.replace(template, payload=ODD)])
    own = ("seq", "id", "created_at", "updated_at", "ready_at")
    with psycopg.connect(store.url, row_factory=dict_row) as connection:
        rows = connection.execute(f"select j.*, j.payload::text from {store.schema}.job j order by seq").fetchall()
    assert len(rows) == 3
    assert len({str({name: value for name, value in row.items() if name not in own}) for row in rows}) == 1
    assert all(row["ready_at"] is not None for row in rows)


async def test_what_others_tell_a_queue_holds_for_jobs_that_come_a_moment_later(
    clocked: PostgresEngine, store: PostgresStore
):
    other = PostgresEngine(store.url, schema=store.schema)
    await other.open()
    try:
        await clocked.enqueue([new_job(queue="told")])
        await other.configure("told", QueueChange(max_attempts=7))
        await asyncio.sleep(2 * enqueue_cache.TTL)
        await clocked.enqueue([new_job(queue="told")])
        await clocked.enqueue([new_job(queue="told")])  # nor does it go by the look of the one before
    finally:
        await other.close()
    assert [claim.max_attempts for claim in (await clocked.claim(request(3))).claims] == [5, 7, 7]


async def test_a_lane_that_was_opened_in_vain_is_not_relied_on(clocked: PostgresEngine):
    with pytest.raises(InvalidValue):
        await clocked.enqueue([new_job(queue="new", batch="there-is-none")])
    assert not clocked._queue_cache.is_fresh(("new", 0))
    await clocked.enqueue([new_job(queue="new")])
    assert len((await clocked.claim(request(1))).claims) == 1


def test_no_more_lanes_are_kept_in_mind_than_so_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(enqueue_cache, "_MAX_LANES", 3)
    cache = EnqueueCache()
    for number in range(10):
        cache.store((f"q{number}", 0), monotonic(), is_plain=True, has_listener=None)
        assert cache.is_fresh((f"q{number}", 0))
    assert sum(cache.is_fresh((f"q{number}", 0)) for number in range(10)) <= 3


async def test_whoever_may_not_copy_adds_many_all_the_same(clocked: PostgresEngine, store: PostgresStore):  # G8
    role = f"role_{store.schema}"
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"create role {role} login")
        connection.execute(f"select {store.schema}.allow_worker('{role}')")
        engine = PostgresEngine(
            psycopg.conninfo.make_conninfo(store.url, options=f"-c role={role}"), schema=store.schema
        )
        try:
            await engine.open()
            assert len(await engine.enqueue(UniformJobs(new_job(), ["{}"] * MANY))) == MANY
        finally:
            await engine.close()
            connection.execute(f"drop owned by {role}")
            connection.execute(f"drop role {role}")


def test_what_is_told_of_jobs():
    later = moment_of(SystemClock().micros()) + timedelta(days=1)
    assert notification_of([new_job(queue="a"), new_job(queue="b")]) == {"a", "b"}
    assert notification_of([new_job(queue="a", delay=timedelta(seconds=1))]) == {DUE}
    assert notification_of([new_job(queue="a", delay=timedelta(hours=1))]) == set()
    assert notification_of([new_job(queue="a", run_at=later)]) == {DUE}
    assert notification_of([new_job(queue="a", start_by=later)]) == {"a", DUE}


async def test_whoever_leads_is_told_of_a_job_that_comes_due_soon(clocked: PostgresEngine, store: PostgresStore):
    """Without it, a delay shorter than the leader's nap would last as long as that."""
    if clocked.database.is_pooled:
        pytest.skip("through a pooler nobody is told")
    other = PostgresEngine(store.url, schema=store.schema)
    await other.open()
    try:
        signals: Any = clocked.signals(["none"])
        async with aclosing(signals):
            assert (await anext(signals)).kind is SignalKind.CHANGED
            await other.enqueue([new_job(queue="some", delay=timedelta(milliseconds=200))])
            assert (await anext(signals)).kind is SignalKind.DUE
    finally:
        await other.close()


def test_what_was_told_while_the_store_was_asked_is_not_forgotten():
    due = NextDue()
    assert due.remaining() is None
    due.begin_check()
    due.update(None)
    assert (due.remaining() or 0) > NextDue.TTL.total_seconds() / 2
    due.begin_check()
    due.reset()
    due.update(None)
    assert (due.remaining() or 0) < NextDue.TTL.total_seconds() / 2


async def test_a_notified_queue_gives_one_job_before_the_tour_goes_on(clocked: PostgresEngine):  # H9
    for number in range(30):
        await clocked.enqueue(UniformJobs(new_job(queue=f"q{number:02}"), ["{}"] * 5))
    assert [claim.ref.queue for claim in (await clocked.claim(request(2))).claims] == ["q00", "q01"]
    await clocked.enqueue(UniformJobs(new_job(queue="zz"), ["{}"] * 5))
    for rotation in clocked._rotations.values():
        rotation.notified.clear()  # what was told by way of the database, sooner or later
    clocked._on_notice("zz")
    assert [claim.ref.queue for claim in (await clocked.claim(request(3))).claims] == ["zz", "q02", "q03"]
    assert [claim.ref.queue for claim in (await clocked.claim(request(2))).claims] == ["q04", "q05"]


async def test_many_outcomes_and_claims_in_one_exchange_are_all_there(clocked: PostgresEngine):  # X3
    await clocked.enqueue(UniformJobs(new_job(), ["{}"] * 2 * MANY))
    first = (await clocked.claim(request(MANY))).claims
    lost = msgspec.structs.replace(first[0], token=(first[0].token[0], 99))
    outcomes = tuple(Settlement(claim, Complete("1")) for claim in (lost, *first[1:]))
    answer = await clocked.exchange(Exchange(settlements=outcomes, request=request(MANY)))
    assert answer.lost == {lost.token}
    assert len(answer.claimed.claims) == MANY
    assert not {claim.ref for claim in first} & {claim.ref for claim in answer.claimed.claims}
    job = await clocked.get(first[1].ref)
    assert job is not None
    assert job.status is JobStatus.COMPLETED
