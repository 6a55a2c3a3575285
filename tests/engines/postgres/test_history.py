"""History by the day: what nobody keeps any longer is archived at once, and its keys and logs go (P9)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest

from onward.engine.values import Claim, JobFilter, Retention, Settlement
from onward.errors import StoreBusy
from onward.job import JobRef
from onward.lifecycle import Bury, Cancel, Complete, JobStatus, Outcome
from tests.conformance.cases import BOOM
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore
from tests.conformance.processes import eventually
from tests.engines.postgres.test_lanes import by_hand

DAY = timedelta(days=1)


def parts(store: PostgresStore) -> list[str]:
    """Name the parts of the history that hold jobs, one for each job."""
    with psycopg.connect(store.url) as connection:
        rows = connection.execute(
            f"select tableoid::regclass::text from {store.schema}.history order by seq"
        ).fetchall()
        return [name.rpartition(".")[2] for (name,) in rows]


def days(store: PostgresStore, of: str = "history_done") -> list[str]:
    """Name the days, by the test's clock, that have a part of their own; those of the real one come with the schema."""
    with psycopg.connect(store.url) as connection:
        rows = connection.execute(
            "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
            " where i.inhparent = %s::regclass and c.relname ~ 'history_day_203' order by 1",
            [f"{store.schema}.{of}"],
        ).fetchall()
        return [name for (name,) in rows]


async def archived(driver: Driver) -> list[JobRef]:
    return [job.ref for job in (await driver.engine.archived(JobFilter())).items]


async def ended(driver: Driver, outcome: Outcome, **fields: object) -> JobRef:
    ref = await driver.add(**fields)
    claim = await driver.take_one(ref.queue)
    await driver.engine.report(claim, lines=["seen"])
    assert await driver.end(claim, outcome)
    return ref


async def prune_as_new_leader(driver: Driver) -> int:
    """Prune as somebody who has not looked after the days yet."""
    return (await Driver(driver.store, await driver.store.connect()).prune()).changed


async def test_days_are_made_ahead_and_jobs_end_in_theirs(driver: Driver, store: PostgresStore):  # P9
    await ended(driver, Complete())
    await driver.prune()
    assert days(store) == ["history_day_20300102", "history_day_20300103", "history_day_20300104"]
    await driver.advance(DAY)
    await ended(driver, Complete())
    await ended(driver, Bury(BOOM))
    await driver.advance(10 * DAY)
    await ended(driver, Complete())
    assert parts(store) == ["history_day_other", "history_day_20300102", "history_failed", "history_day_other"]


async def test_a_day_that_nobody_keeps_is_archived_as_a_whole_and_its_keys_and_logs_go(
    driver: Driver, store: PostgresStore
):  # P9, O4
    await driver.prune()
    old = await ended(driver, Complete(), idempotency_key="k")
    dead = await ended(driver, Bury(BOOM), idempotency_key="dead")
    await driver.advance(4 * DAY)
    await prune_as_new_leader(driver)
    young = await ended(driver, Complete())
    await driver.advance(3.2 * DAY)
    assert await prune_as_new_leader(driver) == 0, "others of its day are kept"
    await driver.advance(DAY)
    assert await prune_as_new_leader(driver) == 1
    assert "history_day_20300101" not in days(store)
    assert days(store, "archive_days") == ["history_day_20300101"]
    assert await archived(driver) == [old]
    assert await driver.engine.get(old) is None
    assert await driver.engine.logs(old) == []
    assert {job.ref for job in await driver.jobs()} == {dead, young}
    assert (await driver.enqueue(idempotency_key="k")).is_new
    assert (await driver.enqueue(idempotency_key="dead")).ref == dead


async def test_a_day_counts_its_jobs_frees_their_keys_and_is_dropped_when_its_time_is_over(
    driver: Driver, store: PostgresStore
):  # P9, O4
    await driver.prune()
    refs = [await ended(driver, Complete(), idempotency_key=f"k{number}") for number in range(3)]
    await driver.advance(9 * DAY)
    assert await prune_as_new_leader(driver) == 3
    with psycopg.connect(store.url) as connection:
        for table in ("history", "key", "log", "archive_rows"):
            assert connection.execute(f"select count(*) from {store.schema}.{table}").fetchone() == (0,)
    assert await archived(driver) == refs[::-1]
    assert days(store, "archive_days") == ["history_day_20300101"]
    await driver.advance(29 * DAY)
    await prune_as_new_leader(driver)
    assert "history_day_20300101" not in days(store, "archive_days")
    assert await archived(driver) == []


async def test_days_are_archived_one_after_the_other_each_in_a_moment_of_its_own(
    driver: Driver, store: PostgresStore
):  # P9
    await driver.prune()
    first = await ended(driver, Complete())
    await driver.advance(DAY)
    second = await ended(driver, Complete())
    await driver.advance(9 * DAY)
    leader = Driver(store, await store.connect())
    steps = [await leader.prune() for _ in range(3)]
    assert [(step.changed, step.more) for step in steps] == [(1, True), (1, True), (0, False)]
    assert await archived(driver) == [second, first]


async def test_of_a_day_that_goes_nothing_is_taken_along_that_was_not_to_be_archived(
    driver: Driver, store: PostgresStore
):  # P9
    await driver.set("none", retention=Retention(archived=timedelta(0)))
    await driver.prune()
    ref = await ended(driver, Complete())
    for _ in range(3):
        await ended(driver, Complete(), queue="none")
    await driver.advance(9 * DAY)
    desk_of_leader = Driver(store, await store.connect())
    assert (await desk_of_leader.prune(limit=2)).changed == 2
    assert days(store)[0] == "history_day_20300101", "it waits for the last one"
    assert (await desk_of_leader.prune(limit=2)).changed == 1
    assert await archived(driver) == []
    assert await prune_as_new_leader(driver) == 1
    assert await archived(driver) == [ref]


@pytest.mark.parametrize("kept", [timedelta(days=60), None])
async def test_no_day_goes_that_any_queue_still_keeps(
    driver: Driver, store: PostgresStore, kept: timedelta | None
):  # P9
    await driver.prune()
    await driver.set("long", retention=Retention(completed=kept, cancelled=kept))
    ref = await ended(driver, Complete(), queue="long")
    other = await ended(driver, Complete())
    await driver.advance(30 * DAY)
    assert await prune_as_new_leader(driver) == 1
    assert {job.ref for job in await driver.jobs()} == {ref}
    assert await driver.engine.get(other) is None
    await driver.advance(40 * DAY)
    assert await prune_as_new_leader(driver) == (kept is not None)


async def test_a_job_that_ends_while_its_day_is_being_made_ends_all_the_same(
    driver: Driver, store: PostgresStore
):  # X3
    refs = await driver.add_many(2)
    claims = await driver.take(slots=2)
    with psycopg.connect(store.url) as maker:
        maker.execute(f"select {store.schema}.create_partitions('2030-01-01 12:00+00')")
        first = asyncio.ensure_future(driver.end(claims[0], Complete()))
        second = asyncio.ensure_future(asyncio.to_thread(settle_sync, driver, claims[1]))

        async def both_wait() -> bool | None:
            waiting = "select count(*) >= 2 from pg_stat_activity where wait_event_type = 'Lock' and query ~ %s"
            with psycopg.connect(store.url) as looker:
                return looker.execute(waiting, [f"{store.schema}.*settle"]).fetchone() == (True,) or None

        await eventually(both_wait)
        maker.commit()
    assert await first
    assert await second
    assert parts(store) == ["history_day_20300101"] * 2
    assert [await driver.state(ref) for ref in refs] == [JobStatus.COMPLETED] * 2


def settle_sync(driver: Driver, claim: Claim) -> bool:
    return not driver.engine.settle_sync([Settlement(claim, Complete())])


async def test_a_reader_in_the_way_delays_the_drop_and_nobody_else(driver: Driver, store: PostgresStore):  # P9
    await driver.prune()
    await ended(driver, Complete())
    await driver.advance(9 * DAY)
    with psycopg.connect(store.url) as reader:
        reader.execute(f"select count(*) from {store.schema}.history")
        await prune_as_new_leader(driver)
        assert "history_day_20300101" in days(store)
        await ended(driver, Complete())
    await prune_as_new_leader(driver)
    assert "history_day_20300101" not in days(store)


async def test_a_big_day_is_archived_in_bounded_steps_that_the_next_leader_goes_on_with(
    driver: Driver, store: PostgresStore
):  # P9, O6
    await driver.prune()
    refs = [await ended(driver, Complete(), idempotency_key=f"k{number}") for number in range(5)]
    await driver.advance(9 * DAY)
    keys = "select count(*) from onward.key"
    lines = "select count(*) from onward.log"
    steps = []
    for left in (3, 1):  # each step by another leader: nothing that is done is kept in memory
        step = await Driver(store, await store.connect()).prune(limit=2)
        steps.append((step.changed, step.more))
        assert (by_hand(store, keys), by_hand(store, lines)) == ([(left,)], [(left,)])
        assert len(await driver.jobs()) == 5
    assert steps == [(0, True)] * 2
    step = await Driver(store, await store.connect()).prune(limit=2)
    assert (step.changed, step.more) == (5, True)
    assert await archived(driver) == refs[::-1]
    assert by_hand(store, "select count(*) from onward.archive_progress") == [(0,)]


async def test_a_day_is_archived_without_reading_its_rows(driver: Driver, store: PostgresStore):  # P9, O6
    """Its bounds are a check from the beginning: else it would be read while the leader's row is held."""
    await driver.prune()
    await ended(driver, Complete())
    await driver.advance(9 * DAY)
    term = await driver.lead()
    said: list[str] = []
    with psycopg.connect(store.url) as connection:
        connection.execute("set client_min_messages = debug1")
        connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        connection.execute(
            f"select {store.schema}.rotate_partitions(%s, %s, %s, 1000)",
            [store.clock.micros(), term.number, term.leader_id],
        )
    assert days(store, "archive_days") == ["history_day_20300101"]
    (attached,) = [line for line in said if "20300101" in line and "partition constraint" in line]
    assert "is implied by existing constraints" in attached


async def test_a_cancelled_job_that_is_replayed_while_its_day_goes_has_its_key_again(
    driver: Driver, store: PostgresStore
):  # O4
    await driver.prune()
    ref = await ended(driver, Cancel("no"), idempotency_key="k")
    await ended(driver, Complete())
    await driver.advance(9 * DAY)
    await Driver(store, await store.connect()).prune(limit=1)
    assert by_hand(store, "select count(*) from onward.key") == [(0,)]
    assert await driver.replay(ref)
    assert (await driver.enqueue(idempotency_key="k")).ref == ref


async def test_a_key_that_a_new_job_has_stays_when_the_old_job_is_deleted(driver: Driver, store: PostgresStore):  # O4
    await driver.prune()
    old = await ended(driver, Complete(), idempotency_key="k")
    await ended(driver, Complete())
    await driver.advance(9 * DAY)
    await Driver(store, await store.connect()).prune(limit=1)
    new = await driver.enqueue(idempotency_key="k")
    assert new.is_new
    assert await driver.engine.delete(JobFilter(ids=(old.id,)))
    assert (await driver.enqueue(idempotency_key="k")).ref == new.ref


async def test_a_day_is_archived_by_a_role_whose_statements_may_take_little_time(
    driver: Driver, store: PostgresStore
):  # P9
    """Each key takes 20 ms to delete, and a statement may take 200 ms: steps shrink until they fit."""
    await driver.prune()
    refs = [await ended(driver, Complete(), idempotency_key=f"k{number}") for number in range(20)]
    await driver.advance(9 * DAY)
    by_hand(
        store,
        "create function onward.slow() returns trigger language plpgsql"
        " as $$ begin perform pg_sleep(0.02); return old; end $$;"
        " create trigger slow before delete on onward.key for each row execute function onward.slow()",
    )
    store.url += "&options=-cstatement_timeout%3D200"
    leader = Driver(store, await store.connect())
    term = await leader.lead()
    gave_up = 0
    while await archived(driver) == []:
        try:
            await leader.engine.prune(term)
        except StoreBusy:
            gave_up += 1
        assert gave_up < 30, "steps do not get smaller"
    assert gave_up > 0
    assert await archived(driver) == refs[::-1]
