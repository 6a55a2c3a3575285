"""What a Node instance does besides working, done by us where none runs: only when asked to, and by pg-boss's rules."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from onward.clock import ManualClock
from onward.engine.checked import CheckedEngine
from onward.engine.values import QueueChange
from onward.engines.pgboss.engine import PgBossEngine
from onward.lifecycle import Complete, State
from onward.pgboss import PgBoss
from tests.conformance.driver import Desk
from tests.conformance.pgboss_case import PgBossStore
from tests.engines.pgboss.conftest import run_sql

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def unsupervised(store: PgBossStore) -> Desk:
    """A handle that was not asked to supervise."""
    handle = CheckedEngine(PgBossEngine(store.url, schema=store.schema, clock=store.clock))
    await handle.open()
    store._handles.append(handle)
    return Desk(store, handle)


async def stuck(desk: Desk, boss: PgBoss, **options: int) -> str:
    """Have a job active that nobody ends, as Node's worker would leave it."""
    await boss.create_queue("dead")
    await boss.create_queue("stuck", dead_letter="dead", retry_delay=10)
    id = await boss.send("stuck", {"n": 1}, **options)
    assert id is not None
    now = desk.now.isoformat()
    run_sql(
        desk.store,  # type: ignore[arg-type]
        "update boss.job set state = 'active', started_on = %s, heartbeat_on = %s where id = %s",
        now,
        now,
        id,
    )
    return id


async def test_what_is_active_for_too_long_is_tried_again_and_then_fails_into_the_dead_letters(
    desk: Desk, boss: PgBoss
):  # P1, P5
    await stuck(desk, boss, expire_in_seconds=60, retry_limit=1)
    await desk.advance(59)
    assert (await desk.rescue()).changed == 0
    await desk.advance(2)
    assert (await desk.rescue()).changed == 1
    (job,) = await desk.jobs()
    assert (job.status, job.last_error) == (State.SCHEDULED, "job timed out")
    assert job.next_run_at == desk.now + timedelta(seconds=10)
    await desk.advance(11)
    claim = await desk.take_one("stuck", lease=timedelta(hours=1))
    assert claim.attempts == 2
    await desk.advance(61)
    batch = await desk.rescue()
    assert (batch.changed, batch.buried) == (1, 1)
    assert (await desk.job(claim.ref)).status is State.DEAD_LETTER
    assert not await desk.end(claim, Complete())
    (letter,) = await desk.take("dead")
    assert letter.payload == '{"n": 1}'


async def test_a_heartbeat_that_stays_away_fails_a_job_though_its_time_is_not_up(desk: Desk, boss: PgBoss):  # P1
    await stuck(desk, boss, heartbeat_seconds=15, retry_limit=0)
    await desk.advance(16)
    assert (await desk.rescue()).buried == 1
    (dead,) = [job for job in await desk.jobs() if job.queue == "stuck"]
    assert dead.last_error == "job heartbeat timeout"


async def test_ended_jobs_and_those_that_nobody_wanted_go_after_their_own_time(desk: Desk, boss: PgBoss):  # P9
    await boss.create_queue("q")
    kept = await boss.send("q", {}, delete_after_seconds=0)
    brief = await boss.send("q", {}, delete_after_seconds=60)
    unwanted = await boss.send("q", {}, start_after=5, retention_seconds=100)
    for claim in await desk.take("q", slots=2):
        assert await desk.end(claim, Complete())
    await desk.advance(61)
    assert (await desk.prune()).changed == 1
    assert {job.id for job in await desk.jobs()} == {kept, unwanted}
    await desk.advance(45)
    assert (await desk.prune()).changed == 1
    assert {job.id for job in await desk.jobs()} == {kept}
    assert brief not in {kept, unwanted}


async def test_schedules_are_kept_once_a_minute_whoever_asks(desk: Desk, boss: PgBoss, store: PgBossStore):  # P1
    other = Desk(store, await store.connect())
    await boss.create_queue("report")
    await boss.schedule("report", "*/5 * * * *", {"kind": "daily"}, priority=7)
    midnight = desk.now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    store.clock.advance(midnight - desk.now + timedelta(seconds=5))
    assert "report" in (await desk.promote()).queues
    await desk.promote()
    await other.promote()
    await desk.advance(31)
    await other.promote()
    claim = await desk.take_one("report")
    assert (claim.payload, claim.priority, await desk.take("report")) == ('{"kind": "daily"}', 7, ())
    await desk.advance(4 * MINUTE - timedelta(seconds=31))
    await desk.promote()
    assert await desk.take("report") == ()
    await desk.advance(MINUTE)
    await desk.promote()
    assert len(await desk.take("report")) == 1


async def test_a_schedule_goes_by_its_own_time_zone(desk: Desk, boss: PgBoss, store: PgBossStore):
    await boss.create_queue("report")
    await boss.schedule("report", "30 6 * * *", tz="Asia/Kolkata")
    at_one = datetime(desk.now.year + 1, 3, 1, 1, 0, 20, tzinfo=desk.now.tzinfo)
    store.clock.advance(at_one - desk.now)
    await desk.promote()
    assert len(await desk.take("report")) == 1


async def test_a_schedule_that_cannot_be_kept_keeps_no_other_from_being_kept(
    desk: Desk, boss: PgBoss, store: PgBossStore, caplog: pytest.LogCaptureFixture
):
    for name in ("bad", "good", "gone"):
        await boss.create_queue(name)
        await boss.schedule(name, "* * * * *")
    run_sql(store, "update boss.schedule set cron = 'now and then' where name = 'bad'")
    await desk.promote()
    assert len(await desk.take("good")) == 1
    assert await desk.take("bad") == ()
    assert "now and then" in caplog.text


async def test_a_child_goes_when_its_last_parent_has_ended_well(desk: Desk, boss: PgBoss, store: PgBossStore):
    await boss.create_queue("q")
    child = str(uuid4())
    parents = [await boss.send("q", {"parent": number}) for number in range(2)]
    await boss.send("q", {"child": True}, id=child)
    run_sql(store, "update boss.job set blocking = true where id <> %s", child)
    run_sql(store, "update boss.job set blocked = true, pending_dependencies = 2 where id = %s", child)
    for parent in parents:
        run_sql(store, "insert into boss.job_dependency values ('q', %s, 'q', %s)", child, parent)
    first, second = await desk.take("q", slots=5)
    assert await desk.end(first, Complete())
    await desk.promote()
    assert await desk.take("q") == ()
    assert await desk.end(second, Complete())
    assert (await desk.promote()).queues == {"q"}
    assert (await desk.take_one("q")).ref.id == child


async def test_without_being_asked_only_our_own_dead_workers_are_looked_after(
    desk: Desk, unsupervised: Desk, boss: PgBoss, store: PgBossStore
):
    await stuck(desk, boss, expire_in_seconds=1)
    await boss.create_queue("q")
    await boss.schedule("q", "* * * * *")
    await boss.send("q", {}, delete_after_seconds=1)
    assert await desk.end(await desk.take_one("q"), Complete())
    await unsupervised.set("ours")
    await unsupervised.add(queue="ours")
    await unsupervised.take_one("ours")
    await desk.advance(timedelta(days=1))
    assert (await unsupervised.rescue()).queues == {"ours"}
    assert (await unsupervised.prune()).changed == 0
    await unsupervised.promote()
    assert run_sql(store, "select count(*) from boss.job where name = 'q'") == [(1,)]
    assert run_sql(store, "select state::text from boss.job where name = 'stuck'") == [("active",)]


async def test_what_a_lost_job_costs_rises_with_the_times_it_is_lost(desk: Desk):  # Counting
    await desk.engine.configure("q", QueueChange(max_attempts=2))
    ref = await desk.add(queue="q")
    seen = []
    for _ in range(6):
        claims = await desk.take("q")
        if not claims:
            break
        job = await desk.lose(claims[0])
        seen.append((job.status, job.attempts, job.crashes))
    assert seen == [
        (State.PENDING, 0, 1),
        (State.PENDING, 0, 2),
        (State.PENDING, 1, 3),
        (State.DEAD_LETTER, 2, 0),
    ]
    job = await desk.job(ref)
    assert job.last_error == "WorkerLost: its workers went silent, 4 of them"


def test_the_clock_of_these_tests_stands_still(store: PgBossStore):
    assert isinstance(store.clock, ManualClock)
