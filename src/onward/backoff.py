"""How long to wait before the next attempt: a value that travels with the job."""

from __future__ import annotations

import random as _random
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Self

import msgspec

from onward.errors import InvalidValue

# A century: beyond it a moment may leave the calendar.
_LONGEST = timedelta(days=36_500)


class BackoffKind(StrEnum):
    """The two shapes of waiting."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class Backoff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Wait ``base`` after the first failure, ``factor`` times longer after each further one, never longer than ``cap``.

    ``jitter`` adds up to that share on top at random (0.2: up to a fifth longer), so that jobs which failed together do
    not come back together. It only ever adds: the wait without it is a promise.
    """

    kind: BackoffKind = BackoffKind.EXPONENTIAL
    base: float = 1.0
    """Seconds."""
    factor: float = 2.0
    cap: float | None = 60.0
    """Seconds; None: no cap."""
    jitter: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be waited for (B3)."""
        if self.kind not in tuple(BackoffKind):
            raise InvalidValue("backoff.kind", self.kind, "must be 'fixed' or 'exponential'")
        if not 0 < self.base < float("inf"):
            raise InvalidValue("backoff.base", self.base, "must be more than 0 seconds")
        if not 1 <= self.factor < float("inf"):
            raise InvalidValue("backoff.factor", self.factor, "must be 1 or more")
        if self.cap is not None and not 0 < self.cap < float("inf"):
            raise InvalidValue("backoff.cap", self.cap, "must be more than 0 seconds, or None for no cap")
        if not 0 <= self.jitter <= 1:
            raise InvalidValue("backoff.jitter", self.jitter, "must be between 0 and 1")

    @classmethod
    def fixed(cls, base: timedelta | float, *, jitter: float = 0.0) -> Self:
        """Wait the same each time."""
        return cls(kind=BackoffKind.FIXED, base=_seconds(base), cap=None, jitter=jitter)

    @classmethod
    def exponential(
        cls,
        base: timedelta | float = 1.0,
        *,
        factor: float = 2.0,
        cap: timedelta | float | None = 60.0,
        jitter: float = 0.0,
    ) -> Self:
        """Wait ``base``, then ``factor`` times longer after each failure, up to ``cap``."""
        longest = None if cap is None else _seconds(cap)
        return cls(kind=BackoffKind.EXPONENTIAL, base=_seconds(base), factor=factor, cap=longest, jitter=jitter)

    def delay(self, attempts: int, *, random: Callable[[], float] = _random.random) -> timedelta:
        """Say how long to wait after the run that made ``attempts`` what it is now: 1 after the first failure."""
        seconds = self.base
        if self.kind == BackoffKind.EXPONENTIAL:
            try:
                seconds *= float(self.factor) ** max(attempts - 1, 0)
            except OverflowError:
                seconds = _LONGEST.total_seconds()
        if self.cap is not None:
            seconds = min(seconds, self.cap)
        seconds = min(seconds * (1 + self.jitter * random()) if self.jitter else seconds, _LONGEST.total_seconds())
        return timedelta(seconds=seconds)


def _seconds(duration: timedelta | float) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


DEFAULT_BACKOFF = Backoff()
"""1 s, 2 s, 4 s, 8 s, … 60 s (H1)."""
