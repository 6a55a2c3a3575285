"""Secrets do not show (S6)."""

from __future__ import annotations

import msgspec
import pytest

from onward import App, LogLine, NewJob
from onward.engine.access import AuditQuery
from onward.engine.capabilities import Feature
from onward.errors import InvalidValue, PermissionDenied
from onward.service.identity import of_user
from onward.service.redaction import DEFAULT_KEYS, REDACTED, Keys
from onward.service.values import EnqueueRequest, JobEdit, JobQuery
from tests.conformance.cases import needs
from tests.service.conftest import ADMIN, OPERATOR, VIEWER, ref, tick

CANARY = "canary-7f3a-hunter2"


@pytest.mark.parametrize(
    ("key", "hidden"),
    [
        ("password", True),
        ("userPassword", True),
        ("API_KEY", True),
        ("apikey", True),
        ("X-Api-Key", True),
        ("access_token", True),
        ("tokens", True),
        ("sessionId", True),
        ("cardNumber", True),
        ("Authorization", True),
        ("Set-Cookie", True),
        ("client_secret", True),
        ("discard", False),
        ("cardinality", False),
        ("name", False),
        ("", False),
    ],
)
def test_a_key_is_hidden_by_its_words(key, hidden):  # S6
    assert Keys(DEFAULT_KEYS).hides(key) is hidden


@pytest.mark.parametrize(
    "text",
    [
        f"KeyError: {CANARY}",
        f"login failed: password={CANARY}&x=1",
        f'{{"api_key": "{CANARY}", "a": 1}}',
        f"Authorization: Bearer {CANARY}",
        f"postgres://me:{CANARY}@db/x is down",
        f"Secret = '{CANARY}'",
        f"token: {CANARY}, please",
    ],
)
def test_text_that_names_a_secret_is_hidden(text):  # S6
    keys = Keys(DEFAULT_KEYS)
    secrets = frozenset({CANARY}) if text.startswith("KeyError") else frozenset()
    shown = keys.text_redactor(secrets)(text) or ""
    assert CANARY not in shown
    assert REDACTED in shown


async def test_a_job_shows_its_secrets_nowhere(app, services, case):  # S6
    payload = {"to": "x", "password": CANARY, "iban": f"DE{CANARY}"}
    dedupe = case.capabilities.has(Feature.DEDUPLICATION)
    request = EnqueueRequest(type="send", payload=payload, org_id="a", dedupe=dedupe, max_attempts=1)
    enqueued = await services.jobs.enqueue(ADMIN, request)
    await tick(app)
    job = await services.jobs.get(VIEWER, ref(enqueued))
    assert job.last_error is not None
    assert REDACTED in job.last_error
    shown = [
        job,
        await services.jobs.list(VIEWER, JobQuery()),
        await services.jobs.result(VIEWER, ref(enqueued)),
        await services.jobs.explain(VIEWER, ref(enqueued)),
        await services.audit.list(ADMIN, AuditQuery()),
        [page async for page in await services.jobs.export(VIEWER, JobQuery())],
    ]
    for each in shown:
        assert CANARY not in msgspec.json.encode(each).decode()
    if not case.capabilities.has(Feature.EVENTS):
        return
    stream = await services.events.stream(VIEWER, cursor="oldest")
    seen = [event async for event in _until(stream, "failed")]
    assert CANARY not in msgspec.json.encode(seen).decode()


async def _until(stream, name):
    try:
        async for event in stream:
            if event is not None:
                yield event
                if event.name == name:
                    return
    finally:
        await stream.aclose()


async def test_a_task_can_hide_all_of_its_payload_and_result(app, services):  # S6
    enqueued = await services.jobs.enqueue(ADMIN, EnqueueRequest(type="hidden", payload={"text": CANARY}))
    await tick(app)
    job = await services.jobs.get(VIEWER, ref(enqueued))
    assert (job.payload, job.result) == (REDACTED, REDACTED)


async def test_to_reveal_is_a_permission_and_leaves_a_record(services):  # S6
    enqueued = await services.jobs.enqueue(
        ADMIN, EnqueueRequest(type="send", payload={"to": "x", "password": CANARY}, org_id="a")
    )
    for identity in (VIEWER, OPERATOR):
        with pytest.raises(PermissionDenied):
            await services.jobs.reveal(identity, ref(enqueued))
    granted = of_user("revealer", permissions=["reveal"])
    assert (await services.jobs.reveal(granted, ref(enqueued))).payload["password"] == CANARY
    records = await services.audit.list(ADMIN, AuditQuery(action="jobs.reveal"))
    assert [(one.actor, one.target) for one in records.items] == [("user:revealer", f"mail/a:{enqueued.id}")]


async def test_a_search_in_unredacted_text_needs_reveal(services):  # S6
    with pytest.raises(PermissionDenied):
        await services.jobs.count(VIEWER, JobQuery(error_contains="canary"))
    await services.jobs.count(of_user("u", permissions=["reveal"]), JobQuery(error_contains="canary"))


async def test_log_lines_and_edits_are_redacted(app, services):  # S6
    enqueued = await services.jobs.enqueue(
        ADMIN, EnqueueRequest(type="send", payload={"to": "x", "password": CANARY}, org_id="a", delay=60)
    )
    edited = await services.jobs.edit(
        ADMIN, ref(enqueued), JobEdit(payload={"to": "y", "password": CANARY}, max_attempts=3)
    )
    assert edited.payload == {"to": "y", "password": REDACTED}
    job = await app.jobs.get(ref(enqueued))
    lines = services.store.redactor.lines(job, [LogLine(job.created_at, f"sent with {CANARY}")])
    assert CANARY not in lines[0].line


def test_names_to_redact_are_checked():
    with pytest.raises(InvalidValue, match="list of names"):
        App("sqlite://", redact="iban")
    with pytest.raises(InvalidValue, match="names of keys"):
        App("sqlite://", redact=["_"])


@needs(Feature.SCHEDULES)
async def test_a_schedule_hides_its_payload(app, services):  # S6
    job = NewJob(type="plain", payload=msgspec.json.encode({"secret": CANARY}).decode())
    await app.schedules.set("nightly", job, "0 3 * * *")
    assert CANARY not in msgspec.json.encode(await services.schedules.list(VIEWER)).decode()
