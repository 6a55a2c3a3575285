"""What a verb costs: it does not grow with what lies around it (O11).

Costs are counted in steps of SQLite's own machine, so that no clock is needed and the answer is the same everywhere.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import pytest

from onward.engine.values import Claim, ClaimRequest, Exchange, Settlement, WorkerInfo
from onward.engines.sqlite import migrations
from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.statements import SQL
from onward.lifecycle import MAX_CRASHES, Complete, Failure, Outcome, Release, Retry
from tests.engines.sqlite.plain import add, complete, new_job, on_writer, take

T = TypeVar("T")

MANY = 50_000
HOUR = timedelta(hours=1)
WORKER = WorkerInfo(id="worker-1", hostname="host", pool_size=1, version="1")
BOOM = Failure("ValueError", "boom")


async def steps(engine: SQLiteEngine, work: Callable[[], Awaitable[T]]) -> tuple[int, T]:
    """Count the steps that the writer's SQLite takes for some work."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    await on_writer(engine, lambda transaction: transaction.connection.set_progress_handler(step, 1))
    done = await work()
    counted = count
    await on_writer(engine, lambda transaction: transaction.connection.set_progress_handler(None, 1))
    return counted, done


def request(*queues: str, slots: int = 1, **fields: Any) -> ClaimRequest:
    return ClaimRequest(worker_id="worker-1", queues=queues or ("*",), slots=slots, **fields)


async def drained(engine: SQLiteEngine, count: int, *queues: str, slots: int = 1000) -> list[Claim]:
    """Claim so many jobs, in handy portions."""
    claims: list[Claim] = []
    while len(claims) < count:
        taken = await take(engine, *queues, slots=min(slots, count - len(claims)))
        assert taken, f"{count} should have come, only {len(claims)} did"
        claims += taken
    return claims


# What lies around a claim ---------------------------------------------------------------------------------------------


async def scheduled(engine: SQLiteEngine, count: int) -> None:
    """Jobs of the future, more urgent than any that is ready."""
    await add(engine, count, queue="q", priority=1_000_000, delay=HOUR)


async def running(engine: SQLiteEngine, count: int) -> None:
    """Jobs in other workers' hands, more urgent and ready for longer."""
    await add(engine, count, queue="q", priority=9)
    await drained(engine, count, "q", slots=10_000)


async def finished(engine: SQLiteEngine, count: int) -> None:
    """History."""
    await add(engine, count, queue="q", priority=9)
    for claim in (claims := await drained(engine, count, "q", slots=10_000)):
        assert claim.started
    await complete(engine, *claims)


async def blocked(engine: SQLiteEngine, count: int) -> None:
    """Jobs that wait for others."""
    await add(engine, count, queue="q", priority=9)
    await on_writer(
        engine, lambda t: t.connection.execute("update onward_job set status = 'blocked' where status = 'pending'")
    )


async def ready(engine: SQLiteEngine, count: int) -> None:
    """A backlog in the same queue, behind the job that is claimed."""
    await add(engine, count, queue="q", priority=0)


@pytest.mark.parametrize("surroundings", [scheduled, running, finished, blocked, ready], ids=lambda make: make.__name__)
async def test_a_claim_costs_the_same_whatever_lies_around(engine, surroundings):  # O11
    """Ten jobs, ten thousand, fifty thousand: not one more step."""
    await add(engine, queue="q")
    await take(engine, "q")  # on its first way round a claim need not look for its place
    costs = []
    there = 0
    for count in (10, 10_000, MANY):
        await surroundings(engine, count - there)
        there = count
        await add(engine, queue="q", priority=10)
        cost, claims = await steps(engine, lambda: take(engine, "q"))
        assert [claim.priority for claim in claims] == [10]
        costs.append(cost)
    assert max(costs) <= 1.1 * costs[0], costs
    assert costs[0] < 2000


@pytest.mark.parametrize("surroundings", [scheduled, running, finished], ids=lambda make: make.__name__)
async def test_every_step_of_a_life_costs_the_same_whatever_lies_around(engine, surroundings):  # O11
    """Adding, starting, keeping, ending, in each of the ways that a run can end."""

    async def life() -> dict[str, int]:
        cost = {}
        cost["enqueue"], _ = await steps(engine, lambda: add(engine, 4, queue="own"))
        cost["key"], _ = await steps(engine, lambda: add(engine, queue="keyed", idempotency_key="k", dedupe_key="d"))
        cost["claim"], claims = await steps(engine, lambda: take(engine, "own", slots=0, prefetch_claimed=4))
        cost["start"], _ = await steps(engine, lambda: engine.start(claims))
        cost["heartbeat"], _ = await steps(engine, lambda: engine.heartbeat(WORKER, claims))
        ends: tuple[Outcome, ...] = (Complete(), Retry(HOUR, BOOM), Release())
        for claim, outcome in zip(claims, ends, strict=False):
            settle = partial(engine.settle, [Settlement(claim, outcome)])
            cost[type(outcome).__name__], _ = await steps(engine, settle)
        cost["exchange"], _ = await steps(
            engine,
            lambda: engine.exchange(Exchange(settlements=(Settlement(claims[3], Complete()),), request=request("own"))),
        )
        return cost

    await surroundings(engine, 10)
    await life()
    few = await life()
    await surroundings(engine, 10_000)
    many = await life()
    assert {verb: cost for verb, cost in many.items() if cost > 1.1 * few[verb] + 20} == {}


async def test_upkeep_costs_nothing_where_there_is_nothing_to_do(engine):
    """A leader asks every few moments, whatever waits for its time."""
    term = await engine.elect("leader", lease=HOUR)
    assert term is not None
    costs = []
    for count in (10, 10_000):
        await scheduled(engine, count)
        await finished(engine, count)
        spent = [
            (await steps(engine, lambda: engine.promote(term)))[0],
            (await steps(engine, lambda: engine.rescue(term, lease=HOUR, max_crashes=MAX_CRASHES)))[0],
            (await steps(engine, lambda: engine.prune(term)))[0],
        ]
        costs.append(spent)
    assert all(many <= 1.1 * few + 20 for few, many in zip(*costs, strict=True)), costs


# Ten thousand queues under one pattern --------------------------------------------------------------------------------

QUEUES = 9_999
A_FEW = 2_000
"""Steps: what it takes to look at the next slots of a few limited queues, when a claim has found too little."""


async def of_each(engine: SQLiteEngine, count: int) -> None:
    """Put jobs in each of very many queues."""
    names = [f"mail/{number:05}" for number in range(QUEUES)]
    await engine.enqueue([new_job(queue=name) for name in names for _ in range(count)])


async def by_hand(engine: SQLiteEngine, assignment: str) -> None:
    await on_writer(engine, lambda t: t.connection.execute(f"update onward_queue set {assignment}"))


async def paused(engine: SQLiteEngine) -> None:
    await of_each(engine, 1)
    await by_hand(engine, "paused = 1, open = 0")


async def limited(engine: SQLiteEngine) -> None:
    await of_each(engine, 2)
    await by_hand(engine, "rate_count = 1, rate_period_us = 60000000, rate_burst = 1")
    await drained(engine, QUEUES)


async def full(engine: SQLiteEngine) -> None:
    await of_each(engine, 2)
    await by_hand(engine, "global_concurrency = 1")
    await drained(engine, QUEUES)


async def empty(engine: SQLiteEngine) -> None:
    await of_each(engine, 1)
    await complete(engine, *await drained(engine, QUEUES))


async def claims_from_the_last(engine: SQLiteEngine, pattern: str) -> list[int]:
    """What claims from one more queue cost: of one job, of some, of more than there are, and of none."""
    last = pattern.replace("*", "last")
    await add(engine, 30, queue=last)
    costs = []
    for slots, expected in ((1, 1), (5, 5), (100, 24), (1, 0)):
        cost, taken = await steps(engine, partial(engine.claim, request(pattern, slots=slots)))
        assert len(taken.claims) == expected
        costs.append(cost)
    return costs


@pytest.mark.parametrize("which", [paused, limited, full, empty], ids=lambda make: make.__name__)
async def test_ten_thousand_queues_that_give_nothing_cost_a_claim_nothing(engine, tmp_path, clock, which):  # O11
    lone = SQLiteEngine(tmp_path / "lone.db", clock=clock)
    await lone.open()
    alone = await claims_from_the_last(lone, "mail/*")
    await lone.close()
    await which(engine)
    await take(engine, "mail/*")
    among = await claims_from_the_last(engine, "mail/*")
    assert all(cost <= 2 * least for cost, least in zip(among[:3], alone[:3], strict=True)), (among, alone)
    assert among[3] <= alone[3] + A_FEW, (among, alone)


async def test_ten_thousand_limited_queues_of_others_cost_a_claim_little(engine, tmp_path, clock):  # O11
    """They are not even asked for."""
    lone = SQLiteEngine(tmp_path / "lone.db", clock=clock)
    await lone.open()
    alone = await claims_from_the_last(lone, "own/*")
    await lone.close()
    await limited(engine)
    among = await claims_from_the_last(engine, "own/*")
    assert all(cost <= least + A_FEW for cost, least in zip(among, alone, strict=True)), (among, alone)


# Plans ----------------------------------------------------------------------------------------------------------------

HOT = {
    "claim_open_queues": {"onward_queue_open", "onward_queue_reopen", "onward_job_suspect"},
    "claim_pick": {"onward_job_claim"},
    "claim_pick_suspect": {"onward_job_suspect"},
    "claim_next_permit": {"onward_queue_reopen"},
    "held_count": {"onward_job_held"},
    "find_by_key": {"onward_job_key"},
    "find_by_dedupe": {"onward_job_dedupe"},
    "promote_pick": {"onward_job_promote"},
    "promote_next": {"onward_job_promote", "onward_job_expire"},
    "expire": {"onward_job_expire"},
    "rescue_pick": {"onward_job_held"},
    "prune_by_age": {"onward_job_prune"},
    "prune_by_count": {"onward_job_prune"},
    "queue_create_missing": {"onward_job_claim"},
    "queue_reopen_missed": {"onward_job_claim"},
    "queue_reopen_due": {"onward_queue_reopen"},
    # By the row's own number.
    "claim": set(),
    "start_many": set(),
    "complete_many": set(),
    "retry": set(),
    "fail": set(),
    "bury": set(),
    "snooze": set(),
    "release": set(),
    "cancel": set(),
    "cancel_held": set(),
    "heartbeat_jobs": set(),
    "heartbeat_lost": set(),
    "promote": set(),
    "rescue": set(),
    "prune": set(),
    "delete": set(),
    "replay": {"onward_job_dedupe"},
    "report_progress": set(),
    "enqueue": set(),
    "queue_ensure_open": set(),
    "queue_set_next_permit": set(),
    "queue_close": set(),
    "queue_reopen_freed": set(),
}


@pytest.fixture(scope="module")
def schema() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(migrations.script())
    return connection


def plan_of(connection: sqlite3.Connection, statement: str) -> list[str]:
    names = set(re.findall(r":([a-z_]+)", statement))
    return [row[3] for row in connection.execute(f"explain query plan {statement}", dict.fromkeys(names))]


@pytest.mark.parametrize(("name", "indexes"), HOT.items(), ids=HOT)
def test_a_hot_statement_uses_its_index_and_never_reads_a_table_through(name, indexes, schema):  # O11
    plan = plan_of(schema, getattr(SQL, name))
    text = "\n".join(plan)
    for index in indexes:
        assert f"INDEX {index}" in text, text
    for line in plan:
        through = re.match(r"SCAN (?:onward_job|onward_queue|j|q|other)\b(?!.* USING (?:COVERING )?INDEX)", line)
        # prune_by_age begins with the queues, of which it needs every one.
        assert through is None or line == "SCAN q", text


def test_only_a_partial_index_is_ever_read_through(schema):  # O11
    """rescue_pick reads all that is held, which is never more than the slots of all workers."""
    read_through = {
        (name, match[1])
        for name in HOT
        for line in plan_of(schema, getattr(SQL, name))
        if (match := re.match(r"SCAN \S+ USING (?:COVERING )?INDEX (\S+)", line))
    }
    assert read_through <= {("rescue_pick", "onward_job_held")}


def test_no_index_names_what_a_heartbeat_changes(schema):  # O11
    """A claim does change what predicates name here, `state`: SQLite has no heap-only updates to lose by that."""
    indexes = schema.execute("select name, sql from sqlite_schema where type = 'index' and sql is not null").fetchall()
    assert len(indexes) > 8
    for name, text in indexes:
        assert not re.search(r"lease_until|worker_id|attempts|updated_at|claim_no|started_at|claimed_at", text), name


async def test_a_heartbeat_rewrites_rows_and_nothing_else(engine):  # O11
    await add(engine, 3)
    claims = await take(engine, slots=3)
    opcodes = await on_writer(
        engine,
        lambda t: t.connection.execute(f"explain {SQL.heartbeat_jobs}", {"claims": "[]", "now": 0}).fetchall(),
    )
    assert not [row for row in opcodes if row[1] in {"IdxInsert", "IdxDelete", "Program"}], (
        "it touches an index or a trigger"
    )
    assert not (await engine.heartbeat(WORKER, claims)).lost
