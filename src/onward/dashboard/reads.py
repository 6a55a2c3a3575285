"""Reads that viewers share: fifty open pages cost the store what one does (D2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

_COST: Final = 20.0
"""A read that took a second is not made again for so many: however slow the store, it spends at most 5 % on this."""
_CHEAP: Final = 10.0
"""An answer that is kept for at most so many seconds because of its cost is read again after a change."""
_KEPT: Final = 500
_LONGEST: Final = 300.0


class _Read:
    __slots__ = ("at", "fails", "is_expired", "seconds", "task", "value")

    def __init__(self) -> None:
        self.at = float("-inf")
        self.seconds = 0.0
        self.value: Any = None
        self.is_expired = False
        """Whether something was changed after the read began."""
        self.fails: BaseException | None = None
        self.task: asyncio.Task[None] | None = None


class Reads:
    """Answers of the store, kept for a moment. Concurrent callers of one key wait for one read."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Read] = {}

    def expire(self) -> None:
        """Make the next callers read again: something was changed here. What a slow read costs still counts."""
        for found in self._known.values():
            found.is_expired = True

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]], *, fresh_for: float) -> T:
        """Return the answer of a read that is at most ``fresh_for`` seconds old; longer where the read is slow."""
        found = self._entry(key)
        if not self._is_fresh(found, fresh_for):
            is_outdated = found.is_expired and _is_running(found)
            await asyncio.shield(self._start(found, read))
            if is_outdated:  # the read had begun before the change
                await asyncio.shield(self._start(found, read))
        return cast("T", self._answer(found))

    async def soon(self, key: Hashable, read: Callable[[], Awaitable[T]], *, fresh_for: float, wait: float) -> T | None:
        """Return an answer within ``wait`` seconds: an older one if there is one, else None. The read goes on."""
        found = self._entry(key)
        if not self._is_fresh(found, fresh_for):
            has_value = found.at > float("-inf")
            patience = 0.01 if has_value and not found.is_expired else wait
            task = self._start(found, read)
            await asyncio.wait([task], timeout=patience)
            if not task.done() and not has_value:
                return None
        return cast("T", self._answer(found))

    @staticmethod
    def _is_fresh(found: _Read, fresh_for: float) -> bool:
        cost = min(_LONGEST, found.seconds * _COST)
        if found.is_expired:
            return cost > _CHEAP and time.monotonic() - found.at < cost
        return time.monotonic() - found.at < max(fresh_for, cost)

    @staticmethod
    def _answer(found: _Read) -> Any:
        if found.fails is not None:
            raise found.fails
        return found.value

    def _entry(self, key: Hashable) -> _Read:
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KEPT:
                del self._known[next(iter(self._known))]
            found = self._known[key] = _Read()
        return found

    @staticmethod
    def _start(found: _Read, read: Callable[[], Awaitable[Any]]) -> asyncio.Task[None]:
        if found.task is not None and _is_running(found):
            return found.task
        found.is_expired = False

        async def run() -> None:
            began = time.monotonic()
            try:
                found.value, found.fails = await read(), None
            except Exception as error:  # noqa: BLE001 - whoever waits for the answer gets it
                found.fails = error
            found.at = time.monotonic()
            found.seconds = found.at - began if found.fails is None else 0.0

        found.task = asyncio.create_task(run(), name="onward-dashboard-read")
        return found.task


def _is_running(found: _Read) -> bool:
    task = found.task
    return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()
