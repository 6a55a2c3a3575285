"""What hot statements read: few rows, by the indexes that are meant for it, whatever the statistics say and however
much else there is (O11).

How that is found out: :mod:`tests.engines.postgres.reads`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from os import getpid
from typing import NamedTuple

import psycopg
import pytest

from onward.batches.values import NewBatch
from onward.engine.values import ClaimRequest, Exchange, JobFilter, Settlement, Term
from onward.engines.postgres import admin, batches, claims, enqueue, leases, maintenance, migrations, queries, settle
from onward.engines.postgres.claims import RoundRobin
from onward.engines.postgres.statements import Schema
from onward.ids import new_id
from onward.job import EnqueueStatus, JobRef, NewJob
from onward.lifecycle import Cancel, Complete, Fail, Failure, Outcome, Release, Retry, Snooze
from onward.pg.database import Database
from onward.pg.plan_runner import Statement
from tests.conformance.driver import LEASE, Driver, new_job, worker_info
from tests.conformance.postgres_case import PostgresStore
from tests.conformance.processes import eventually
from tests.engines.postgres.reads import Session
from tests.engines.postgres.test_lanes import move_watermark
from tests.servers.pgbouncer import engines_url

MANY = 5_000
BATCH = 10
FAILURE = Failure("Oops", "it broke")
NEXT_MOMENT = timedelta(microseconds=1)
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
CHANGED_BY_A_CLAIM = {
    "claim_no", "attempts", "worker_id", "lease", "lease_until", "claimed_at", "started_at",
    "has_permit", "updated_at",
}  # fmt: skip
"""What claim, start and heartbeat write."""

# What else there is ---------------------------------------------------------------------------------------------------

_LATER = "timestamptz '2099-01-01'"
LONG_LEASE = timedelta(days=100 * 366)
"""Beyond that: none of the leases here is longer than it could be."""
JOBS: dict[str, dict[str, str]] = {
    "waiting": {},
    "waiting in other queues": {"queue": "'other/' || n % 50", "priority": "n % 3"},
    "with keys": {"queue": "'keyed'", "dedupe_digest": "sha256(n::text::bytea)"},
    "of batches": {"queue": "'gathered'", "batch": "'batch/' || n % 50"},
    "urgent, not due for long": {"priority": "1000", "ready_at": "null", "next_run_at": _LATER, "start_by": _LATER},
    "running": {
        "queue": "'held'", "ready_at": "now() - interval '1 day'", "started_at": "now()", "lease_until": _LATER,
        "lease": "interval '30 seconds'", "worker_id": "'other'",
    },
    "suspects": {"queue": "'shaken'", "suspect": "true"},
}  # fmt: skip
ENDED: dict[str, dict[str, str]] = {
    "today": {},
    "on a day that was never made": {"completed_at": "now() - interval '2 days'"},
    "failed": {"status": "'failed'", "last_error": "'boom'"},
    "of batches": {"batch": "'batch/' || n % 50"},
}
_ENDED = {
    "seq": "nextval('onward.job_seq')", "claim_no": "1", "created_at": "now()", "updated_at": "now()",
    "completed_at": "now()", "id": "gen_random_uuid()", "max_attempts": "5", "priority": "0", "attempts": "1",
    "crashes": "0", "queue": "'default'", "status": "'completed'", "type": "'greet'", "payload": "'{}'",
}  # fmt: skip
ELSEWHERE = [
    f"onward.archive_rows ({', '.join(_ENDED)}, until) select {', '.join(_ENDED.values())}, {_LATER}",
    "onward.key (digest, id, queue) select sha256(n::text::bytea), gen_random_uuid(), 'keyed'",
    f"onward.throttle (digest, until, queue, id) select sha256(n::text::bytea), {_LATER}, 'keyed', gen_random_uuid()",
    "onward.log (seq, at, line) select n, now(), 'line'",
    "onward.concurrency_permit (seq, queue) select n, 'held'",
    f"onward.lease_batch (until, seqs) select {_LATER}, array[n]",
    (
        "onward.dependency (job, position, depends_on, batch)"
        " select gen_random_uuid(), 0, gen_random_uuid(), 'batch/' || n"
    ),
    "onward.batch (name, created_at) select 'batch/' || n, now()",
]
FILLED = ", ".join(
    f"onward.{table}"
    for table in (
        "job", "history", "lane", "archive_rows", "key", "throttle", "log", "concurrency_permit", "lease_batch",
        "dependency", "batch",
    )
)  # fmt: skip
SMALL = ("deferred_heartbeat", "event_log", "leader", "batch_event", "queue", "usage", "worker")
"""Tables of few rows, or of none here: it makes no difference by which index they are read."""


def seed_jobs(at: Session, **columns: str) -> None:
    """Put many live jobs of one kind in."""
    given = {"type": "'greet'", "queue": "'default'", "priority": "0", **columns}
    names, values = ", ".join(given), ", ".join(given.values())
    at.execute(f"insert into onward.job ({names}) select {values} from generate_series(1, {MANY}) n")
    at.execute(
        "insert into onward.lane (queue, priority) select distinct queue, priority from onward.job"
        " except select queue, priority from onward.lane"
    )


def seed_ended(at: Session, count: int = MANY, /, **columns: str) -> None:
    """Put many ended jobs of one kind in."""
    given = {**_ENDED, **columns}
    names, values = ", ".join(given), ", ".join(given.values())
    at.execute(f"insert into onward.history ({names}) select {values} from generate_series(1, {count}) n")


def seed(at: Session) -> None:
    """Put much of everything in."""
    for job_columns in JOBS.values():
        seed_jobs(at, **job_columns)
    for ended_columns in ENDED.values():
        seed_ended(at, **ended_columns)
    for text in ELSEWHERE:
        at.execute(f"insert into {text} from generate_series(1, {MANY}) n")
    at.execute("insert into onward.lane (queue, priority) select 'empty/' || n, 0 from generate_series(1, 200) n")
    at.execute("select setval('onward.watermark', onward.to_micros(now() - interval '1 hour'))")  # above what runs


def seed_otherwise(at: Session) -> None:
    """Put as much in that is all alike, and not like that."""
    for _ in JOBS:
        seed_jobs(at, queue="'x'", batch="'x'", next_run_at="now()", ready_at="null", start_by="now()")
    for _ in ENDED:
        seed_ended(at, queue="'x'", batch="'x'", completed_at="now() - interval '1 year'")
    for text in ELSEWHERE:
        at.execute(f"insert into {text} from generate_series(1, 1) n")


FRESH = "fresh statistics"
EMPTY = "statistics of empty tables"
OTHERWISE = "statistics of other jobs"
STATISTICS = [FRESH, EMPTY, OTHERWISE]


@pytest.fixture(scope="module", params=STATISTICS)
def full(request: pytest.FixtureRequest) -> Iterator[Schema]:
    """A schema with much in it, and what the planner believes of it. Nobody changes it for good."""
    schema, database = Schema(f"plans_{getpid()}_{STATISTICS.index(request.param)}"), Database(engines_url())
    with database.connect() as connection:
        migrations.migrate(connection, schema, database)
    with Session(engines_url(), schema) as at:
        for (table,) in at.execute(
            "select oid::regclass::text from pg_class"
            f" where relkind = 'r' and relnamespace = '{schema.name}'::regnamespace"
        ):
            at.execute(f"alter table {table} set (autovacuum_enabled = off)")
        if request.param == OTHERWISE:
            seed_otherwise(at)
        if request.param != FRESH:
            at.execute(f"analyze {FILLED}")
            at.execute(f"truncate {FILLED}")
        seed(at)
        if request.param == FRESH:
            at.execute(f"analyze {FILLED}")
        at.commit()
        yield schema
        at.execute("set client_min_messages = warning")
        at.execute(f"drop schema {schema.name} cascade")
        at.commit()


@pytest.fixture
def at(full: Schema) -> Iterator[Session]:
    """A session there, new to the server."""
    with Session(engines_url(), full) as session:
        yield session


# Hot statements -------------------------------------------------------------------------------------------------------


class Hot(NamedTuple):
    """A hot statement: how it is brought about, the indexes that it may use, and how many rows it may read."""

    act: Callable[[Session], Iterator[None]]
    """What comes before its ``yield`` does not count."""
    uses: frozenset[str]
    rows: int


HOT: dict[str, Hot] = {}


def hot(*uses: str, rows: int) -> Callable[[Callable[[Session], Iterator[None]]], None]:
    """Add a statement to those that are looked at."""

    def add(act: Callable[[Session], Iterator[None]]) -> None:
        HOT[act.__name__] = Hot(act, frozenset(uses), rows)

    return add


def put(at: Session, *jobs: NewJob) -> list[EnqueueStatus]:
    return [one.enqueue_status for one in at.run(enqueue.enqueue(at.schema, jobs, notice=None))]


def lead(at: Session) -> Term:
    term = at.run(maintenance.elect(at.schema, "leader", timedelta(hours=1), None))
    assert term is not None
    return term


def refs_of(at: Session, count: int, *, table: str = "job", where: str = "queue = 'default'") -> tuple[JobRef, ...]:
    found = at.execute(f"select queue, id::text from onward.{table} where {where} limit {count}")
    return tuple(JobRef(*row) for row in found)


@hot(rows=0)
def enqueue_plain(at: Session) -> Iterator[None]:
    yield
    at.ask(Statement(at.schema.enqueue_plain, [new_id(), "{}", "default", "greet", 0]))


@hot(rows=0)
def enqueue_one(at: Session) -> Iterator[None]:
    yield
    at.ask(Statement(at.schema.enqueue_one, [new_id(), "{}", "default", "greet", 0, "org", None, None, None, None]))


@hot("lane_open", "queue_pkey", rows=5)
def enqueue_plain_and_check(at: Session) -> Iterator[None]:
    yield
    at.ask(Statement(at.schema.enqueue_plain_and_check, [new_id(), "{}", "default", "greet", 0]))


@hot("lane_open", rows=5)
def enqueue_uniform(at: Session) -> Iterator[None]:
    yield
    put(at, *[new_job()] * BATCH)


@hot("lane_open", rows=5)
def enqueue_each(at: Session) -> Iterator[None]:
    yield
    put(at, new_job(), new_job(queue="other/1"), new_job(priority=7))


@hot("lane_open", "key_pkey", rows=5)
def enqueue_with_an_idempotency_key(at: Session) -> Iterator[None]:
    yield
    assert put(at, new_job(idempotency_key="k")) == [EnqueueStatus.INSERTED]


@hot("key_pkey", "job_id", rows=6)
def enqueue_with_an_idempotency_key_of_a_live_job(at: Session) -> Iterator[None]:
    put(at, new_job(idempotency_key="k"))
    yield
    assert put(at, new_job(idempotency_key="k")) == [EnqueueStatus.SAME_KEY]


@hot("key_pkey", "job_id", "history_id", rows=5)
def enqueue_with_an_idempotency_key_of_an_ended_job(at: Session) -> Iterator[None]:
    put(at, new_job(idempotency_key="k", queue="own"))
    at.run(admin.cancel(at.schema, JobFilter(queues=("own",)), "", 1))
    yield
    assert put(at, new_job(idempotency_key="k")) == [EnqueueStatus.SAME_KEY]


@hot("lane_open", "job_dedupe", rows=5)
def enqueue_with_a_dedupe_key(at: Session) -> Iterator[None]:
    yield
    assert put(at, new_job(dedupe_key="k")) == [EnqueueStatus.INSERTED]


@hot("job_dedupe", "key_pkey", rows=5)
def enqueue_with_a_dedupe_key_of_a_live_job(at: Session) -> Iterator[None]:
    put(at, new_job(dedupe_key="k"))
    yield
    assert put(at, new_job(dedupe_key="k")) == [EnqueueStatus.DEDUPED]


@hot("throttle_pkey", "key_pkey", rows=5)
def enqueue_throttled(at: Session) -> Iterator[None]:
    put(at, new_job(dedupe_key="k", throttle=LEASE))
    yield
    assert put(at, new_job(dedupe_key="k", throttle=LEASE)) == [EnqueueStatus.DEDUPED]


@hot("throttle_pkey", "job_id", "key_pkey", rows=5)
def enqueue_debounced(at: Session) -> Iterator[None]:
    put(at, new_job(dedupe_key="k", debounce=LEASE))
    yield
    assert put(at, new_job(dedupe_key="k", debounce=LEASE)) == [EnqueueStatus.REPLACED]


@hot("lane_open", "job_claim", "job_suspect", rows=4 * BATCH)
def claim(at: Session) -> Iterator[None]:
    yield
    assert len(at.take(slots=BATCH)) == BATCH


@hot("lane_open", "job_claim", "job_suspect", rows=4 * BATCH)
def claim_on_notify(at: Session) -> Iterator[None]:
    yield
    assert len(at.take(prefetch_claimed=BATCH)) == BATCH


@hot("lane_open", "job_claim", "job_suspect", rows=100 * BATCH)  # there are 356 lanes, see below
def claim_of_all_queues(at: Session) -> Iterator[None]:
    yield
    assert len(at.take("*", slots=BATCH)) == BATCH


@hot("lane_open", "job_claim", rows=4 * BATCH)
def claim_queue(at: Session) -> Iterator[None]:
    yield
    request = ClaimRequest(worker_id="w")
    assert len(at.ask(claims.queue_claim_statement(at.schema, request, "default", BATCH))) == BATCH


@hot("job_suspect", "job_pkey", rows=4 * BATCH)
def claim_suspect(at: Session) -> Iterator[None]:
    put(at, *[new_job(queue="own")] * BATCH)
    at.execute("update onward.job set suspect = true where queue = 'own'")
    yield
    assert len(at.take("own", slots=1, alone=True)) == 1


@hot("job_pkey", rows=BATCH)
def start(at: Session) -> Iterator[None]:
    claims = at.take(prefetch_claimed=BATCH)
    yield
    assert not at.run(settle.start(at.schema, claims))


@hot("job_pkey", rows=4 * BATCH)
def heartbeat(at: Session) -> Iterator[None]:
    claims = at.take(slots=BATCH)
    yield
    assert not at.run(leases.heartbeat(at.schema, worker_info("w"), claims)).lost


@hot("job_pkey", "log_pkey", rows=BATCH)
def report(at: Session) -> Iterator[None]:
    (claim,) = at.take(slots=1)
    yield
    assert at.run(leases.report(at.schema, claim, 5, "half way", ["a line"]))


@hot("job_pkey", "lane_open", "concurrency_permit_pkey", rows=4 * BATCH)
def settle_all(at: Session) -> Iterator[None]:
    claims = at.take(slots=BATCH)
    ways: list[Outcome] = [
        Complete(), Fail(FAILURE), Cancel("no longer wanted"), Retry(LEASE, FAILURE), Snooze(LEASE), Release()
    ]  # fmt: skip
    yield
    settlements = [Settlement(claim, ways[number % len(ways)]) for number, claim in enumerate(claims)]
    assert not at.run(settle.settle(at.schema, settlements))


@hot("job_pkey", "lane_open", "job_claim", "job_suspect", rows=6 * BATCH)
def exchange(at: Session) -> Iterator[None]:
    claims = at.take(slots=BATCH)
    yield
    settlements = tuple(Settlement(claim, Complete()) for claim in claims)
    request = ClaimRequest(worker_id="w", queues=("default",), slots=BATCH)
    wanted = Exchange(settlements=settlements, request=request)
    answer = at.run(settle.exchange(at.schema, wanted, RoundRobin()))
    assert not answer.lost
    assert len(answer.claimed.claims) == BATCH


@hot("job_promote", "job_expire", "job_pkey", "lane_open", rows=8 * BATCH)
def promote(at: Session) -> Iterator[None]:
    term = lead(at)
    put(at, *[new_job(delay=NEXT_MOMENT)] * BATCH)
    put(at, *[new_job(start_by=LONG_AGO)] * BATCH)
    yield
    batch, _ = at.run(maintenance.promote(at.schema, term, 100, maintenance.NextDue()))
    assert batch.changed == 2 * BATCH


# What tests before this one have claimed and rolled back is still among the leases that have run out.
@hot("lease_batch_until", "job_pkey", "concurrency_permit_pkey", "lane_open", rows=20 * BATCH)
def rescue(at: Session) -> Iterator[None]:
    term, upkeep = lead(at), maintenance.UpkeepSchedule()
    upkeep._due = float("inf")
    at.take(slots=BATCH, lease=NEXT_MOMENT)
    yield
    known = maintenance.RescueState(), upkeep, maintenance.WatermarkState()
    assert at.run(maintenance.rescue(at.schema, term, LONG_LEASE, 100, *known)).changed == BATCH


@hot("lane", "lane_open", "job_claim", "history_prune", "lease_batch_until", rows=8_000)  # every job that runs
def maintain_the_lanes(at: Session) -> Iterator[None]:
    term, upkeep = lead(at), maintenance.UpkeepSchedule()
    upkeep._checks = 1
    yield
    known = maintenance.RescueState(), upkeep, maintenance.WatermarkState()
    assert not at.run(maintenance.rescue(at.schema, term, LONG_LEASE, 100, *known)).changed


@hot("lane", "job_claim", rows=40 * BATCH)
def move_the_watermark(at: Session) -> Iterator[None]:
    term = lead(at)
    yield
    at.run(maintenance.WatermarkState().move(at.schema, term))


@hot(
    "history_prune", "history_seq", "lane_open", "archive_row_until", "key_pkey", "log_pkey", "throttle_until",
    "throttle_pkey", "job_id", "batch_finished", "batch_pkey", "dependency_batch", rows=60 * BATCH,
)  # fmt: skip
def prune(at: Session) -> Iterator[None]:
    term, upkeep = lead(at), maintenance.UpkeepSchedule()
    upkeep._partitions_due = float("inf")
    at.execute("insert into onward.queue (name, keep_completed) values ('brief', '1 hour')")
    seed_ended(at, BATCH, queue="'brief'", completed_at="now() - interval '2 hours'")
    at.execute(f"update onward.archive_rows set until = now() where seq % {MANY} < {BATCH}")
    at.execute(f"update onward.batch set sealed = true, finished_at = '2001-01-01' where seq % {MANY} < {BATCH}")
    at.execute(
        f"update onward.throttle set until = now() where digest in (select digest from onward.throttle limit {BATCH})"
    )
    yield
    assert at.run(maintenance.prune(at.schema, term, 100, upkeep)).changed == BATCH


@hot("job_id", "job_pkey", rows=10)
def cancel_one(at: Session) -> Iterator[None]:
    refs = refs_of(at, 1)
    yield
    assert len(at.run(admin.cancel(at.schema, JobFilter(refs=refs), "", 100))) == 1


@hot("job_id", "job_pkey", rows=10 * BATCH)
def cancel_many(at: Session) -> Iterator[None]:
    refs = refs_of(at, BATCH)
    yield
    assert len(at.run(admin.cancel(at.schema, JobFilter(refs=refs), "", 100))) == BATCH


@hot("job_batch", "job_pkey", rows=20 * BATCH)
def cancel_of_a_batch(at: Session) -> Iterator[None]:
    yield
    assert len(at.run(admin.cancel(at.schema, JobFilter(batch="batch/7"), "", BATCH))) == BATCH


@hot("history_id", "history_seq", "lane_open", rows=10 * BATCH)
def replay(at: Session) -> Iterator[None]:
    refs = refs_of(at, BATCH, table="history", where="status = 'failed'")
    yield
    assert len(at.run(admin.replay(at.schema, JobFilter(refs=refs), 100))) == BATCH


@hot("job_id", "job_pkey", "history_id", "history_seq", "key_pkey", "log_pkey", rows=20 * BATCH)
def delete(at: Session) -> Iterator[None]:
    refs = refs_of(at, BATCH)
    yield
    assert len(at.run(admin.delete(at.schema, JobFilter(refs=refs), 100))) == BATCH


@hot("job_id", "history_id", rows=BATCH)
def get(at: Session) -> Iterator[None]:
    (ref,) = refs_of(at, 1)
    yield
    assert at.run(queries.get(at.schema, ref)) is not None


@hot("job_id", "dependency_unresolved", "dependency_pkey", "batch_pkey", "lane_open", rows=10 * BATCH)
def advance(at: Session) -> Iterator[None]:
    jobs = [new_job(batch="own", queue="own"), *[new_job(batch="own", after=(0,))] * BATCH]
    at.run(batches.upsert(at.schema, NewBatch(name="own", sealed=True), jobs, notice=None, can_copy=False))
    at.run(settle.settle(at.schema, [Settlement(claim, Complete()) for claim in at.take("own", slots=1)]))
    yield
    assert at.run(batches.advance(at.schema)) == (False, BATCH)


@pytest.mark.parametrize("statement", HOT)
def test_a_hot_statement_reads_few_rows_and_by_its_indexes(at: Session, statement: str):  # O11
    act, uses, rows = HOT[statement]
    steps = act(at)
    next(steps)
    with at.reading() as reads:
        assert next(steps, None) is None
    used = {name for name in reads if not name.startswith(SMALL)}
    assert used <= uses, reads
    assert reads.rows <= rows, reads


@pytest.mark.parametrize(
    "which", [JobFilter(types=("other",)), JobFilter(queues=("none/*",)), JobFilter(org_id="nobody")], ids=repr
)
def test_a_filter_that_has_no_index_looks_at_live_jobs_once_and_at_nothing_else(at: Session, which: JobFilter):  # H9
    with at.reading() as reads:
        assert at.run(admin.cancel(at.schema, which, "", BATCH)) == []
    assert reads == reads.of("job")
    assert reads.rows <= 1.1 * len(JOBS) * MANY, reads


# What is different for some -------------------------------------------------------------------------------------------


@pytest.fixture
def session(driver: Driver, store: PostgresStore) -> Iterator[Session]:
    """A session in an empty schema, on the test's clock."""
    with Session(store.url, Schema(store.schema, clock=store.clock)) as session:
        yield session


async def test_a_claim_does_not_walk_over_the_jobs_that_run_before_it(driver: Driver, session: Session):  # O11
    held = "timestamptz '2029-12-31'"
    seed_jobs(
        session, ready_at=held, started_at=held, lease_until="timestamptz '2031-01-01'",
        lease="interval '30 seconds'", worker_id="'w'",
    )  # fmt: skip
    session.commit()
    await driver.add_many(200)
    await driver.advance(60)
    assert len(await driver.take(slots=100)) == 100  # walks over them
    await move_watermark(driver)
    with session.reading() as reads:
        assert len(session.take(slots=BATCH)) == BATCH
    assert reads.rows <= 400, reads  # those that were taken a moment ago, and no more


async def test_claims_are_heap_only(driver: Driver, session: Session):  # O11
    await driver.add_many(300)
    for _ in range(30):
        session.take(slots=10)
    ((updated, heap_only),) = session.execute(
        "select pg_stat_get_xact_tuples_updated(of), pg_stat_get_xact_tuples_hot_updated(of)"
        " from (select 'onward.job'::regclass) job (of)"
    )
    assert updated == 300
    assert heap_only >= 0.95 * updated


def test_nothing_that_says_by_which_index_to_go_is_compiled(session: Session):
    """What says so makes other ways look dear, and a server that can compile statements would compile each of them."""
    found = session.execute(
        """select proname, 'jit=off' = any (proconfig) from pg_proc
            where pronamespace = (select relnamespace from pg_class where oid = 'onward.job'::regclass)
              and array_to_string(proconfig, ' ') ~ 'enable_[a-z]+=off'"""
    )
    assert len(found) > 20
    assert [name for name, is_plain in found if not is_plain] == []


def test_no_index_of_live_jobs_names_a_column_that_a_claim_changes(session: Session):  # O11
    found = session.execute(
        """select i.relname, a.attname from pg_index x
             join pg_class i on i.oid = x.indexrelid join pg_attribute a on a.attrelid = x.indrelid and a.attnum > 0
            where x.indrelid = 'onward.job'::regclass
              and (a.attnum = any (x.indkey)
                   or concat_ws(' ', pg_get_expr(x.indexprs, x.indrelid), pg_get_expr(x.indpred, x.indrelid))
                        ~ ('\\m' || a.attname || '\\M'))"""
    )
    assert {index for index, _ in found} == {
        "job_pkey", "job_id", "job_claim", "job_suspect", "job_promote", "job_later", "job_expire", "job_dedupe",
        "job_batch",
    }  # fmt: skip
    assert not {column for _, column in found} & CHANGED_BY_A_CLAIM


async def test_ten_thousand_lanes_with_nothing_in_them_are_gone_after_a_while(
    driver: Driver, store: PostgresStore, session: Session
):  # H9
    session.execute("insert into onward.lane (queue, priority) select 'm/' || n, 0 from generate_series(1, 10000) n")
    session.commit()
    await driver.add(queue="m/x")

    async def are_gone() -> bool | None:
        await Driver(store, await store.connect()).rescue()
        ((left,),) = session.execute("select count(*) from onward.lane")
        session.commit()
        return left == 1 or None

    async def are_removed() -> bool | None:
        with psycopg.connect(store.url, autocommit=True) as connection:
            connection.execute(f"vacuum {store.schema}.lane")
            ((left,),) = connection.execute(f"select pg_stat_get_dead_tuples('{store.schema}.lane'::regclass)")
        return left == 0 or None

    # A transaction of another test's may see them: then they stay for as long.
    await eventually(are_gone)
    await eventually(are_removed)
    with session.reading() as reads:
        assert len(session.take("m/*", slots=5)) == 1
    assert reads.rows <= 100, reads
    assert len(await driver.engine.queues("m/*")) == 10_001


async def test_a_look_for_jobs_without_a_lane_jumps_over_those_of_paused_queues(
    driver: Driver, session: Session
):  # O2, O11
    seed_jobs(session, queue="'many/' || n % 50 * 2")
    seed_jobs(session, queue="'many/' || n % 1000")
    session.execute("delete from onward.lane where substr(queue, 6)::integer % 2 = 0")
    session.execute(
        """insert into onward.queue (name, paused)
           select 'many/' || n, n % 2 = 0 from generate_series(0, 999) n
           union all select 'told/' || n, false from generate_series(1, 5000) n"""
    )
    session.execute("insert into onward.job (type, queue) values ('greet', 'many/994-new')")  # behind a paused one
    term, upkeep = lead(session), maintenance.UpkeepSchedule()
    upkeep._checks = 1
    known = maintenance.RescueState(), upkeep, maintenance.WatermarkState()
    with session.reading() as reads:
        session.run(maintenance.rescue(session.schema, term, LONG_LEASE, 100, *known))
    assert session.execute("select queue from onward.lane where substr(queue, 6) !~ '^[0-9]*[13579]$'") == [
        ("many/994-new",)
    ]
    assert reads.of("job").rows <= 2000, reads
    assert reads.of("queue").rows <= 1000, reads


async def test_concurrent_claims_of_unlimited_queues_wait_for_nobody(driver: Driver, store: PostgresStore):  # O3
    await driver.add_many(20)
    other = Driver(store, await store.connect())
    with psycopg.connect(store.url) as slow:
        values = "null, 'slow', array['default'], array['default!'], 5, 0, 0, 30000000, '', 0"
        slow.execute(f"select * from {store.schema}.claim({values})")
        async with asyncio.timeout(10):
            assert len(await other.take(slots=10)) == 10
        slow.rollback()
    assert len(await other.take(slots=10)) == 10


async def test_plans_that_were_made_for_a_small_table_do_for_a_large_one(driver: Driver, session: Session):  # O11
    schema, rotation = session.schema, RoundRobin()
    request = ClaimRequest(worker_id="w", queues=("*",), slots=6, prefetch_claimed=4)
    outcomes: list[Outcome] = [Complete(), Complete("1"), Fail(FAILURE), Release(), Snooze(timedelta(days=1))]

    def work() -> None:
        taken = session.run(claims.claim(schema, request, rotation)).claims
        assert len(taken) == BATCH
        assert not session.run(settle.start(schema, [claim for claim in taken if not claim.started]))
        assert not session.run(leases.heartbeat(schema, worker_info("w"), taken)).lost
        settlements = [Settlement(claim, outcome) for claim, outcome in zip(taken, outcomes * 2, strict=True)]
        assert not session.run(settle.settle(schema, settlements))

    session.execute("alter table onward.job set (autovacuum_enabled = off)")
    put(session, *[new_job()] * 4 * BATCH)
    session.execute("analyze onward.job")
    work()
    work()
    seed_jobs(session)
    seed_jobs(session, queue="'other/' || n % 100", priority="n % 7")
    session.execute("insert into onward.queue (name) select 'told/' || n from generate_series(1, 1000) n")
    with session.reading() as reads:
        work()
    assert reads.of("job").rows <= 30 * BATCH, reads
    # PostgreSQL 15 goes through the lanes of a pattern several times, where later ones stop early. There are 700.
    lanes = 10 * BATCH if session.connection.info.server_version >= 160000 else 700
    assert reads.rows - reads.of("job").rows <= 10 * lanes, reads


async def test_the_first_job_of_a_fresh_queue_is_found_among_a_thousand_with_jobs(
    driver: Driver, session: Session
):  # H9
    seed_jobs(session, queue="'many/0'")
    seed_jobs(session, queue="'many/' || n % 1000")
    session.execute("analyze onward.job")
    put(session, new_job(queue="many/5-new"))
    request, rotation = ClaimRequest(worker_id="w", queues=("many/*",), slots=100), claims.RoundRobin()
    started: set[str] = set()
    with session.reading() as reads:
        for _ in range(1000 // 100 + 1):  # once round all of them
            started |= {one.ref.queue for one in session.run(claims.claim(session.schema, request, rotation)).claims}
            if "many/5-new" in started:
                break
    assert "many/5-new" in started
    assert len(started) > 100  # each had its turn, and none more than one
    assert reads.rows <= 12 * 1200, reads  # and not all that wait, each time


async def test_an_open_transaction_does_not_make_claims_walk_over_what_has_ended(
    driver: Driver, store: PostgresStore, session: Session
):  # O11
    """What was deleted since stays in the index for as long as anybody's transaction could see it."""
    with psycopg.connect(store.url) as blocker:
        blocker.execute("set transaction isolation level repeatable read")
        blocker.execute(f"select count(*) from {store.schema}.job")
        for _ in range(20):
            await driver.add_many(200)
            await driver.advance(5)
            while claims := await driver.take(slots=100):
                await driver.end_all(claims, Complete())
            await move_watermark(driver)
        await driver.add_many(3 * BATCH)
        with session.reading() as reads:
            assert len(session.take(slots=BATCH)) == BATCH
        blocker.rollback()
    assert reads.rows <= 1500, reads  # those of the last round or two, and not four thousand, twice
