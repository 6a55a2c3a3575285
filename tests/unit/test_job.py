"""The values that people see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from onward.engine.values import Rate
from onward.job import Enqueued, EnqueueStatus, Job, JobRef, NewJob, UniformJobs
from onward.lifecycle import JobStatus

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_a_job_carries_what_the_rules_ask_for():  # O2
    assert set(Job.__struct_fields__) >= {
        "id",
        "type",
        "queue",
        "org_id",
        "payload",
        "status",
        "priority",
        "idempotency_key",
        "dedupe_key",
        "worker_id",
        "attempts",
        "max_attempts",
        "crashes",
        "last_error",
        "errors",
        "next_run_at",
        "start_by",
        "created_at",
        "claimed_at",
        "started_at",
        "completed_at",
        "updated_at",
        "result",
    }


def test_a_job_is_named_by_its_queue_and_its_id():  # O2
    job = Job(id="1", type="t", queue="mail", status=JobStatus.PENDING, created_at=NOW, updated_at=NOW)
    assert job.ref == JobRef("mail", "1") != JobRef("news", "1")
    assert str(job.ref) == "mail:1"


def test_a_job_has_five_attempts_and_no_priority_unless_told_otherwise():  # Counting
    job = Job(id="1", type="t", queue="mail", status=JobStatus.PENDING, created_at=NOW, updated_at=NOW)
    assert (job.attempts, job.max_attempts, job.crashes, job.priority) == (0, 5, 0, 0)


@pytest.mark.parametrize("value", [JobRef("q", "1"), NewJob(type="t"), Enqueued(JobRef("q", "1"))])
def test_values_cannot_be_changed(value):
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0], "x")


@pytest.mark.parametrize(
    ("enqueue_status", "is_new"),
    [(EnqueueStatus.INSERTED, True), (EnqueueStatus.SAME_KEY, False), (EnqueueStatus.DEDUPED, False)],
)
def test_an_answer_says_whether_this_call_made_the_job(enqueue_status, is_new):  # O4, H5
    enqueued = Enqueued(JobRef("mail", "7"), enqueue_status)
    assert (enqueued.id, enqueued.is_new) == ("7", is_new)


def test_a_job_can_be_written_as_json_and_read_back():
    job = Job(id="1", type="t", queue="mail", status=JobStatus.DEAD_LETTER, created_at=NOW, updated_at=NOW, payload=[1])
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job


@pytest.mark.parametrize("rate", [Rate(1), Rate(600), Rate(600, burst=20), Rate(5, timedelta(milliseconds=10), 5)])
def test_slots_one_more_than_the_rate_never_fit_into_its_period(rate):
    # After a burst, the slots of `count + 1` starts are spread over more than a period.
    assert rate.spacing * (rate.count - rate.burst + 1) > rate.period


def test_jobs_that_are_alike_are_a_sequence_of_jobs():
    jobs = UniformJobs(NewJob(type="mail", priority=3), ["1", "2", "3"])
    each = [NewJob(type="mail", priority=3, payload=payload) for payload in ("1", "2", "3")]
    assert list(jobs) == each
    assert (len(jobs), jobs[-1], list(jobs[1:])) == (3, each[2], each[1:])
