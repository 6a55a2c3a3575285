"""Lanes and low marks: what claims look at, and how it is kept right when jobs come to light where nobody looks."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onward.backoff import Backoff
from onward.clock import moment_of
from onward.engine.checked import CheckedEngine
from onward.engine.values import Claim, ClaimRequest, Term
from onward.engines.postgres.engine import PostgresEngine
from onward.job import JobRef
from onward.lifecycle import Bury, Complete, Fail, Release, Retry
from onward.pg.plan_runner import Plan, Statement
from tests.conformance.cases import BOOM
from tests.conformance.driver import PAST_LEASE, Driver, new_job
from tests.conformance.postgres_case import PostgresStore

REFUSED = (psycopg.IntegrityError, psycopg.DataError)


def by_hand(store: PostgresStore, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(store.url) as connection:
        cursor = connection.execute(statement.replace("onward.", f"{store.schema}."), values)
        return cursor.fetchall() if cursor.description else []


def low_marks(store: PostgresStore) -> list[bool]:
    """Say of each lane whether it has a low mark of its own."""
    return [is_there for (is_there,) in by_hand(store, "select low_mark is not null from onward.lane order by 1")]


def watermark(store: PostgresStore) -> int:
    """Say where the watermark is; 0: it has not been moved."""
    ((moment, is_moved),) = by_hand(store, "select last_value, is_called from onward.watermark")
    return int(moment) if is_moved else 0


async def move_watermark(driver: Driver, term: Term | None = None) -> None:
    """Have the watermark moved, by whoever leads."""
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    leader = term or await driver.lead()
    await engine._run(lambda: engine._watermark_state.move(engine.schema, leader))
    if term is None:
        await driver.engine.resign(leader)


async def work_through(driver: Driver, count: int = 200) -> None:
    """Take and end so many jobs, and have the watermark moved to above them."""
    await driver.add_many(count)
    await driver.advance(60)
    for _ in range(2):
        await driver.end_all(await driver.take(slots=count // 2), Complete())
    await move_watermark(driver)


async def maintain_lanes(driver: Driver) -> None:
    """Have the lanes looked after, by a leader that has not done so yet."""
    handle = await driver.store.connect()
    await Driver(driver.store, handle).rescue()


async def test_the_watermark_rises_above_what_has_ended(driver: Driver, store: PostgresStore):
    await work_through(driver)
    assert watermark(store) > 0
    assert low_marks(store) == [False]
    ref = await driver.add()
    assert await driver.taken("*") == [ref]


async def test_a_lane_where_jobs_wait_has_a_low_mark_below_them_for_as_long_as_they_do(
    driver: Driver, store: PostgresStore
):
    first = await driver.add_many(150)
    await driver.advance(60)
    later = await driver.add_many(10)
    await driver.advance(60)
    assert await driver.taken(slots=100) == first[:100]
    await move_watermark(driver)
    assert low_marks(store) == [True]
    await driver.advance(1)
    assert await driver.taken(slots=100) == [*first[100:], *later]
    await driver.advance(2)
    await move_watermark(driver)
    assert low_marks(store) == [False]


async def test_the_watermark_stays_below_jobs_that_cannot_be_seen_yet(driver: Driver, store: PostgresStore):  # X4
    await move_watermark(driver)
    await driver.advance(1)
    caller = store.caller()
    caller.begin()
    (answer,) = await driver.engine.enqueue([new_job()], connection=caller.handle)
    for _ in range(3):
        await driver.advance(2)
        await move_watermark(driver)
    caller.commit()
    assert await driver.taken("*") == [answer.ref]
    before = watermark(store)
    for _ in range(2):
        await driver.advance(1)
        await move_watermark(driver)
    assert watermark(store) > before + 5_000_000


async def test_who_leads_no_longer_moves_nothing(driver: Driver, store: PostgresStore):  # O6
    term = await driver.lead()
    await driver.add()
    await driver.advance(PAST_LEASE)
    await move_watermark(driver, term)
    assert (watermark(store), low_marks(store)) == (0, [False])
    await move_watermark(driver)
    assert (watermark(store) > 0, low_marks(store)) == (True, [True])


async def test_a_job_given_back_below_the_low_mark_is_found_at_once(driver: Driver, store: PostgresStore):
    early = await driver.add()
    claim = await driver.take_one()
    await driver.advance(60)
    await work_through(driver)
    assert await driver.end(claim, Release())
    assert await driver.taken("*") == [early]


async def with_a_low_mark(driver: Driver, store: PostgresStore) -> tuple[Claim, JobRef]:
    """Hold the job by which a lane has its low mark, while another waits behind it; the watermark is above both."""
    await driver.add()
    await driver.advance(60)
    behind = await driver.add()
    await driver.advance(60)
    await move_watermark(driver)
    assert low_marks(store) == [True]
    await driver.advance(60)
    return await driver.take_one(), behind


async def test_a_job_given_back_while_a_claim_is_under_way_is_not_left_below_the_low_mark(
    driver: Driver, store: PostgresStore
):  # O3, X3
    claim, behind = await with_a_low_mark(driver, store)
    ((since, moment),) = by_hand(
        store, "select ready_at, ready_at + interval '1 hour' from onward.job where id = %s", behind.id
    )
    assert await driver.end(claim, Release())  # behind the back of a claim that has seen since when another waits
    by_hand(
        store, "select onward.raise_low_mark(%s, ('default', 0, %s, 1, false, null)::onward.open_lane)", moment, since
    )
    assert await driver.taken("*") == [claim.ref, behind]


async def test_a_job_that_waited_for_another_with_its_key_is_not_left_below_the_watermark(
    driver: Driver, store: PostgresStore
):  # O3, O4
    office = PostgresEngine(store.url, schema=store.schema)
    await office.open()
    enqueue = f"select {store.schema}.enqueue('t', idempotency_key => 'k')"
    term = await office.elect("leader", lease=timedelta(minutes=1))
    assert term is not None
    with psycopg.connect(store.url) as first, psycopg.connect(store.url) as second:
        first.execute(enqueue)
        waiting = asyncio.create_task(asyncio.to_thread(second.execute, enqueue))
        for _ in range(10):  # until the watermark is where it was when the second began to wait, and beyond
            await asyncio.sleep(0.1)
            await office._run(lambda: office._watermark_state.move(office.schema, term))
        first.rollback()
        await waiting
        for _ in range(5):
            await asyncio.sleep(0.1)
            await office._run(lambda: office._watermark_state.move(office.schema, term))
        second.commit()
    assert len((await office.claim(ClaimRequest(worker_id="w", slots=1))).claims) == 1
    await office.close()


async def test_jobs_are_found_after_the_clock_has_gone_back(driver: Driver, store: PostgresStore):  # O3, X3
    term = await driver.lead()
    waits = await driver.add()
    await driver.advance(20)
    await move_watermark(driver, term)
    store.clock._micros -= 15_000_000
    came = await driver.add(queue="q")
    for _ in range(4):
        await driver.advance(1)
        await move_watermark(driver, term)
    later = await driver.add(queue="r")
    assert await driver.taken("*") == [waits, came, later]
    assert watermark(store) > store.clock.micros() - 15_000_000


@pytest.mark.parametrize("is_held", [False, True])
async def test_jobs_of_a_lane_with_a_low_mark_are_found_after_the_clock_has_gone_back(
    driver: Driver, store: PostgresStore, is_held: bool
):  # O3, X3
    term = await driver.lead(lease=timedelta(hours=1))
    wait_seconds = await driver.add()
    await driver.advance(20)
    await move_watermark(driver, term)
    assert low_marks(store) == [True]
    store.clock._micros -= 300_000_000
    with psycopg.connect(store.url) as holder:
        if is_held:  # by somebody whose transaction stays open
            holder.execute(f"select from {store.schema}.lane for update")
        assert await driver.taken("*") == [wait_seconds]
        async with asyncio.timeout(20):
            for _ in range(4):
                await move_watermark(driver, term)
                await driver.advance(2)
        came = await driver.add()
        assert await driver.taken("*") == [came]
    await driver.advance(20)
    await move_watermark(driver, term)
    later = await driver.add()
    assert await driver.taken("*") == [later]


async def test_a_low_mark_rises_to_the_first_job_that_waits(driver: Driver, store: PostgresStore):
    await with_a_low_mark(driver, store)
    ((since, moment),) = by_hand(
        store, "select ready_at, ready_at + interval '1 hour' from onward.job where lease_until is null"
    )
    by_hand(
        store, "select onward.raise_low_mark(%s, ('default', 0, %s, 1, false, null)::onward.open_lane)", moment, since
    )
    assert by_hand(store, "select low_mark from onward.lane") == [(since,)]


async def test_a_job_that_is_being_given_back_keeps_its_low_mark(driver: Driver, store: PostgresStore):  # X3
    claim, _ = await with_a_low_mark(driver, store)
    await driver.end(await driver.take_one(), Complete())
    with psycopg.connect(store.url) as connection:
        job, lanes = f"{store.schema}.job", f"{store.schema}.open_lanes"
        connection.execute(f"update {job} set lease_until = null, worker_id = null, started_at = null")
        connection.execute(
            f"select {lanes}(%s, array['default'], array[0], array[ready_at]) from {job}", [store.clock.micros()]
        )
        await driver.advance(60)
        await move_watermark(driver)
    await driver.advance(60)
    assert low_marks(store) == [True]
    assert await driver.taken("*") == [claim.ref]


async def test_who_gives_a_job_back_while_its_low_mark_is_taken_away_brings_it_back(
    driver: Driver, store: PostgresStore
):  # X3
    claim, _ = await with_a_low_mark(driver, store)
    await driver.end(await driver.take_one(), Complete())
    with psycopg.connect(store.url) as connection:
        connection.execute(f"update {store.schema}.lane set low_mark = null")
        giving_back = asyncio.create_task(driver.end(claim, Release()))
        _, waiting = await asyncio.wait([giving_back], timeout=0.5)
        assert waiting  # for the lane
    assert await giving_back
    assert await driver.taken("*") == [claim.ref]


async def test_the_watermark_waits_for_a_lane_that_needs_a_low_mark_and_that_somebody_writes(
    driver: Driver, store: PostgresStore
):
    await driver.add()
    await driver.advance(60)
    with psycopg.connect(store.url) as connection:
        connection.execute(f"select from {store.schema}.lane for update")
        await move_watermark(driver)
        assert watermark(store) <= 1
    assert len(await driver.taken("*")) == 1


async def test_a_claimed_job_that_was_lost_below_the_low_mark_is_found_at_once(
    driver: Driver, store: PostgresStore
):  # O7
    early = await driver.add()
    await driver.take_ahead()
    await driver.advance(60)
    await work_through(driver)
    await driver.advance(PAST_LEASE)
    await driver.rescue()
    assert await driver.taken("*") == [early]


async def test_a_job_that_comes_back_does_not_hide_those_that_were_ready_before(driver: Driver):  # O3
    first = await driver.add()
    due = await driver.add(delay=timedelta(seconds=1))
    await driver.advance(60)
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    engine._watermark_state._moved_at = math.inf  # the watermark is far below both
    await driver.promote()
    assert await driver.taken("*") == [first, due]


async def test_a_job_that_was_due_long_ago_is_found_as_soon_as_it_is_promoted(driver: Driver, store: PostgresStore):
    due = await driver.add(delay=timedelta(seconds=1))
    await driver.advance(60)
    await work_through(driver)
    await driver.promote()
    assert await driver.taken("*") == [due]


async def test_a_job_of_a_transaction_that_took_long_comes_to_light_below_the_low_mark_and_is_found_by_the_leader(
    driver: Driver, store: PostgresStore
):  # X4, X3
    caller = store.caller()
    caller.begin()
    (answer,) = await driver.engine.enqueue([new_job()], connection=caller.handle)
    await driver.advance(60)
    await work_through(driver)
    caller.commit()
    assert await driver.taken("*") == []
    await maintain_lanes(driver)
    assert await driver.taken("*") == [answer.ref]


async def test_jobs_of_a_transaction_that_took_long_are_looked_for_when_it_has_ended(
    driver: Driver, store: PostgresStore
):  # X4, X3
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    watermark_state, upkeep = engine._watermark_state, engine._upkeep

    async def maintain() -> int | None:
        upkeep._due, upkeep._checks = 0.0, 64 + 1 + part  # not the one for which it looks from the beginning
        await driver.rescue()
        return watermark_state.late

    ((part,),) = by_hand(store, "select hashtextextended('default', 0) & 63")
    for _ in range(2):
        await driver.advance(1)
        await move_watermark(driver)
    assert await maintain() is None
    caller = store.caller()
    caller.begin()
    (answer,) = await driver.engine.enqueue([new_job()], connection=caller.handle)
    for _ in range(10):
        await driver.advance(20)
        await move_watermark(driver)
        assert await maintain() is not None
    caller.commit()
    assert await driver.taken("*") == []
    assert await maintain() is None
    assert await driver.taken("*") == [answer.ref]


async def test_they_are_looked_for_too_where_another_leader_moved_the_watermark(
    driver: Driver, store: PostgresStore
):  # X3, X4
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    ((part,),) = by_hand(store, "select hashtextextended('default', 0) & 63")

    async def maintain() -> None:
        engine._upkeep._due, engine._upkeep._checks = 0.0, 64 + 1 + part  # as above
        await driver.rescue()

    for _ in range(2):
        await driver.advance(1)
        await move_watermark(driver)
    await maintain()
    caller = store.caller()
    caller.begin()
    (answer,) = await driver.engine.enqueue([new_job()], connection=caller.handle)
    for _ in range(2):
        await driver.advance(1)
        await move_watermark(driver)
    assert engine._watermark_state.late is None
    other = Driver(store, await store.connect())
    for _ in range(2):
        await driver.advance(20)
        await move_watermark(other)
    caller.commit()
    for _ in range(2):
        await driver.advance(1)
        await move_watermark(driver)
    assert await driver.taken("*") == []
    await maintain()
    assert await driver.taken("*") == [answer.ref]


async def test_what_is_kept_in_mind_of_a_transaction_that_never_ends_is_bounded(driver: Driver, store: PostgresStore):
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    caller = store.caller()
    caller.begin()
    await driver.engine.enqueue([new_job()], connection=caller.handle)
    for _ in range(150):
        await driver.advance(1)
        await move_watermark(driver)
    assert len(engine._watermark_state._snapshots) <= 100
    caller.commit()
    await move_watermark(driver)
    assert len(engine._watermark_state._snapshots) == 2


@pytest.mark.parametrize(("queue", "priority"), [("default", 0), ("default", 7), ("fresh", 0), ("aaa", 3), ("zzz", 9)])
async def test_a_job_added_by_hand_is_found_by_the_leader(
    driver: Driver, store: PostgresStore, queue: str, priority: int
):  # O2
    await work_through(driver)
    await driver.add(queue="m", priority=5)
    await driver.take("m")
    ((id,),) = by_hand(
        store,
        "insert into onward.job (type, queue, priority) values ('greet', %s, %s) returning id::text",
        queue,
        priority,
    )
    await maintain_lanes(driver)
    assert await driver.taken("*") == [JobRef(queue, id)]
    job = await driver.job(JobRef(queue, id))
    assert (job.type, job.attempts, job.max_attempts) == ("greet", 1, 5)


async def test_a_paused_queue_does_not_hide_a_job_added_by_hand_to_the_next(driver: Driver, store: PostgresStore):  # O2
    for queue in ("a", "b", "d"):
        await driver.add(queue=queue)
    await driver.set("b", paused=True)
    by_hand(store, "insert into onward.job (type, queue) values ('greet', 'c')")
    await maintain_lanes(driver)
    assert [ref.queue for ref in await driver.taken("*")] == ["a", "c", "d"]


async def test_a_job_added_by_hand_to_a_paused_queue_waits_there(driver: Driver, store: PostgresStore):
    await driver.set("q", paused=True)
    by_hand(store, "insert into onward.job (type, queue) values ('greet', 'q')")
    await maintain_lanes(driver)
    assert await driver.take("*") == ()
    assert by_hand(store, "select count(*) from onward.lane") == [(0,)]
    await driver.set("q", paused=False)
    assert len(await driver.take("*")) == 1


async def test_an_empty_lane_is_taken_away_when_nobody_can_be_adding_to_it_and_its_queue_stays(
    driver: Driver, store: PostgresStore
):
    await driver.add(queue="once", priority=3)
    await driver.end(await driver.take_one("*"), Complete())
    await driver.advance(61)
    busy = await driver.add(queue="busy")
    caller = store.caller()
    caller.begin()
    caller.note("a transaction that could have seen the lane")
    await maintain_lanes(driver)
    await maintain_lanes(driver)
    lanes = "select queue, closing is null from onward.lane order by 1"
    await maintain_lanes(driver)
    assert by_hand(store, lanes) == [("busy", True), ("once", False)]
    caller.commit()
    await maintain_lanes(driver)
    assert by_hand(store, lanes) == [("busy", True)]
    assert [queue.name for queue in await driver.engine.queues()] == ["busy", "once"]
    again = await driver.add(queue="once", priority=3)
    assert set(await driver.taken("*")) == {busy, again}


async def test_a_lane_of_which_a_job_was_completed_a_moment_ago_stays(driver: Driver, store: PostgresStore):
    for priority in (1, 2):
        await driver.add(queue="q", priority=priority)
        await driver.end(await driver.take_one("*"), Complete())
        await driver.advance(31)
    for _ in range(3):  # mark, seal, remove
        await maintain_lanes(driver)
    assert by_hand(store, "select priority, closing is null from onward.lane") == [(2, True)]


async def test_a_job_added_while_its_lane_is_on_its_way_out_is_found_at_once_and_ever_after(
    driver: Driver, store: PostgresStore
):
    await driver.add(queue="q")
    await driver.end(await driver.take_one("*"), Complete())
    await driver.advance(61)
    await maintain_lanes(driver)  # marked
    first = await driver.add(queue="q")
    await maintain_lanes(driver)  # sealed
    await maintain_lanes(driver)  # removed if it were empty
    assert await driver.taken("*") == [first]
    second = await driver.add(queue="q")
    await maintain_lanes(driver)
    await maintain_lanes(driver)
    assert await driver.taken("*") == [second]


async def test_a_held_job_whose_lane_is_gone_is_found_when_it_is_given_back(driver: Driver, store: PostgresStore):  # O7
    ref = await driver.add(queue="q")
    (claim,) = await driver.take_ahead("q")
    by_hand(store, "delete from onward.lane")
    assert await driver.end(claim, Release())
    assert await driver.taken("*") == [ref]


async def test_updated_at_is_kept_for_ended_jobs_that_are_changed_by_hand(driver: Driver, store: PostgresStore):  # O2
    ref = await driver.add()
    await driver.end(await driver.take_one("*"), Complete())
    before = await driver.job(ref)
    by_hand(store, "update onward.history set last_error = 'looked into' where id = %s", ref.id)
    after = await driver.job(ref)
    assert after.last_error == "looked into"
    assert after.updated_at > before.updated_at


@pytest.mark.parametrize(
    "change",
    [
        "lease_until = now()",
        "lease_until = now(), updated_at = now()",
        "lease_until = now(), worker_id = 'w', ready_at = null, next_run_at = now()",
        "has_permit = true",
        "ready_at = null",
        "attempts = -1",
        "crashes = -1",
        "max_attempts = 0",
        "priority = 1000001",
        "priority = -1",
        "progress = 101",
        "payload = '{'",
        "type = ''",
        f"type = '{'t' * 256}'",
        "ready_at = null, next_run_at = 'infinity'",
        "start_by = '20000-01-01'",
        "backoff = '[]'",
        """backoff = '{"kind": "linear"}'""",
        """backoff = '{"base": "1"}'""",
        """backoff = '{"base": 0}'""",
        """backoff = '{"factor": 0.5}'""",
        """backoff = '{"cap": 0}'""",
        """backoff = '{"jitter": 2}'""",
        "errors = '{}'",
        "errors = '[1]'",
        """errors = '[{"attempt": 1}]'""",
        """errors = '[{"attempt":1,"at":"now","error_type":"k","message":"m"}]'""",
    ],
)
async def test_a_row_that_cannot_be_cannot_be_made_by_hand_either(
    driver: Driver, store: PostgresStore, change: str
):  # O1
    await driver.add()
    before = await driver.jobs()
    with pytest.raises(REFUSED):
        by_hand(store, f"update onward.job set {change}")
    names, values = zip(*(one.split(" = ") for one in change.split(", ")), strict=True)
    if "type" not in names:
        names, values = ("type", *names), ("'t'", *values)
    with pytest.raises(REFUSED):
        by_hand(store, f"insert into onward.job ({', '.join(names)}) values ({', '.join(values)})")
    assert await driver.jobs() == before


async def test_what_a_job_can_be_like_can_be_written_by_hand(driver: Driver, store: PostgresStore):  # O2
    """So that the rules for hands are no narrower than ours."""
    await driver.add(backoff=Backoff.exponential(0.5, factor=1, cap=None, jitter=1), priority=1_000_000)
    await driver.end(await driver.take_one(), Retry(timedelta(seconds=1), BOOM))
    await driver.add(backoff=Backoff.fixed(7), start_by=moment_of(0) + timedelta(days=2_000_000))
    await driver.add(delay=timedelta(days=100), max_attempts=1)
    before = await driver.jobs()
    by_hand(store, "update onward.job set org_id = 'by hand'")
    columns = (
        "payload, queue, type, priority, max_attempts, backoff, errors, last_error, ready_at, next_run_at, start_by"
    )
    by_hand(store, f"insert into onward.job ({columns}) select {columns} from onward.job")
    after = await driver.jobs()
    assert len(after) == 2 * len(before)
    assert {job.org_id for job in after} == {"by hand", None}


@pytest.mark.parametrize(
    "change",
    [
        "status = 'running'",
        "status = 'dead_letter', result = null",
        "status = 'cancelled'",
        "attempts = -1",
        "priority = 1000001",
        "type = ''",
        f"type = '{'t' * 256}'",
        "next_run_at = 'infinity'",
    ],
)
async def test_nor_can_one_that_has_ended(driver: Driver, store: PostgresStore, change: str):  # O1
    await driver.add()
    await driver.end(await driver.take_one(), Complete('"ok"'))
    before = await driver.jobs()
    with pytest.raises(REFUSED):
        by_hand(store, f"update onward.history set {change}")
    assert await driver.jobs() == before


async def test_the_view_shows_live_and_ended_jobs_in_harmonyks_words(driver: Driver, store: PostgresStore):  # H6
    async def held(queue: str) -> Claim:
        await driver.add(queue=queue)
        return await driver.take_one(queue)

    await driver.end(await held("completed"), Complete('"ok"'))
    await driver.end(await held("failed"), Fail(BOOM))
    await driver.end(await held("dead_letter"), Bury(BOOM))
    await driver.cancel(await driver.add(queue="cancelled"))
    await held("running")
    await held("claimed")
    by_hand(store, "update onward.job set started_at = null where queue = 'claimed'")
    await driver.add(queue="pending")
    await driver.add(queue="scheduled", delay=timedelta(hours=1))
    await driver.add(queue="blocked")
    by_hand(store, "update onward.job set ready_at = null, pending_dependencies = 1 where queue = 'blocked'")
    shown = by_hand(store, "select queue, status, simplified_status, result from onward.jobs order by queue")
    assert shown == [
        ("blocked", "blocked", "queued", None),
        ("cancelled", "cancelled", "failed", None),
        ("claimed", "claimed", "running", None),
        ("completed", "completed", "success", "ok"),
        ("dead_letter", "dead_letter", "failed", None),
        ("failed", "failed", "failed", None),
        ("pending", "pending", "queued", None),
        ("running", "running", "running", None),
        ("scheduled", "scheduled", "queued", None),
    ]


async def test_a_place_is_given_back_whoever_takes_the_job_from_its_worker(driver: Driver, store: PostgresStore):
    await driver.set("q", global_concurrency=1)
    await driver.add_many(3, queue="q")
    await driver.take_one("q")
    by_hand(store, "delete from onward.job where lease_until is not null")
    await driver.take_one("q")
    by_hand(store, "update onward.job set lease_until = null, has_permit = false where lease_until is not null")
    assert len(await driver.take("q", slots=2)) == 1


async def test_a_statement_that_gave_way_to_another_is_tried_again(store: PostgresStore, engine: CheckedEngine):  # X3
    inner = engine.inner
    assert isinstance(inner, PostgresEngine)
    tries = 0

    def plan() -> Plan[int]:
        nonlocal tries
        tries += 1
        yield Statement("select 1")
        if tries < 3:
            raise psycopg.errors.DeadlockDetected
        return tries

    assert await inner._run(plan) == 3
    tries = 0
    assert inner._run_sync(plan) == 3


async def test_a_tour_of_many_queues_is_made_in_parts_and_goes_on_at_once(driver: Driver):  # H9
    for _ in range(2):
        await driver.engine.enqueue([new_job(queue=f"m/{n}") for n in range(300)])
    request = ClaimRequest(worker_id="w", queues=("m/*",), slots=300)
    assert len((await driver.engine.claim(request)).claims) == 300
    parts = [await driver.engine.claim(request) for _ in range(3)]
    assert [(len(part.claims), part.retry_after) for part in parts] == [(150, 0.0)] * 2 + [(0, None)]
    await driver.add_many(450, queue="m/0")
    parts = [await driver.engine.claim(request) for _ in range(2)]
    assert [(len(part.claims), part.retry_after) for part in parts] == [(300, None), (150, None)]


async def test_in_a_long_tour_a_notified_queue_gives_its_job_alone_now_and_then(driver: Driver):  # H9
    for _ in range(3):
        await driver.engine.enqueue([new_job(queue=f"m/{n}") for n in range(300)])
    inner = driver.engine.inner
    assert isinstance(inner, PostgresEngine)
    request = ClaimRequest(worker_id="w", queues=("m/*",), slots=300)
    assert len((await driver.engine.claim(request)).claims) == 300
    await driver.engine.enqueue([new_job(queue="m/x"), new_job(queue="m/y")])
    inner._on_notice("m/x,m/y")
    first = (await driver.engine.claim(request)).claims
    inner._rotation(request.queues).single_claim_at = math.inf
    then = (await driver.engine.claim(request)).claims
    assert [claim.ref.queue for claim in first] == ["m/x"]
    assert (len(then), then[0].ref.queue) == (150, "m/y")
