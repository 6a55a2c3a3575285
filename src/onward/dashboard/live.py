"""The one stream of a browser: says which pages have something new, not what (D2).

``beat``: the state of the store has changed. ``job``: an event of a job whose page is open. The page then asks for
its own update, and viewers share the reads. One stream serves all visible tabs of a browser; hidden tabs have none.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from typing import Final

import msgspec
from starlette.types import Receive, Send

from onward.dashboard.pulse import Pulse
from onward.engine.capabilities import Feature
from onward.errors import OnwardError
from onward.http.problems import HttpError
from onward.job import JobRef
from onward.service.access import UNCHECKED
from onward.service.identity import Identity
from onward.service.services import Services

MAX_WATCHED: Final = 50
_TURN: Final = 2.0
"""Seconds after which a stream looks whether its caller is still known."""
_REFRESH: Final = 10.0
"""Seconds after which a beat is sent though nothing has changed: ages and progress that no count shows."""
_GATHER: Final = 0.3
"""Seconds in which events of a job become one message."""


class Streams:
    """The open streams of a server process."""

    def __init__(self, services: Services, *, most: int) -> None:
        self._services = services
        self._most = most
        self._open: Counter[str] = Counter()
        self._ends: set[asyncio.Future[None]] = set()

    def enter(self, identity: Identity) -> str:
        """Count a stream.

        Raises:
            HttpError: the caller has too many (S7).
        """
        who = identity.stream_owner
        if self._open[who] >= self._most:
            raise HttpError(429, "too-many-streams", "too many streams", headers={"Retry-After": "10"})
        self._open[who] += 1
        return who

    def leave(self, who: str) -> None:
        """Count a stream no longer."""
        self._open[who] -= 1
        if not self._open[who]:
            del self._open[who]

    def end(self) -> None:
        """End every stream: the server stops, and must not wait for pages that stay open."""
        for gone in self._ends:
            gone.cancel()

    async def send(
        self,
        identity: Identity,
        pulse: Pulse,
        watched: tuple[JobRef, ...],
        receive: Receive,
        send: Send,
        headers: Mapping[str, str],
    ) -> None:
        """Send messages until the client leaves or its credential ends."""
        every = {**headers, "Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        raw = [(name.lower().encode(), value.encode()) for name, value in every.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        gone = asyncio.ensure_future(_disconnected(receive))
        self._ends.add(gone)
        pulse.join()
        try:
            async with contextlib.aclosing(self._messages(identity, pulse, watched)) as messages:
                while not gone.done():
                    following = asyncio.ensure_future(anext(messages, None))
                    try:
                        await asyncio.wait([following, gone], return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        if not following.done():
                            following.cancel()
                            await asyncio.wait([following])
                    message = None if following.cancelled() else following.result()
                    if message is None:
                        break
                    await send({"type": "http.response.body", "body": message, "more_body": True})
        finally:
            self._ends.discard(gone)
            pulse.leave()
            gone.cancel()
            await asyncio.wait([gone])
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _messages(
        self, identity: Identity, pulse: Pulse, watched: tuple[JobRef, ...]
    ) -> AsyncGenerator[bytes, None]:
        news: asyncio.Queue[JobRef] = asyncio.Queue()
        has_events = bool(watched) and self._services.store.core.capabilities.has(Feature.EVENTS)
        listener = asyncio.create_task(self._listen(identity, watched, news)) if has_events else None
        try:
            yield b": onward\n\n"
            seen, sent = pulse.version, time.monotonic()
            ends = sent + UNCHECKED
            beat = asyncio.create_task(pulse.wait(seen, timeout=_TURN))
            event = asyncio.create_task(news.get())
            try:
                while True:
                    await asyncio.wait([beat, event], timeout=_TURN, return_when=asyncio.FIRST_COMPLETED)
                    if not await self._is_valid(identity):
                        return
                    if not identity.has_credential and time.monotonic() >= ends:
                        return
                    if event.done():
                        refs = {event.result()}
                        await asyncio.sleep(_GATHER)
                        while not news.empty():
                            refs.add(news.get_nowait())
                        event = asyncio.create_task(news.get())
                        yield _message("job", [str(ref) for ref in sorted(refs)])
                    if beat.done():
                        version, now = beat.result(), time.monotonic()
                        if version != seen or now - sent >= _REFRESH:
                            seen, sent = version, now
                            yield _message("beat", pulse.failed is None)
                        beat = asyncio.create_task(pulse.wait(seen, timeout=_TURN))
            finally:
                beat.cancel()
                event.cancel()
                await asyncio.wait([beat, event])
        finally:
            if listener is not None:
                listener.cancel()
                await asyncio.wait([listener])

    async def _is_valid(self, identity: Identity) -> bool:
        try:
            return await self._services.access.is_valid(identity)
        except OnwardError:  # the store is away: the browser opens another stream when it answers
            return False

    async def _listen(self, identity: Identity, watched: tuple[JobRef, ...], news: asyncio.Queue[JobRef]) -> None:
        queues, wanted = tuple(sorted({ref.queue for ref in watched})), frozenset(watched)
        while True:
            try:
                async with contextlib.aclosing(await self._services.events.stream(identity, queues=queues)) as events:
                    async for event in events:
                        if event is not None and event.ref in wanted:
                            news.put_nowait(event.ref)
            except OnwardError:  # the store is away, or this listener was too slow: beats go on
                await asyncio.sleep(_TURN)


def _message(name: str, value: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
