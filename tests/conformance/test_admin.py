"""The buttons that people press: cancel, replay, delete, edit."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import Changed, JobChange, JobFilter
from onward.errors import InvalidValue
from onward.job import JobRef
from onward.lifecycle import FINISHED, HELD, WAITING, Bury, Cancel, Complete, Fail, JobStatus, Retry
from onward.validation import encode_json
from tests.conformance.cases import BOOM, EngineCase, each_state, needs
from tests.conformance.driver import PAST_LEASE, Driver

# Cancel ---------------------------------------------------------------------------------------------------------------


@needs(Feature.CANCELLED_STATE)
async def test_a_cancelled_job_says_why_and_when_and_never_runs(driver: Driver):
    ref = await driver.add()
    await driver.advance(5)
    assert await driver.cancel(ref, reason="ordered twice") == [Changed(ref, JobStatus.PENDING)]
    job = await driver.job(ref)
    assert (job.status, job.completed_at, job.updated_at) == (JobStatus.CANCELLED, driver.now, driver.now)
    assert job.last_error is not None
    assert "ordered twice" in job.last_error
    assert await driver.take() == ()


async def test_a_running_job_is_taken_from_its_worker_which_learns_of_it(driver: Driver):  # X3
    ref = await driver.add()
    other = await driver.add()
    claim, kept = await driver.take(slots=2)
    assert claim.ref == ref
    assert await driver.cancel(ref) == [Changed(ref, JobStatus.RUNNING)]
    before = await driver.engine.get(ref)
    reply = await driver.beat(claim, kept)
    assert (reply.lost, reply.cancelled) == ({claim.token}, {claim.token})
    assert not await driver.end(claim, Complete())
    assert not await driver.end(claim, Retry(timedelta(0), BOOM))
    assert await driver.engine.get(ref) == before
    assert await driver.end(kept, Complete())
    assert await driver.state(other) is JobStatus.COMPLETED
    await driver.advance(PAST_LEASE)
    assert (await driver.rescue()).changed == 0


@needs(Feature.CLAIMED_STATE)
async def test_a_claimed_job_that_is_cancelled_is_not_started(driver: Driver):  # X3
    ref = await driver.add()
    (claim,) = await driver.take_ahead()
    assert await driver.cancel(ref) == [Changed(ref, JobStatus.CLAIMED)]
    assert await driver.engine.start([claim]) == {claim.token}


@needs(Feature.DELAY)
async def test_a_job_that_is_not_due_can_be_cancelled(driver: Driver):
    ref = await driver.add(delay=timedelta(hours=1))
    assert await driver.cancel(ref) == [Changed(ref, JobStatus.SCHEDULED)]
    assert (await driver.wait(timedelta(hours=2))).changed == 0
    assert await driver.take() == ()


async def test_cancelling_by_filter_moves_what_may_be_moved_and_names_it(driver: Driver):
    done = await driver.add(type="send")
    await driver.end(await driver.take_one(), Complete())
    running = await driver.add(type="send")
    await driver.take_one()
    pending = await driver.add(type="send")
    other = await driver.add(type="keep")
    changed = await driver.engine.cancel(JobFilter(types=("send",)))
    assert {change.ref: change.before for change in changed} == {running: JobStatus.RUNNING, pending: JobStatus.PENDING}
    assert (await driver.state(done), await driver.state(other)) == (JobStatus.COMPLETED, JobStatus.PENDING)


async def test_cancelling_stops_at_its_limit(driver: Driver):
    await driver.add_many(5)
    assert [len(await driver.engine.cancel(JobFilter(), limit=2)) for _ in range(4)] == [2, 2, 1, 0]


async def test_cancelling_what_is_not_there_changes_nothing(driver: Driver):
    ref = await driver.add()
    assert await driver.cancel(JobRef("elsewhere", ref.id)) == []
    assert await driver.cancel() == []
    assert await driver.state(ref) is JobStatus.PENDING


# Dead letters and replay ----------------------------------------------------------------------------------------------


async def buried(driver: Driver, **fields: object) -> JobRef:
    """Add a job and use its attempts up."""
    ref = await driver.add(max_attempts=1, **fields)
    claim = await driver.take_one(ref.queue)
    assert claim.ref == ref
    assert await driver.end(claim, Bury(BOOM))
    return ref


@needs(Feature.REPLAY)
async def test_dead_letters_can_be_listed_inspected_replayed_and_purged(driver: Driver):  # O8
    refs = [await buried(driver, queue=queue, type=type) for queue, type in [("a", "x"), ("a", "y"), ("b", "x")]]
    alive = await driver.add(queue="a")
    dead = JobFilter(status=frozenset({JobStatus.DEAD_LETTER}))
    assert await driver.found(dead) == set(refs)
    job = await driver.job(refs[0])
    assert (job.last_error, job.attempts, job.max_attempts) == ("ValueError: boom", 1, 1)

    assert await driver.replay(refs[0]) == [Changed(refs[0], driver.shown(JobStatus.DEAD_LETTER))]
    assert await driver.found(dead) == set(refs[1:])

    changed = await driver.engine.delete(JobFilter(status=frozenset({JobStatus.DEAD_LETTER}), queues=("b",)))
    assert changed == [Changed(refs[2], driver.shown(JobStatus.DEAD_LETTER))]
    assert await driver.engine.get(refs[2]) is None
    assert await driver.found(dead) == {refs[1]}
    assert await driver.state(alive) is JobStatus.PENDING


@needs(Feature.REPLAY)
async def test_a_replayed_job_is_ready_with_all_its_attempts(driver: Driver):  # O8
    ref = await driver.add(max_attempts=2)
    for _ in range(2):
        claim = await driver.take_one()
        if claim.attempts == 1:
            assert await driver.end(claim, Retry(timedelta(0), BOOM))
            await driver.promote()
        else:
            assert await driver.end(claim, Bury(BOOM))
    await driver.advance(10)
    assert await driver.replay(ref) == [Changed(ref, driver.shown(JobStatus.DEAD_LETTER))]
    job = await driver.job(ref)
    assert (job.status, job.attempts, job.crashes, job.completed_at) == (JobStatus.PENDING, 0, 0, None)
    claim = await driver.take_one()
    assert (claim.ref, claim.attempts, claim.max_attempts) == (ref, 1, 2)
    assert claim.wait_seconds == 0 or not driver.keeps_change_times


@needs(Feature.REPLAY, Feature.READY_ORDER)
async def test_a_replayed_job_goes_behind_those_that_were_ready_before_it(driver: Driver):  # O3, O8
    ref = await buried(driver)
    await driver.advance(1)
    waiting = await driver.add()
    await driver.advance(1)
    await driver.replay(ref)
    await driver.advance(1)
    later = await driver.add()
    assert await driver.taken() == [waiting, ref, later]


@needs(Feature.REPLAY, Feature.SUSPECTS)
async def test_replaying_clears_suspicion(driver: Driver):  # O8, Counting
    ref = await driver.add()
    await driver.suspect()
    claim = await driver.take_one(alone=True)
    assert await driver.engine.record_crash(claim)
    await driver.end(claim, Bury(BOOM))
    assert (await driver.job(ref)).crashes == 1
    await driver.replay(ref)
    job = await driver.job(ref)
    assert (job.crashes, job.is_suspect) == (0, False)
    assert (await driver.take_one()).ref == ref


@needs(Feature.REPLAY, Feature.CANCELLED_STATE)
async def test_many_ended_jobs_are_replayed_by_filter_and_completed_ones_never(driver: Driver):  # O8
    dead = await buried(driver)
    failed = await driver.add()
    await driver.end(await driver.take_one(), Fail(BOOM))
    cancelled = await driver.add()
    await driver.cancel(cancelled)
    done = await driver.add()
    await driver.end(await driver.take_one(), Complete())
    changed = await driver.engine.replay(JobFilter())
    assert {change.ref for change in changed} == {dead, failed, cancelled}
    assert await driver.state(done) is JobStatus.COMPLETED


@needs(Feature.REPLAY, Feature.CANCELLED_STATE)
async def test_dead_letters_are_found_by_what_went_wrong(driver: Driver):  # O8
    ref = await buried(driver)
    other = await driver.add()
    await driver.end(await driver.take_one(), Cancel("by hand"))
    assert await driver.found(JobFilter(error_contains="boom")) == {ref}
    assert [change.ref for change in await driver.engine.replay(JobFilter(error_contains="boom"))] == [ref]
    assert await driver.state(other) in FINISHED


@needs(Feature.REPLAY)
async def test_replaying_stops_at_its_limit(driver: Driver):
    for _ in range(3):
        await buried(driver)
    assert [len(await driver.engine.replay(JobFilter(), limit=2)) for _ in range(3)] == [2, 1, 0]


@needs(Feature.REPLAY, Feature.CANCELLED_STATE)
async def test_the_claim_of_a_former_life_is_refused(driver: Driver):  # X3
    ref = await driver.add()
    old = await driver.take_one()
    await driver.cancel(ref)
    await driver.replay(ref)
    assert not await driver.end(old, Complete())
    new = await driver.take_one()
    assert not await driver.end(old, Complete())
    assert await driver.end(new, Complete())


# Delete ---------------------------------------------------------------------------------------------------------------


@each_state()
async def test_a_job_is_deleted_unless_it_is_held(driver: Driver, case: EngineCase, state: JobStatus):
    planted = await driver.store.plant(driver.engine, state)
    changed = await driver.engine.delete(JobFilter(refs=(planted.ref,)))
    if state in HELD:
        assert changed == []
        assert await driver.state(planted.ref) is state
    else:
        assert changed == [Changed(planted.ref, state)]
        assert await driver.engine.get(planted.ref) is None
        assert not await driver.end(planted.claim, Complete())
        assert await driver.jobs() == ()


async def test_deleting_stops_at_its_limit(driver: Driver):
    await driver.add_many(5)
    assert [len(await driver.engine.delete(JobFilter(), limit=2)) for _ in range(4)] == [2, 2, 1, 0]


@needs(Feature.LOG_LINES)
async def test_a_deleted_job_takes_its_log_along(driver: Driver):
    ref = await driver.add()
    claim = await driver.take_one()
    await driver.engine.report(claim, lines=["one"])
    await driver.end(claim, Complete())
    await driver.engine.delete(JobFilter(refs=(ref,)))
    assert await driver.engine.logs(ref) == []


async def test_an_old_claim_never_names_a_job_that_came_after(driver: Driver):  # X3
    ref = await driver.add()
    old = await driver.take_one()
    await driver.cancel(ref)
    await driver.engine.delete(JobFilter(refs=(ref,)))
    await driver.advance(0.001)
    new = await driver.add()
    claim = await driver.take_one()
    assert claim.token != old.token
    assert not await driver.end(old, Complete())
    assert (await driver.beat(old, claim)).lost == {old.token}
    assert await driver.state(new) is JobStatus.RUNNING


# Edit -----------------------------------------------------------------------------------------------------------------


@needs(Feature.EDIT, Feature.PRIORITY)
async def test_a_waiting_job_can_be_changed(driver: Driver):
    plain, urgent = await driver.add(), await driver.add()
    await driver.advance(3)
    job = await driver.engine.edit(urgent, JobChange(priority=9, payload='{"n": 2}', max_attempts=8))
    assert job is not None
    assert (job.priority, job.payload, job.max_attempts) == (9, {"n": 2}, 8)
    assert job.updated_at == driver.now or not driver.keeps_change_times
    assert job == await driver.job(urgent)
    assert await driver.taken() == [urgent, plain]


@needs(Feature.EDIT)
async def test_what_is_not_given_stays_as_it_is(driver: Driver):
    ref = await driver.add(payload='{"n": 1}', max_attempts=3)
    job = await driver.engine.edit(ref, JobChange(max_attempts=4))
    assert job is not None
    assert (job.priority, job.payload, job.max_attempts) == (0, {"n": 1}, 4)


@needs(Feature.EDIT, Feature.DELAY)
async def test_a_job_can_be_called_earlier_or_later(driver: Driver):
    sooner = await driver.add(delay=timedelta(hours=2))
    later = await driver.add(delay=timedelta(minutes=1))
    await driver.engine.edit(sooner, JobChange(run_at=driver.now + timedelta(minutes=1)))
    await driver.engine.edit(later, JobChange(run_at=driver.now + timedelta(hours=2)))
    await driver.wait(timedelta(minutes=1))
    assert (await driver.state(sooner), await driver.state(later)) == (JobStatus.PENDING, JobStatus.SCHEDULED)


@needs(Feature.EDIT)
@each_state(HELD | FINISHED)
async def test_a_job_that_does_not_wait_cannot_be_changed(driver: Driver, case: EngineCase, state: JobStatus):
    planted = await driver.store.plant(driver.engine, state)
    before = await driver.job(planted.ref)
    assert await driver.engine.edit(planted.ref, JobChange(max_attempts=9)) is None
    assert await driver.job(planted.ref) == before


@needs(Feature.EDIT)
@each_state(WAITING)
async def test_a_job_that_waits_in_whatever_way_can_be_changed(driver: Driver, case: EngineCase, state: JobStatus):
    planted = await driver.store.plant(driver.engine, state)
    job = await driver.engine.edit(planted.ref, JobChange(max_attempts=9))
    assert job is not None
    assert (job.status, job.max_attempts) == (state, 9)


@needs(Feature.EDIT)
async def test_editing_what_is_not_there_answers_so(driver: Driver):
    ref = await driver.add()
    assert await driver.engine.edit(JobRef("elsewhere", ref.id), JobChange(max_attempts=9)) is None
    assert (await driver.job(ref)).max_attempts == 5


@needs(Feature.EDIT, Feature.PRIORITY)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", -1),
        ("max_attempts", 0),
        ("payload", encode_json({"text": "x" * 11_000_000}, max_size=2**30)),
    ],
    ids=["priority", "max_attempts", "payload-too-large"],
)
async def test_a_change_that_breaks_a_rule_is_refused_and_nothing_is_changed(
    driver: Driver, field: str, value: object
):  # B3, B4
    ref = await driver.add()
    before = await driver.job(ref)
    with pytest.raises(InvalidValue) as refusal:
        await driver.engine.edit(ref, JobChange(**{field: value}))  # type: ignore[arg-type]
    assert refusal.value.field == field
    assert await driver.job(ref) == before
