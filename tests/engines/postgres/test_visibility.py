"""When a committed job can be claimed: each test drives one interleaving of docs/explain/postgres-visibility.md."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from time import monotonic
from typing import Any

import psycopg
import pytest

from onward.engine.values import Term
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.maintenance import UpkeepSchedule, WatermarkState
from onward.job import JobRef
from onward.lifecycle import Complete
from onward.pg.plan_runner import Plan
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore
from tests.engines.postgres.test_lanes import by_hand, maintain_lanes, move_watermark, watermark, work_through

_ATTEMPTS = 50
"""Transactions of other tests on the same server may complete in between: then the interleaving is driven again."""


def enqueue(store: PostgresStore, connection: psycopg.Connection[Any], queue: str = "default") -> JobRef:
    """Add a job in the connection's transaction, at the store's time."""
    row = connection.execute(
        f"insert into {store.schema}.job (type, queue, ready_at) values ('greet', %s, {store.schema}.to_timestamp(%s)) "
        "returning id::text",
        [queue, store.clock.micros()],
    ).fetchone()
    assert row is not None
    return JobRef(queue, row[0])


def engine_of(driver: Driver) -> PostgresEngine:
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    return engine


def drive(plan: Plan[None], *answers: list[tuple[Any, ...]] | Exception) -> None:
    """Run a plan with these answers of the store."""
    try:
        next(plan)
        for answer in answers:
            if isinstance(answer, Exception):
                plan.throw(answer)
            else:
                plan.send(answer)
    except StopIteration:
        pass


@pytest.mark.parametrize("in_savepoint", [False, True])
async def test_the_watermark_does_not_pass_an_open_transaction_that_has_the_next_id(
    driver: Driver, store: PostgresStore, in_savepoint: bool
):  # X3, X4
    term = await driver.lead(lease=timedelta(hours=1))
    await driver.add()
    await driver.take()
    for _ in range(_ATTEMPTS):
        with psycopg.connect(store.url) as caller, psycopg.connect(store.url, autocommit=True) as reader:
            await move_watermark(driver, term)
            with ExitStack() as savepoint:
                if in_savepoint:
                    caller.execute("select 1")
                    savepoint.enter_context(caller.transaction())
                ref = enqueue(store, caller)
            own = caller.execute("select pg_current_xact_id()").fetchone()
            await driver.advance(1)
            # No transaction with a larger id has completed: PostgreSQL's "next id" is the one that the caller has.
            has_next_id = own == reader.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::xid8").fetchone()
            for _ in range(2):
                await move_watermark(driver, term)
                await driver.advance(1)
        assert await driver.taken("*") == [ref]
        if has_next_id:
            return
    pytest.fail("other transactions completed each time")


@pytest.mark.parametrize(
    "read_clock",
    ["select onward.enqueue_time(null)", "insert into onward.job (type) values ('greet') returning ready_at"],
)
async def test_a_transaction_has_its_id_before_it_reads_the_clock_for_a_job(
    driver: Driver, store: PostgresStore, read_clock: str
):  # X4
    with psycopg.connect(store.url) as caller, psycopg.connect(store.url) as later:
        ((ready_at,),) = caller.execute(read_clock.replace("onward.", f"{store.schema}.")).fetchall()
        ((own,),) = caller.execute("select pg_current_xact_id_if_assigned()::text").fetchall()
        ((next_id, is_after),) = later.execute(
            "select pg_current_xact_id()::text, clock_timestamp() >= %s", [ready_at]
        ).fetchall()
    assert own is not None
    assert is_after
    assert int(own) < int(next_id)


async def test_the_watermark_passes_what_all_transactions_before_it_have_written(
    driver: Driver, store: PostgresStore
):  # X4
    term = await driver.lead(lease=timedelta(hours=1))
    await driver.add()
    await driver.take()
    with psycopg.connect(store.url) as later:
        await driver.advance(1)
        await move_watermark(driver, term)
        expected = store.clock.micros() - 200_000
        enqueue(store, later)  # its id is larger than the snapshot's
        await driver.advance(1)
        await move_watermark(driver, term)
        assert watermark(store) == expected


async def test_a_snapshot_does_not_outlast_a_clock_that_goes_back(driver: Driver, store: PostgresStore):  # X3, X4
    term = await driver.lead(lease=timedelta(hours=1))
    await driver.add()
    await driver.take()
    await driver.advance(60)
    for _ in range(2):
        await move_watermark(driver, term)
        await driver.advance(5)
    await move_watermark(driver, term)
    store.clock._micros -= 3_000_000  # by less than the watermark is behind
    with psycopg.connect(store.url) as caller:
        ref = enqueue(store, caller)
        for _ in range(5):
            await driver.advance(0.5)
            await move_watermark(driver, term)
    assert await driver.taken("*") == [ref]


def test_a_move_of_the_watermark_whose_answer_is_lost_is_reckoned_with(store: PostgresStore):  # X3
    state, schema = WatermarkState(), PostgresEngine(store.url, schema=store.schema).schema
    term = Term(1, "leader", store.clock.now())
    state.lead(term)
    state.late = None
    with pytest.raises(ConnectionError):
        drive(state.move(schema, term), [(30_000_000, 10_000_000, 40_000_000, "7")], ConnectionError())
    assert state.late == 10_000_000


async def test_a_lane_is_not_removed_under_a_transaction_that_began_while_it_was_being_marked(
    driver: Driver, store: PostgresStore
):  # X3, X4
    term = await driver.lead(lease=timedelta(hours=1))
    await driver.add()
    await driver.end(await driver.take_one(), Complete())
    await driver.advance(61)
    repair = (
        f"select {store.schema}.maintain_lanes(%s, 'c', {term.number}, '{term.leader_id}', null, '{{}}', '{{}}', "
        "null, null, 1)"
    )
    with psycopg.connect(store.url) as caller:
        with psycopg.connect(store.url) as leader:
            leader.execute(repair, [store.clock.micros()])  # marks the lane
            ref = enqueue(store, caller)
            seen = caller.execute(f"select closing is null from {store.schema}.lane").fetchall()
        assert seen == [(True,)]
        for _ in range(3):
            by_hand(store, repair.replace(store.schema, "onward"), store.clock.micros())
    assert await driver.taken("*") == [ref]


async def test_a_job_below_the_watermark_is_found_by_the_next_repair_whatever_the_reason(
    driver: Driver, store: PostgresStore
):  # O3, X3
    await work_through(driver)
    await driver.rescue()
    upkeep = engine_of(driver)._upkeep
    for long_ago in (90, 100 * 24 * 3600):
        ((id,),) = by_hand(
            store,
            "insert into onward.job (type, ready_at) values ('greet', onward.watermark() - %s * interval '1 second') "
            "returning id::text",
            long_ago,
        )
        assert await driver.taken("*") == []
        upkeep._due = 0.0
        await driver.rescue()
        assert await driver.taken("*") == [JobRef("default", id)]
        await driver.advance(2)
        await move_watermark(driver)


@pytest.mark.parametrize(("age", "is_found"), [(50, True), (70, False)])
async def test_the_minute_below_the_watermark_is_scanned_each_time_where_complete_scans_take_too_long(
    driver: Driver, store: PostgresStore, age: int, is_found: bool
):  # O3, X3
    await work_through(driver)
    await driver.rescue()
    upkeep = engine_of(driver)._upkeep
    ((shard,),) = by_hand(store, "select hashtextextended('default', 0) & 63")
    by_hand(
        store,
        "insert into onward.job (type, ready_at) values ('greet', onward.watermark() - %s * interval '1 second')",
        age,
    )
    upkeep._due, upkeep._checks, upkeep._deep_shards = 0.0, 64 + 1 + shard, 64  # another shard's turn
    await driver.rescue()
    assert (await driver.taken("*") != []) is is_found


def test_complete_scans_are_spread_over_more_repairs_the_longer_they_take():  # O3
    upkeep = UpkeepSchedule()
    assert upkeep.deep_shard() == (None, 1)
    for _ in range(10):
        upkeep.finish(monotonic() - 1)
    seen: set[int | None] = set()
    for _ in range(64):
        shard, shards = upkeep.deep_shard()
        seen.add(shard)
        assert shards == 64
        upkeep.finish(monotonic() - 0.1)
    assert seen == set(range(64))
    for _ in range(10):
        upkeep.finish(monotonic())
    assert upkeep.deep_shard() == (None, 1)


def test_a_repair_that_takes_its_full_time_is_due_again_within_two_seconds():  # O3
    upkeep = UpkeepSchedule()
    upkeep.finish(monotonic() - 0.2)
    assert upkeep._due - monotonic() < 2


async def test_all_jobs_without_a_lane_get_one_at_once(driver: Driver, store: PostgresStore):  # O3
    for queue in ("b", "q", "x"):
        await driver.add(queue=queue, priority=5)
    await driver.set("e", paused=True)
    of_queues = {"a": (0, 1), "c": (5, 7), "d": (0,), "e": (0, 1), "f": (9,), "q": (2, 3, 8, 9), "y": (0,), "z": (0,)}
    lost = {(queue, priority) for queue, priorities in of_queues.items() for priority in priorities}
    for queue, priority in sorted(lost):
        by_hand(store, "insert into onward.job (type, queue, priority) values ('greet', %s, %s)", queue, priority)
    await maintain_lanes(driver)
    lanes = by_hand(store, "select queue, priority from onward.lane")
    assert sorted(lanes) == sorted({*(one for one in lost if one[0] != "e"), ("b", 5), ("q", 5), ("x", 5)})
