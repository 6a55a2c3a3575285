"""Claims look at what they take, whatever the planner believes: pg-boss's own become forty times slower here."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from onward.engine.values import ClaimRequest, Settlement
from onward.engines.pgboss.claiming import Round, claim
from onward.engines.pgboss.engine import PgBossEngine
from onward.engines.pgboss.settling import settle
from onward.lifecycle import Complete, Fail, Failure, Outcome, Release
from onward.postgresql.plans import Plan, Row, Statement, run
from tests.conformance.desk import Desk
from tests.conformance.pgboss_case import PgBossStore
from tests.engines.pgboss.conftest import by_hand

MANY = 5000
BATCH = 50
REQUEST = ClaimRequest(worker_id="w", queues=("busy",), slots=BATCH)


@pytest.fixture
async def misled(desk: Desk, store: PgBossStore) -> PgBossEngine:
    """A store whose statistics are from a moment when every job had ended; since then a queue has filled up."""
    await desk.set("old")
    await desk.set("busy")
    by_hand(store, "alter table boss.job_common set (autovacuum_enabled = false)")
    fill = "insert into boss.job (name, data, state, start_after, created_on) select %s, '{}', %s, %s, %s"
    some = f"from generate_series(1, {MANY})"
    by_hand(store, f"{fill} {some}", "old", "completed", desk.now, desk.now)
    by_hand(store, "analyze boss.job_common")
    by_hand(store, f"{fill} {some}", "busy", "created", desk.now, desk.now)
    assert isinstance(desk.engine.inner, PgBossEngine)
    return desk.engine.inner


def touched(store: PgBossStore, plan: Plan[Any]) -> int:
    """Drive a plan, and count the rows of jobs that its statements read, as the server tells."""
    rows_read = 0

    with psycopg.connect(store.url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:

        def execute(statement: Statement) -> list[Row]:
            nonlocal rows_read
            with connection.transaction(force_rollback=True):
                explained = connection.execute(f"explain (analyze, format json) {statement.text}", statement.values)
                told = explained.fetchone()
                assert told is not None
                rows_read += _rows_of(told[0][0]["Plan"])
            return connection.execute(statement.text, statement.values).fetchall()

        run(plan, execute)
    return rows_read


def _rows_of(node: dict[str, Any]) -> int:
    own = 0
    if "Scan" in node["Node Type"] and str(node.get("Relation Name", "")).startswith("job"):
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        own = int((node["Actual Rows"] + removed) * node["Actual Loops"])
    return own + sum(_rows_of(child) for child in node.get("Plans", ()))


async def test_a_claim_reads_no_more_than_it_takes_though_the_statistics_are_stale(
    misled: PgBossEngine, store: PgBossStore
):
    seen = touched(store, claim(misled.schema, misled.shelf, REQUEST, Round()))
    assert seen <= 10 * BATCH


@pytest.mark.parametrize(
    "outcome", [Complete(), Fail(Failure("E", "")), Release()], ids=["complete", "fail", "release"]
)
async def test_an_outcome_touches_the_jobs_it_is_about_though_the_statistics_are_stale(
    misled: PgBossEngine, store: PgBossStore, desk: Desk, outcome: Outcome
):
    claims = await desk.take("busy", slots=BATCH)
    settlements = [Settlement(each, outcome) for each in claims]
    assert touched(store, settle(misled.schema, misled.shelf, settlements, notify=False)) <= 10 * BATCH


async def test_pg_bosss_own_way_to_claim_does_read_all_of_it(misled: PgBossEngine, store: PgBossStore, desk: Desk):
    """The trap is there: else what stands above would show nothing."""

    def as_node_does() -> Plan[Any]:
        now = f"'{desk.now.isoformat()}'::timestamptz"
        return (
            yield Statement(
                f"with next as (select j.id from {store.schema}.job_common j where j.name = 'busy'"
                f" and j.state < 'active' and not j.blocked and j.start_after <= {now}"
                f" order by j.priority desc, j.created_on limit {BATCH} for update of j skip locked)"
                f" update {store.schema}.job_common j set state = 'active', started_on = {now} from next"
                " where name = 'busy' and j.id = next.id returning j.id"
            )
        )

    assert touched(store, as_node_does()) > 10 * BATCH
