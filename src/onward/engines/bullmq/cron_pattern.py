"""Cron patterns as BullMQ's cron-parser reads them.

Five fields or six (the first is seconds), ``@daily`` and its kind, ``?``, ``L``, ``5#3``, and ``H`` for a value that a
seed chooses. Days match if the day of the month or the day of the week does, unless one of the two is a wildcard.

A pattern that is restricted to some hours runs once for each time of day: a time that the clocks skip runs as much
later as they moved, and one that they repeat runs the first time. A pattern of every hour follows elapsed time.

Zones are named as Luxon names them. Without one the process's own zone counts, as in Node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

_PREDEFINED: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
    "@minutely": "0 * * * * *",
    "@secondly": "* * * * * *",
    "@weekdays": "0 0 0 * * 1-5",
    "@weekends": "0 0 0 * * 0,6",
}
_DEFAULTS: Final = ("0", "*", "*", "*", "*", "*")
_RANGES: Final = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_HOUR, _DAY, _MONTH, _WEEKDAY = 2, 3, 4, 5
_DRAWN: Final = (0, 1, _HOUR, _MONTH, _DAY, _WEEKDAY)
"""The order in which cron-parser draws the fields' values of ``H``."""
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ALIASES: Final = {
    _MONTH: {name: number for number, name in enumerate(_MONTHS, start=1)},
    _WEEKDAY: {name: number for number, name in enumerate(_WEEKDAYS)},
}
_WILDCARDS: Final = ("*", "?")
_HASHED: Final = re.compile(r"H(?:\((\d+)-(\d+)\))?(?:/(\d+))?")
_LAST: Final = re.compile(r"L|[0-7]L|[0-7]#[1-5]")
_UTC_OFFSET: Final = re.compile(r"utc(?:([+-]\d{1,2})(?::(\d{2}))?)?", re.IGNORECASE)
_TRANSITION: Final = timedelta(hours=3)
"""Longer than any change of a zone's clocks but those across the date line."""


class UnreadablePattern(ValueError):
    """Not a pattern, or not a zone, that cron-parser reads."""


class Pattern(NamedTuple):
    """A pattern that was read."""

    fields: str
    """Six fields for cronsim: lists of values, and ``*``."""
    is_hourly: bool
    """Whether every hour matches."""

    def next_after(self, since: datetime, zone: tzinfo) -> datetime | None:
        """Compute the first time after ``since``, in UTC; None: it never comes."""
        since = since.astimezone(UTC)
        return self._next_elapsed(since, zone) if self.is_hourly else self._next_of_day(since, zone)

    def _walls(self, wall: datetime) -> Iterator[datetime]:
        return iter(CronSim(self.fields, wall))

    def _next_elapsed(self, since: datetime, zone: tzinfo) -> datetime | None:
        offset, wall = _offset(since, zone), _wall(since, zone)
        while (found := next(self._walls(wall), None)) is not None:
            at = found.replace(tzinfo=UTC) - offset
            if _offset(at, zone) == offset:
                return at
            change = _change(zone, since, at)
            since, offset, wall = change, _offset(change, zone), _wall(change, zone) - timedelta(seconds=1)
        return None

    def _next_of_day(self, since: datetime, zone: tzinfo) -> datetime | None:
        first: datetime | None = None
        until: datetime | None = None
        for wall in self._walls(_wall(since, zone)):
            if until is not None and wall > until:
                break
            at = wall.replace(tzinfo=zone).astimezone(UTC)  # the first of two; a skipped one by the offset before
            if at > since and (first is None or at < first):
                first = at
                until = wall + (_TRANSITION if _offset(at - _TRANSITION, zone) != _offset(at, zone) else timedelta(0))
        return first


@lru_cache(maxsize=1000)
def parse(pattern: str, seed: str) -> Pattern:
    """Read a pattern; ``seed`` chooses the values of ``H``.

    Raises:
        UnreadablePattern: cron-parser would not read it either.
    """
    atoms = _PREDEFINED.get(pattern, pattern).split()
    if not 0 < len(atoms) <= len(_DEFAULTS):
        raise UnreadablePattern(f"{pattern!r} must have one to six fields")
    atoms = [*_DEFAULTS[: len(_DEFAULTS) - len(atoms)], *atoms]
    random = _random(seed)
    drawn = {number: random() for number in _DRAWN}
    fields = [_expand(number, atom, drawn[number]) for number, atom in enumerate(atoms)]
    expression = " ".join(fields)
    try:
        CronSim(expression, datetime(2024, 1, 1))  # noqa: DTZ001 - only read
    except CronSimError as error:
        raise UnreadablePattern(f"{pattern!r}: {error}") from None
    return Pattern(expression, fields[_HOUR] in ("*", ",".join(map(str, range(24)))))


def _expand(number: int, atom: str, random: float) -> str:
    if atom in _WILDCARDS:
        return "*"
    least, most = _RANGES[number]
    if number in _ALIASES:
        atom = re.sub("[a-z]{3}", lambda name: _alias(number, name[0]), atom, flags=re.IGNORECASE)
    atom = re.sub(r"[*?]", f"{least}-{most}", atom)
    atom = _HASHED.sub(lambda hashed: _hashed(hashed, least, most, random), atom)
    values: set[int] = set()
    special: list[str] = []
    for part in atom.split(","):
        if number in (_DAY, _WEEKDAY) and _LAST.fullmatch(part) and (number == _WEEKDAY) == (part != "L"):
            special.append(part)
        else:
            values.update(_range(part, least, most))
    if len(special) > 1 and any("#" in part for part in special):
        raise UnreadablePattern(f"{atom!r} has more than one #")
    return ",".join([*map(str, sorted(values)), *special])


def _alias(number: int, name: str) -> str:
    try:
        return str(_ALIASES[number][name.lower()])
    except KeyError:
        raise UnreadablePattern(f"{name!r} is not a month or a day of the week") from None


def _range(part: str, least: int, most: int) -> range:
    bounds, _, step = part.partition("/")
    first, _, last = bounds.partition("-")
    if not last:
        last = str(most) if step else first
    if not (first.isdecimal() and last.isdecimal() and (step.isdecimal() if "/" in part else True)):
        raise UnreadablePattern(f"{part!r} is not a value, a range or a step")
    low, high, every = int(first), int(last), int(step or 1)
    if not (least <= low <= high <= most and every > 0):
        raise UnreadablePattern(f"{part!r} must be between {least} and {most}")
    return range(low, high + 1, every)


def _hashed(hashed: re.Match[str], least: int, most: int, random: float) -> str:
    low, high = max(int(hashed[1] or least), least), min(int(hashed[2] or most), most)
    if low > high:
        raise UnreadablePattern(f"{hashed[0]!r} must be between {least} and {most}")
    if hashed[3]:
        if (step := int(hashed[3])) == 0:
            raise UnreadablePattern(f"{hashed[0]!r} has a step of 0")
        start = low // step * step + int(random * step)
        if values := [value for value in range(start, high + 1, step) if value >= low]:
            return ",".join(map(str, values))
    return str(int(random * (high - low + 1)) + low)


def _random(seed: str) -> Callable[[], float]:
    """Draw the numbers that cron-parser draws for a seed: xfnv1a, then mulberry32."""
    state = 2166136261
    units = seed.encode("utf-16-le")
    for at in range(0, len(units), 2):
        state = (state ^ int.from_bytes(units[at : at + 2], "little")) * 16777619 & 0xFFFFFFFF

    def draw() -> float:
        nonlocal state
        state = state + 0x6D2B79F5
        mixed = state & 0xFFFFFFFF
        mixed = (mixed ^ mixed >> 15) * (mixed | 1) & 0xFFFFFFFF
        mixed ^= mixed + ((mixed ^ mixed >> 7) * (mixed | 61) & 0xFFFFFFFF) & 0xFFFFFFFF
        return (mixed ^ mixed >> 14) / 2**32

    return draw


# Zones


def zone_of(name: str | None) -> tzinfo:
    """Find a zone by the name that Luxon gives it; without a name the process's own.

    Raises:
        UnreadablePattern: there is no such zone.
    """
    if name is not None and not isinstance(name, str):
        raise UnreadablePattern(f"{name!r} is not a time zone such as Europe/Berlin")
    lowered = (name or "local").lower()
    if lowered in ("local", "system", "default"):
        return local_zone()
    if lowered == "gmt":
        return UTC
    if offset := _UTC_OFFSET.fullmatch(lowered):
        hours, minutes = int(offset[1] or 0), int(offset[2] or 0)
        try:
            return timezone(timedelta(hours=hours, minutes=-minutes if hours < 0 else minutes))
        except ValueError:
            raise UnreadablePattern(f"{name!r} is a day or more from UTC") from None
    try:
        return ZoneInfo(name or "")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        if found := _names_by_lower_case().get(lowered):
            return ZoneInfo(found)
        raise UnreadablePattern(f"{name!r} is not a time zone such as Europe/Berlin") from None


@cache
def _names_by_lower_case() -> dict[str, str]:
    return {name.lower(): name for name in available_timezones()}


def local_zone() -> tzinfo:
    """Find the process's zone: TZ, else the machine's, else UTC."""
    if named := os.environ.get("TZ", "").removeprefix(":"):
        try:
            return ZoneInfo(named)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return UTC
    machine = Path("/etc/localtime")
    try:
        _, _, linked = str(machine.resolve()).partition("zoneinfo/")
        if linked:
            return ZoneInfo(linked)
        with machine.open("rb") as file:
            return ZoneInfo.from_file(file)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _wall(moment: datetime, zone: tzinfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _change(zone: tzinfo, before: datetime, after: datetime) -> datetime:
    """Find the second in which a zone's clocks first move between two moments."""
    offset = _offset(before, zone)
    low, high = int(before.timestamp()), int(after.timestamp())
    # The first change, where there are several: no step is longer than a zone keeps its clocks.
    while high - low > 1:
        middle = min((low + high) // 2, low + 86_400)
        if _offset(datetime.fromtimestamp(middle, tz=UTC), zone) == offset:
            low = middle
        else:
            high = middle
    return datetime.fromtimestamp(high, tz=UTC)
