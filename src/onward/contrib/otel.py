"""Traces that go on where the job runs: spans by OpenTelemetry around enqueues and runs. Needs ``onward[otel]``.

Who enqueues within a trace has its headers sent along with the job, as the propagators in force write them; the run
goes on with that trace, on whatever machine and however much later. On BullMQ the headers stand where BullMQ's own
telemetry puts them, so that traces cross to Node and back.

Names and attributes follow the conventions for messaging; what those have no word for stands under ``onward``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
from msgspec.structs import replace

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, TracerProvider
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("opentelemetry"):
        raise
    message = "onward.contrib.otel needs OpenTelemetry: pip install 'onward[otel]'"
    raise ModuleNotFoundError(message, name=error.name) from error

from onward import validation
from onward.app import App
from onward.context import CallNext, JobContext, trace_of
from onward.control_flow import Cancel, Snooze
from onward.job import Enqueued, NewJob, UniformJobs

_SYSTEM: Final = "onward"
_headers: Final = msgspec.json.Decoder(dict[str, str])


def instrument(app: App, *, tracer_provider: TracerProvider | None = None) -> None:
    """Make a span for each enqueue and each run of an app, and let traces go on from one to the other.

    Call it once the app is made, in the programs that enqueue as in those that work. Does nothing the second time.

    Args:
        app: whose jobs to trace.
        tracer_provider: whose spans to make; by default the one that is set for the whole process.
    """
    if any(isinstance(getattr(each, "__self__", None), _Tracing) for each in app.enqueue_middleware):
        return
    tracing = _Tracing(trace.get_tracer("onward", tracer_provider=tracer_provider))
    app.enqueue_middleware.insert(0, tracing.enqueuing)
    app.middleware.insert(0, tracing.run)


class _Tracing:
    """What is done around enqueues and runs."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def enqueuing(self, jobs: Sequence[NewJob]) -> Generator[Sequence[NewJob], list[Enqueued], None]:
        """Make a span for an enqueue, which is the parent of what is done when its jobs run."""
        kinds = [jobs.template] if isinstance(jobs, UniformJobs) else jobs
        types, queues = {job.type for job in kinds}, {job.queue for job in kinds}
        attributes: dict[str, Any] = _attributes("enqueue", "send")
        if len(queues) == 1:
            attributes["messaging.destination.name"] = next(iter(queues))
        if len(types) == 1:
            attributes["onward.job.type"] = next(iter(types))
        if len(jobs) > 1:
            attributes["messaging.batch.message_count"] = len(jobs)
        name = f"enqueue {next(iter(types))}" if len(types) == 1 else "enqueue"
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
            answers = yield _with_headers(jobs, _current_headers())
            if len(answers) == 1:  # by the id, people come from a job to its trace; many jobs have none in common
                span.set_attribute("messaging.message.id", answers[0].id)
                span.set_attribute("onward.enqueue.status", answers[0].enqueue_status.value)

    async def run(self, context: JobContext, call_next: CallNext) -> Any:
        """Make a span for a run. What a handler says by raising is not an error, unless it is one."""
        attributes: dict[str, Any] = _attributes("run", "process") | {
            "messaging.destination.name": context.queue,
            "messaging.message.id": context.id,
            "onward.job.type": context.type,
            "onward.job.attempt": context.attempt,
        }
        if context.org_id is not None:
            attributes["onward.job.org_id"] = context.org_id
        with (
            _going_on(trace_of(context)),
            self._tracer.start_as_current_span(
                f"run {context.type}",
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
        ):
            try:
                return await call_next()
            except (Snooze, Cancel, asyncio.CancelledError) as said:
                span.set_attribute("onward.run.stopped", type(said).__name__)
                raise
            except BaseException as error:
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
                raise


def _attributes(name: str, kind: str) -> dict[str, Any]:
    return {"messaging.system": _SYSTEM, "messaging.operation.name": name, "messaging.operation.type": kind}


def _current_headers() -> str | None:
    headers: dict[str, str] = {}
    propagate.inject(headers)
    text = msgspec.json.encode(headers).decode()
    if len(text) > validation.MAX_TRACE:  # baggage may be of any size; without it, the trace goes on all the same
        headers = {name: value for name, value in headers.items() if name == "traceparent"}
        text = msgspec.json.encode(headers).decode()
    return text if headers else None


def _with_headers(jobs: Sequence[NewJob], headers: str | None) -> Sequence[NewJob]:
    if headers is None:
        return jobs
    if isinstance(jobs, UniformJobs):
        return UniformJobs(replace(jobs.template, trace=headers), jobs.payloads)
    return [replace(job, trace=headers) for job in jobs]


@contextmanager
def _going_on(headers: str | None) -> Iterator[None]:
    """Go on with the trace and the baggage that came with a job.

    Others may have written them, such as Node on BullMQ: what cannot be read counts as not there.
    """
    parent = None
    if headers is not None:
        with suppress(msgspec.DecodeError):
            parent = propagate.extract(_headers.decode(headers), Context())
    if parent is None:
        yield
        return
    token = attach(parent)
    try:
        yield
    finally:
        detach(token)
