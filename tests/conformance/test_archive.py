"""What a queue no longer keeps is archived, stays for its time, and is in nobody's way (P9)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import GroupBy, JobFilter, Retention
from onward.errors import InvalidValue
from onward.job import EnqueueStatus, Job, JobRef
from onward.lifecycle import Bury, Cancel, Complete, JobStatus, Outcome
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import EVERY, Driver, new_job
from tests.conformance.test_retention import DAY, ended

pytestmark = needs(Feature.ARCHIVE)


async def archived(driver: Driver, which: JobFilter = EVERY) -> list[Job]:
    return list((await driver.engine.archived(which)).items)


async def refs(driver: Driver, which: JobFilter = EVERY) -> list[JobRef]:
    return [job.ref for job in await archived(driver, which)]


async def test_a_job_is_archived_after_a_week_and_gone_after_thirty_days_more(driver: Driver):  # P9
    ref = await ended(driver, Complete('{"sum": 3}'))
    before = await driver.job(ref)
    assert await archived(driver) == []
    await driver.advance(8 * DAY)
    assert (await driver.prune()).changed == 1
    assert await driver.engine.get(ref) is None
    assert await archived(driver) == [before]
    await driver.advance(28 * DAY)
    await driver.prune()
    assert await refs(driver) == [ref]
    await driver.advance(3 * DAY)
    assert (await driver.prune()).changed == 0
    assert await archived(driver) == []


@pytest.mark.parametrize("kept", [DAY, 7 * DAY], ids=["one by one", "by the day"])
async def test_everything_about_a_job_is_there_still(driver: Driver, kept: timedelta):  # P9, O2
    await driver.set("q", retention=Retention(completed=kept, cancelled=kept, failed=kept))
    ref = await driver.add(
        queue="q",
        payload='{"to":"ada"}',
        org_id="acme",
        priority=3,
        idempotency_key="k",
        dedupe_key="d",
        max_attempts=2,
    )
    claim = await driver.take_one("q")
    await driver.engine.report(claim, progress=40, message="so far", lines=["one"])
    assert await driver.end(claim, Bury(BOOM))
    before = await driver.job(ref)
    assert (before.status, before.last_error, len(before.errors)) == (JobStatus.DEAD_LETTER, "ValueError: boom", 1)
    await driver.advance(9 * DAY)
    await driver.prune()
    assert await archived(driver) == [before]


async def test_each_queue_archives_its_own_way(driver: Driver):  # P9
    await driver.set("none", retention=Retention(archived=timedelta(0)))
    await driver.set("brief", retention=Retention(archived=DAY))
    await driver.set("for-ever", retention=Retention(archived=None))
    names = ("none", "brief", "for-ever", "untold")
    none, brief, for_ever, untold = [await ended(driver, Complete(), name) for name in names]
    await driver.advance(9 * DAY)
    await driver.prune()
    assert await driver.jobs() == ()
    assert set(await refs(driver)) == {brief, for_ever, untold}
    await driver.advance(DAY)
    await driver.prune()
    assert set(await refs(driver)) == {for_ever, untold}
    await driver.advance(400 * DAY)
    await driver.prune()
    assert await refs(driver) == [for_ever]
    assert none not in await refs(driver)


async def test_what_a_queue_is_told_is_shown(driver: Driver):  # P9
    told = Retention(completed=DAY, archived=2 * DAY)
    assert (await driver.set("q", retention=told)).settings.retention == told
    assert (await driver.set("q", retention=Retention(archived=None))).settings.retention == Retention(archived=None)
    await driver.add(queue="other")
    (other,) = await driver.engine.queues("other")
    assert other.settings.retention == Retention()


async def test_one_queue_that_keeps_its_jobs_for_longer_holds_up_no_other(driver: Driver):  # P9
    """Where days go as a whole, the one that is kept keeps its day, and its neighbours leave it one by one."""
    await driver.set("slow", retention=Retention(completed=90 * DAY, cancelled=90 * DAY))
    slow, quick = await ended(driver, Complete(), "slow"), await ended(driver, Complete(), "quick")
    await driver.advance(9 * DAY)
    await driver.prune()
    assert [job.ref for job in await driver.jobs()] == [slow]
    assert await refs(driver) == [quick]
    await driver.advance(83 * DAY)
    await driver.prune()
    assert await driver.jobs() == ()
    assert await refs(driver) == [slow]
    await driver.advance(28 * DAY)
    await driver.prune()
    assert await refs(driver) == [slow]
    await driver.advance(3 * DAY)
    await driver.prune()
    assert await refs(driver) == []


async def test_jobs_beyond_the_number_that_is_kept_are_archived(driver: Driver):  # P9
    await driver.set("q", retention=Retention(completed_count=1))
    first, second, third = [await ended(driver, Complete(), "q") for _ in range(3)]
    await driver.prune()
    assert [job.ref for job in await driver.jobs()] == [third]
    assert set(await refs(driver)) == {first, second}


async def test_an_archived_job_is_in_nobodys_way(driver: Driver):  # P9, O4
    ref = await driver.add(queue="q", idempotency_key="k")
    assert await driver.end(await driver.take_one("q"), Complete())
    await driver.advance(9 * DAY)
    await driver.prune()
    assert sum((await driver.engine.count(EVERY, by=GroupBy.STATUS)).values()) == 0
    (queue,) = await driver.engine.queues("q")
    assert not any(queue.counts.values())
    (again,) = await driver.engine.enqueue([new_job(queue="q", idempotency_key="k")])
    assert again.enqueue_status is EnqueueStatus.INSERTED
    assert again.ref != ref
    assert await refs(driver) == [ref]


@pytest.mark.parametrize("button", ["cancel", "replay", "delete"])
async def test_the_buttons_for_jobs_do_not_reach_it(driver: Driver, button: str):  # P9
    ref = await ended(driver, Cancel("enough"))
    await driver.advance(9 * DAY)
    await driver.prune()
    assert await getattr(driver.engine, button)(JobFilter(refs=(ref,))) == []
    assert await refs(driver) == [ref]


async def test_the_archive_is_narrowed_down_like_jobs(driver: Driver):
    outcomes: list[tuple[str, Outcome]] = [("a/1", Complete()), ("a/2", Cancel("enough")), ("b", Complete())]
    one, two, three = [await ended(driver, outcome, queue) for queue, outcome in outcomes]
    middle = (await driver.job(two)).created_at
    await driver.advance(9 * DAY)
    await driver.prune()
    assert set(await refs(driver, JobFilter(queues=("a/*",)))) == {one, two}
    assert await refs(driver, JobFilter(status=frozenset({JobStatus.CANCELLED}))) == [two]
    assert await refs(driver, JobFilter(ids=(three.id,))) == [three]
    assert await refs(driver, JobFilter(refs=(two, JobRef("b", one.id)))) == [two]
    assert await refs(driver, JobFilter(created_after=middle)) == [three]
    assert await refs(driver, JobFilter(created_before=middle)) == [one]
    assert await refs(driver, JobFilter(finished_before=middle + timedelta(seconds=1))) == [one]
    assert await refs(driver, JobFilter(types=("other",))) == []


async def test_the_archive_is_read_page_by_page(driver: Driver):
    refs_ = await driver.add_many(5, queue="q")
    await driver.end_all(await driver.take("q", slots=5), Complete())
    await driver.advance(9 * DAY)
    await driver.prune()
    seen: list[JobRef] = []
    after = None
    for size in (2, 2, 1):
        page = await driver.engine.archived(EVERY, cursor=after, limit=2)
        assert len(page.items) == size
        seen += [job.ref for job in page.items]
        after = page.next_cursor
    assert after is None
    assert seen == refs_[::-1]
    with pytest.raises(InvalidValue, match="cursor"):
        await driver.engine.archived(EVERY, cursor="soon")


async def test_the_archive_is_purged_on_command(driver: Driver):  # P9
    refs_ = [await ended(driver, Complete(), queue) for queue in ("a", "a", "a", "b")]
    await driver.advance(9 * DAY)
    await driver.prune()
    kept = await driver.add(queue="a")
    gone = await driver.engine.purge_archived(JobFilter(queues=("a",)), limit=2)
    assert [(change.ref, change.before) for change in gone] == [(ref, JobStatus.COMPLETED) for ref in refs_[:2]]
    assert set(await refs(driver)) == set(refs_[2:])
    assert len(await driver.engine.purge_archived(EVERY)) == 2
    assert await refs(driver) == []
    assert await driver.engine.purge_archived(EVERY) == []
    assert [job.ref for job in await driver.jobs()] == [kept]


async def test_the_archive_is_emptied_a_part_at_a_time(driver: Driver):  # P9
    await driver.set("q", retention=Retention(completed=DAY, archived=DAY))
    await driver.add_many(5, queue="q")
    await driver.end_all(await driver.take("q", slots=5), Complete())
    await driver.advance(DAY)
    assert (await driver.prune()).changed == 5
    await driver.advance(DAY)
    batches = [await driver.prune(limit=2) for _ in range(3)]
    assert [(batch.changed, batch.more) for batch in batches] == [(0, True), (0, True), (0, False)]
    assert await refs(driver) == []


@needs(Feature.LEADER)
async def test_who_leads_no_more_archives_nothing(driver: Driver):  # O6
    await driver.set("q", retention=Retention(completed=DAY, archived=DAY))
    ref = await ended(driver, Complete(), "q")
    term = await driver.engine.elect("old", lease=timedelta(seconds=10))
    assert term is not None
    await driver.advance(2 * DAY)
    assert await driver.engine.elect("new", lease=timedelta(days=9))
    assert (await driver.engine.prune(term)).changed == 0
    assert await driver.state(ref) is JobStatus.COMPLETED
    assert await refs(driver) == []
