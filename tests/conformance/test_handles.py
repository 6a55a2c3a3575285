"""A handle from the name of a job, and the error of one that failed, on every engine."""

from __future__ import annotations

import pytest

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.errors import InvalidValue, JobFailed, JobNotFound
from onward.handle import JobHandle
from onward.job import JobRef
from onward.lifecycle import Bury, Complete, Failure
from onward.resources import Jobs
from onward.results import Results
from tests.conformance.driver import LEASE, Driver

LONG = 60


def jobs_of(driver: Driver) -> Jobs:
    async def opened() -> CheckedEngine:
        return driver.engine

    return Jobs(opened, lease=LEASE, results=lambda: Results(driver.engine, driver.engine.open))


def names_of(driver: Driver, ref: JobRef) -> list[str | JobRef]:
    return [ref, str(ref), *([ref.id] if driver.engine.capabilities.has_global_ids else [])]


async def test_a_handle_from_a_name_reads_and_waits(driver: Driver):  # O2
    ref = await driver.add(queue="mail")
    handles = [jobs_of(driver).handle(name) for name in names_of(driver, ref)]
    for handle in handles:
        assert (handle.id, handle.is_new, handle.enqueue_status) == (ref.id, False, None)
        assert (await handle.info()).ref == ref
        assert handle.ref == ref  # known by now, also where an id alone was given
    claim = await driver.take_one("mail")
    await driver.end(claim, Complete('"done"'))
    has_results = driver.engine.capabilities.has(Feature.RESULTS)
    for name in names_of(driver, ref):
        handle = jobs_of(driver).handle(name)
        assert (await handle.wait(timeout=LONG)).status == driver.shown((await driver.job(ref)).status)
        assert await handle.result(timeout=LONG) == ("done" if has_results else None)
        assert [job.ref async for job in jobs_of(driver).handle(name).watch()] == [ref]
        assert not await jobs_of(driver).handle(name).cancel()


async def test_a_handle_from_an_id_alone_is_refused_where_ids_are_not_global(driver: Driver):  # O2
    ref = await driver.add(queue="mail")
    if driver.engine.capabilities.has_global_ids:
        assert (await jobs_of(driver).handle(ref.id).info()).ref == ref
    else:
        with pytest.raises(InvalidValue, match="queue:id"):
            jobs_of(driver).handle(ref.id)


async def test_a_handle_cancels_its_job(driver: Driver):
    for number in range(len(names_of(driver, JobRef("mail", "1")))):
        ref = await driver.add(queue="mail")
        handle = jobs_of(driver).handle(names_of(driver, ref)[number])
        assert await handle.cancel(reason="enough")
    assert not await driver.taken("mail")


async def test_a_handle_of_no_job_says_so(driver: Driver):
    await driver.make("mail")
    missing = JobRef("mail", (await driver.add(queue="mail")).id)
    await driver.cancel(missing)
    await jobs_of(driver).delete(missing)
    with pytest.raises(JobNotFound, match="is gone"):
        await jobs_of(driver).handle(missing).info()


async def test_a_failed_job_raises_with_its_last_error(driver: Driver):  # O8
    ref = await driver.add(queue="mail", max_attempts=1)
    claim = await driver.take_one("mail")
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in send\nValueError: no such card'
    await driver.end(claim, Bury(Failure("ValueError", "no such card", trace)))
    handle: JobHandle[object] = jobs_of(driver).handle(ref)
    with pytest.raises(JobFailed, match="no such card") as caught:
        await handle.result(timeout=LONG)
    error = caught.value
    assert error.job.ref == ref
    assert (error.error_type, error.message, error.attempts) == ("ValueError", "no such card", 1)
    assert error.traceback is None or "no such card" in error.traceback
