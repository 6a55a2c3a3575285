"""Sends an idle worker's claim with the news of a job.

From the notice of a job until its claim is sent, a worker does much that has nothing to do with it: tasks are woken, it
is found out how many hands are free and which connection is idle. On a machine that was at rest, that takes a third of
what the claim itself takes. So where a claim has found less than there was room for, it *stands*: at the next news of a
single queue it is sent at once, on the connection that the news has come on, and the worker finds out all the rest
while the store is at it. Its next exchange takes what the claim has brought.

What is brought to a worker that does not ask for it (it is told to stop, or a suspect is to run alone) goes back. No
claim stands where a test moves the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from onward.engine.values import Claim, ClaimRequest, Claims
from onward.engines.postgres.claims import Round, for_queue, from_queue
from onward.engines.postgres.schema import Schema
from onward.pg.listener import OnAnswer
from onward.pg.plans import Row, Statement

_KEPT: Final = 0.25
"""Seconds for which what was brought is kept for a worker that does not ask."""
_LAST_ANSWER: Final = 1.0
"""Seconds in which a claim that nobody wants any more should have its answer."""

Key = tuple[str, tuple[str, ...]]
"""Who asks, and for which queues."""
Ask = Callable[[Statement, OnAnswer], bool]
GiveBack = Callable[[Sequence[Claim]], Coroutine[Any, Any, None]]


class _Wanted(NamedTuple):
    """A claim that stands."""

    request: ClaimRequest
    round_: Round


class Sent:
    """A claim that was sent with the news of a job."""

    __slots__ = ("answer", "keeping", "queue", "room", "round_")

    def __init__(self, queue: str, room: int, round_: Round) -> None:
        self.queue = queue
        self.room = room
        self.round_ = round_
        self.answer: asyncio.Future[list[Row] | None] = asyncio.get_running_loop().create_future()
        self.keeping: asyncio.TimerHandle | None = None
        """Until when what was brought is kept."""

    async def claims(self) -> Claims | None:
        """Wait for what it brings; None: nobody knows, or something is said of the queue: it takes a tour."""
        brought, round_ = self.read(await self.answer), self.round_
        if brought is None:
            round_.is_news_anywhere = True
        elif round_.news or round_.is_news_anywhere:  # there has been news since, which the worker has been told of
            brought = replace(brought, retry_after=0.0)
        return brought

    def read(self, rows: list[Row] | None) -> Claims | None:
        """Read what was answered."""
        return None if rows is None else from_queue(self.queue, self.room, rows, self.round_)


class Standing:
    """The claims of workers on one event loop, those that stand and those that are on their way."""

    def __init__(self, schema: Schema, *, ask: Ask, give_back: GiveBack) -> None:
        """``ask`` sends a statement at once, if it can; ``give_back`` releases jobs that nobody has begun."""
        self._schema = schema
        self._ask = ask
        self._give_back = give_back
        self._wanted: dict[Key, _Wanted] = {}
        self._sent: dict[Key, Sent] = {}
        self._giving: set[asyncio.Task[None]] = set()

    def stand(self, request: ClaimRequest, found: Claims, round_: Round) -> None:
        """Note what an exchange has asked for, and found: if that was less, its claim stands from now on."""
        key, slots = (request.worker_id, request.queues), request.slots - len(found.claims)
        if slots > 0 and not request.alone and not found.has_suspects and self._schema.now is None:
            self._wanted[key] = _Wanted(replace(request, slots=slots, prefetch_started=0, prefetch_claimed=0), round_)
        else:
            self._wanted.pop(key, None)

    def hear(self) -> None:
        """Send a claim that stands, if there is news of a single queue."""
        for key, (request, round_) in self._wanted.items():
            if len(round_.news) != 1 or key in self._sent or not (places := round_.places(waits=True)):
                continue
            queue, *others = places
            round_.news.update(dict.fromkeys(others))  # told on another loop meanwhile
            sent = Sent(queue, request.slots, round_)
            statement = for_queue(self._schema, request, queue, request.slots)
            if self._ask(statement, partial(self._answered, key, sent)):
                self._sent[key] = sent
                del self._wanted[key]
            else:
                round_.news[queue] = None
            return  # there is one connection to send it on

    def take(self, request: ClaimRequest) -> Sent | None:
        """Take over the claim that was sent for a worker, if there is one: who does has to :meth:`let_go` or run it.

        None stands until the worker has its answer: it would bring jobs for the same room.
        """
        key = request.worker_id, request.queues
        self._wanted.pop(key, None)
        return self._take(key)

    def let_go(self, sent: Sent) -> None:
        """Give back what a claim has brought, or brings yet."""
        if not sent.answer.cancel() and not sent.answer.cancelled():
            self._return(sent, sent.answer.result())

    async def deregister(self, worker_id: str) -> None:
        """Have nothing brought to a worker any more."""
        for key in [key for key in self._wanted if key[0] == worker_id]:
            del self._wanted[key]
        for key in [key for key in self._sent if key[0] == worker_id]:
            if (sent := self._take(key)) is not None:
                await asyncio.wait([sent.answer], timeout=_LAST_ANSWER)
                self.let_go(sent)
        await self._all_given()

    async def close(self) -> None:
        """Do so for all workers."""
        for worker_id in {key[0] for key in (*self._wanted, *self._sent)}:
            await self.deregister(worker_id)
        await self._all_given()

    def _take(self, key: Key) -> Sent | None:
        sent = self._sent.pop(key, None)
        if sent is not None and sent.keeping is not None:
            sent.keeping.cancel()
        return sent

    def _answered(self, key: Key, sent: Sent, rows: list[Row] | None) -> None:
        if sent.answer.cancelled():
            self._return(sent, rows)
            return
        sent.answer.set_result(rows)
        if self._sent.get(key) is sent:
            sent.keeping = asyncio.get_running_loop().call_later(_KEPT, self._nobody_asks, key)

    def _nobody_asks(self, key: Key) -> None:
        self.let_go(self._sent.pop(key))

    def _return(self, sent: Sent, rows: list[Row] | None) -> None:
        brought = sent.read(rows)
        if brought is not None and brought.claims:
            task = asyncio.get_running_loop().create_task(self._give_back(brought.claims), name="onward-give-back")
            self._giving.add(task)
            task.add_done_callback(self._giving.discard)

    async def _all_given(self) -> None:
        if self._giving:
            await asyncio.wait(self._giving, timeout=_LAST_ANSWER)
