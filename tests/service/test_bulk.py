"""Changes by filter (A5)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from onward import JobRef, JobStatus
from onward.bulk_operation import queue_of
from onward.errors import Conflict, InvalidValue, JobNotFound, PermissionDenied
from onward.service.identity import of_user
from onward.service.values import EnqueueRequest, JobEdit, JobQuery, Selection, TokenRequest
from tests.service.conftest import ADMIN, OPERATOR, records, ref, run_operations, status_of, tick

LATER = 3600.0


async def enqueue(services, count, **fields):
    jobs = await services.jobs.enqueue_many(
        ADMIN, [EnqueueRequest(type="plain", payload={"number": at}, delay=LATER, **fields) for at in range(count)]
    )
    return [ref(job) for job in jobs.items]


async def test_a_change_by_filter_is_stored_and_made_by_a_worker(app, services, store):  # A5
    await enqueue(services, 30, queue="video")
    others = await enqueue(services, 3)
    await store.advance(timedelta(seconds=1))
    select = Selection(filter=JobQuery(queue=("video",)))
    dry = await services.bulk.cancel(OPERATOR, Selection(filter=JobQuery(queue=("video",)), dry_run=True))
    assert (dry.id, dry.status, dry.matching) == (None, None, 30)
    await store.advance(timedelta(seconds=1))
    operation = await services.bulk.cancel(OPERATOR, select)
    assert (operation.matching, operation.status) == (30, JobStatus.PENDING)
    assert await records(services, "jobs.cancel_many") == ()
    await store.advance(timedelta(seconds=1))
    late = await enqueue(services, 2, queue="video")
    await run_operations(app)
    done = await services.bulk.get(OPERATOR, operation.id)
    assert (done.status, done.changed, done.progress) == (JobStatus.COMPLETED, 30, 100)
    statuses = [await status_of(app, job) for job in (*others, *late)]
    assert statuses == [JobStatus.SCHEDULED] * 5  # the filter was frozen
    (record,) = await records(services, "jobs.cancel_many")
    assert (record.actor, record.count) == ("user:olaf", 30)
    assert '"video"' in (record.filter or "")


async def test_an_interrupted_change_goes_on_and_counts_all(app, services, store, monkeypatch):  # A5
    from onward import bulk_operation  # noqa: PLC0415

    await enqueue(services, 25)
    await store.advance(timedelta(seconds=1))
    monkeypatch.setattr(bulk_operation, "_STEP", 10)
    real, calls = bulk_operation.change, 0

    async def failing(*args):
        nonlocal calls
        calls += 1
        if calls == 2:
            await asyncio.sleep(0.3)  # the report of the first step is sent a few times a second
            raise RuntimeError("the process is in trouble")
        return await real(*args)

    monkeypatch.setattr(bulk_operation, "change", failing)
    operation = await services.bulk.delete(ADMIN, Selection(all=True))
    await run_operations(app)
    assert (await services.bulk.get(ADMIN, operation.id)).status is JobStatus.SCHEDULED
    await store.advance(timedelta(seconds=90))
    await run_operations(app)
    done = await services.bulk.get(ADMIN, operation.id)
    assert (done.status, done.changed) == (JobStatus.COMPLETED, 25)
    (record,) = await records(services, "jobs.delete_many")
    assert record.count == 25


async def test_a_change_can_be_cancelled_and_leaves_its_record(services):  # A5
    await enqueue(services, 3)
    operation = await services.bulk.cancel(OPERATOR, Selection(all=True))
    await services.bulk.stop(OPERATOR, operation.id)
    with pytest.raises((Conflict, JobNotFound)):  # BullMQ removes a cancelled job
        await services.bulk.stop(OPERATOR, operation.id)
    (record,) = await records(services, "jobs.cancel_many")
    assert record.count == 0
    assert (await services.jobs.count(ADMIN, JobQuery(type=("plain",)))).counts == {"scheduled": 3}


async def test_a_change_by_filter_cannot_be_forged_replayed_or_edited(app, services):  # S3
    await enqueue(services, 1)
    operation = await services.bulk.delete(ADMIN, Selection(all=True))
    reserved = queue_of(app.capabilities)
    name = JobRef(reserved, operation.id)
    for call in (
        services.jobs.replay(ADMIN, name),
        services.jobs.edit(ADMIN, name, JobEdit(max_attempts=9)),
        services.jobs.delete(ADMIN, name),
        services.jobs.cancel(OPERATOR, name),
    ):
        with pytest.raises(PermissionDenied):
            await call
    again = await services.bulk.cancel(OPERATOR, Selection(filter=JobQuery(queue=(reserved,))))
    await run_operations(app)
    assert (await services.bulk.get(ADMIN, again.id)).changed == 0
    assert (await services.bulk.get(ADMIN, operation.id)).status is JobStatus.COMPLETED


async def test_a_limited_caller_sees_its_own_changes_only(services, store):  # S3
    mine, other = of_user("mine", role="operator", orgs=["a"]), of_user("other", role="operator", orgs=["a"])
    await enqueue(services, 1, org_id="a")
    await store.advance(timedelta(seconds=1))
    operation = await services.bulk.cancel(mine, Selection(all=True))
    assert (await services.bulk.get(mine, operation.id)).matching == 1
    assert len((await services.bulk.list(mine)).items) == 1
    assert (await services.bulk.list(other)).items == ()
    for call in (services.bulk.get(other, operation.id), services.bulk.stop(other, operation.id)):
        with pytest.raises(JobNotFound):
            await call


@pytest.mark.parametrize(
    "selection",
    [Selection(), Selection(filter=JobQuery()), Selection(filter=JobQuery(type=("x",)), all=True)],
    ids=["nothing", "an empty filter", "both"],
)
async def test_a_change_of_all_jobs_must_be_meant(services, selection):
    with pytest.raises(InvalidValue):
        await services.bulk.delete(ADMIN, selection)


async def test_a_change_that_can_match_nothing_is_on_record(services):  # S5
    done = await services.bulk.replay(ADMIN, Selection(filter=JobQuery(status=(JobStatus.PENDING,))))
    assert (done.id, done.matching) == (None, 0)
    assert [one.count for one in await records(services, "jobs.replay_many")] == [0]


async def test_dead_letters_are_replayed_and_purged_by_filter(app, services, store):  # O8
    await services.jobs.enqueue_many(
        ADMIN,
        [EnqueueRequest(type="send", payload={"to": "x"}, org_id=org, max_attempts=1) for org in "ab"],
    )
    await tick(app)
    assert (await services.dead.count(ADMIN, JobQuery())).total == 2
    await store.advance(timedelta(seconds=1))
    await services.bulk.replay_dead(ADMIN, Selection(filter=JobQuery(org_id="a")))
    await services.bulk.purge_dead(ADMIN, Selection(filter=JobQuery(org_id="b")))
    await store.advance(timedelta(seconds=1))
    await run_operations(app)
    left = (await services.jobs.list(ADMIN, JobQuery(type=("send",)))).items
    assert [job.org_id for job in left] == ["a"]


async def test_an_export_names_the_actor_of_a_change_by_filter(app, services):  # S5, S6
    new = await services.access.create_token(ADMIN, TokenRequest(name="ci-token", role="admin"))
    caller = await services.access.authenticate(new.secret)
    await enqueue(services, 1)
    await services.bulk.cancel(caller, Selection(filter=JobQuery(type=("plain",))))
    which = JobQuery(queue=(queue_of(app.capabilities),))
    ((job,),) = [page async for page in await services.jobs.export(ADMIN, which)]
    assert job.payload["plan"]["audit"]["actor"] == "token:ci-token"
    assert job.payload["plan"]["token_id"] == new.token.id
