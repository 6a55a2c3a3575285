"""Nothing of another organisation or queue is read or changed (S3, H9)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.errors import Conflict, InvalidValue, JobNotFound, PermissionDenied, QueueNotFound
from onward.service.identity import of_user
from onward.service.scopes import covers, intersection
from onward.service.values import EnqueueRequest, JobEdit, JobQuery, QueueSettingsChange, Selection
from tests.conformance.cases import needs
from tests.service.conftest import ADMIN, QUEUES, records, ref, run_operations, status_of, tick

MINE = of_user("mine", role="admin", orgs=["mine"])
MAIL = of_user("mail", role="admin", queues=["mail/*"])


@pytest.mark.parametrize(
    ("some", "others", "both"),
    [
        (("*",), ("mail",), ("mail",)),
        (("mail/*",), ("mail/a", "video"), ("mail/a",)),
        (("mail/*",), ("*",), ("mail/*",)),
        (("mail/*",), ("mail/eu/*",), ("mail/eu/*",)),
        (("mail/*",), ("mailbox/*", "mail"), ()),
        (("a", "b"), ("b", "c"), ("b",)),
    ],
)
def test_patterns_intersect(some, others, both):  # S3
    assert intersection(some, others) == both
    assert intersection(others, some) == both


def test_a_pattern_covers_what_is_below_it():
    assert covers("mail/*", "mail/eu/*")
    assert not covers("mail/*", "mailbox")
    assert not covers("mail/eu", "mail/*")


@pytest.fixture
async def theirs(services):
    """A job of another organisation, in another queue."""
    return ref(await services.jobs.enqueue(ADMIN, EnqueueRequest(type="plain", org_id="theirs", queue="video")))


@pytest.mark.parametrize("identity", [MINE, MAIL], ids=["org", "queue"])
async def test_one_job_of_others_is_not_found(app, services, theirs, identity, case):  # S3
    calls = [
        services.jobs.get(identity, theirs),
        services.jobs.logs(identity, theirs),
        services.jobs.result(identity, theirs),
        services.jobs.reveal(identity, theirs),
        services.jobs.cancel(identity, theirs),
        services.jobs.replay(identity, theirs),
        services.jobs.delete(identity, theirs),
        services.jobs.edit(identity, theirs, JobEdit(max_attempts=9)),
    ]
    if case.capabilities.has(Feature.ARCHIVE):
        calls.append(services.archive.get(identity, theirs))
    before = await app.jobs.get(theirs)
    for call in calls:
        with pytest.raises(JobNotFound):
            await call
    assert await app.jobs.get(theirs) == before
    # Nothing was changed, and nothing recorded.
    assert [one.action for one in await records(services)] == ["jobs.enqueue"]


@pytest.mark.parametrize("identity", [MINE, MAIL], ids=["org", "queue"])
async def test_many_jobs_of_others_are_left_out(app, services, store, theirs, identity):  # S3
    own = await services.jobs.enqueue(ADMIN, EnqueueRequest(type="send", payload={"to": "x"}, org_id="mine"))
    assert [job.id for job in (await services.jobs.list(identity, JobQuery())).items] == [own.id]
    for query in (JobQuery(org_id="theirs"), JobQuery(queue=("video",)), JobQuery(queue=("video",), org_id="theirs")):
        if identity is MAIL and query.queue == ():
            continue
        assert (await services.jobs.list(identity, query)).items == ()
        assert (await services.jobs.count(identity, query)).total == 0
        assert [page async for page in await services.jobs.export(identity, query)] == [()]
    assert (await services.jobs.count(identity, JobQuery(), by="queue")).counts == {"mail/mine": 1}
    await store.advance(timedelta(seconds=1))
    before = await app.jobs.get(theirs)
    for verb in (services.bulk.cancel, services.bulk.delete):
        for selection in (Selection(all=True), Selection(filter=JobQuery(queue=("video", "mail/mine")))):
            await verb(identity, selection)
    await run_operations(app)
    assert await app.jobs.get(theirs) == before
    assert await status_of(app, ref(own)) is None


@pytest.mark.parametrize(
    "request_",
    [
        EnqueueRequest(type="plain", org_id="theirs"),
        EnqueueRequest(type="send", payload={"to": "x"}, org_id="theirs"),
        EnqueueRequest(type="onward.operation"),
    ],
)
async def test_nothing_is_enqueued_for_others(services, request_):  # S3
    with pytest.raises((PermissionDenied, InvalidValue)):
        await services.jobs.enqueue(MINE, request_)
    with pytest.raises((PermissionDenied, InvalidValue)):
        await services.jobs.enqueue_many(MINE, [EnqueueRequest(type="plain"), request_])
    assert (await services.jobs.count(ADMIN, JobQuery())).total == 0


@needs(Feature.DEDUPLICATION)
async def test_a_key_of_another_organisation_finds_nothing(services, case):  # S3
    key = "i" if case.capabilities.has(Feature.IDEMPOTENCY) else None
    theirs = await services.jobs.enqueue(
        ADMIN, EnqueueRequest(type="plain", org_id="theirs", dedupe_key="k", idempotency_key=key)
    )
    mine = await services.jobs.enqueue(MINE, EnqueueRequest(type="plain", dedupe_key="k", idempotency_key=key))
    assert mine.id != theirs.id
    again = await services.jobs.enqueue(MINE, EnqueueRequest(type="plain", dedupe_key="k"))
    assert again.id == mine.id


async def test_a_caller_limited_to_queues_sees_no_other_queue(services, theirs, case):  # S3
    await services.jobs.enqueue(ADMIN, EnqueueRequest(type="send", payload={"to": "x"}, org_id="a"))
    made = () if case.capabilities.has(Feature.QUEUES_BY_USE) else QUEUES
    seen = [queue.name for queue in (await services.queues.list(MAIL)).items]
    assert seen == (sorted(name for name in made if name.startswith("mail/")) or ["mail/a"])
    with pytest.raises(QueueNotFound):
        await services.queues.get(MAIL, "video")
    with pytest.raises(QueueNotFound):
        await services.queues.pause(MAIL, "video")
    with pytest.raises(PermissionDenied):
        await services.queues.configure(MAIL, "video", QueueSettingsChange(lease=90))
    if case.capabilities.has(Feature.PAUSE):
        await services.queues.pause(MAIL, "mail/a")
        assert (await services.queues.get(MAIL, "mail/a")).paused


async def test_pausing_a_mistyped_queue_creates_none(services):
    before = await services.queues.list(ADMIN)
    with pytest.raises(QueueNotFound):
        await services.queues.pause(ADMIN, "vidoe")
    assert await services.queues.list(ADMIN) == before


async def test_a_job_that_runs_cannot_be_deleted_nor_an_ended_one_cancelled(app, services):
    ended = await services.jobs.enqueue(ADMIN, EnqueueRequest(type="plain"))
    await tick(app)
    edit = JobEdit(max_attempts=9)
    for call in (services.jobs.cancel(ADMIN, ref(ended)), services.jobs.edit(ADMIN, ref(ended), edit)):
        with pytest.raises(Conflict):
            await call


@needs(Feature.EVENTS)
async def test_events_of_others_are_left_out(app, services, theirs):  # S3
    await services.jobs.enqueue(ADMIN, EnqueueRequest(type="plain", org_id="mine"))
    stream = await services.events.stream(MINE)
    await tick(app)
    seen = []
    async for event in stream:
        if event is not None:
            seen.append(event)
            if event.name == "completed":
                break
    await stream.aclose()
    assert {event.org_id for event in seen} == {"mine"}


@needs(Feature.USAGE)
async def test_usage_of_others_is_left_out(app, services, theirs):  # S3, H9
    await services.jobs.enqueue(ADMIN, EnqueueRequest(type="plain", org_id="mine"))
    await tick(app)
    rows = (await services.status.usage(MINE, by=["type"])).items
    assert {row.org_id for row in rows} == {"mine"}
    rows = (await services.status.usage(of_user("v", queues=["video"]))).items
    assert {row.queue for row in rows} == {"video"}
