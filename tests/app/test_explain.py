"""Why a job is not running."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from onward import App, DoNotRetry, Job, JobNotFound, JobRef, JobStatus
from onward.clock import ManualClock
from onward.engine.values import Claim, ClaimRequest, QueueChange, QueueInfo, Rate, Settlement, WorkerInfo
from onward.explain import Reason, ReasonCode, explain
from onward.handle import JobHandle
from onward.lifecycle import Complete

LEASE = timedelta(seconds=30)


@pytest.fixture
def shop(app: App) -> App:
    @app.task(queue="mail")
    async def send_mail(to: str = "you") -> str:
        return to

    @app.task(queue="mail", max_attempts=2)
    async def broken() -> None:
        raise ValueError("no such address")

    @app.task(queue="mail")
    async def doomed() -> None:
        raise DoNotRetry("never")

    return app


async def put(app: App, name: str = "send_mail", **options: object) -> JobHandle[object]:
    handle: JobHandle[object] = await app._core.find_task(name).using(**options).enqueue()  # type: ignore[arg-type]
    return handle


async def hire(app: App, name: str = "w", *, queues: tuple[str, ...] = ("*",), claims: tuple[Claim, ...] = ()) -> None:
    """Let a worker be there, and say that it is alive."""
    info = WorkerInfo(id=name, hostname="here", pool_size=1, version="1", queues=queues, types=tuple(app.tasks))
    await app._core.engine.heartbeat(info, claims)


async def take(app: App, name: str = "w") -> Claim:
    (claim,) = (await app._core.engine.claim(ClaimRequest(worker_id=name, slots=1, lease=LEASE))).claims
    return claim


async def why(app: App, job: JobHandle[object]) -> list[ReasonCode]:
    return [reason.code for reason in await app.jobs.explain(job)]


async def told(app: App, job: JobHandle[object], kind: ReasonCode) -> Reason:
    (reason,) = [reason for reason in await app.jobs.explain(job) if reason.code is kind]
    return reason


async def test_a_job_that_nothing_keeps_waits_for_its_turn(shop: App):
    job = await put(shop)
    await put(shop)
    await hire(shop)
    assert await why(shop, job) == [ReasonCode.NEXT]
    assert "2 jobs are ready" in (await told(shop, job, ReasonCode.NEXT)).message


async def test_where_no_worker_serves_the_queue_it_is_said_what_they_serve(shop: App):
    job = await put(shop)
    assert await why(shop, job) == [ReasonCode.NO_WORKER]
    await hire(shop, queues=("video/*",))
    assert "video/*" in (await told(shop, job, ReasonCode.NO_WORKER)).message


async def test_workers_that_are_silent_serve_nothing(shop: App, clock: ManualClock):
    job = await put(shop)
    await hire(shop)
    clock.advance(LEASE + timedelta(seconds=1))
    assert await why(shop, job) == [ReasonCode.NO_WORKER]


async def test_a_task_that_no_worker_knows_is_named_with_the_nearest(shop: App):
    job = await put(shop)
    info = WorkerInfo(id="old", hostname="here", pool_size=1, version="1", types=("send_mial",))
    await shop._core.engine.heartbeat(info, ())
    assert "did you mean 'send_mial'" in (await told(shop, job, ReasonCode.NO_TASK)).message


async def test_a_paused_queue_and_how_to_resume_it(shop: App):
    job = await put(shop)
    await hire(shop)
    await shop.queues.pause("mail")
    assert (await told(shop, job, ReasonCode.PAUSED)).remedy == "onward queues resume mail"


async def test_a_full_queue_and_who_fills_it(shop: App):
    first, job = await put(shop), await put(shop)
    await hire(shop)
    await shop._core.engine.configure("mail", QueueChange(global_concurrency=1))
    await take(shop)
    reason = await told(shop, job, ReasonCode.CONCURRENCY)
    assert first.id in reason.message
    assert job.id not in reason.message
    assert await why(shop, job) == [ReasonCode.CONCURRENCY]


async def test_a_rate_and_when_the_next_slot_is(shop: App, clock: ManualClock):
    await put(shop)
    job = await put(shop)
    await hire(shop)
    await shop._core.engine.configure("mail", QueueChange(rate=Rate(1, timedelta(minutes=1))))
    claim = await take(shop)
    await shop._core.engine.settle([Settlement(claim, Complete())])
    reason = await told(shop, job, ReasonCode.RATE)
    assert reason.until is not None
    assert timedelta(0) < reason.until - clock.now() < timedelta(seconds=62)


async def test_a_delay_and_its_end(shop: App, clock: ManualClock):
    job = await put(shop, delay=60)
    await hire(shop)
    assert (await told(shop, job, ReasonCode.DELAYED)).until == clock.now() + timedelta(seconds=60)


async def test_a_retry_says_what_went_wrong(shop: App):
    job = await put(shop, "broken")
    await shop.tick()
    await hire(shop)
    assert "no such address" in (await told(shop, job, ReasonCode.DELAYED)).message


async def test_what_is_due_where_nobody_leads(shop: App, clock: ManualClock):
    job = await put(shop, delay=60)
    clock.advance(61)
    await hire(shop)
    assert await why(shop, job) == [ReasonCode.NO_LEADER]
    await shop._core.engine.elect("w", lease=LEASE)
    assert await why(shop, job) == [ReasonCode.DELAYED]


async def test_a_job_that_runs_and_where(shop: App):
    job = await put(shop)
    claim = await take(shop)
    await hire(shop, claims=(claim,))
    reason = await told(shop, job, ReasonCode.RUNNING)
    assert "w since" in reason.message


async def test_a_job_in_the_hands_of_the_dead(shop: App, clock: ManualClock):
    job = await put(shop)
    claim = await take(shop)
    await hire(shop, claims=(claim,))
    clock.advance(LEASE + timedelta(seconds=1))
    assert (await told(shop, job, ReasonCode.WORKER_DEAD)).remedy == "onward work"
    await hire(shop, "another")
    assert (await told(shop, job, ReasonCode.WORKER_DEAD)).until == clock.now()


async def test_a_suspect_and_all_else_that_keeps_it(shop: App, clock: ManualClock):
    job = await put(shop)
    for _ in range(2):
        await take(shop, "dead")
        clock.advance(LEASE + timedelta(seconds=1))
        term = await shop._core.engine.elect("w", lease=LEASE)
        assert term is not None
        await shop._core.engine.rescue(term, lease=LEASE, max_crashes=3)
    await shop.queues.pause("mail")
    assert await why(shop, job) == [ReasonCode.PAUSED, ReasonCode.NO_WORKER, ReasonCode.SUSPECT]


@pytest.mark.parametrize(
    ("name", "says", "remedy"),
    [("send_mail", "completed", False), ("doomed", "never", True), ("broken", "used up (2 of 2)", True)],
)
async def test_a_job_that_has_ended_and_how(shop: App, clock: ManualClock, name: str, says: str, remedy: bool):
    job = await put(shop, name)
    await shop.tick()
    clock.advance(3600)
    await shop.tick()
    reason = await told(shop, job, ReasonCode.ENDED)
    assert says in reason.message
    assert reason.remedy == (f"onward jobs replay {job.ref}" if remedy else "")


async def test_a_job_that_was_cancelled_and_why(shop: App):
    job = await put(shop)
    await shop.jobs.cancel(job, reason="withdrawn")
    assert "withdrawn" in (await told(shop, job, ReasonCode.ENDED)).message


async def test_a_job_that_there_is_not(shop: App):
    with pytest.raises(JobNotFound):
        await shop.jobs.explain(JobRef("mail", "01900000-0000-7000-8000-000000000000"))


async def test_a_job_that_ended_its_processes_is_not_said_to_have_used_up_its_attempts(shop: App, clock: ManualClock):
    job = await (await put(shop)).info()
    buried = replace(job, status=JobStatus.DEAD_LETTER, crashes=3, last_error="ProcessDied: killed by SIGKILL")

    def message(job: Job) -> str:
        queue = QueueInfo(name=job.queue)
        (reason,) = explain(job, queue=queue, workers=(), held_jobs=(), now=clock.now(), lease=LEASE)
        return reason.message

    assert message(buried).startswith("it ended 3 child processes in which it ran alone: ProcessDied")
    assert "attempts" not in message(buried)
    assert message(replace(buried, crashes=1)).startswith("it ended one child process in which")
    assert message(replace(buried, crashes=1, attempts=5)).startswith("its attempts are used up (5 of 5)")
    assert message(replace(buried, crashes=0, attempts=5)).startswith("its attempts are used up (5 of 5)")
