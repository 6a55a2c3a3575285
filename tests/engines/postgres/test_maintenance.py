"""When the leader asks the store, and how far back: what it knows spares both (O7)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from onward.engine.values import MaintenanceResult, Retention, Settlement, Term
from onward.engines.postgres import maintenance
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.maintenance import RescueState, UpkeepSchedule, WatermarkState
from onward.job import EnqueueStatus
from onward.lifecycle import Complete, JobStatus, Release, Retry
from onward.pg.listener import Listener
from tests.conformance.cases import BOOM
from tests.conformance.driver import LEASE, PAST_LEASE, Driver, new_job
from tests.conformance.postgres_case import PostgresStore
from tests.engines.postgres.test_lanes import by_hand, maintain_lanes, move_watermark

MINUTE = 60_000_000


class Clock:
    """Time that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(maintenance, "monotonic", clock)
    return clock


def test_a_look_for_leases_that_ran_out_may_wait_once_where_nothing_goes_on(clock: Clock):
    rescue_state = RescueState()
    assert not rescue_state.can_skip()
    rescue_state.begin()
    rescue_state.finish(7, next_in=None)
    clock.now += 2
    assert rescue_state.can_skip()
    clock.now += 2
    assert not rescue_state.can_skip()


def test_it_does_not_wait_where_jobs_come_and_go(clock: Clock):
    rescue_state = RescueState()
    rescue_state.begin()
    rescue_state.mark_busy()  # while the look is under way
    rescue_state.finish(7, next_in=None)
    assert not rescue_state.can_skip()
    rescue_state.begin()
    rescue_state.finish(7, next_in=None)
    assert rescue_state.can_skip()
    rescue_state.mark_busy()
    assert not rescue_state.can_skip()


def test_it_does_not_wait_for_a_lease_that_runs_out_before_the_next_look(clock: Clock):
    rescue_state = RescueState()
    rescue_state.begin()
    rescue_state.finish(7, next_in=4.0)
    clock.now += 1
    assert rescue_state.can_skip()
    clock.now += 1
    assert not rescue_state.can_skip()


def test_it_goes_back_to_where_the_last_one_ended_and_now_and_then_to_the_beginning():
    rescue_state = RescueState()
    assert rescue_state.begin() is None
    rescue_state.finish(None, next_in=None)  # there was more than one look could take
    assert rescue_state.begin() is None
    rescue_state.finish(5 * MINUTE, next_in=None)
    assert [rescue_state.begin() for _ in range(64)].count(None) == 1
    assert rescue_state.begin() == 4 * MINUTE


async def test_a_claim_that_ran_out_before_all_that_was_looked_at_is_found_all_the_same(
    driver: Driver, store: PostgresStore
):  # O7
    ref = await driver.add()
    await driver.take_one()
    await driver.advance(600)
    by_hand(store, "create table onward.kept as table onward.lease_batch")
    by_hand(store, "delete from onward.lease_batch")
    assert (await driver.rescue()).changed == 0
    by_hand(store, "insert into onward.lease_batch table onward.kept")  # as if it were committed only now
    changed = [(await driver.rescue()).changed for _ in range(64)]
    assert (sum(changed), (await driver.job(ref)).crashes) == (1, 0)


def test_the_watermark_moves_often_where_jobs_come_and_go_and_seldom_where_none_do(clock: Clock):
    watermark_state = WatermarkState()
    assert watermark_state.is_due(is_listening=True)
    watermark_state._moved_at, watermark_state._is_busy = clock.now, False
    clock.now += 11
    assert (watermark_state.is_due(is_listening=True), watermark_state.is_due(is_listening=False)) == (False, True)
    watermark_state.mark_busy()
    assert watermark_state.is_due(is_listening=True)
    watermark_state._is_busy = False
    clock.now += 50
    assert watermark_state.is_due(is_listening=True)


def test_a_look_that_began_before_the_watermark_went_ahead_says_nothing_of_that(clock: Clock):  # X4
    watermark_state = WatermarkState()
    watermark_state.late, watermark_state._watermark = 5, 20
    watermark_state.lanes_maintained(None, 10)
    assert watermark_state.late == 5
    watermark_state.lanes_maintained(5, 10)
    assert watermark_state.late == 10
    watermark_state.lanes_maintained(10, 20)
    assert watermark_state.late is None


def test_who_leads_again_knows_nothing_of_what_others_did_meanwhile():  # X3
    watermark_state = WatermarkState()

    def lead(number: int) -> tuple[int | None, int]:
        watermark_state.lead(Term(number, "w", datetime(2030, 1, 1, tzinfo=UTC)))
        return watermark_state.late, len(watermark_state._snapshots)

    lead(1)
    watermark_state.late, watermark_state._snapshots = None, [(5, "7")]
    assert [lead(1), lead(2)] == [(None, 1)] * 2  # nobody else has
    assert lead(4) == (0, 0)


def test_all_lanes_are_looked_at_from_their_beginning_and_then_one_part_after_the_other(clock: Clock):
    upkeep, parts = UpkeepSchedule(), []
    for _ in range(65):
        parts.append(upkeep.shard())
        upkeep.finish(clock.now)
    assert parts[0] is None
    assert set(parts[1:]) == set(range(64))


async def test_a_leader_asks_for_batches_only_where_there_are_events_of_them(
    driver: Driver, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    asked: list[str] = []
    ask = engine._run

    async def listen(plan: Any, **options: Any) -> Any:
        asked.append("advance" if options.get("atomic") else "other")
        return await ask(plan, **options)

    monkeypatch.setattr(engine, "_run", listen)
    await driver.promote()
    assert "advance" not in asked
    by_hand(store, "insert into onward.batch_event (batch, completed) values ('gone', 1)")
    await driver.promote()
    assert asked.count("advance") == 1


async def test_a_leader_with_nothing_to_do_asks_for_lost_leases_every_other_time(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Listener, "is_listening", property(lambda _: True))
    engine = PostgresEngine(store.url, schema=store.schema)  # by the store's own clock
    await engine.open()
    term = await engine.elect("w", lease=timedelta(minutes=5), current_term=None)
    assert term is not None

    async def rescue() -> MaintenanceResult:
        return await engine.rescue(term, lease=LEASE, max_crashes=3)

    await rescue()
    by_hand(store, "update onward.leader set number = number + 1")  # whoever asks now would be told nothing
    full_scan_at = engine._rescue_state._checked_at
    await rescue()
    assert engine._rescue_state._checked_at == full_scan_at
    engine._on_notice("q")
    await rescue()
    assert engine._rescue_state._checked_at > full_scan_at
    await engine.close()


# Beside a transaction that stays open ---------------------------------------------------------------------------------


@contextmanager
def holding(store: PostgresStore, what: str) -> Iterator[None]:
    """Have somebody hold rows until the block ends."""
    with psycopg.connect(store.url) as holder:
        holder.execute(f"select from {store.schema}.{what} for update")
        yield
        holder.rollback()


async def test_no_step_of_a_leader_waits_for_a_callers_transaction(driver: Driver, store: PostgresStore):  # O6, X3, X4
    """It holds what callers can: lanes, by jobs that are given back; jobs that wait, and ended ones, by their keys."""

    async def end_five(key: str) -> None:
        await driver.put([new_job(queue="brief", idempotency_key=key), *[new_job(queue="brief")] * 4])
        await driver.end_all(await driver.take("brief", slots=5), Complete())

    await driver.set("brief", retention=Retention(completed=timedelta(days=1), completed_count=3))
    await end_five("old")
    await driver.add_many(2)
    given, lost = await driver.take(slots=2)
    await driver.advance(timedelta(days=2))
    await end_five("one too many")
    await driver.add(delay=timedelta(seconds=1))
    held = await driver.add(delay=timedelta(seconds=1), idempotency_key="due")
    term = await driver.lead(lease=timedelta(hours=1))
    caller = store.caller()
    caller.begin()
    assert not await driver.engine.settle([Settlement(given, Release())], connection=caller.handle)
    again = [new_job(idempotency_key=key) for key in ("old", "one too many", "due")]
    assert [one.enqueue_status for one in await driver.engine.enqueue(again, connection=caller.handle)] == [
        EnqueueStatus.SAME_KEY
    ] * 3
    await driver.advance(PAST_LEASE)
    by_hand(store, "insert into onward.job (type, ready_at) values ('greet', timestamptz '2020-01-01')")

    async with asyncio.timeout(20):
        await move_watermark(driver, term)
        assert (await driver.engine.promote(term)).changed == 1
        assert (await driver.rescue_as(term)).changed == 1  # and looks after the lanes
        assert (await driver.engine.prune(term)).changed == 4 + 1
        assert await driver.engine.elect(term.leader_id, lease=timedelta(hours=2), current_term=term) is not None
        # one that was lost, one that was due, and one that was put there by hand
        assert lost.ref in (taken := await driver.taken())
        assert len(taken) == 3
    caller.commit()
    assert await driver.taken() == [given.ref]
    assert (await driver.engine.promote(term)).changed == 1
    assert await driver.taken() == [held]
    assert (await driver.engine.prune(term)).changed == 2


async def test_a_lane_that_somebody_holds_is_neither_marked_nor_taken_away_nor_waited_for(
    driver: Driver, store: PostgresStore
):  # O6
    await driver.add(queue="q")
    await driver.end(await driver.take_one("q"), Complete())
    await driver.advance(61)
    lanes = "select closing is null from onward.lane"
    async with asyncio.timeout(20):
        with holding(store, "lane"):
            await maintain_lanes(driver)
        assert by_hand(store, lanes) == [(True,)]
        await maintain_lanes(driver)
        assert by_hand(store, lanes) == [(False,)]
        for _ in range(2):  # to seal, to remove
            with holding(store, "lane"):
                await maintain_lanes(driver)
            assert by_hand(store, lanes) == [(False,)]
            await maintain_lanes(driver)
    assert by_hand(store, lanes) == []


async def test_a_lost_job_is_found_though_somebody_holds_its_lane_and_there_are_not_more_lanes_each_time(
    driver: Driver, store: PostgresStore
):  # O7
    for _ in range(3):
        ref = await driver.add()
        await driver.take_ahead()
        await driver.advance(PAST_LEASE)
        async with asyncio.timeout(20):
            with psycopg.connect(store.url) as holder:
                first = "select min(ctid) from onward.lane".replace("onward", store.schema)
                holder.execute(f"select from {store.schema}.lane where ctid = ({first}) for update")
                await move_watermark(driver)
                await driver.rescue()
                claim = await driver.take_one()
                assert claim.ref == ref
        assert await driver.end(claim, Complete())
    assert by_hand(store, "select count(*) from onward.lane") == [(2,)]


async def test_what_somebody_holds_of_the_archive_or_of_a_silent_worker_goes_later(
    driver: Driver, store: PostgresStore
):  # O6
    await driver.set("q", retention=Retention(completed=timedelta(0), archived=timedelta(days=1)))
    await driver.add(queue="q")
    await driver.end(await driver.take_one("q"), Complete())
    await driver.beat()
    await driver.advance(1)
    await driver.prune()
    await driver.advance(timedelta(days=2))
    left = "select (select count(*) from onward.archive_rows), (select count(*) from onward.worker)"
    async with asyncio.timeout(20):
        with holding(store, "archive_rows"), holding(store, "worker"):
            await driver.prune()
            await driver.rescue()
        assert by_hand(store, left) == [(1, 1)]
        await driver.prune()
        await driver.rescue()
    assert by_hand(store, left) == [(0, 0)]


# What people do by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", ["attempts = 0", "crashes = -1, updated_at = updated_at + interval '1 us'"])
async def test_a_job_that_was_edited_by_hand_while_it_ran_holds_up_no_other(
    driver: Driver, store: PostgresStore, edit: str
):  # O7
    refs = await driver.add_many(4)
    lost, given, failed, fine = await driver.take(slots=4)
    by_hand(store, f"update {store.schema}.job set {edit} where id <> '{fine.ref.id}'")
    await driver.end_all([given, fine], Release())
    assert await driver.end(failed, Retry(timedelta(0), BOOM))
    await driver.advance(PAST_LEASE)
    assert (await driver.rescue()).changed == 1
    await driver.promote()
    assert {await driver.state(ref) for ref in refs} == {JobStatus.PENDING}
    assert (await driver.job(lost.ref)).attempts == 0


async def test_a_job_that_cannot_be_costs_no_other_its_lease(driver: Driver, store: PostgresStore):  # O7
    """Hands that move ``updated_at`` themselves are not looked at."""
    await driver.add_many(2)
    odd, fine = await driver.take(slots=2)
    edit = "crashes = -1, updated_at = updated_at + interval '1 us'"
    by_hand(store, f"update {store.schema}.job set {edit} where id = '{odd.ref.id}'")
    await driver.advance(LEASE * 0.75)
    assert not (await driver.beat(odd, fine)).lost
    await driver.advance(LEASE * 0.75)
    assert (await driver.rescue()).changed == 0
    await driver.end_all([odd, fine], Complete())
