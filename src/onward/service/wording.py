"""Durations and counts in words."""

from __future__ import annotations

from datetime import timedelta


def duration(span: timedelta | float) -> str:
    """Write a duration in its largest sensible unit: ``0.3 s``, ``42 s``, ``5 min``, ``3 h``, ``12 d``."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def count(number: int, noun: str, verb: str = "") -> str:
    """Write a number of things, and what they do: ``1 job``, ``2 jobs``; ``1 job waits``, ``2 jobs wait``."""
    many = "" if number == 1 else "s"
    does = f" {verb}{'s' if number == 1 else ''}" if verb else ""
    return f"{number:,} {noun}{many}".replace(",", " ") + does
