"""Messages of others, and what others see of ours: fence, poison, types, headers (G1, G2, G3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from onward.engine.checked import CheckedEngine
from onward.engine.values import JobFilter, QueueChange, Settlement, SignalKind
from onward.errors import InvalidValue, Unsupported
from onward.job import JobRef, NewJob
from onward.lifecycle import Complete, Fail, Failure, JobStatus, Outcome, Release, Retry, Snooze
from tests.conformance.driver import worker_info
from tests.engines.pgmq.conftest import claim_jobs, settle

Sql = Callable[..., list[Any]]
Opened = Callable[..., Awaitable[CheckedEngine]]

BOOM = Failure("ValueError", "boom")


# The fence


async def test_a_late_worker_cannot_archive_what_another_client_has_read_since(
    engine: CheckedEngine, queue: str, sql: Sql
):  # X3
    sql("select pgmq.send(%s, '{}'::jsonb)", queue)
    (claim,) = await claim_jobs(engine, queue, lease=timedelta(milliseconds=1))
    sql("select pg_sleep(0.01)")
    ((read_ct,),) = sql("select read_ct from pgmq.read(%s, 60, 1)", queue)
    assert read_ct == 2
    for outcome in (Complete(), Complete('"result"'), Fail(BOOM), Retry(timedelta(0), BOOM), Release()):
        assert not await settle(engine, claim, outcome)
    assert sql(f"select read_ct, headers from pgmq.q_{queue}") == [(2, None)]
    assert sql(f"select from pgmq.a_{queue}") == []


OUTCOMES = (Complete(), Complete('"stale"'), Fail(BOOM), Retry(timedelta(0), BOOM), Release())


@pytest.mark.parametrize("read", ["ready", "fifo", "grouped"])
async def test_a_claim_is_void_once_its_queue_was_dropped_and_created_again(
    opened: Opened, queue: str, sql: Sql, read: str
):  # X3
    engine = await opened(read_modes={queue: read})
    sql("select pgmq.send(%s, '{}'::jsonb)", queue)
    (old,) = await claim_jobs(engine, queue)
    sql("select pgmq.drop_queue(%s)", queue)
    sql("select pgmq.create(%s)", queue)
    sql("truncate onward_pgmq.lease_batch")
    sql("select pgmq.send(%s, '{}'::jsonb)", queue)
    (new,) = await claim_jobs(engine, queue)
    assert (new.ref, new.token[:3]) == (old.ref, old.token[:3])
    for outcome in OUTCOMES:
        assert not await settle(engine, old, outcome)
    assert not await engine.report(old, progress=50, message=None, lines=[])
    assert (await engine.heartbeat(worker_info("w"), [old, new])).lost == {old.token}
    assert await engine.settle([Settlement(old, Complete()), Settlement(new, Complete())]) == {old.token}


@pytest.mark.parametrize("result", [None, '"r"'])
async def test_a_queue_that_is_dropped_takes_no_other_with_it(
    engine: CheckedEngine, queue: str, sql: Sql, result: str | None
):  # X3, G2
    dropped, other = f"{queue}b", f"{queue}a"
    claims = []
    for name in (dropped, other):
        await engine.configure(name, QueueChange())
        sql("select pgmq.send_batch(%s, array['1', '2', '3', '4']::jsonb[])", name)
        claims.append(await claim_jobs(engine, name))
    sql("select pgmq.drop_queue(%s)", dropped)
    gone, kept = claims
    assert (await engine.heartbeat(worker_info("w"), [*gone, *kept])).lost == {claim.token for claim in gone}
    assert not await engine.report(gone[0], progress=50, message=None, lines=[])
    outcomes: tuple[Outcome, ...] = (Complete(result), Fail(BOOM), Retry(timedelta(0), BOOM), Release())
    settlements = [Settlement(claim, outcome) for each in claims for claim, outcome in zip(each, outcomes, strict=True)]
    assert await engine.settle(settlements) == {claim.token for claim in gone}
    assert len(sql(f"select msg_id from pgmq.a_{other}")) == 2


async def test_a_read_that_the_server_has_forgotten_does_not_pass_for_the_next(
    engine: CheckedEngine, queue: str, sql: Sql
):  # X3
    sql("select pgmq.send(%s, '{}'::jsonb)", queue)
    (old,) = await claim_jobs(engine, queue)
    sql(f"update pgmq.q_{queue} set read_ct = 0, vt = now(), last_read_at = null")
    sql("truncate onward_pgmq.lease_batch")
    (new,) = await claim_jobs(engine, queue)
    assert new.token[:3] == old.token[:3]
    for outcome in OUTCOMES:
        assert not await settle(engine, old, outcome)
    assert await settle(engine, new, Complete('"its own"'))


async def test_headers_copied_to_another_message_bring_no_counts_with_them(
    engine: CheckedEngine, queue: str, sql: Sql
):  # G3
    (sent,) = await engine.enqueue([NewJob(type="t", queue=queue, org_id="a", max_attempts=7)])
    for _ in range(2):
        (claim,) = await claim_jobs(engine, queue)
        assert await settle(engine, claim, Retry(timedelta(0), BOOM))
    (claim,) = await claim_jobs(engine, queue)
    assert await settle(engine, claim, Fail(BOOM))
    ((headers,),) = sql(f"select headers::text from pgmq.a_{queue}")
    ((copy,),) = sql("select pgmq.send(%s, '{}'::jsonb, %s::jsonb)", queue, headers)
    ref = JobRef(queue, str(copy))
    job = await engine.get(ref)
    assert job is not None
    assert (job.status, job.attempts, job.last_error, job.errors) == (JobStatus.PENDING, 0, None, ())
    (claim,) = await claim_jobs(engine, queue)
    assert (claim.type, claim.org_id, claim.max_attempts, claim.attempts) == ("t", "a", 7, 1)
    assert await engine.report(claim, progress=50, message=None, lines=[])
    assert await settle(engine, claim, Complete('"done"'))
    job = await engine.get(ref)
    assert job is not None
    assert (job.status, job.attempts, job.result, job.errors) == (JobStatus.COMPLETED, 1, "done", ())
    assert (await engine.get(sent.ref)).attempts == 3  # type: ignore[union-attr]


async def test_a_beat_does_not_extend_what_another_client_has_read_since(engine: CheckedEngine, queue: str, sql: Sql):
    sql("select pgmq.send(%s, '{}'::jsonb)", queue)
    (claim,) = await claim_jobs(engine, queue, lease=timedelta(milliseconds=1))
    sql("select pg_sleep(0.01)")
    sql("select pgmq.read(%s, 60, 1)", queue)
    before = sql(f"select vt from pgmq.q_{queue}")
    reply = await engine.heartbeat(worker_info("w"), [claim])
    assert reply.lost == {claim.token}
    assert sql(f"select vt from pgmq.q_{queue}") == before


async def test_what_another_client_archives_or_deletes_is_lost_to_us(engine: CheckedEngine, queue: str, sql: Sql):  # X3
    sql("select pgmq.send_batch(%s, array['1', '2']::jsonb[])", queue)
    claims = await claim_jobs(engine, queue)
    sql("select pgmq.archive(%s, %s::bigint)", queue, claims[0].ref.id)
    sql("select pgmq.delete(%s, %s::bigint)", queue, claims[1].ref.id)
    for claim in claims:
        assert not await settle(engine, claim, Complete())
    job = await engine.get(claims[0].ref)
    assert job is not None
    assert job.status is JobStatus.COMPLETED


# What is written down


async def test_outcome_error_and_attempts_are_in_the_headers_and_survive_in_the_archive(
    engine: CheckedEngine, queue: str, sql: Sql
):  # G1
    sql("""select pgmq.send(%s, '{"n": 1}'::jsonb, '{"trace": "t-1"}'::jsonb)""", queue)
    (claim,) = await claim_jobs(engine, queue)
    assert await settle(engine, claim, Retry(timedelta(0), BOOM))
    ((headers,),) = sql(f"select headers from pgmq.q_{queue}")
    assert headers["trace"] == "t-1"
    told = headers["onward"]
    assert (told["status"], told["attempts"], told["reads"], told["error"]) == ("retry", 1, 1, "ValueError: boom")
    (claim,) = await claim_jobs(engine, queue)
    assert claim.attempts == 2
    assert await settle(engine, claim, Complete('{"answer": 42}'))
    ((message, headers, read_ct),) = sql(f"select message, headers, read_ct from pgmq.a_{queue}")
    assert (message, headers["trace"], read_ct) == ({"n": 1}, "t-1", 2)
    told = headers["onward"]
    assert (told["status"], told["attempts"], told["result"]) == ("completed", 2, {"answer": 42})
    assert [(error["attempt"], error["error_type"], error["worker_id"]) for error in told["errors"]] == [
        (1, "ValueError", "w")
    ]


async def test_a_message_that_waits_is_told_from_one_that_another_client_reads(
    engine: CheckedEngine, queue: str, sql: Sql
):  # O1
    sql("select pgmq.send(%s, '{}'::jsonb, 60)", queue)
    sql("select pgmq.send(%s, '{}'::jsonb)", queue)
    sql("select pgmq.read(%s, 60, 1)", queue)
    states = [(await engine.get(JobRef(queue, id))).status for id in ("1", "2")]  # type: ignore[union-attr]
    assert states == [JobStatus.SCHEDULED, JobStatus.RUNNING]


async def test_a_message_of_ours_is_plain_to_others(engine: CheckedEngine, queue: str, sql: Sql):  # G1
    await engine.enqueue([NewJob(type="greet", queue=queue, payload='{"to": "ada"}')])
    ((message, headers),) = sql("select message, headers from pgmq.read(%s, 60, 1)", queue)
    assert message == {"to": "ada"}
    assert headers == {"onward": {"type": "greet"}}


async def test_done_messages_are_deleted_only_if_asked(opened: Opened, queue: str, sql: Sql):  # G1
    engine = await opened(completed="delete")
    sql("select pgmq.send_batch(%s, array['1', '2', '3']::jsonb[])", queue)
    plain, with_result, failing = await claim_jobs(engine, queue)
    assert await settle(engine, plain, Complete())
    assert await settle(engine, with_result, Complete('"r"'))
    assert await settle(engine, failing, Fail(BOOM))
    assert sql(f"select message from pgmq.a_{queue}") == [(3,)]
    assert sql(f"select from pgmq.q_{queue}") == []


# Poison


async def test_a_message_read_more_than_three_times_is_archived_as_failed_and_not_run(
    engine: CheckedEngine, queue: str, sql: Sql
):  # G3
    sql("select pgmq.send_batch(%s, array['1', '2']::jsonb[])", queue)
    for _ in range(3):
        sql("select pgmq.read(%s, 0, 1)", queue)
    (claim,) = await claim_jobs(engine, queue)
    assert claim.payload == "2"
    job = await engine.get(JobRef(queue, "1"))
    assert job is not None
    assert (job.status, job.last_error) == (JobStatus.FAILED, "PoisonPill: read 3 times without an outcome")
    assert sql(f"select msg_id from pgmq.a_{queue}") == [(1,)]
    (changed,) = await engine.replay(JobFilter(refs=(job.ref,)))
    assert changed.ref == job.ref
    assert [claim.ref.id for claim in await claim_jobs(engine, queue)] == ["1"]


async def test_the_third_read_still_runs_and_the_limit_is_configurable(opened: Opened, queue: str, sql: Sql):  # G3
    engine = await opened(max_reads=1)
    sql("select pgmq.send(%s, '1'::jsonb)", queue)
    assert len(await claim_jobs(engine, queue, lease=timedelta(milliseconds=1))) == 1
    sql("select pg_sleep(0.01)")
    sql("delete from onward_pgmq.lease_batch where queue = %s", queue)  # as after a crash of the server
    patient = await opened(max_reads=2)
    assert len(await claim_jobs(patient, queue, lease=timedelta(milliseconds=1))) == 1
    sql("select pg_sleep(0.01)")
    sql("delete from onward_pgmq.lease_batch where queue = %s", queue)
    assert await claim_jobs(engine, queue) == ()
    assert sql(f"select headers -> 'onward' ->> 'status' from pgmq.a_{queue}") == [("failed",)]


async def test_reads_that_ended_with_an_outcome_are_no_poison(engine: CheckedEngine, queue: str, sql: Sql):  # G3, H3
    sql("select pgmq.send(%s, '1'::jsonb)", queue)
    for attempt in range(1, 8):
        (claim,) = await claim_jobs(engine, queue)
        assert claim.attempts == attempt
        assert await settle(engine, claim, Retry(timedelta(0), BOOM))


async def test_a_queue_full_of_poison_does_not_hide_what_is_behind_it(
    engine: CheckedEngine, queue: str, sql: Sql
):  # G3
    sql("select pgmq.send_batch(%s, array_fill('1'::jsonb, array[30]))", queue)
    for _ in range(3):
        sql("select pgmq.read(%s, 0, 30)", queue)
    sql("select pgmq.send(%s, '2'::jsonb)", queue)
    assert [claim.payload for claim in await claim_jobs(engine, queue, slots=2)] == ["2"]


# Unknown tasks


async def test_only_put_backs_count_towards_their_limit(engine: CheckedEngine, queue: str, sql: Sql):  # O8
    await engine.enqueue([NewJob(type="t", queue=queue)])
    for outcome in (Snooze(timedelta(0)), Release(), Release(), Snooze(timedelta(0))):
        (claim,) = await claim_jobs(engine, queue)
        assert claim.put_backs == 0
        assert await settle(engine, claim, outcome)
    for count in range(2):
        (claim,) = await claim_jobs(engine, queue)
        assert claim.put_backs == count
        assert await settle(engine, claim, Snooze(timedelta(0), is_put_back=True))
    (claim,) = await claim_jobs(engine, queue)
    assert await settle(engine, claim, Release())
    (claim,) = await claim_jobs(engine, queue)
    assert (claim.put_backs, claim.attempts) == (2, 1)
    assert await settle(engine, claim, Retry(timedelta(0), BOOM))  # by a worker that has the task
    (claim,) = await claim_jobs(engine, queue)
    assert claim.put_backs == 0
    assert await settle(engine, claim, Complete())
    ((headers,),) = sql(f"select headers from pgmq.a_{queue}")
    assert headers["onward"]["put_backs"] == 0


async def test_a_replayed_message_may_be_put_back_again(engine: CheckedEngine, queue: str):  # O8
    (sent,) = await engine.enqueue([NewJob(type="t", queue=queue)])
    (claim,) = await claim_jobs(engine, queue)
    assert await settle(engine, claim, Snooze(timedelta(0), is_put_back=True))
    await engine.cancel(JobFilter(refs=(sent.ref,)))
    await engine.replay(JobFilter(refs=(sent.ref,)))
    (claim,) = await claim_jobs(engine, queue)
    assert claim.put_backs == 0


# What others send


async def test_a_plain_message_is_for_the_task_of_its_queue(opened: Opened, queue: str, sql: Sql):  # G1
    engine = await opened(types={queue: "scrape"})
    sql("""select pgmq.send(%s, '{"url": "x"}'::jsonb)""", queue)
    (claim,) = await claim_jobs(engine, queue)
    assert (claim.type, json.loads(claim.payload)) == ("scrape", {"url": "x"})
    assert await settle(engine, claim, Release())
    (claim,) = await claim_jobs(await opened(), queue)
    assert claim.type == queue


async def test_a_field_names_the_task_of_a_plain_message(opened: Opened, queue: str, sql: Sql):  # G1
    whole = await opened(type_field="task")
    part = await opened(type_field="task", payload_field="args")
    sql("""select pgmq.send(%s, '{"task": "send", "args": {"to": "ada"}}'::jsonb)""", queue)
    (claim,) = await claim_jobs(whole, queue)
    assert (claim.type, json.loads(claim.payload)) == ("send", {"args": {"to": "ada"}})
    assert await settle(whole, claim, Release())
    (claim,) = await claim_jobs(part, queue)
    assert (claim.type, json.loads(claim.payload)) == ("send", {"to": "ada"})
    job = await part.get(claim.ref)
    assert job is not None
    assert (job.type, job.payload) == ("send", {"to": "ada"})


@pytest.mark.parametrize("message", ["null", "7", '"text"', "[1]", '{"task": 5}', '{"task": ""}'])
async def test_a_message_that_is_no_object_or_names_no_task_still_comes(
    opened: Opened, queue: str, sql: Sql, message: str
):
    engine = await opened(type_field="task")
    sql("select pgmq.send(%s, %s::text::jsonb)", queue, message)
    (claim,) = await claim_jobs(engine, queue)
    assert (claim.type, json.loads(claim.payload)) == (queue, json.loads(message))


@pytest.mark.parametrize(
    "headers",
    ["null", "7", "[1]", '{"onward": 5}', '{"onward": {"attempts": "x", "reads": -3, "type": 7, "errors": {}}}'],
)
async def test_headers_that_somebody_has_spoilt_stop_nobody(engine: CheckedEngine, queue: str, sql: Sql, headers: str):
    sql("select pgmq.send(%s, '1'::jsonb, %s::text::jsonb)", queue, headers)
    sql("select pgmq.send(%s, '2'::jsonb)", queue)
    spoilt, sound = await claim_jobs(engine, queue)
    assert (spoilt.attempts, spoilt.type) == (1, queue)
    assert await settle(engine, spoilt, Retry(timedelta(0), BOOM))
    assert await settle(engine, sound, Complete())
    (again,) = await claim_jobs(engine, queue)
    assert again.attempts == 2
    assert await settle(engine, again, Complete())
    job = await engine.get(again.ref)
    assert job is not None
    assert (job.status, job.attempts) == (JobStatus.COMPLETED, 2)


# Names


async def test_an_unknown_queue_is_refused_with_the_names_that_are_near(engine: CheckedEngine, queue: str):  # X5
    await engine.configure("video-scrape", QueueChange())
    with pytest.raises(Unsupported, match="there is video-scrape"):
        await engine.enqueue([NewJob(type="t", queue="video-scrap")])


@pytest.mark.parametrize("name", ["a" * 48, "a--b", "Mail", "a$b"])
async def test_names_that_no_new_queue_may_have_are_refused(engine: CheckedEngine, name: str):  # X5
    with pytest.raises(InvalidValue) as refusal:
        await engine.configure(name, QueueChange())
    assert refusal.value.field == "queue"


async def test_a_queue_of_others_keeps_its_name_and_one_that_differs_in_case_is_refused(
    engine: CheckedEngine, sql: Sql
):  # X5
    sql("select pgmq.create('Orders')")
    (added,) = await engine.enqueue([NewJob(type="t", queue="Orders")])
    assert [claim.ref for claim in await claim_jobs(engine, "Orders")] == [added.ref]
    with pytest.raises(InvalidValue, match="Orders"):
        await engine.configure("orders", QueueChange())


# Being told


async def test_a_message_of_another_client_is_told_of_where_insert_notify_is_on(
    engine: CheckedEngine, queue: str, sql: Sql
):  # X4
    sql("select pgmq.enable_notify_insert(%s, 0)", queue)
    async with asyncio.timeout(10), aclosing(engine.signals([queue])) as signals:  # type: ignore[type-var]
        assert (await anext(signals)).kind is SignalKind.CHANGED  # it listens
        assert (await anext(signals)).kind is SignalKind.WORK  # now to the queue, too
        sql("select pgmq.send(%s, '1'::jsonb)", queue)
        assert (await anext(signals)).kind is SignalKind.WORK
