"""Calls of one turn of the event loop share a script call.

A round trip costs about the same for one job as for fifty. So whoever comes while nobody is on the way goes ahead, and
what others enqueue meanwhile, in the same turn, goes out together; each caller is answered for its own jobs. If the
store refuses what is shared, each call is tried again by itself, so that nobody suffers for another's fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from onward.errors import StoreUnavailable
from onward.job import Enqueued, NewJob

Write = Callable[[Sequence[NewJob]], Awaitable[list[Enqueued]]]
Call = tuple[Sequence[NewJob], "asyncio.Future[list[Enqueued]]"]


class Coalescer:
    """The calls of one event loop."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._calls: list[Call] = []
        self._is_write_in_flight = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Write jobs: alone, where nobody else's are on their way, else with all others of this turn."""
        if not self._is_write_in_flight:
            self._is_write_in_flight = True
            try:
                return await self._write(jobs)
            finally:
                self._is_write_in_flight = False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Enqueued]] = loop.create_future()
        self._calls.append((jobs, future))
        if len(self._calls) == 1:
            loop.call_soon(self._flush)
        return await future

    def _flush(self) -> None:
        calls, self._calls = [call for call in self._calls if not call[1].done()], []
        if calls:
            task = asyncio.create_task(self._write_all(calls), name="onward-bullmq-coalescing")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write_all(self, calls: list[Call]) -> None:
        if len(calls) > 1:
            try:
                answers = await self._write([job for jobs, _ in calls for job in jobs])
            except StoreUnavailable as error:  # it may have been written: to try again could do it twice
                for _, future in calls:
                    if not future.done():
                        future.set_exception(error)
                return
            except Exception:  # noqa: BLE001, S110 - nothing was written, and whose fault it is will show
                pass
            else:
                for jobs, future in calls:
                    own, answers = answers[: len(jobs)], answers[len(jobs) :]
                    if not future.done():
                        future.set_result(own)
                return
        for jobs, future in calls:
            await self._write_one(jobs, future)

    async def _write_one(self, jobs: Sequence[NewJob], future: asyncio.Future[list[Enqueued]]) -> None:
        try:
            own = await self._write(jobs)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to the one who asked
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(own)
