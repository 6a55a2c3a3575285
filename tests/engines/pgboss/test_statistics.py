"""Claims look at what they take, whatever the planner believes: pg-boss's own become forty times slower here."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql

from onward.engine.values import ClaimRequest, Settlement, WorkerInfo
from onward.engines.pgboss.claims import RoundRobin, claim
from onward.engines.pgboss.engine import PgBossEngine
from onward.engines.pgboss.leases import heartbeat
from onward.engines.pgboss.maintenance import rescue
from onward.engines.pgboss.settle import settle
from onward.lifecycle import Complete, Fail, Failure, Outcome, Release
from onward.pg.open_claims import OpenClaims
from onward.pg.plan_runner import Plan, Row, Statement, run
from tests.conformance.driver import PAST_LEASE, Driver
from tests.conformance.pgboss_case import PgBossStore
from tests.engines.pgboss.conftest import run_sql

MANY = 5000
BATCH = 50
MODES = ["force_custom_plan", "force_generic_plan"]
"""Plans made for the values at hand, and plans made once for all values: after some times a driver gets the latter."""
REQUEST = ClaimRequest(worker_id="w", queues=("busy",), slots=BATCH)


@pytest.fixture
async def stale_engine(driver: Driver, store: PgBossStore) -> PgBossEngine:
    """A store whose statistics are from a moment when every job had ended; since then a queue has filled up."""
    await driver.set("old")
    await driver.set("busy")
    run_sql(store, "alter table boss.job_common set (autovacuum_enabled = false)")
    fill = "insert into boss.job (name, data, state, start_after, created_on) select %s, '{}', %s, %s, %s"
    some = f"from generate_series(1, {MANY})"
    run_sql(store, f"{fill} {some}", "old", "completed", driver.now, driver.now)
    run_sql(store, "analyze boss.job_common")
    run_sql(store, f"{fill} {some}", "busy", "created", driver.now, driver.now)
    assert isinstance(driver.engine.inner, PgBossEngine)
    return driver.engine.inner


def rows_touched(store: PgBossStore, plan: Plan[Any], mode: str = "force_custom_plan") -> int:
    """Drive a plan, and count the rows of jobs that its statements read or compared, as the server tells."""
    rows_read = 0

    with psycopg.connect(store.url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        connection.execute(f"set plan_cache_mode = {mode}")

        def execute(statement: Statement) -> list[Row]:
            nonlocal rows_read
            values = ", ".join(sql.Literal(value).as_string(connection) for value in statement.values)
            connection.execute(f"prepare asked as {statement.text}", prepare=False)
            with connection.transaction(force_rollback=True):
                asked = f"asked({values})" if values else "asked"
                told = connection.execute(f"explain (analyze, format json) execute {asked}", prepare=False).fetchone()
                assert told is not None
                rows_read += _rows_of(told[0][0]["Plan"])
            connection.execute("deallocate asked")
            done = connection.execute(statement.text, statement.values)
            return done.fetchall() if done.description else []

        run(plan, execute)
    return rows_read


def _rows_of(node: dict[str, Any]) -> int:
    own = int(node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"])
    if "Scan" in node["Node Type"] and str(node.get("Relation Name", "")).startswith("job"):
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        own += int((node["Actual Rows"] + removed) * node["Actual Loops"])
    return own + sum(_rows_of(child) for child in node.get("Plans", ()))


@pytest.mark.parametrize("mode", MODES)
async def test_a_claim_reads_no_more_than_it_takes_though_the_statistics_are_stale(
    stale_engine: PgBossEngine, store: PgBossStore, mode: str
):
    seen = rows_touched(
        store, claim(stale_engine.schema, stale_engine.queue_cache, REQUEST, RoundRobin(), OpenClaims()), mode
    )
    assert seen <= 10 * BATCH


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "outcome", [Complete(), Fail(Failure("E", "")), Release()], ids=["complete", "fail", "release"]
)
async def test_an_outcome_touches_the_jobs_it_is_about_though_the_statistics_are_stale(
    stale_engine: PgBossEngine, store: PgBossStore, driver: Driver, outcome: Outcome, mode: str
):
    claims = await driver.take("busy", slots=BATCH)
    settlements = [Settlement(each, outcome) for each in claims]
    assert (
        rows_touched(store, settle(stale_engine.schema, stale_engine.queue_cache, settlements, notify=False), mode)
        <= 10 * BATCH
    )


@pytest.mark.parametrize("mode", MODES)
async def test_a_sign_of_life_looks_at_the_jobs_it_names_though_the_statistics_are_stale(
    stale_engine: PgBossEngine, store: PgBossStore, driver: Driver, mode: str
):
    claims = await driver.take("busy", slots=BATCH)
    worker = WorkerInfo(id="w", hostname="h", pool_size=1, version="1")
    assert rows_touched(store, heartbeat(stale_engine.schema, worker, claims[1:]), mode) <= 10 * BATCH


@pytest.mark.parametrize("mode", MODES)
async def test_a_rescue_looks_at_what_was_held_though_the_statistics_are_stale(
    stale_engine: PgBossEngine, store: PgBossStore, driver: Driver, mode: str
):
    await driver.take("busy", slots=BATCH)
    await driver.advance(PAST_LEASE)
    term = await driver.engine.elect("leader", lease=PAST_LEASE)
    assert term is not None
    plan = rescue(stale_engine.schema, term, PAST_LEASE, 3, 1000, supervises=False)
    assert rows_touched(store, plan, mode) <= 10 * BATCH


async def test_pg_bosss_own_way_to_claim_does_read_all_of_it(
    stale_engine: PgBossEngine, store: PgBossStore, driver: Driver
):
    """The trap is there: else what stands above would show nothing."""

    def as_node_does() -> Plan[Any]:
        now = f"'{driver.now.isoformat()}'::timestamptz"
        return (
            yield Statement(
                f"with next as (select j.id from {store.schema}.job_common j where j.name = 'busy'"
                f" and j.state < 'active' and not j.blocked and j.start_after <= {now}"
                f" order by j.priority desc, j.created_on limit {BATCH} for update of j skip locked)"
                f" update {store.schema}.job_common j set state = 'active', started_on = {now} from next"
                " where name = 'busy' and j.id = next.id returning j.id"
            )
        )

    assert rows_touched(store, as_node_does()) > 10 * BATCH
