"""Finding and counting jobs, by every field of a filter, for one organisation or for all (H9)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import GroupBy, JobFilter
from onward.errors import InvalidValue, OnwardError
from onward.lifecycle import Complete, Fail, JobStatus, Retry
from tests.conformance.cases import BOOM, EngineCase, needs
from tests.conformance.driver import EVERY, Driver


async def test_jobs_are_listed_by_when_they_were_created_newest_first_unless_told_otherwise(driver: Driver):
    refs = [await driver.add(queue=f"q{number % 2}") for number in range(6)]
    assert [job.ref for job in (await driver.engine.find(EVERY)).items] == refs[::-1]
    assert [job.ref for job in (await driver.engine.find(EVERY, newest_first=False)).items] == refs


@pytest.mark.parametrize("newest_first", [True, False])
async def test_pages_follow_each_other_without_gap_or_overlap(driver: Driver, newest_first: bool):
    refs = await driver.add_many(7)
    seen, after = [], None
    sizes = []
    while True:
        page = await driver.engine.find(EVERY, cursor=after, limit=3, newest_first=newest_first)
        seen += [job.ref for job in page.items]
        sizes.append(len(page.items))
        after = page.next_cursor
        if after is None:
            break
        await driver.add(queue="while-reading")  # what arrives in between does not shift the pages
    assert sizes[0] == sizes[1] == 3
    assert [ref for ref in seen if ref.queue == "default"] == (refs[::-1] if newest_first else refs)
    assert len(set(seen)) == len(seen)


async def test_a_page_that_holds_all_there_is_leads_nowhere(driver: Driver):
    await driver.add_many(3)
    page = await driver.engine.find(EVERY, limit=3)
    assert (len(page.items), page.next_cursor) == (3, None)
    assert (await driver.engine.find(JobFilter(types=("nobody",)))).items == ()


async def test_a_cursor_that_no_page_gave_is_refused(driver: Driver):
    with pytest.raises(OnwardError):
        await driver.engine.find(EVERY, cursor="'; drop table --")


async def test_every_field_of_a_filter_narrows(driver: Driver, case: EngineCase):
    first = await driver.add(queue="mail/a", type="send")
    await driver.advance(10)
    between = driver.now
    await driver.advance(10)
    second = await driver.add(queue="mail/b", type="send")
    third = await driver.add(queue="resize", type="crop")
    await driver.end(await driver.take_one("mail/a", worker="w-a"), Fail(BOOM))
    await driver.advance(10)
    await driver.take_one("mail/b", worker="w-b")

    found = driver.found
    assert await found(JobFilter(refs=(first, third))) == {first, third}
    assert await found(JobFilter(refs=())) == set()
    if case.capabilities.has_global_ids:
        assert await found(JobFilter(ids=(first.id, second.id, "nobody"))) == {first, second}
    assert await found(JobFilter(queues=("mail/a", "resize"))) == {first, third}
    assert await found(JobFilter(queues=("mail/*",))) == {first, second}
    assert await found(JobFilter(types=("crop", "other"))) == {third}
    assert await found(JobFilter(status=frozenset({JobStatus.RUNNING, JobStatus.PENDING}))) == {second, third}
    assert await found(JobFilter(status=frozenset())) == set()
    assert await found(JobFilter(worker_id="w-b")) == {second}
    assert await found(JobFilter(error_contains="BOOM")) == {first}
    assert await found(JobFilter(created_before=between)) == {first}
    assert await found(JobFilter(created_after=between)) == {second, third}
    assert await found(JobFilter(finished_before=driver.now)) == {first}
    assert await found(JobFilter(finished_before=between)) == set()
    assert await found(JobFilter(types=("send",), queues=("mail/b",))) == {second}
    assert await found(JobFilter(types=("send",), queues=("resize",))) == set()


async def test_jobs_are_counted_by_state_queue_and_type(driver: Driver):
    await driver.add_many(3, queue="a", type="x")
    await driver.add_many(2, queue="b", type="y")
    await driver.take("a")
    await driver.end(await driver.take_one("b"), Complete())
    count = driver.engine.count
    assert await count(EVERY, by=GroupBy.STATUS) == {"pending": 3, "running": 1, "completed": 1}
    assert await count(EVERY, by=GroupBy.QUEUE) == {"a": 3, "b": 2}
    assert await count(EVERY, by=GroupBy.TYPE) == {"x": 3, "y": 2}
    assert await count(JobFilter(queues=("b",)), by=GroupBy.STATUS) == {"pending": 1, "completed": 1}
    assert await count(JobFilter(types=("z",)), by=GroupBy.STATUS) == {}


# Organisations --------------------------------------------------------------------------------------------------------


@needs(Feature.ORGANISATIONS)
async def test_an_organisation_sees_and_counts_only_its_own(driver: Driver):  # H9
    mine = set(await driver.add_many(3, org_id="acme"))
    theirs = await driver.add_many(2, org_id="umbrella")
    nobodys = await driver.add()
    assert await driver.found(JobFilter(org_id="acme")) == mine
    assert await driver.found(EVERY) == {*mine, *theirs, nobodys}
    assert await driver.engine.count(JobFilter(org_id="acme"), by=GroupBy.STATUS) == {"pending": 3}
    by_org = await driver.engine.count(EVERY, by=GroupBy.ORG)
    assert (by_org["acme"], by_org["umbrella"], sum(by_org.values())) == (3, 2, 6)
    assert await driver.found(JobFilter(org_id="acm")) == set()
    assert await driver.found(JobFilter(org_id="acme", refs=tuple(theirs))) == set()


@needs(Feature.ORGANISATIONS, Feature.REPLAY, Feature.CANCELLED_STATE)
async def test_an_organisation_cancels_replays_and_deletes_only_its_own(driver: Driver):  # H9
    mine = await driver.add_many(2, org_id="acme")
    theirs = await driver.add_many(2, org_id="umbrella")
    acme = JobFilter(org_id="acme")
    assert await driver.engine.cancel(JobFilter(org_id="acme", refs=tuple(theirs))) == []
    assert [change.ref for change in await driver.engine.cancel(acme)] == mine
    assert [await driver.state(ref) for ref in theirs] == [JobStatus.PENDING] * 2
    await driver.cancel(*theirs)
    assert [change.ref for change in await driver.engine.replay(acme)] == mine
    assert [change.ref for change in await driver.engine.delete(acme)] == mine
    assert await driver.found(EVERY) == set(theirs)


@needs(Feature.ORGANISATIONS, Feature.PATTERNS)
async def test_one_tenants_backlog_does_not_delay_anothers_first_job(driver: Driver):  # H9
    await driver.add_many(300, queue="mail/acme", org_id="acme")
    await driver.taken("mail/*", slots=3)
    await driver.add(queue="mail/umbrella", org_id="umbrella")
    claims = [*await driver.take("mail/*"), *await driver.take("mail/*")]
    assert "umbrella" in {claim.org_id for claim in claims}


# Results, progress and logs -------------------------------------------------------------------------------------------


@needs(Feature.RESULTS)
@pytest.mark.parametrize(
    ("text", "value"),
    [("null", None), ("0", 0), ('"é 東京"', "é 東京"), ('{"a": [1, 2.5, true]}', {"a": [1, 2.5, True]}), ("[]", [])],
)
async def test_a_result_comes_back_as_it_was(driver: Driver, text: str, value: object):
    ref = await driver.add()
    assert await driver.end(await driver.take_one(), Complete(text))
    assert (await driver.job(ref)).result == value


@needs(Feature.RESULTS)
async def test_no_result_is_none(driver: Driver):
    ref = await driver.add()
    assert await driver.end(await driver.take_one(), Complete())
    assert (await driver.job(ref)).result is None


@needs(Feature.PROGRESS)
async def test_progress_is_kept_with_its_message(driver: Driver):
    ref = await driver.add()
    claim = await driver.take_one()
    await driver.advance(1)
    assert await driver.engine.report(claim, progress=0, message="begun")
    assert await driver.engine.report(claim, progress=40, message="halfway – almost")
    job = await driver.job(ref)
    assert (job.progress, job.progress_message, job.status) == (40, "halfway – almost", JobStatus.RUNNING)
    assert driver.now <= job.updated_at < driver.now + timedelta(seconds=1) or not driver.keeps_change_times
    assert await driver.end(claim, Complete())
    assert (await driver.job(ref)).progress == 40


@needs(Feature.PROGRESS)
@pytest.mark.parametrize("progress", [-1, 101, 50.0, True])
async def test_progress_outside_0_to_100_is_refused(driver: Driver, progress: int):  # B3
    ref = await driver.add()
    claim = await driver.take_one()
    with pytest.raises(ValueError, match="progress"):
        await driver.engine.report(claim, progress=progress)
    assert (await driver.job(ref)).progress is None


@needs(Feature.LOG_LINES, Feature.PROGRESS)
async def test_log_lines_are_kept_in_order_with_their_time(driver: Driver):
    ref = await driver.add()
    other = await driver.add()
    claim, second = await driver.take(slots=2)
    begin = driver.now
    assert await driver.engine.report(claim, lines=["one", "two"])
    await driver.advance(5)
    assert await driver.engine.report(claim, lines=["three – 東京"], progress=10)
    assert await driver.engine.report(second, lines=["elsewhere"])
    lines = await driver.engine.logs(ref)
    assert [line.line for line in lines] == ["one", "two", "three – 東京"]
    assert [line.at for line in lines] == [begin, begin, driver.now]
    assert [line.line for line in await driver.engine.logs(other)] == ["elsewhere"]
    assert (await driver.job(ref)).progress == 10


@needs(Feature.LOG_LINES)
async def test_the_newest_thousand_log_lines_are_kept(driver: Driver):  # B8
    ref = await driver.add()
    claim = await driver.take_one()
    await driver.engine.report(claim, lines=[f"a{number}" for number in range(990)])
    await driver.engine.report(claim, lines=[f"b{number}" for number in range(30)])
    lines = [line.line for line in await driver.engine.logs(ref)]
    assert len(lines) == 1000
    assert (lines[0], lines[-1]) == ("a20", "b29")
    await driver.engine.report(claim, lines=[f"c{number}" for number in range(1500)])
    lines = [line.line for line in await driver.engine.logs(ref)]
    assert (len(lines), lines[0], lines[-1]) == (1000, "c500", "c1499")


@needs(Feature.LOG_LINES, Feature.PROGRESS)
async def test_a_lost_claim_reports_nothing(driver: Driver):  # X3
    ref = await driver.add()
    claim = await driver.take_one()
    await driver.engine.report(claim, progress=5, lines=["kept"])
    assert await driver.end(claim, Retry(timedelta(0), BOOM))
    before = await driver.job(ref)
    assert not await driver.engine.report(claim, progress=99, message="late", lines=["late"])
    assert await driver.job(ref) == before
    await driver.promote()
    await driver.take_one()
    running = await driver.job(ref)
    assert not await driver.engine.report(claim, progress=99, lines=["late"])
    assert await driver.job(ref) == running
    assert [line.line for line in await driver.engine.logs(ref)] == ["kept"]


_SOME_ID = "0190b6f0-0000-7000-8000-000000000000"


@pytest.mark.parametrize(
    "after",
    [
        "9" * 25,
        "9" * 5000,
        str(2**63),
        "-1",
        "1.5x",
        "",
        "\N{ARABIC-INDIC DIGIT THREE}",
        f"{'9' * 18}-{_SOME_ID}",
        f"{'9' * 30}-{_SOME_ID}",
        f"{'9' * 18}.1.q",
        f"1.{'9' * 25}.q",
    ],
    ids=lambda after: after[:30],
)
async def test_a_place_that_no_page_gave_is_refused(driver: Driver, after: str):  # X1
    await driver.add()
    for newest_first in (True, False):
        with pytest.raises(InvalidValue) as refused:
            await driver.engine.find(EVERY, cursor=after, newest_first=newest_first)
        assert refused.value.field == "cursor"
