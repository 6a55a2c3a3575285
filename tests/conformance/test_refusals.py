"""What an engine does not have it refuses, before anything is written, and says why (X1).

Each recipe asks for one feature. Every engine is asked for every feature: for one that it has, it is put behind a front
that says it has not, so that the refusal is proven even where nothing is absent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from onward.batches.values import NewBatch
from onward.cron import Cron, Interval
from onward.engine.capabilities import Capabilities, Feature, Level, Support
from onward.engine.checked import CheckedEngine
from onward.engine.values import ClaimRequest, GroupBy, JobChange, JobFilter, QueueChange, Rate, Retention, Settlement
from onward.errors import Unsupported
from onward.job import NewJob
from onward.lifecycle import Complete, JobStatus
from onward.metering import UsageQuery
from onward.schedule import Firing, Missed, Schedule
from tests.conformance.cases import CASES, EngineCase, Lacking, Planted
from tests.conformance.driver import Driver

Ask = Callable[[CheckedEngine, Planted], Awaitable[object]]


def enqueue(**fields: object) -> Ask:
    """Ask for a job with such fields, in a bulk with plain ones, by both ways in."""

    async def ask(engine: CheckedEngine, planted: Planted) -> object:
        jobs = [NewJob(type="plain"), NewJob(**{"type": "asks", **fields})]  # type: ignore[arg-type]
        with pytest.raises(Unsupported):
            engine.enqueue_sync(jobs)
        return await engine.enqueue(jobs)

    return ask


def claim(**fields: object) -> Ask:
    """Ask for jobs in such a way."""
    return lambda engine, planted: engine.claim(
        ClaimRequest(**{"worker_id": "w", "queues": (planted.ref.queue,), **fields})  # type: ignore[arg-type]
    )


def configure(**change: object) -> Ask:
    """Ask for a queue with such a setting."""
    return lambda engine, planted: engine.configure("new-queue", QueueChange(**change))  # type: ignore[arg-type]


def save_schedule(**fields: object) -> Ask:
    """Ask for such a schedule."""
    given = {"name": "s", "job": NewJob(type="t", queue="planted"), "trigger": Cron("* * * * *"), **fields}
    return lambda engine, planted: engine.save_schedule(Schedule(**given))  # type: ignore[arg-type]


async def listen(engine: CheckedEngine, planted: Planted) -> object:
    """Ask to be told of changes."""
    return await anext(engine.signals(["planted"]))


async def settle_within(engine: CheckedEngine, planted: Planted) -> object:
    """Ask for an outcome, and for a job, in the caller's transaction."""
    settlements = [Settlement(planted.claim, Complete())]
    for ask in (
        lambda: engine.enqueue_sync([NewJob(type="asks")], connection=object()),
        lambda: engine.settle_sync(settlements, connection=object()),
    ):
        with pytest.raises(Unsupported):
            ask()
    with pytest.raises(Unsupported):
        await engine.enqueue([NewJob(type="asks")], connection=object())
    return await engine.settle(settlements, connection=object())


async def about_organisations(engine: CheckedEngine, planted: Planted) -> object:
    """Ask for what is somebody's."""
    of_acme = JobFilter(org_id="acme")
    for ask in (
        lambda: engine.find(of_acme),
        lambda: engine.cancel(of_acme),
        lambda: engine.delete(of_acme),
        lambda: engine.count(JobFilter(), by=GroupBy.ORG),
    ):
        with pytest.raises(Unsupported):
            await ask()
    return await enqueue(org_id="acme")(engine, planted)


async def about_cancelled_jobs(engine: CheckedEngine, planted: Planted) -> object:
    """Ask for jobs in a state that is not kept."""
    cancelled = JobFilter(status=frozenset({JobStatus.CANCELLED}))
    with pytest.raises(Unsupported):
        await engine.count(cancelled, by=GroupBy.STATUS)
    return await engine.find(cancelled)


async def change_priority(engine: CheckedEngine, planted: Planted) -> object:
    """Ask for urgency, from the start or later."""
    with pytest.raises(Unsupported):
        await engine.edit(planted.ref, JobChange(priority=1))
    return await enqueue(priority=1)(engine, planted)


async def later(engine: CheckedEngine, planted: Planted) -> object:
    """Ask for a later time, by either name."""
    with pytest.raises(Unsupported):
        await enqueue(run_at=datetime(2099, 1, 1, tzinfo=UTC))(engine, planted)
    return await enqueue(delay=timedelta(seconds=1))(engine, planted)


RECIPES: dict[Feature, Ask] = {
    Feature.CLAIMED_STATE: claim(prefetch_claimed=1),
    Feature.CANCELLED_STATE: about_cancelled_jobs,
    Feature.PRIORITY: change_priority,
    Feature.DELAY: later,
    Feature.START_BY: enqueue(start_by=datetime(2099, 1, 1, tzinfo=UTC)),
    Feature.IDEMPOTENCY: enqueue(idempotency_key="k"),
    Feature.DEDUPLICATION: enqueue(dedupe_key="k"),
    Feature.ORGANISATIONS: about_organisations,
    Feature.PAUSE: configure(paused=True, pause_reason="why"),
    Feature.RATE: configure(rate=Rate(5)),
    Feature.BURST: configure(rate=Rate(5, burst=2)),
    Feature.CONCURRENCY: configure(global_concurrency=1),
    Feature.WEIGHT: configure(weight=2),
    Feature.PATTERNS: claim(queues=("planted", "mail/*")),
    Feature.QUEUE_DEFAULTS: configure(max_attempts=2),
    Feature.RETENTION: configure(retention=Retention()),
    Feature.ARCHIVE: lambda engine, planted: engine.archived(JobFilter()),
    Feature.PROGRESS: lambda engine, planted: engine.report(planted.claim, progress=5),
    Feature.LOG_LINES: lambda engine, planted: engine.report(planted.claim, lines=["line"]),
    Feature.RESULTS: lambda engine, planted: engine.settle([Settlement(planted.claim, Complete('"kept?"'))]),
    Feature.SUSPECTS: claim(alone=True),
    Feature.EDIT: lambda engine, planted: engine.edit(planted.ref, JobChange(max_attempts=2)),
    Feature.REPLAY: lambda engine, planted: engine.replay(JobFilter()),
    Feature.TRANSACTIONS: settle_within,
    Feature.PUSH: listen,
    Feature.EVENTS: lambda engine, planted: engine.events([planted.ref.queue]),
    Feature.SCHEDULES: save_schedule(),
    Feature.INTERVALS: save_schedule(trigger=Interval(timedelta(minutes=1))),
    Feature.MISSED_TURNS: save_schedule(missed=Missed.ALL),
    Feature.FIRING: lambda engine, planted: engine.fire(
        Schedule(name="s", job=NewJob(type="t"), trigger=Cron("* * * * *")),
        Firing(jobs=[], last_at=datetime(2030, 1, 1, tzinfo=UTC), next_at=datetime(2030, 1, 2, tzinfo=UTC)),
    ),
    Feature.THROTTLE: lambda engine, planted: engine.enqueue(
        [NewJob(type="t", queue="planted", dedupe_key="k", throttle=timedelta(seconds=1))]
    ),
    Feature.USAGE: lambda engine, planted: engine.usage(UsageQuery()),
    Feature.WEBHOOKS: lambda engine, planted: engine.acquire_cursor("w", "somebody", lease=timedelta(seconds=30)),
    Feature.BATCHES: lambda engine, planted: engine.save_batch(NewBatch(name="b")),
    Feature.LEADER: lambda engine, planted: engine.elect("somebody", lease=timedelta(seconds=30)),
}

NOT_ASKED_FOR = {
    Feature.ERROR_HISTORY: "it is read, never asked for: where it is absent, only the last error is there to be read",
    Feature.LATE_OUTCOMES: "nobody asks to be late: where it is absent, a claim is lost as soon as its lease ends",
    Feature.READY_ORDER: "it is seen, never asked for: where it is absent, jobs come in the order that the store has",
    Feature.PROMOTION: "a leader promotes what there is: where it is absent, due jobs are ready without it",
    Feature.CHANGE_TIMES: "they are read, never asked for: where they are absent, the nearest time known is shown",
}
REFUSED_BY_THE_STORE = {
    Feature.QUEUES_BY_USE: "only the store knows which queues there are, so only an engine that lacks it can refuse",
}


def asked() -> list[object]:
    """Every case with every feature that can be asked for in front of the store."""
    return [
        pytest.param(case, feature, id=f"{case.name}-{feature.name.lower()}") for case in CASES for feature in RECIPES
    ]


@pytest.mark.parametrize(("case", "feature"), asked(), indirect=["case"])
async def test_asking_for_what_is_absent_is_refused_and_nothing_is_written(
    driver: Driver, case: EngineCase, feature: Feature
):  # X1
    planted = await driver.store.plant(driver.engine, case.capabilities.shown(JobStatus.RUNNING))
    waiting = await driver.add(queue="planted")
    engine = driver.engine
    if case.capabilities.has(feature):
        engine = CheckedEngine(Lacking(engine.inner, feature))
    support = engine.capabilities.features[feature]
    before = await driver.snapshot()
    of_waiting = planted._replace(ref=waiting) if feature in {Feature.EDIT, Feature.PRIORITY} else planted

    with pytest.raises(Unsupported) as refusal:
        await RECIPES[feature](engine, of_waiting)

    assert (refusal.value.engine, refusal.value.feature) == (case.capabilities.engine, feature)
    for part in (case.capabilities.engine, str(feature), support.note):
        assert part in str(refusal.value)
    assert await driver.snapshot() == before
    assert await driver.engine.elect("nobody-led", lease=timedelta(seconds=1)) is not None


async def test_an_unknown_queue_is_refused_where_queues_are_not_made_by_use(driver: Driver, case: EngineCase):  # X1, X5
    if case.capabilities.has(Feature.QUEUES_BY_USE):
        assert (await driver.enqueue(queue="never-made")).is_new
        return
    before = await driver.snapshot()
    with pytest.raises(Unsupported) as refusal:
        await driver.engine.enqueue([NewJob(type="greet", queue="never-made")])
    assert case.capabilities.features[Feature.QUEUES_BY_USE].note in str(refusal.value)
    assert await driver.snapshot() == before


def test_every_feature_has_a_recipe_or_a_reason_for_none():  # X1
    assert {*RECIPES, *NOT_ASKED_FOR, *REFUSED_BY_THE_STORE} == set(Feature)
    assert not RECIPES.keys() & {*NOT_ASKED_FOR, *REFUSED_BY_THE_STORE}


def test_every_feature_is_spoken_of_and_what_is_not_native_has_a_note(case: EngineCase):  # X1
    assert set(case.capabilities.features) == set(Feature)
    for feature, support in case.capabilities.features.items():
        assert support.level is Level.NATIVE or support.note.strip(), feature


def test_an_engine_that_leaves_a_feature_unsaid_cannot_be():  # X1
    with pytest.raises(ValueError, match="rate limits"):
        Capabilities("Half", {feature: _NATIVE for feature in Feature if feature is not Feature.RATE}, {})
    with pytest.raises(ValueError, match="note"):
        Support(Level.ABSENT)


_NATIVE = Support(Level.NATIVE)
