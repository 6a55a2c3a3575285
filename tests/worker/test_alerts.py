"""Alert rules: one delivery when a condition begins, one when it ends, whichever worker leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onward import App, JobFilter, NewJob, Unsupported
from onward.alert import AlertRule, Condition
from onward.core import core_of
from onward.engine.values import QueueInfo, QueueSettings
from onward.errors import InvalidValue, PermissionDenied
from onward.job import Job
from onward.lifecycle import JobStatus
from onward.metering import Usage
from onward.service.identity import of_user
from onward.service.services import Services
from onward.service.values import EnqueueRequest, JobEdit
from onward.validation import encode_json
from onward.webhook import verify
from tests.app.test_webhooks import receiving
from tests.conformance.cases import CASE_OF, CASES, EngineCase, Store

SECRET = "a secret of sixteen bytes"
HOOK: dict[str, Any] = {"secret": SECRET, "events": (), "max_attempts": 1}
WITH_ALERTS = [CASE_OF[name] for name in ("sqlite", "postgres")]


@pytest.fixture(params=WITH_ALERTS, ids=lambda case: case.name)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    store = request.param.make(tmp_path)
    yield store
    await store.close()


def app_on(store: Store, **rule: Any) -> App:
    app = App(engine=store.bare(), clock=store.clock)

    @app.task(max_attempts=1)
    def broken(fails: bool = True) -> None:
        if fails:
            raise ValueError("boom")

    app.webhook("ops", "https://127.0.0.1:9/hook", **HOOK)
    app.alert("rule", webhook="ops", **{"queues": ("default", "mail/*"), **rule})
    return app


async def evaluate(app: App) -> None:
    """Do what the leader does every 15 s, as another leader each time."""
    alerts = core_of(app).alert_evaluation()
    assert alerts is not None
    engine = await core_of(app).opened()
    term = await engine.elect("test", lease=timedelta(seconds=5))
    assert term is not None
    await alerts.evaluate(term)
    await engine.resign(term)


async def delivered(app: App) -> list[tuple[str, float, str | None]]:
    """What was delivered, the oldest first; the deliveries themselves fail, for nobody listens."""
    page = await app.jobs.list(JobFilter(queues=("onward/alerts/*",)), limit=100)
    events: list[Any] = [job.payload["event"] for job in reversed(page.items)]
    return [(event["type"], event["data"]["value"], event["data"]["queue"]) for event in events]


async def test_an_old_ready_job_fires_once_and_is_resolved_once(store: Store):
    async with app_on(store, oldest_ready=600) as app, app_on(store, oldest_ready=600) as other:
        await app.enqueue_many([NewJob(type="nobody", queue="mail/a"), NewJob(type="nobody", queue="video")])
        await evaluate(app)
        assert await delivered(app) == []
        await store.advance(601)
        for each in (app, other, app):
            await evaluate(each)
        assert await delivered(app) == [("alert.fired", 601.0, "mail/a")]
        await app.jobs.cancel(JobFilter(queues=("mail/a",)))
        await store.advance(301)
        for each in (other, app, other):
            await evaluate(each)
        assert await delivered(app) == [("alert.fired", 601.0, "mail/a"), ("alert.resolved", 0.0, None)]
        await store.advance(600)
        await evaluate(app)
        assert len(await delivered(app)) == 2  # the queue video is not the rule's


async def test_two_leaders_of_one_moment_deliver_once(store: Store):
    async with app_on(store, dead_letters=1) as app:
        await core_of(app).find_task("broken").enqueue()
        await app.tick()
        await app.tick()  # it evaluates too, before it runs jobs
        assert [kind for kind, _, _ in await delivered(app)] == ["alert.fired"]
        (job,) = (await app.jobs.list(JobFilter(queues=("onward/alerts/*",)))).items
        rule = core_of(app).alerts["rule"]
        job_of = core_of(app).alert_job_of
        assert job_of is not None
        key = job.idempotency_key
        assert key == "rule:first"
        await app.enqueue_many([job_of(rule, {"type": "alert.fired", "data": {}}, key)])
        assert len(await delivered(app)) == 1


async def test_a_value_about_the_threshold_delivers_little(store: Store):
    async with app_on(store, oldest_ready=60) as app:
        for _ in range(10):
            (job,) = await app.enqueue_many([NewJob(type="nobody", queue="mail/a")])
            await store.advance(60)
            await evaluate(app)
            await app.jobs.delete(job.ref)
            await evaluate(app)
        # Ten minutes: a delivery needs five since the one before.
        assert [kind for kind, _, _ in await delivered(app)] == ["alert.fired", "alert.resolved"]


async def test_dead_letters_and_failures_fire(store: Store):
    async with app_on(store, failure_rate=0.5, min_runs=4) as app:
        app.alert("dead", webhook="ops", dead_letters=2)
        broken: Any = core_of(app).find_task("broken")
        await app.enqueue_many([broken.job(fails=fails) for fails in (True, True, False)])
        await app.tick()
        await evaluate(app)
        assert await delivered(app) == [("alert.fired", 2.0, "default")]  # dead; too few runs for a rate
        await app.enqueue_many([broken.job()])
        await app.tick()
        await evaluate(app)
        assert sorted(await delivered(app)) == [("alert.fired", 0.75, "default"), ("alert.fired", 2.0, "default")]
        found = (await Services(app).status.doctor(of_user("v"))).findings
        shown = [one.message for one in found if one.message.startswith("alert ")]
        assert sorted(message.partition(" fires")[0] for message in shown) == ["alert dead", "alert rule"]
        assert any("failure_rate was 0.75, the threshold is 0.5, most in queue default" in message for message in shown)
        await store.advance(timedelta(minutes=8))
        await app.dead.purge(all=True)
        await evaluate(app)
        assert [kind for kind, _, _ in await delivered(app)].count("alert.resolved") == 2


async def test_a_delivery_is_signed_and_nothing_of_an_alert_is_relayed(store: Store):
    async with app_on(store, dead_letters=1) as app:
        hook = app.webhook("crm", "https://127.0.0.1:9/hook", secret=SECRET)
        await core_of(app).find_task("broken").enqueue()
        await app.tick()
        await app.tick()
        (job,) = (await app.jobs.list(JobFilter(queues=("onward/alerts/*",)))).items
        assert (job.type, len(job.payload["proof"])) == ("onward.webhook", 64)
        events = await core_of(app).engine.events(("*",), cursor="oldest")
        seen = []
        async for event in events:
            seen.append(event)
            if event.ref.queue.startswith("onward/"):
                break
        await events.aclose()
        assert [hook.matches(event) for event in seen if event.ref.queue.startswith("onward/")] == [False]


async def test_a_receiver_gets_what_has_begun_and_what_has_ended(store: Store):
    async with receiving() as receiver, App(engine=store.bare(), clock=store.clock) as app:
        app.webhook("ops", receiver.url, secret=SECRET, events=(), allow=["127.0.0.0/8"])
        app.alert("slow", webhook="ops", oldest_ready=60, min_interval=0, queues=["mail"])
        await app.enqueue_many([NewJob(type="nobody", queue="mail")])
        await store.advance(61)
        await evaluate(app)
        deliver = core_of(app).ticker()
        await deliver.tick(10, queues=("onward/alerts/*",))
        await app.jobs.cancel(JobFilter(queues=("mail",)))
        await evaluate(app)
        await deliver.tick(10, queues=("onward/alerts/*",))
        await receiver.wait_for(2)
    bodies = [msgspec.json.decode(body) for _, _, body in receiver.got]
    assert [body["type"] for body in bodies] == ["alert.fired", "alert.resolved"]
    assert bodies[0]["data"] == {
        "alert": "slow", "condition": "oldest_ready", "threshold": 60.0, "value": 61.0, "queue": "mail",
        "queues": ["mail"],
    }  # fmt: skip
    assert all(verify(body, headers, SECRET) for _, headers, body in receiver.got)


async def test_only_deliveries_are_the_state_of_a_rule_and_no_caller_changes_them(store: Store):  # S3
    async with app_on(store, dead_letters=1) as app:
        services, admin = Services(app), of_user("root", role="admin")
        forged = {"event": {"type": "alert.fired", "data": {"value": "much", "queue": 7}}}
        with pytest.raises(PermissionDenied, match="reserved"):
            request = EnqueueRequest(type="broken", payload={}, queue="onward/alerts/rule")
            await services.jobs.enqueue(admin, request)
        await app.enqueue_many([NewJob(type="by-hand", queue="onward/alerts/rule", payload=encode_json(forged))])
        found = (await services.status.doctor(admin)).findings
        assert not [one for one in found if one.message.startswith("alert ")]
        await core_of(app).find_task("broken").enqueue()
        await app.tick()
        await evaluate(app)
        (job,) = (await app.jobs.list(JobFilter(types=("onward.webhook",)))).items
        calls = [
            services.jobs.edit(admin, job.ref, JobEdit(payload=forged)),
            services.jobs.delete(admin, job.ref),
            services.jobs.replay(admin, job.ref),
            services.jobs.cancel(admin, job.ref),
        ]
        for call in calls:
            with pytest.raises(PermissionDenied, match="delivery of an alert"):
                await call


@pytest.mark.parametrize("value", ["much", True, [], 10**400], ids=["text", "bool", "list", "huge"])
def test_a_delivery_with_a_wrong_value_is_read_without_it(value: object):
    now = datetime(2026, 11, 18, tzinfo=UTC)
    payload = {"event": {"type": "alert.fired", "data": {"value": value, "queue": 7}}}
    job = Job(
        id="1",
        type="onward.webhook",
        queue="onward/alerts/r",
        status=JobStatus.PENDING,
        payload=payload,
        created_at=now,
        updated_at=now,
    )
    state = rule(Condition.DEAD_LETTERS, 1).state_of(job)
    assert (state.is_firing, state.value, state.queue) == (True, None, None)


async def test_a_worker_that_leads_evaluates_rules(store: Store, monkeypatch: pytest.MonkeyPatch):
    import asyncio  # noqa: PLC0415

    from onward.worker.alerts import Alerts  # noqa: PLC0415

    evaluated = asyncio.Event()
    real = Alerts.evaluate

    async def noted(self: Alerts, term: Any) -> Any:
        result = await real(self, term)
        evaluated.set()
        return result

    monkeypatch.setattr(Alerts, "evaluate", noted)
    async with app_on(store, oldest_ready=60) as app:
        await app.enqueue_many([NewJob(type="nobody", queue="mail/a")])
        await store.advance(61)
        async with app.worker(queues=["nothing"]), asyncio.timeout(60):
            await evaluated.wait()
        assert await delivered(app) == [("alert.fired", 61.0, "mail/a")]


def rule(condition: Condition, threshold: float, **options: Any) -> AlertRule:
    return AlertRule(name="r", webhook="ops", condition=condition, threshold=threshold, **options)


def test_what_a_rule_leaves_out(store: Store):
    now = store.clock.now()
    old = now - timedelta(hours=1)
    queues = [
        QueueInfo(name="paused", oldest_ready_at=old, settings=QueueSettings(paused=True)),
        QueueInfo(name="onward/webhooks", oldest_ready_at=old, counts={JobStatus.DEAD_LETTER: 9}),
        QueueInfo(name="empty"),
    ]
    assert not rule(Condition.OLDEST_READY, 1).measure(queues, [], now).is_firing
    assert not rule(Condition.DEAD_LETTERS, 1).measure(queues, [], now).is_firing
    failed = Usage(queue="a", outcome="failed", runs=9, at=now - timedelta(minutes=10))
    snoozed = Usage(queue="a", outcome="snoozed", runs=9, at=now)
    assert not rule(Condition.FAILURE_RATE, 0.1, min_runs=1).measure([], [failed, snoozed], now).is_firing


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "alert"),
        ({"dead_letters": 1, "failure_rate": 0.5}, "alert"),
        ({"dead_letters": 0}, "dead_letters"),
        ({"failure_rate": 1.5}, "failure_rate"),
        ({"oldest_ready": timedelta(0)}, "oldest_ready"),
        ({"dead_letters": 1, "queues": ()}, "queues"),
        ({"dead_letters": 1, "queues": ("No Such",)}, "queues"),
        ({"failure_rate": 0.5, "window": 5}, "window"),
        ({"failure_rate": 0.5, "min_runs": 0}, "min_runs"),
        ({"dead_letters": 1, "webhook": "osp"}, "webhook"),
        ({"dead_letters": 1, "name": "No Name"}, "queue"),
    ],
)
def test_a_rule_that_cannot_be_evaluated_is_refused(options: dict[str, Any], field: str):
    app = App("sqlite://")
    app.webhook("ops", "https://example.com/hook", secret=SECRET)
    with pytest.raises(InvalidValue) as caught:
        app.alert(**{"name": "r", "webhook": "ops", **options})
    assert caught.value.field == field
    app.alert("r", webhook="ops", dead_letters=1)
    with pytest.raises(InvalidValue, match="twice"):
        app.alert("r", webhook="ops", dead_letters=1)


@pytest.mark.parametrize("case", [case for case in CASES if case not in WITH_ALERTS], ids=lambda case: case.name)
async def test_an_engine_without_webhooks_refuses_alerts_with_its_note(case: EngineCase, tmp_path: Path):  # X1
    store = case.make(tmp_path)
    app = App(engine=store.bare())
    with pytest.raises(Unsupported) as caught:
        app.alert("r", webhook="ops", dead_letters=1)
    assert case.capabilities.features[caught.value.feature].note in str(caught.value)  # type: ignore[index]
    await store.close()
