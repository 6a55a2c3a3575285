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
from onward.engines.postgres import enqueue_cache, notify_throttle
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.enqueue_cache import EnqueueCache
from onward.engines.postgres.notify_throttle import NotifyOnCommit, NotifyThrottle
from onward.errors import StoreUnavailable
from onward.pg.listener import ALL_QUEUES, DUE
from tests.conformance.driver import new_job
from tests.conformance.postgres_case import PostgresStore

Sent = queue.SimpleQueue[str]


@pytest.fixture
def sent() -> Sent:
    return queue.SimpleQueue()


@pytest.fixture
def throttle(sent: Sent) -> Iterator[NotifyThrottle]:
    throttle = NotifyThrottle(sent.put, EnqueueCache())
    yield throttle
    throttle.close()


def test_an_enqueue_that_may_tell_takes_along_what_was_left_word_of(throttle: NotifyThrottle):
    throttle._interval = 60  # the thread keeps out of it
    assert throttle.notice_for({"a"}) == "a"
    assert throttle.notice_for({"b"}) is None  # too soon
    throttle.committed(None, {"b"})
    throttle._last_notice_at -= 90
    assert throttle.notice_for({"c"}) == "b,c"
    throttle._last_notice_at -= 90
    assert throttle.notice_for({"d"}) == "d"  # and tells of it once


def test_a_notice_names_queues_as_long_as_there_is_room_for_their_names(throttle: NotifyThrottle):  # H9
    names = {f"queue/{number}" for number in range(300)}
    assert set((throttle.notice_for(names) or "").split(",")) == names
    throttle._last_notice_at -= 90
    assert (
        throttle.notice_for({f"queue/{number}/{'x' * 100}" for number in range(300)} | {DUE}) == f"{ALL_QUEUES},{DUE}"
    )


def test_the_last_of_a_burst_is_told_of_though_no_other_comes(throttle: NotifyThrottle, sent: Sent):
    for _ in range(3):  # asleep and awake again
        throttle.notice_for({"a"})
        throttle.committed(None, {"b"})
        assert sent.get(timeout=30) == "b"


def test_what_is_owed_is_told_before_the_throttle_is_closed(throttle: NotifyThrottle, sent: Sent):
    throttle._interval = 60
    throttle.notice_for({"a"})
    throttle.committed(None, {"b"})
    throttle.close()
    assert sent.get(timeout=30) == "b"


def test_who_had_to_wait_to_tell_tells_more_seldom_until_it_need_not_wait(throttle: NotifyThrottle):
    """Else, where commits that tell wait for each other, all would come to tell with every commit."""
    with NotifyOnCommit(throttle, {"a"}):
        throttle._last_notice_at -= 0.010
    assert throttle._interval == notify_throttle._MIN_INTERVAL  # once is nothing
    throttle._last_notice_at = -math.inf
    with NotifyOnCommit(throttle, {"a"}):
        throttle._last_notice_at -= 0.010
    assert 0.040 <= throttle._interval <= notify_throttle._MAX_INTERVAL
    throttle._last_notice_at = -math.inf
    with NotifyOnCommit(throttle, {"a"}):
        throttle._last_notice_at += 1  # it took no time at all
    assert throttle._interval == notify_throttle._MIN_INTERVAL


def test_where_nobody_listened_it_is_looked_for_listeners_more_seldom(sent: Sent):
    cache = EnqueueCache()
    throttle = NotifyThrottle(sent.put, cache)
    for has_listener, apart in ((False, enqueue_cache.TTL), (True, notify_throttle._MIN_INTERVAL)):
        throttle._last_notice_at = -math.inf
        with NotifyOnCommit(throttle, {"a"}):
            cache.has_listener = has_listener
            throttle._last_notice_at += 1
        assert throttle._interval == apart
    throttle.close()


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ZeroDivisionError()], ids=["known", "unknown"])
def test_whatever_goes_wrong_with_one_notice_the_next_is_told(sent: Sent, error: Exception):
    def send(notice: str) -> None:
        sent.put(notice)
        if notice == "a":
            raise error

    throttle = NotifyThrottle(send, EnqueueCache())
    for name in ("a", "b"):
        throttle.committed(None, {name})
        assert sent.get(timeout=30) == name
    throttle.close()


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
                engine._notify_throttle._interval = 0
                await engine.enqueue([new_job(queue="a")])
                by_hand.execute(f"notify {store.schema}, 'end'")
                sent = (notice.payload for notice in by_hand.notifies(timeout=30))
                return list(takewhile(lambda said: said != "end", sent))

            assert await heard() == []
            signals: Any = engine.signals(["*"])
            async with aclosing(signals):
                assert (await anext(signals)).kind is SignalKind.CHANGED
                assert await heard() == ["a"]
    finally:
        await engine.close()


def test_what_an_enqueue_was_to_tell_of_is_told_though_it_fails(sent: Sent):
    engine = PostgresEngine("postgresql://nowhere")
    engine._notify_throttle = NotifyThrottle(sent.put, EnqueueCache())
    engine._notify_throttle._interval = 0
    engine._notify_throttle._pending = {"left"}
    with pytest.raises(RuntimeError), engine._notify_on_commit([new_job(queue="mine")]) as notice:
        assert notice == "left,mine"
        raise RuntimeError
    assert sent.get(timeout=30) == "left,mine"
    engine._notify_throttle.close()
