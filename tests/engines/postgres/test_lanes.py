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
from onward.pg.plans import Plan, Statement
from tests.conformance.cases import BOOM
from tests.conformance.driver import PAST_LEASE, Desk, new_job
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


async def move_watermark(desk: Desk, term: Term | None = None) -> None:
    """Have the watermark moved, by whoever leads."""
    engine = desk.engine.inner
    assert isinstance(engine, PostgresEngine)
    leader = term or await desk.lead()
    await engine._run(lambda: engine._watermark_state.move(engine.schema, leader))
    if term is None:
        await desk.engine.resign(leader)


async def work_through(desk: Desk, count: int = 200) -> None:
    """Take and end so many jobs, and have the watermark moved to above them."""
    await desk.add_many(count)
    await desk.advance(60)
    for _ in range(2):
        await desk.end_all(await desk.take(slots=count // 2), Complete())
    await move_watermark(desk)


async def maintain_lanes(desk: Desk) -> None:
    """Have the lanes looked after, by a leader that has not done so yet."""
    handle = await desk.store.connect()
    await Desk(desk.store, handle).rescue()


async def test_the_watermark_rises_above_what_has_ended(desk: Desk, store: PostgresStore):
    await work_through(desk)
    assert watermark(store) > 0
    assert low_marks(store) == [False]
    ref = await desk.add()
    assert await desk.taken("*") == [ref]


async def test_a_lane_where_jobs_wait_has_a_low_mark_below_them_for_as_long_as_they_do(
    desk: Desk, store: PostgresStore
):
    first = await desk.add_many(150)
    await desk.advance(60)
    later = await desk.add_many(10)
    await desk.advance(60)
    assert await desk.taken(slots=100) == first[:100]
    await move_watermark(desk)
    assert low_marks(store) == [True]
    await desk.advance(1)
    assert await desk.taken(slots=100) == [*first[100:], *later]
    await desk.advance(2)
    await move_watermark(desk)
    assert low_marks(store) == [False]


async def test_the_watermark_stays_below_jobs_that_cannot_be_seen_yet(desk: Desk, store: PostgresStore):  # X4
    await move_watermark(desk)
    await desk.advance(1)
    caller = store.caller()
    caller.begin()
    (answer,) = await desk.engine.enqueue([new_job()], within=caller.handle)
    for _ in range(3):
        await desk.advance(2)
        await move_watermark(desk)
    caller.commit()
    assert await desk.taken("*") == [answer.ref]
    before = watermark(store)
    for _ in range(2):
        await desk.advance(1)
        await move_watermark(desk)
    assert watermark(store) > before + 5_000_000


async def test_who_leads_no_longer_moves_nothing(desk: Desk, store: PostgresStore):  # O6
    term = await desk.lead()
    await desk.add()
    await desk.advance(PAST_LEASE)
    await move_watermark(desk, term)
    assert (watermark(store), low_marks(store)) == (0, [False])
    await move_watermark(desk)
    assert (watermark(store) > 0, low_marks(store)) == (True, [True])


async def test_a_job_given_back_below_the_low_mark_is_found_at_once(desk: Desk, store: PostgresStore):
    early = await desk.add()
    claim = await desk.take_one()
    await desk.advance(60)
    await work_through(desk)
    assert await desk.end(claim, Release())
    assert await desk.taken("*") == [early]


async def with_a_low_mark(desk: Desk, store: PostgresStore) -> tuple[Claim, JobRef]:
    """Hold the job by which a lane has its low mark, while another waits behind it; the watermark is above both."""
    await desk.add()
    await desk.advance(60)
    behind = await desk.add()
    await desk.advance(60)
    await move_watermark(desk)
    assert low_marks(store) == [True]
    await desk.advance(60)
    return await desk.take_one(), behind


async def test_a_job_given_back_while_a_claim_is_under_way_is_not_left_below_the_low_mark(
    desk: Desk, store: PostgresStore
):  # O3, X3
    claim, behind = await with_a_low_mark(desk, store)
    ((since, moment),) = by_hand(
        store, "select ready_at, ready_at + interval '1 hour' from onward.job where id = %s", behind.id
    )
    assert await desk.end(claim, Release())  # behind the back of a claim that has seen since when another waits
    by_hand(
        store, "select onward.raise_low_mark(%s, ('default', 0, %s, 1, false, null)::onward.open_lane)", moment, since
    )
    assert await desk.taken("*") == [claim.ref, behind]


async def test_a_job_that_waited_for_another_with_its_key_is_not_left_below_the_watermark(
    desk: Desk, store: PostgresStore
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


async def test_jobs_are_found_after_the_clock_has_gone_back(desk: Desk, store: PostgresStore):  # O3, X3
    term = await desk.lead()
    waits = await desk.add()
    await desk.advance(20)
    await move_watermark(desk, term)
    store.clock._micros -= 15_000_000
    came = await desk.add(queue="q")
    for _ in range(4):
        await desk.advance(1)
        await move_watermark(desk, term)
    later = await desk.add(queue="r")
    assert await desk.taken("*") == [waits, came, later]
    assert watermark(store) > store.clock.micros() - 15_000_000


@pytest.mark.parametrize("is_held", [False, True])
async def test_jobs_of_a_lane_with_a_low_mark_are_found_after_the_clock_has_gone_back(
    desk: Desk, store: PostgresStore, is_held: bool
):  # O3, X3
    term = await desk.lead(lease=timedelta(hours=1))
    waited = await desk.add()
    await desk.advance(20)
    await move_watermark(desk, term)
    assert low_marks(store) == [True]
    store.clock._micros -= 300_000_000
    with psycopg.connect(store.url) as holder:
        if is_held:  # by somebody whose transaction stays open
            holder.execute(f"select from {store.schema}.lane for update")
        assert await desk.taken("*") == [waited]
        async with asyncio.timeout(20):
            for _ in range(4):
                await move_watermark(desk, term)
                await desk.advance(2)
        came = await desk.add()
        assert await desk.taken("*") == [came]
    await desk.advance(20)
    await move_watermark(desk, term)
    later = await desk.add()
    assert await desk.taken("*") == [later]


async def test_a_low_mark_rises_to_the_first_job_that_waits(desk: Desk, store: PostgresStore):
    await with_a_low_mark(desk, store)
    ((since, moment),) = by_hand(
        store, "select ready_at, ready_at + interval '1 hour' from onward.job where lease_until is null"
    )
    by_hand(
        store, "select onward.raise_low_mark(%s, ('default', 0, %s, 1, false, null)::onward.open_lane)", moment, since
    )
    assert by_hand(store, "select low_mark from onward.lane") == [(since,)]


async def test_a_job_that_is_being_given_back_keeps_its_low_mark(desk: Desk, store: PostgresStore):  # X3
    claim, _ = await with_a_low_mark(desk, store)
    await desk.end(await desk.take_one(), Complete())
    with psycopg.connect(store.url) as connection:
        job, lanes = f"{store.schema}.job", f"{store.schema}.open_lanes"
        connection.execute(f"update {job} set lease_until = null, worker_id = null, started_at = null")
        connection.execute(
            f"select {lanes}(%s, array['default'], array[0], array[ready_at]) from {job}", [store.clock.micros()]
        )
        await desk.advance(60)
        await move_watermark(desk)
    await desk.advance(60)
    assert low_marks(store) == [True]
    assert await desk.taken("*") == [claim.ref]


async def test_who_gives_a_job_back_while_its_low_mark_is_taken_away_brings_it_back(
    desk: Desk, store: PostgresStore
):  # X3
    claim, _ = await with_a_low_mark(desk, store)
    await desk.end(await desk.take_one(), Complete())
    with psycopg.connect(store.url) as connection:
        connection.execute(f"update {store.schema}.lane set low_mark = null")
        giving_back = asyncio.create_task(desk.end(claim, Release()))
        _, waiting = await asyncio.wait([giving_back], timeout=0.5)
        assert waiting  # for the lane
    assert await giving_back
    assert await desk.taken("*") == [claim.ref]


async def test_the_watermark_waits_for_a_lane_that_needs_a_low_mark_and_that_somebody_writes(
    desk: Desk, store: PostgresStore
):
    await desk.add()
    await desk.advance(60)
    with psycopg.connect(store.url) as connection:
        connection.execute(f"select from {store.schema}.lane for update")
        await move_watermark(desk)
        assert watermark(store) <= 1
    assert len(await desk.taken("*")) == 1


async def test_a_claimed_job_that_was_lost_below_the_low_mark_is_found_at_once(desk: Desk, store: PostgresStore):  # O7
    early = await desk.add()
    await desk.take_ahead()
    await desk.advance(60)
    await work_through(desk)
    await desk.advance(PAST_LEASE)
    await desk.rescue()
    assert await desk.taken("*") == [early]


async def test_a_job_that_comes_back_does_not_hide_those_that_were_ready_before(desk: Desk):  # O3
    first = await desk.add()
    due = await desk.add(delay=timedelta(seconds=1))
    await desk.advance(60)
    engine = desk.engine.inner
    assert isinstance(engine, PostgresEngine)
    engine._watermark_state._moved_at = math.inf  # the watermark is far below both
    await desk.promote()
    assert await desk.taken("*") == [first, due]


async def test_a_job_that_was_due_long_ago_is_found_as_soon_as_it_is_promoted(desk: Desk, store: PostgresStore):
    due = await desk.add(delay=timedelta(seconds=1))
    await desk.advance(60)
    await work_through(desk)
    await desk.promote()
    assert await desk.taken("*") == [due]


async def test_a_job_of_a_transaction_that_took_long_comes_to_light_below_the_low_mark_and_is_found_by_the_leader(
    desk: Desk, store: PostgresStore
):  # X4, X3
    caller = store.caller()
    caller.begin()
    (answer,) = await desk.engine.enqueue([new_job()], within=caller.handle)
    await desk.advance(60)
    await work_through(desk)
    caller.commit()
    assert await desk.taken("*") == []
    await maintain_lanes(desk)
    assert await desk.taken("*") == [answer.ref]


async def test_jobs_of_a_transaction_that_took_long_are_looked_for_when_it_has_ended(
    desk: Desk, store: PostgresStore
):  # X4, X3
    engine = desk.engine.inner
    assert isinstance(engine, PostgresEngine)
    watermark_state, upkeep = engine._watermark_state, engine._upkeep

    async def maintain() -> int | None:
        upkeep._due, upkeep._checks = 0.0, 64 + 1 + part  # not the one for which it looks from the beginning
        await desk.rescue()
        return watermark_state.late

    ((part,),) = by_hand(store, "select hashtextextended('default', 0) & 63")
    for _ in range(2):
        await desk.advance(1)
        await move_watermark(desk)
    assert await maintain() is None
    caller = store.caller()
    caller.begin()
    (answer,) = await desk.engine.enqueue([new_job()], within=caller.handle)
    for _ in range(10):
        await desk.advance(20)
        await move_watermark(desk)
        assert await maintain() is not None
    caller.commit()
    assert await desk.taken("*") == []
    assert await maintain() is None
    assert await desk.taken("*") == [answer.ref]


async def test_they_are_looked_for_too_where_another_leader_moved_the_watermark(
    desk: Desk, store: PostgresStore
):  # X3, X4
    engine = desk.engine.inner
    assert isinstance(engine, PostgresEngine)
    ((part,),) = by_hand(store, "select hashtextextended('default', 0) & 63")

    async def maintain() -> None:
        engine._upkeep._due, engine._upkeep._checks = 0.0, 64 + 1 + part  # as above
        await desk.rescue()

    for _ in range(2):
        await desk.advance(1)
        await move_watermark(desk)
    await maintain()
    caller = store.caller()
    caller.begin()
    (answer,) = await desk.engine.enqueue([new_job()], within=caller.handle)
    for _ in range(2):
        await desk.advance(1)
        await move_watermark(desk)
    assert engine._watermark_state.late is None
    other = Desk(store, await store.connect())
    for _ in range(2):
        await desk.advance(20)
        await move_watermark(other)
    caller.commit()
    for _ in range(2):
        await desk.advance(1)
        await move_watermark(desk)
    assert await desk.taken("*") == []
    await maintain()
    assert await desk.taken("*") == [answer.ref]


async def test_what_is_kept_in_mind_of_a_transaction_that_never_ends_is_bounded(desk: Desk, store: PostgresStore):
    engine = desk.engine.inner
    assert isinstance(engine, PostgresEngine)
    caller = store.caller()
    caller.begin()
    await desk.engine.enqueue([new_job()], within=caller.handle)
    for _ in range(150):
        await desk.advance(1)
        await move_watermark(desk)
    assert len(engine._watermark_state._snapshots) <= 100
    caller.commit()
    await move_watermark(desk)
    assert len(engine._watermark_state._snapshots) == 2


async def test_a_job_put_far_below_by_hand_is_found_by_one_of_64_looks(desk: Desk, store: PostgresStore):  # O2
    engine = desk.engine.inner
    assert isinstance(engine, PostgresEngine)
    await work_through(desk)
    await desk.rescue()
    long_ago = "timestamptz '2020-01-01'"
    by_hand(store, f"insert into onward.job (type, queue, ready_at) values ('greet', 'default', {long_ago})")
    found: list[bool] = []
    for _ in range(64):
        engine._upkeep._due = 0.0
        await desk.rescue()
        found.append(low_marks(store) == [True])
    assert found == sorted(found)
    assert found[-1]
    assert len(await desk.taken("*")) == 1


@pytest.mark.parametrize(("queue", "priority"), [("default", 0), ("default", 7), ("fresh", 0), ("aaa", 3), ("zzz", 9)])
async def test_a_job_added_by_hand_is_found_by_the_leader(
    desk: Desk, store: PostgresStore, queue: str, priority: int
):  # O2
    await work_through(desk)
    await desk.add(queue="m", priority=5)
    await desk.take("m")
    ((id,),) = by_hand(
        store,
        "insert into onward.job (type, queue, priority) values ('greet', %s, %s) returning id::text",
        queue,
        priority,
    )
    await maintain_lanes(desk)
    assert await desk.taken("*") == [JobRef(queue, id)]
    job = await desk.job(JobRef(queue, id))
    assert (job.type, job.attempts, job.max_attempts) == ("greet", 1, 5)


async def test_a_paused_queue_does_not_hide_a_job_added_by_hand_to_the_next(desk: Desk, store: PostgresStore):  # O2
    for queue in ("a", "b", "d"):
        await desk.add(queue=queue)
    await desk.set("b", paused=True)
    by_hand(store, "insert into onward.job (type, queue) values ('greet', 'c')")
    await maintain_lanes(desk)
    assert [ref.queue for ref in await desk.taken("*")] == ["a", "c", "d"]


async def test_a_job_added_by_hand_to_a_paused_queue_waits_there(desk: Desk, store: PostgresStore):
    await desk.set("q", paused=True)
    by_hand(store, "insert into onward.job (type, queue) values ('greet', 'q')")
    await maintain_lanes(desk)
    assert await desk.take("*") == ()
    assert by_hand(store, "select count(*) from onward.lane") == [(0,)]
    await desk.set("q", paused=False)
    assert len(await desk.take("*")) == 1


async def test_an_empty_lane_is_taken_away_when_nobody_can_be_adding_to_it_and_its_queue_stays(
    desk: Desk, store: PostgresStore
):
    await desk.add(queue="once", priority=3)
    await desk.end(await desk.take_one("*"), Complete())
    await desk.advance(61)
    busy = await desk.add(queue="busy")
    caller = store.caller()
    caller.begin()
    caller.note("a transaction that could have seen the lane")
    await maintain_lanes(desk)
    await maintain_lanes(desk)
    lanes = "select queue, closing is null from onward.lane order by 1"
    assert by_hand(store, lanes) == [("busy", True), ("once", False)]
    caller.commit()
    await maintain_lanes(desk)
    assert by_hand(store, lanes) == [("busy", True)]
    assert [queue.name for queue in await desk.engine.queues()] == ["busy", "once"]
    again = await desk.add(queue="once", priority=3)
    assert set(await desk.taken("*")) == {busy, again}


async def test_a_lane_of_which_a_job_was_completed_a_moment_ago_stays(desk: Desk, store: PostgresStore):
    for priority in (1, 2):
        await desk.add(queue="q", priority=priority)
        await desk.end(await desk.take_one("*"), Complete())
        await desk.advance(31)
    await maintain_lanes(desk)
    await maintain_lanes(desk)
    assert by_hand(store, "select priority, closing is null from onward.lane") == [(2, True)]


async def test_a_job_added_while_its_lane_is_on_its_way_out_is_found_at_once_and_ever_after(
    desk: Desk, store: PostgresStore
):
    await desk.add(queue="q")
    await desk.end(await desk.take_one("*"), Complete())
    await desk.advance(61)
    await maintain_lanes(desk)  # marked
    first = await desk.add(queue="q")
    await maintain_lanes(desk)  # gone, if nothing were there
    assert await desk.taken("*") == [first]
    second = await desk.add(queue="q")
    await maintain_lanes(desk)
    await maintain_lanes(desk)
    assert await desk.taken("*") == [second]


async def test_a_held_job_whose_lane_is_gone_is_found_when_it_is_given_back(desk: Desk, store: PostgresStore):  # O7
    ref = await desk.add(queue="q")
    (claim,) = await desk.take_ahead("q")
    by_hand(store, "delete from onward.lane")
    assert await desk.end(claim, Release())
    assert await desk.taken("*") == [ref]


async def test_updated_at_is_kept_for_ended_jobs_that_are_changed_by_hand(desk: Desk, store: PostgresStore):  # O2
    ref = await desk.add()
    await desk.end(await desk.take_one("*"), Complete())
    before = await desk.job(ref)
    by_hand(store, "update onward.history set last_error = 'looked into' where id = %s", ref.id)
    after = await desk.job(ref)
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
        """errors = '[{"attempt":1,"at":"now","kind":"k","message":"m"}]'""",
    ],
)
async def test_a_row_that_cannot_be_cannot_be_made_by_hand_either(desk: Desk, store: PostgresStore, change: str):  # O1
    await desk.add()
    before = await desk.jobs()
    with pytest.raises(REFUSED):
        by_hand(store, f"update onward.job set {change}")
    names, values = zip(*(one.split(" = ") for one in change.split(", ")), strict=True)
    if "type" not in names:
        names, values = ("type", *names), ("'t'", *values)
    with pytest.raises(REFUSED):
        by_hand(store, f"insert into onward.job ({', '.join(names)}) values ({', '.join(values)})")
    assert await desk.jobs() == before


async def test_what_a_job_can_be_like_can_be_written_by_hand(desk: Desk, store: PostgresStore):  # O2
    """So that the rules for hands are no narrower than ours."""
    await desk.add(backoff=Backoff.exponential(0.5, factor=1, cap=None, jitter=1), priority=1_000_000)
    await desk.end(await desk.take_one(), Retry(timedelta(seconds=1), BOOM))
    await desk.add(backoff=Backoff.fixed(7), start_by=moment_of(0) + timedelta(days=2_000_000))
    await desk.add(delay=timedelta(days=100), max_attempts=1)
    before = await desk.jobs()
    by_hand(store, "update onward.job set org_id = 'by hand'")
    columns = (
        "payload, queue, type, priority, max_attempts, backoff, errors, last_error, ready_at, next_run_at, start_by"
    )
    by_hand(store, f"insert into onward.job ({columns}) select {columns} from onward.job")
    after = await desk.jobs()
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
        "next_run_at = 'infinity'",
    ],
)
async def test_nor_can_one_that_has_ended(desk: Desk, store: PostgresStore, change: str):  # O1
    await desk.add()
    await desk.end(await desk.take_one(), Complete('"ok"'))
    before = await desk.jobs()
    with pytest.raises(REFUSED):
        by_hand(store, f"update onward.history set {change}")
    assert await desk.jobs() == before


async def test_the_view_shows_live_and_ended_jobs_in_harmonyks_words(desk: Desk, store: PostgresStore):  # H6
    async def held(queue: str) -> Claim:
        await desk.add(queue=queue)
        return await desk.take_one(queue)

    await desk.end(await held("completed"), Complete('"ok"'))
    await desk.end(await held("failed"), Fail(BOOM))
    await desk.end(await held("dead_letter"), Bury(BOOM))
    await desk.cancel(await desk.add(queue="cancelled"))
    await held("running")
    await held("claimed")
    by_hand(store, "update onward.job set started_at = null where queue = 'claimed'")
    await desk.add(queue="pending")
    await desk.add(queue="scheduled", delay=timedelta(hours=1))
    await desk.add(queue="blocked")
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


async def test_a_place_is_given_back_whoever_takes_the_job_from_its_worker(desk: Desk, store: PostgresStore):
    await desk.set("q", concurrency=1)
    await desk.add_many(3, queue="q")
    await desk.take_one("q")
    by_hand(store, "delete from onward.job where lease_until is not null")
    await desk.take_one("q")
    by_hand(store, "update onward.job set lease_until = null, has_permit = false where lease_until is not null")
    assert len(await desk.take("q", slots=2)) == 1


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


async def test_a_tour_of_many_queues_is_made_in_parts_and_goes_on_at_once(desk: Desk):  # H9
    for _ in range(2):
        await desk.engine.enqueue([new_job(queue=f"m/{n}") for n in range(300)])
    request = ClaimRequest(worker_id="w", queues=("m/*",), slots=300)
    assert len((await desk.engine.claim(request)).claims) == 300
    parts = [await desk.engine.claim(request) for _ in range(3)]
    assert [(len(part.claims), part.retry_after) for part in parts] == [(150, 0.0)] * 2 + [(0, None)]
    await desk.add_many(450, queue="m/0")
    parts = [await desk.engine.claim(request) for _ in range(2)]
    assert [(len(part.claims), part.retry_after) for part in parts] == [(300, None), (150, None)]


async def test_in_a_long_tour_a_notified_queue_gives_its_job_alone_now_and_then(desk: Desk):  # H9
    for _ in range(3):
        await desk.engine.enqueue([new_job(queue=f"m/{n}") for n in range(300)])
    inner = desk.engine.inner
    assert isinstance(inner, PostgresEngine)
    request = ClaimRequest(worker_id="w", queues=("m/*",), slots=300)
    assert len((await desk.engine.claim(request)).claims) == 300
    await desk.engine.enqueue([new_job(queue="m/x"), new_job(queue="m/y")])
    inner._on_notice("m/x,m/y")
    first = (await desk.engine.claim(request)).claims
    inner._rotation(request.queues).single_claim_at = math.inf
    then = (await desk.engine.claim(request)).claims
    assert [claim.ref.queue for claim in first] == ["m/x"]
    assert (len(then), then[0].ref.queue) == (150, "m/y")
