"""Events as BullMQ's streams have them, and what is made up for (B7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from onward import App
from onward.engines.bullmq.engine import BullMQEngine
from onward.errors import InvalidValue
from onward.events import OLDEST, AnyEvent, Completed, Progress, Waiting
from onward.events import Retry as RetryEvent
from onward.job import NewJob
from onward.lifecycle import Complete, Failure, Release, Retry, Snooze
from tests.engines.bullmq.queue import Queue
from tests.servers.redis import RedisServer

DEADLINE = 10
BOOM = Failure("ValueError", "boom")


async def next_events(events: AsyncGenerator[AnyEvent, None], count: int) -> list[AnyEvent]:
    async with asyncio.timeout(DEADLINE):
        return [await anext(events) for _ in range(count)]


async def test_a_retry_says_how_long_it_waits_and_how_often_it_was_tried(queue: Queue):  # B7
    types = frozenset({"retry"})
    async with aclosing(await queue.engine.events(["mail"], types=types)) as events:
        await queue.add(delay=timedelta(milliseconds=1))  # which BullMQ tells of by the same word
        while not (taken := await queue.take()):
            pass
        await queue.settle(taken[0], Retry(timedelta(minutes=1), BOOM))
        (retry,) = await next_events(events, 1)
    assert isinstance(retry, RetryEvent)
    assert retry.attempts == 1
    assert 59 < retry.delay <= 60


async def test_a_retry_at_once_is_told_as_both_and_heard_again_by_who_stops_between(queue: Queue):  # B7
    async with aclosing(await queue.engine.events(["mail"])) as events:
        await queue.add()
        await queue.settle((await queue.take())[0], Retry(timedelta(0), BOOM))
        events_seen = await next_events(events, 4)
    assert [event.name for event in events_seen] == ["waiting", "active", "retry", "waiting"]
    async with aclosing(await queue.engine.events(["mail"], cursor=events_seen[2].cursor)) as events:
        assert [event.name for event in await next_events(events, 2)] == ["retry", "waiting"]


@pytest.mark.parametrize("outcome", [Snooze(timedelta(minutes=1)), Release()], ids=["put off", "given back"])
async def test_a_job_that_has_not_failed_is_not_tried_again(queue: Queue, outcome: Any):  # B7
    async with aclosing(await queue.engine.events(["mail"], types=frozenset({"retry", "completed"}))) as events:
        await queue.add()
        await queue.settle((await queue.take())[0], outcome)
        await queue.add()
        for claim in await queue.take(2):
            await queue.settle(claim, Complete())
        assert [event.name for event in await next_events(events, 1)] == ["completed"]


async def test_progress_that_is_no_number_is_shown_as_it_was_said(queue: Queue):  # B7
    async with aclosing(await queue.engine.events(["mail"], cursor=OLDEST)) as events:
        queue.client.xadd(queue.key("events"), {"event": "progress", "jobId": "1", "data": '{"step":"two"}'})
        (progress,) = await next_events(events, 1)
    assert isinstance(progress, Progress)
    assert (progress.progress, progress.message) == (None, '{"step":"two"}')


async def test_a_cursor_older_than_what_is_kept_is_refused(queue: Queue):  # B7
    await queue.add()
    async with aclosing(await queue.engine.events(["mail"], cursor=OLDEST)) as events:
        (first,) = await next_events(events, 1)
    await queue.add()
    queue.client.xtrim(queue.key("events"), maxlen=1, approximate=False)
    with pytest.raises(InvalidValue, match="no longer kept"):
        await queue.engine.events(["mail"], cursor=first.cursor)


async def test_who_falls_behind_what_is_kept_is_told_so(queue: Queue):  # B7
    async with aclosing(await queue.engine.events(["mail"])) as events:
        await queue.add()
        await next_events(events, 1)
        await queue.engine.enqueue([NewJob(type="send", queue="mail")] * 300)
        queue.client.xtrim(queue.key("events"), maxlen=300, approximate=False)
        with pytest.raises(InvalidValue, match="no longer kept"):
            await next_events(events, 300)


async def test_a_queue_made_later_is_told_of_from_its_first_event(queue: Queue):  # B7, X5
    async with aclosing(await queue.engine.events(["mail/*"])) as events:
        made = await Queue(queue.engine, queue.client, queue.prefix, "mail/new").add()
        (first,) = await next_events(events, 1)
    assert (first.ref, first.name) == (made.ref, "waiting")


async def test_nothing_is_missed_while_the_server_is_away():  # B7
    with RedisServer(appendonly="yes") as server:
        async with App(engine=BullMQEngine(server.url)) as app:

            @app.task(queue="mail")
            async def send(n: int) -> int:
                return n

            async with app.events("mail", types=[Completed]) as events, app.worker():
                first = await send.enqueue(n=1)
                assert (await anext(events)).ref == first.ref
                server.restart()
                with server.client() as client:
                    client.ping()
                second = await send.enqueue(n=2)
                async with asyncio.timeout(DEADLINE):
                    assert (await anext(events)).ref == second.ref


async def test_an_app_tells_of_its_jobs_from_where_it_was_left(prefix: str, engine: BullMQEngine):  # B7
    async with App(engine=engine) as app:

        @app.task(queue="mail")
        async def send(n: int) -> int:
            return n

        async with app.events() as events:
            one = await send.enqueue(n=1)
            first = await anext(events)
        assert isinstance(first, Waiting)
        assert first.ref == one.ref
        two = await send.enqueue(n=2)
        async for event in app.events("mail", types=[Waiting], cursor=first.cursor):
            assert event.ref == two.ref
            break
