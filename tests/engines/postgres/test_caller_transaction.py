"""Jobs in the transactions of every kind of connection that a user may have (X4), and their ends (X3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from inspect import isawaitable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onward.backoff import Backoff
from onward.batches.values import NewBatch
from onward.engine.values import Settlement
from onward.errors import InvalidValue, OnwardError
from onward.job import EnqueueStatus, NewJob
from onward.lifecycle import Complete, JobStatus, Outcome, Retry
from onward.pg import caller_transaction
from tests.conformance.cases import BOOM
from tests.conformance.driver import Driver, new_job
from tests.conformance.postgres_case import PostgresStore, other_database
from tests.engines.postgres.callers import (
    KINDS,
    Caller,
    Django,
    Psycopg,
    PsycopgAsync,
    SQLAlchemyAsyncConnection,
    SQLAlchemyAsyncpgConnection,
    SQLAlchemyConnection,
    SQLAlchemySession,
)

MIXED = [
    new_job(payload='{"text": "100 % of $1, naïve – 東京"}', org_id="acme", priority=3, backoff=Backoff.fixed(3)),
    new_job(queue="other", type="crop", delay=timedelta(minutes=1), max_attempts=2),
    new_job(idempotency_key="k", dedupe_key="d"),
    new_job(idempotency_key="k"),
    new_job(dedupe_key="d"),
]


@pytest.fixture
async def table(store: PostgresStore) -> AsyncIterator[str]:
    """A table of the user's own."""
    table = f"effect_{store.schema}"
    with psycopg.connect(store.url) as connection:
        connection.execute(f"create table {table} (text text)")
    yield table
    with psycopg.connect(store.url) as connection:
        connection.execute(f"drop table {table}")


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def caller(request: pytest.FixtureRequest, store: PostgresStore, table: str) -> Caller:
    """A connection as a user's program has it."""
    caller: Caller = request.param(store.url, table)
    return caller


def effects(store: PostgresStore, table: str) -> int:
    with psycopg.connect(store.url) as connection:
        ((count,),) = connection.execute(f"select count(*) from {table}")
        return int(count)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize(
    "jobs", [[new_job()], [new_job()] * 3, MIXED[:2], MIXED], ids=["one", "alike", "mixed", "keyed"]
)
async def test_jobs_exist_if_and_only_if_the_callers_transaction_commits(
    driver: Driver, store: PostgresStore, table: str, caller: Caller, jobs: list[NewJob], commits: bool
):  # X4
    await caller.open()
    answers = await driver.engine.enqueue(jobs, connection=caller.handle)
    assert await driver.jobs() == (), "nobody sees them before the commit"
    await caller.end(commits=commits)
    made = list(dict.fromkeys(answer.ref for answer in answers))
    assert [job.ref for job in await driver.jobs()] == (made if commits else [])
    assert effects(store, table) == commits


async def test_every_field_goes_through_every_kind_of_connection(driver: Driver, caller: Caller):  # X4, O2
    await caller.open()
    answers = await driver.engine.enqueue(MIXED, connection=caller.handle)
    await caller.end(commits=True)
    assert [answer.enqueue_status for answer in answers[2:]] == [
        EnqueueStatus.INSERTED,
        EnqueueStatus.SAME_KEY,
        EnqueueStatus.DEDUPED,
    ]
    first, second, third = await driver.jobs()
    assert (first.payload, first.org_id, first.priority) == ({"text": "100 % of $1, naïve – 東京"}, "acme", 3)
    assert (first.backoff, second.max_attempts, second.next_run_at) == (
        Backoff.fixed(3),
        2,
        driver.now + timedelta(minutes=1),
    )
    assert (third.idempotency_key, third.dedupe_key) == ("k", "d")


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_outcomes_are_part_of_the_callers_transaction(
    driver: Driver, store: PostgresStore, table: str, caller: Caller, commits: bool
):  # X3
    refs = await driver.add_many(3)
    claims = await driver.take(slots=3)
    await driver.cancel(refs[2])
    outcomes: list[Outcome] = [Complete('{"n": 1}'), Retry(timedelta(seconds=5), BOOM), Complete()]
    await caller.open()
    settlements = [Settlement(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=True)]
    assert await driver.engine.settle(settlements, connection=caller.handle) == {claims[2].token}
    await caller.end(commits=commits)
    ends = [JobStatus.COMPLETED, JobStatus.SCHEDULED] if commits else [JobStatus.RUNNING] * 2
    assert [await driver.state(ref) for ref in refs[:2]] == ends
    assert effects(store, table) == commits


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.is_plain], ids=lambda kind: kind.__name__)
async def test_plain_code_can_enqueue_and_settle_within(
    driver: Driver, store: PostgresStore, table: str, kind: type[Caller]
):  # X4, X3
    caller = kind(store.url, table)
    held = await driver.add()
    claim = await driver.take_one()
    await caller.open()
    (answer,) = driver.engine.enqueue_sync([new_job()], connection=caller.handle)
    assert not driver.engine.settle_sync([Settlement(claim, Complete())], connection=caller.handle)
    await caller.end(commits=True)
    assert await driver.state(answer.ref) is JobStatus.PENDING
    assert await driver.state(held) is JobStatus.COMPLETED


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.is_plain], ids=lambda kind: kind.__name__)
async def test_plain_code_is_told_that_a_connection_is_for_event_loops(
    driver: Driver, store: PostgresStore, table: str, kind: type[Caller]
):  # X4
    caller = kind(store.url, table)
    await caller.open()
    with pytest.raises(InvalidValue, match="await"):
        driver.engine.enqueue_sync([new_job()], connection=caller.handle)
    await caller.end(commits=True)
    assert await driver.jobs() == ()


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_jobs_are_part_of_a_block_of_djangos(
    driver: Driver, store: PostgresStore, table: str, commits: bool
):  # X4, X3
    caller = Django(store.url, table)
    await caller.open()
    held = await driver.add()
    claim = await driver.take_one()

    def view() -> None:
        with caller.block(commits=commits):
            driver.engine.enqueue_sync(MIXED, connection=caller.handle)
            assert not driver.engine.settle_sync([Settlement(claim, Complete())], connection=caller.handle)

    await asyncio.to_thread(view)
    assert len(await driver.jobs()) == 1 + 3 * commits
    assert await driver.state(held) is (JobStatus.COMPLETED if commits else JobStatus.RUNNING)
    assert effects(store, table) == commits


async def test_outside_of_a_block_of_djangos_jobs_are_added_all_or_none(
    driver: Driver, store: PostgresStore, table: str
):  # X4
    caller = Django(store.url, table)
    await caller.open()

    def view() -> None:
        try:
            driver.engine.enqueue_sync(MIXED, connection=caller.handle)
        finally:
            caller.handle.close()

    await asyncio.to_thread(view)
    assert len(await driver.jobs()) == 3


async def test_a_connection_that_commits_by_itself_adds_all_or_none(driver: Driver, store: PostgresStore):  # X4
    with psycopg.connect(store.url, autocommit=True) as connection:
        answers = await driver.engine.enqueue(MIXED, connection=connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert {job.ref for job in await driver.jobs()} == {answer.ref for answer in answers}


REFUSED = [
    [new_job(), new_job(batch="gone")],
    [new_job(batch="b", idempotency_key="k"), new_job(batch="b", after=(0, "0190163d-8694-739b-aea5-966c26f8ad91"))],
    [new_job(batch="b"), new_job(batch="b", after=(0, "nobody"))],
]
"""Of a batch that is not there, and after a job that is not."""


async def nothing_is_left(driver: Driver) -> None:
    """What comes after what was refused is added, and nothing else has been."""
    assert [job.payload for job in await driver.jobs()] == ["after"]
    assert [(batch.name, batch.total) for batch in (await driver.engine.batches()).items] == [("b", 1)]
    assert (await driver.enqueue(idempotency_key="k")).is_new


AFTER = new_job(batch="b", payload='"after"')


async def test_of_jobs_that_are_refused_nothing_is_left_in_the_callers_transaction(
    driver: Driver, store: PostgresStore, table: str, caller: Caller
):  # X4
    await driver.engine.save_batch(NewBatch(name="b"))
    await caller.open()
    for jobs in REFUSED:
        with pytest.raises(InvalidValue):
            await driver.engine.enqueue(jobs, connection=caller.handle)
    with pytest.raises(InvalidValue):
        await driver.engine.save_batch(NewBatch(name="c"), REFUSED[0], connection=caller.handle)
    await driver.engine.enqueue([AFTER], connection=caller.handle)
    await caller.end(commits=True)
    await nothing_is_left(driver)
    assert effects(store, table) == 1


async def test_of_jobs_that_are_refused_nothing_is_left_in_a_block_of_djangos(
    driver: Driver, store: PostgresStore, table: str
):  # X4
    await driver.engine.save_batch(NewBatch(name="b"))
    caller = Django(store.url, table)
    await caller.open()

    def refuse() -> None:
        for jobs in REFUSED:
            with pytest.raises(InvalidValue):
                driver.engine.enqueue_sync(jobs, connection=caller.handle)

    def view() -> None:
        with caller.block(commits=True):
            refuse()
            driver.engine.enqueue_sync([AFTER], connection=caller.handle)
        try:
            refuse()  # outside of a block
        finally:
            caller.handle.close()

    await asyncio.to_thread(view)
    await nothing_is_left(driver)
    assert effects(store, table) == 1


@pytest.mark.parametrize("begins", [False, True], ids=["alone", "in a transaction begun by hand"])
@pytest.mark.parametrize(
    "kind",
    [Psycopg, SQLAlchemyConnection, SQLAlchemyAsyncConnection, SQLAlchemyAsyncpgConnection],
    ids=lambda kind: kind.__name__,
)
async def test_of_jobs_that_are_refused_nothing_is_left_where_each_statement_is_committed(
    driver: Driver, store: PostgresStore, table: str, kind: type[Caller], begins: bool
):  # X4
    await driver.engine.save_batch(NewBatch(name="b"))
    caller = kind(store.url, table)
    await caller.open()
    handle = caller.handle
    for act in (handle.commit, lambda: commit_each(handle)):
        if isawaitable(answer := act()):
            await answer
    if begins:
        await execute(handle, "begin")
    for jobs in REFUSED:
        with pytest.raises(InvalidValue):
            await driver.engine.enqueue(jobs, connection=handle)
    await driver.engine.enqueue([AFTER], connection=handle)
    if begins:
        assert await driver.jobs() == ()
        await execute(handle, "commit")
    await nothing_is_left(driver)
    await caller.end(commits=False)


def commit_each(handle: Any) -> Any:
    """Have a connection commit each statement by itself."""
    if isinstance(handle, psycopg.Connection):
        return handle.set_autocommit(True)
    return handle.execution_options(isolation_level="AUTOCOMMIT")


async def execute(handle: Any, text: str) -> None:
    answer = handle.execute(text) if isinstance(handle, psycopg.Connection) else handle.exec_driver_sql(text)
    if isawaitable(answer):
        await answer


@pytest.mark.parametrize("kind", [PsycopgAsync, Psycopg, SQLAlchemyConnection], ids=lambda kind: kind.__name__)
async def test_a_connection_that_writes_otherwise_than_we_do_writes_what_it_can_and_no_other(
    driver: Driver, store: PostgresStore, table: str, kind: type[Caller]
):  # X4, O2
    caller = kind(f"{store.url}&client_encoding=latin1", table)
    await caller.open()
    try:
        await driver.engine.enqueue([new_job(payload='"naïve"')], connection=caller.handle)
        with pytest.raises(InvalidValue, match="client_encoding to utf8"):
            await driver.engine.enqueue([new_job(payload='"東京"')], connection=caller.handle)
    finally:
        await caller.end(commits=True)
    assert [job.payload for job in await driver.jobs()] == ["naïve"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_connection_of_any_kind_to_another_database_is_refused(
    driver: Driver, store: PostgresStore, kind: type[Caller]
):  # X4
    caller = kind(other_database(store.url), "pg_temp.effect")
    caller.insert = "select 1"
    await caller.open()
    for _ in range(2):
        with pytest.raises(OnwardError, match=r"schema|where the jobs are kept"):
            await driver.engine.enqueue([new_job()], connection=caller.handle)
    await caller.end(commits=True)
    assert await driver.jobs() == ()


async def test_a_connection_to_another_store_of_the_same_name_is_refused(
    driver: Driver, store: PostgresStore, tmp_path: Path
):  # X4
    name = f"twin_{store.schema}"
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    twin = PostgresStore(tmp_path)
    twin.schema, twin.url = store.schema, make_conninfo(store.url, dbname=name)
    try:
        await twin.connect()
        with psycopg.connect(twin.url) as stranger, pytest.raises(InvalidValue, match="where the jobs are kept"):
            await driver.engine.enqueue([new_job()], connection=stranger)
        for handle in twin._handles:
            await handle.close()
    finally:
        with psycopg.connect(store.url, autocommit=True) as connection:
            connection.execute(f"drop database {name} with (force)")


@pytest.mark.parametrize("kind", [SQLAlchemyConnection, SQLAlchemySession], ids=lambda kind: kind.__name__)
async def test_the_transaction_of_sqlalchemy_begins_with_the_job_where_none_is_open(
    driver: Driver, store: PostgresStore, table: str, kind: type[Caller]
):  # X4
    caller = kind(store.url, table)
    caller.insert = "select 1"
    await caller.open()
    caller.handle.rollback()
    await driver.engine.enqueue([new_job()], connection=caller.handle)
    assert await driver.jobs() == ()
    await caller.end(commits=False)
    assert await driver.jobs() == ()


async def test_a_single_statement_takes_no_savepoint(
    driver: Driver, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delattr(caller_transaction, "_atomic")
    await driver.add()
    claim = await driver.take_one()
    with psycopg.connect(store.url) as connection:
        await driver.engine.enqueue([new_job()] * 2, connection=connection)
        driver.engine.enqueue_sync([new_job()], connection=connection)
        assert not await driver.engine.settle([Settlement(claim, Complete())], connection=connection)
        with pytest.raises(NameError):
            await driver.engine.enqueue([new_job(batch="b")], connection=connection)
