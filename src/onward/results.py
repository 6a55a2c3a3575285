"""Waits for jobs to end, for everyone in this process at once.

One watcher serves all who wait on an event loop: it is woken by the store's signals, and behind those it looks by
itself, seldom enough to be cheap, because a signal is only a hint. One look is one question to the store, however
many jobs are waited for. The watcher lives while somebody waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import islice
from typing import Any, Final
from weakref import WeakKeyDictionary

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.engine.values import JobFilter
from onward.errors import StoreUnavailable
from onward.job import Job, JobRef
from onward.lifecycle import FINISHED
from onward.loop_thread import LoopThread
from onward.watch import watch

log = logging.getLogger("onward.results")

_FIRST_LOOK: Final = 0.02
"""Seconds. Quick jobs end about now, and their signal may have come before anyone listened."""
_LAST_LOOK: Final = 1.0
"""Seconds between looks when nothing has been heard for a while."""
_BREATH: Final = 0.005
"""Seconds between looks however much is heard: a busy store signals thousands of times a second."""
_TOGETHER: Final = 500
"""Jobs asked for in one question."""


class Results:
    """Where the ends of jobs are waited for."""

    def __init__(
        self,
        engine: CheckedEngine,
        ready: Callable[[], Awaitable[None]],
        *,
        decode: Callable[[Job], Any] = lambda job: job.result,
        loop: LoopThread | None = None,
    ) -> None:
        self.decode = decode
        """Reads the result of a job as its task returns it."""
        self.loop = loop or LoopThread()
        """Where the sync API waits."""
        self._engine = engine
        self._ready = ready
        """Sees to it that the engine is open."""
        self._watchers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watcher] = WeakKeyDictionary()

    async def read(self, name: JobRef | str) -> Job | None:
        """Read a job; None: there is none."""
        await self._ready()
        return await self._engine.get(name)

    async def cancel(self, name: JobRef | str, reason: str) -> bool:
        """Cancel a job, and say whether it was cancelled."""
        await self._ready()
        which = JobFilter(ids=(name,)) if isinstance(name, str) else JobFilter(refs=(name,))
        return bool(await self._engine.cancel(which, reason=reason))

    def name_of(self, text: str) -> JobRef | str:
        """Read the name of a job as a person writes it: see :meth:`CheckedEngine.name_of`."""
        return self._engine.name_of(text)

    async def watch(self, ref: JobRef) -> AsyncGenerator[Job | None, None]:
        """Tell how a job stands, now and whenever that has changed, until it has ended or is gone."""
        await self._ready()
        queues = ("*",) if self._engine.capabilities.has(Feature.PATTERNS) else (ref.queue,)

        def is_over(job: Job | None) -> bool:
            return job is None or job.status in FINISHED

        async with contextlib.aclosing(watch(self._engine, queues, lambda: self._engine.get(ref), is_over)) as told:
            async for job in told:
                yield job

    async def wait(self, name: JobRef | str, timeout: float | None) -> Job | None:
        """Wait until a job has ended, and read it; None: it is gone.

        Raises:
            TimeoutError: it has not ended in that many seconds.
        """
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                job = await self.read(name)
                if job is None or job.status in FINISHED:
                    return job
                return await self._watcher().wait(job.ref)
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"job {name} has not ended after {timeout:g} s; it goes on") from None
            raise

    def close(self) -> None:
        """Fail all waits: the store is being closed, and nobody will see the jobs end. From any thread."""
        for loop, watcher in list(self._watchers.items()):
            with contextlib.suppress(RuntimeError):  # that loop has closed
                loop.call_soon_threadsafe(
                    watcher.fail, StoreUnavailable("the app was closed while the job was awaited")
                )

    def _watcher(self) -> _Watcher:
        loop = asyncio.get_running_loop()
        if (watcher := self._watchers.get(loop)) is None:
            watcher = self._watchers[loop] = _Watcher(self._engine)
        return watcher


class _Watcher:
    def __init__(self, engine: CheckedEngine) -> None:
        self._engine = engine
        self._waiting: dict[JobRef, set[asyncio.Future[Job | None]]] = {}
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, ref: JobRef) -> Job | None:
        future: asyncio.Future[Job | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(ref, set()).add(future)
        if self._task is None or self._task.done():  # done: it raised
            self._task = asyncio.create_task(self._watch(), name="onward-results")
        self._bell.set()
        try:
            return await future
        finally:
            if waiters := self._waiting.get(ref):
                waiters.discard(future)
                if not waiters:
                    del self._waiting[ref]
            if not self._waiting and self._task is not None:
                self._task.cancel()
                self._task = None  # it takes a moment to end, and whoever comes meanwhile needs another

    def fail(self, error: Exception) -> None:
        for waiters in self._waiting.values():
            for future in waiters:
                if not future.done():
                    future.set_exception(error)

    async def _watch(self) -> None:
        listener = asyncio.create_task(self._listen(), name="onward-results-listener")
        pause = _FIRST_LOOK
        try:
            while True:
                try:
                    async with asyncio.timeout(pause):
                        await self._bell.wait()
                    pause = _FIRST_LOOK
                except TimeoutError:
                    pause = min(pause * 2, _LAST_LOOK)
                self._bell.clear()
                try:
                    await self._look()
                except StoreUnavailable as error:
                    log.warning("store unavailable, results are waited for: %s", error)
                    pause = _LAST_LOOK
                await asyncio.sleep(_BREATH)
        except Exception as error:  # noqa: BLE001 - those who wait must hear of it
            self.fail(error)
        finally:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener

    async def _listen(self) -> None:
        # An engine without patterns has queues that are known; the few looks before it is heard are soon enough there.
        everything = self._engine.capabilities.has(Feature.PATTERNS)
        queues = ("*",) if everything else tuple({ref.queue for ref in self._waiting})
        try:
            async with contextlib.aclosing(self._engine.signals(queues)) as signals:  # type: ignore[type-var]
                async for signal in signals:
                    if signal.ref is None or signal.ref in self._waiting:
                        self._bell.set()
        except StoreUnavailable as error:
            log.warning("no signals from the store, results are polled for: %s", error)

    async def _look(self) -> None:
        refs = iter(tuple(self._waiting))
        while chunk := tuple(islice(refs, _TOGETHER)):
            page = await self._engine.find(JobFilter(refs=chunk), limit=len(chunk))
            found = {job.ref: job for job in page.items}
            for ref in chunk:
                job = found.get(ref)
                if job is not None and job.status not in FINISHED:
                    continue
                for future in self._waiting.get(ref, ()):
                    if not future.done():
                        future.set_result(job)
