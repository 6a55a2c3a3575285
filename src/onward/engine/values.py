"""The values that pass through the seam: frozen, typed, and the same for every engine."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from onward.backoff import Backoff
from onward.clock import MICROSECOND
from onward.errors import InvalidValue
from onward.job import JobRef
from onward.lifecycle import MAX_ATTEMPTS, JobStatus, Outcome
from onward.schedule import Schedule

T = TypeVar("T")

DEFAULT_LEASE: Final = timedelta(seconds=30)

ANY_TYPE: Final = "*"
"""Among the types of a worker: it has a catch-all task."""

Token = tuple[int | str, ...]
"""Names one claim of one job. Opaque to all but the engine that made it; every write after the claim matches it."""


# Consumer -------------------------------------------------------------------------------------------------------------


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job in a worker's hands, with what is needed to run it and no more."""

    ref: JobRef
    token: Token
    type: str
    payload: str
    """JSON text."""
    attempts: int
    """Counting this run, where it has started."""
    started: bool
    """False: claimed ahead of a free slot; :meth:`Consumer.start` must come before the handler."""
    max_attempts: int = MAX_ATTEMPTS
    crashes: int = 0
    is_suspect: bool = False
    """Must run alone in a child process."""
    org_id: str | None = None
    priority: int = 0
    backoff: Backoff | None = None
    trace: str | None = None
    """As in :class:`~onward.job.NewJob`."""
    put_backs: int = 0
    """How many times in a row workers without its task have put the job back, where that is limited (PGMQ)."""
    wait_seconds: float = 0.0
    """Seconds between becoming ready and being claimed, by the store's clock."""
    start_within: float | None = None
    """On a limited queue: the handler must start this many seconds after the claim was asked for, or the job be
    released. A rate is counted at the handler's start; a worker that was stopped in between would start in somebody
    else's window."""
    heartbeat_within: float | None = None
    """Seconds within which the store expects the next heartbeat of this job, where the job itself sets them."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker can take now."""

    worker_id: str
    queues: tuple[str, ...] = ("*",)
    """Names and patterns. A claim is fair across all queues that match."""
    slots: int = 1
    """Handlers that can start at once: so many jobs come started."""
    prefetch_started: int = 0
    """For so many more a handler is free in a moment, runs being so short: they may come started, or claimed. Never
    from a limited queue."""
    prefetch_claimed: int = 0
    """So many more may come claimed, to be started when a slot is free. Never from a limited queue."""
    lease: timedelta = DEFAULT_LEASE
    """Where the queue does not say otherwise."""
    alone: bool = False
    """One suspect may come, to run alone in a child process, and nothing but it."""
    gives_way: bool = False
    """Other workers come first: no job is claimed for this one before it asks."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim gave."""

    claims: tuple[Claim, ...] = ()
    has_suspects: bool = False
    """A suspect waits in these queues: ask for it with ``alone``."""
    retry_after: float | None = None
    """Seconds until a rate-limited queue has its next slot; None: nothing is known to come by itself."""
    is_shared_load: bool = False
    """Other workers share the store: whoever asked should be sparing with it. Told where it makes a difference."""


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """How the run of one claim ended."""

    claim: Claim
    outcome: Outcome
    seconds: float = 0.0
    """How long it took."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One round trip: outcomes in, then starts, then new claims out, in that order."""

    settlements: tuple[Settlement, ...] = ()
    starts: tuple[Claim, ...] = ()
    request: ClaimRequest | None = None


class Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. A lost claim is an answer, not an exception."""

    lost: frozenset[Token] = frozenset()
    """Settlements that were not recorded, and starts that were not made: the claim is somebody else's, or nobody's."""
    busy: frozenset[Token] = frozenset()
    """Those that were not, because somebody's transaction holds the job: they are to be said again, a little later."""
    claimed: Claims = Claims()


class WorkerCommand(StrEnum):
    """What a worker can be told from afar. It obeys when it has the answer to its next heartbeat."""

    QUIET = "quiet"
    """Claim no more jobs; those that it holds go on."""
    RESUME = "resume"
    """Claim jobs again."""
    STOP = "stop"
    """Stop in good order, as after SIGTERM."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it registers itself (O5)."""

    id: str
    hostname: str
    pool_size: int
    version: str
    queues: tuple[str, ...] = ("*",)
    types: tuple[str, ...] = ()
    """The tasks it has handlers for; :data:`ANY_TYPE` among them: it has a catch-all task."""
    started_at: datetime | None = None
    last_heartbeat: datetime | None = None
    is_leader: bool = False
    leader_until: datetime | None = None
    is_quiet: bool = False
    """It has been told to claim no more jobs, or to stop."""


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a heartbeat."""

    lost: frozenset[Token] = frozenset()
    """Held by us no longer."""
    cancelled: frozenset[Token] = frozenset()
    """Of those: taken back on request, so the handler should stop."""
    command: WorkerCommand | None = None
    """What the worker has been told, in every answer until it is told otherwise; None: to claim jobs."""


class SignalKind(StrEnum):
    """Why a worker may want to look at the store."""

    WORK = "work"
    CHANGED = "changed"
    CANCELLED = "cancelled"
    DUE = "due"
    """A job's time comes sooner than whoever leads may know."""


class Signal(msgspec.Struct, frozen=True):
    """Something has changed in the store. A hint: never the only way to learn of it."""

    kind: SignalKind
    ref: JobRef | None = None


# Reader ---------------------------------------------------------------------------------------------------------------


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs: every field given must hold; nothing given is every job."""

    refs: tuple[JobRef, ...] | None = None
    ids: tuple[str, ...] | None = None
    """Where ids are global."""
    queues: tuple[str, ...] | None = None
    """Names and patterns."""
    types: tuple[str, ...] | None = None
    status: frozenset[JobStatus] | None = None
    """Any of these."""
    org_id: str | None = None
    orgs: tuple[str, ...] | None = None
    """Any of these; a job of no organisation matches none of them. Empty: no job at all."""
    batch: str | None = None
    worker_id: str | None = None
    error_contains: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    finished_before: datetime | None = None


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Some of what was found, and where to go on."""

    items: tuple[T, ...] = ()
    next_cursor: str | None = None
    """Pass it as ``cursor`` to read the next page; None: this is the last page."""


class GroupBy(StrEnum):
    """What to count by."""

    STATUS = "status"
    QUEUE = "queue"
    TYPE = "type"
    ORG = "org_id"


class LogLine(msgspec.Struct, frozen=True):
    """A line that a handler wrote about its job."""

    at: datetime
    line: str


# Queues ---------------------------------------------------------------------------------------------------------------


_RATE: Final = re.compile(r"(\d{1,9})\s*/\s*(\d{1,4})?\s*(s|sec|second|m|min|minute|h|hour|d|day)s?")
_PERIODS: Final = {
    "s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)
}  # fmt: skip


class Rate(msgspec.Struct, frozen=True):
    """At most ``count`` handler starts in any ``period``, across all workers and restarts.

    ``burst`` lets so many start at once after a quiet time. The promise for any window stays, so the sustained rate is
    lower by (burst - 1) / count.
    """

    count: int
    period: timedelta = timedelta(minutes=1)
    burst: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be kept."""
        if type(self.count) is not int or self.count < 1:
            raise InvalidValue("rate.count", self.count, "must be a whole number of at least 1")
        if not timedelta(milliseconds=10) <= self.period <= timedelta(days=366):
            raise InvalidValue("rate.period", self.period, "must be between 10 ms and a year")
        if type(self.burst) is not int or not 1 <= self.burst <= self.count:
            raise InvalidValue("rate.burst", self.burst, f"must be between 1 and rate.count ({self.count})")

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read a rate such as ``600/min``, ``10/s`` or ``5000/2h``."""
        match = _RATE.fullmatch(text.strip())
        if match is None:
            raise InvalidValue("rate", text, "must be a number of starts and a period, such as 600/min, 10/s or 50/2h")
        count, number, unit = match.groups()
        return cls(int(count), int(number or 1) * _PERIODS[unit[0]])

    @property
    def slack(self) -> timedelta:
        """How much longer than ``period`` the starts of ``count + 1`` jobs are planned to take.

        Half of it lets a worker that came late for a slot catch up, so that the rate is used; half of it is the time
        that a handler may take from its slot to its first line. Together they keep any window within the count.
        """
        return min(timedelta(microseconds=self.period // MICROSECOND // 50), timedelta(seconds=2))

    @property
    def spacing(self) -> timedelta:
        """The time between two slots."""
        return (self.period + self.slack) / (self.count - self.burst + 1)


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long finished jobs are kept; None: until purged. A job goes when its age or its queue's count says so.

    Where it goes is the archive, if the engine has one: out of listings, counts and keys, but there to be looked up.
    """

    completed: timedelta | None = timedelta(days=7)
    completed_count: int | None = None
    failed: timedelta | None = None
    """Failed jobs and dead letters."""
    failed_count: int | None = None
    cancelled: timedelta | None = timedelta(days=7)
    archived: timedelta | None = timedelta(days=30)
    """From then on; zero: not at all."""

    def __post_init__(self) -> None:
        """Refuse what cannot be kept to."""
        for field in ("completed", "failed", "cancelled", "archived"):
            age = getattr(self, field)
            if age is not None and (not isinstance(age, timedelta) or age < timedelta(0)):
                raise InvalidValue(
                    f"retention.{field}", age, "must be a timedelta of zero or more, or None: until purged"
                )
        for field in ("completed_count", "failed_count"):
            kept = getattr(self, field)
            if kept is not None and (type(kept) is not int or kept < 0):
                raise InvalidValue(f"retention.{field}", kept, "must be a whole number of at least 0, or None: all")


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue is told to do."""

    paused: bool = False
    pause_reason: str | None = None
    """Why it is paused, where a reason was given."""
    paused_by: str | None = None
    """The actor, as in :class:`~onward.engine.access.AuditRecord`."""
    paused_at: datetime | None = None
    rate: Rate | None = None
    global_concurrency: int | None = None
    """Jobs of this queue held at once, by all workers together."""
    weight: int = 1
    """Its share of a claim over several queues."""
    lease: timedelta | None = None
    """How long a silent worker keeps its jobs; None: as the worker asks, 30 s."""
    max_attempts: int | None = None
    """For jobs that do not say."""
    backoff: Backoff | None = None
    """For jobs that do not say."""
    retention: Retention = Retention()


class QueueChange(msgspec.Struct, frozen=True, kw_only=True):
    """Settings to be changed; what is not given stays as it is."""

    paused: bool | UnsetType = UNSET
    """A queue that is paused already keeps the time, and the reason and author unless others are given."""
    pause_reason: str | UnsetType = UNSET
    """With ``paused=True`` only."""
    paused_by: str | UnsetType = UNSET
    """The actor; with ``paused=True`` only. Not given: that of the audit record, if there is one."""
    rate: Rate | UnsetType | None = UNSET
    global_concurrency: int | UnsetType | None = UNSET
    weight: int | UnsetType = UNSET
    lease: timedelta | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET
    backoff: Backoff | UnsetType | None = UNSET
    retention: Retention | UnsetType = UNSET


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it stands."""

    name: str
    settings: QueueSettings = QueueSettings()
    counts: dict[JobStatus, int] = {}
    oldest_ready_at: datetime | None = None
    """When the job that has waited longest became ready."""
    next_permit_at: datetime | None = None
    """On a limited queue: when the next job may start."""


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """What may be changed of a job that waits."""

    priority: int | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    run_at: datetime | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET


class Changed(msgspec.Struct, frozen=True):
    """A job that an operator's verb has moved, and the state it had before."""

    ref: JobRef
    before: JobStatus


# Maintenance ----------------------------------------------------------------------------------------------------------


class Term(msgspec.Struct, frozen=True):
    """One tenure of one leader. Every write that only a leader may do matches it (O6)."""

    number: int
    leader_id: str
    until: datetime


class MaintenanceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one step of upkeep did."""

    changed: int = 0
    queues: frozenset[str] = frozenset()
    """Where work has become ready."""
    more: bool = False
    """It stopped at its limit: call again at once."""
    next_in: float | None = None
    """Seconds until there will be something to do; None: unknown."""
    buried: int = 0


class DueSchedules(msgspec.Struct, frozen=True, kw_only=True):
    """The schedules whose turn has come."""

    now: datetime
    """What the store's clock says."""
    schedules: list[Schedule]
    next_in: float | None = None
    """Seconds until the turn of another; None: there is none."""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine stands on."""

    engine: str
    server: str
    schema: int | None = None
    """The newest migration applied; None where the schema is not ours."""
    now: datetime | None = None
    """What the store's clock says."""
    durability: str = ""
    """What survives a power cut, in plain words."""
    problems: tuple[str, ...] = ()
    """Why jobs are not run, or may be lost, until somebody acts; each with what to do."""
    warnings: tuple[str, ...] = ()
    """What may be meant so, and does harm if it is not; each with what to do."""
