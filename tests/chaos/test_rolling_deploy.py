"""A rolling deploy: jobs of the next version reach workers of the version before, and the other way round (O8).

The short forms run with the other tests. The long one by ``make chaos``.
"""

from __future__ import annotations

import json

import pytest

from onward import NewJob
from tests.chaos.fleet import Fleet
from tests.worker.harness import eventually

OLD = """
from onward import App, JobContext
from tests.chaos.ledger import record

app = App(lease=2, {options})

@app.task(max_attempts={attempts})
async def same(context: JobContext, number: int) -> dict[str, object]:
    return record(context, "old", number)

@app.task(max_attempts={attempts})
async def gains_key(context: JobContext, number: int) -> dict[str, object]:
    return record(context, "old", number)

@app.task(max_attempts={attempts})
async def loses_key(context: JobContext, number: int, legacy: str) -> dict[str, object]:
    return record(context, "old", number)
"""
NEW = """
from onward import App, JobContext
from tests.chaos.ledger import record

app = App(lease=2, {options})

@app.task(max_attempts={attempts})
async def same(context: JobContext, number: int) -> dict[str, object]:
    return record(context, "new", number)

@app.task(max_attempts={attempts})
async def gains_key(context: JobContext, number: int, colour: str = "red") -> dict[str, object]:
    return record(context, "new", number)

@app.task(max_attempts={attempts})
async def loses_key(context: JobContext, number: int) -> dict[str, object]:
    return record(context, "new", number)

@app.task(max_attempts={attempts})
async def added(context: JobContext, number: int) -> dict[str, object]:
    return record(context, "new", number)
"""
REFUSE = 'unknown_fields="refuse"'
IGNORE = 'unknown_fields="ignore"'
FROM_OLD: dict[str, dict[str, object]] = {"same": {}, "gains_key": {}, "loses_key": {"legacy": "x"}}
FROM_NEW: dict[str, dict[str, object]] = {"same": {}, "gains_key": {"colour": "blue"}, "loses_key": {}, "added": {}}


async def enqueue(fleet: Fleet, payloads: dict[str, dict[str, object]], each: int) -> set[str]:
    """Add jobs as a producer of one version does."""
    new = [
        NewJob(type=type_, payload=json.dumps({"number": number, **more}))
        for type_, more in payloads.items()
        for number in range(each)
    ]
    return {handle.id for handle in await fleet.app.enqueue_many(new)}


@pytest.fixture(params=[REFUSE, IGNORE], ids=["refuse", "ignore"])
def options(request: pytest.FixtureRequest) -> str:
    """Unknown keys are refused, as they are by default on stores of our own, or ignored."""
    return str(request.param)


def write(fleet: Fleet, options: str, *, attempts: int = 5) -> None:
    """Write both versions."""
    for name, source in (("old", OLD), ("new", NEW)):
        fleet.write(name, source.format(options=options, attempts=attempts))


async def test_jobs_of_the_next_version_complete_when_its_worker_starts(fleet: Fleet, options: str):  # O8
    write(fleet, options, attempts=10)
    old = fleet.work("old:app")
    await fleet.serves("same")
    jobs = await enqueue(fleet, FROM_NEW, 3)
    # The old worker has put back what it does not know, and failed an attempt of what it cannot read.
    for task in ("added", "loses_key"):
        await eventually(lambda task=task: f'"task":"{task}","attempt":1,"outcome"' in fleet.log(), timeout=60)
    new = fleet.work("new:app")
    await fleet.serves("added")
    await fleet.stop(old)
    await fleet.ended(jobs)
    await fleet.stop(new)
    await fleet.verify(dict.fromkeys(jobs), retried=True)


async def test_jobs_of_the_version_before_complete_where_unknown_keys_are_ignored(fleet: Fleet):  # O8
    write(fleet, IGNORE)
    jobs = await enqueue(fleet, FROM_OLD, 5)
    new = fleet.work("new:app")
    await fleet.ended(jobs)
    await fleet.stop(new)
    await fleet.verify(dict.fromkeys(jobs, "new"))


@pytest.mark.slow
async def test_jobs_of_both_versions_complete_while_both_run(fleet: Fleet, options: str):  # O8
    write(fleet, options)
    workers = [fleet.work("old:app")]
    await fleet.serves("same")
    workers.append(fleet.work("new:app"))
    await fleet.serves("added")
    jobs = await enqueue(fleet, FROM_NEW, 20)
    if options == IGNORE:
        jobs |= await enqueue(fleet, FROM_OLD, 20)
    await fleet.ended(jobs)
    await fleet.stop(*workers)
    await fleet.verify(dict.fromkeys(jobs), retried=True)
