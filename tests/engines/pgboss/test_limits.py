"""Limits of queues, for a worker that does not know of them yet, and the cost of queues that have none."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.values import ClaimRequest, Claims, QueueChange, Rate
from onward.engines.pgboss import claims
from onward.engines.pgboss.engine import PgBossEngine
from onward.pg.open_claims import OpenClaims
from onward.pg.plan_runner import Plan, Statement
from onward.pgboss import PgBoss
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


async def test_a_claim_needs_a_transaction_only_where_its_own_queues_have_limits(driver: Driver):
    await driver.make("q")
    await driver.make("team/limited")
    await driver.engine.configure("team/limited", ONE)
    engine = engine_of(driver)
    await engine.run_plan(engine.queue_cache.refresh)
    asked = [("q",), ("q", "other/*"), ("team/limited",), ("team/*",), ("*",)]
    assert [engine.queue_cache.has_limits(queues) for queues in asked] == [False, False, True, True, True]


async def test_claims_take_their_groups_of_queues_in_one_order(driver: Driver, boss: PgBoss):
    for policy in ("standard", "stately"):
        await boss.create_queue(policy, policy=policy)
    engine = engine_of(driver)
    queues = await engine.run_plan(lambda: engine.queue_cache.matching(["*"]))
    there, back = (claims._groups(dict.fromkeys(order, 1)) for order in (queues, queues[::-1]))
    assert len(there) > 1
    assert list(there) == list(back)


@pytest.mark.parametrize(
    ("change", "is_counted"), [(ONE, False), (QueueChange(global_concurrency=9), True)], ids=["rate", "concurrency"]
)
async def test_active_jobs_are_counted_only_for_a_concurrency(driver: Driver, change: QueueChange, is_counted: bool):
    await driver.make("q")
    await driver.engine.configure("q", change)
    engine = engine_of(driver)
    await engine.run_plan(engine.queue_cache.refresh)
    (queue,) = await engine.run_plan(lambda: engine.queue_cache.matching(["q"]))
    statement = engine.schema.statement("take_queue_permits", ["q", 1, None], table=queue.table)

    def explain() -> Plan[list[str]]:
        rows = yield Statement(
            f"explain (analyze, costs off, timing off) {_without_comments(statement.text)}", statement.values
        )
        return [line for (line,) in rows]

    plan = "\n".join(await engine.run_plan(explain, atomic=True))
    assert ("never executed" in plan) is not is_counted


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


def _recorded(plan: Plan[Claims | None], seen: list[Statement]) -> Plan[Claims | None]:
    try:
        statement = next(plan)
        while True:
            seen.append(statement)
            statement = plan.send((yield statement))
    except StopIteration as end:
        answer: Claims | None = end.value
        return answer
