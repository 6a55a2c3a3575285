"""Texts that try to become markup or script, and a store that has them in every field."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import msgspec

from onward import App
from onward.batches.values import NewBatch
from onward.core import core_of
from onward.cron import Cron
from onward.engine.values import ClaimRequest, QueueChange, Settlement, WorkerInfo
from onward.job import NewJob
from onward.lifecycle import Bury, Complete, Failure
from onward.metering import Usage
from onward.schedule import Schedule
from onward.service.services import Services
from onward.service.values import TokenRequest
from tests.dashboard.shop import ROOT

_CALL = "alert('onward')"
_ELEMENTS = (
    f"<script>{_CALL}</script>",
    f"<img src=x onerror={_CALL}>",
    f"<svg onload={_CALL}>",
    f"<svg><script>{_CALL}</script></svg>",
    f"<iframe src=javascript:{_CALL}></iframe>",
    f"<body onload={_CALL}>",
    f"<input autofocus onfocus={_CALL}>",
    f"<details open ontoggle={_CALL}>",
    f"<video><source onerror={_CALL}></video>",
    f"<a href=javascript:{_CALL}>x</a>",
    f"<form action=javascript:{_CALL}><button>x</button></form>",
    f"<math><mtext></form><form><mglyph><style></math><img src onerror={_CALL}>",
    f"<object data=javascript:{_CALL}></object>",
    f"<embed src=javascript:{_CALL}>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "<style>*{background:url(http://evil.example/)}</style>",
    "<base href=http://evil.example/>",
    "<meta http-equiv=refresh content='0;url=http://evil.example/'>",
    f"<template><script>{_CALL}</script></template>",
    f'<noscript><p title="</noscript><img src=x onerror={_CALL}>">',
    f"<marquee onstart={_CALL}>x</marquee>",
    f"<button onclick={_CALL} autofocus>x</button>",
    f"{{{{ {_CALL} }}}}",
    f"${{{_CALL}}}",
    f"{{% for x in ().__class__.__base__.__subclasses__() %}}{_CALL}{{% endfor %}}",
    '=HYPERLINK("http://evil.example")',
)
_BREAKS = ("", '">', "'>", "</title>", "</textarea>", "</pre></code>", "-->", "]]>", '\\">', "\u202e\u2066")
CORPUS = tuple(f"{before}{element}" for before, element in itertools.product(_BREAKS, _ELEMENTS))
"""260 texts."""


async def fill_with(app: App, texts: tuple[str, ...]) -> None:
    """Store each text in every field that takes text."""
    engine = await core_of(app).opened()
    services = Services(app)
    await engine.save_batch(NewBatch(name=texts[0][:120]), [])
    jobs = [
        NewJob(
            type=text[:120],
            payload=msgspec.json.encode({text: text, "nested": [{text: [text]}]}).decode(),
            queue=("bad", "good", "waiting")[at % 3],
            org_id=text,
            idempotency_key=text,
            dedupe_key=f"{at}{text}",
            batch=texts[0][:120] if at < 40 else None,
        )
        for at, text in enumerate(texts)
    ]
    for start in range(0, len(jobs), 50):
        await engine.enqueue(jobs[start : start + 50])
    worker = WorkerInfo(
        id=texts[1], hostname=texts[2], pool_size=4, version=texts[3], queues=(texts[4],), types=(texts[5],)
    )
    await engine.heartbeat(worker, [])
    for queue in ("bad", "good"):
        claims = (await engine.claim(ClaimRequest(worker_id=texts[1], queues=(queue,), slots=200))).claims
        for claim in claims:
            text = claim.type
            await engine.report(claim, progress=50, message=text, lines=[text, text])
            failure = Failure(error_type=text, message=text, traceback=f"Traceback\n  {text}")
            outcome = Bury(failure) if queue == "bad" else Complete(msgspec.json.encode({text: text}).decode())
            if claim is not claims[-1]:  # one stays running
                await engine.settle([Settlement(claim, outcome)])
    await engine.record_usage(
        [Usage(queue="bad", type=text, org_id=text, outcome="completed", runs=1) for text in texts[:60]]
    )
    for at, text in enumerate(texts[:30]):
        job = NewJob(type=text[:120], payload=msgspec.json.encode({text: text}).decode(), queue="waiting")
        schedule = Schedule(name=f"{at}{text}"[:120], job=job, trigger=Cron("0 3 * * *"))
        await engine.save_schedule(schedule.going_on(datetime.now(UTC)))
        await services.access.create_token(ROOT, TokenRequest(name=text[:120], role="viewer", orgs=(text,)))
    await engine.configure("waiting", QueueChange(paused=True, pause_reason=texts[6], paused_by=texts[7]))
    cancelled = (await app.jobs.list(status=["pending"], limit=1)).items[0]
    await services.jobs.cancel(ROOT, cancelled.ref, reason=texts[8])
