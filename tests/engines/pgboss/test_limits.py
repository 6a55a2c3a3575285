"""Limits of queues, for a worker that does not know of them yet, and the cost of queues that have none."""

from __future__ import annotations

from datetime import timedelta

from onward.engine.values import ClaimRequest, Claims, QueueChange, Rate
from onward.engines.pgboss import claims
from onward.engines.pgboss.engine import PgBossEngine
from onward.pg.open_claims import OpenClaims
from onward.pg.plan_runner import Plan, Statement
from tests.conformance.driver import Driver, new_job
from tests.conformance.pgboss_case import PgBossStore

REQUEST = ClaimRequest(worker_id="worker-1", queues=("q",), slots=5)
ONE = QueueChange(rate=Rate(1, timedelta(minutes=1)))


def engine_of(driver: Driver) -> PgBossEngine:
    inner = driver.engine.inner
    assert isinstance(inner, PgBossEngine)
    return inner


async def test_a_worker_that_does_not_know_of_a_limit_takes_nothing(store: PgBossStore, driver: Driver):  # P6
    other = Driver(store, await store.connect())
    await driver.make("q")
    await driver.engine.enqueue([new_job(queue="q")] * 3)
    engine = engine_of(other)
    await engine.run_plan(engine.queue_cache.refresh)
    await driver.engine.configure("q", ONE)
    engine.queue_cache._refreshed_at = float("inf")  # it is looked at again only when told to
    assert (await other.engine.claim(REQUEST)).claims == ()
    engine.queue_cache.invalidate()
    assert len((await other.engine.claim(REQUEST)).claims) == 1


async def test_a_claim_from_a_queue_without_limits_is_one_statement(driver: Driver):
    await driver.make("q")
    await driver.make("limited")
    await driver.engine.enqueue([new_job(queue="q")] * 5)
    engine = engine_of(driver)
    seen: list[Statement] = []

    await engine.run_plan(engine.queue_cache.refresh)
    engine.queue_cache._refreshed_at = float("inf")
    answer = await engine.run_plan(
        lambda: _recorded(
            claims.claim(engine.schema, engine.queue_cache, REQUEST, claims.RoundRobin(), OpenClaims()), seen
        )
    )
    assert answer is not None
    assert len(answer.claims) == 5
    assert len(seen) == 1


def _recorded(plan: Plan[Claims | None], seen: list[Statement]) -> Plan[Claims | None]:
    try:
        statement = next(plan)
        while True:
            seen.append(statement)
            statement = plan.send((yield statement))
    except StopIteration as end:
        answer: Claims | None = end.value
        return answer
