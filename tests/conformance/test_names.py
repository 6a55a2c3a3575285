"""A job is named by its queue and its id; by the id alone only where that names one job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.values import JobFilter
from onward.errors import InvalidValue
from onward.job import Job, JobRef
from onward.resources import DeadLetters, Jobs
from onward.results import Results
from tests.conformance.driver import LEASE, Driver

VERBS: dict[str, Callable[[Jobs, DeadLetters, Any], Awaitable[Any]]] = {
    "get": lambda jobs, _, which: jobs.get(which),
    "explain": lambda jobs, _, which: jobs.explain(which),
    "cancel": lambda jobs, _, which: jobs.cancel(which),
    "replay": lambda jobs, _, which: jobs.replay(which),
    "delete": lambda jobs, _, which: jobs.delete(which),
    "dead.replay": lambda _, dead, which: dead.replay(which),
    "dead.purge": lambda _, dead, which: dead.purge(which),
    "filter": lambda jobs, _, which: jobs.cancel(JobFilter(ids=(which,))),
}


def resources(driver: Driver) -> tuple[Jobs, DeadLetters]:
    async def opened() -> CheckedEngine:
        return driver.engine

    return Jobs(opened, lease=LEASE, results=lambda: Results(driver.engine, driver.engine.open)), DeadLetters(opened)


async def three(driver: Driver) -> list[JobRef]:
    """Jobs of three queues; where each queue counts for itself, they have the same id."""
    return [await driver.add(queue=queue) for queue in ("billing", "mail", "images")]


@pytest.mark.parametrize("verb", VERBS)
async def test_a_bare_id_is_refused_where_ids_are_not_global(driver: Driver, verb: str):  # O2
    refs = await three(driver)
    if driver.engine.capabilities.has_global_ids:
        assert await VERBS[verb](*resources(driver), refs[0].id) is not None
    else:
        before = await driver.jobs()
        with pytest.raises(InvalidValue, match="queue:id"):
            await VERBS[verb](*resources(driver), refs[0].id)
        assert await driver.jobs() == before


@pytest.mark.parametrize("named", ["text", "ref", "job"])
async def test_the_whole_name_reaches_one_job_on_every_engine(driver: Driver, named: str):  # O2
    refs = await three(driver)
    jobs, _ = resources(driver)
    found = await jobs.get(str(refs[0]))
    names: dict[str, str | JobRef | Job] = {"text": str(refs[0]), "ref": refs[0], "job": found}
    which = names[named]
    assert found.ref == refs[0]
    (changed,) = await jobs.cancel(which)
    assert changed.ref == refs[0]
    assert len(await driver.taken("mail", "images")) == 2
    if driver.engine.capabilities.has(Feature.DELAY):
        ref = await driver.add(queue="billing", delay=timedelta(hours=1))
        assert [each.ref for each in await jobs.delete(str(ref))] == [ref]
