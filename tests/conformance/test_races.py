"""What must hold when many act at once: several handles on one store, threads, and other processes."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from onward.engine.capabilities import Feature
from onward.engine.values import Claim, JobFilter, Rate, Retention
from onward.job import Enqueued, JobRef, NewJob
from onward.lifecycle import Complete, JobStatus, Retry
from tests.conformance import processes
from tests.conformance.cases import BOOM, EngineCase, Store, needs
from tests.conformance.driver import LEASE, PAST_LEASE, Driver, new_job
from tests.conformance.processes import ProcessGroup, eventually

CALLERS = 50


async def desks(driver: Driver, count: int) -> list[Driver]:
    """Open further handles on the same store."""
    return [driver, *[Driver(driver.store, await driver.store.connect()) for _ in range(count - 1)]]


def at_once(desks: list[Driver], jobs: list[NewJob]) -> list[list[Enqueued]]:
    """Enqueue the same jobs from fifty threads that all begin together."""
    gate = threading.Barrier(CALLERS)

    def call(number: int) -> list[Enqueued]:
        gate.wait()
        return desks[number % len(desks)].engine.enqueue_sync(jobs)

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(call, range(CALLERS)))


# Keys -----------------------------------------------------------------------------------------------------------------


@needs(Feature.IDEMPOTENCY)
async def test_fifty_callers_with_one_key_make_one_job(driver: Driver):  # O4
    many = await desks(driver, 5)
    answers = await asyncio.gather(*[many[n % 5].enqueue(idempotency_key="one") for n in range(CALLERS)])
    assert len({answer.ref for answer in answers}) == 1
    assert sum(answer.is_new for answer in answers) == 1
    assert len(await driver.jobs()) == 1


@needs(Feature.IDEMPOTENCY)
async def test_fifty_threads_with_one_key_make_one_job(driver: Driver):  # O4
    answers = await asyncio.to_thread(at_once, await desks(driver, 5), [new_job(idempotency_key="one")])
    assert sum(answer.is_new for (answer,) in answers) == 1
    assert len({answer.ref for (answer,) in answers}) == len(await driver.jobs()) == 1


@needs(Feature.IDEMPOTENCY)
async def test_fifty_callers_with_overlapping_bulks_make_one_job_for_each_key(driver: Driver):  # O4
    many = await desks(driver, 5)
    keys = [f"k{number}" for number in range(60)]

    async def bulk(number: int) -> list[Enqueued]:
        own = [new_job(idempotency_key=keys[(number + step) % 60]) for step in range(20)]
        return await many[number % 5].engine.enqueue([*own, new_job()])

    answers = await asyncio.gather(*[bulk(number) for number in range(CALLERS)])
    jobs = await driver.jobs()
    assert Counter(job.idempotency_key or "" for job in jobs) == {**dict.fromkeys(keys, 1), "": CALLERS}
    standing = {job.idempotency_key: job.ref for job in jobs}
    for number, row in enumerate(answers):
        assert [answer.ref for answer in row[:20]] == [standing[keys[(number + step) % 60]] for step in range(20)]
    assert sum(answer.is_new for row in answers for answer in row) == 60 + CALLERS


@needs(Feature.DEDUPLICATION)
async def test_fifty_threads_with_one_dedupe_key_make_one_job(driver: Driver):  # H5
    await driver.make("default")
    jobs = [new_job(dedupe_key="a"), new_job(dedupe_key="b"), new_job(dedupe_key="a")]
    answers = await asyncio.to_thread(at_once, await desks(driver, 5), jobs)
    assert Counter(job.dedupe_key for job in await driver.jobs()) == {"a": 1, "b": 1}
    assert sum(answer.is_new for row in answers for answer in row) == 2


async def test_one_callers_bad_job_harms_no_other_caller(driver: Driver):  # X3
    await driver.make("default")

    async def call(number: int) -> bool:
        try:
            await driver.engine.enqueue([new_job(payload=str(number)), new_job(priority=-(number % 2))])
        except ValueError:
            return False
        return True

    written = await asyncio.gather(*[call(number) for number in range(CALLERS)])
    assert written == [number % 2 == 0 for number in range(CALLERS)]
    assert len(await driver.jobs()) == CALLERS


# Claims ---------------------------------------------------------------------------------------------------------------


async def test_no_job_is_claimed_twice_however_many_claim(driver: Driver):  # O3
    refs = await driver.add_many(400)
    ledger: list[Claim] = []

    async def claimer(number: int, own: Driver) -> None:
        while claims := await own.take(worker=f"worker-{number}", slots=1 + number % 4):
            ledger.extend(claims)

    await asyncio.gather(*[claimer(number, own) for number, own in enumerate(await desks(driver, 8))])
    assert sorted(claim.ref for claim in ledger) == sorted(refs)
    assert len({claim.token for claim in ledger}) == 400
    assert {job.attempts for job in await driver.jobs()} == {1}


async def test_processes_that_drain_together_never_hold_the_same_job(driver: Driver, case: EngineCase):  # O3
    refs = await driver.add_many(300)
    with ProcessGroup(case, driver.store.address) as group:
        had = [claim for member in group.begin(processes.drain, 3) for claim in member.hear()]
    assert Counter(id for id, _ in had) == {ref.id: 1 for ref in refs}
    assert {job.status for job in await driver.jobs()} == {JobStatus.COMPLETED}


@needs(Feature.CONCURRENCY)
async def test_a_limit_holds_however_many_claim_at_once(driver: Driver):
    await driver.set("q", global_concurrency=5)
    await driver.add_many(100, queue="q")
    claims = await asyncio.gather(*[own.take("q", slots=3) for own in await desks(driver, 8) for _ in range(2)])
    assert sum(len(taken) for taken in claims) == 5


@needs(Feature.RATE)
async def test_a_slot_is_given_once_however_many_claim_at_once(driver: Driver):  # P6
    await driver.set("q", rate=Rate(1, timedelta(minutes=1)))
    await driver.add_many(50, queue="q")
    claims = await asyncio.gather(*[own.take("q", slots=3) for own in await desks(driver, 8) for _ in range(2)])
    assert sum(len(taken) for taken in claims) == 1


# Ends -----------------------------------------------------------------------------------------------------------------


async def test_of_settle_and_rescue_exactly_one_is_recorded(driver: Driver):  # X3, O7
    first, second = await desks(driver, 2)
    term = await first.lead(lease=timedelta(days=9))
    for _ in range(30):
        ref = await driver.add()
        claim = await first.take_one()
        await driver.advance(PAST_LEASE)
        recorded, batch = await asyncio.gather(
            first.end(claim, Complete()),
            second.rescue_as(term),
        )
        assert batch.changed == (not recorded)
        job = await driver.job(ref)
        assert (job.status, job.attempts) == ((JobStatus.COMPLETED, 1) if recorded else (JobStatus.PENDING, 0))
        await driver.engine.delete(JobFilter(refs=(ref,)))


@needs(Feature.CANCELLED_STATE)
async def test_of_cancel_and_settle_exactly_one_is_recorded(driver: Driver):  # X3
    first, second = await desks(driver, 2)
    for _ in range(30):
        ref = await driver.add()
        claim = await first.take_one()
        recorded, changed = await asyncio.gather(first.end(claim, Complete()), second.cancel(ref))
        assert len(changed) == (not recorded)
        job = await driver.job(ref)
        assert job.status is (JobStatus.COMPLETED if recorded else JobStatus.CANCELLED)


async def test_of_two_outcomes_for_one_claim_exactly_one_is_recorded(driver: Driver):  # X3
    first, second = await desks(driver, 2)
    for _ in range(20):
        ref = await driver.add(max_attempts=9)
        claim = await first.take_one()
        done, retried = await asyncio.gather(
            first.end(claim, Complete()), second.end(claim, Retry(timedelta(hours=1), BOOM))
        )
        assert done is not retried
        assert await driver.state(ref) is (JobStatus.COMPLETED if done else JobStatus.SCHEDULED)


async def test_of_cancel_and_claim_the_job_is_cancelled_either_way(driver: Driver):  # X3
    first, second = await desks(driver, 2)
    for _ in range(20):
        ref = await driver.add()
        claims, changed = await asyncio.gather(first.take(), second.cancel(ref))
        assert [change.ref for change in changed] == [ref]
        assert changed[0].before is (JobStatus.RUNNING if claims else JobStatus.PENDING)
        for claim in claims:
            assert not await first.end(claim, Complete())


@needs(Feature.LEADER)
async def test_of_many_candidates_one_leads(driver: Driver):  # O6
    many = await desks(driver, 8)
    for _ in range(5):
        terms = await asyncio.gather(*[own.engine.elect(f"c{n}", lease=LEASE) for n, own in enumerate(many)])
        assert sum(term is not None for term in terms) == 1
        await driver.advance(PAST_LEASE)


# Schema ---------------------------------------------------------------------------------------------------------------


async def test_ten_handles_can_make_the_schema_at_once(store: Store):  # O9
    handles = await asyncio.gather(*[store.connect() for _ in range(10)])
    assert len({(await handle.check()).schema for handle in handles}) == 1
    own = [Driver(store, handle) for handle in handles]
    refs = [await driver.add() for driver in own]
    assert {job.ref for job in await own[0].jobs()} == set(refs)


async def test_ten_processes_can_make_the_schema_at_once(store: Store, case: EngineCase):  # O9
    with ProcessGroup(case, store.address) as group:
        schemas = [member.hear() for member in group.begin(processes.migrate, 10)]
    handle = await store.connect()
    assert set(schemas) == {(await handle.check()).schema}
    assert (await Driver(store, handle).enqueue()).is_new


async def test_opening_again_changes_nothing(driver: Driver):  # O9
    ref: JobRef = await driver.add()
    before = await driver.snapshot()
    await driver.store.connect()
    await driver.engine.open()
    assert await driver.snapshot() == before
    assert (await driver.take_one()).ref == ref


# A leader that was stopped --------------------------------------------------------------------------------------------


@needs(Feature.LEADER)
async def test_a_leader_stopped_by_the_kernel_past_its_lease_writes_nothing_when_it_goes_on(
    store: Store, case: EngineCase
):  # O6
    engine = case.attach(store.address)
    await engine.open()
    try:
        driver = Driver(store, engine)
        lease = timedelta(seconds=1)
        with ProcessGroup(case, store.address) as group:
            (leader,) = group.begin(processes.lead, 1)
            leader.say(lease)
            old = leader.hear()
            leader.stop()

            await driver.make("due")
            await engine.enqueue([new_job(queue="due", delay=timedelta(milliseconds=1))])
            await driver.add(queue="lost")
            await driver.take_one("lost", lease=timedelta(milliseconds=1))
            if prunes := case.capabilities.has(Feature.RETENTION):
                await driver.set("old", retention=Retention(completed=timedelta(0)))
                await driver.add(queue="old")
                await driver.end(await driver.take_one("old"), Complete())

            new = await eventually(lambda: engine.elect("next", lease=timedelta(minutes=5)))
            assert new.number > old.number
            before = await driver.snapshot()

            leader.say("work")
            leader.go_on()
            assert leader.hear() == [0, 0, 0]
            assert leader.hear() is None
            assert await driver.snapshot() == before

            done = (
                await engine.promote(new),
                await driver.rescue_as(new),
                await engine.prune(new),
            )
            assert [batch.changed for batch in done] == [driver.promoted(1), 1, int(prunes)]
    finally:
        await engine.close()
