"""Events as a stream (server-sent events), with resumption by ``Last-Event-ID`` (A5)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Final, Literal
from weakref import WeakKeyDictionary

import msgspec
from starlette.types import Receive, Scope, Send

from onward.errors import OnwardError
from onward.events import AnyEvent
from onward.http.endpoints import Call, Reply, endpoint
from onward.http.problems import HttpError
from onward.http.security import raw_headers
from onward.service.access import UNCHECKED
from onward.service.identity import Identity
from onward.service.services import Services

_PING: Final = 15.0
"""Seconds of silence after which a comment is sent, so that proxies keep the connection."""
_VALID: Final = 2.0
"""Seconds between two looks at the caller's token."""
_encoder: Final = msgspec.json.Encoder()
_open_streams: Final[WeakKeyDictionary[Services, Counter[str]]] = WeakKeyDictionary()


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events."""

    queue: tuple[str, ...] = ()
    """Names and patterns."""
    type: tuple[Literal["waiting", "active", "progress", "completed", "failed", "stalled", "retry"], ...] = ()
    cursor: str | None = None
    """Continue after this event; ``oldest``: with all that is still kept."""


async def stream_events(call: Call) -> Reply:
    query: StreamQuery = call.query
    cursor = call.request.headers.get("last-event-id") or query.cursor
    counts = _open_streams.setdefault(call.services, Counter())
    who = call.identity.stream_owner
    if counts[who] >= call.settings.max_streams:
        raise HttpError(
            429,
            "too-many-streams",
            "too many streams",
            f"the caller has {call.settings.max_streams} open event streams",
            remedy="close one, or share it",
            headers={"Retry-After": "10"},
        )

    def leave() -> None:
        counts[who] -= 1
        if not counts[who]:
            del counts[who]

    counts[who] += 1  # before anything is awaited: others are counted meanwhile
    try:
        events = await call.services.events.stream(call.identity, queues=query.queue, types=query.type, cursor=cursor)
    except BaseException:
        leave()
        raise

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _send(call.services, call.identity, events, receive, send)
        finally:
            leave()

    return Reply(stream=stream)


async def _send(
    services: Services,
    identity: Identity,
    events: AsyncGenerator[AnyEvent | None, None],
    receive: Receive,
    send: Send,
) -> None:
    headers = raw_headers({"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"})
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b": onward\n\n", "more_body": True})
    gone = asyncio.ensure_future(_disconnected(receive))
    sent = checked = began = time.monotonic()
    try:
        async with contextlib.aclosing(events):
            while not gone.done():
                following = asyncio.ensure_future(anext(events))
                await asyncio.wait([following, gone], return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                    await asyncio.wait([following])
                    break
                event, now = following.result(), time.monotonic()
                if now - checked >= _VALID or event is not None:
                    checked = now
                    if not await services.access.is_valid(identity):  # S2: revoking a token ends its streams
                        break
                    if not identity.has_credential and now - began >= UNCHECKED:
                        break
                if event is not None:
                    await send({"type": "http.response.body", "body": frame(event), "more_body": True})
                    sent = now
                elif now - sent >= _PING:
                    await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
                    sent = now
    except (OnwardError, StopAsyncIteration):
        pass  # the client reconnects with the last id that it has seen
    finally:
        gone.cancel()
        await asyncio.wait([gone])
    with contextlib.suppress(OSError):
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def frame(event: AnyEvent) -> bytes:
    """Write an event as the stream has it. JSON has no line breaks, and a cursor is made by the store."""
    cursor = event.cursor.replace("\n", "").replace("\r", "").replace("\0", "")
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (cursor.encode(), event.name.encode(), _encoder.encode(event))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


ENDPOINTS: Final = (
    endpoint("GET", "/events", "events.stream", stream_events, query=StreamQuery, returns=str,
             media_types=("text/event-stream",)),
)  # fmt: skip
