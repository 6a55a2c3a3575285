"""When the turn of a schedule comes: by a cron expression in a time zone, or at equal intervals.

A cron expression has the five classic fields and is read as Debian's cron reads it, so that nobody is surprised twice
a year. A fixed time of day that the clocks leap over comes as soon as they have; one that they run through twice comes
the first time only. Expressions with a ``*`` for minutes or hours follow real time through both.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from onward.errors import InvalidValue

_FIELDS: Final = 5
_WORDS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""The words of cron for common expressions; stores have the five fields."""
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Cron(msgspec.Struct, frozen=True, tag="cron"):
    """Turns by the clock on the wall: ``Cron("30 6 * * mon-fri", "Europe/Berlin")``.

    It is checked when a person writes it (:func:`trigger_of`), not when it is read from a store: a machine that does
    not know the time zone can still list the schedule, and delete it.
    """

    expression: str
    """Five fields; a word such as ``@daily`` is written out."""
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        """Write out a word."""
        written = self.expression.strip().lower() if isinstance(self.expression, str) else ""
        if written in _WORDS:
            msgspec.structs.force_setattr(self, "expression", _WORDS[written])

    def check(self) -> None:
        """Refuse what is not such an expression, or never comes."""
        zone = _zone(self.timezone)
        if self.expression.startswith("@"):
            raise InvalidValue("cron", self.expression, f"is no word of cron here: there are {', '.join(_WORDS)}")
        if len(self.expression.split()) != _FIELDS:
            rule = "must have five fields (minute hour day month weekday); for seconds, give a timedelta"
            raise InvalidValue("cron", self.expression, rule)
        if next(_walls(self.expression, _wall(datetime.now(UTC), zone)), None) is None:
            raise InvalidValue("cron", self.expression, "never comes: there is no such day")

    def __str__(self) -> str:
        """Write it for people."""
        return self.expression if self.timezone == "UTC" else f"{self.expression} ({self.timezone})"

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Tell the turns that come after a moment, in order, each once."""
        minute, hour, *_ = self.expression.split()
        follows_real_time = minute.startswith("*") or hour.startswith("*")
        tell = _by_real_time if follows_real_time else _by_the_wall
        last = moment.astimezone(UTC)
        for turn in tell(self.expression, last.replace(microsecond=0), _zone(self.timezone)):
            if turn > last:  # what the clocks run through twice has been, what they leap over may coincide
                last = turn
                yield turn


def _by_the_wall(expression: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    for wall in _walls(expression, _wall(moment, zone)):
        turn = wall.replace(tzinfo=zone).astimezone(UTC)  # the first of two
        if _wall(turn, zone) != wall:  # leapt over
            turn = _change(zone, turn - _DAY, turn)
        yield turn


def _by_real_time(expression: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Tell when the clock shows a matching time, again and again if it does: period by period between its changes."""
    offset, begin = _offset(moment, zone), _wall(moment, zone)
    while True:
        for wall in _walls(expression, begin):
            turn = wall.replace(tzinfo=UTC) - offset
            if _offset(turn, zone) != offset:
                moment = _change(zone, moment, turn)
                offset, begin = _offset(moment, zone), _wall(moment, zone) - _SECOND
                break
            moment = turn
            yield turn
        else:
            return


def _walls(expression: str, begin: datetime) -> Iterator[datetime]:
    try:
        return CronSim(expression, begin)
    except CronSimError as error:
        raise InvalidValue("cron", expression, f"cannot be read: {error}") from None


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return _wall(moment, zone) - moment.replace(tzinfo=None)


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Find the second at which the clocks changed."""
    offset = _offset(before, zone)
    while after - before > _SECOND:
        middle = before + (after - before) // _SECOND // 2 * _SECOND
        before, after = (middle, after) if _offset(middle, zone) == offset else (before, middle)
    return after


class Interval(msgspec.Struct, frozen=True, tag="interval"):
    """Turns that are equally far apart, counted from a moment: by default from 1970, so that all who say it agree."""

    length: timedelta
    since: datetime = _EPOCH

    def __post_init__(self) -> None:
        """Refuse what would never end."""
        if self.length <= timedelta(0):
            raise InvalidValue("every", self.length, "must be at least a second")
        if self.since.tzinfo is None:
            raise InvalidValue("since", self.since, "must have a time zone")

    def check(self) -> None:
        """Refuse what is too short for a new schedule; BullMQ's own may be shorter."""
        if self.length < _SECOND:
            raise InvalidValue("every", self.length, "must be at least a second")

    def __str__(self) -> str:
        """Write it for people."""
        return f"every {self.length}"

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Tell the turns that come after a moment, in order, each once."""
        past = max((moment - self.since) // self.length + 1, 0)
        turn = (self.since + past * self.length).astimezone(UTC)
        while True:
            yield turn
            turn += self.length


Trigger = Cron | Interval


def trigger_of(cron: str | None = None, *, every: timedelta | None = None, timezone: str = "UTC") -> Trigger:
    """Make the trigger of a schedule: from a cron expression and its time zone, or from an interval."""
    if (cron is None) == (every is None):
        raise InvalidValue("schedule", cron, 'give either a cron expression ("0 6 * * *") or every=timedelta(…)')
    if every is not None:
        if not isinstance(every, timedelta):
            raise InvalidValue("every", every, "must be a timedelta; a cron expression is given without a name")
        if timezone != "UTC":
            raise InvalidValue("timezone", timezone, "belongs to a cron expression: intervals are the same everywhere")
        interval = Interval(every)
        interval.check()
        return interval
    if not isinstance(cron, str):
        raise InvalidValue("cron", cron, "must be a cron expression; give an interval as every=timedelta(…)")
    trigger = Cron(cron, timezone)
    trigger.check()
    return trigger


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        rule = "is no time zone known here: write it like Europe/Berlin, or install the package tzdata"
        raise InvalidValue("timezone", name, rule) from None
