"""How a handler ends other than by returning or failing: it raises one of these.

They are not errors, so they are outside the tree of :mod:`onward.errors`. Like every exception they pass through
``finally`` and ``with``, so a transaction that is open in the handler rolls back.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from onward import validation
from onward.errors import InvalidValue


class Later(Exception):
    """Run this job again at a time that its handler chooses: a :class:`Snooze` or a :class:`Retry`."""

    def __init__(self, delay: timedelta | float | None = None, *, until: datetime | None = None) -> None:
        if (delay is None) == (until is None):
            raise InvalidValue(type(self).__name__.lower(), delay, "give either a delay or until=")
        self.delay = None if delay is None else validation.check_delay(as_duration("delay", delay))
        self.until = None if until is None else validation.check_moment("until", until)
        super().__init__(f"in {self.delay}" if until is None else f"until {until.isoformat()}")

    def delay_from(self, now: datetime) -> timedelta:
        """Say how long to wait, seen from ``now``."""
        if self.until is None:
            return self.delay or timedelta(0)
        return max(self.until - now, timedelta(0))


class Snooze(Later):
    """Run this job again later. The run does not count as an attempt.

    Give a ``delay`` (a timedelta, or seconds) or a moment to wait ``until``; one that has passed means now.
    """


class Retry(Later):
    """Run this job again later, as after a failure: the run counts as a failed attempt.

    Give a ``delay`` (a timedelta, or seconds) or a moment to wait ``until``, instead of the job's backoff. When the
    attempts are used up, the job becomes a dead letter as after any failure. ``raise Retry(60) from error`` records
    that error; without one, the job's last error is ``Retry`` with the ``reason``.
    """

    def __init__(
        self,
        delay: timedelta | float | None = None,
        *,
        until: datetime | None = None,
        reason: str = "its handler asked for a retry",
    ) -> None:
        super().__init__(delay, until=until)
        self.reason = str(reason)
        self.args = (self.reason,)


class Cancel(Exception):
    """Take this job back: there is nothing to do any more. It ends ``cancelled``, with the reason."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        self.reason = str(reason)
        super().__init__(self.reason)


class DoNotRetry(Exception):
    """This will not succeed however often it is tried. The job ends ``failed``, with the reason."""

    def __init__(self, reason: str = "its handler said that trying again is of no use") -> None:
        self.reason = reason
        super().__init__(reason)


def as_duration(field: str, value: timedelta | float) -> timedelta:
    """Read a duration that a person wrote as a timedelta or as seconds."""
    if isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidValue(field, value, "must be a timedelta, or a number of seconds") from None
