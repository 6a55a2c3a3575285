"""The small face for code that brings its own loop."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from onward import App, ClaimLost, InvalidPayload, InvalidValue, JobStatus, StoreUnavailable
from onward.clock import ManualClock
from onward.contrib.harmonyk import JobsRepository, simplified_status, view_script
from onward.engine.values import Settlement, Token


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def app(clock: ManualClock) -> AsyncIterator[App]:
    app = App("sqlite://", clock=clock)
    yield app
    await app.close()


@pytest.fixture
def repository(app: App) -> JobsRepository:
    return JobsRepository(app)


async def test_jobs_are_enqueued_claimed_and_marked(app: App, repository: JobsRepository):  # H6
    id = await repository.enqueue("send-mail", "acme", {"to": "a"})
    (claim,) = await repository.claim(limit=5)
    assert (claim.ref.id, claim.type, claim.org_id, claim.payload) == (id, "send-mail", "acme", '{"to":"a"}')
    assert simplified_status((await app.jobs.get(id)).status) == "running"
    await repository.mark_success(id, {"sent": True})
    job = await app.jobs.get(id)
    assert (simplified_status(job.status), job.result) == ("success", {"sent": True})


async def test_a_job_waits_for_its_time(app: App, repository: JobsRepository, clock: ManualClock):  # H6
    id = await repository.enqueue("send-mail", run_at=clock.now() + timedelta(minutes=5))
    assert await repository.claim() == []
    assert simplified_status((await app.jobs.get(id)).status) == "queued"


async def test_a_failure_is_retried_until_its_attempts_are_used_up(
    app: App, repository: JobsRepository, clock: ManualClock
):  # H3, H6
    @app.task(max_attempts=2)
    async def send_mail(to: str) -> None: ...

    id = await repository.enqueue("send_mail", payload={"to": "a"})
    await repository.claim()
    await repository.mark_failure(id, "the post office is closed")
    job = await app.jobs.get(id)
    assert (simplified_status(job.status), job.attempts) == ("queued", 1)
    assert job.next_run_at == clock.now() + timedelta(seconds=1)
    clock.advance(1)
    await _promote(app)
    await repository.claim()
    await repository.mark_failure(id, TimeoutError("again"))
    job = await app.jobs.get(id)
    assert (job.status, simplified_status(job.status)) == (JobStatus.DEAD_LETTER, "failed")
    assert job.last_error == "TimeoutError: again"


async def _promote(app: App) -> None:
    term = await app._core.engine.elect("me", lease=timedelta(seconds=30))
    assert term is not None
    await app._core.engine.promote(term)
    await app._core.engine.resign(term)


async def test_only_what_was_claimed_here_can_be_marked(app: App, repository: JobsRepository):  # H6, X3
    id = await repository.enqueue("send-mail")
    other = JobsRepository(app)
    await other.claim()
    for mark in (repository.mark_success(id), repository.mark_failure(id, "x")):
        with pytest.raises(ClaimLost, match=f"job {id} is not held by this repository"):
            await mark
    await other.mark_success(id)
    with pytest.raises(ClaimLost):
        await other.mark_success(id)


async def test_who_was_too_slow_cannot_mark(app: App, repository: JobsRepository, clock: ManualClock):  # H6, X3
    id = await repository.enqueue("send-mail")
    await repository.claim()
    clock.advance(31)
    await app.tick()
    with pytest.raises(ClaimLost, match="given to somebody else"):
        await repository.mark_success(id)


async def test_a_mark_that_the_store_did_not_take_can_be_made_again(
    app: App, repository: JobsRepository, monkeypatch: pytest.MonkeyPatch
):
    async def away(settlements: Sequence[Settlement]) -> frozenset[Token]:
        raise StoreUnavailable("away")

    id = await repository.enqueue("send-mail")
    await repository.claim()
    with monkeypatch.context() as patched:
        patched.setattr(app._core.engine, "settle", away)
        with pytest.raises(StoreUnavailable):
            await repository.mark_success(id)
    await repository.mark_success(id)
    assert (await app.jobs.get(id)).status is JobStatus.COMPLETED
    assert not repository._claims, "what is marked is not kept"


async def test_a_known_type_gets_its_task_s_options_and_is_held_to_its_arguments(app: App, repository: JobsRepository):
    @app.task(queue="mail/{org_id}", max_attempts=9)
    async def send_mail(to: str) -> None: ...

    job = await app.jobs.get(await repository.enqueue("send_mail", "acme", {"to": "a"}))
    assert (job.queue, job.org_id, job.max_attempts) == ("mail/acme", "acme", 9)
    with pytest.raises(InvalidPayload, match=r"payload\.too"):
        await repository.enqueue("send_mail", "acme", {"too": "a"})


def test_every_state_has_one_of_the_four_words():  # H6
    assert {state: simplified_status(state) for state in JobStatus} == {
        JobStatus.SCHEDULED: "queued",
        JobStatus.BLOCKED: "queued",
        JobStatus.PENDING: "queued",
        JobStatus.CLAIMED: "running",
        JobStatus.RUNNING: "running",
        JobStatus.COMPLETED: "success",
        JobStatus.FAILED: "failed",
        JobStatus.DEAD_LETTER: "failed",
        JobStatus.CANCELLED: "failed",
    }


async def test_a_view_with_the_four_words_is_made_on_request(tmp_path: Path):  # H6
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    async with app:
        await JobsRepository(app).enqueue("report", "acme", {"n": 1})
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
            connection.executescript(view_script(app))
            rows = connection.execute("select type, org_id, status from harmonyk_jobs").fetchall()
    assert rows == [("report", "acme", "queued")]
    with pytest.raises(InvalidValue, match="plain SQL name"):
        view_script(app, "jobs; drop table x")
