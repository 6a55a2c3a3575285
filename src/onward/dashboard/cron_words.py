"""Cron expressions in words: ``30 6 * * mon-fri`` is "at 06:30 on Monday to Friday"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS: Final = (
    "", "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_DAY_NAMES: Final = {name[:3].lower(): number for number, name in enumerate(_DAYS[:7])}
_MONTH_NAMES: Final = {name[:3].lower(): number for number, name in enumerate(_MONTHS) if name}


def words(expression: str) -> str:
    """Say when a cron expression comes; an expression that is too intricate is returned as it is."""
    fields = expression.lower().split()
    if len(fields) != 5:
        return expression
    try:
        minute, hour, day, month, weekday = fields
        parts = [_time(minute, hour)]
        days = [part for part in (_month_days(day), _weekdays(weekday)) if part]
        parts.append(" or ".join(days))
        if month != "*":
            parts.append(f"in {_list(month, lambda word: _MONTHS[_MONTH_NAMES.get(word) or int(word)])}")
        return " ".join(part for part in parts if part)
    except (ValueError, IndexError):
        return expression


def _time(minute: str, hour: str) -> str:
    if minute.isdecimal() and hour.isdecimal():
        return f"at {int(hour):02d}:{int(minute):02d}"
    if minute.isdecimal() and all(part.isdecimal() for part in hour.split(",")):
        return "at " + _joined([f"{int(part):02d}:{int(minute):02d}" for part in hour.split(",")])
    if minute == "*":
        when = "every minute"
    elif minute.startswith("*/"):
        when = f"every {int(minute[2:])} minutes"
    elif minute.isdecimal():
        if hour == "*":
            return "every hour" if int(minute) == 0 else f"at {int(minute)} minutes past every hour"
        if hour.startswith("*/"):
            past = "" if int(minute) == 0 else f", at {int(minute)} minutes past"
            return f"every {int(hour[2:])} hours{past}"
        when = f"at {int(minute)} minutes past the hour"
    else:
        when = f"at minutes {_list(minute, lambda word: str(int(word)))}"
    if hour == "*":
        return when
    if hour.startswith("*/"):
        return f"{when} of every {int(hour[2:])} hours"
    return f"{when}, hours {_list(hour, lambda word: f'{int(word):02d}')}"


def _month_days(day: str) -> str:
    if day == "*":
        return ""
    if day == "l":
        return "on the last day of the month"
    if day.startswith("*/"):
        return f"every {int(day[2:])} days"
    return f"on day {_list(day, lambda word: str(int(word)))}"


def _weekdays(weekday: str) -> str:
    if weekday == "*":
        return ""
    return f"on {_list(weekday, lambda word: _DAYS[_DAY_NAMES[word] if word in _DAY_NAMES else int(word)])}"


def _list(text: str, name: Callable[[str], str]) -> str:
    parts = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        parts.append(f"{name(first)} to {name(last)}" if dash else name(first))
    return _joined(parts)


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
