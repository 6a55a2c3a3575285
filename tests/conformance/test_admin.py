"""The buttons that people press: cancel, replay, delete, edit."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.capabilities import Feature
from onward.engine.values import Changed, JobChange, JobFilter
from onward.errors import InvalidJob
from onward.job import JobRef
from onward.lifecycle import FINISHED, HELD, WAITING, Bury, Cancel, Complete, Fail, Retry, State
from onward.validation import encode_json
from tests.conformance.cases import BOOM, EngineCase, each_state, needs
from tests.conformance.driver import PAST_LEASE, Desk

# Cancel ---------------------------------------------------------------------------------------------------------------


@needs(Feature.CANCELLED_STATE)
async def test_a_cancelled_job_says_why_and_when_and_never_runs(desk: Desk):
    ref = await desk.add()
    await desk.advance(5)
    assert await desk.cancel(ref, reason="ordered twice") == [Changed(ref, State.PENDING)]
    job = await desk.job(ref)
    assert (job.status, job.completed_at, job.updated_at) == (State.CANCELLED, desk.now, desk.now)
    assert job.last_error is not None
    assert "ordered twice" in job.last_error
    assert await desk.take() == ()


async def test_a_running_job_is_taken_from_its_worker_which_learns_of_it(desk: Desk):  # X3
    ref = await desk.add()
    other = await desk.add()
    claim, kept = await desk.take(slots=2)
    assert claim.ref == ref
    assert await desk.cancel(ref) == [Changed(ref, State.RUNNING)]
    before = await desk.engine.get(ref)
    pulse = await desk.beat(claim, kept)
    assert (pulse.lost, pulse.cancelled) == ({claim.token}, {claim.token})
    assert not await desk.end(claim, Complete())
    assert not await desk.end(claim, Retry(timedelta(0), BOOM))
    assert await desk.engine.get(ref) == before
    assert await desk.end(kept, Complete())
    assert await desk.state(other) is State.COMPLETED
    await desk.advance(PAST_LEASE)
    assert (await desk.rescue()).changed == 0


@needs(Feature.CLAIMED_STATE)
async def test_a_claimed_job_that_is_cancelled_is_not_started(desk: Desk):  # X3
    ref = await desk.add()
    (claim,) = await desk.take_ahead()
    assert await desk.cancel(ref) == [Changed(ref, State.CLAIMED)]
    assert await desk.engine.start([claim]) == {claim.token}


@needs(Feature.DELAY)
async def test_a_job_that_is_not_due_can_be_cancelled(desk: Desk):
    ref = await desk.add(delay=timedelta(hours=1))
    assert await desk.cancel(ref) == [Changed(ref, State.SCHEDULED)]
    assert (await desk.wait(timedelta(hours=2))).changed == 0
    assert await desk.take() == ()


async def test_cancelling_by_filter_moves_what_may_be_moved_and_names_it(desk: Desk):
    done = await desk.add(type="send")
    await desk.end(await desk.take_one(), Complete())
    running = await desk.add(type="send")
    await desk.take_one()
    pending = await desk.add(type="send")
    other = await desk.add(type="keep")
    changed = await desk.engine.cancel(JobFilter(types=("send",)))
    assert {change.ref: change.before for change in changed} == {running: State.RUNNING, pending: State.PENDING}
    assert (await desk.state(done), await desk.state(other)) == (State.COMPLETED, State.PENDING)


async def test_cancelling_stops_at_its_limit(desk: Desk):
    await desk.add_many(5)
    assert [len(await desk.engine.cancel(JobFilter(), limit=2)) for _ in range(4)] == [2, 2, 1, 0]


async def test_cancelling_what_is_not_there_changes_nothing(desk: Desk):
    ref = await desk.add()
    assert await desk.cancel(JobRef("elsewhere", ref.id)) == []
    assert await desk.cancel() == []
    assert await desk.state(ref) is State.PENDING


# Dead letters and replay ----------------------------------------------------------------------------------------------


async def buried(desk: Desk, **fields: object) -> JobRef:
    """Add a job and use its attempts up."""
    ref = await desk.add(max_attempts=1, **fields)
    claim = await desk.take_one(ref.queue)
    assert claim.ref == ref
    assert await desk.end(claim, Bury(BOOM))
    return ref


@needs(Feature.REPLAY)
async def test_dead_letters_can_be_listed_inspected_replayed_and_purged(desk: Desk):  # O8
    refs = [await buried(desk, queue=queue, type=type) for queue, type in [("a", "x"), ("a", "y"), ("b", "x")]]
    alive = await desk.add(queue="a")
    dead = JobFilter(states=frozenset({State.DEAD_LETTER}))
    assert await desk.found(dead) == set(refs)
    job = await desk.job(refs[0])
    assert (job.last_error, job.attempts, job.max_attempts) == ("ValueError: boom", 1, 1)

    assert await desk.replay(refs[0]) == [Changed(refs[0], desk.shown(State.DEAD_LETTER))]
    assert await desk.found(dead) == set(refs[1:])

    changed = await desk.engine.delete(JobFilter(states=frozenset({State.DEAD_LETTER}), queues=("b",)))
    assert changed == [Changed(refs[2], desk.shown(State.DEAD_LETTER))]
    assert await desk.engine.get(refs[2]) is None
    assert await desk.found(dead) == {refs[1]}
    assert await desk.state(alive) is State.PENDING


@needs(Feature.REPLAY)
async def test_a_replayed_job_is_ready_with_all_its_attempts(desk: Desk):  # O8
    ref = await desk.add(max_attempts=2)
    for _ in range(2):
        claim = await desk.take_one()
        if claim.attempts == 1:
            assert await desk.end(claim, Retry(timedelta(0), BOOM))
            await desk.promote()
        else:
            assert await desk.end(claim, Bury(BOOM))
    await desk.advance(10)
    assert await desk.replay(ref) == [Changed(ref, desk.shown(State.DEAD_LETTER))]
    job = await desk.job(ref)
    assert (job.status, job.attempts, job.crashes, job.completed_at) == (State.PENDING, 0, 0, None)
    claim = await desk.take_one()
    assert (claim.ref, claim.attempts, claim.max_attempts) == (ref, 1, 2)
    assert claim.waited == 0 or not desk.keeps_change_times


@needs(Feature.REPLAY, Feature.READY_ORDER)
async def test_a_replayed_job_goes_behind_those_that_were_ready_before_it(desk: Desk):  # O3, O8
    ref = await buried(desk)
    await desk.advance(1)
    waiting = await desk.add()
    await desk.advance(1)
    await desk.replay(ref)
    await desk.advance(1)
    later = await desk.add()
    assert await desk.taken() == [waiting, ref, later]


@needs(Feature.REPLAY, Feature.SUSPECTS)
async def test_replaying_clears_suspicion(desk: Desk):  # O8, Counting
    ref = await desk.add()
    await desk.lose(await desk.take_one())
    await desk.lose(await desk.take_one(alone=True), max_crashes=1)
    assert await desk.state(ref) is State.DEAD_LETTER
    await desk.replay(ref)
    job = await desk.job(ref)
    assert (job.crashes, job.is_suspect) == (0, False)
    assert (await desk.take_one()).ref == ref


@needs(Feature.REPLAY, Feature.CANCELLED_STATE)
async def test_many_ended_jobs_are_replayed_by_filter_and_completed_ones_never(desk: Desk):  # O8
    dead = await buried(desk)
    failed = await desk.add()
    await desk.end(await desk.take_one(), Fail(BOOM))
    cancelled = await desk.add()
    await desk.cancel(cancelled)
    done = await desk.add()
    await desk.end(await desk.take_one(), Complete())
    changed = await desk.engine.replay(JobFilter())
    assert {change.ref for change in changed} == {dead, failed, cancelled}
    assert await desk.state(done) is State.COMPLETED


@needs(Feature.REPLAY, Feature.CANCELLED_STATE)
async def test_dead_letters_are_found_by_what_went_wrong(desk: Desk):  # O8
    ref = await buried(desk)
    other = await desk.add()
    await desk.end(await desk.take_one(), Cancel("by hand"))
    assert await desk.found(JobFilter(error_contains="boom")) == {ref}
    assert [change.ref for change in await desk.engine.replay(JobFilter(error_contains="boom"))] == [ref]
    assert await desk.state(other) in FINISHED


@needs(Feature.REPLAY)
async def test_replaying_stops_at_its_limit(desk: Desk):
    for _ in range(3):
        await buried(desk)
    assert [len(await desk.engine.replay(JobFilter(), limit=2)) for _ in range(3)] == [2, 1, 0]


@needs(Feature.REPLAY, Feature.CANCELLED_STATE)
async def test_the_claim_of_a_former_life_is_refused(desk: Desk):  # X3
    ref = await desk.add()
    old = await desk.take_one()
    await desk.cancel(ref)
    await desk.replay(ref)
    assert not await desk.end(old, Complete())
    new = await desk.take_one()
    assert not await desk.end(old, Complete())
    assert await desk.end(new, Complete())


# Delete ---------------------------------------------------------------------------------------------------------------


@each_state()
async def test_a_job_is_deleted_unless_it_is_held(desk: Desk, case: EngineCase, state: State):
    planted = await desk.store.plant(desk.engine, state)
    changed = await desk.engine.delete(JobFilter(refs=(planted.ref,)))
    if state in HELD:
        assert changed == []
        assert await desk.state(planted.ref) is state
    else:
        assert changed == [Changed(planted.ref, state)]
        assert await desk.engine.get(planted.ref) is None
        assert not await desk.end(planted.claim, Complete())
        assert await desk.jobs() == ()


async def test_deleting_stops_at_its_limit(desk: Desk):
    await desk.add_many(5)
    assert [len(await desk.engine.delete(JobFilter(), limit=2)) for _ in range(4)] == [2, 2, 1, 0]


@needs(Feature.LOG_LINES)
async def test_a_deleted_job_takes_its_log_along(desk: Desk):
    ref = await desk.add()
    claim = await desk.take_one()
    await desk.engine.report(claim, lines=["one"])
    await desk.end(claim, Complete())
    await desk.engine.delete(JobFilter(refs=(ref,)))
    assert await desk.engine.log_lines(ref) == []


async def test_an_old_claim_never_names_a_job_that_came_after(desk: Desk):  # X3
    ref = await desk.add()
    old = await desk.take_one()
    await desk.cancel(ref)
    await desk.engine.delete(JobFilter(refs=(ref,)))
    await desk.advance(0.001)
    new = await desk.add()
    claim = await desk.take_one()
    assert claim.token != old.token
    assert not await desk.end(old, Complete())
    assert (await desk.beat(old, claim)).lost == {old.token}
    assert await desk.state(new) is State.RUNNING


# Edit -----------------------------------------------------------------------------------------------------------------


@needs(Feature.EDIT, Feature.PRIORITY)
async def test_a_waiting_job_can_be_changed(desk: Desk):
    plain, urgent = await desk.add(), await desk.add()
    await desk.advance(3)
    job = await desk.engine.edit(urgent, JobChange(priority=9, payload='{"n": 2}', max_attempts=8))
    assert job is not None
    assert (job.priority, job.payload, job.max_attempts) == (9, {"n": 2}, 8)
    assert job.updated_at == desk.now or not desk.keeps_change_times
    assert job == await desk.job(urgent)
    assert await desk.taken() == [urgent, plain]


@needs(Feature.EDIT)
async def test_what_is_not_given_stays_as_it_is(desk: Desk):
    ref = await desk.add(payload='{"n": 1}', max_attempts=3)
    job = await desk.engine.edit(ref, JobChange(max_attempts=4))
    assert job is not None
    assert (job.priority, job.payload, job.max_attempts) == (0, {"n": 1}, 4)


@needs(Feature.EDIT, Feature.DELAY)
async def test_a_job_can_be_called_earlier_or_later(desk: Desk):
    sooner = await desk.add(delay=timedelta(hours=2))
    later = await desk.add(delay=timedelta(minutes=1))
    await desk.engine.edit(sooner, JobChange(run_at=desk.now + timedelta(minutes=1)))
    await desk.engine.edit(later, JobChange(run_at=desk.now + timedelta(hours=2)))
    await desk.wait(timedelta(minutes=1))
    assert (await desk.state(sooner), await desk.state(later)) == (State.PENDING, State.SCHEDULED)


@needs(Feature.EDIT)
@each_state(HELD | FINISHED)
async def test_a_job_that_does_not_wait_cannot_be_changed(desk: Desk, case: EngineCase, state: State):
    planted = await desk.store.plant(desk.engine, state)
    before = await desk.job(planted.ref)
    assert await desk.engine.edit(planted.ref, JobChange(max_attempts=9)) is None
    assert await desk.job(planted.ref) == before


@needs(Feature.EDIT)
@each_state(WAITING)
async def test_a_job_that_waits_in_whatever_way_can_be_changed(desk: Desk, case: EngineCase, state: State):
    planted = await desk.store.plant(desk.engine, state)
    job = await desk.engine.edit(planted.ref, JobChange(max_attempts=9))
    assert job is not None
    assert (job.status, job.max_attempts) == (state, 9)


@needs(Feature.EDIT)
async def test_editing_what_is_not_there_answers_so(desk: Desk):
    ref = await desk.add()
    assert await desk.engine.edit(JobRef("elsewhere", ref.id), JobChange(max_attempts=9)) is None
    assert (await desk.job(ref)).max_attempts == 5


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
    desk: Desk, field: str, value: object
):  # B3, B4
    ref = await desk.add()
    before = await desk.job(ref)
    with pytest.raises(InvalidJob) as refusal:
        await desk.engine.edit(ref, JobChange(**{field: value}))  # type: ignore[arg-type]
    assert refusal.value.field == field
    assert await desk.job(ref) == before
