"""What a worker that waits asks when it is told of a queue: that queue alone; and all of them soon after."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from onward.backoff import Backoff
from onward.engine.values import Claim, ClaimRequest, Claims, Exchange, Rate, Settlement
from onward.engines.postgres import claims, settle
from onward.engines.postgres.engine import PostgresEngine
from onward.errors import StoreUnavailable
from onward.job import JobRef
from onward.lifecycle import Complete, JobStatus, Release
from onward.pg.listener import Listener
from tests.conformance.driver import LEASE, Driver
from tests.conformance.postgres_case import PostgresStore

REQUEST = ClaimRequest(worker_id="w", slots=10, lease=LEASE)


async def claim_as_worker(driver: Driver, request: ClaimRequest) -> Claims:
    """Ask as a worker does."""
    return (await driver.engine.exchange(Exchange(request=request))).claimed


async def claim_after_notice(driver: Driver, notice: str, request: ClaimRequest = REQUEST) -> tuple[Claims, bool]:
    """Claim when something is told; say whether only queues with news were asked."""
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    if notice:
        engine._on_notice(notice)
    claims = await claim_as_worker(driver, request)
    return claims, not engine._rotation(request.queues, request.worker_id).is_full_scan


@pytest.fixture(autouse=True)
def listening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody listens: what is told is told by the tests. And no look takes long, however busy the machine is."""
    monkeypatch.setattr(Listener, "is_listening", property(lambda _: True))
    monkeypatch.setattr(claims, "_SLOW_FULL_SCAN", math.inf)


@pytest.fixture
def slow_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at all queues takes long."""
    monkeypatch.setattr(claims, "_SLOW_FULL_SCAN", -1.0)


def names(claims: Claims) -> list[str]:
    return [claim.ref.queue for claim in claims.claims]


def facts_of(claim: Claim) -> Any:
    return msgspec.structs.replace(claim, ref=JobRef(claim.ref.queue, "any"), token=())


async def test_a_job_that_is_told_of_comes_as_it_would_in_a_tour(driver: Driver):  # H9
    fields = {"type": "odd", "queue": "q", "org_id": "o", "priority": 3, "max_attempts": 2, "backoff": Backoff()}
    await driver.add(**fields, trace="{}")
    by_tour = (await claim_as_worker(driver, REQUEST)).claims[0]
    ref = await driver.add(**fields, trace="{}")
    claims, is_alone = await claim_after_notice(driver, "q")
    assert is_alone
    assert [facts_of(claim) for claim in claims.claims] == [facts_of(by_tour)]
    job = await driver.job(ref)
    assert (job.attempts, job.worker_id) == (1, "w")
    await driver.advance(LEASE)
    assert (await driver.rescue()).changed == 2  # X2


async def test_its_more_urgent_jobs_come_first_and_no_more_than_there_is_room_for(driver: Driver):  # O3
    await claim_as_worker(driver, REQUEST)
    later = await driver.add_many(3, queue="q")
    await driver.advance(1)
    first = await driver.add_many(2, queue="q", priority=5)
    await driver.add(queue="q", start_by=driver.now + timedelta(seconds=1), priority=9)
    await driver.advance(2)
    claims, is_alone = await claim_after_notice(
        driver, "q", msgspec.structs.replace(REQUEST, slots=3, prefetch_started=1)
    )
    assert is_alone
    assert [claim.ref for claim in claims.claims] == [*first, *later[:2]]
    await driver.add(queue="r")
    claims, is_alone = await claim_after_notice(driver, "q")
    assert not is_alone  # there was no room left: there may be more, and elsewhere too
    assert names(claims) == ["q", "r"]


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"paused": True}, 0),
        ({"global_concurrency": 1}, 1),
        ({"rate": Rate(1, timedelta(minutes=1))}, 1),
        ({"lease": timedelta(seconds=7)}, 2),
        ({"weight": 3}, 2),
    ],
)
async def test_what_is_said_of_the_queue_holds(driver: Driver, settings: dict[str, Any], count: int):  # H9
    await driver.set("q", **settings)
    await claim_as_worker(driver, REQUEST)
    refs = await driver.add_many(2, queue="q")
    claims, _ = await claim_after_notice(driver, "q")
    assert len(claims.claims) == count
    if "lease" in settings:
        await driver.advance(8)
        assert (await driver.rescue()).changed == len(refs)


@pytest.mark.parametrize("notice", ["q,r", "*", "?", "q,*"])
async def test_where_work_may_be_in_several_queues_all_are_asked(driver: Driver, notice: str):  # H9
    await claim_as_worker(driver, REQUEST)
    for queue in ("q", "r"):
        await driver.add(queue=queue)
    claims, is_alone = await claim_after_notice(driver, notice)
    assert not is_alone
    assert names(claims) == ["q", "r"]


async def test_all_queues_are_asked_again_soon(driver: Driver, monkeypatch: pytest.MonkeyPatch):  # H9
    now = 1000.0
    monkeypatch.setattr("onward.engines.postgres.claims.monotonic", lambda: now)
    await claim_as_worker(driver, REQUEST)
    await driver.add(queue="unheard")
    now += 0.3
    claims, is_alone = await claim_after_notice(driver, "q")
    assert (claims.claims, is_alone) == ((), True)
    assert claims.retry_after == pytest.approx(0.2)
    now += 0.2
    claims, is_alone = await claim_after_notice(driver, "q")
    assert (names(claims), is_alone) == (["unheard"], False)


async def test_a_queue_that_has_the_same_lane_twice_gives_all_there_is_room_for(driver: Driver, store: PostgresStore):
    await claim_as_worker(driver, REQUEST)
    refs = [*await driver.add_many(3, queue="q", priority=5), *await driver.add_many(9, queue="q")]
    with psycopg.connect(store.url) as connection:  # as two may who add a queue's first jobs at the same time
        connection.execute(f"insert into {store.schema}.lane (queue, priority) values ('q', 5)")
    claims, is_alone = await claim_after_notice(driver, "q")
    assert is_alone
    assert [claim.ref for claim in claims.claims] == refs[:10]


async def test_a_queue_that_is_known_and_of_which_nothing_is_said_takes_no_tour(driver: Driver):
    await driver.set("q", weight=1)
    await claim_as_worker(driver, REQUEST)
    claims, is_alone = await claim_after_notice(driver, "q")
    assert (claims.claims, is_alone) == ((), True)


@pytest.mark.parametrize("starts", [False, True])
async def test_news_of_which_nothing_came_because_the_store_failed_may_be_anywhere(
    driver: Driver, slow_scans: None, starts: bool
):  # X3
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    await claim_as_worker(driver, REQUEST)
    ref = await driver.add(queue="q")
    claim = await driver.take_one("q")
    engine._on_notice("q")
    exchange = Exchange(starts=(claim,) if starts else (), request=REQUEST)
    asking = settle.exchange(engine.schema, exchange, engine._rotation(REQUEST.queues, "w"))
    next(asking)
    with pytest.raises(StoreUnavailable):
        asking.throw(StoreUnavailable())
    await driver.end(claim, Release())
    claims, _ = await claim_after_notice(driver, "")
    assert [claim.ref for claim in claims.claims] == [ref]


async def test_each_worker_goes_its_own_way_round_and_is_forgotten_when_it_leaves(driver: Driver):  # H9
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    full, idle = (msgspec.structs.replace(REQUEST, worker_id=who, slots=1) for who in ("full", "idle"))
    await driver.add_many(2, queue="q")
    await engine.exchange(Exchange(request=full))
    await engine.exchange(Exchange(request=msgspec.structs.replace(idle, slots=5)))
    assert [engine._rotation(each.queues, each.worker_id).has_more for each in (full, idle)] == [True, False]
    for who in ("full", "idle"):
        await engine.deregister(who)
    assert not engine._rotations


async def test_those_who_ask_once_go_one_way_together(driver: Driver):  # H7, H9
    """A tick is another worker each time: if each began anew, the last queues would wait for ever."""
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    for queue in ("a", "a", "a", "b", "c"):
        await driver.add(queue=queue)
    once = [msgspec.structs.replace(REQUEST, worker_id=f"tick-{no}", slots=1) for no in range(3)]
    assert [names(await engine.claim(request)) for request in once] == [["a"], ["b"], ["c"]]
    assert len(engine._rotations) == 1


async def test_who_holds_a_limited_queue_waits_for_no_other(driver: Driver, store: PostgresStore):
    for queue in ("a", "z"):
        await driver.set(queue, global_concurrency=5)
        await driver.add(queue=queue)
    claim = f"select jobs from {store.schema}.claim(%s, 'w', array[''], array['~'], 5, 0, 0, 1000000, '', 0, 'z')"
    with psycopg.connect(store.url) as other, psycopg.connect(store.url) as connection:
        other.execute(f"select from {store.schema}.queue where name = 'a' for update")
        connection.execute("set lock_timeout = '5s'")
        ((jobs,),) = connection.execute(claim, [store.clock.micros()]).fetchall()
    assert [visit[0] for visit in msgspec.json.decode(jobs)] == ["z"]


async def test_a_claim_of_a_suspect_is_no_look_at_the_queues(driver: Driver):  # H9
    await claim_as_worker(driver, msgspec.structs.replace(REQUEST, slots=1, alone=True))
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    engine._rotation(REQUEST.queues, "w").needs_full_scan = False
    await driver.add(queue="unheard")
    claims, is_alone = await claim_after_notice(driver, "q")
    assert (names(claims), is_alone) == (["unheard"], False)


async def test_who_does_not_listen_asks_all(driver: Driver, monkeypatch: pytest.MonkeyPatch, slow_scans: None):  # H9
    monkeypatch.setattr(Listener, "is_listening", property(lambda _: False))
    await claim_as_worker(driver, REQUEST)
    await driver.add(queue="unheard")
    claims, is_alone = await claim_after_notice(driver, "q")
    assert (names(claims), is_alone) == (["unheard"], False)


async def test_where_a_tour_is_long_only_notified_queues_are_asked(driver: Driver, slow_scans: None):  # H9
    await claim_as_worker(driver, REQUEST)
    for queue in ("unheard", "a", "b"):
        await driver.add_many(2, queue=queue)
    claims, is_alone = await claim_after_notice(driver, "b,a", msgspec.structs.replace(REQUEST, slots=3))
    assert is_alone
    assert sorted(names(claims)) == ["a", "a", "b"]
    claims, is_alone = await claim_after_notice(driver, "b")
    assert (sorted(names(claims)), is_alone) == (["b", "unheard", "unheard"], False)  # there was no room left


async def test_where_a_tour_is_long_and_nothing_is_new_nobody_is_asked(driver: Driver, slow_scans: None):
    await driver.add(queue="q")
    (claim,) = (await claim_as_worker(driver, REQUEST)).claims
    await driver.add(queue="unheard")
    answer = await driver.engine.exchange(Exchange(settlements=(Settlement(claim, Complete()),), request=REQUEST))
    assert (answer.lost, answer.claimed.claims, (answer.claimed.retry_after or 0) > 0) == (frozenset(), (), True)
    assert (await driver.job(claim.ref)).status is JobStatus.COMPLETED
    claims, _ = await claim_after_notice(driver, "")
    assert (claims.claims, (claims.retry_after or 0) > 0) == ((), True)
    claims, _ = await claim_after_notice(driver, "unheard")
    assert names(claims) == ["unheard"]


async def test_the_longer_a_tour_takes_the_later_comes_the_next(driver: Driver):  # H9
    await claim_as_worker(driver, REQUEST)
    engine = driver.engine.inner
    assert isinstance(engine, PostgresEngine)
    rotation = engine._rotation(REQUEST.queues, "w")
    rotation.full_scan_time = 0.001
    assert 0 < rotation.next_full_scan_in() <= 0.5
    rotation.full_scan_time = 0.015
    assert 1 < rotation.next_full_scan_in() <= 1.5
    rotation.full_scan_time = 5.0  # something held it up
    assert 1.5 < rotation.next_full_scan_in() <= 2


def test_what_is_told_of_often_is_kept_in_mind_once():  # H9
    rotation = claims.RoundRobin(needs_full_scan=False)
    for _ in range(30):
        rotation.add_notice(("q/*",), ["q/1", "q/2", "r", "q/3"])
    assert (list(rotation.notified), rotation.needs_full_scan) == (["q/1", "q/2", "q/3"], False)
    rotation.add_notice(("q/*",), [f"r/{n}" for n in range(200)])
    assert (len(rotation.notified), rotation.needs_full_scan) == (3, False)
    rotation.add_notice(("q/*",), [f"q/{n}" for n in range(200)])
    assert (len(rotation.notified), rotation.needs_full_scan) == (100, True)


async def test_while_something_is_waited_for_all_queues_are_asked(driver: Driver):  # H9
    await driver.set("slow", rate=Rate(1, timedelta(hours=1)))
    await driver.add_many(2, queue="slow")
    claims = await claim_as_worker(driver, REQUEST)
    assert (len(claims.claims), claims.retry_after is None) == (1, False)
    await driver.add(queue="q")
    claims, is_alone = await claim_after_notice(driver, "q")
    assert (names(claims), is_alone, claims.retry_after is None) == (["q"], False, False)


async def test_a_claim_says_whether_others_work_too(driver: Driver):
    """What a worker does to be quicker where it is alone costs the store more."""

    async def is_shared_load(worker: str) -> bool:
        await driver.add()
        (claim,) = (claims := await claim_as_worker(driver, msgspec.structs.replace(REQUEST, worker_id=worker))).claims
        answer = await driver.engine.exchange(
            Exchange(
                settlements=(Settlement(claim, Release()),),
                request=msgspec.structs.replace(REQUEST, worker_id=worker),
            )
        )
        assert answer.claimed.is_shared_load is claims.is_shared_load  # whichever way it was asked
        (claim,) = answer.claimed.claims
        await driver.end(claim, Complete())
        return claims.is_shared_load

    assert not await is_shared_load("w")
    await driver.beat(worker="w")
    assert not await is_shared_load("w")
    assert await is_shared_load("another")
    await driver.beat(worker="another")
    assert await is_shared_load("w")
    await driver.engine.deregister("another")
    assert not await is_shared_load("w")
