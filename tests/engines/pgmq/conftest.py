"""A database with a PGMQ in it, one for a test process, and a queue of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from onward.engine.checked import CheckedEngine
from onward.engine.values import Claim, ClaimRequest, QueueChange, Settlement
from onward.engines.pgmq.engine import PGMQEngine
from onward.engines.pgmq.settings import PgmqSettings
from onward.lifecycle import Outcome
from tests.servers.pgmq import drop_database, make_database

_numbers = count()


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Where the database is."""
    made = make_database()
    yield made
    drop_database(made)


@pytest.fixture
def sql(url: str) -> Iterator[Callable[..., list[Any]]]:
    """Ask the database, as any other client of PGMQ's would."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")

        def execute(text: str, *values: Any) -> list[Any]:
            cursor = connection.execute(text, values)
            return cursor.fetchall() if cursor.description else []

        yield execute


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Callable[..., Awaitable[CheckedEngine]]]:
    """Open handles on the database, in whatever manner; closed with the test."""
    handles: list[CheckedEngine] = []

    async def open_one(**settings: Any) -> CheckedEngine:
        handles.append(CheckedEngine(PGMQEngine(url, settings=PgmqSettings(**settings))))
        await handles[-1].open()
        return handles[-1]

    yield open_one
    for handle in handles:
        await handle.close()


@pytest.fixture
async def engine(opened: Callable[..., Awaitable[CheckedEngine]]) -> CheckedEngine:
    """A handle on the database."""
    return await opened()


@pytest.fixture
async def queue(engine: CheckedEngine) -> str:
    """A queue of the test's own."""
    name = f"q{next(_numbers)}"
    await engine.configure(name, QueueChange())
    return name


async def claim_jobs(engine: CheckedEngine, queue: str, *, slots: int = 10, **fields: Any) -> tuple[Claim, ...]:
    """Ask for jobs of one queue."""
    return (await engine.claim(ClaimRequest(worker_id="w", queues=(queue,), slots=slots, **fields))).claims


async def settle(engine: CheckedEngine, claim: Claim, outcome: Outcome) -> bool:
    """Settle one claim, and say whether it was recorded."""
    return not await engine.settle([Settlement(claim, outcome)])
