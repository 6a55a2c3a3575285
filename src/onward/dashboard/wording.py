"""Numbers, times and names as pages show them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from markupsafe import Markup

from onward.job import Job
from onward.lifecycle import JobStatus
from onward.service.wording import duration

SPACE: Final = "\N{NO-BREAK SPACE}"
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, overrides of the direction of text, and lone surrogates: they make text look like other text."""
_LONG: Final = 160


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A time: relative for a list, exact for a timeline, and for machines."""

    iso: str
    exact: str
    relative: str


class Pill(msgspec.Struct, frozen=True, kw_only=True):
    """A state: a word with a colour; hollow: a person has stopped it."""

    word: str
    kind: str
    hollow: bool = False


def visible(value: Any) -> Any:
    """Make characters visible that could disguise a text. Applied to everything that a template prints (X6)."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
    return value


def number(value: float | None) -> str:
    """Write a number with groups of three digits."""
    if value is None:
        return "–"
    text = f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:.1f}"
    return text.replace(",", SPACE)


def short_number(value: float) -> str:
    """Write a number in at most four characters, for an axis: ``950``, ``1.2k``, ``3M``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}".rstrip("0").rstrip(".") + unit
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def span(seconds: float | None) -> str:
    """Write a duration: ``3 ms``, ``0.3 s``, ``5 min``."""
    if seconds is None:
        return "–"
    if 0 <= seconds < 0.1:
        return f"{seconds * 1000:.0f}{SPACE}ms"
    return duration(seconds).replace(" ", SPACE)


def moment(at: datetime | None, now: datetime | None = None) -> Moment | None:
    """Write a time."""
    if at is None:
        return None
    at = at.astimezone(UTC)
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    if abs(seconds) < 1:
        relative = "now"
    elif seconds > 0:
        relative = f"{_whole(seconds)} ago"
    else:
        relative = f"in {_whole(-seconds)}"
    exact = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}{SPACE}UTC"
    return Moment(iso=at.isoformat().replace("+00:00", "Z"), exact=exact, relative=relative.replace(" ", SPACE))


def _whole(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (seconds >= size and unit == "min"):
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds // 1:.0f} s"


def shortened(text: str | None, most: int = _LONG) -> str:
    """Write the first line of a text, within a length."""
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= most else f"{line[: most - 1]}…"


def short_id(id: str) -> str:
    """Write an id for a table. The end of a UUIDv7 tells jobs apart, its beginning is their time."""
    return id if len(id) <= 16 else f"…{id[-8:]}"


_KINDS: Final = {
    JobStatus.COMPLETED: "ok",
    JobStatus.RUNNING: "busy",
    JobStatus.CLAIMED: "busy",
    JobStatus.SCHEDULED: "wait",
    JobStatus.BLOCKED: "wait",
    JobStatus.FAILED: "bad",
    JobStatus.DEAD_LETTER: "bad",
    JobStatus.PENDING: "idle",
    JobStatus.CANCELLED: "idle",
}


def pill(status: JobStatus) -> Pill:
    """Show the status of a job."""
    return Pill(word=status.replace("_", " "), kind=_KINDS[status], hollow=status is JobStatus.CANCELLED)


def attempts(job: Job) -> str:
    """Write how many attempts of a job are used."""
    return f"{job.attempts}/{job.max_attempts}"


def listed(names: Iterable[str] | None, nothing: str = "all") -> str:
    """Write names in a row."""
    return nothing if names is None else ", ".join(names) or "none"
