"""Lets one who is alone add jobs on the spot.

Whoever adds one job after the other, while nobody else does, would find out the same for each: which statement adds it,
that its lane is there, which connection is idle. On a busy machine, where nothing of that is in a cache of the
processor any more, to find it out costs as much as to send the job, and to go through the event loop costs three times
as much. So the one who has added a job the long way is given a permit, and until that lapses its next ones are sent at
once, and their answers waited for while the loop is held up: see ``try_execute`` in :mod:`onward.pg.connection`.

Now and then the loop has a turn, so that others can come. When what was seen has to be looked at again, and nobody was
there to be told of jobs, the next job looks on its way: if all is still so the permit holds on, and if not the job is
not added by it. Otherwise the permit lapses then. It is withdrawn when somebody else adds jobs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final
from weakref import ref

from onward.engines.postgres.enqueue import Kind, Lone, Shortcut
from onward.engines.postgres.notify_throttle import Bell
from onward.engines.postgres.queue_cache import Seen
from onward.job import Enqueued, UniformJobs
from onward.pg.connection import TimedAsyncConnection
from onward.pg.database import RETRYABLE, Translated
from onward.pg.pools import LoopPool

AddAnyhow = Callable[[UniformJobs], Coroutine[Any, Any, list[Enqueued]]]

_TURN: Final = 0.02
"""Seconds without a turn of the loop after which it has one. To turn it costs as much as to add half a job."""


class Permit:
    """Whose jobs are added on the spot, and how."""

    __slots__ = (
        "_add_anyhow",
        "_bell",
        "_caller",
        "_connections",
        "_is_heard",
        "_is_turning",
        "_kind",
        "_look_at",
        "_seen",
        "_shortcut",
        "_translated",
        "_until",
    )

    def __init__(
        self,
        kind: Kind,
        shortcut: Shortcut,
        *,
        seen: Seen,
        bell: Bell,
        connections: LoopPool,
        translated: Translated,
        add_anyhow: AddAnyhow,
    ) -> None:
        """Permit it to the asyncio task that runs now, for jobs of a kind; ``add_anyhow`` adds what was not added."""
        caller = asyncio.current_task()
        self._caller = None if caller is None else ref(caller)
        self._kind = kind
        self._shortcut = shortcut
        self._seen = seen
        self._bell = bell
        self._connections = connections
        self._translated = translated
        self._add_anyhow = add_anyhow
        self._is_heard = seen.is_heard
        self._look_at = self._next_look()
        self._turned()

    def _next_look(self) -> float:
        """Say until when what was seen is relied on."""
        plain_until = self._seen.plain_until(self._kind.lane)
        # Where nobody was there to be told, it is looked again whether somebody is.
        return plain_until if self._is_heard else min(plain_until, self._bell.tells_from(self._kind.tidings))

    def _looked(self, began: float) -> None:
        """Note that all is still as it was seen before."""
        self._seen.look(self._kind.lane, began, is_plain=True, is_heard=False)
        self._look_at = self._next_look()

    def covers(self, jobs: UniformJobs) -> bool:
        """Say whether it is permitted to add these here and now."""
        return monotonic() < self._until and self._is_for(jobs) and self._has_connection()

    def wants_turn(self, jobs: UniformJobs) -> bool:
        """Say whether these are not covered only because the loop is to have a turn first."""
        return self._until <= monotonic() < self._lapses_at and self._is_for(jobs)

    @property
    def _lapses_at(self) -> float:
        return self._look_at if self._is_heard else math.inf

    def _turned(self) -> None:
        """Note that the loop has had a turn."""
        self._is_turning = False
        self._until = self._lapses_at

    def _is_for(self, jobs: UniformJobs) -> bool:
        is_alike = jobs.template is self._kind.template and len(jobs.payloads) == 1
        return is_alike and self._caller is not None and self._caller() is asyncio.current_task()

    def _has_connection(self) -> bool:
        """Say whether there is one to send them on; one that has answered since the last turn is not looked at."""
        return bool(self._connections.idle) if self._is_turning else self._connections.has_sound()

    def add(self, jobs: UniformJobs) -> Coroutine[Any, Any, list[Enqueued]]:
        """Add a job, which must be covered. It is there before this returns, unless it takes longer than a moment."""
        notice = self._bell.notice_for(self._kind.tidings)
        began = monotonic()
        looks = began >= self._look_at
        job = self._shortcut.lone_look(jobs.payloads[0]) if looks else self._shortcut.lone(jobs.payloads[0], notice)
        connection = self._connections.idle.pop()
        try:
            done = connection.try_execute(job.text, job.values)
        except RETRYABLE:
            done = 0
        except BaseException:
            self._has_failed(connection, notice)
            with self._translated:
                raise
        if done is None:
            return self._add_later(connection, job, notice, jobs, began if looks else None)
        if not done:
            self._has_given_way(connection, notice)
            return self._add_anyhow(jobs)
        self._connections.idle.append(connection)
        self._bell.committed(notice, self._kind.tidings)
        if looks:
            self._looked(began)
        if not self._is_turning:  # it is the first since the loop has had a turn
            self._is_turning = True
            self._until = min(monotonic() + _TURN, self._lapses_at)
            asyncio.get_running_loop().call_soon(self._turned)
        return _already(job.added)

    async def _add_later(
        self,
        connection: TimedAsyncConnection,
        job: Lone,
        notice: str | None,
        jobs: UniformJobs,
        looked_at: float | None,
    ) -> list[Enqueued]:
        """Go on with a statement that takes longer; it began to look at that moment, if it does."""
        connection.query_timeout = self._connections.query_timeout
        try:
            async with self._connections.room:  # there is some, since one was idle
                done = await connection.do(job.text, job.values)
        except RETRYABLE:
            done = 0
        except BaseException:
            self._has_failed(connection, notice)
            with self._translated:
                raise
        if not done:
            self._has_given_way(connection, notice)
            return await self._add_anyhow(jobs)
        self._connections.put_back(connection)
        self._bell.committed(notice, self._kind.tidings)
        if looked_at is not None:
            self._looked(looked_at)
        return [job.added]

    def _has_given_way(self, connection: TimedAsyncConnection, notice: str | None) -> None:
        self._connections.put_back(connection)
        self._bell.not_sent(notice)

    def _has_failed(self, connection: TimedAsyncConnection, notice: str | None) -> None:
        self._connections.put_back(connection)
        self._bell.failed(notice)


async def _already(added: Enqueued) -> list[Enqueued]:
    return [added]
