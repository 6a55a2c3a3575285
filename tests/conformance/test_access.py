"""Tokens, sessions and audit records: who may use the server, and what they have changed (S2, S5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from onward.batches.values import NewBatch
from onward.cron import Cron
from onward.engine.access import AuditQuery, AuditRecord
from onward.engine.capabilities import Feature
from onward.engine.values import GroupBy, JobChange, JobFilter, QueueChange
from onward.errors import InvalidValue
from onward.ids import new_id
from onward.job import JobRef, NewJob
from onward.lifecycle import Complete, JobStatus
from onward.schedule import Schedule
from tests.conformance.access_values import digest_of, record, session, token
from tests.conformance.cases import EngineCase, needs
from tests.conformance.driver import Driver, new_job

DAY = timedelta(days=1)
ALL = AuditQuery()


async def records(driver: Driver, query: AuditQuery = ALL) -> list[AuditRecord]:
    return list((await driver.engine.audit(query)).items)


async def counts_of_refused(driver: Driver) -> list[int]:
    """Read the counts of changes that were refused. Where a record is written first, there is one without a count."""
    written = await records(driver)
    assert driver.engine.capabilities.has(Feature.TRANSACTIONS) is (written == [])
    return [each.count for each in written if each.count is not None]


# Tokens ---------------------------------------------------------------------------------------------------------------


async def test_a_token_is_read_as_it_was_saved(driver: Driver, case: EngineCase):  # S2
    plain = token(driver)
    scoped = token(
        driver,
        "grafana ✓",
        role="viewer",
        permissions=("reveal", "enqueue"),
        queues=("mail", "*"),
        orgs=("acme", 'Ümlaut, "Inc"') if case.capabilities.has(Feature.ORGANISATIONS) else None,
        created_at=driver.now + timedelta(microseconds=7),
        created_by="cli:anna@host",
        expires_at=driver.now + 30 * DAY,
    )
    await driver.engine.save_token(plain)
    await driver.engine.save_token(scoped)
    assert await driver.engine.find_token(plain.id) == plain
    assert await driver.engine.find_token(scoped.id) == scoped
    assert await driver.engine.tokens() == [scoped, plain]
    assert await driver.engine.find_token(new_id()) is None


async def test_no_token_takes_the_place_of_another(driver: Driver):  # S2
    first = token(driver)
    await driver.engine.save_token(first)
    with pytest.raises(InvalidValue, match="id"):
        await driver.engine.save_token(
            token(driver, "intruder", id=first.id, role="admin"), audit=record("tokens.create")
        )
    assert await driver.engine.tokens() == [first]
    assert await counts_of_refused(driver) == []


async def test_a_revoked_token_is_invalid_and_its_sessions_end(driver: Driver):  # S2
    mine, other = token(driver), token(driver, "other")
    for each in (mine, other):
        await driver.engine.save_token(each)
        await driver.engine.save_session(session(driver, each, cookie=each.name))
    await driver.advance(60)
    assert await driver.engine.revoke_token(mine.id)
    found = await driver.engine.find_token(mine.id)
    assert found is not None
    assert found.revoked_at == driver.now
    assert await driver.engine.find_session(digest_of("ci")) is None
    assert await driver.engine.find_session(digest_of("other")) is not None
    await driver.advance(60)
    assert not await driver.engine.revoke_token(mine.id), "it was not valid any more"
    assert (await driver.engine.find_token(mine.id)) == found, "the first revocation counts"
    assert not await driver.engine.revoke_token(new_id())


async def test_a_revoked_token_gets_no_session(driver: Driver):  # S2
    mine = token(driver)
    await driver.engine.save_token(mine)
    await driver.engine.revoke_token(mine.id)
    with pytest.raises(InvalidValue, match="token_id"):
        await driver.engine.save_session(session(driver, mine), audit=record("sessions.create"))
    with pytest.raises(InvalidValue, match="token_id"):
        await driver.engine.save_session(session(driver, token(driver, "unknown")))
    assert await driver.engine.find_session(digest_of("cookie")) is None
    assert await counts_of_refused(driver) == []


async def test_an_expired_token_was_not_valid_when_it_is_revoked(driver: Driver):  # S2
    mine = token(driver, expires_at=driver.now + DAY)
    await driver.engine.save_token(mine)
    await driver.advance(2 * DAY)
    assert not await driver.engine.revoke_token(mine.id)


async def test_the_last_use_of_a_token_is_known_to_the_minute(driver: Driver):  # S2
    mine = token(driver)
    await driver.engine.save_token(mine)
    first = driver.now
    await driver.engine.touch_token(mine.id)
    await driver.advance(59)
    await driver.engine.touch_token(mine.id)
    assert (await driver.engine.tokens())[0].last_used_at == first
    await driver.advance(1)
    await driver.engine.touch_token(mine.id)
    assert (await driver.engine.tokens())[0].last_used_at == driver.now
    await driver.engine.touch_token(new_id())


# Sessions -------------------------------------------------------------------------------------------------------------


async def test_a_session_is_found_by_its_digest_alone(driver: Driver):  # S2
    mine = token(driver)
    one, two = session(driver, mine, "one"), session(driver, mine, "two")
    await driver.engine.save_token(mine)
    await driver.engine.save_session(one)
    await driver.engine.save_session(two)
    assert await driver.engine.find_session(one.digest) == (one, mine)
    assert await driver.engine.find_session(two.digest) == (two, mine)
    assert await driver.engine.find_session(digest_of("three")) is None
    assert await driver.engine.find_session(mine.digest) is None
    with pytest.raises(InvalidValue):
        await driver.engine.save_session(one)
    assert await driver.engine.delete_session(one.digest)
    assert not await driver.engine.delete_session(one.digest)
    assert await driver.engine.find_session(one.digest) is None
    assert await driver.engine.find_session(two.digest) == (two, mine)


async def test_the_last_use_of_a_session_is_known_to_the_minute(driver: Driver):  # S2
    mine = token(driver)
    await driver.engine.save_token(mine)
    first = session(driver, mine)
    await driver.engine.save_session(first)
    await driver.advance(59)
    await driver.engine.touch_session(first.digest)
    found = await driver.engine.find_session(first.digest)
    assert found == (first, mine)
    await driver.advance(1)
    await driver.engine.touch_session(first.digest)
    found = await driver.engine.find_session(first.digest)
    assert found is not None
    assert (found[0].last_seen_at, found[0].expires_at) == (driver.now, first.expires_at)
    await driver.engine.touch_session(digest_of("unknown"))


# Audit ----------------------------------------------------------------------------------------------------------------


async def test_a_record_is_read_as_it_was_written_at_the_stores_time(driver: Driver):  # S5
    first = record("schedules.run", target="nightly ✓")
    second = record(
        actor="cli:anna@host",
        role="admin",
        filter='{"queues": ["mail"]}',
        count=3,
        orgs=("acme",),
        request_id="r-1",
        detail='{"why": "a \\"quote\\""}',
    )
    assert await driver.engine.record_audit(first)
    at = driver.now
    await driver.advance(1)
    assert await driver.engine.record_audit(second)
    assert await records(driver) == [
        msgspec.structs.replace(second, at=driver.now),
        msgspec.structs.replace(first, at=at),
    ]


async def test_a_record_is_written_once_however_often_it_is_sent(driver: Driver):  # S5
    first = record(target="one")
    assert await driver.engine.record_audit(first)
    assert not await driver.engine.record_audit(msgspec.structs.replace(first, target="two", actor="somebody else"))
    ref = await driver.add(queue="q")
    await driver.engine.delete(JobFilter(refs=(ref,)), audit=first)
    assert [(each.target, each.actor) for each in await records(driver)] == [("one", "token:ci")]


async def test_records_are_narrowed_down_and_read_page_by_page(driver: Driver):  # S5
    written = []
    for number in range(5):
        written.append(record(f"jobs.{number % 2}", target=f"q:{number}", actor=f"token:{number % 3}"))
        await driver.engine.record_audit(written[-1])
        await driver.advance(1)
    ids = [each.id for each in written]

    async def found(**fields: Any) -> list[int]:
        return [ids.index(each.id) for each in await records(driver, AuditQuery(**fields))]

    at = driver.now - timedelta(seconds=3)  # of number 2
    assert await found() == [4, 3, 2, 1, 0]
    assert await found(action="jobs.1") == [3, 1]
    assert await found(actor="token:0") == [3, 0]
    assert await found(target="q:2") == [2]
    assert await found(after=at) == [4, 3]
    assert await found(before=at) == [1, 0]
    assert await found(actor="token:0", action="jobs.0") == [0]
    assert await found(actor="token:%") == []
    seen: list[int] = []
    cursor = None
    for size in (2, 2, 1):
        page = await driver.engine.audit(ALL, cursor=cursor, limit=2)
        assert len(page.items) == size
        seen += [ids.index(each.id) for each in page.items]
        cursor = page.next_cursor
    assert cursor is None
    assert seen == [4, 3, 2, 1, 0]
    with pytest.raises(InvalidValue, match="cursor"):
        await driver.engine.audit(ALL, cursor="soon")


Change = Callable[[Driver, JobRef, AuditRecord], Awaitable[object]]


def schedule(driver: Driver) -> Schedule:
    return Schedule(
        name="nightly",
        job=NewJob(type="t", queue="q"),
        trigger=Cron("0 0 * * *"),
        missed=driver.engine.capabilities.default_missed,
        next_at=driver.now + DAY,
    )


CHANGES: dict[str, tuple[Change, int, tuple[Feature, ...]]] = {
    "enqueue": (
        lambda driver, ref, audit: driver.engine.enqueue([new_job(queue="q"), new_job(queue="q")], audit=audit),
        2,
        (),
    ),
    "enqueue nothing": (lambda driver, ref, audit: driver.engine.enqueue([], audit=audit), 0, ()),
    "cancel": (lambda driver, ref, audit: driver.engine.cancel(JobFilter(refs=(ref,)), audit=audit), 1, ()),
    "cancel nothing": (
        lambda driver, ref, audit: driver.engine.cancel(JobFilter(queues=("empty",)), audit=audit),
        0,
        (),
    ),
    "replay nothing": (
        lambda driver, ref, audit: driver.engine.replay(JobFilter(refs=(ref,)), audit=audit),
        0,
        (Feature.REPLAY,),
    ),
    "delete": (lambda driver, ref, audit: driver.engine.delete(JobFilter(refs=(ref,)), audit=audit), 1, ()),
    "edit": (
        lambda driver, ref, audit: driver.engine.edit(ref, JobChange(payload='{"n":2}'), audit=audit),
        1,
        (Feature.EDIT,),
    ),
    "edit nothing": (
        lambda driver, ref, audit: driver.engine.edit(JobRef("q", new_id()), JobChange(payload="{}"), audit=audit),
        0,
        (Feature.EDIT,),
    ),
    "configure": (
        lambda driver, ref, audit: driver.engine.configure("q", QueueChange(lease=timedelta(seconds=9)), audit=audit),
        1,
        (),
    ),
    "save_schedule": (
        lambda driver, ref, audit: driver.engine.save_schedule(schedule(driver), audit=audit),
        1,
        (Feature.SCHEDULES,),
    ),
    "delete_schedule nothing": (
        lambda driver, ref, audit: driver.engine.delete_schedule("never", audit=audit),
        0,
        (Feature.SCHEDULES,),
    ),
    "save_batch": (
        lambda driver, ref, audit: driver.engine.save_batch(
            NewBatch(name="b"), [new_job(queue="q", batch="b")] * 3, audit=audit
        ),
        3,
        (Feature.BATCHES,),
    ),
    "save_batch without jobs": (
        lambda driver, ref, audit: driver.engine.save_batch(NewBatch(name="b"), audit=audit),
        1,
        (Feature.BATCHES,),
    ),
    "delete_batch nothing": (
        lambda driver, ref, audit: driver.engine.delete_batch("never", audit=audit),
        0,
        (Feature.BATCHES,),
    ),
    "purge_archived nothing": (
        lambda driver, ref, audit: driver.engine.purge_archived(JobFilter(), audit=audit),
        0,
        (Feature.ARCHIVE,),
    ),
    "save_token": (lambda driver, ref, audit: driver.engine.save_token(token(driver), audit=audit), 1, ()),
    "revoke_token nothing": (lambda driver, ref, audit: driver.engine.revoke_token(new_id(), audit=audit), 0, ()),
    "delete_session nothing": (
        lambda driver, ref, audit: driver.engine.delete_session(digest_of("x"), audit=audit),
        0,
        (),
    ),
}


def _case_of(name: str) -> Any:
    """Make a parameter of a verb, marked with the features that it needs."""
    return pytest.param(name, marks=pytest.mark.needs(*CHANGES[name][2]))


@pytest.mark.parametrize("name", [_case_of(name) for name in CHANGES])
async def test_a_verb_writes_its_record_with_the_count(driver: Driver, name: str):  # S5
    change, count, _ = CHANGES[name]
    ref = await driver.add(queue="q")
    sent = record("some.action", target="t", request_id="r", count=99)
    await change(driver, ref, sent)
    assert await records(driver) == [msgspec.structs.replace(sent, at=driver.now, count=count)]


@needs(Feature.REPLAY, Feature.CANCELLED_STATE)
async def test_verbs_count_what_they_have_changed(driver: Driver):  # S5
    refs = await driver.add_many(3, queue="q")
    which = JobFilter(refs=tuple(refs))
    await driver.engine.cancel(which, audit=record("cancel"))
    await driver.engine.replay(which, audit=record("replay"))
    await driver.engine.delete(which, limit=2, audit=record("delete"))
    assert {each.action: each.count for each in await records(driver)} == {"cancel": 3, "replay": 3, "delete": 2}


@needs(Feature.SCHEDULES)
async def test_a_deleted_schedule_is_counted(driver: Driver):  # S5
    await driver.make("q")
    await driver.engine.save_schedule(schedule(driver))
    await driver.engine.delete_schedule("nightly", audit=record())
    assert [each.count for each in await records(driver)] == [1]


@needs(Feature.IDEMPOTENCY)
async def test_an_enqueue_counts_new_jobs_only(driver: Driver):  # S5
    await driver.make("q")
    jobs = [new_job(queue="q", idempotency_key="k"), new_job(queue="q")]
    await driver.engine.enqueue(jobs, audit=record("first"))
    answers = await driver.engine.enqueue(jobs, audit=record("second"))
    assert [answer.is_new for answer in answers] == [False, True]
    assert {each.action: each.count for each in await records(driver)} == {"first": 2, "second": 1}


@pytest.mark.parametrize(
    "name", [_case_of(name) for name in ("enqueue", "cancel", "delete", "edit", "configure", "save_token")]
)
async def test_there_is_no_change_without_a_record(driver: Driver, case: EngineCase, name: str):  # S5
    change, _, _ = CHANGES[name]
    ref = await driver.add(queue="q", payload='{"n":1}')
    before = await driver.snapshot(), await driver.engine.queues("q"), await driver.engine.tokens()
    driver.store.refuse_audit()
    with pytest.raises(Exception, match=r"refused|WRONGTYPE"):
        await change(driver, ref, record())
    assert (await driver.snapshot(), await driver.engine.queues("q"), await driver.engine.tokens()) == before
    await driver.add(queue="q")  # without a record all goes on


@needs(Feature.EDIT, Feature.DELAY, Feature.TRANSACTIONS)
async def test_there_is_no_record_of_a_change_that_was_refused(driver: Driver):  # S5
    ref = await driver.add(queue="q")
    with pytest.raises(InvalidValue, match="run_at"):
        await driver.engine.edit(ref, JobChange(run_at=driver.now + DAY), audit=record())
    assert await counts_of_refused(driver) == []


@needs(Feature.TRANSACTIONS)
async def test_the_record_of_an_enqueue_is_part_of_the_callers_transaction(driver: Driver):  # S5, X4
    await driver.make("default")
    caller = driver.store.caller()
    for end in (caller.rollback, caller.commit):
        assert await records(driver) == []
        caller.begin()
        await driver.engine.enqueue([new_job()], connection=caller.handle, audit=record())
        end()
    assert [each.count for each in await records(driver)] == [1]
    assert await driver.engine.count(JobFilter(), by=GroupBy.STATUS) == {"pending": 1}


async def test_audited_enqueues_that_come_together_each_have_their_record(driver: Driver):  # S5
    await driver.make("q")
    sent = [record(request_id=str(number)) for number in range(40)]
    jobs = [[new_job(queue="q", payload=f'{{"n":{number}}}')] * (1 + number % 2) for number in range(40)]
    answers = await asyncio.gather(
        *[driver.engine.enqueue(some, audit=each) for some, each in zip(jobs, sent, strict=True)],
        *[driver.engine.enqueue([new_job(queue="q")]) for _ in range(10)],
    )
    assert [len(answer) for answer in answers] == [1, 2] * 20 + [1] * 10
    written = {each.id: each.count for each in (await driver.engine.audit(ALL, limit=100)).items}
    assert written == {each.id: 1 + number % 2 for number, each in enumerate(sent)}
    for number, answer in enumerate(answers[:40]):
        assert (await driver.job(answer[0].ref)).payload == {"n": number}


# Organisations --------------------------------------------------------------------------------------------------------


@needs(Feature.ORGANISATIONS)
async def test_a_filter_by_organisations_finds_the_jobs_of_any_of_them(driver: Driver):  # H9, S3
    mine = set(await driver.add_many(2, org_id="acme"))
    partners = set(await driver.add_many(2, org_id="initech"))
    theirs = set(await driver.add_many(2, org_id="umbrella"))
    nobodys = await driver.add()
    both = JobFilter(orgs=("acme", "initech"))
    assert await driver.found(both) == mine | partners
    assert await driver.engine.count(both, by=GroupBy.STATUS) == {"pending": 4}
    assert await driver.engine.count(both, by=GroupBy.QUEUE) == {"default": 4}
    assert await driver.found(JobFilter(orgs=())) == set()
    assert await driver.engine.count(JobFilter(orgs=()), by=GroupBy.STATUS) == {}
    assert await driver.found(JobFilter(orgs=("",))) == set()
    assert await driver.found(JobFilter(orgs=("acme",), org_id="umbrella")) == set()
    assert await driver.found(JobFilter(orgs=("acme", "initech"), org_id="acme")) == mine
    assert await driver.found(JobFilter(orgs=("acme",), refs=(*theirs, nobodys))) == set()


@needs(Feature.ORGANISATIONS)
async def test_a_change_by_organisations_reaches_no_further_than_a_list(driver: Driver):  # H9, S3
    mine = set(await driver.add_many(2, org_id="acme"))
    theirs = await driver.add_many(2, org_id="umbrella")
    nobodys = await driver.add()
    others = (*theirs, nobodys)
    assert await driver.engine.cancel(JobFilter(orgs=("acme",), refs=others)) == []
    assert await driver.engine.delete(JobFilter(orgs=(), refs=others)) == []
    assert await driver.engine.delete(JobFilter(orgs=("acme",), refs=others)) == []
    assert {change.ref for change in await driver.engine.delete(JobFilter(orgs=("acme",)))} == mine
    assert await driver.found(JobFilter()) == set(others)


@needs(Feature.ORGANISATIONS, Feature.ARCHIVE)
async def test_the_archive_is_narrowed_down_by_organisations(driver: Driver):  # H9, S3
    refs = [await driver.add(queue="q", org_id=org_id) for org_id in ("acme", "umbrella", None)]
    await driver.end_all(await driver.take("q", slots=3), Complete())
    await driver.advance(9 * DAY)
    await driver.prune()
    acme = JobFilter(orgs=("acme",))
    assert [job.ref for job in (await driver.engine.archived(acme)).items] == [refs[0]]
    assert await driver.engine.count_archived(acme, by=GroupBy.STATUS) == {JobStatus.COMPLETED: 1}
    assert [change.ref for change in await driver.engine.purge_archived(acme)] == [refs[0]]
    assert len((await driver.engine.archived(JobFilter())).items) == 2


# Retention ------------------------------------------------------------------------------------------------------------


async def prune(driver: Driver, **kept: timedelta) -> int:
    total = 0
    while some := await driver.engine.prune_access(**{"keep_audit": 90 * DAY, "keep_sessions": 7 * DAY, **kept}):
        total += some
    return total


async def test_records_are_kept_for_as_long_as_asked(driver: Driver):  # S5
    old, young = record(), record()
    await driver.engine.record_audit(old)
    await driver.advance(60 * DAY)
    await driver.engine.record_audit(young)
    await driver.advance(31 * DAY)
    assert await prune(driver) == 1
    assert [each.id for each in await records(driver)] == [young.id]


async def test_no_retention_removes_records_of_the_last_thirty_days(driver: Driver):  # S5
    old, young = record(), record()
    await driver.engine.record_audit(old)
    await driver.advance(2 * DAY)
    await driver.engine.record_audit(young)
    await driver.advance(29 * DAY)
    assert await prune(driver, keep_audit=timedelta(0)) == 1
    assert [each.id for each in await records(driver)] == [young.id]


async def test_many_records_are_removed_a_part_at_a_time(driver: Driver):  # S5
    await asyncio.gather(*[driver.engine.record_audit(record()) for _ in range(1100)])
    await driver.advance(91 * DAY)
    kept = record()
    await driver.engine.record_audit(kept)
    first = await driver.engine.prune_access(keep_audit=90 * DAY, keep_sessions=DAY)
    assert 0 < first < 1100
    assert await prune(driver) == 1100 - first
    assert [each.id for each in await records(driver)] == [kept.id]


async def test_ended_tokens_and_sessions_are_removed_after_a_while(driver: Driver):  # S2
    lasting, revoked, expiring = (
        token(driver),
        token(driver, "revoked"),
        token(driver, "e", expires_at=driver.now + DAY),
    )
    for each in (lasting, revoked, expiring):
        await driver.engine.save_token(each)
    await driver.engine.save_session(session(driver, lasting, "short"))
    await driver.engine.save_session(session(driver, lasting, "long", expires_at=driver.now + 99 * DAY))
    await driver.engine.save_session(session(driver, expiring, "orphan", expires_at=driver.now + 99 * DAY))
    await driver.engine.revoke_token(revoked.id)
    assert await prune(driver) == 0
    await driver.advance(9 * DAY)
    assert await prune(driver) == 4
    assert [each.id for each in await driver.engine.tokens()] == [lasting.id]
    assert await driver.engine.find_session(digest_of("short")) is None
    assert await driver.engine.find_session(digest_of("orphan")) is None
    assert await driver.engine.find_session(digest_of("long")) is not None


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "42"),
        ("id", "0190B7B0-0000-7000-8000-000000000000"),
        ("name", ""),
        ("name", "x" * 121),
        ("name", "a\0b"),
        ("digest", "secret"),
        ("digest", "A" * 64),
        ("role", "root"),
        ("permissions", ("",)),
        ("queues", ()),
        ("queues", ("",)),
        ("orgs", ()),
        ("orgs", ("a\0",)),
        ("orgs", "acme"),
        ("created_by", "x" * 256),
        ("expires_at", "tomorrow"),
    ],
)
async def test_a_bad_token_is_refused_by_the_name_of_its_field(driver: Driver, field: str, value: Any):  # S2
    with pytest.raises(InvalidValue) as refusal:
        await driver.engine.save_token(msgspec.structs.replace(token(driver), **{field: value}))
    assert refusal.value.field.startswith("queue" if field == "queues" else field)
    assert "secret" not in str(refusal.value.value)
    assert await driver.engine.tokens() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "1"),
        ("actor", ""),
        ("actor", "x" * 256),
        ("action", ""),
        ("target", "x" * 4097),
        ("target", "\ud800"),
        ("filter", "{"),
        ("detail", "x"),
        ("detail", f'"{"x" * 70_000}"'),
        ("count", -1),
        ("request_id", "x" * 256),
    ],
)
async def test_a_bad_record_is_refused_and_nothing_is_changed(driver: Driver, field: str, value: Any):  # S5
    ref = await driver.add(queue="q")
    bad = msgspec.structs.replace(record(), **{field: value})
    for change in (
        lambda: driver.engine.record_audit(bad),
        lambda: driver.engine.delete(JobFilter(refs=(ref,)), audit=bad),
        lambda: driver.engine.enqueue([new_job(queue="q")], audit=bad),
    ):
        with pytest.raises(InvalidValue) as refusal:
            await change()
        assert refusal.value.field == f"audit.{field}"
    assert await driver.found(JobFilter()) == {ref}


async def test_what_cannot_be_an_id_or_a_digest_names_nothing(driver: Driver):  # S2
    for text in ("", "x", "\0", "\ud800", "é" * 64, "a" * 100_000, new_id().upper()):
        assert await driver.engine.find_token(text) is None
        assert await driver.engine.find_session(text) is None
        with pytest.raises(InvalidValue):
            await driver.engine.revoke_token(text)
        with pytest.raises(InvalidValue):
            await driver.engine.delete_session(text)
