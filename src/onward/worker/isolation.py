"""Runs suspects, each alone in a child process of its own, while the worker goes on at full capacity.

A suspect is a job whose lease has run out in two runs in a row: it, or a neighbour of it, has ended or stalled its
process twice. In a child it can harm nothing but its own run, and what happens there is seen, not guessed: if the child
dies the job has crashed, for certain, and that alone is held against it. A run that ends in any other way clears it. So
a job that holds the interpreter for longer than the lease simply runs to its end: the heartbeat is in the worker.

Where no child can import the App, a suspect runs in the worker itself. Its crash is counted before it begins: nobody is
left to count it afterwards. A run that ends by itself clears it all the same.

See docs/explain/crashes.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from onward.engine.checked import CheckedEngine
from onward.engine.values import Claim, Token
from onward.errors import StoreUnavailable
from onward.handler import Handler
from onward.lifecycle import Crashed, CrashPolicy, Failure, Interrupted, Result, SelfCompleted
from onward.worker import isolated_child
from onward.worker.isolated_child import IsolatedRequest, locate_app, result_decoder
from onward.worker.processes import ProcessDied, Processes
from onward.worker.threads import StartFailed

log = logging.getLogger("onward.worker")

_RETRY_DELAY: Final = 1.0
"""Seconds until a suspect is given back for which the system has no process, or whose child cannot reach the store."""


class IsolatedRunner:
    """Runs claims in child processes, one in each."""

    def __init__(
        self,
        engine: CheckedEngine,
        *,
        worker_id: str,
        size: int,
        max_crashes: int,
        handler_for: Callable[[Claim], Handler | None],
        run_here: Callable[[Claim], Awaitable[Result | SelfCompleted]],
        app_place: tuple[str, str] | None = None,
    ) -> None:
        """``run_here`` runs a claim in this process, where no child can.

        ``app_place`` is the factory that made the App, and the URL of its store.
        """
        self._app_place = app_place
        self._engine = engine
        self._worker_id = worker_id
        self._max_crashes = max_crashes
        self._handler_for = handler_for
        self._run_here = run_here
        self._processes = Processes(size, main=isolated_child.main, reuses_children=False)
        self._calls: dict[Token, asyncio.Task[Result | SelfCompleted]] = {}

    async def run(self, claim: Claim, slot: asyncio.Task[None] | None = None) -> Result | SelfCompleted:  # noqa: ARG002 - has a process
        """Run a claim in a child process, and say how it ended."""
        fields = {"job_id": claim.ref.id, "queue": claim.ref.queue, "task": claim.type, "crashes": claim.crashes}
        log.warning("running suspect in isolation", extra=fields)
        call = self._calls[claim.token] = asyncio.create_task(self._call(claim), name="onward-isolated-run")
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            del self._calls[claim.token]
        return Interrupted() if call.cancelled() else call.result()

    def cancel(self, token: Token) -> bool:
        """Kill the child that runs a claim; False: none does."""
        call = self._calls.get(token)
        return call is not None and call.cancel()

    def close(self) -> None:
        """End the children."""
        self._processes.close()

    async def _call(self, claim: Claim) -> Result | SelfCompleted:
        place = locate_app(self._engine, self._app_place)
        if place is None:
            return await self._run_unisolated(
                claim, "the App is not an attribute of a module, or its store is a temporary one"
            )
        app, url = place
        request = IsolatedRequest(app=app, url=url, worker_id=self._worker_id, claim=claim)
        try:
            response = await self._processes.request(msgspec.json.encode(request))
        except ProcessDied as error:
            return await self._crashed(claim, str(error))
        except StartFailed as error:
            log.warning("suspect not started, given back", extra={"job_id": claim.ref.id, "error": str(error)})
            await asyncio.sleep(_RETRY_DELAY)
            return Interrupted()
        if response.error is not None:
            return await self._run_unisolated(claim, response.error.message)
        result: Result | SelfCompleted = result_decoder.decode(response.result or "")
        if isinstance(result, Interrupted):
            await asyncio.sleep(_RETRY_DELAY)
        return result

    async def _crashed(self, claim: Claim, reason: str) -> Result:
        """Hold the death of a child against the job that ran in it."""
        try:
            await self._engine.record_crash(claim)
        except StoreUnavailable:
            return Interrupted()  # not counted, so not held against it
        crashes = claim.crashes + 1
        fields = {"job_id": claim.ref.id, "queue": claim.ref.queue, "task": claim.type, "crashes": crashes}
        log.error("job crashed its child process", extra=fields | {"reason": reason})
        return self._judge(
            claim, crashes, f"its child process died {_times(crashes)} while it ran there alone; {reason}"
        )

    async def _run_unisolated(self, claim: Claim, reason: str) -> Result | SelfCompleted:
        """Run a suspect in this process, unless as many runs of it as it may have were lost here before."""
        fields = {"job_id": claim.ref.id, "queue": claim.ref.queue, "task": claim.type, "reason": reason}
        remedy = "make the App at the top level of an importable module"
        if claim.crashes >= self._max_crashes:
            log.error("job has crashed its worker too often", extra=fields)
            message = (
                f"its worker died {_times(claim.crashes)} with it, and no child process can run it: {reason}; {remedy}"
            )
            return self._judge(claim, claim.crashes, message)
        log.warning("suspect cannot be isolated and runs in the worker", extra=fields | {"remedy": remedy})
        try:
            if not await self._engine.record_crash(claim):
                return Interrupted()  # the claim is lost
        except StoreUnavailable:
            return Interrupted()
        return await self._run_here(claim)

    def _judge(self, claim: Claim, crashes: int, message: str) -> Crashed:
        """Say what becomes of a job that has crashed so often."""
        policy: CrashPolicy | None = None
        if crashes >= self._max_crashes:
            handler = self._handler_for(claim)
            policy = "dead_letter" if handler is None else handler.options.on_crash
        if policy == "hold":
            message += "; held for a person: to run it again, edit its run_at"
        return Crashed(Failure("ProcessDied", message), policy)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
