"""Where the time comes from.

Time is counted in whole microseconds since 1970, UTC: exact, comparable, and what the stores keep. ``now()`` gives the
same instant as an aware ``datetime`` for people. A test hands in a :class:`ManualClock` and moves it; nothing sleeps.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros_of(moment: datetime) -> int:
    """Count the microseconds from 1970 to an aware moment, exactly."""
    return (moment - _EPOCH) // MICROSECOND


def moment_of(micros: int) -> datetime:
    """Turn microseconds since 1970 into an aware UTC moment, exactly."""
    return _EPOCH + timedelta(microseconds=micros)


class Clock(Protocol):
    """Tells the time of day, in microseconds since 1970."""

    def micros(self) -> int:
        """Read the clock."""
        ...


class SystemClock:
    """The clock of this machine."""

    def micros(self) -> int:
        """Read the clock."""
        return time.time_ns() // 1000


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, start: datetime | None = None) -> None:
        self._micros = micros_of(start or datetime(2030, 1, 1, tzinfo=UTC))

    def micros(self) -> int:
        """Read the clock."""
        return self._micros

    def now(self) -> datetime:
        """Read the clock as an aware moment."""
        return moment_of(self._micros)

    def advance(self, by: timedelta | float) -> None:
        """Move forward by a duration, or by seconds."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta(0):
            message = f"a clock moves forward only, not by {step}"
            raise ValueError(message)
        self._micros += step // MICROSECOND
