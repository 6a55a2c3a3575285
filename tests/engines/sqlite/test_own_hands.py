"""A caller who is alone writes with its own hands, unless it would have to wait, or hold up a loop for long."""

from __future__ import annotations

import asyncio
import threading

import pytest

from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.lane import Lane, Transaction
from onward.engines.sqlite.turnstile import Turnstile
from tests.engines.sqlite.plain import EVERY, Held, add, new_job, on_writer, states


@pytest.fixture
def writer(engine: SQLiteEngine) -> Lane:
    """Whose disk has been quick of late."""
    engine._writer._slowest = 0.0
    return engine._writer


def where(transaction: Transaction, items: list[None]) -> list[int]:
    """Say on which thread a request was done."""
    assert transaction.connection.in_transaction
    return [threading.get_ident()] * len(items)


def lanes_own(writer: Lane) -> int:
    assert writer._thread is not None
    assert writer._thread.ident is not None
    return writer._thread.ident


async def test_a_loop_that_asks_for_one_thing_does_it_itself(writer):
    assert await writer.share(where, None) == threading.get_ident()


async def test_a_thread_that_waits_in_any_case_does_it_itself(writer):
    writer._slowest = 1.0

    def ask() -> tuple[int, int]:
        return writer.share_sync(where, None), threading.get_ident()

    done_by, asked_by = await asyncio.to_thread(ask)
    assert done_by == asked_by


async def test_what_a_loop_asks_for_at_once_is_done_together_by_the_lane(writer):
    threads = await asyncio.gather(*[writer.share(where, None) for _ in range(10)])
    assert set(threads) == {lanes_own(writer)}


async def test_others_have_their_turn_between_two_requests_of_a_loop(writer):
    turns: list[str] = []

    async def ask(name: str) -> None:
        for _ in range(3):
            await writer.share(where, None)
            turns.append(name)

    async def work() -> None:
        for _ in range(3):
            turns.append("work")
            await asyncio.sleep(0)

    await asyncio.gather(ask("ask"), work())
    assert turns.index("ask") < len(turns) - 1 - turns[::-1].index("work"), "the one who asked has held everybody up"


async def test_a_slow_disk_never_holds_a_loop_up_twice(writer, monkeypatch):
    clock = iter(range(10**9))
    with monkeypatch.context() as slow:
        # Ten milliseconds a commit.
        slow.setattr("onward.engines.sqlite.lane.time.perf_counter", lambda: next(clock) * 0.01)
        assert await writer.share(where, None) == threading.get_ident()
        assert await writer.share(where, None) == lanes_own(writer)
    quick = 0
    while await writer.share(where, None) == lanes_own(writer):
        quick += 1
    assert 5 < quick < 50, "a disk that was slow a moment ago is not trusted at once, nor mistrusted for ever"


async def test_a_new_lane_s_disk_is_not_yet_trusted(path):
    engine = SQLiteEngine(path)
    await engine.open()
    assert await engine._writer.share(where, None) == lanes_own(engine._writer)
    await engine.close()


async def test_a_loop_does_not_wait_for_somebody_else_s_program(writer, engine, bare):
    patience = await on_writer(engine, lambda on: on.connection.execute("pragma busy_timeout").fetchone())
    assert patience == (0,), "SQLite would wait where it is asked"
    bare.execute("begin immediate")
    asked = asyncio.create_task(add(engine))
    for _ in range(10):  # were the loop held up, nobody could end the other's transaction
        await asyncio.sleep(0)
    assert not asked.done()
    bare.execute("rollback")
    await asked
    assert await states(engine) == {"pending": 1}


async def test_a_loop_does_not_wait_for_another_process_of_ours(writer, engine, path):
    other = Turnstile(path)
    other.open()
    with other.passed():
        asked = asyncio.create_task(add(engine))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not asked.done()
    await asked
    other.close()


async def test_a_loop_does_not_wait_for_its_own_lane(writer, engine):
    async with Held(engine) as held:
        asked = asyncio.create_task(add(engine))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not asked.done()
        held.let_go()
        await asked


async def test_what_waits_for_the_lane_is_not_overtaken(writer, engine):
    async with Held(engine) as held:
        first = asyncio.create_task(add(engine, payload="1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = threading.Thread(target=engine.enqueue_sync, args=([new_job(payload="2")],))
        second.start()
        while len(writer._requests) < 2:  # noqa: ASYNC110 - the other thread is about to ask
            await asyncio.sleep(0)
        held.let_go()
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
    asked = asyncio.create_task(add(engine))
    await asyncio.sleep(0)
    assert writer._comers
    writer.close()
    assert len(await asked) == 1


async def test_an_error_is_the_one_s_who_asked(writer, engine):
    def fail(transaction: Transaction, items: list[None]) -> list[None]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await writer.share(fail, None)
    await add(engine)
    assert await states(engine) == {"pending": 1}
