"""What BullMQ can be told about a job and a scheduler, in its own words: names in snake case, times in milliseconds.

Checked before anything is written, by BullMQ's rules and ours (B3), and written as Node writes them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, TypeVar

import msgspec

from onward.clock import micros_of
from onward.engines.bullmq.cron_pattern import UnreadablePattern, parse, zone_of
from onward.errors import InvalidValue
from onward.job import JobRef
from onward.validation import check_at_least, check_kept, check_moment, check_text

T = TypeVar("T", bound=msgspec.Struct)

LOWEST_PRIORITY: Final = 2**21 - 1
_ON_FAILURE: Final = {
    "fail_parent_on_failure": "fpof",
    "continue_parent_on_failure": "cpof",
    "ignore_dependency_on_failure": "idof",
    "remove_dependency_on_failure": "rdof",
}
"""What a child's failure does to its parent, and BullMQ's short words for it."""
_encode = msgspec.json.encode


class _CamelCase(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Written as Node writes it: in camel case, and only what was said."""


class Deduplication(_CamelCase, frozen=True, kw_only=True):
    """Which jobs stand for one another: simple (an id), throttle (with a ttl), debounce (replace and extend too)."""

    id: str
    ttl: int | None = None
    """For so long another adds nothing; None: until the job that stands for them has ended."""
    extend: bool = False
    """Each further one begins the ttl anew."""
    replace: bool = False
    """A further one takes the place of one that is still delayed."""
    keep_last_if_active: bool = False
    """The last one that came while the first was active comes in when that has ended."""
    reschedule: bool = False
    """A further one puts off one that is still delayed, by its own delay."""


class BackoffOptions(_CamelCase, frozen=True, kw_only=True):
    """How long to wait between attempts."""

    type: Literal["fixed", "exponential"]
    delay: int
    jitter: float | None = None
    """Which part of the delay is left to chance, from 0 to 1."""


class KeepJobs(_CamelCase, frozen=True, kw_only=True):
    """Which finished jobs are kept."""

    age: int | None = None
    """In seconds, as in BullMQ."""
    count: int | None = None
    limit: int | None = None
    """How many are removed at once."""


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a job can be told."""

    job_id: str | None = None
    """An id of its own: where there is a job of that id, nothing is added."""
    delay: int = 0
    priority: int = 0
    """As BullMQ counts: 1 before 2, and 0, none, before all."""
    attempts: int | None = None
    """None: one, as BullMQ has it."""
    backoff: BackoffOptions | int | None = None
    lifo: bool = False
    """Ahead of all that wait."""
    deduplication: Deduplication | None = None
    parent: JobRef | None = None
    """The job that waits for this one."""
    fail_parent_on_failure: bool = False
    continue_parent_on_failure: bool = False
    ignore_dependency_on_failure: bool = False
    remove_dependency_on_failure: bool = False
    remove_on_complete: bool | int | KeepJobs | None = None
    remove_on_fail: bool | int | KeepJobs | None = None
    keep_logs: int | None = None
    stack_trace_limit: int | None = None

    def __post_init__(self) -> None:
        """Refuse what BullMQ would, or could not keep (B3)."""
        self._check_id()
        for field, least in (
            ("delay", 0),
            ("priority", 0),
            ("attempts", 1),
            ("keep_logs", 0),
            ("stack_trace_limit", 0),
        ):
            if (value := getattr(self, field)) is not None:
                check_at_least(field, value, least)
        if self.priority > LOWEST_PRIORITY:
            raise InvalidValue("priority", self.priority, f"must be between 0 and {LOWEST_PRIORITY:,}")
        if len(chosen := [field for field in _ON_FAILURE if getattr(self, field)]) > 1:
            raise InvalidValue(chosen[1], True, f"cannot be said together with {chosen[0]}")  # noqa: FBT003 - the value
        self._check_backoff()
        self._check_deduplication()
        for field in ("remove_on_complete", "remove_on_fail"):
            _check_kept(field, getattr(self, field))

    def _check_id(self) -> None:
        id = self.job_id
        if id is None:
            return
        if not isinstance(id, str) or not id or id.removeprefix("-").isdecimal():
            raise InvalidValue(
                "job_id", id, "must be a non-empty string that is no whole number: those are BullMQ's own"
            )
        if ":" in check_text("job_id", id):
            raise InvalidValue("job_id", id, "must not contain ':', which parts BullMQ's keys")

    def _check_backoff(self) -> None:
        backoff = self.backoff
        if backoff is None:
            return
        delay = backoff.delay if isinstance(backoff, BackoffOptions) else backoff
        check_at_least("backoff.delay", delay, 1)
        if isinstance(backoff, BackoffOptions):
            if backoff.type not in ("fixed", "exponential"):
                raise InvalidValue("backoff.type", backoff.type, "must be fixed or exponential")
            if backoff.jitter is not None and not 0 <= backoff.jitter <= 1:
                raise InvalidValue("backoff.jitter", backoff.jitter, "must be between 0 and 1")

    def _check_deduplication(self) -> None:
        de = self.deduplication
        if de is None:
            return
        if not de.id:
            raise InvalidValue("deduplication.id", de.id, "must be a non-empty string")
        check_text("deduplication.id", de.id)
        if de.ttl is not None:
            check_at_least("deduplication.ttl", de.ttl, 1)
        if self.parent is not None:
            raise InvalidValue("deduplication", de.id, "cannot be said together with parent")

    def text(self, prefix: str) -> str:
        """Write them, but for the delay, which the store adds by its own clock."""
        return _encode(self.members(prefix)).decode()

    def members(self, prefix: str) -> dict[str, Any]:
        """Give them as Node has them."""
        backoff, parent = self.backoff, self.parent
        values = {
            "attempts": self.attempts or 0,
            "jobId": self.job_id,
            "priority": self.priority or None,
            "backoff": {"type": "fixed", "delay": backoff} if isinstance(backoff, int) else backoff,
            "lifo": self.lifo or None,
            "de": self.deduplication,
            "parent": None if parent is None else {"id": parent.id, "queue": f"{prefix}:{parent.queue}"},
            "removeOnComplete": self.remove_on_complete,
            "removeOnFail": self.remove_on_fail,
            "kl": self.keep_logs,
            "stackTraceLimit": self.stack_trace_limit,
            **{short: getattr(self, field) or None for field, short in _ON_FAILURE.items()},
        }
        return {name: value for name, value in values.items() if value is not None}

    def parent_text(self, prefix: str) -> str:
        """Write who waits for the job, and what becomes of that one if it fails; '' for nobody."""
        if self.parent is None:
            return ""
        values: dict[str, Any] = {"id": self.parent.id, "queueKey": f"{prefix}:{self.parent.queue}"}
        values.update({short: True for field, short in _ON_FAILURE.items() if getattr(self, field)})
        return _encode(values).decode()

    @property
    def deduplication_text(self) -> str:
        """Write which jobs this one stands for; '' for none."""
        return "" if self.deduplication is None else _encode(self.deduplication).decode()


def _check_kept(field: str, kept: bool | int | KeepJobs | None) -> None:  # noqa: FBT001 - BullMQ's own shape
    if isinstance(kept, KeepJobs):
        for part in ("age", "count", "limit"):
            if (value := getattr(kept, part)) is not None:
                check_at_least(f"{field}.{part}", value, 0)
    elif kept is not None:
        check_kept(field, kept)


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """When a scheduler makes jobs: by ``every`` so many milliseconds, or by a cron ``pattern``."""

    every: int | None = None
    pattern: str | None = None
    """Five fields of cron, or six, of which the first is seconds."""
    tz: str | None = None
    """The time zone of the pattern, such as Europe/Berlin; the process's own unless given, as in Node."""
    limit: int | None = None
    """After so many jobs it ends."""
    offset: int | None = None
    """With ``every``: how far from the beat, which counts from 1970."""
    start_date: datetime | None = None
    end_date: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse what is no schedule."""
        if (self.every is None) == (self.pattern is None):
            raise InvalidValue("every", self.every, "must be given, or pattern, and not both")
        for field, least in (("every", 1), ("limit", 1), ("offset", 0)):
            if (value := getattr(self, field)) is not None:
                check_at_least(field, value, least)
        for field in ("start_date", "end_date"):
            if (moment := getattr(self, field)) is not None:
                check_moment(field, moment)
        try:
            zone_of(self.tz)
        except UnreadablePattern:
            raise InvalidValue("tz", self.tz, "must be a time zone such as Europe/Berlin") from None
        if self.pattern is not None:
            try:
                parse(self.pattern, "")
            except UnreadablePattern as error:
                raise InvalidValue("pattern", self.pattern, f"must be five or six fields of cron: {error}") from None

    @property
    def members(self) -> dict[str, Any]:
        """Give it as Node has it."""
        values = {
            "every": self.every,
            "pattern": self.pattern,
            "tz": self.tz,
            "limit": self.limit,
            "offset": self.offset if self.every else None,
            "startDate": _millis(self.start_date),
            "endDate": _millis(self.end_date),
        }
        return {name: value for name, value in values.items() if value is not None}


def _millis(moment: datetime | None) -> int | None:
    return None if moment is None else micros_of(moment) // 1000


def options_of(kind: type[T], given: dict[str, Any]) -> T:
    """Read options that were given by name."""
    known = kind.__struct_fields__
    for name, value in given.items():
        if name not in known:
            raise InvalidValue(name, value, f"is no option of BullMQ that we know; there are {', '.join(known)}")
    return kind(**given)
