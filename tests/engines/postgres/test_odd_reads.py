"""Names and places that no job and no page ever had find nothing, or are refused, in our words and not the driver's."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from onward.engine.values import JobFilter
from onward.errors import InvalidJob
from onward.job import JobRef
from tests.conformance.driver import EVERY, Desk

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
async def test_an_id_in_another_form_is_no_job_of_ours(desk: Desk, written: Callable[[str], str]):
    ref = await desk.add()
    odd = written(ref.id)
    assert await desk.engine.get(odd) is None
    assert await desk.engine.get(JobRef(ref.queue, odd)) is None
    assert await desk.found(JobFilter(ids=(odd,))) == set()
    assert await desk.found(JobFilter(ids=(odd, ref.id))) == {ref}
    assert await desk.found(JobFilter(refs=(JobRef(ref.queue, odd),))) == set()
    assert await desk.engine.log_lines(JobRef(ref.queue, odd)) == []
    assert await desk.engine.parents(JobRef(ref.queue, odd)) == []
    assert await desk.cancel(JobRef(ref.queue, odd)) == []


@pytest.mark.parametrize("after", PLACES, ids=lambda after: after[:30])
async def test_a_place_that_no_page_of_the_archive_or_of_batches_gave_is_refused(desk: Desk, after: str):
    with pytest.raises(InvalidJob, match="must be what the page before gave"):
        await desk.engine.archived(EVERY, after=after)
    with pytest.raises(InvalidJob, match="after"):
        await desk.engine.batches(after=after)


async def test_the_last_place_that_there_can_be_is_one(desk: Desk):
    ref = await desk.add()
    assert [job.ref for job in (await desk.engine.find(EVERY, after=str(2**63 - 1))).items] == [ref]
