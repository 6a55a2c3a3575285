"""A limit to several waits, one after another, that can be brought forward while one of them is under way."""

from __future__ import annotations

import asyncio
import contextlib
import math


class Deadline:
    """Until when to wait, by the loop's clock: for ever, if nobody brings it forward."""

    def __init__(self) -> None:
        self._at = math.inf
        self._current: asyncio.Timeout | None = None

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """Bound what follows: to so many seconds, and by the limit. Use as ``asyncio.timeout``."""
        self._current = asyncio.timeout_at(min(asyncio.get_running_loop().time() + seconds, self._at))
        return self._current

    def bring_forward(self, seconds: float) -> None:
        """Wait for so many seconds more at most, all together. What has been said before is not taken back."""
        self._at = min(self._at, asyncio.get_running_loop().time() + seconds)
        current = self._current
        if current is not None and (until := current.when()) is not None and until > self._at:
            with contextlib.suppress(RuntimeError):  # that wait is over
                current.reschedule(self._at)
