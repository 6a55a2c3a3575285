"""A limit to several waits, one after another, that can be brought forward while one of them is under way."""

from __future__ import annotations

import asyncio
import contextlib
import math


class Limit:
    """Until when to wait, by the loop's clock: for ever, if nobody brings it forward."""

    def __init__(self) -> None:
        self._at = math.inf
        self._present: asyncio.Timeout | None = None

    def within(self, seconds: float) -> asyncio.Timeout:
        """Bound what follows: to so many seconds, and by the limit. Use as ``asyncio.timeout``."""
        self._present = asyncio.timeout_at(min(asyncio.get_running_loop().time() + seconds, self._at))
        return self._present

    def bring_forward(self, seconds: float) -> None:
        """Wait for so many seconds more at most, all together. What has been said before is not taken back."""
        self._at = min(self._at, asyncio.get_running_loop().time() + seconds)
        present = self._present
        if present is not None and (until := present.when()) is not None and until > self._at:
            with contextlib.suppress(RuntimeError):  # that wait is over
                present.reschedule(self._at)
