"""Who holds a job stands beside pg-boss, and the job itself has in it what pg-boss would have written, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from onward.engine.values import ClaimRequest, Exchange, Settlement, Token
from onward.engines.pgboss.engine import PgBossEngine
from onward.errors import StoreUnavailable
from onward.lifecycle import Complete, JobStatus, Release, Retry, Snooze
from onward.pgboss import PgBoss
from tests.conformance.cases import BOOM
from tests.conformance.driver import PAST_LEASE, Driver
from tests.conformance.pgboss_case import PgBossStore
from tests.engines.pgboss.conftest import run_sql

COUNT_LEASE_BATCHES = "select count(*)::integer from {}_onward.lease_batch"


def lease_batch_count(store: PgBossStore) -> int:
    """Count the claims that are written down."""
    ((count,),) = run_sql(store, COUNT_LEASE_BATCHES.format(store.schema))
    return int(count)


async def test_while_a_job_runs_it_says_what_pg_boss_has_it_say(driver: Driver, store: PgBossStore):  # P1
    ref = await driver.add(queue="q")
    assert await driver.end(await driver.take_one("q"), Retry(timedelta(0), BOOM))
    before = run_sql(store, "select output from boss.job")
    await driver.take_one("q", worker="worker-9")
    assert run_sql(store, "select output from boss.job") == before
    job = await driver.job(ref)
    assert (job.worker_id, job.last_error, job.attempts) == ("worker-9", str(BOOM), 2)


async def test_a_job_that_lies_elsewhere_than_its_claim_has_left_it_is_ended_all_the_same(
    driver: Driver, store: PgBossStore
):  # X3
    refs = await driver.add_many(2, queue="q")
    claims = await driver.take("q", slots=2)
    run_sql(store, "update boss.job set priority = priority + 1 where id = %s", refs[0].id)
    assert not await driver.engine.settle([Settlement(claim, Complete()) for claim in claims])
    assert [await driver.state(ref) for ref in refs] == [JobStatus.COMPLETED] * 2


async def test_what_lies_where_a_lost_claim_had_left_its_job_is_not_taken_for_it(
    driver: Driver, store: PgBossStore
):  # X3
    await driver.add(queue="q")
    first = await driver.take_one("q")
    await driver.advance(PAST_LEASE)
    await driver.rescue()
    again = await driver.take_one("q")
    assert not await driver.end(first, Complete())
    moved = run_sql(store, "select ctid::text from boss.job")[0][0]
    forged = (*first.token[:5], moved)
    assert await driver.engine.settle([Settlement(replace(first, token=forged), Complete())]) == {forged}
    assert await driver.end(again, Complete())


async def test_a_claim_of_which_all_has_ended_is_forgotten_with_the_next(driver: Driver, store: PgBossStore):
    await driver.add_many(3, queue="q")
    one, two = await driver.take("q", slots=2)
    assert await driver.end(one, Complete())
    await driver.take_one("q")
    assert lease_batch_count(store) == 2
    assert await driver.end(two, Complete())
    await driver.take("q")
    assert lease_batch_count(store) == 1


async def test_a_claim_of_which_nobody_has_said_that_it_ended_is_forgotten_when_it_has_run_out(
    driver: Driver, store: PgBossStore
):
    await driver.add(queue="q")
    claim = await driver.take_one("q")
    assert await driver.end(claim, Complete())
    assert lease_batch_count(store) == 1
    await driver.rescue()
    assert lease_batch_count(store) == 1
    await driver.advance(PAST_LEASE)
    await driver.rescue()
    assert lease_batch_count(store) == 0


async def test_a_sign_of_life_touches_only_jobs_that_pg_boss_wants_one_of(driver: Driver, store: PgBossStore):
    plain, watched = await driver.add_many(2, queue="q")
    run_sql(store, "update boss.job set heartbeat_seconds = 60 where id = %s", watched.id)
    claims = await driver.take("q", slots=2)
    places = run_sql(store, "select id::text, ctid::text from boss.job order by id")
    await driver.advance(10)
    assert (await driver.beat(*claims)).lost == frozenset()
    moved = [
        row for row in run_sql(store, "select id::text, ctid::text from boss.job order by id") if row not in places
    ]
    assert [id for id, _ in moved] == [watched.id]
    assert not await driver.engine.settle([Settlement(claim, Complete()) for claim in claims])
    assert await driver.state(plain) is JobStatus.COMPLETED


async def test_where_outcomes_cannot_be_stored_what_was_claimed_meanwhile_is_given_back(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
):  # X3
    await driver.add_many(2, queue="q")
    running = await driver.take_one("q")
    inner = driver.engine.inner
    assert isinstance(inner, PgBossEngine)
    settle = inner.settle

    async def away(settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        if any(isinstance(each.outcome, Release) for each in settlements):
            return await settle(settlements, connection=connection)
        raise StoreUnavailable("the line was cut")

    monkeypatch.setattr(inner, "settle", away)
    request = ClaimRequest(worker_id="w", queues=("q",), slots=5)
    wanted = Exchange(settlements=(Settlement(running, Complete()),), request=request)
    with pytest.raises(StoreUnavailable):
        await driver.engine.exchange(wanted)
    monkeypatch.undo()
    assert await driver.state(running.ref) is JobStatus.RUNNING
    (waiting,) = await driver.take("q", slots=5)
    assert waiting.attempts == 1


async def test_where_nothing_can_be_claimed_what_has_ended_is_stored_all_the_same(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
):  # X3
    await driver.add(queue="q")
    running = await driver.take_one("q")

    async def away(request: ClaimRequest) -> None:
        raise StoreUnavailable("the line was cut")

    monkeypatch.setattr(driver.engine.inner, "claim", away)
    request = ClaimRequest(worker_id="w", queues=("q",), slots=5)
    answer = await driver.engine.exchange(Exchange(settlements=(Settlement(running, Complete()),), request=request))
    assert (answer.lost, answer.claimed.claims) == (frozenset(), ())
    assert await driver.state(running.ref) is JobStatus.COMPLETED


async def test_a_claim_carries_how_often_its_job_wants_heartbeats(driver: Driver, boss: PgBoss):  # P1
    await boss.create_queue("q")
    await boss.send("q", {})
    await boss.send("q", {}, heartbeat_seconds=10)
    assert [claim.heartbeat_within for claim in await driver.take("q", slots=2)] == [None, 10]


async def test_a_snoozed_job_is_kept_until_it_has_run(driver: Driver, boss: PgBoss):  # P1
    await boss.create_queue("q")
    await boss.send("q", {}, retention_seconds=100)
    assert await driver.end(await driver.take_one("q"), Snooze(timedelta(seconds=300)))
    await driver.advance(290)
    assert (await driver.prune()).changed == 0
    await driver.advance(11)
    assert await driver.end(await driver.take_one("q"), Snooze(timedelta(0)))
    await driver.advance(101)
    assert (await driver.prune()).changed == 1  # nobody wanted it for its own time


async def test_a_job_that_failed_is_kept_no_longer_than_pg_boss_would_keep_it(
    driver: Driver, boss: PgBoss, store: PgBossStore
):  # P1
    await boss.create_queue("q")
    await boss.send("q", {}, retention_seconds=100)
    before = run_sql(store, "select keep_until from boss.job")
    assert await driver.end(await driver.take_one("q"), Retry(timedelta(seconds=300), BOOM))
    assert run_sql(store, "select keep_until from boss.job") == before
