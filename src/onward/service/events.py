"""Events for many listeners at once: one subscription to the store serves all streams of a process (A5).

Events are redacted and kept for a while in one buffer; a listener is a position in it. One that comes back with an
older cursor reads from the store by itself until it has caught up with the buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.errors import InvalidValue, OnwardError, StoreUnavailable
from onward.events import AnyEvent, Completed, Failed, Progress
from onward.service.identity import Identity
from onward.service.operations import operation
from onward.service.scopes import sees
from onward.service.store import Store
from onward.validation import check_pattern, matches

log = logging.getLogger("onward.service.events")

_KEPT: Final = 2000
"""Events in the buffer. A listener that falls further behind is disconnected, and comes back with its cursor."""
MAX_QUEUES: Final = 100
EVENT_TYPES: Final = frozenset({"waiting", "active", "progress", "completed", "failed", "stalled", "retry"})


class Behind(OnwardError):
    """The listener is too slow for the stream."""


class Events:
    """Streams of events."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hubs: dict[asyncio.AbstractEventLoop, _Hub] = {}

    @operation("events.stream")
    async def stream(
        self,
        identity: Identity,
        *,
        queues: Sequence[str] = (),
        types: Sequence[str] = (),
        cursor: str | None = None,
    ) -> AsyncGenerator[AnyEvent | None, None]:
        """Begin to stream events in the caller's scope; None where a while has passed without one.

        Raises:
            InvalidValue: a queue, a type or the cursor is not valid.
        """
        self._store.core.capabilities.require(Feature.EVENTS)
        if len(queues) > MAX_QUEUES:
            raise InvalidValue("queue", len(queues), f"must have at most {MAX_QUEUES} values")
        for pattern in queues:
            check_pattern(pattern, foreign=self._store.core.capabilities.is_shared)
        for word in types:
            if word not in EVENT_TYPES:
                raise InvalidValue("type", word, f"must be one of {', '.join(sorted(EVENT_TYPES))}")
        engine = await self._store.engine()
        hub = self._hub()
        position = hub.join()
        try:
            await hub.started()
            past: AsyncGenerator[AnyEvent, None] | None = None
            if cursor is not None:
                known = hub.position_after(cursor)
                if known is None:
                    past = await engine.events(("*",), cursor=cursor)
                else:
                    position = known
        except BaseException:
            hub.leave()
            raise
        return self._events(identity, hub, position, past, tuple(queues), frozenset(types))

    async def _events(
        self,
        identity: Identity,
        hub: _Hub,
        position: int,
        past: AsyncGenerator[AnyEvent, None] | None,
        queues: tuple[str, ...],
        types: frozenset[str],
    ) -> AsyncGenerator[AnyEvent | None, None]:
        def is_wanted(event: AnyEvent) -> bool:
            return (
                sees(identity, event.ref.queue, event.org_id)
                and (not queues or any(matches(pattern, event.ref.queue) for pattern in queues))
                and (not types or event.name in types)
            )

        try:
            if past is not None:
                waiting: asyncio.Task[AnyEvent] | None = None
                try:
                    while True:
                        waiting = waiting or asyncio.ensure_future(anext(past))
                        done, _ = await asyncio.wait([waiting], timeout=1.0)
                        if not done:
                            yield None
                            continue
                        event = await hub.redacted(waiting.result())
                        waiting = None
                        if is_wanted(event):
                            yield event
                        if (caught_up := hub.position_after(event.cursor)) is not None:
                            position = caught_up
                            break
                finally:
                    if waiting is not None:
                        waiting.cancel()
                        await asyncio.wait([waiting])
                    await past.aclose()
            while True:
                for event in hub.after(position):
                    position += 1
                    if is_wanted(event):
                        yield event
                if not await hub.wait(position, timeout=1.0):
                    yield None
        finally:
            hub.leave()

    def _hub(self) -> _Hub:
        loop = asyncio.get_running_loop()
        for other in [known for known in self._hubs if known.is_closed()]:
            del self._hubs[other]
        if (hub := self._hubs.get(loop)) is None:
            hub = self._hubs[loop] = _Hub(self._store)
        return hub


class _Hub:
    """The one subscription of an event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners = 0
        self._buffer: deque[AnyEvent] = deque(maxlen=_KEPT)
        self._positions: dict[str, int] = {}
        self._next = 0
        """The position of the next event."""
        self._bell = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[None] | None = None

    def join(self) -> int:
        self._listeners += 1
        if self._reader is None or self._reader.done():
            self._begun = asyncio.get_running_loop().create_future()
            self._begun.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._reader = asyncio.create_task(self._read(self._begun), name="onward-event-hub")
        return self._next

    async def started(self) -> None:
        """Wait until what is committed from now on is heard."""
        if self._begun is not None:
            await asyncio.shield(self._begun)

    def leave(self) -> None:
        self._listeners -= 1
        if self._listeners == 0 and self._reader is not None:
            self._reader.cancel()
            self._reader = None
            self._forget()

    def _forget(self) -> None:
        # What comes while nobody listens is not in the buffer: a position in it would hide the gap.
        self._buffer.clear()
        self._positions.clear()

    def position_after(self, cursor: str) -> int | None:
        return self._positions.get(cursor)

    def after(self, position: int) -> list[AnyEvent]:
        missed = self._next - position
        if missed > len(self._buffer):
            raise Behind("the stream is behind: reconnect with Last-Event-ID")
        return [] if missed <= 0 else list(self._buffer)[-missed:]

    async def wait(self, position: int, *, timeout: float) -> bool:
        if self._next > position:
            return True
        bell = self._bell
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await bell.wait()
        return self._next > position

    async def _read(self, begun: asyncio.Future[None]) -> None:
        cursor: str | None = None
        while True:
            try:
                engine: CheckedEngine = await self._store.engine()
                async with contextlib.aclosing(await engine.events(("*",), cursor=cursor)) as events:
                    if not begun.done():
                        begun.set_result(None)
                    async for event in events:
                        cursor = event.cursor or cursor
                        self._add(await self.redacted(event))
            except StoreUnavailable as error:
                if not begun.done():
                    begun.set_exception(error)
                    return
                log.warning("store unavailable, events are waited for: %s", error)
                await asyncio.sleep(1.0)
            except Exception as error:
                if not begun.done():
                    begun.set_exception(error)
                    return
                # The cursor is too old after a long outage: there is a gap, so listeners must start over.
                log.exception("events cannot be continued")
                cursor = None
                self._forget()
                self._next += 1
                self._ring()

    def _add(self, event: AnyEvent) -> None:
        if len(self._buffer) == _KEPT:
            self._positions.pop(self._buffer[0].cursor, None)
        self._buffer.append(event)
        self._next += 1
        self._positions[event.cursor] = self._next
        self._ring()

    def _ring(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    async def redacted(self, event: AnyEvent) -> AnyEvent:
        """Return an event as it may be shown: without results and tracebacks, and its text without secrets.

        A listener reads the job for its result, where the job's own secrets are known.
        """
        if isinstance(event, Completed):
            return msgspec.structs.replace(event, result=None)
        if not isinstance(event, Failed | Progress):
            return event
        text = event.error if isinstance(event, Failed) else event.message
        if text:
            job = None
            with contextlib.suppress(StoreUnavailable):
                job = await (await self._store.engine()).get(event.ref)
            text = self._store.redactor.text(event.type, text, job)
        if isinstance(event, Failed):
            return msgspec.structs.replace(event, error=text or "", traceback=())
        return msgspec.structs.replace(event, message=text)
