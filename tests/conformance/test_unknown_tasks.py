"""A worker that does not have a job's task puts it back, and costs it nothing."""

from __future__ import annotations

from datetime import timedelta

from onward.lifecycle import JobStatus, Raised, Snoozed, decide
from onward.worker.unknown_tasks import UnknownTasks
from tests.conformance.driver import Driver, worker_info


async def test_a_job_whose_task_a_worker_lacks_is_put_back_at_no_cost(driver: Driver):  # O8
    ref = await driver.add(queue="mail", type="late")
    unknown_tasks = UnknownTasks(driver.engine, worker_id="worker-1", clock=driver.store.clock)
    delays = []
    for _ in range(2):
        await driver.engine.heartbeat(worker_info("other", queues=("mail",), types=("late",)), ())
        claim = await driver.take_one("mail")
        result = await unknown_tasks.result_of(claim, ())
        assert isinstance(result, Snoozed)
        delays.append(result.delay)
        assert await driver.end(claim, decide(claim, result))
        job = await driver.job(ref)
        assert (job.status, job.attempts) == (JobStatus.SCHEDULED, 0)
        await driver.wait(result.delay + timedelta(seconds=1))
    assert delays[0] < delays[1]
    claim = await driver.take_one("mail")
    assert claim.attempts == 1
    limit = driver.engine.capabilities.max_put_backs
    result = await unknown_tasks.result_of(claim, ())
    assert isinstance(result, Snoozed if limit is None else Raised)
    if isinstance(result, Raised):  # PGMQ: another read would make it a poison message
        assert (limit, result.retryable, result.failure.error_type) == (2, False, "NoHandler")


async def test_without_another_worker_a_job_is_put_back_unless_the_engine_says_otherwise(driver: Driver):  # O8
    await driver.add(queue="mail", type="late")
    await driver.engine.heartbeat(worker_info("other", queues=("video",), types=("late",)), ())
    await driver.engine.heartbeat(worker_info("worker-1", queues=("mail",), types=("greet",)), ())
    claim = await driver.take_one("mail")
    result = await UnknownTasks(driver.engine, worker_id="worker-1", clock=driver.store.clock).result_of(claim, ())
    assert isinstance(result, Raised if driver.engine.capabilities.put_back_needs_peer else Snoozed)


async def test_a_worker_that_has_just_registered_its_task_is_seen_before_a_job_fails(driver: Driver):  # O8
    unknown_tasks = UnknownTasks(driver.engine, worker_id="worker-1", clock=driver.store.clock)
    for _ in range(2):
        await driver.add(queue="mail", type="late")
    await unknown_tasks.result_of(await driver.take_one("mail"), ())
    await driver.engine.heartbeat(worker_info("other", queues=("mail",), types=("late",)), ())
    driver.store.clock.advance(1)
    assert isinstance(await unknown_tasks.result_of(await driver.take_one("mail"), ()), Snoozed)
