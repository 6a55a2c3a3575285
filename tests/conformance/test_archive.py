"""What a queue no longer keeps is archived, stays for its time, and is in nobody's way (P9)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import GroupBy, JobFilter, Retention
from onward.errors import InvalidJob
from onward.job import EnqueueStatus, Job, JobRef
from onward.lifecycle import Bury, Cancel, Complete, Outcome, State
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import EVERY, Desk, new_job
from tests.conformance.test_retention import DAY, ended

pytestmark = needs(Feature.ARCHIVE)


async def archived(desk: Desk, which: JobFilter = EVERY) -> list[Job]:
    return list((await desk.engine.archived(which)).items)


async def refs(desk: Desk, which: JobFilter = EVERY) -> list[JobRef]:
    return [job.ref for job in await archived(desk, which)]


async def test_a_job_is_archived_after_a_week_and_gone_after_thirty_days_more(desk: Desk):  # P9
    ref = await ended(desk, Complete('{"sum": 3}'))
    before = await desk.job(ref)
    assert await archived(desk) == []
    await desk.advance(8 * DAY)
    assert (await desk.prune()).changed == 1
    assert await desk.engine.get(ref) is None
    assert await archived(desk) == [before]
    await desk.advance(28 * DAY)
    await desk.prune()
    assert await refs(desk) == [ref]
    await desk.advance(3 * DAY)
    assert (await desk.prune()).changed == 0
    assert await archived(desk) == []


@pytest.mark.parametrize("kept", [DAY, 7 * DAY], ids=["one by one", "by the day"])
async def test_everything_about_a_job_is_there_still(desk: Desk, kept: timedelta):  # P9, O2
    await desk.set("q", retention=Retention(completed=kept, cancelled=kept, failed=kept))
    ref = await desk.add(
        queue="q",
        payload='{"to":"ada"}',
        org_id="acme",
        priority=3,
        idempotency_key="k",
        dedupe_key="d",
        max_attempts=2,
    )
    claim = await desk.take_one("q")
    await desk.engine.report(claim, progress=40, message="so far", lines=["one"])
    assert await desk.end(claim, Bury(BOOM))
    before = await desk.job(ref)
    assert (before.status, before.last_error, len(before.errors)) == (State.DEAD_LETTER, "ValueError: boom", 1)
    await desk.advance(9 * DAY)
    await desk.prune()
    assert await archived(desk) == [before]


async def test_each_queue_archives_its_own_way(desk: Desk):  # P9
    await desk.set("none", retention=Retention(archived=timedelta(0)))
    await desk.set("brief", retention=Retention(archived=DAY))
    await desk.set("for-ever", retention=Retention(archived=None))
    names = ("none", "brief", "for-ever", "untold")
    none, brief, for_ever, untold = [await ended(desk, Complete(), name) for name in names]
    await desk.advance(9 * DAY)
    await desk.prune()
    assert await desk.jobs() == ()
    assert set(await refs(desk)) == {brief, for_ever, untold}
    await desk.advance(DAY)
    await desk.prune()
    assert set(await refs(desk)) == {for_ever, untold}
    await desk.advance(400 * DAY)
    await desk.prune()
    assert await refs(desk) == [for_ever]
    assert none not in await refs(desk)


async def test_what_a_queue_is_told_is_shown(desk: Desk):  # P9
    told = Retention(completed=DAY, archived=2 * DAY)
    assert (await desk.set("q", retention=told)).settings.retention == told
    assert (await desk.set("q", retention=Retention(archived=None))).settings.retention == Retention(archived=None)
    await desk.add(queue="other")
    (other,) = await desk.engine.queues("other")
    assert other.settings.retention == Retention()


async def test_one_queue_that_keeps_its_jobs_for_longer_holds_up_no_other(desk: Desk):  # P9
    """Where days go as a whole, the one that is kept keeps its day, and its neighbours leave it one by one."""
    await desk.set("slow", retention=Retention(completed=90 * DAY, cancelled=90 * DAY))
    slow, quick = await ended(desk, Complete(), "slow"), await ended(desk, Complete(), "quick")
    await desk.advance(9 * DAY)
    await desk.prune()
    assert [job.ref for job in await desk.jobs()] == [slow]
    assert await refs(desk) == [quick]
    await desk.advance(83 * DAY)
    await desk.prune()
    assert await desk.jobs() == ()
    assert await refs(desk) == [slow]
    await desk.advance(28 * DAY)
    await desk.prune()
    assert await refs(desk) == [slow]
    await desk.advance(3 * DAY)
    await desk.prune()
    assert await refs(desk) == []


async def test_jobs_beyond_the_number_that_is_kept_are_archived(desk: Desk):  # P9
    await desk.set("q", retention=Retention(completed_count=1))
    first, second, third = [await ended(desk, Complete(), "q") for _ in range(3)]
    await desk.prune()
    assert [job.ref for job in await desk.jobs()] == [third]
    assert set(await refs(desk)) == {first, second}


async def test_an_archived_job_is_in_nobodys_way(desk: Desk):  # P9, O4
    ref = await desk.add(queue="q", idempotency_key="k")
    assert await desk.end(await desk.take_one("q"), Complete())
    await desk.advance(9 * DAY)
    await desk.prune()
    assert sum((await desk.engine.count(EVERY, by=GroupBy.STATE)).values()) == 0
    (queue,) = await desk.engine.queues("q")
    assert not any(queue.counts.values())
    (again,) = await desk.engine.enqueue([new_job(queue="q", idempotency_key="k")])
    assert again.enqueue_status is EnqueueStatus.INSERTED
    assert again.ref != ref
    assert await refs(desk) == [ref]


@pytest.mark.parametrize("button", ["cancel", "replay", "delete"])
async def test_the_buttons_for_jobs_do_not_reach_it(desk: Desk, button: str):  # P9
    ref = await ended(desk, Cancel("enough"))
    await desk.advance(9 * DAY)
    await desk.prune()
    assert await getattr(desk.engine, button)(JobFilter(refs=(ref,))) == []
    assert await refs(desk) == [ref]


async def test_the_archive_is_narrowed_down_like_jobs(desk: Desk):
    outcomes: list[tuple[str, Outcome]] = [("a/1", Complete()), ("a/2", Cancel("enough")), ("b", Complete())]
    one, two, three = [await ended(desk, outcome, queue) for queue, outcome in outcomes]
    middle = (await desk.job(two)).created_at
    await desk.advance(9 * DAY)
    await desk.prune()
    assert set(await refs(desk, JobFilter(queues=("a/*",)))) == {one, two}
    assert await refs(desk, JobFilter(states=frozenset({State.CANCELLED}))) == [two]
    assert await refs(desk, JobFilter(ids=(three.id,))) == [three]
    assert await refs(desk, JobFilter(refs=(two, JobRef("b", one.id)))) == [two]
    assert await refs(desk, JobFilter(created_after=middle)) == [three]
    assert await refs(desk, JobFilter(created_before=middle)) == [one]
    assert await refs(desk, JobFilter(finished_before=middle + timedelta(seconds=1))) == [one]
    assert await refs(desk, JobFilter(types=("other",))) == []


async def test_the_archive_is_read_page_by_page(desk: Desk):
    refs_ = await desk.add_many(5, queue="q")
    await desk.end_all(await desk.take("q", slots=5), Complete())
    await desk.advance(9 * DAY)
    await desk.prune()
    seen: list[JobRef] = []
    after = None
    for size in (2, 2, 1):
        page = await desk.engine.archived(EVERY, after=after, limit=2)
        assert len(page.items) == size
        seen += [job.ref for job in page.items]
        after = page.after
    assert after is None
    assert seen == refs_[::-1]
    with pytest.raises(InvalidJob, match="after"):
        await desk.engine.archived(EVERY, after="soon")


async def test_the_archive_is_purged_on_command(desk: Desk):  # P9
    refs_ = [await ended(desk, Complete(), queue) for queue in ("a", "a", "a", "b")]
    await desk.advance(9 * DAY)
    await desk.prune()
    kept = await desk.add(queue="a")
    gone = await desk.engine.purge_archived(JobFilter(queues=("a",)), limit=2)
    assert [(change.ref, change.before) for change in gone] == [(ref, State.COMPLETED) for ref in refs_[:2]]
    assert set(await refs(desk)) == set(refs_[2:])
    assert len(await desk.engine.purge_archived(EVERY)) == 2
    assert await refs(desk) == []
    assert await desk.engine.purge_archived(EVERY) == []
    assert [job.ref for job in await desk.jobs()] == [kept]


async def test_the_archive_is_emptied_a_part_at_a_time(desk: Desk):  # P9
    await desk.set("q", retention=Retention(completed=DAY, archived=DAY))
    await desk.add_many(5, queue="q")
    await desk.end_all(await desk.take("q", slots=5), Complete())
    await desk.advance(DAY)
    assert (await desk.prune()).changed == 5
    await desk.advance(DAY)
    batches = [await desk.prune(limit=2) for _ in range(3)]
    assert [(batch.changed, batch.more) for batch in batches] == [(0, True), (0, True), (0, False)]
    assert await refs(desk) == []


@needs(Feature.LEADER)
async def test_who_leads_no_more_archives_nothing(desk: Desk):  # O6
    await desk.set("q", retention=Retention(completed=DAY, archived=DAY))
    ref = await ended(desk, Complete(), "q")
    term = await desk.engine.elect("old", lease=timedelta(seconds=10))
    assert term is not None
    await desk.advance(2 * DAY)
    assert await desk.engine.elect("new", lease=timedelta(days=9))
    assert (await desk.engine.prune(term)).changed == 0
    assert await desk.state(ref) is State.COMPLETED
    assert await refs(desk) == []
