"""Names and places that no job and no page ever had find nothing, or are refused, in our words and not the driver's."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from onward.engine.values import JobFilter
from onward.errors import InvalidValue
from onward.job import JobRef
from tests.conformance.driver import EVERY, Driver

PLACES = ["9" * 25, "9" * 5000, str(2**63), "-1", "1.5", ""]


@pytest.mark.parametrize(
    "written",
    [
        str.upper,
        "urn:uuid:{}".format,
        "{{{}}}".format,
        lambda text: UUID(text).hex,
        lambda _: "\N{ARABIC-INDIC DIGIT THREE}" * 32,
    ],
    ids=["upper", "urn", "braces", "hex", "digits"],
)
async def test_an_id_in_another_form_is_no_job_of_ours(driver: Driver, written: Callable[[str], str]):
    ref = await driver.add()
    odd = written(ref.id)
    assert await driver.engine.get(odd) is None
    assert await driver.engine.get(JobRef(ref.queue, odd)) is None
    assert await driver.found(JobFilter(ids=(odd,))) == set()
    assert await driver.found(JobFilter(ids=(odd, ref.id))) == {ref}
    assert await driver.found(JobFilter(refs=(JobRef(ref.queue, odd),))) == set()
    assert await driver.engine.logs(JobRef(ref.queue, odd)) == []
    assert await driver.engine.dependency_jobs(JobRef(ref.queue, odd)) == []
    assert await driver.cancel(JobRef(ref.queue, odd)) == []


@pytest.mark.parametrize("after", PLACES, ids=lambda after: after[:30])
async def test_a_place_that_no_page_of_the_archive_or_of_batches_gave_is_refused(driver: Driver, after: str):
    with pytest.raises(InvalidValue, match="must be the next_cursor"):
        await driver.engine.archived(EVERY, cursor=after)
    with pytest.raises(InvalidValue, match="cursor"):
        await driver.engine.batches(cursor=after)


async def test_the_last_place_that_there_can_be_is_one(driver: Driver):
    ref = await driver.add()
    assert [job.ref for job in (await driver.engine.find(EVERY, cursor=str(2**63 - 1))).items] == [ref]
