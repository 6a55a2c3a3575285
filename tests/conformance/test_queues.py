"""A queue is the thing that is controlled: paused, given defaults, listed, and kept from crowding others out."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from onward.backoff import Backoff
from onward.engine.capabilities import Feature
from onward.engine.values import QueueChange, QueueSettings, Rate, Retention
from onward.errors import InvalidValue
from onward.job import JobRef
from onward.lifecycle import Complete, JobStatus, Retry
from tests.conformance.access_values import record
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import PAST_LEASE, Driver, new_job

# Settings -------------------------------------------------------------------------------------------------------------


@needs(Feature.QUEUES_BY_USE)
async def test_a_queue_is_made_by_use_with_the_settings_that_hold_unsaid(driver: Driver):  # X5
    assert await driver.engine.queues() == []
    await driver.add(queue="mail/acme")
    (queue,) = await driver.engine.queues()
    assert (queue.name, queue.settings) == ("mail/acme", QueueSettings())
    assert queue.counts == {JobStatus.PENDING: 1}


@needs(Feature.WEIGHT, Feature.QUEUE_DEFAULTS, Feature.RETENTION, Feature.CONCURRENCY, Feature.RATE, Feature.BURST)
@needs(Feature.PAUSE)
async def test_every_setting_is_kept_and_what_is_not_given_stays(driver: Driver):
    settings = {
        "paused": True,
        "rate": Rate(600, timedelta(minutes=1), burst=7),
        "global_concurrency": 3,
        "weight": 5,
        "lease": timedelta(seconds=120),
        "max_attempts": 9,
        "backoff": Backoff.fixed(12, jitter=0.5),
        "retention": Retention(
            completed=timedelta(hours=5), completed_count=6, failed=timedelta(days=7), failed_count=8, cancelled=None
        ),
    }
    for name, value in settings.items():
        assert getattr((await driver.set("q", **{name: value})).settings, name) == value
    (queue,) = await driver.engine.queues()
    paused_at = driver.now
    assert queue.settings == QueueSettings(**settings, paused_at=paused_at)  # type: ignore[arg-type]
    queue = await driver.set("q", rate=None, global_concurrency=None, lease=None, max_attempts=None, backoff=None)
    kept = QueueSettings(paused=True, paused_at=paused_at, weight=5, retention=settings["retention"])  # type: ignore[arg-type]
    assert queue.settings == kept


async def test_queues_are_listed_by_pattern_with_their_depth(driver: Driver):
    await driver.add_many(3, queue="mail/a")
    await driver.add_many(2, queue="mail/b")
    await driver.add(queue="mailbox")
    await driver.take("mail/a")
    await driver.end(await driver.take_one("mail/b"), Retry(timedelta(seconds=9), BOOM))
    listed = {queue.name: queue.counts for queue in await driver.engine.queues("mail/*")}
    assert listed == {
        "mail/a": {JobStatus.PENDING: 2, JobStatus.RUNNING: 1},
        "mail/b": {JobStatus.PENDING: 1, JobStatus.SCHEDULED: 1},
    }
    assert [queue.name for queue in await driver.engine.queues("mailbox")] == ["mailbox"]
    assert [queue.name for queue in await driver.engine.queues()] == ["mail/a", "mail/b", "mailbox"]


async def test_a_queue_says_since_when_its_oldest_ready_job_waits(driver: Driver):
    assert (await driver.set("q")).oldest_ready_at is None
    await driver.advance(1)
    oldest = driver.now
    await driver.add(queue="q")
    await driver.advance(1)
    await driver.add(queue="q")
    (queue,) = await driver.engine.queues("q")
    assert queue.oldest_ready_at == oldest
    await driver.take("q")
    (queue,) = await driver.engine.queues("q")
    assert queue.oldest_ready_at == driver.now


# Pause ----------------------------------------------------------------------------------------------------------------


@needs(Feature.PAUSE)
async def test_a_paused_queue_gives_nothing_and_takes_everything(driver: Driver):  # B8
    before = await driver.add(queue="q")
    assert (await driver.set("q", paused=True)).settings.paused
    after = await driver.add(queue="q")
    other = await driver.add(queue="other")
    assert await driver.taken("q", "other") == [other]
    assert await driver.taken("q") == []
    assert [await driver.state(ref) for ref in (before, after)] == [JobStatus.PENDING] * 2
    await driver.set("q", paused=False)
    assert await driver.taken("q") == [before, after]


@needs(Feature.PAUSE)
async def test_pausing_leaves_alone_what_is_held(driver: Driver):
    ref = await driver.add(queue="q")
    claim = await driver.take_one("q")
    await driver.set("q", paused=True)
    assert (await driver.beat(claim)).lost == frozenset()
    assert await driver.end(claim, Complete())
    assert await driver.state(ref) is JobStatus.COMPLETED


@needs(Feature.PAUSE, Feature.DELAY, Feature.SUSPECTS)
async def test_a_job_that_becomes_ready_in_a_paused_queue_waits_there(driver: Driver):
    lost = await driver.add(queue="q")
    await driver.lose(await driver.take_one("q"))
    ref = await driver.add(queue="q", delay=timedelta(seconds=5))
    await driver.take_one("q")
    await driver.set("q", paused=True)
    await driver.wait(PAST_LEASE)
    await driver.rescue()
    assert (await driver.state(ref), await driver.state(lost)) == (JobStatus.PENDING, JobStatus.PENDING)
    assert await driver.take("q", slots=5) == ()
    assert (await driver.claim("q", alone=True)).claims == ()
    await driver.set("q", paused=False)
    assert await driver.taken("q") == [ref]


@needs(Feature.PAUSE, Feature.RATE)
async def test_a_slot_that_comes_due_does_not_open_a_paused_queue(driver: Driver):
    await driver.set("q", rate=Rate(60, timedelta(minutes=1)))
    await driver.add_many(2, queue="q")
    assert len(await driver.take("q", slots=2)) == 1
    await driver.set("q", paused=True)
    await driver.advance(60)
    assert await driver.take("q") == ()


# Defaults and leases --------------------------------------------------------------------------------------------------


@needs(Feature.QUEUE_DEFAULTS)
async def test_a_queues_defaults_hold_for_jobs_that_do_not_say(driver: Driver):
    slow = Backoff.fixed(300)
    await driver.set("q", max_attempts=2, backoff=slow)
    silent = await driver.add(queue="q")
    own = await driver.add(queue="q", max_attempts=7, backoff=Backoff.fixed(1))
    elsewhere = await driver.add(queue="other")
    claims = {claim.ref: claim for claim in await driver.take("q", "other", slots=3)}
    assert [(claims[ref].max_attempts, claims[ref].backoff) for ref in (silent, own, elsewhere)] == [
        (2, slow),
        (7, Backoff.fixed(1)),
        (5, None),
    ]


async def test_a_queues_lease_goes_before_the_workers(driver: Driver):
    await driver.set("slow", lease=timedelta(minutes=5))
    slow, quick = await driver.add(queue="slow"), await driver.add(queue="quick")
    claims = await driver.take("slow", slots=1) + await driver.take("quick", slots=1)
    await driver.advance(timedelta(minutes=4))
    await driver.rescue()
    assert (await driver.state(slow), await driver.state(quick)) == (JobStatus.RUNNING, JobStatus.PENDING)
    await driver.beat(*claims)
    await driver.advance(timedelta(minutes=4))
    await driver.rescue()
    assert await driver.state(slow) is JobStatus.RUNNING
    await driver.advance(timedelta(minutes=2))
    await driver.rescue()
    assert await driver.state(slow) is JobStatus.PENDING


@needs(Feature.SUSPECTS)
async def test_a_suspect_is_held_for_its_queues_lease_too(driver: Driver):  # Counting, O7
    await driver.set("slow", lease=timedelta(minutes=5))
    ref = await driver.add(queue="slow")
    for _ in range(2):
        await driver.take_one("slow")
        await driver.advance(timedelta(minutes=6))
        await driver.rescue()
    await driver.take_one("slow", alone=True)
    await driver.advance(timedelta(minutes=4))
    await driver.rescue()
    assert await driver.state(ref) is JobStatus.RUNNING
    await driver.advance(timedelta(minutes=2))
    await driver.rescue()
    assert await driver.state(ref) is JobStatus.PENDING


# Fairness -------------------------------------------------------------------------------------------------------------


async def served(driver: Driver, rounds: int, slots: int = 1) -> list[str]:
    """Ask again and again, and hear from which queues jobs came."""
    return [ref.queue for _ in range(rounds) for ref in await driver.taken("*", slots=slots)]


@needs(Feature.PATTERNS)
async def test_a_big_queue_does_not_delay_the_first_job_of_another(driver: Driver):  # H9
    await driver.add_many(500, queue="mail/big")
    assert set(await served(driver, 5)) == {"mail/big"}
    await driver.advance(60)
    await driver.add(queue="mail/small")
    assert "mail/small" in await served(driver, 2)


@needs(Feature.PATTERNS)
@pytest.mark.parametrize("big_first", [True, False])
async def test_one_batch_takes_the_first_job_of_another_queue_along(driver: Driver, big_first: bool):  # H9
    big, small = ("a", "b") if big_first else ("b", "a")
    await driver.add_many(100, queue=big)
    await driver.add(queue=small)
    assert Counter(await served(driver, 1, slots=10)) == {big: 9, small: 1}


@needs(Feature.PATTERNS)
async def test_queues_take_turns(driver: Driver):  # H9
    names = ["a", "b", "c", "d"]
    for name in names:
        await driver.add_many(10, queue=name)
    came = await served(driver, 40)
    for turn in range(10):
        assert set(came[turn * 4 : turn * 4 + 4]) == set(names), turn


@needs(Feature.PATTERNS)
async def test_queues_share_one_batch(driver: Driver):  # H9
    names = ["a", "b", "c", "d"]
    for name in names:
        await driver.add_many(50, queue=name)
    assert Counter(await served(driver, 1, slots=40)) == dict.fromkeys(names, 10)


@needs(Feature.PATTERNS)
async def test_names_and_patterns_asked_for_together_take_turns_too(driver: Driver):  # H9
    for name in ("one", "many/a", "many/b"):
        await driver.add_many(10, queue=name)
    came = [ref.queue for _ in range(9) for ref in await driver.taken("one", "many/*", slots=1)]
    assert Counter(came) == {"one": 3, "many/a": 3, "many/b": 3}


@needs(Feature.PATTERNS, Feature.PRIORITY)
async def test_urgent_jobs_of_one_queue_do_not_shut_another_out(driver: Driver):  # H9
    await driver.add_many(50, queue="loud", priority=1000)
    await driver.add_many(5, queue="quiet")
    assert Counter(await served(driver, 10)) == {"loud": 5, "quiet": 5}


@needs(Feature.PATTERNS, Feature.WEIGHT)
@pytest.mark.parametrize("slots", [1, 4, 40])
async def test_a_queue_has_its_weight_in_turns(driver: Driver, slots: int):
    await driver.set("heavy", weight=3)
    for name in ("heavy", "light"):
        await driver.add_many(60, queue=name)
    came = Counter(await served(driver, 40 // slots, slots=slots))
    assert came["heavy"] + came["light"] == 40
    assert 28 <= came["heavy"] <= 32


@needs(Feature.PATTERNS, Feature.WEIGHT)
async def test_a_heavy_queue_leaves_turns_to_many_light_ones(driver: Driver):
    await driver.set("heavy", weight=100)
    await driver.add_many(300, queue="heavy")
    await driver.add(queue="light")
    came = await served(driver, 202)
    assert "light" in came


@needs(Feature.PATTERNS)
@pytest.mark.parametrize("slots", [1, 3])
async def test_a_claim_finds_what_there_is_past_queues_that_have_run_empty(driver: Driver, slots: int):
    for number in range(20):
        await driver.add(queue=f"a{number:02}")
    assert len(await driver.take("*", slots=20)) == 20
    refs = await driver.add_many(6, queue="z")
    came: list[JobRef] = []
    while len(came) < len(refs):
        taken = await driver.taken("*", slots=slots)
        assert len(taken) == slots, "jobs wait, and fewer came than there was room for"
        came += taken
    assert came == refs


@needs(Feature.PATTERNS)
async def test_a_claim_finds_what_there_is_past_queues_whose_jobs_were_taken_back(driver: Driver):
    for number in range(5):
        await driver.cancel(await driver.add(queue=f"a{number}"))
    ref = await driver.add(queue="z")
    assert await driver.taken("*", slots=1) == [ref]


@needs(Feature.PATTERNS, Feature.PAUSE, Feature.QUEUES_BY_USE)  # ten thousand of them are cheap there only
async def test_one_open_queue_is_found_among_9_999_that_are_paused(driver: Driver):
    names = [f"m/{number:04}" for number in range(10_000)]
    await driver.put([new_job(queue=name) for name in names])
    await asyncio.gather(*[driver.set(name, paused=True) for name in names if name != "m/7777"])
    assert [ref.queue for ref in await driver.taken("m/*", slots=10)] == ["m/7777"]
    assert await driver.take("m/*", slots=10) == ()
    await driver.set("m/0003", paused=False)
    await driver.add(queue="m/7777")
    assert {ref.queue for ref in await driver.taken("m/*", slots=10)} == {"m/0003", "m/7777"}


@needs(Feature.PATTERNS, Feature.RATE)
async def test_queues_whose_slot_has_not_come_do_not_stand_in_the_way(driver: Driver):
    slow = Rate(1, timedelta(hours=1))
    for number in range(300):
        await driver.set(f"m/{number:03}", rate=slow)
    await driver.put([new_job(queue=f"m/{number:03}") for number in range(300)] * 2)
    assert len(await driver.take("m/*", slots=1000)) == 300
    refs = await driver.add_many(3, queue="m/zz")
    assert [await driver.taken("m/*", slots=1) for _ in refs] == [[ref] for ref in refs]
    assert await driver.take("m/*", slots=1000) == ()


# Pause with reason and author -----------------------------------------------------------------------------------------


async def settings_of(driver: Driver, queue: str) -> QueueSettings:
    (info,) = await driver.engine.queues(queue)
    return info.settings


@needs(Feature.PAUSE)
async def test_a_pause_has_a_reason_an_author_and_a_time(driver: Driver):  # A2, S5
    await driver.add(queue="q")
    await driver.advance(1)
    at = driver.now
    change = QueueChange(paused=True, pause_reason="Größer als 5 % Fehler", paused_by="cli:anna@host")
    info = await driver.engine.configure("q", change)
    expected = (True, "Größer als 5 % Fehler", "cli:anna@host", at)
    for settings in (info.settings, await settings_of(driver, "q")):
        known = settings.paused, settings.pause_reason, settings.paused_by, settings.paused_at
        assert known == expected
    assert await driver.take("q") == ()
    await driver.advance(60)
    await driver.set("q", paused=True)
    settings = await settings_of(driver, "q")
    assert (settings.pause_reason, settings.paused_by, settings.paused_at) == expected[1:]
    await driver.set("q", paused=True, pause_reason="it goes on")
    settings = await settings_of(driver, "q")
    assert (settings.pause_reason, settings.paused_by, settings.paused_at) == ("it goes on", "cli:anna@host", at)


@needs(Feature.PAUSE)
async def test_nothing_of_a_pause_is_left_when_the_queue_is_resumed(driver: Driver):  # A2
    await driver.set("q", paused=False)
    before = await settings_of(driver, "q")
    await driver.set("q", paused=True, pause_reason="first", paused_by="anna")
    await driver.set("q", paused=False)
    assert await settings_of(driver, "q") == before
    await driver.advance(60)
    await driver.set("q", paused=True)
    settings = await settings_of(driver, "q")
    assert (settings.pause_reason, settings.paused_by, settings.paused_at) == (None, None, driver.now)
    await driver.set("q", lease=timedelta(seconds=9))
    assert (await settings_of(driver, "q")).paused_at == driver.now


@needs(Feature.PAUSE)
async def test_the_author_of_a_pause_is_the_actor_of_its_record(driver: Driver):  # A2, S5
    await driver.make("q")
    await driver.engine.configure("q", QueueChange(paused=True), audit=record(actor="token:ops"))
    assert (await settings_of(driver, "q")).paused_by == "token:ops"
    await driver.engine.configure("q", QueueChange(paused=False), audit=record(actor="token:ops"))
    assert (await settings_of(driver, "q")).paused_by is None


@needs(Feature.PAUSE)
async def test_a_reason_without_a_pause_is_refused(driver: Driver):  # A2
    await driver.make("q")
    for change in (
        QueueChange(pause_reason="why"),
        QueueChange(paused=False, pause_reason="why"),
        QueueChange(paused_by="anna"),
        QueueChange(paused=True, pause_reason="x" * 501),
        QueueChange(paused=True, pause_reason="a\0b"),
    ):
        with pytest.raises(InvalidValue, match=r"pause"):
            await driver.engine.configure("q", change)
