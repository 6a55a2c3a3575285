"""An idle worker: its claim waits at the server, so it asks no more often than BullMQ's own, and misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

import pytest
import redis
from msgspec.structs import replace

from onward.engine.values import Claim, ClaimRequest, Exchange, Exchanged, QueueChange, Settlement, SignalKind
from onward.engines.bullmq.blocking_claim import BlockingClaim
from onward.engines.bullmq.engine import BullMQEngine
from onward.errors import StoreUnavailable
from onward.job import NewJob
from onward.lifecycle import Complete, JobStatus, Snooze
from tests.engines.bullmq.queue import Queue
from tests.servers.redis import RedisServer, redis_url

DEADLINE = 20
JOB = NewJob(type="send", queue="mail")


@pytest.fixture(autouse=True)
def _no_wait_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the look that follows would find what nobody was told of."""
    monkeypatch.setattr("onward.engines.bullmq.blocking_claim._BLOCK_TIMEOUT", 3.0 * DEADLINE)


@asynccontextmanager
async def listening(engine: BullMQEngine, *queues: str) -> AsyncIterator[asyncio.Queue[SignalKind]]:
    """Have a worker listen on the queue for the length of a block."""
    received: asyncio.Queue[SignalKind] = asyncio.Queue()

    async def receive() -> None:
        async with aclosing(engine.signals(queues or ("mail",))) as signals:  # type: ignore[type-var]
            async for signal in signals:
                received.put_nowait(signal.kind)

    listener = asyncio.create_task(receive())
    await asyncio.sleep(0)
    try:
        yield received
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


@asynccontextmanager
async def opened(url: str, prefix: str) -> AsyncIterator[BullMQEngine]:
    """Have another engine, as another process would."""
    engine = BullMQEngine(url, prefix=prefix)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def request(slots: int = 1, *, worker: str = "w", queue: str = "mail") -> ClaimRequest:
    return ClaimRequest(worker_id=worker, queues=(queue,), slots=slots)


async def exchanged(engine: BullMQEngine, wanted: ClaimRequest, *done: Claim) -> Exchanged:
    """Do as a worker does."""
    settlements = tuple(Settlement(claim, Complete()) for claim in done)
    return await engine.exchange(Exchange(settlements=settlements, request=wanted))


async def until(holds: Callable[[], object]) -> None:
    """Wait for what another process or the server will do."""
    async with asyncio.timeout(DEADLINE):
        while not holds():
            await asyncio.sleep(0.001)


def is_blocked(blocking_claim: BlockingClaim, client: redis.Redis) -> bool:
    connections = (
        client.client_list(client_id=[str(blocking_claim._connection_id)]) if blocking_claim.reserved_slots else []
    )
    return any("b" in connection["flags"] for connection in connections)


async def block_claim(queue: Queue, slots: int = 1, *, worker: str = "w") -> None:
    """Claim in vain, so that a claim is pipelined at the server."""
    wanted, blocking_claim = request(slots, worker=worker), None
    async with asyncio.timeout(DEADLINE):
        while blocking_claim is None or not blocking_claim.reserved_slots:  # its connection is being made
            assert (await exchanged(queue.engine, wanted)).claimed.claims == ()
            blocking_claim = queue.engine._listener.blocking_claim_of(wanted)
            await asyncio.sleep(0.001)
    await until(partial(is_blocked, blocking_claim, queue.client))
    assert blocking_claim.reserved_slots == slots


async def wait_until_blocked(queue: Queue, wanted: ClaimRequest) -> None:
    """Claim in vain until the server is waited at, whatever old markers there are."""
    async with asyncio.timeout(DEADLINE):
        while not queue.client.info("clients")["blocked_clients"]:
            assert (await exchanged(queue.engine, wanted)).claimed.claims == ()
            await asyncio.sleep(0.01)


async def wait_for_work(received: asyncio.Queue[SignalKind]) -> None:
    """Wait for word of work."""
    async with asyncio.timeout(DEADLINE):
        while await received.get() is not SignalKind.WORK:
            pass


def scripts_run(client: redis.Redis) -> int:
    stats: dict[str, dict[str, int]] = client.info("commandstats")
    return stats.get("cmdstat_evalsha", {"calls": 0})["calls"]


def waiting(queue: Queue) -> object:
    return queue.client.lrange(queue.key("wait"), 0, -1)


async def test_while_a_claim_is_pipelined_nobody_asks_in_vain(queue: Queue):
    async with listening(queue.engine):
        await block_claim(queue, 3)
        before = scripts_run(queue.client)
        for _ in range(10):
            assert await exchanged(queue.engine, request(3)) == Exchanged()
        assert scripts_run(queue.client) == before


@pytest.mark.parametrize("whose", ["another's", "our own"])
async def test_a_job_comes_with_its_marker_and_is_had_without_asking(queue: Queue, prefix: str, whose: str):
    async with opened(redis_url(), prefix) as other, listening(queue.engine) as received:
        await block_claim(queue)
        engine = other if whose == "another's" else queue.engine
        (made,) = await engine.enqueue([JOB])
        await wait_for_work(received)
        before = scripts_run(queue.client)
        (claim,) = (await exchanged(queue.engine, request())).claimed.claims
        assert (claim.ref, scripts_run(queue.client)) == (made.ref, before)
        assert await queue.settle(claim, Complete())


async def test_who_gives_way_leaves_the_marker_to_others(queue: Queue):  # O8
    async with listening(queue.engine):
        for _ in range(50):
            await exchanged(queue.engine, replace(request(), gives_way=True))
            await asyncio.sleep(0.005)
            assert not queue.client.info("clients")["blocked_clients"]
        await wait_until_blocked(queue, request())  # as it does otherwise


@pytest.mark.parametrize("how", ["settle", "exchange"])
async def test_a_job_put_back_for_another_leaves_its_marker_to_that_worker(queue: Queue, how: str):  # O8, B1
    async with listening(queue.engine):
        await queue.engine.enqueue([JOB])
        (claim,) = (await queue.engine.claim(request())).claims
        await block_claim(queue)
        put_back = Settlement(claim, Snooze(timedelta(hours=1), is_put_back=True))
        if how == "settle":
            assert not await queue.engine.settle([put_back])
        else:
            assert not (await queue.engine.exchange(Exchange(settlements=(put_back,), request=None))).lost
        markers = queue.client.zrange(f"{queue.engine.keys.base('mail')}marker", 0, -1)
        assert "1" in markers, "the time at which it is due, for a worker of Node's that waits"
        await wait_until_blocked(queue, request())  # and then goes on as before


async def test_outcomes_leave_with_the_exchange_that_is_given_what_was_claimed(queue: Queue):
    first = await queue.add()
    (held,) = (await exchanged(queue.engine, request())).claimed.claims
    async with listening(queue.engine) as received:
        await block_claim(queue)
        second = await queue.add()
        await wait_for_work(received)
        answer = await exchanged(queue.engine, request(2), held)
        assert ([claim.ref for claim in answer.claimed.claims], answer.lost) == ([second.ref], frozenset())
    job = await queue.engine.get(first.ref)
    assert job is not None
    assert job.status is JobStatus.COMPLETED


async def test_what_was_claimed_is_not_lost_with_outcomes_that_cannot_be_stored(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):  # X3
    await queue.add()
    (held,) = (await exchanged(queue.engine, request())).claimed.claims
    async with listening(queue.engine) as received:
        await block_claim(queue)
        made = await queue.add()
        await wait_for_work(received)
        with monkeypatch.context() as away:
            away.setattr(queue.engine, "_exchange", unavailable)
            with pytest.raises(StoreUnavailable):
                await exchanged(queue.engine, request(), held)
        answer = await exchanged(queue.engine, request(), held)
        assert ([claim.ref for claim in answer.claimed.claims], answer.lost) == ([made.ref], frozenset())


async def unavailable(_: Exchange) -> Exchanged:
    raise StoreUnavailable("as if it were away")


async def test_who_exchanges_before_the_question_is_sent_asks_for_the_other_slots_only(queue: Queue):
    async with listening(queue.engine):
        await block_claim(queue, 3)
        queue.add_as_node("1")
        blocking_claim = queue.engine._listener.blocking_claim_of(request(3))
        assert blocking_claim is not None
        await blocking_claim.claim_now()
        await until(lambda: blocking_claim.has_claims)
        await exchanged(queue.engine, request(3))
        # The next pipelined claim has not been sent, and its two slots are reserved already.
        for number in range(2, 10):
            queue.add_as_node(str(number))
        assert len((await exchanged(queue.engine, request(3))).claimed.claims) == 1


async def test_reserved_slots_are_not_asked_for_as_well(queue: Queue):
    async with listening(queue.engine):
        await block_claim(queue, 3)
        for number in range(10):
            queue.add_as_node(str(number))  # without a marker: the pipelined claim does not see them yet
        assert len((await exchanged(queue.engine, request(5))).claimed.claims) == 2


async def test_a_pipelined_claim_gives_no_more_than_was_reserved(queue: Queue):
    async with listening(queue.engine) as received:
        await block_claim(queue, 2)
        await queue.engine.enqueue([JOB] * 30)
        await wait_for_work(received)
        assert len((await exchanged(queue.engine, request(2))).claimed.claims) == 2


async def test_what_nobody_comes_for_goes_back_to_the_head_of_its_line(queue: Queue):  # X3
    async with listening(queue.engine) as received:
        await block_claim(queue)
        first, second = await queue.engine.enqueue([JOB, JOB])
        await wait_for_work(received)
        await until(lambda: waiting(queue) == [second.id, first.id])
        assert (await exchanged(queue.engine, request())).claimed.claims[0].ref == first.ref


@pytest.mark.parametrize("how", ["the last stops to listen", "its worker leaves", "the engine is closed"])
async def test_what_comes_to_one_who_stops_goes_back(queue: Queue, prefix: str, how: str):  # X3
    async with opened(redis_url(), prefix) as engine:
        theirs = Queue(engine, queue.client, prefix, "mail")
        async with listening(engine):
            await block_claim(theirs)
            queue.add_as_node("1")  # the server finds it as it unblocks the connection
            if how == "its worker leaves":
                await engine.deregister("w")
            elif how == "the engine is closed":
                await engine.close()
        assert waiting(queue) == ["1"]
        assert {"event": "active", "jobId": "1", "prev": "waiting"} in queue.events()
        assert [claim.ref.id for claim in await queue.take()] == ["1"]


async def test_where_one_of_two_workers_leaves_the_other_is_still_brought_jobs(queue: Queue):
    async with listening(queue.engine) as received:
        await block_claim(queue, worker="one")
        await block_claim(queue, worker="two")
        await queue.engine.deregister("one")
        made = await queue.add()
        await wait_for_work(received)
        assert [claim.ref for claim in (await exchanged(queue.engine, request(worker="two"))).claimed.claims] == [
            made.ref
        ]


async def test_a_limited_queue_gives_nothing_to_a_pipelined_claim_and_its_worker_is_told(queue: Queue):
    await queue.engine.configure("mail", QueueChange(global_concurrency=5))
    async with listening(queue.engine) as received:
        await block_claim(queue)
        made = await queue.add()
        await wait_for_work(received)
        assert waiting(queue) == [made.id]
        assert [claim.ref for claim in (await exchanged(queue.engine, request())).claimed.claims] == [made.ref]


async def test_who_waits_is_told_when_more_may_run_at_once_of_which_no_marker_tells(queue: Queue):
    await queue.engine.configure("mail", QueueChange(global_concurrency=1))
    await queue.add()
    assert len(await queue.take()) == 1
    made = await queue.add()
    async with listening(queue.engine) as received:
        await block_claim(queue)
        await queue.engine.configure("mail", QueueChange(global_concurrency=2))
        await wait_for_work(received)
        assert [claim.ref for claim in (await exchanged(queue.engine, request())).claimed.claims] == [made.ref]


async def test_no_claim_is_pipelined_where_a_job_comes_due_meanwhile(queue: Queue):
    await queue.add(delay=timedelta(seconds=3))
    async with listening(queue.engine):
        await wait_until_blocked(queue, request())
        blocking_claim = queue.engine._listener.blocking_claim_of(request())
        assert blocking_claim is not None
        assert not blocking_claim.reserved_slots


async def test_no_claim_is_pipelined_on_a_pattern_which_may_mean_queues_to_come(queue: Queue):
    await queue.add(queue="mail/one")
    wanted = request(queue="mail/*")
    async with listening(queue.engine, "mail/*") as received:
        (held,) = (await exchanged(queue.engine, wanted)).claimed.claims
        assert await queue.settle(held, Complete())
        await wait_until_blocked(queue, wanted)
        while not received.empty():
            received.get_nowait()
        made = await queue.add(queue="mail/two")
        await wait_for_work(received)
        assert [claim.ref for claim in (await exchanged(queue.engine, wanted)).claimed.claims] == [made.ref]


async def test_a_server_that_forgets_the_scripts_while_a_claim_is_pipelined_is_told_them(queue: Queue, prefix: str):
    async with listening(queue.engine) as received:
        await block_claim(queue)
        queue.client.script_flush()
        async with opened(redis_url(), prefix) as other:
            (made,) = await other.enqueue([JOB])
        await wait_for_work(received)
        assert [claim.ref for claim in (await exchanged(queue.engine, request())).claimed.claims] == [made.ref]


async def test_a_worker_goes_on_when_its_connection_is_cut(queue: Queue):  # X3
    async with listening(queue.engine) as received:
        await block_claim(queue)
        blocking_claim = queue.engine._listener.blocking_claim_of(request())
        assert blocking_claim is not None
        queue.client.client_kill_filter(_id=str(blocking_claim._connection_id))
        made = await queue.add()
        found = await exchanged(queue.engine, request())
        async with asyncio.timeout(DEADLINE):
            while not found.claimed.claims:
                await received.get()
                found = await exchanged(queue.engine, request())
        assert [claim.ref for claim in found.claimed.claims] == [made.ref]


async def test_who_may_not_unblock_a_connection_waits_and_stops_all_the_same(prefix: str):
    with RedisServer(port=True) as server:
        with server.client() as client:
            client.execute_command(
                "ACL", "SETUSER", "few", "on", ">secret", "~*", "&*", "+@all", "-client", "+client|setname",
                "+client|setinfo",
            )  # fmt: skip
        parts = urlsplit(server.tcp_url)
        async with opened(f"redis://few:secret@{parts.hostname}:{parts.port}", prefix) as engine:
            async with listening(engine) as received:
                assert (await exchanged(engine, request())).claimed.claims == ()
                (made,) = await engine.enqueue([JOB])
                await wait_for_work(received)
                (claim,) = (await exchanged(engine, request())).claimed.claims
                assert claim.ref == made.ref
            assert not await engine.settle([Settlement(claim, Complete())])
