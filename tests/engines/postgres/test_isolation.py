"""Completing a job in a caller's transaction that is not READ COMMITTED (X3)."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from onward import App, JobContext, WrongIsolation
from onward.clock import ManualClock
from onward.engine.values import Settlement
from onward.lifecycle import Complete, JobStatus
from tests.conformance.driver import Driver
from tests.conformance.postgres_case import PostgresStore
from tests.engines.postgres.callers import KINDS, Caller

STRICT = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]


@pytest.fixture
def ledger(store: PostgresStore) -> Any:
    table = f"{store.schema}.ledger"

    def rows() -> int:
        with psycopg.connect(store.url) as connection:
            ((count,),) = connection.execute(f"select count(*) from {table}").fetchall()
            return int(count)

    return table, rows


@pytest.mark.parametrize("isolation", STRICT, ids=lambda isolation: isolation.name)
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_strict_transaction_is_refused_with_the_remedy_and_costs_no_attempt(
    store: PostgresStore,
    ledger: Any,
    isolation: IsolationLevel,
    is_async: bool,
    caplog: pytest.LogCaptureFixture,
):  # X3, Counting
    table, rows = ledger
    clock = ManualClock()
    refused: list[WrongIsolation] = []
    async with App(f"{store.url}&schema={store.schema}", clock=clock) as app:
        with psycopg.connect(store.url) as connection:
            connection.execute(f"create table {table} (number int)")

        def begin() -> psycopg.Connection[Any]:
            connection = psycopg.connect(store.url)
            connection.isolation_level = isolation if not app_is_fixed else IsolationLevel.READ_COMMITTED
            connection.execute(f"insert into {table} values (1)")
            with psycopg.connect(store.url) as heartbeat:
                heartbeat.execute(f"update {store.schema}.job set lease_until = lease_until + interval '1 second'")
            return connection

        async def asynchronous(context: JobContext) -> None:
            with begin() as connection:
                try:
                    await context.complete("booked", connection=connection)
                except WrongIsolation as error:
                    refused.append(error)
                    raise LookupError("as an application may wrap it") from error

        def plain(context: JobContext) -> None:
            with begin() as connection:
                try:
                    context.sync.complete("booked", connection=connection)
                except WrongIsolation as error:
                    refused.append(error)
                    raise

        app_is_fixed = False
        book = app.task(name="book", max_attempts=1)(asynchronous if is_async else plain)
        handle = await book.enqueue()
        for _ in range(3):
            with caplog.at_level(logging.WARNING):
                report = await app.tick()
            assert (report.snoozed, report.completed, report.failed) == (1, 0, 0)
            assert (await handle.info()).attempts == 0
            clock.advance(61)
        assert rows() == 0
        assert all("READ COMMITTED" in str(error) for error in refused)
        assert any("READ COMMITTED" in str(record.__dict__) for record in caplog.records)
        app_is_fixed = True
        assert (await app.tick()).completed == 1
        assert await handle.result() == "booked"
        assert rows() == 1


# SQLAlchemy's asyncpg takes one statement at a time: it cannot be given a level by the caller's insert.
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if "SQLAlchemyAsyncpg" not in kind.__name__], ids=lambda kind: kind.__name__
)
async def test_every_kind_of_connection_is_refused_and_goes_on_unharmed(
    driver: Driver, store: PostgresStore, kind: type[Caller]
):  # X3
    table = f"{store.schema}.effect"
    with psycopg.connect(store.url) as connection:
        connection.execute(f"create table {table} (text text)")
    caller = kind(f"{store.url}&options=-cdefault_transaction_isolation%3Dserializable", table)
    if kind.__name__.startswith("Asyncpg"):
        caller.insert = f"set transaction isolation level serializable; {caller.insert}"
    await driver.add()
    claim = await driver.take_one()
    await caller.open()
    with pytest.raises(WrongIsolation, match="SERIALIZABLE"):
        await driver.engine.settle([Settlement(claim, Complete())], connection=caller.handle)
    await caller.end(commits=True)
    with psycopg.connect(store.url) as connection:
        assert connection.execute(f"select text from {table}").fetchall() == [("effect",)]
    assert await driver.state(claim.ref) is JobStatus.RUNNING
    assert await driver.end(claim, Complete())
