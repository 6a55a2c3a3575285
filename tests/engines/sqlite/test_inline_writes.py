"""Callers write on their own thread, unless they would have to wait, or hold up a loop for long."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pytest

from onward.backoff import Backoff
from onward.engine.values import QueueChange
from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.transaction import Transaction
from onward.engines.sqlite.write_lock import WriteLock
from onward.engines.sqlite.writer import SharedConnection
from onward.lifecycle import JobStatus
from tests.engines.sqlite.plain import EVERY, BusyWriter, add, new_job, on_writer, states


@pytest.fixture
def writer(engine: SQLiteEngine) -> SharedConnection:
    """Whose disk has been quick of late."""
    engine._writer._recent_commit_seconds = 0.0
    return engine._writer


def where(transaction: Transaction, items: list[Sequence[None]]) -> list[int]:
    """Say on which thread a request was done."""
    assert transaction.connection.in_transaction
    return [threading.get_ident()] * len(items)


def needs_transaction(transaction: Transaction, item: Sequence[None]) -> None:
    """Need a transaction."""
    assert not transaction.connection.in_transaction


def served_by(writer: SharedConnection, jobs: int = 1) -> Coroutine[Any, Any, int]:
    return writer.run_coalesced(where, [None] * jobs, needs_transaction)


def thread_of(writer: SharedConnection) -> int:
    thread = writer._queue._thread
    assert thread is not None
    assert thread.ident is not None
    return thread.ident


async def test_a_loop_that_asks_for_one_thing_does_it_itself(writer):
    assert await served_by(writer) == threading.get_ident()


async def test_a_thread_that_waits_in_any_case_does_it_itself(writer):
    writer._recent_commit_seconds = 1.0

    def run_sync() -> tuple[int, int]:
        return writer.run_coalesced_sync(where, [None], needs_transaction), threading.get_ident()

    done_by, requested_by = await asyncio.to_thread(run_sync)
    assert done_by == requested_by


async def test_what_a_loop_asks_for_in_one_turn_is_done_together(writer, engine, monkeypatch):
    together: list[int] = []
    write: Callable[..., bool] = writer._execute_and_commit

    def counted(requests: Sequence[Any], connection: sqlite3.Connection) -> bool:
        together.append(len(requests))
        return write(requests, connection)

    monkeypatch.setattr(writer, "_execute_and_commit", counted)
    threads = await asyncio.gather(*[served_by(writer) for _ in range(10)])
    assert set(threads) == {threading.get_ident()}
    assert together == [10]


async def test_what_is_much_is_left_to_the_thread(writer):
    threads = await asyncio.gather(*[served_by(writer) for _ in range(65)])
    assert set(threads) == {thread_of(writer)}
    assert await served_by(writer, jobs=65) == thread_of(writer)
    assert await served_by(writer, jobs=65) == thread_of(writer)


async def test_what_is_wrong_in_company_is_done_again_alone(writer, engine):
    def fail(transaction: Transaction, items: list[Sequence[None]]) -> list[None]:
        raise ZeroDivisionError

    requests = [add(engine), writer.run_coalesced(fail, [None], needs_transaction), add(engine)]
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(answer) for answer in answers] == [list, ZeroDivisionError, list]
    assert await states(engine) == {"pending": 2}


async def test_a_caller_who_is_alone_needs_one_statement(writer, engine, monkeypatch):
    monkeypatch.setattr(
        "onward.engines.sqlite.writer._MAX_INLINE_COMMIT_SECONDS", 60.0
    )  # however slow the disk is meanwhile
    await add(engine)  # makes the queue
    statements: list[str] = []
    await on_writer(engine, lambda on: on.connection.set_trace_callback(statements.append))
    statements.clear()
    for _ in range(3):
        await add(engine)
    assert ["insert into onward_job" in statement for statement in statements] == [True] * 3
    assert await states(engine) == {"pending": 4}


@pytest.mark.parametrize(
    "job",
    [
        new_job(idempotency_key="k"),
        new_job(dedupe_key="k"),
        new_job(delay=timedelta(hours=1)),
        new_job(run_at=datetime(2100, 1, 1, tzinfo=UTC)),
        new_job(start_by=datetime(2100, 1, 1, tzinfo=UTC)),
        new_job(backoff=Backoff.fixed(3)),
    ],
    ids=["idempotency_key", "dedupe_key", "delay", "run_at", "start_by", "backoff"],
)
async def test_a_job_with_more_to_it_loses_nothing_of_it(writer, engine, monkeypatch, job):
    monkeypatch.setattr("onward.engines.sqlite.writer._MAX_INLINE_COMMIT_SECONDS", 60.0)  # also on a slow disk
    await add(engine)
    (added,) = await engine.enqueue([job])
    kept = await engine.get(added.ref)
    assert (kept.idempotency_key, kept.dedupe_key) == (job.idempotency_key, job.dedupe_key)
    assert (kept.start_by, kept.backoff) == (job.start_by, job.backoff)
    is_later = job.delay is not None or job.run_at is not None
    assert kept.status is (JobStatus.SCHEDULED if is_later else JobStatus.PENDING)


async def test_a_paused_queue_takes_jobs_of_those_who_are_alone(writer, engine):
    await add(engine)
    await engine.configure("default", QueueChange(paused=True))
    await add(engine)
    assert await states(engine) == {"pending": 2}


async def test_others_have_their_turn_between_two_requests_of_a_loop(writer):
    turns: list[str] = []

    async def run_repeatedly() -> None:
        for _ in range(12):
            await served_by(writer)
            turns.append("ask")

    async def work() -> None:
        while len(turns) < 100:
            turns.append("work")
            await asyncio.sleep(0)

    await asyncio.gather(run_repeatedly(), work())
    runs = [len(list(run)) for who, run in groupby(turns) if who == "ask"]
    assert max(runs) <= 4, "the one who asked has held everybody up"


async def test_a_slow_disk_never_holds_a_loop_up_twice(writer, monkeypatch):
    clock = iter(range(10**9))
    with monkeypatch.context() as slow:
        # Ten milliseconds a commit.
        slow.setattr("onward.engines.sqlite.writer.time.perf_counter", lambda: next(clock) * 0.01)
        assert await served_by(writer) == threading.get_ident()
        assert await served_by(writer) == thread_of(writer)
    quick = 0
    while await served_by(writer) == thread_of(writer):
        quick += 1
    assert 5 < quick < 50, "a disk that was slow a moment ago is not trusted at once, nor mistrusted for ever"


async def test_a_new_connection_s_disk_is_not_yet_trusted(path):
    engine = SQLiteEngine(path)
    await engine.open()
    assert await served_by(engine._writer) == thread_of(engine._writer)
    await engine.close()


async def test_a_loop_does_not_wait_for_somebody_else_s_program(writer, engine, bare):
    timeout = await on_writer(engine, lambda on: on.connection.execute("pragma busy_timeout").fetchone())
    assert timeout == (0,), "SQLite would wait where it is asked"
    bare.execute("begin immediate")
    request = asyncio.create_task(add(engine))
    for _ in range(10):  # were the loop held up, nobody could end the other's transaction
        await asyncio.sleep(0)
    assert not request.done()
    bare.execute("rollback")
    await request
    assert await states(engine) == {"pending": 1}


async def test_a_loop_does_not_wait_for_another_process_of_ours(writer, engine, path):
    other = WriteLock(path)
    other.open()
    with other.held():
        request = asyncio.create_task(add(engine))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not request.done()
    await request
    other.close()


async def test_a_loop_does_not_wait_for_its_own_thread(writer, engine):
    async with BusyWriter(engine) as busy_writer:
        request = asyncio.create_task(add(engine))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not request.done()
        busy_writer.release()
        await request


async def test_what_waits_for_the_thread_is_not_overtaken(writer, engine):
    async with BusyWriter(engine) as busy_writer:
        first = asyncio.create_task(add(engine, payload="1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = threading.Thread(target=engine.enqueue_sync, args=([new_job(payload="2")],))
        second.start()
        while len(writer._queue._requests) < 2:
            await asyncio.sleep(0)
        busy_writer.release()
        await first
        await asyncio.to_thread(second.join)
    assert [job.payload for job in (await engine.find(EVERY)).items] == [2, 1]


async def test_who_goes_away_takes_nobody_along(writer, engine):
    first, second = asyncio.create_task(add(engine)), asyncio.create_task(add(engine))
    await asyncio.sleep(0)
    first.cancel()
    assert len(await second) == 1
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await states(engine) == {"pending": 1}


async def test_closing_finishes_what_a_loop_has_just_asked_for(writer, engine):
    request = asyncio.create_task(add(engine))
    await asyncio.sleep(0)
    assert writer._requests_by_loop
    writer.close()
    assert len(await request) == 1


async def test_an_error_is_the_one_s_who_asked(writer, engine):
    def fail(transaction: Transaction, items: list[Sequence[None]]) -> list[None]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await writer.run_coalesced(fail, [None], needs_transaction)
    await add(engine)
    assert await states(engine) == {"pending": 1}
