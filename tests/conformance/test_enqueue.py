"""What is put in comes out: every field, by every way of asking."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from onward.backoff import Backoff
from onward.engine.capabilities import Feature
from onward.engine.values import Claim, GroupBy
from onward.errors import InvalidValue, OnwardError, PayloadTooLarge
from onward.job import EnqueueStatus, FailedAttempt, JobRef, UniformJobs
from onward.lifecycle import Complete, JobStatus, Retry
from onward.validation import encode_json
from tests.conformance.cases import BOOM, EngineCase, needs
from tests.conformance.driver import EVERY, Driver, new_job

PAYLOADS: list[Any] = [
    {},
    {"to": "ada@example.com", "tries": 3, "ratio": 0.1, "urgent": True, "cc": None},
    {"text": 'naïve – 東京 – 🚀 "quoted" back\\slash\nline\ttab \u2028 \'; drop table onward_job; --'},
    {"deep": [[{"er": [1, [2, [3]]]}]]},
    {"big": 2**53, "small": -(2**53), "tiny": 5e-324, "huge": 1.7976931348623157e308},
    [1, "two", None],
    "text",
    0,
    None,
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: json.dumps(payload)[:20])
async def test_a_payload_comes_back_as_it_went_in(driver: Driver, payload: Any):  # O2
    ref = await driver.add(payload=encode_json(payload))
    assert (await driver.job(ref)).payload == payload
    claim = await driver.take_one()
    assert json.loads(claim.payload) == payload


async def test_a_plain_job_has_the_defaults_and_is_ready(driver: Driver):  # O2
    ref = await driver.add()
    job = await driver.job(ref)
    assert (job.type, job.queue, job.status, job.payload) == ("greet", "default", JobStatus.PENDING, {})
    assert (job.attempts, job.max_attempts, job.crashes, job.is_suspect, job.priority) == (0, 5, 0, False, 0)
    assert (job.created_at, job.updated_at) == (driver.now, driver.now)
    for field in ("org_id", "idempotency_key", "dedupe_key", "worker_id", "last_error", "progress", "result"):
        assert getattr(job, field) is None, field
    assert (job.claimed_at, job.started_at, job.completed_at, job.start_by, job.errors) == (None, None, None, None, ())


@needs(Feature.PRIORITY, Feature.DELAY, Feature.START_BY, Feature.IDEMPOTENCY, Feature.DEDUPLICATION)
@needs(Feature.ORGANISATIONS)
async def test_every_field_that_is_given_is_kept(driver: Driver):  # O2
    backoff = Backoff.exponential(3, factor=1.5, cap=77, jitter=0.25)
    fields: dict[str, Any] = {
        "type": "mail.send",
        "payload": '{"to":"ada"}',
        "queue": "mail/acme",
        "org_id": "acme",
        "priority": 7,
        "idempotency_key": "order-1",
        "dedupe_key": "mail.send::acme::{}",
        "run_at": driver.now + timedelta(minutes=2),
        "start_by": driver.now + timedelta(minutes=3),
        "max_attempts": 4,
        "backoff": backoff,
    }
    ref = await driver.add(**fields)
    job = await driver.job(ref)
    assert ref.queue == job.queue
    assert job.ref == ref
    assert (job.status, job.next_run_at, job.payload) == (JobStatus.SCHEDULED, fields["run_at"], {"to": "ada"})
    for field in fields.keys() - {"run_at", "payload"}:
        assert getattr(job, field) == fields[field], field

    await driver.wait(timedelta(minutes=2))
    claim = await driver.take_one("mail/acme")
    assert (claim.ref, claim.type, claim.org_id, claim.priority) == (ref, "mail.send", "acme", 7)
    assert (claim.max_attempts, claim.backoff, claim.attempts, claim.started) == (4, backoff, 1, True)


async def test_what_tracing_sends_along_comes_with_the_claim_and_with_each_later_one(driver: Driver):  # X1
    await driver.make("default")
    headers = encode_json(
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "a='b'"}
    )
    plain, traced = new_job(), new_job(trace=headers)
    jobs = [plain, traced, new_job(trace=headers, max_attempts=7)]
    await driver.engine.enqueue(jobs)
    await driver.engine.enqueue(UniformJobs(traced, ["{}"] * 400))  # many, which some stores take in by another way
    await driver.engine.enqueue(UniformJobs(traced, ["{}"]))
    claims: list[Claim] = []
    while taken := await driver.take(slots=500):
        claims += taken
    assert [claim.trace for claim in claims] == [None] + [headers] * 403
    assert await driver.end(claims[1], Retry(timedelta(seconds=1), BOOM))
    await driver.wait(1)
    assert (await driver.take_one()).trace == headers

    names = [f"mail-{number}" for number in range(20)]
    for name in names:
        await driver.add(queue=name, trace=headers)
    assert [claim.trace for claim in await driver.take(*names, slots=20)] == [headers] * 20


@needs(Feature.DEDUPLICATION)
async def test_what_tracing_sends_along_comes_with_a_job_that_has_a_key(driver: Driver):  # X1
    await driver.add(dedupe_key="k", trace='{"traceparent":"00-1-2-01"}')
    assert (await driver.take_one()).trace == '{"traceparent":"00-1-2-01"}'


@pytest.mark.parametrize("trace", ["", "[]", "{", '{"a":"' + "x" * 8192 + '"}', 7])
async def test_headers_that_are_none_are_refused(driver: Driver, trace: Any):
    with pytest.raises(InvalidValue, match="trace"):
        await driver.enqueue(trace=trace)


@needs(Feature.RESULTS, Feature.ERROR_HISTORY, Feature.CLAIMED_STATE)
async def test_every_moment_of_a_life_is_kept_apart(driver: Driver):  # O2
    created = driver.now
    ref = await driver.add(max_attempts=3)

    await driver.advance(1)
    (claim,) = await driver.take_ahead(worker="worker-7")
    job = await driver.job(ref)
    assert (job.status, job.claimed_at, job.started_at, job.worker_id) == (
        JobStatus.CLAIMED,
        driver.now,
        None,
        "worker-7",
    )
    assert (job.created_at, job.updated_at, job.attempts) == (created, driver.now, 0)

    await driver.advance(2)
    assert not await driver.engine.start([claim])
    job = await driver.job(ref)
    assert (job.status, job.started_at, job.attempts) == (JobStatus.RUNNING, driver.now, 1)
    assert (job.claimed_at, job.updated_at) == (driver.now - timedelta(seconds=2), driver.now)

    await driver.advance(4)
    failed_at = driver.now
    assert await driver.end(claim, Retry(timedelta(seconds=8), BOOM))
    job = await driver.job(ref)
    assert (job.status, job.next_run_at) == (JobStatus.SCHEDULED, driver.now + timedelta(seconds=8))
    assert (job.completed_at, job.updated_at, job.last_error) == (None, driver.now, "ValueError: boom")
    assert job.errors == (
        FailedAttempt(
            attempt=1,
            at=failed_at,
            error_type="ValueError",
            message="boom",
            traceback=BOOM.traceback,
            worker_id="worker-7",
        ),
    )

    await driver.wait(8)
    again = await driver.take_one(worker="worker-8")
    taken_at = driver.now
    await driver.advance(16)
    assert await driver.end(again, Complete('{"answer": 42}'))
    job = await driver.job(ref)
    assert (job.status, job.result, job.attempts) == (JobStatus.COMPLETED, {"answer": 42}, 2)
    assert (job.created_at, job.claimed_at, job.started_at) == (created, taken_at, taken_at)
    assert (job.completed_at, job.updated_at) == (driver.now, driver.now)


@needs(Feature.CHANGE_TIMES)
async def test_the_store_keeps_updated_at_even_when_a_row_is_changed_by_hand(driver: Driver):  # O2
    ref = await driver.add()
    before = await driver.job(ref)
    await driver.store.edit_by_hand(ref)
    after = await driver.job(ref)
    assert after.payload == {"by": "hand"}
    assert after.updated_at > before.updated_at
    assert after.created_at == before.created_at


async def test_ids_differ_and_native_ones_are_uuids_of_version_7(driver: Driver, case: EngineCase):  # O2
    ids = [ref.id for ref in [*await driver.add_many(50), await driver.add(), await driver.add(queue="other")]]
    if case.has_native_ids:
        assert len(set(ids)) == len(ids)
        assert {UUID(id).version for id in ids} == {7}
        assert [str(UUID(id)) for id in ids] == ids
    else:
        assert len(set(ids[:51])) == 51


async def test_a_job_is_found_by_its_name_and_by_a_bare_id_where_ids_are_global(driver: Driver, case: EngineCase):  # O2
    ref = await driver.add(queue="here")
    await driver.add(queue="there")
    elsewhere = await driver.engine.get(JobRef("there", ref.id))
    assert elsewhere is None or (elsewhere.queue == "there" and not case.has_native_ids)
    if case.capabilities.has_global_ids:
        job = await driver.engine.get(ref.id)
        assert job is not None
        assert job.ref == ref
    assert await driver.engine.get(JobRef("here", "00000000-0000-7000-8000-000000000000")) is None


async def test_bulk_answers_for_each_job_in_the_order_asked(driver: Driver):
    jobs = [new_job(queue=f"q{n % 3}", payload=str(n)) for n in range(30)]
    answers = await driver.put(jobs)
    assert [answer.enqueue_status for answer in answers] == [EnqueueStatus.INSERTED] * 30
    assert [answer.ref.queue for answer in answers] == [job.queue for job in jobs]
    assert [(await driver.job(answer.ref)).payload for answer in answers] == list(range(30))


async def test_an_empty_bulk_is_no_job(driver: Driver):
    assert await driver.put([]) == []
    assert await driver.jobs() == ()


async def test_code_without_an_event_loop_can_enqueue(driver: Driver):
    await driver.make("default")
    (answer,) = await asyncio.to_thread(driver.engine.enqueue_sync, [new_job(payload='{"from": "a thread"}')])
    assert answer.is_new
    assert (await driver.job(answer.ref)).payload == {"from": "a thread"}


async def test_what_one_handle_puts_in_another_sees_and_takes(driver: Driver):
    ref = await driver.add()
    other = Driver(driver.store, await driver.store.connect())
    assert await other.job(ref) == await driver.job(ref)
    assert (await other.take_one()).ref == ref
    assert await driver.state(ref) is JobStatus.RUNNING


async def test_jobs_outlive_the_program_that_put_them_in(driver: Driver):  # X3
    refs = await driver.add_many(3)
    reopened = Driver(driver.store, await driver.store.reconnect(driver.engine))
    assert await reopened.taken() == refs


# Bad input ------------------------------------------------------------------------------------------------------------

BAD_JOBS: list[tuple[str, dict[str, Any]]] = [
    ("type", {"type": ""}),
    ("type", {"type": " "}),
    ("type", {"type": "nul\0"}),
    ("type", {"type": "t" * 256}),
    ("queue", {"queue": "Mail"}),
    ("queue", {"queue": "mail//acme"}),
    ("queue", {"queue": "/mail"}),
    ("queue", {"queue": "mail/*"}),
    ("queue", {"queue": ""}),
    ("queue", {"queue": "q" * 121}),
    ("priority", {"priority": -1}),
    ("priority", {"priority": 1_000_001}),
    ("priority", {"priority": True}),
    ("delay", {"delay": timedelta(seconds=-1)}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": 2.5}),
    ("idempotency_key", {"idempotency_key": ""}),
    ("idempotency_key", {"idempotency_key": "nul\0"}),
    ("dedupe_key", {"dedupe_key": "\ud800"}),
    ("org_id", {"org_id": ""}),
]


@pytest.mark.parametrize(("field", "fields"), BAD_JOBS, ids=lambda value: value if isinstance(value, str) else None)
async def test_one_bad_job_in_a_bulk_is_named_and_nothing_is_written(
    driver: Driver, field: str, fields: dict[str, Any]
):  # B3, X5
    jobs = [new_job(queue="fresh"), new_job(**fields), new_job(queue="fresh")]
    with pytest.raises(InvalidValue) as refusal:
        await driver.engine.enqueue(jobs)
    assert refusal.value.field == field
    assert field in str(refusal.value)
    with pytest.raises(InvalidValue):
        await asyncio.to_thread(driver.engine.enqueue_sync, jobs)
    assert await driver.jobs() == ()
    assert await driver.engine.queues() == []


async def test_moments_without_a_time_zone_and_two_times_at_once_are_refused(driver: Driver):  # B3
    naive = driver.now.replace(tzinfo=None)
    bad: list[tuple[str, dict[str, Any]]] = [
        ("run_at", {"run_at": naive}),
        ("start_by", {"start_by": naive}),
        ("run_at", {"run_at": driver.now, "delay": timedelta(seconds=1)}),
    ]
    for field, fields in bad:
        with pytest.raises(InvalidValue) as refusal:
            await driver.add(**fields)
        assert refusal.value.field == field
    assert await driver.jobs() == ()


async def test_a_type_of_255_characters_is_kept_whole(driver: Driver):  # B3
    name = "é" * 255
    ref = await driver.add(type=name)
    assert (await driver.job(ref)).type == name


async def test_a_payload_over_ten_mebibytes_is_refused_with_its_size(driver: Driver):  # B4
    payload = encode_json({"text": "x" * 12_900_000}, max_size=2**30)
    with pytest.raises(PayloadTooLarge, match=r"^Job payload size 12\.3 MB exceeds limit of 10\.0 MB$"):
        await driver.engine.enqueue([new_job(), new_job(payload=payload)])
    assert await driver.jobs() == ()


async def test_a_payload_just_under_the_limit_is_kept_whole(driver: Driver):  # B4
    text = "é" * (5 * 1024 * 1024 - 1000)
    ref = await driver.add(payload=encode_json({"text": text}))
    assert (await driver.job(ref)).payload == {"text": text}


@needs(Feature.QUEUES_BY_USE)
@pytest.mark.parametrize("name", ["a", "0", "a.b_c-d", "mail/acme/42", "-", "a" * 120, "/".join("ab" * 30)])
async def test_every_allowed_queue_name_works(driver: Driver, name: str):  # X5
    ref = await driver.add(queue=name)
    assert (await driver.take_one(name)).ref == ref
    assert [queue.name for queue in await driver.engine.queues()] == [name]


@pytest.mark.parametrize("name", ["", "A", "a b", "a/", "/a", "a//b", "ä", "a*", "*", "a/*", "a:b", "a" * 121])
async def test_a_queue_with_a_bad_name_cannot_be_made_by_its_settings_either(driver: Driver, name: str):  # X5
    with pytest.raises(InvalidValue) as refusal:
        await driver.set(name)
    assert refusal.value.field == "queue"
    assert await driver.engine.queues() == []


@needs(Feature.PATTERNS)
@pytest.mark.parametrize("pattern", ["", "A", "mail/", "mail*", "*/mail", "mail/*/acme", "**"])
async def test_a_bad_pattern_is_refused_and_nothing_is_claimed(driver: Driver, pattern: str):  # X5
    ref = await driver.add(queue="mail")
    if pattern and driver.engine.capabilities.is_shared:  # any text may be a queue's name there
        assert await driver.take(pattern) == ()
    else:
        with pytest.raises(InvalidValue):
            await driver.take(pattern)
    assert await driver.state(ref) is JobStatus.PENDING


@needs(Feature.WEIGHT, Feature.CONCURRENCY, Feature.QUEUE_DEFAULTS, Feature.PAUSE)
async def test_bad_settings_of_a_queue_are_refused_and_nothing_is_changed(driver: Driver):  # B3
    await driver.set("q", weight=2)
    before = await driver.engine.queues()
    bad: list[dict[str, Any]] = [
        {"weight": 0},
        {"global_concurrency": 0},
        {"max_attempts": 0},
        {"lease": timedelta(milliseconds=999)},
    ]
    for change in bad:
        with pytest.raises(InvalidValue):
            await driver.set("q", paused=True, **change)
    assert await driver.engine.queues() == before


async def test_a_failed_verb_leaves_the_engine_usable(driver: Driver):
    with pytest.raises(OnwardError):
        await driver.add(priority=-1)
    assert await driver.engine.count(EVERY, by=GroupBy.STATUS) == {}
    assert (await driver.enqueue()).is_new
