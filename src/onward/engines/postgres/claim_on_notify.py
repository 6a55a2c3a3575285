"""Sends an idle worker's claim with the news of a job.

From the notice of a job until its claim is sent, a worker does much that has nothing to do with it: tasks are woken, it
is found out how many hands are free and which connection is idle. On a machine that was at rest, that takes a third of
what the claim itself takes. So where a claim has found less than there was room for, it *stands*: at the next news of a
single queue it is sent at once, on the connection that the news has come on, and the worker finds out all the rest
while the store is at it. Its next exchange takes what the claim has brought.

What is brought to a worker that does not ask for it (it is told to stop) goes back. No
claim stands where a test moves the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from onward.engine.values import Claim, ClaimRequest, Claims
from onward.engines.postgres.claims import RoundRobin, UnreadableJob, queue_claim_statement, read_queue_claims
from onward.engines.postgres.statements import Schema
from onward.pg.listener import OnResult
from onward.pg.plan_runner import Row, Statement

_KEEP_SECONDS: Final = 0.25
"""Seconds for which what was brought is kept for a worker that does not ask."""
_ANSWER_TIMEOUT: Final = 1.0
"""Seconds in which a claim that nobody wants any more should have its answer."""

Key = tuple[str, tuple[str, ...]]
"""Who asks, and for which queues."""
Send = Callable[[Statement, OnResult], bool]
ReleaseClaims = Callable[[Sequence[Claim]], Coroutine[Any, Any, None]]
FailUnreadable = Callable[[Sequence[UnreadableJob]], Coroutine[Any, Any, None]]


class _ArmedClaim(NamedTuple):
    """A claim that stands."""

    request: ClaimRequest
    rotation: RoundRobin


class SentClaim:
    """A claim that was sent with the news of a job."""

    __slots__ = ("_on_unreadable", "answer", "expiry", "queue", "room", "rotation")

    def __init__(
        self, queue: str, room: int, rotation: RoundRobin, on_unreadable: Callable[[list[UnreadableJob]], None]
    ) -> None:
        self._on_unreadable = on_unreadable
        self.queue = queue
        self.room = room
        self.rotation = rotation
        self.answer: asyncio.Future[list[Row] | None] = asyncio.get_running_loop().create_future()
        self.expiry: asyncio.TimerHandle | None = None
        """Until when what was brought is kept."""

    async def claims(self) -> Claims | None:
        """Wait for what it brings; None: nobody knows, or something is said of the queue: it takes a tour."""
        received, rotation = self.read(await self.answer), self.rotation
        if received is None:
            rotation.needs_full_scan = True
        elif rotation.notified or rotation.needs_full_scan:  # since then, and the worker has been told of it
            received = replace(received, retry_after=0.0)
        return received

    def read(self, rows: list[Row] | None) -> Claims | None:
        """Read what was answered."""
        if rows is None:
            return None
        received, unreadable = read_queue_claims(self.queue, self.room, rows, self.rotation)
        if unreadable:
            self._on_unreadable(unreadable)
        return received


class ClaimOnNotify:
    """The claims of workers on one event loop, those that stand and those that are on their way."""

    def __init__(
        self, schema: Schema, *, send: Send, release_claims: ReleaseClaims, fail_unreadable: FailUnreadable
    ) -> None:
        """``send`` sends a statement at once, if it can; ``release_claims`` releases jobs that nobody has begun."""
        self._fail_unreadable = fail_unreadable
        self._schema = schema
        self._send = send
        self._release_claims = release_claims
        self._armed: dict[Key, _ArmedClaim] = {}
        self._sent: dict[Key, SentClaim] = {}
        self._releasing: set[asyncio.Task[None]] = set()

    def arm(self, request: ClaimRequest, found: Claims, rotation: RoundRobin) -> None:
        """Note what an exchange has asked for, and found: if that was less, its claim stands from now on."""
        key, slots = (request.worker_id, request.queues), request.slots - len(found.claims)
        is_ordinary = not request.alone and not request.gives_way
        if slots > 0 and is_ordinary and not found.has_suspects and self._schema.now is None:
            self._armed[key] = _ArmedClaim(
                replace(request, slots=slots, prefetch_started=0, prefetch_claimed=0), rotation
            )
        else:
            self._armed.pop(key, None)

    def on_notification(self) -> None:
        """Send a claim that stands, if there is news of a single queue."""
        for key, (request, rotation) in self._armed.items():
            if (
                len(rotation.notified) != 1
                or key in self._sent
                or not (queues_to_check := rotation.queues_to_check(is_idle=True))
            ):
                continue
            queue, *others = queues_to_check
            rotation.notified.update(dict.fromkeys(others))  # told on another loop meanwhile
            sent = SentClaim(queue, request.slots, rotation, self._on_unreadable)
            statement = queue_claim_statement(self._schema, request, queue, request.slots)
            if self._send(statement, partial(self._answered, key, sent)):
                self._sent[key] = sent
                del self._armed[key]
            else:
                rotation.notified[queue] = None
            return  # there is one connection to send it on

    def take(self, request: ClaimRequest) -> SentClaim | None:
        """Take over the claim that was sent for a worker, if there is one: who does has to :meth:`release` or run it.

        None stands until the worker has its answer: it would bring jobs for the same room.
        """
        key = request.worker_id, request.queues
        self._armed.pop(key, None)
        return self._take(key)

    def release(self, sent: SentClaim) -> None:
        """Give back what a claim has brought, or brings yet."""
        if not sent.answer.cancel() and not sent.answer.cancelled():
            self._release_rows(sent, sent.answer.result())

    async def deregister(self, worker_id: str) -> None:
        """Have nothing brought to a worker any more."""
        for key in [key for key in self._armed if key[0] == worker_id]:
            del self._armed[key]
        for key in [key for key in self._sent if key[0] == worker_id]:
            if (sent := self._take(key)) is not None:
                await asyncio.wait([sent.answer], timeout=_ANSWER_TIMEOUT)
                self.release(sent)
        await self._wait_released()

    async def close(self) -> None:
        """Do so for all workers."""
        for worker_id in {key[0] for key in (*self._armed, *self._sent)}:
            await self.deregister(worker_id)
        await self._wait_released()

    def _take(self, key: Key) -> SentClaim | None:
        sent = self._sent.pop(key, None)
        if sent is not None and sent.expiry is not None:
            sent.expiry.cancel()
        return sent

    def _answered(self, key: Key, sent: SentClaim, rows: list[Row] | None) -> None:
        if sent.answer.cancelled():
            self._release_rows(sent, rows)
            return
        sent.answer.set_result(rows)
        if self._sent.get(key) is sent:
            sent.expiry = asyncio.get_running_loop().call_later(_KEEP_SECONDS, self._expire, key)

    def _expire(self, key: Key) -> None:
        self.release(self._sent.pop(key))

    def _release_rows(self, sent: SentClaim, rows: list[Row] | None) -> None:
        received = sent.read(rows)
        if received is not None and received.claims:
            self._run(self._release_claims(received.claims), "onward-release-claims")

    def _on_unreadable(self, jobs: list[UnreadableJob]) -> None:
        self._run(self._fail_unreadable(jobs), "onward-fail-unreadable")

    def _run(self, call: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(call, name=name)
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _wait_released(self) -> None:
        if self._releasing:
            await asyncio.wait(self._releasing, timeout=_ANSWER_TIMEOUT)
