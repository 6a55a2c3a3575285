"""Calls the hooks of tasks, ``on_success`` and ``on_failure``, after the store has recorded how a job ended.

A hook is a notice, not a step of the job: it is called at most once, by the worker that recorded the outcome, and never
changes that outcome. What it raises is logged. A worker that dies between the two calls no hook, and none is called for
a job that no worker ended: cancelled, expired, or buried because its worker's lease ran out too often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from onward.clock import Clock, SystemClock, moment_of
from onward.context import JobContext, RunState
from onward.engine.values import Claim, Settlement
from onward.handler import Handler, is_async
from onward.job import FailedAttempt
from onward.lifecycle import Bury, Complete, Fail
from onward.surrogates import decode_json
from onward.worker.metering import Count

log = logging.getLogger("onward.worker")

_CONCURRENCY: Final = 100
"""Hooks that run at once."""


class Hooks:
    """The hooks of one worker's tasks."""

    def __init__(
        self,
        handlers: Iterable[Handler],
        *,
        handler_for: Callable[[Claim], Handler | None],
        worker_id: str,
        clock: Clock | None = None,
    ) -> None:
        self._is_needed = any(handler.options.has_hooks for handler in handlers)
        self._handler_for = handler_for
        self._worker_id = worker_id
        self._clock = clock or SystemClock()
        self._calls: set[asyncio.Task[None]] = set()
        self._semaphore = asyncio.Semaphore(_CONCURRENCY)

    def after(self, count: Count) -> Count:
        """Call the hooks of what is recorded, besides counting it. Without any hook, nothing is added to the count."""
        if not self._is_needed:
            return count

        def recorded(settlements: Sequence[Settlement]) -> None:
            count(settlements)
            for settlement in settlements:
                self._begin(settlement)

        return recorded

    async def finish(self, timeout: float | None = None) -> None:
        """Wait for the hooks that run; those that have not ended in that many seconds are cancelled."""
        if not self._calls:
            return
        try:
            _, late = await asyncio.wait(self._calls, timeout=timeout)
        except asyncio.CancelledError:
            self._cancel(self._calls)
            raise
        self._cancel(late)

    def _begin(self, settlement: Settlement) -> None:
        claim, outcome = settlement.claim, settlement.outcome
        handler = self._handler_for(claim)
        if handler is None:
            return
        hook: Callable[[JobContext, Any], object] | None = None
        value: Any = None
        match outcome:
            case Complete(result):
                hook = handler.options.on_success
                value = result
            case Fail(failure) | Bury(failure):
                hook = handler.options.on_failure
                value = FailedAttempt(
                    attempt=JobContext(RunState(claim)).attempt,
                    at=moment_of(self._clock.micros()),
                    error_type=failure.error_type,
                    message=failure.message,
                    traceback=failure.traceback,
                    worker_id=self._worker_id,
                )
            case _:
                return
        if hook is None:
            return
        call = asyncio.create_task(self._call(hook, handler, claim, value), name="onward-hook")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(
        self, hook: Callable[[JobContext, Any], object], handler: Handler, claim: Claim, value: Any
    ) -> None:
        name = "on_failure" if isinstance(value, FailedAttempt) else "on_success"
        context = JobContext(RunState(claim))
        async with self._semaphore:
            try:
                if isinstance(value, str):  # None: it returned nothing, or store_result=False
                    value = handler.arguments.read_result(decode_json(value))
                if is_async(hook):
                    await hook(context, value)  # type: ignore[misc] # an async function gives something to await
                else:
                    await asyncio.to_thread(hook, context, value)
            except Exception:
                fields = {"job_id": claim.ref.id, "queue": claim.ref.queue, "task": claim.type}
                log.exception("%s hook failed; the job's outcome is recorded", name, extra=fields)

    def _cancel(self, calls: Iterable[asyncio.Task[None]]) -> None:
        late = list(calls)
        for call in late:
            call.cancel()
        if late:
            log.warning("%d hooks cancelled: the worker stops", len(late), extra={"worker_id": self._worker_id})
