"""Every changing operation leaves exactly one record, on every engine; what an engine lacks is refused (S5, A7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from onward import JobRef
from onward.engine.capabilities import Feature
from onward.engine.values import WorkerInfo
from onward.errors import Unsupported
from onward.service.identity import Identity
from onward.service.operations import OPERATIONS
from onward.service.services import Services
from onward.service.values import (
    BatchRequest,
    EnqueueRequest,
    FlowStep,
    JobEdit,
    JobQuery,
    QueueSettingsChange,
    ScheduleRequest,
    Selection,
    TokenRequest,
)
from tests.service.conftest import ADMIN, records, ref, run_operations, tick

WORKER = WorkerInfo(id="w-1", hostname="here", pool_size=1, version="1")


@dataclass
class Names:
    """What earlier steps of the walk have made."""

    jobs: dict[str, JobRef] = field(default_factory=dict)
    token: str = ""
    operation: str | None = None
    session: Identity = ADMIN


Step = tuple[str, frozenset[Feature], Callable[[Services, Names], Awaitable[Any]]]


def step(name: str, call: Callable[[Services, Names], Awaitable[Any]], *features: Feature) -> Step:
    return name, frozenset(features), call


PLAIN = EnqueueRequest(type="plain")
NOTHING = Selection(filter=JobQuery(type=("nothing",)))
SCHEDULE = ScheduleRequest(job=PLAIN, cron="0 3 * * *")
BATCH = BatchRequest(queue="own", jobs=(FlowStep(job=PLAIN),))


async def _login(services: Services, names: Names) -> None:
    names.session = (await services.access.create_session(names.session)).identity


async def _logout(services: Services, names: Names) -> None:
    new = await services.access.create_token(ADMIN, TokenRequest(name="web", role="operator"))
    session = await services.access.login(new.secret)
    names.session = await services.access.authenticate_session(session.secret)
    names.token = new.token.id


async def _delete_batch(services: Services, _: Names) -> None:
    if services.store.core.capabilities.has(Feature.BATCHES):
        await tick(services.store.app)  # on PostgreSQL, a leader records the end of a batch
    await services.batches.delete(ADMIN, "b")


async def _operation(services: Services, names: Names) -> None:
    names.operation = (await services.bulk.cancel(ADMIN, NOTHING)).id


STEPS: tuple[Step, ...] = (
    step("operations.cancel", lambda s, n: s.bulk.stop(ADMIN, n.operation or "")),
    step("jobs.enqueue", lambda s, _: s.jobs.enqueue(ADMIN, PLAIN)),
    step("jobs.enqueue_many", lambda s, _: s.jobs.enqueue_many(ADMIN, [PLAIN, PLAIN])),
    step("jobs.edit", lambda s, n: s.jobs.edit(ADMIN, n.jobs["waits"], JobEdit(max_attempts=7)), Feature.EDIT),
    step("jobs.reveal", lambda s, n: s.jobs.reveal(ADMIN, n.jobs["waits"])),
    step("jobs.cancel", lambda s, n: s.jobs.cancel(ADMIN, n.jobs["waits"])),
    step("jobs.replay", lambda s, n: s.jobs.replay(ADMIN, n.jobs["dead"]), Feature.REPLAY),
    step("jobs.delete", lambda s, n: s.jobs.delete(ADMIN, n.jobs["unwanted"])),
    step("jobs.cancel_many", lambda s, _: s.bulk.cancel(ADMIN, NOTHING)),
    step("jobs.replay_many", lambda s, _: s.bulk.replay(ADMIN, NOTHING), Feature.REPLAY),
    step("jobs.delete_many", lambda s, _: s.bulk.delete(ADMIN, NOTHING)),
    step("dead.replay", lambda s, _: s.bulk.replay_dead(ADMIN, Selection(all=True)), Feature.REPLAY),
    step("dead.purge", lambda s, _: s.bulk.purge_dead(ADMIN, Selection(all=True))),
    step("archive.purge", lambda s, _: s.bulk.purge_archive(ADMIN, Selection(all=True)), Feature.ARCHIVE),
    step("queues.pause", lambda s, _: s.queues.pause(ADMIN, "default", reason="look"), Feature.PAUSE),
    step("queues.resume", lambda s, _: s.queues.resume(ADMIN, "default"), Feature.PAUSE),
    step("queues.configure", lambda s, _: s.queues.configure(ADMIN, "default", QueueSettingsChange(lease=90))),
    step("workers.quiet", lambda s, _: s.workers.quiet(ADMIN, WORKER.id)),
    step("workers.resume", lambda s, _: s.workers.resume(ADMIN, WORKER.id)),
    step("workers.stop", lambda s, _: s.workers.stop(ADMIN, WORKER.id)),
    step("schedules.set", lambda s, _: s.schedules.set(ADMIN, "nightly", SCHEDULE), Feature.SCHEDULES),
    step("schedules.pause", lambda s, _: s.schedules.pause(ADMIN, "nightly"), Feature.SCHEDULES),
    step("schedules.resume", lambda s, _: s.schedules.resume(ADMIN, "nightly"), Feature.SCHEDULES),
    step("schedules.run", lambda s, _: s.schedules.run(ADMIN, "nightly"), Feature.SCHEDULES),
    step("schedules.delete", lambda s, _: s.schedules.delete(ADMIN, "nightly"), Feature.SCHEDULES),
    step("batches.create", lambda s, _: s.batches.create(ADMIN, "b", BATCH), Feature.BATCHES),
    step("batches.pause", lambda s, _: s.batches.pause(ADMIN, "b"), Feature.BATCHES),
    step("batches.resume", lambda s, _: s.batches.resume(ADMIN, "b"), Feature.BATCHES),
    step("batches.seal", lambda s, _: s.batches.seal(ADMIN, "b"), Feature.BATCHES),
    step("batches.cancel", lambda s, _: s.batches.cancel(ADMIN, "b"), Feature.BATCHES),
    step("batches.delete", _delete_batch, Feature.BATCHES),
    step("tick.run", lambda s, _: s.status.tick(ADMIN, limit=1)),
    step("tokens.create", lambda s, _: s.access.create_token(ADMIN, TokenRequest(name="new"))),
    step("session.create", _login),
    step("session.delete", lambda s, n: s.access.logout(n.session)),
    step("tokens.revoke", lambda s, n: s.access.revoke_token(ADMIN, n.token)),
)


def test_the_walk_has_every_changing_operation():  # S5
    assert [name for name, _, _ in STEPS] == list(dict.fromkeys(name for name, _, _ in STEPS))
    assert {name for name, _, _ in STEPS} == {name for name, one in OPERATIONS.items() if one.changes}


@pytest.fixture
async def names(app, services, store) -> Names:
    names = Names()
    for name, delay in (("waits", 3600.0), ("unwanted", 3600.0)):
        names.jobs[name] = ref(await services.jobs.enqueue(ADMIN, EnqueueRequest(type="plain", delay=delay)))
    request = EnqueueRequest(type="send", payload={"to": "x"}, org_id="a", max_attempts=1)
    names.jobs["dead"] = ref(await services.jobs.enqueue(ADMIN, request))
    await tick(app)
    await store.advance(timedelta(seconds=1))
    await _logout(services, names)
    await _operation(services, names)
    await services.store.core.engine.heartbeat(WORKER, [])
    return names


async def test_every_change_leaves_exactly_one_record(app, services, store, case, names):  # S5, A7
    wrong: list[str] = []
    for name, features, call in STEPS:
        before = {one.id for one in await records(services)}
        lacking = [feature for feature in features if not case.capabilities.has(feature)]
        try:
            await call(services, names)
        except Unsupported as error:
            note = case.capabilities.features[error.feature].note
            if not lacking or note not in str(error):
                wrong.append(f"{name}: {error}")
        else:
            if lacking:
                wrong.append(f"{name} is not refused, and {lacking} is absent")
        if name.endswith("_many") or name in {"dead.replay", "dead.purge", "archive.purge"}:
            await run_operations(app)
        made = [(one.action, one.actor, one.role) for one in await records(services) if one.id not in before]
        expected = [] if lacking else [(name, names.session.actor if name.startswith("session.") else "user:root")]
        if name == "operations.cancel":  # with its end, the change by filter leaves its own
            expected.insert(0, ("jobs.cancel_many", "user:root"))
        if [(action, actor) for action, actor, _ in made] != expected:
            wrong.append(f"{name}: {made}, expected {expected}")
        await store.advance(timedelta(seconds=1))
    assert wrong == []


READS: tuple[Step, ...] = (
    step("archive.list", lambda s, _: s.archive.list(ADMIN, JobQuery()), Feature.ARCHIVE),
    step("archive.count", lambda s, _: s.archive.count(ADMIN, JobQuery()), Feature.ARCHIVE),
    step("archive.get", lambda s, n: s.archive.get(ADMIN, n.jobs["waits"]), Feature.ARCHIVE),
    step("schedules.list", lambda s, _: s.schedules.list(ADMIN), Feature.SCHEDULES),
    step("schedules.get", lambda s, _: s.schedules.get(ADMIN, "nightly"), Feature.SCHEDULES),
    step("batches.list", lambda s, _: s.batches.list(ADMIN), Feature.BATCHES),
    step("batches.get", lambda s, _: s.batches.get(ADMIN, "b"), Feature.BATCHES),
    step("batches.jobs", lambda s, _: s.batches.jobs(ADMIN, "b"), Feature.BATCHES),
    step("batches.graph", lambda s, _: s.batches.graph(ADMIN, "b"), Feature.BATCHES),
    step("usage.read", lambda s, _: s.status.usage(ADMIN), Feature.USAGE),
    step("events.stream", lambda s, _: s.events.stream(ADMIN), Feature.EVENTS),
    step("jobs.logs", lambda s, n: s.jobs.logs(ADMIN, n.jobs["waits"]), Feature.LOG_LINES),
)


async def test_what_an_engine_cannot_show_is_refused_with_its_note(services, case, names):  # A7
    for name, features, call in READS:
        (feature,) = features
        if case.capabilities.has(feature):
            continue
        with pytest.raises(Unsupported) as caught:
            await call(services, names)
        assert caught.value.feature == feature, name
        assert case.capabilities.features[feature].note in str(caught.value)


async def test_what_every_engine_shows(services, names):  # A2
    assert {one.id for one in (await services.workers.list(ADMIN)).items} == {WORKER.id}
    assert (await services.status.health(ADMIN)).ok
    assert (await services.status.metrics(ADMIN)).startswith("# HELP")
    assert (await services.status.doctor(ADMIN)).findings
    assert (await services.dead.count(ADMIN, JobQuery())).total == 1
    assert [job.id for job in (await services.dead.list(ADMIN, JobQuery())).items] == [names.jobs["dead"].id]
    assert (await services.jobs.explain(ADMIN, names.jobs["waits"])).items
    assert not (await services.jobs.result(ADMIN, names.jobs["waits"])).is_finished
    assert (await services.jobs.result(ADMIN, names.jobs["dead"])).error is not None
    assert names.operation in {one.id for one in (await services.bulk.list(ADMIN)).items}


async def test_no_record_no_change(app, services, store, names):  # S5
    before = await app.jobs.get(names.jobs["waits"])
    store.refuse_audit()
    for call in (
        services.jobs.cancel(ADMIN, names.jobs["waits"]),
        services.jobs.enqueue(ADMIN, PLAIN),
        services.queues.configure(ADMIN, "video", QueueSettingsChange(lease=77)),
        services.access.create_token(ADMIN, TokenRequest(name="unrecorded")),
        services.jobs.reveal(ADMIN, names.jobs["waits"]),
    ):
        with pytest.raises(Exception, match=r"refused|something else"):  # each store words it its own way
            await call
    assert await app.jobs.get(names.jobs["waits"]) == before
    assert (await services.jobs.count(ADMIN, JobQuery(type=("plain",)))).total == 2
    assert "unrecorded" not in {token.name for token in (await services.access.list_tokens(ADMIN)).items}
