"""Traces go on from who enqueues to where the job runs: spans as OpenTelemetry's own SDK records them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from onward import App, Backoff, Cancel, Snooze
from onward.contrib.otel import instrument
from onward.engine.values import ClaimRequest
from onward.errors import JobFailed
from onward.validation import MAX_TRACE


class Spans:
    """What was recorded, and the tracer of a program that uses the queue."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("program")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
async def app(tmp_path: Path, spans: Spans) -> AsyncIterator[App]:
    async with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        instrument(app, tracer_provider=spans.provider)
        yield app


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


async def test_a_run_goes_on_with_the_trace_of_who_enqueued_it(app: App, spans: Spans):
    @app.task(queue="mail")
    async def send(to: str) -> None:
        with spans.tracer.start_as_current_span("smtp"):
            pass

    with spans.tracer.start_as_current_span("request"):
        handle = await send.enqueue("ada")
    await app.tick()

    request, enqueue, run, smtp = (spans.only(name) for name in ("request", "enqueue send", "run send", "smtp"))
    assert [parent_of(span) for span in (request, enqueue, run, smtp)] == [
        None,
        id_of(request),
        id_of(enqueue),
        id_of(run),
    ]
    assert (enqueue.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert enqueue.attributes == {
        "messaging.system": "onward",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": handle.id,
        "onward.job.type": "send",
        "onward.enqueue.status": "inserted",
    }
    assert run.attributes == {
        "messaging.system": "onward",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": handle.id,
        "onward.job.type": "send",
        "onward.job.attempt": 1,
    }


async def test_a_plain_function_on_a_thread_is_within_the_span_of_its_run(app: App, spans: Spans):
    @app.task
    def add_up() -> None:
        with spans.tracer.start_as_current_span("inside"):
            pass

    handle = await asyncio.to_thread(add_up.sync.enqueue)
    async with app.worker():
        await asyncio.to_thread(handle.result, timeout=60)
    assert parent_of(spans.only("inside")) == id_of(spans.only("run add_up"))
    assert parent_of(spans.only("run add_up")) == id_of(spans.only("enqueue add_up"))


async def test_each_attempt_is_a_span_of_the_same_trace_and_says_how_it_failed(app: App, spans: Spans):
    @app.task(max_attempts=2, backoff=Backoff.fixed(0.001))
    async def fall() -> None:
        raise ValueError("no ground")

    handle = await fall.enqueue()
    async with app.worker():
        with pytest.raises(JobFailed):
            await handle.result()
    first, second = spans.named("run fall")
    assert {parent_of(first), parent_of(second)} == {id_of(spans.only("enqueue fall"))}
    assert [(span.attributes or {})["onward.job.attempt"] for span in (first, second)] == [1, 2]
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description == "ValueError: no ground"
    assert [event.name for event in first.events] == ["exception"]


@pytest.mark.parametrize("said", [Snooze(60), Cancel("not today")])
async def test_what_a_handler_says_by_raising_is_no_error(app: App, spans: Spans, said: Exception):
    @app.task
    async def think() -> None:
        raise said

    await think.enqueue()
    await app.tick()
    run = spans.only("run think")
    assert run.status.status_code is StatusCode.UNSET
    assert (run.attributes or {})["onward.run.stopped"] == type(said).__name__


async def test_many_jobs_are_one_enqueue_and_each_run_is_its_child(app: App, spans: Spans):
    @app.task
    async def count(n: int) -> None: ...

    await count.enqueue_many([{"n": n} for n in range(5)])
    await app.tick(limit=10)
    enqueue = spans.only("enqueue count")
    assert (enqueue.attributes or {})["messaging.batch.message_count"] == 5
    assert "messaging.message.id" not in (enqueue.attributes or {})
    assert [parent_of(span) for span in spans.named("run count")] == [id_of(enqueue)] * 5


async def test_the_jobs_of_a_flow_go_on_with_the_trace_that_made_it(app: App, spans: Spans):
    @app.task
    async def first() -> None: ...

    @app.task
    async def then() -> None: ...

    flow = app.flow("f")
    flow.add(then.job(), after=flow.add(first.job()))
    batch = await flow.start()
    async with app.worker():
        await batch.wait(timeout=60)
    made = id_of(spans.only("enqueue"))
    assert (parent_of(spans.only("run first")), parent_of(spans.only("run then"))) == (made, made)


async def test_baggage_goes_along_unless_it_is_too_large(app: App, spans: Spans):
    seen: list[object] = []

    @app.task
    async def look() -> None:
        seen.append(baggage.get_baggage("tenant"))

    largest = "x" * (MAX_TRACE // 2 - 48)
    for value in ("acme", largest):
        token = context.attach(baggage.set_baggage("tenant", value, baggage.set_baggage("other", value)))
        try:
            await look.enqueue()
        finally:
            context.detach(token)
    await app.tick()
    assert seen == ["acme", None]
    assert len({parent_of(span) for span in spans.named("run look")}) == 2


@pytest.mark.parametrize("damaged", ['{"traceparent":"nonsense"}', '{"traceparent":7}', "{}"])
async def test_headers_that_cannot_be_read_count_as_not_there(app: App, spans: Spans, damaged: str):
    @app.task
    async def greet() -> None: ...

    await app._core.engine.inner.enqueue([replace(greet.job(), trace=damaged)])
    await app.tick()
    run = spans.only("run greet")
    assert (run.parent, run.status.status_code) == (None, StatusCode.UNSET)


async def test_an_app_is_traced_once_however_often_it_is_asked_for(app: App, spans: Spans):
    @app.task
    async def greet() -> None: ...

    instrument(app, tracer_provider=spans.provider)
    await greet.enqueue()
    await app.tick()
    assert len(spans.named("enqueue greet")) == len(spans.named("run greet")) == 1


async def test_nothing_is_sent_along_where_nobody_traces(tmp_path: Path):
    async with App(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task
        async def greet() -> None: ...

        provider = TracerProvider()
        with trace.use_span(provider.get_tracer("program").start_span("request")):
            await greet.enqueue()
        (claim,) = (await app._core.engine.claim(ClaimRequest(worker_id="w"))).claims
        assert claim.trace is None


def test_without_the_extra_the_error_names_it():
    program = (
        "import sys\n"
        "for name in [name for name in sys.modules if name.startswith('opentelemetry')]: del sys.modules[name]\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n"
        "    import onward.contrib.otel\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error, error.name)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "onward.contrib.otel needs OpenTelemetry: pip install 'onward[otel]' opentelemetry\n"
