"""Jobs in a transaction that is prepared and committed later (two-phase commit), while workers listen (X4)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from onward.engine.values import Settlement, Signal
from onward.lifecycle import Complete, JobStatus
from tests.conformance.driver import Driver, new_job
from tests.conformance.postgres_case import PostgresStore
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.started(max_prepared_transactions="5") as server:
        yield server


@pytest.fixture
async def store(server: PostgresServer, tmp_path: Any) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(tmp_path)
    store.url = server.url()
    store.events = "all"  # events notify, too
    yield store
    await store.close()


async def listener_of(driver: Driver) -> AsyncGenerator[Signal, None]:
    """Begin to listen, and wait until a commit notifies."""
    signals = driver.engine.signals(["*"])
    await driver.add(queue="first")
    await anext(signals)
    assert isinstance(signals, AsyncGenerator)
    return signals


class TwoPhase:
    """A connection whose transaction has two phases, as each driver begins it."""

    def __init__(self, kind: str, store: PostgresStore) -> None:
        self._kind = kind
        self._xid = f"{store.schema}-{kind}"
        url = store.url
        self.handle: Any
        if kind in {"psycopg", "by hand"}:
            self.handle = psycopg.connect(url)
            if kind == "psycopg":
                self.handle.tpc_begin(self._xid)
            else:
                self.handle.execute(f"set local {store.schema}.notify = off")
            return
        self._engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
        if kind == "connection":
            self.handle = self._engine.connect()
            self._transaction = self.handle.begin_twophase()
        else:
            self.handle = Session(self._engine, twophase=True)

    def prepare(self) -> None:
        match self._kind:
            case "psycopg":
                self.handle.tpc_prepare()
            case "by hand":
                self.handle.execute(f"prepare transaction '{self._xid}'")
                self.handle.commit()
            case "connection":
                self._transaction.prepare()
            case "session":
                self.handle.prepare()

    def commit(self) -> None:
        match self._kind:
            case "psycopg":
                self.handle.tpc_commit()
            case "by hand":
                self.handle.autocommit = True
                self.handle.execute(f"commit prepared '{self._xid}'")
            case "connection":
                self._transaction.commit()
            case "session":
                self.handle.commit()

    def close(self) -> None:
        self.handle.close()
        if self._kind in {"connection", "session"}:
            self._engine.dispose()


@pytest.mark.parametrize("kind", ["psycopg", "by hand", "connection", "session"])
async def test_a_transaction_that_adds_and_completes_jobs_can_be_prepared_while_workers_listen(
    driver: Driver, store: PostgresStore, kind: str
):  # X4, X3
    await driver.set("limited", global_concurrency=1)  # a job that completes makes room there, and workers are notified
    held = await driver.add(queue="limited")
    claim = await driver.take_one("limited")
    caller = TwoPhase(kind, store)
    signals = await listener_of(driver)
    try:
        (added, keyed) = await driver.engine.enqueue(
            [new_job(), new_job(idempotency_key="k")], connection=caller.handle
        )
        driver.engine.enqueue_sync([new_job(queue="other")], connection=caller.handle)
        assert not await driver.engine.settle([Settlement(claim, Complete())], connection=caller.handle)
        caller.prepare()
        assert len(await driver.jobs()) == 2
        assert await driver.state(held) is JobStatus.RUNNING
        caller.commit()
        assert {job.ref for job in await driver.jobs()} >= {added.ref, keyed.ref, held}
        assert await driver.state(held) is JobStatus.COMPLETED
        assert len(await driver.take("*", slots=10)) == 4
    finally:
        caller.close()
        await signals.aclose()


async def test_the_next_transaction_of_the_connection_notifies_again(driver: Driver, store: PostgresStore):  # X4
    caller = TwoPhase("psycopg", store)
    try:
        await driver.engine.enqueue([new_job()], connection=caller.handle)
        read = f"select current_setting('{store.schema}.notify', true)"
        assert caller.handle.execute(read).fetchone() == ("off",)
        caller.prepare()
        caller.commit()
        assert caller.handle.execute(read).fetchone() != ("off",)
    finally:
        caller.close()
