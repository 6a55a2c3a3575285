"""Who holds a job stands beside pg-boss, and the job itself has in it what pg-boss would have written, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from onward.engine.values import ClaimRequest, Exchange, Settlement, Token
from onward.engines.pgboss.engine import PgBossEngine
from onward.errors import StoreUnavailable
from onward.lifecycle import Complete, Release, Retry, State
from tests.conformance.cases import BOOM
from tests.conformance.driver import PAST_LEASE, Desk
from tests.conformance.pgboss_case import PgBossStore
from tests.engines.pgboss.conftest import run_sql

COUNT_LEASE_BATCHES = "select count(*)::integer from {}_onward.lease_batch"


def lease_batch_count(store: PgBossStore) -> int:
    """Count the claims that are written down."""
    ((count,),) = run_sql(store, COUNT_LEASE_BATCHES.format(store.schema))
    return int(count)


async def test_while_a_job_runs_it_says_what_pg_boss_has_it_say(desk: Desk, store: PgBossStore):  # P1
    ref = await desk.add(queue="q")
    assert await desk.end(await desk.take_one("q"), Retry(timedelta(0), BOOM))
    before = run_sql(store, "select output from boss.job")
    await desk.take_one("q", worker="worker-9")
    assert run_sql(store, "select output from boss.job") == before
    job = await desk.job(ref)
    assert (job.worker_id, job.last_error, job.attempts) == ("worker-9", str(BOOM), 2)


async def test_a_job_that_lies_elsewhere_than_its_claim_has_left_it_is_ended_all_the_same(
    desk: Desk, store: PgBossStore
):  # X3
    refs = await desk.add_many(2, queue="q")
    claims = await desk.take("q", slots=2)
    run_sql(store, "update boss.job set priority = priority + 1 where id = %s", refs[0].id)
    assert not await desk.engine.settle([Settlement(claim, Complete()) for claim in claims])
    assert [await desk.state(ref) for ref in refs] == [State.COMPLETED] * 2


async def test_what_lies_where_a_lost_claim_had_left_its_job_is_not_taken_for_it(desk: Desk, store: PgBossStore):  # X3
    await desk.add(queue="q")
    first = await desk.take_one("q")
    await desk.advance(PAST_LEASE)
    await desk.rescue()
    again = await desk.take_one("q")
    assert not await desk.end(first, Complete())
    moved = run_sql(store, "select ctid::text from boss.job")[0][0]
    forged = (*first.token[:5], moved)
    assert await desk.engine.settle([Settlement(replace(first, token=forged), Complete())]) == {forged}
    assert await desk.end(again, Complete())


async def test_a_claim_of_which_all_has_ended_is_forgotten_with_the_next(desk: Desk, store: PgBossStore):
    await desk.add_many(3, queue="q")
    one, two = await desk.take("q", slots=2)
    assert await desk.end(one, Complete())
    await desk.take_one("q")
    assert lease_batch_count(store) == 2
    assert await desk.end(two, Complete())
    await desk.take("q")
    assert lease_batch_count(store) == 1


async def test_a_claim_of_which_nobody_has_said_that_it_ended_is_forgotten_when_it_has_run_out(
    desk: Desk, store: PgBossStore
):
    await desk.add(queue="q")
    claim = await desk.take_one("q")
    assert await desk.end(claim, Complete())
    assert lease_batch_count(store) == 1
    await desk.rescue()
    assert lease_batch_count(store) == 1
    await desk.advance(PAST_LEASE)
    await desk.rescue()
    assert lease_batch_count(store) == 0


async def test_a_sign_of_life_touches_only_jobs_that_pg_boss_wants_one_of(desk: Desk, store: PgBossStore):
    plain, watched = await desk.add_many(2, queue="q")
    run_sql(store, "update boss.job set heartbeat_seconds = 60 where id = %s", watched.id)
    claims = await desk.take("q", slots=2)
    places = run_sql(store, "select id::text, ctid::text from boss.job order by id")
    await desk.advance(10)
    assert (await desk.beat(*claims)).lost == frozenset()
    moved = [
        row for row in run_sql(store, "select id::text, ctid::text from boss.job order by id") if row not in places
    ]
    assert [id for id, _ in moved] == [watched.id]
    assert not await desk.engine.settle([Settlement(claim, Complete()) for claim in claims])
    assert await desk.state(plain) is State.COMPLETED


async def test_where_outcomes_cannot_be_stored_what_was_claimed_meanwhile_is_given_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):  # X3
    await desk.add_many(2, queue="q")
    running = await desk.take_one("q")
    inner = desk.engine.inner
    assert isinstance(inner, PgBossEngine)
    settle = inner.settle

    async def away(settlements: Sequence[Settlement], *, within: object | None = None) -> frozenset[Token]:
        if any(isinstance(each.outcome, Release) for each in settlements):
            return await settle(settlements, within=within)
        raise StoreUnavailable("the line was cut")

    monkeypatch.setattr(inner, "settle", away)
    request = ClaimRequest(worker_id="w", queues=("q",), slots=5)
    wanted = Exchange(settlements=(Settlement(running, Complete()),), request=request)
    with pytest.raises(StoreUnavailable):
        await desk.engine.exchange(wanted)
    monkeypatch.undo()
    assert await desk.state(running.ref) is State.RUNNING
    (waiting,) = await desk.take("q", slots=5)
    assert waiting.attempts == 1


async def test_where_nothing_can_be_claimed_what_has_ended_is_stored_all_the_same(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):  # X3
    await desk.add(queue="q")
    running = await desk.take_one("q")

    async def away(request: ClaimRequest) -> None:
        raise StoreUnavailable("the line was cut")

    monkeypatch.setattr(desk.engine.inner, "claim", away)
    request = ClaimRequest(worker_id="w", queues=("q",), slots=5)
    answer = await desk.engine.exchange(Exchange(settlements=(Settlement(running, Complete()),), request=request))
    assert (answer.lost, answer.claimed.claims) == (frozenset(), ())
    assert await desk.state(running.ref) is State.COMPLETED
