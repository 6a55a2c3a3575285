"""Requests that pile up share a transaction, and share nothing else."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading

import pytest

from onward.engine.values import Settlement, WorkerInfo
from onward.engines.sqlite import request_queue
from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.transaction import Transaction
from onward.lifecycle import Complete, Release
from tests.engines.sqlite.plain import BusyWriter, add, complete, new_job, on_writer, states, take

WORKER = WorkerInfo(id="worker-1", hostname="host", pool_size=1, version="1")


async def traced(engine: SQLiteEngine) -> list[str]:
    """Have every statement of the writer written down."""
    statements: list[str] = []
    await on_writer(engine, lambda transaction: transaction.connection.set_trace_callback(statements.append))
    return statements


def commits(statements: list[str]) -> int:
    return sum(statement.lower() == "commit" for statement in statements)


async def piled_up(engine: SQLiteEngine, count: int) -> None:
    """Wait until so many requests wait for the writer."""
    queue = engine._writer._queue
    while len(queue._urgent) + len(queue._requests) < count:
        await asyncio.sleep(0)


async def test_callers_that_come_together_share_one_write_to_the_disk(engine):
    statements = await traced(engine)
    async with BusyWriter(engine) as busy_writer:
        statements.clear()
        callers = asyncio.gather(*[add(engine) for _ in range(50)])
        await piled_up(engine, 50)
        busy_writer.release()
        answers = await callers
    assert commits(statements) == 2, "one of the request that held the writer, and one of all the others"
    assert len({ref for refs in answers for ref in refs}) == 50
    assert await states(engine) == {"pending": 50}


async def test_threads_that_come_together_share_one_too(engine):
    statements = await traced(engine)
    async with BusyWriter(engine) as busy_writer:
        statements.clear()
        threads = [threading.Thread(target=engine.enqueue_sync, args=([new_job()],)) for _ in range(20)]
        for thread in threads:
            thread.start()
        await piled_up(engine, 20)
        busy_writer.release()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert commits(statements) == 2
    assert await states(engine) == {"pending": 20}


async def test_nobody_is_answered_before_it_is_durable(engine, bare):  # X3
    """When the first of a group hears its answer, another program can see the jobs of all."""
    seen: list[int] = []

    async def caller() -> None:
        await add(engine)
        seen.append(bare.execute("select count(*) from onward_job").fetchone()[0])

    async with BusyWriter(engine) as busy_writer:
        callers = asyncio.gather(*[caller() for _ in range(30)])
        await piled_up(engine, 30)
        busy_writer.release()
        await callers
    assert seen == [30] * 30


async def test_one_bad_request_in_a_group_hurts_no_other(engine):  # X3
    def bad(transaction: Transaction) -> None:
        transaction.connection.execute("update onward_job set attempts = -1")

    def worse(transaction: Transaction) -> None:
        raise ZeroDivisionError

    await add(engine)  # whatever order the group has, there is a row to break
    async with BusyWriter(engine) as busy_writer:
        requests = [add(engine), on_writer(engine, bad), add(engine), on_writer(engine, worse), add(engine, 2)]
        answers = asyncio.gather(*requests, return_exceptions=True)
        await piled_up(engine, 5)
        busy_writer.release()
        first, broken, second, wrong, third = await answers
    assert [isinstance(answer, list) and len(answer) for answer in (first, second, third)] == [1, 1, 2]
    assert "CHECK constraint failed" in str(broken)
    assert isinstance(wrong, ZeroDivisionError)
    assert await states(engine) == {"pending": 5}


async def test_one_callers_bad_job_in_a_shared_statement_hurts_no_other(engine):  # X3
    """A job that no rule would let through, so that the store itself refuses it."""
    async with BusyWriter(engine) as busy_writer:
        callers = [add(engine, 2, max_attempts=0 if number == 3 else 5) for number in range(8)]
        answers = asyncio.gather(*callers, return_exceptions=True)
        await piled_up(engine, 8)
        busy_writer.release()
        kinds = [type(answer) for answer in await answers]
    assert kinds == [sqlite3.IntegrityError if number == 3 else list for number in range(8)]
    assert await states(engine) == {"pending": 14}


async def test_callers_that_share_a_statement_each_hear_of_their_own_jobs(engine):  # O4
    async with BusyWriter(engine) as busy_writer:
        sizes = [3, 1, 4, 1, 5]
        callers = [
            engine.enqueue([new_job(payload=str(100 * caller + number)) for number in range(size)])
            for caller, size in enumerate(sizes)
        ]
        keyed = [engine.enqueue([new_job(idempotency_key="one")]) for _ in range(3)]
        answers = asyncio.gather(*callers, *keyed)
        await piled_up(engine, 8)
        busy_writer.release()
        *own, first, second, third = await answers
    for caller, batch in enumerate(own):
        jobs = [await engine.get(answer.ref) for answer in batch]
        assert [job and job.payload for job in jobs] == [100 * caller + number for number in range(sizes[caller])]
    assert first[0].ref == second[0].ref == third[0].ref
    assert [answers[0].is_new for answers in (first, second, third)] == [True, False, False]


async def test_what_a_failed_request_had_written_is_undone_alone(engine):  # X3
    def half(transaction: Transaction) -> None:
        transaction.connection.execute("update onward_job set payload = '\"half\"'")
        raise ZeroDivisionError

    (ref,) = await add(engine)
    async with BusyWriter(engine) as busy_writer:
        answers = asyncio.gather(add(engine), on_writer(engine, half), add(engine), return_exceptions=True)
        await piled_up(engine, 3)
        busy_writer.release()
        await answers
    job = await engine.get(ref)
    assert job is not None
    assert job.payload == {}
    assert await states(engine) == {"pending": 3}


async def test_a_lost_claim_in_a_group_is_answered_to_its_own_caller_only(engine):  # X3
    await add(engine, 6)
    claims = await take(engine, slots=6)
    await engine.settle([Settlement(claims[1], Release()), Settlement(claims[4], Release())])
    async with BusyWriter(engine) as busy_writer:
        pairs = [(claims[0], claims[1]), (claims[2], claims[3]), (claims[4], claims[5])]
        answers = asyncio.gather(*[engine.settle([Settlement(claim, Complete()) for claim in pair]) for pair in pairs])
        await piled_up(engine, 3)
        busy_writer.release()
        lost = await answers
    assert lost == [{claims[1].token}, set(), {claims[4].token}]
    assert await states(engine) == {"completed": 4, "pending": 2}


async def test_a_caller_that_is_cancelled_takes_nobody_with_it(engine):
    async with BusyWriter(engine) as busy_writer:
        callers = [asyncio.create_task(add(engine, payload=str(number))) for number in range(10)]
        await piled_up(engine, 10)
        callers[3].cancel()
        with pytest.raises(asyncio.CancelledError):
            await callers[3]
        busy_writer.release()
        answers = await asyncio.gather(*callers, return_exceptions=True)
    assert [isinstance(answer, list) for answer in answers] == [number != 3 for number in range(10)]
    assert (await states(engine))["pending"] >= 9


async def test_a_caller_whose_loop_has_gone_holds_up_nobody(engine):
    def deregister() -> None:
        async def run_and_leave() -> None:
            task = asyncio.create_task(add(engine))
            await piled_up(engine, 1)
            task.cancel()

        asyncio.run(run_and_leave())

    async with BusyWriter(engine) as busy_writer:
        await asyncio.to_thread(deregister)
        callers = asyncio.gather(*[add(engine) for _ in range(3)])
        await piled_up(engine, 4)
        busy_writer.release()
        assert len(await callers) == 3


async def test_a_heartbeat_goes_ahead_of_the_writes_that_wait(engine):
    """Or a worker with much to write would lose what it holds (ARCHITECTURE: the pulse)."""
    await add(engine)
    (claim,) = await take(engine)
    order: list[str] = []

    async def write(number: int) -> None:
        await on_writer(engine, lambda _: order.append(f"write {number}"))

    statements = await traced(engine)
    async with BusyWriter(engine) as busy_writer:
        writes = asyncio.gather(*[write(number) for number in range(200)])
        await piled_up(engine, 200)
        beat = asyncio.create_task(engine.heartbeat(WORKER, [claim]))
        await piled_up(engine, 201)
        statements.clear()
        busy_writer.release()
        await beat
        await writes
    ours = next(number for number, statement in enumerate(statements) if "onward_worker" in statement)
    assert commits(statements[:ours]) == 1, "only the request that was being done came before it"


async def test_a_beat_from_a_thread_goes_ahead_too(engine):
    await add(engine)
    (claim,) = await take(engine)
    statements = await traced(engine)
    async with BusyWriter(engine) as busy_writer:
        writes = asyncio.gather(*[on_writer(engine, lambda _: None) for _ in range(200)])
        await piled_up(engine, 200)
        thread = threading.Thread(target=engine.heartbeat_sync, args=(WORKER, [claim]))
        thread.start()
        await piled_up(engine, 201)
        statements.clear()
        busy_writer.release()
        await writes
        await asyncio.to_thread(thread.join)
    ours = next(number for number, statement in enumerate(statements) if "onward_worker" in statement)
    assert commits(statements[:ours]) == 1
    await complete(engine, claim)


async def test_a_transaction_is_never_shared_by_so_many_that_the_lock_gets_long(engine):
    statements = await traced(engine)
    async with BusyWriter(engine) as busy_writer:
        statements.clear()
        callers = asyncio.gather(*[add(engine) for _ in range(500)])
        await piled_up(engine, 500)
        busy_writer.release()
        await callers
    assert commits(statements) == 1 + math.ceil(500 / request_queue.MAX_GROUP_SIZE)
    assert request_queue.MAX_GROUP_SIZE < 500


async def test_closing_finishes_what_was_asked(path):
    engine = SQLiteEngine(path)
    await engine.open()
    async with BusyWriter(engine) as busy_writer:
        callers = asyncio.gather(*[add(engine) for _ in range(100)])
        await piled_up(engine, 100)
        closing = asyncio.create_task(asyncio.to_thread(engine._writer.close))
        busy_writer.release()
        assert len(await callers) == 100
        await closing
    await engine.close()
