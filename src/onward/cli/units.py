"""Durations, rates and moments as people type them and like to read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from onward.backoff import Backoff, BackoffKind
from onward.engine.values import Rate
from onward.errors import InvalidValue
from onward.service.wording import duration
from onward.validation import read_number

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hour": 3600.0, "d": 86400.0}
_UNIT: Final = "|".join(sorted((*_SECONDS, "day"), key=len, reverse=True))
_PART: Final = re.compile(rf"(\d+(?:\.\d+)?)\s*({_UNIT})?", re.IGNORECASE)
_RATE: Final = re.compile(rf"(\d+)\s*/\s*(\d*(?:\.\d+)?)\s*({_UNIT})", re.IGNORECASE)


def read_duration(text: str) -> timedelta:
    """Read ``500ms``, ``90`` (seconds), ``90s``, ``5m``, ``1h30m``, ``2d``."""
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise typer.BadParameter(f"{text!r} is no duration: write 500ms, 30s, 5m, 1h30m or 2d")
    try:
        return timedelta(seconds=sum(float(number) * _seconds(unit or "s") for number, unit in parts))
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long") from None


def read_datetime(text: str) -> datetime:
    """Read an ISO moment; one without a time zone is in this machine's."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no moment: write 2030-01-31T12:00 or 2030-01-31T12:00+02:00") from None


def read_rate(text: str) -> Rate | None:
    """Read ``600/min``, ``10/s``, ``5/10s``; ``none`` takes a limit away."""
    if text.lower() == "none":
        return None
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no rate: write 600/min, 10/s, 5/10s, or none")
    count, number, unit = match.groups()
    try:
        return Rate(int(count), timedelta(seconds=float(number or 1) * _seconds(unit)))
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"{text!r}: {error}") from None


def read_limit(text: str) -> int | None:
    """Read a number of jobs at once; ``none`` takes a limit away."""
    if text.lower() == "none":
        return None
    limit = read_number(text)
    if not limit:
        raise typer.BadParameter(f"{text!r} is no limit: write a whole number of at least 1, or none")
    return limit


def read_optional_duration(text: str) -> timedelta | None:
    """Read a duration; ``none`` takes a setting away."""
    return None if text.lower() == "none" else read_duration(text)


def read_backoff(text: str) -> Backoff | None:
    """Read ``30s`` (fixed), ``1s..10m`` (doubling, up to 10 minutes); ``none`` takes a setting away."""
    if text.lower() == "none":
        return None
    first, dots, cap = text.partition("..")
    try:
        if not dots:
            return Backoff.fixed(read_duration(first))
        return Backoff.exponential(read_duration(first), cap=read_duration(cap))
    except InvalidValue as error:
        raise typer.BadParameter(f"{text!r}: {error}") from None


def describe_backoff(backoff: Backoff) -> str:
    """Write a backoff as it would be typed, with what cannot be typed behind it."""
    first = duration(backoff.base)
    jitter = f", jitter {backoff.jitter:.0%}" if backoff.jitter else ""
    if backoff.kind == BackoffKind.FIXED:
        return f"{first}{jitter}"
    cap = "" if backoff.cap is None else f" up to {duration(backoff.cap)}"
    return f"{first}, × {backoff.factor:g}{cap}{jitter}"


def read_retention(text: str) -> timedelta | None:
    """Read for how long something is kept: a duration, or ``forever``."""
    return None if text.lower() == "forever" else read_duration(text)


def _seconds(unit: str) -> float:
    unit = unit.lower()
    return _SECONDS["d" if unit == "day" else unit]


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """Write how long ago a moment was, or how far ahead it is."""
    if moment is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < 0:
        return f"in {duration(-seconds)}"
    return f"{duration(seconds)} ago"


def rate(limit: Rate | None) -> str:
    """Write a rate as it would be typed."""
    if limit is None:
        return ""
    seconds = limit.period.total_seconds()
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds == size:
            return f"{limit.count}/{unit}"
    return f"{limit.count}/{seconds:g}s"
