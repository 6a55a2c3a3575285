"""What a Node instance does besides working, done by us where none runs: only when asked to, and by pg-boss's rules."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import uuid4

import pytest
from msgspec.structs import replace

from onward.clock import ManualClock
from onward.cron import Cron
from onward.engine.checked import CheckedEngine
from onward.engine.values import QueueChange
from onward.engines.pgboss.engine import PgBossEngine
from onward.errors import InvalidValue
from onward.job import NewJob
from onward.lifecycle import Complete, JobStatus
from onward.pgboss import PgBoss
from onward.schedule import Missed, Schedule
from tests.conformance.driver import Driver
from tests.conformance.pgboss_case import PgBossStore
from tests.engines.pgboss.conftest import run_sql

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def unsupervised(store: PgBossStore) -> Driver:
    """A handle that was not asked to supervise."""
    handle = CheckedEngine(PgBossEngine(store.url, schema=store.schema, clock=store.clock))
    await handle.open()
    store._handles.append(handle)
    return Driver(store, handle)


async def stuck(driver: Driver, boss: PgBoss, **options: int) -> str:
    """Have a job active that nobody ends, as Node's worker would leave it."""
    await boss.create_queue("dead")
    await boss.create_queue("stuck", dead_letter="dead", retry_delay=10)
    id = await boss.send("stuck", {"n": 1}, **options)
    assert id is not None
    now = driver.now.isoformat()
    run_sql(
        driver.store,  # type: ignore[arg-type]
        "update boss.job set state = 'active', started_on = %s, heartbeat_on = %s where id = %s",
        now,
        now,
        id,
    )
    return id


async def test_what_is_active_for_too_long_is_tried_again_and_then_fails_into_the_dead_letters(
    driver: Driver, boss: PgBoss
):  # P1, P5
    await stuck(driver, boss, expire_in_seconds=60, retry_limit=1)
    await driver.advance(59)
    assert (await driver.rescue()).changed == 0
    await driver.advance(2)
    assert (await driver.rescue()).changed == 1
    (job,) = await driver.jobs()
    assert (job.status, job.last_error) == (JobStatus.SCHEDULED, "job timed out")
    assert job.next_run_at == driver.now + timedelta(seconds=10)
    await driver.advance(11)
    claim = await driver.take_one("stuck", lease=timedelta(hours=1))
    assert claim.attempts == 2
    await driver.advance(61)
    batch = await driver.rescue()
    assert (batch.changed, batch.buried) == (1, 1)
    assert (await driver.job(claim.ref)).status is JobStatus.DEAD_LETTER
    assert not await driver.end(claim, Complete())
    (letter,) = await driver.take("dead")
    assert letter.payload == '{"n": 1}'


async def test_a_heartbeat_that_stays_away_fails_a_job_though_its_time_is_not_up(driver: Driver, boss: PgBoss):  # P1
    await stuck(driver, boss, heartbeat_seconds=15, retry_limit=0)
    await driver.advance(16)
    assert (await driver.rescue()).buried == 1
    (dead,) = [job for job in await driver.jobs() if job.queue == "stuck"]
    assert dead.last_error == "job heartbeat timeout"


async def test_ended_jobs_and_those_that_nobody_wanted_go_after_their_own_time(driver: Driver, boss: PgBoss):  # P9
    await boss.create_queue("q")
    kept = await boss.send("q", {}, delete_after_seconds=0)
    brief = await boss.send("q", {}, delete_after_seconds=60)
    unwanted = await boss.send("q", {}, start_after=5, retention_seconds=100)
    for claim in await driver.take("q", slots=2):
        assert await driver.end(claim, Complete())
    await driver.advance(61)
    assert (await driver.prune()).changed == 1
    assert {job.id for job in await driver.jobs()} == {kept, unwanted}
    await driver.advance(45)
    assert (await driver.prune()).changed == 1
    assert {job.id for job in await driver.jobs()} == {kept}
    assert brief not in {kept, unwanted}


async def test_schedules_are_kept_once_a_minute_whoever_asks(driver: Driver, boss: PgBoss, store: PgBossStore):  # P1
    other = Driver(store, await store.connect())
    await boss.create_queue("report")
    await boss.schedule("report", "*/5 * * * *", {"kind": "daily"}, priority=7)
    midnight = driver.now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    store.clock.advance(midnight - driver.now + timedelta(seconds=5))
    assert "report" in (await driver.promote()).queues
    await driver.promote()
    await other.promote()
    await driver.advance(31)
    await other.promote()
    claim = await driver.take_one("report")
    assert (claim.payload, claim.priority, await driver.take("report")) == ('{"kind": "daily"}', 7, ())
    await driver.advance(4 * MINUTE - timedelta(seconds=31))
    await driver.promote()
    assert await driver.take("report") == ()
    await driver.advance(MINUTE)
    await driver.promote()
    assert len(await driver.take("report")) == 1


async def test_a_schedule_goes_by_its_own_time_zone(driver: Driver, boss: PgBoss, store: PgBossStore):
    await boss.create_queue("report")
    await boss.schedule("report", "30 6 * * *", tz="Asia/Kolkata")
    at_one = datetime(driver.now.year + 1, 3, 1, 1, 0, 20, tzinfo=driver.now.tzinfo)
    store.clock.advance(at_one - driver.now)
    await driver.promote()
    assert len(await driver.take("report")) == 1


async def test_a_schedule_that_cannot_be_kept_keeps_no_other_from_being_kept(
    driver: Driver, boss: PgBoss, store: PgBossStore, caplog: pytest.LogCaptureFixture
):
    for name in ("bad", "good", "gone"):
        await boss.create_queue(name)
        await boss.schedule(name, "* * * * *")
    run_sql(store, "update boss.schedule set cron = 'now and then' where name = 'bad'")
    await driver.advance(MINUTE)
    await driver.promote()
    assert len(await driver.take("good")) == 1
    assert await driver.take("bad") == ()
    assert "now and then" in caplog.text


async def test_a_child_goes_when_its_last_parent_has_ended_well(driver: Driver, boss: PgBoss, store: PgBossStore):
    await boss.create_queue("q")
    child = str(uuid4())
    parents = [await boss.send("q", {"parent": number}) for number in range(2)]
    await boss.send("q", {"child": True}, id=child)
    run_sql(store, "update boss.job set blocking = true where id <> %s", child)
    run_sql(store, "update boss.job set blocked = true, pending_dependencies = 2 where id = %s", child)
    for parent in parents:
        run_sql(store, "insert into boss.job_dependency values ('q', %s, 'q', %s)", child, parent)
    first, second = await driver.take("q", slots=5)
    assert await driver.end(first, Complete())
    await driver.promote()
    assert await driver.take("q") == ()
    assert await driver.end(second, Complete())
    assert (await driver.promote()).queues == {"q"}
    assert (await driver.take_one("q")).ref.id == child


async def test_without_being_asked_only_our_own_dead_workers_are_looked_after(
    driver: Driver, unsupervised: Driver, boss: PgBoss, store: PgBossStore
):
    await stuck(driver, boss, expire_in_seconds=1)
    await boss.create_queue("q")
    await boss.schedule("q", "* * * * *")
    await boss.send("q", {}, delete_after_seconds=1)
    assert await driver.end(await driver.take_one("q"), Complete())
    await unsupervised.set("ours")
    await unsupervised.add(queue="ours")
    await unsupervised.take_one("ours")
    await driver.advance(timedelta(days=1))
    assert (await unsupervised.rescue()).queues == {"ours"}
    assert (await unsupervised.prune()).changed == 0
    await unsupervised.promote()
    assert run_sql(store, "select count(*) from boss.job where name = 'q'") == [(1,)], "Node's schedules are Node's"
    assert run_sql(store, "select state::text from boss.job where name = 'stuck'") == [("active",)]


async def test_a_schedule_of_ours_fires_without_being_asked_to_supervise(
    unsupervised: Driver, boss: PgBoss, store: PgBossStore
):  # X1
    await boss.create_queue("q")
    await boss.schedule("q", "* * * * *")
    ours = Schedule(name="ours", job=NewJob(type="digest", queue="q"), trigger=Cron("* * * * *"), missed=Missed.SKIP)
    await unsupervised.engine.save_schedule(ours.going_on(unsupervised.now))
    await unsupervised.advance(MINUTE)
    await unsupervised.promote()
    await unsupervised.promote()
    claims = await unsupervised.take("q", slots=9)
    assert [claim.type for claim in claims] == ["digest"]


async def test_all_schedules_that_are_due_together_fire_in_one_turn(driver: Driver, boss: PgBoss):  # X1
    await boss.create_queue("q")
    for number in range(60):
        await boss.schedule("q", "* * * * *", key=f"k{number}")
    await driver.advance(MINUTE)
    await driver.promote()
    assert len(await driver.take("q", slots=100)) == 60


async def test_a_schedule_of_nodes_is_listed_paused_and_resumed_as_it_was(
    driver: Driver, boss: PgBoss, store: PgBossStore
):  # X1
    await boss.create_queue("q")
    await boss.schedule("q", "0 6 * * *", {"a": 1}, key="eu", tz="Europe/Berlin", retry_limit=4, expire_in_seconds=77)
    await boss.schedule("q", "0 7 * * *")
    whole = "select key, cron, timezone, data, options from boss.schedule order by key"
    before = run_sql(store, whole)
    plain, keyed = await driver.engine.schedules()
    assert (plain.name, keyed.name) == ("q", "q/eu")
    assert (keyed.job.payload, keyed.job.max_attempts) == ('{"a":1}', 5)
    assert keyed.trigger == Cron("0 6 * * *", "Europe/Berlin")
    await driver.engine.save_schedule(keyed.stopped())
    assert [row[0] for row in run_sql(store, whole)] == [""]
    assert [one.paused for one in await driver.engine.schedules()] == [False, True]
    await driver.engine.save_schedule(keyed.going_on(driver.now))
    assert run_sql(store, whole) == before
    assert await driver.engine.delete_schedule("q/eu")
    assert [row[0] for row in run_sql(store, whole)] == [""]


@pytest.mark.parametrize("queue", ["mail", "reports"])
async def test_a_schedule_with_the_name_of_nodes_leaves_that_as_it_is(
    driver: Driver, boss: PgBoss, store: PgBossStore, queue: str
):  # X1
    await boss.create_queue("reports")
    await boss.create_queue("mail")
    await boss.schedule("reports", "0 6 * * *", {"a": 1})
    whole = "select name, key, cron, data, options from boss.schedule where key = ''"
    before = run_sql(store, whole)
    trigger = Cron("0 9 * * *")
    ours = Schedule(name="reports", job=NewJob(type="build", queue=queue), trigger=trigger, missed=Missed.SKIP)
    for _ in range(2):
        await driver.engine.save_schedule(ours.going_on(driver.now))
        assert run_sql(store, whole) == before
        assert [one.job.type for one in await driver.engine.schedules()] == ["reports", "build"]
    assert await driver.engine.delete_schedule("reports")
    assert run_sql(store, "select name, key, cron, data, options from boss.schedule") == before


async def test_an_edit_of_a_schedule_of_nodes_keeps_its_key(driver: Driver, boss: PgBoss, store: PgBossStore):  # X1
    await boss.create_queue("reports")
    await boss.schedule("reports", "0 6 * * *", {"a": 1})
    (listed,) = await driver.engine.schedules()
    await driver.engine.save_schedule(replace(listed, trigger=Cron("0 9 * * *")))
    assert run_sql(store, "select key, cron from boss.schedule") == [("", "0 9 * * *")]


async def test_a_name_that_node_would_refuse_as_a_key_is_refused(driver: Driver, boss: PgBoss):  # X1
    await boss.create_queue("q")
    bad = Schedule(name="a b", job=NewJob(type="t", queue="q"), trigger=Cron("* * * * *"), missed=Missed.SKIP)
    with pytest.raises(InvalidValue, match="letters, digits"):
        await driver.engine.save_schedule(bad.going_on(driver.now))
    assert await driver.engine.schedules() == []


async def test_what_a_lost_job_costs_rises_with_the_times_it_is_lost(driver: Driver):  # Counting
    await driver.engine.configure("q", QueueChange(max_attempts=2))
    ref = await driver.add(queue="q")
    seen = []
    for _ in range(6):
        claims = await driver.take("q")
        if not claims:
            break
        job = await driver.lose(claims[0])
        seen.append((job.status, job.attempts, job.crashes))
    assert seen == [
        (JobStatus.PENDING, 0, 1),
        (JobStatus.PENDING, 0, 2),
        (JobStatus.PENDING, 1, 3),
        (JobStatus.DEAD_LETTER, 2, 0),
    ]
    job = await driver.job(ref)
    assert (job.last_error or "").startswith("WorkerLost: its lease ran out in 4 runs")


def test_the_clock_of_these_tests_stands_still(store: PgBossStore):
    assert isinstance(store.clock, ManualClock)
