"""What an engine can do, as data with a reason.

A feature is native, emulated (made up for, with a note on how) or absent (with a note on why). Asking for an absent one
raises :class:`~onward.errors.Unsupported` before anything is written; the documentation's matrix is printed from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from onward.cron import Interval, Trigger
from onward.errors import Unsupported
from onward.lifecycle import JobStatus
from onward.schedule import Missed


class Feature(StrEnum):
    """Something that a caller may ask of an engine."""

    CLAIMED_STATE = "claimed state"
    CANCELLED_STATE = "cancelled state"
    PRIORITY = "priority"
    DELAY = "delay"
    START_BY = "start_by"
    IDEMPOTENCY = "idempotency keys"
    DEDUPLICATION = "deduplication"
    THROTTLE = "throttle and debounce"
    ORGANISATIONS = "organisations"
    PAUSE = "pause"
    RATE = "rate limits"
    BURST = "burst"
    CONCURRENCY = "global concurrency"
    WEIGHT = "queue weights"
    PATTERNS = "queue patterns"
    QUEUES_BY_USE = "queues made by use"
    QUEUE_DEFAULTS = "retry defaults per queue"
    RETENTION = "retention per queue"
    ARCHIVE = "archive"
    ERROR_HISTORY = "errors of earlier attempts"
    PROGRESS = "progress"
    LOG_LINES = "log lines"
    RESULTS = "results"
    SUSPECTS = "suspects run alone"
    EDIT = "editing waiting jobs"
    REPLAY = "replay"
    TRANSACTIONS = "the caller's transaction"
    PUSH = "push"
    EVENTS = "events"
    LEADER = "leader"
    LATE_OUTCOMES = "outcomes after the lease"
    CHANGE_TIMES = "times of changes"
    READY_ORDER = "order of becoming ready"
    PROMOTION = "promotion by a leader"
    SCHEDULES = "schedules"
    INTERVALS = "schedules by interval"
    MISSED_TURNS = "policies for missed turns"
    FIRING = "schedules fired by a leader"
    WEBHOOKS = "webhooks"
    BATCHES = "batches and flows"
    USAGE = "usage"


class Level(StrEnum):
    """How a feature is there."""

    NATIVE = "native"
    EMULATED = "emulated"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Support:
    """How a feature is there, and for anything but native the note that users see."""

    level: Level
    note: str = ""

    def __post_init__(self) -> None:
        """Hold everyone to the note."""
        if self.level is not Level.NATIVE and not self.note:
            message = f"{self.level} needs a note that says how or why"
            raise ValueError(message)


NATIVE = Support(Level.NATIVE)


def emulated(note: str) -> Support:
    """Say how a feature is made up for."""
    return Support(Level.EMULATED, note)


def absent(note: str) -> Support:
    """Say why a feature is not there, and what to do instead."""
    return Support(Level.ABSENT, note)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Everything an engine says of itself."""

    engine: str
    features: Mapping[Feature, Support]
    status_aliases: Mapping[JobStatus, JobStatus]
    """States that this engine cannot tell apart from another, and which it shows instead (O1)."""
    is_shared: bool = False
    """Whether others name queues there too: a name is taken as it is, and the engine says what it allows (X5)."""

    has_global_ids: bool = True
    """Whether an id names one job of the store; False: only within its queue, so that a job is named by both (O2)."""
    max_put_backs: int | None = None
    """How many times a job whose task no worker has may be put back; None: any number. PGMQ counts every read."""
    put_back_needs_peer: bool = False
    """Whether such a job is put back only while another live worker may have its task (O8)."""

    default_missed: Missed = Missed.ONCE
    """The policy for missed turns of a schedule that names none; the only one where MISSED_TURNS is absent."""

    split_settle_threshold: int | None = None
    """From how many outcomes on it pays to settle and to claim at the same time, instead of by one exchange.

    Room that outcomes make in a limited queue is found by the next claim then. None: it never pays."""

    def __post_init__(self) -> None:
        """Leave no feature unsaid: between native and absent there is nothing."""
        unsaid = set(Feature) - set(self.features)
        if unsaid:
            message = f"{self.engine} does not say whether it has: {', '.join(sorted(unsaid))}"
            raise ValueError(message)

    def has(self, feature: Feature) -> bool:
        """Say whether a feature is there, natively or made up for."""
        return self.features[feature].level is not Level.ABSENT

    def require(self, feature: Feature) -> None:
        """Refuse what is absent."""
        support = self.features[feature]
        if support.level is Level.ABSENT:
            raise Unsupported(self.engine, feature, support.note)

    def check_trigger(self, trigger: Trigger) -> None:
        """Refuse an interval where schedules have cron expressions only."""
        if isinstance(trigger, Interval):
            self.require(Feature.INTERVALS)

    def missed_policy(self, requested: Missed | None) -> Missed:
        """Return the policy for missed turns: the requested one, or the engine's default.

        Raises:
            Unsupported: the engine has other policies only.
        """
        if requested is None:
            return self.default_missed
        if requested is not self.default_missed:
            self.require(Feature.MISSED_TURNS)
        return requested

    def shown(self, state: JobStatus) -> JobStatus:
        """Say which state this engine shows for a job that is in ``state``."""
        return self.status_aliases.get(state, state)
