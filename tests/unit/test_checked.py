"""The wrapper around every engine: rules and refusals before a write, an observation after each verb."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from msgspec.structs import replace

from onward.backoff import Backoff
from onward.batches.values import NewBatch
from onward.cron import Cron, Interval
from onward.engine.access import AccessSession, AccessToken, AuditQuery, AuditRecord
from onward.engine.capabilities import NATIVE, Capabilities, Feature, absent
from onward.engine.checked import CheckedEngine, Observation
from onward.engine.contract import ArchiveStore, BatchStore, Engine, EventCursors, ScheduleStore, UsageStore
from onward.engine.values import (
    Claim,
    ClaimRequest,
    Exchange,
    GroupBy,
    JobChange,
    JobFilter,
    QueueChange,
    Rate,
    Retention,
    Settlement,
    Term,
    WorkerCommand,
    WorkerInfo,
)
from onward.errors import InvalidValue, PayloadTooLarge, Unsupported
from onward.ids import new_id
from onward.job import JobRef, NewJob
from onward.lifecycle import Complete
from onward.metering import UsageQuery
from onward.schedule import Firing, Missed, Schedule

SOON = datetime(2030, 1, 1, tzinfo=UTC)
REF = JobRef("mail", "7")
SCHEDULE = Schedule(name="s", job=NewJob(type="t"), trigger=Cron("* * * * *"))
FIRING = Firing(
    jobs=[SCHEDULE.job] * 2, last_at=datetime(2030, 1, 1, tzinfo=UTC), next_at=datetime(2030, 1, 2, tzinfo=UTC)
)
CLAIM = Claim(ref=REF, token=(7, 1), type="t", payload="{}", attempts=1, started=True)
SETTLEMENTS = [Settlement(CLAIM, Complete())]
WORKER = WorkerInfo(id="w", hostname="h", pool_size=1, version="0")
TERM = Term(1, "w", SOON)
EVERY = JobFilter()
CONNECTION = object()
ONE_QUEUE = ClaimRequest(worker_id="w", queues=("mail",))


def contract(verb: str) -> Callable[..., Any]:
    """Find what is said of a verb."""
    roles = (Engine, ScheduleStore, BatchStore, UsageStore, ArchiveStore, EventCursors)
    said: list[Callable[..., Any]] = [getattr(role, verb) for role in roles if hasattr(role, verb)]
    return said[0]


@dataclass
class RecordingEngine:
    """Records each verb and answers it with the verb's own name, or raises what it was told to."""

    capabilities: Capabilities
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((verb, args, kwargs))
            if self.error is not None:
                raise self.error
            return f"answer to {verb}"

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return called(*args, **kwargs)

        return awaited if inspect.iscoroutinefunction(contract(verb)) else called


def engine(*, without: Feature | None = None, error: BaseException | None = None, **kwargs: Any) -> CheckedEngine:
    features = {feature: absent(f"no {feature} here") if feature is without else NATIVE for feature in Feature}
    inner = RecordingEngine(Capabilities("sqlish", features, {}), error)
    return CheckedEngine(cast("Engine", inner), **kwargs)


def calls(observed: CheckedEngine) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    return cast("RecordingEngine", observed.inner).calls


@dataclass(frozen=True)
class Ask:
    """One call of one verb."""

    verb: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    async def of(self, observed: CheckedEngine) -> Any:
        answer = getattr(observed, self.verb)(*self.args, **dict(self.kwargs))
        return await answer if inspect.isawaitable(answer) else answer

    def __str__(self) -> str:
        return self.verb


def ask(verb: str, *args: Any, **kwargs: Any) -> Ask:
    return Ask(verb, args, tuple(kwargs.items()))


def adding(**fields: Any) -> list[Ask]:
    # The bad one is last: nothing of the batch may be written.
    jobs = [NewJob(type="t"), NewJob(**{"type": "t", **fields})]
    return [ask("enqueue", jobs), ask("enqueue_sync", jobs)]


def claiming(**fields: Any) -> list[Ask]:
    request = ClaimRequest(worker_id="w", **{"queues": ("mail",), **fields})
    return [ask("claim", request), ask("exchange", Exchange(request=request))]


def filtering(**fields: Any) -> list[Ask]:
    which = JobFilter(**fields)
    return [
        ask("find", which),
        ask("count", which, by=GroupBy.STATUS),
        ask("cancel", which),
        ask("replay", which),
        ask("delete", which),
    ]


def configuring(**fields: Any) -> list[Ask]:
    return [ask("configure", "mail", QueueChange(**fields))]


def editing(**fields: Any) -> list[Ask]:
    return [ask("edit", REF, JobChange(**fields))]


# Every way in which a caller can ask for a feature.
ASKED: dict[Feature, list[Ask]] = {
    Feature.CLAIMED_STATE: claiming(prefetch_claimed=1),
    Feature.PRIORITY: adding(priority=1) + editing(priority=1),
    Feature.DELAY: adding(delay=timedelta(1)) + adding(run_at=SOON) + editing(run_at=SOON),
    Feature.START_BY: adding(start_by=SOON),
    Feature.IDEMPOTENCY: adding(idempotency_key="k"),
    Feature.DEDUPLICATION: adding(dedupe_key="k"),
    Feature.ORGANISATIONS: adding(org_id="o")
    + filtering(org_id="o")
    + filtering(orgs=("o",))
    + [ask("count", EVERY, by=GroupBy.ORG)],
    Feature.PAUSE: configuring(paused=True),
    Feature.RATE: configuring(rate=Rate(10)) + configuring(rate=None),
    Feature.BURST: configuring(rate=Rate(10, burst=2)),
    Feature.CONCURRENCY: configuring(global_concurrency=1) + configuring(global_concurrency=None),
    Feature.WEIGHT: configuring(weight=2),
    Feature.PATTERNS: claiming(queues=("mail/*",)) + claiming(queues=("mail", "*")),
    Feature.QUEUE_DEFAULTS: configuring(max_attempts=3) + configuring(backoff=Backoff()),
    Feature.RETENTION: configuring(retention=Retention()),
    Feature.PROGRESS: [ask("report", CLAIM, progress=1)],
    Feature.LOG_LINES: [ask("report", CLAIM, lines=["a"]), ask("logs", REF)],
    Feature.SUSPECTS: [*claiming(alone=True), ask("record_crash", CLAIM)],
    Feature.EDIT: editing(),
    Feature.REPLAY: [ask("replay", EVERY)],
    Feature.TRANSACTIONS: [
        ask("enqueue", [NewJob(type="t")], connection=CONNECTION),
        ask("enqueue_sync", [NewJob(type="t")], connection=CONNECTION),
        ask("settle", SETTLEMENTS, connection=CONNECTION),
        ask("settle_sync", SETTLEMENTS, connection=CONNECTION),
    ],
    Feature.EVENTS: [ask("events", ["mail"])],
    Feature.SCHEDULES: [
        ask("schedules"),
        ask("save_schedule", SCHEDULE),
        ask("delete_schedule", "s"),
        ask("due_schedules"),
        ask("fire", SCHEDULE, FIRING),
    ],
    Feature.INTERVALS: [ask("save_schedule", replace(SCHEDULE, trigger=Interval(timedelta(minutes=1))))],
    Feature.MISSED_TURNS: [ask("save_schedule", replace(SCHEDULE, missed=Missed.ALL))],
    Feature.FIRING: [ask("fire", SCHEDULE, FIRING)],
    Feature.WEBHOOKS: [
        ask("acquire_cursor", "w", "holder", lease=timedelta(seconds=30)),
        ask("read_events", ["mail"], cursor="0"),
        ask("commit_cursor", "w", "holder", "0"),
    ],
    Feature.ARCHIVE: [
        *configuring(retention=Retention(archived=timedelta(days=1))),
        ask("archived", EVERY),
        ask("count_archived", EVERY, by=GroupBy.STATUS),
        ask("purge_archived", EVERY),
    ],
    Feature.THROTTLE: [
        ask("enqueue", [NewJob(type="t", dedupe_key="k", throttle=timedelta(seconds=1))]),
        ask("enqueue", [NewJob(type="t", dedupe_key="k", debounce=timedelta(seconds=1))]),
    ],
    Feature.USAGE: [ask("record_usage", []), ask("usage", UsageQuery())],
    Feature.BATCHES: [
        ask("enqueue", [NewJob(type="t", batch="b")]),
        ask("find", JobFilter(batch="b")),
        ask("save_batch", NewBatch(name="b"), []),
        ask("batches"),
        ask("delete_batch", "b"),
        ask("dependencies", "b"),
        ask("dependency_jobs", REF),
    ],
    Feature.LEADER: [ask("elect", "w", lease=timedelta(seconds=30))],
}
# What an engine only tells of: there is no call that asks for it.
TOLD = {
    Feature.READY_ORDER,
    Feature.PROMOTION,
    Feature.CANCELLED_STATE,
    Feature.QUEUES_BY_USE,
    Feature.ERROR_HISTORY,
    Feature.RESULTS,
    Feature.PUSH,
    Feature.LATE_OUTCOMES,
    Feature.CHANGE_TIMES,
}
ASKINGS = [
    pytest.param(feature, asking, id=f"{feature}: {asking}") for feature, askings in ASKED.items() for asking in askings
]


def test_every_feature_is_asked_for_or_only_told_of():  # X1
    assert set(ASKED) | TOLD == set(Feature)
    assert not set(ASKED) & TOLD


@pytest.mark.parametrize(("feature", "asking"), ASKINGS)
async def test_an_absent_feature_is_refused_before_the_engine_is_called(feature, asking):  # X1
    observed = engine(without=feature)
    with pytest.raises(Unsupported) as refused:
        await asking.of(observed)
    assert (refused.value.engine, refused.value.feature) == ("sqlish", feature)
    assert str(refused.value) == f"sqlish does not offer {feature}: no {feature} here"
    assert calls(observed) == []


@pytest.mark.parametrize(("feature", "asking"), ASKINGS)
async def test_a_feature_that_is_there_is_asked_of_the_engine_as_it_came(feature, asking):  # X1
    observed = engine()
    assert await asking.of(observed) == f"answer to {asking.verb}"
    [(verb, args, kwargs)] = calls(observed)
    assert (verb, args) == (asking.verb, asking.args)
    assert dict(asking.kwargs).items() <= kwargs.items()


@pytest.mark.parametrize("feature", Feature)
async def test_plain_jobs_ask_for_nothing_special(feature):  # X1
    observed = engine(without=feature)
    await observed.enqueue([NewJob(type="t")])
    await observed.claim(ONE_QUEUE)
    await observed.settle(SETTLEMENTS)
    await observed.find(EVERY)
    assert [verb for verb, *_ in calls(observed)] == ["enqueue", "claim", "settle", "find"]


NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - what the rule is about

_LIMITED = ("find", "cancel", "replay", "delete", "archived", "purge_archived")
BROKEN: list[tuple[str, list[Ask]]] = [
    ("type", adding(type="")),
    ("queue", adding(queue="Mail")),
    ("priority", adding(priority=-1) + editing(priority=1_000_001)),
    ("delay", adding(delay=timedelta(-1))),
    ("max_attempts", adding(max_attempts=0) + editing(max_attempts=0) + configuring(max_attempts=0)),
    ("run_at", editing(run_at=NAIVE)),
    ("queues", claiming(queues=("Mail",)) + filtering(queues=("mail*",)) + [ask("queues", "/"), ask("signals", ["/"])]),
    ("org_id", filtering(org_id="a\0b")),
    ("orgs", filtering(orgs=("fine", "a\0b"))),
    ("batch", filtering(batch="a\0b")),
    ("worker_id", filtering(worker_id="a\0b")),
    ("error_contains", filtering(error_contains="\ud800")),
    ("types", filtering(types=("fine", "a\0b"))),
    ("created_after", filtering(created_after=NAIVE)),
    ("created_before", filtering(created_before=NAIVE)),
    ("finished_before", filtering(finished_before=NAIVE)),
    ("limit", [ask(verb, EVERY, limit=limit) for verb in _LIMITED for limit in (0, -1)]),
    ("reason", [ask("cancel", EVERY, reason="a\0b")]),
    ("progress", [ask("report", CLAIM, progress=101)]),
    ("progress message", [ask("report", CLAIM, message="a\0b")]),
    ("log line", [ask("report", CLAIM, lines=["fine", "a\0b"])]),
    ("queue", [ask("configure", "Mail", QueueChange())]),
    ("global_concurrency", configuring(global_concurrency=0)),
    ("weight", configuring(weight=0)),
    ("lease", configuring(lease=timedelta(milliseconds=999))),
]


@pytest.mark.parametrize(
    ("field", "asking"),
    [pytest.param(field, asking, id=f"{field}: {asking}") for field, askings in BROKEN for asking in askings],
)
async def test_a_broken_rule_is_refused_before_the_engine_is_called(field, asking):  # B3, X5
    observed = engine()
    with pytest.raises(InvalidValue) as refused:
        await asking.of(observed)
    assert refused.value.field == field
    assert calls(observed) == []


@pytest.mark.parametrize("asking", adding(payload="x" * 2000) + editing(payload="é" * 1000), ids=str)
async def test_a_payload_over_the_engine_s_own_limit_is_refused_before_it_is_called(asking):  # B4
    observed = engine(max_payload=1500)
    with pytest.raises(PayloadTooLarge):
        await asking.of(observed)
    assert calls(observed) == []


@pytest.mark.parametrize(
    "change", [{"count": 0}, {"count": 1.5}, {"period": timedelta(0)}, {"burst": 0}, {"burst": 11}]
)
def test_a_rate_that_cannot_be_kept_cannot_be_made(change):  # B3
    with pytest.raises(InvalidValue, match=rf"^rate\.{next(iter(change))} = "):
        Rate(**{"count": 10, **change})


MOMENT = datetime(2030, 1, 1, tzinfo=UTC)
ACCESS_TOKEN = AccessToken(id=new_id(), name="ci", digest="0" * 64, role="viewer", created_at=MOMENT)
SESSION = AccessSession(
    digest="1" * 64, token_id=ACCESS_TOKEN.id, created_at=MOMENT, last_seen_at=MOMENT, expires_at=MOMENT
)
RECORD = AuditRecord(id=new_id(), actor="cli:anna@host", role="admin", action="jobs.cancel")

ASKED_OF_ALL = [
    (ask("open"), 1),
    (ask("close"), 1),
    (ask("check"), 1),
    (ask("confirm_restore"), 1),
    (ask("enqueue", [NewJob(type="t")] * 3), 3),
    (ask("enqueue_sync", [NewJob(type="t")] * 3), 3),
    (ask("claim", ClaimRequest(worker_id="w", queues=("mail",), slots=4, prefetch_claimed=2)), 6),
    (ask("start", [CLAIM] * 2), 2),
    (ask("settle", SETTLEMENTS), 1),
    (ask("settle_sync", SETTLEMENTS), 1),
    (ask("exchange", Exchange(settlements=tuple(SETTLEMENTS))), 1),
    (ask("heartbeat", WORKER, [CLAIM] * 2), 2),
    (ask("heartbeat_sync", WORKER, [CLAIM] * 2), 2),
    (ask("deregister", "w"), 1),
    (ask("report", CLAIM, lines=["a", "b"]), 2),
    (ask("record_crash", CLAIM), 1),
    (ask("get", REF), 1),
    (ask("find", EVERY, limit=7), 7),
    (ask("count", EVERY, by=GroupBy.QUEUE), 1),
    (ask("queues"), 1),
    (ask("workers"), 1),
    (ask("logs", REF), 1),
    (ask("events", ["mail"]), 1),
    (ask("cancel", EVERY, limit=7), 7),
    (ask("replay", EVERY, limit=7), 7),
    (ask("delete", EVERY, limit=7), 7),
    (ask("edit", REF, JobChange()), 1),
    (ask("configure", "mail", QueueChange()), 1),
    (ask("command_worker", "w", WorkerCommand.QUIET), 1),
    (ask("elect", "w", lease=timedelta(seconds=30)), 1),
    (ask("resign", TERM), 1),
    (ask("promote", TERM, limit=7), 7),
    (ask("rescue", TERM, lease=timedelta(seconds=30), max_crashes=3, limit=7), 7),
    (ask("prune", TERM, limit=7), 7),
    (ask("schedules"), 1),
    (ask("save_schedule", SCHEDULE), 1),
    (ask("delete_schedule", "s"), 1),
    (ask("due_schedules", limit=7), 7),
    (ask("fire", SCHEDULE, FIRING), 2),
    (ask("save_token", ACCESS_TOKEN), 1),
    (ask("tokens"), 1),
    (ask("find_token", ACCESS_TOKEN.id), 1),
    (ask("revoke_token", ACCESS_TOKEN.id), 1),
    (ask("touch_token", ACCESS_TOKEN.id), 1),
    (ask("save_session", SESSION), 1),
    (ask("find_session", SESSION.digest), 1),
    (ask("touch_session", SESSION.digest), 1),
    (ask("delete_session", SESSION.digest), 1),
    (ask("record_audit", RECORD), 1),
    (ask("audit", AuditQuery(), limit=7), 7),
    (ask("prune_access", keep_audit=timedelta(days=90), keep_sessions=timedelta(days=1)), 1),
]


@pytest.mark.parametrize(("asking", "count"), ASKED_OF_ALL, ids=str)
async def test_every_verb_is_observed_once_with_what_it_was_about(asking, count):
    seen: list[Observation] = []
    await asking.of(engine(observer=seen.append))
    [observation] = seen
    assert observation.verb == asking.verb.removesuffix("_sync")
    assert observation.count == count
    assert observation.error is None
    assert observation.seconds >= 0


@pytest.mark.parametrize(("asking", "count"), ASKED_OF_ALL, ids=str)
@pytest.mark.parametrize("error", [OSError("gone"), asyncio.CancelledError()], ids=lambda error: type(error).__name__)
async def test_what_a_verb_raises_is_observed_by_its_class_and_goes_on(asking, count, error):
    seen: list[Observation] = []
    with pytest.raises(type(error)) as caught:
        await asking.of(engine(observer=seen.append, error=error))
    assert caught.value is error
    assert [observation.error for observation in seen] == [type(error).__name__]


async def test_a_refusal_is_no_observation():
    seen: list[Observation] = []
    observed = engine(without=Feature.PRIORITY, observer=seen.append)
    with pytest.raises(Unsupported):
        await observed.enqueue([NewJob(type="t", priority=1)])
    assert seen == []


def test_the_wrapper_speaks_every_verb_of_the_contract_and_is_tried_with_each():  # X1
    spoken = [*inspect.getmembers(Engine, inspect.isfunction), *inspect.getmembers(ScheduleStore, inspect.isfunction)]
    verbs = {name for name, _ in spoken if not name.startswith("_")}
    assert verbs == {asking.verb for asking, _ in ASKED_OF_ALL} | {"signals", "describe", "schema_script"}
    for verb in verbs:
        ours, theirs = (
            inspect.signature(getattr(CheckedEngine, verb)),
            inspect.signature(contract(verb)),
        )
        assert ours == theirs, verb


def test_looking_at_the_engine_passes_through():
    observed = engine()
    assert cast("object", observed.describe()) == "answer to describe"
    assert cast("object", observed.schema_script()) == "answer to schema_script"
    assert cast("object", observed.signals(["mail/*"])) == "answer to signals"
    assert observed.capabilities is observed.inner.capabilities
