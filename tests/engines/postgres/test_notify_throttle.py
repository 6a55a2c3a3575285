"""Who tells of new work: an enqueue with its commit, or a thread for those that came too soon after another."""

from __future__ import annotations

import math
import queue
from collections.abc import Iterator
from contextlib import aclosing
from itertools import takewhile
from typing import Any

import psycopg
import pytest

from onward.engine.values import SignalKind
from onward.engines.postgres import notify_throttle, queue_cache
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.notify_throttle import Bell, Telling
from onward.engines.postgres.queue_cache import Seen
from onward.errors import StoreUnavailable
from onward.pg.listener import ALL_QUEUES, DUE
from tests.conformance.driver import new_job
from tests.conformance.postgres_case import PostgresStore

Told = queue.SimpleQueue[str]


@pytest.fixture
def told() -> Told:
    return queue.SimpleQueue()


@pytest.fixture
def bell(told: Told) -> Iterator[Bell]:
    bell = Bell(told.put, Seen())
    yield bell
    bell.close()


def test_an_enqueue_that_may_tell_takes_along_what_was_left_word_of(bell: Bell):
    bell._apart = 60  # the thread keeps out of it
    assert bell.notice_for({"a"}) == "a"
    assert bell.notice_for({"b"}) is None  # too soon
    bell.committed(None, {"b"})
    bell._last -= 90
    assert bell.notice_for({"c"}) == "b,c"
    bell._last -= 90
    assert bell.notice_for({"d"}) == "d"  # and tells of it once


def test_a_notice_names_queues_as_long_as_there_is_room_for_their_names(bell: Bell):  # H9
    names = {f"queue/{number}" for number in range(300)}
    assert set((bell.notice_for(names) or "").split(",")) == names
    bell._last -= 90
    assert bell.notice_for({f"queue/{number}/{'x' * 100}" for number in range(300)} | {DUE}) == f"{ALL_QUEUES},{DUE}"


def test_the_last_of_a_burst_is_told_of_though_no_other_comes(bell: Bell, told: Told):
    for _ in range(3):  # asleep and awake again
        bell.notice_for({"a"})
        bell.committed(None, {"b"})
        assert told.get(timeout=30) == "b"


def test_what_is_owed_is_told_before_the_bell_is_put_away(bell: Bell, told: Told):
    bell._apart = 60
    bell.notice_for({"a"})
    bell.committed(None, {"b"})
    bell.close()
    assert told.get(timeout=30) == "b"


def test_who_had_to_wait_to_tell_tells_more_seldom_until_it_need_not_wait(bell: Bell):
    """Else, where commits that tell wait for each other, all would come to tell with every commit."""
    with Telling(bell, {"a"}):
        bell._last -= 0.010
    assert bell._apart == notify_throttle._APART  # once is nothing
    bell._last = -math.inf
    with Telling(bell, {"a"}):
        bell._last -= 0.010
    assert 0.040 <= bell._apart <= notify_throttle._FARTHEST
    bell._last = -math.inf
    with Telling(bell, {"a"}):
        bell._last += 1  # it took no time at all
    assert bell._apart == notify_throttle._APART


def test_where_nobody_listened_it_is_looked_for_listeners_more_seldom(told: Told):
    seen = Seen()
    bell = Bell(told.put, seen)
    for is_heard, apart in ((False, queue_cache.TRUST), (True, notify_throttle._APART)):
        bell._last = -math.inf
        with Telling(bell, {"a"}):
            seen.is_heard = is_heard
            bell._last += 1
        assert bell._apart == apart
    bell.close()


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ZeroDivisionError()], ids=["known", "unknown"])
def test_whatever_goes_wrong_with_one_notice_the_next_is_told(told: Told, error: Exception):
    def send(notice: str) -> None:
        told.put(notice)
        if notice == "a":
            raise error

    bell = Bell(send, Seen())
    for name in ("a", "b"):
        bell.committed(None, {name})
        assert told.get(timeout=30) == name
    bell.close()


async def test_nobody_is_told_where_nobody_listens(store: PostgresStore):
    engine = PostgresEngine(store.url, schema=store.schema)
    await engine.open()
    try:
        if engine.database.is_pooled:
            pytest.skip("through a pooler nobody is told")
        await engine.enqueue([new_job(queue="a")])  # opens the lane
        with psycopg.connect(store.url, autocommit=True) as by_hand:
            by_hand.execute(f"listen {store.schema}")

            async def heard() -> list[str]:
                engine._bell._apart = 0
                await engine.enqueue([new_job(queue="a")])
                by_hand.execute(f"notify {store.schema}, 'end'")
                told = (notice.payload for notice in by_hand.notifies(timeout=30))
                return list(takewhile(lambda said: said != "end", told))

            assert await heard() == []
            signals: Any = engine.signals(["*"])
            async with aclosing(signals):
                assert (await anext(signals)).kind is SignalKind.CHANGED
                assert await heard() == ["a"]
    finally:
        await engine.close()


def test_what_an_enqueue_was_to_tell_of_is_told_though_it_fails(told: Told):
    engine = PostgresEngine("postgresql://nowhere")
    engine._bell = Bell(told.put, Seen())
    engine._bell._apart = 0
    engine._bell._owed = {"left"}
    with pytest.raises(RuntimeError), engine._telling([new_job(queue="mine")]) as notice:
        assert notice == "left,mine"
        raise RuntimeError
    assert told.get(timeout=30) == "left,mine"
    engine._bell.close()
