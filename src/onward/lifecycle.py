"""The life of a job, as one table and one decision. Pure: no store, no clock, no I/O.

A job is always in exactly one :class:`JobStatus`. It moves by a :class:`Move`, and :data:`MOVES` says from where to
where: that table is the specification. Engines guard each move in the store's own statement, and the conformance suite
is generated from the table: every state times every move, on every engine.

What becomes of a run is decided once, by :func:`decide`; engines only apply the :class:`Outcome` it gives.
"""

from __future__ import annotations

import random as _random
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum, StrEnum
from typing import Final, Literal, Protocol

import msgspec

from onward.backoff import DEFAULT_BACKOFF, Backoff


class JobStatus(StrEnum):
    """Where a job is in its life (O1)."""

    SCHEDULED = "scheduled"
    """Its time has not come: delayed, or waiting to be tried again."""
    BLOCKED = "blocked"
    """Waits for other jobs."""
    PENDING = "pending"
    """Ready: the next free worker may claim it."""
    CLAIMED = "claimed"
    """Held by a worker whose handler has not started."""
    RUNNING = "running"
    """Held by a worker whose handler has started."""
    COMPLETED = "completed"
    """The handler returned."""
    FAILED = "failed"
    """Ended at once, without the attempts being used up: no handler after the grace period, do-not-retry."""
    DEAD_LETTER = "dead_letter"
    """Attempts or crashes used up. Stays until replayed or purged."""
    CANCELLED = "cancelled"
    """Taken back by a person, by its own handler, or because it expired before it started."""


StatusName = Literal[
    "scheduled", "blocked", "pending", "claimed", "running", "completed", "failed", "dead_letter", "cancelled"
]
"""The values of :class:`JobStatus` as text, for type checkers."""


class Move(StrEnum):
    """One verb, one meaning, everywhere: in Python, in SQL, in events, on the command line."""

    PROMOTE = "promote"
    UNBLOCK = "unblock"
    CLAIM = "claim"
    START = "start"
    COMPLETE = "complete"
    RETRY = "retry"
    FAIL = "fail"
    BURY = "bury"
    SNOOZE = "snooze"
    RELEASE = "release"
    CANCEL = "cancel"
    REPLAY = "replay"


S = JobStatus
WAITING: Final = frozenset({S.SCHEDULED, S.BLOCKED, S.PENDING})
HELD: Final = frozenset({S.CLAIMED, S.RUNNING})
FINISHED: Final = frozenset({S.COMPLETED, S.FAILED, S.DEAD_LETTER, S.CANCELLED})

MOVES: Final[Mapping[Move, tuple[frozenset[JobStatus], JobStatus]]] = {
    Move.PROMOTE: (frozenset({S.SCHEDULED}), S.PENDING),
    Move.UNBLOCK: (frozenset({S.BLOCKED}), S.PENDING),
    Move.CLAIM: (frozenset({S.PENDING}), S.CLAIMED),
    Move.START: (frozenset({S.CLAIMED}), S.RUNNING),
    Move.COMPLETE: (frozenset({S.RUNNING}), S.COMPLETED),
    Move.RETRY: (frozenset({S.RUNNING}), S.SCHEDULED),
    Move.FAIL: (HELD, S.FAILED),  # no handler: a job may end so before it starts
    Move.BURY: (frozenset({S.RUNNING}), S.DEAD_LETTER),
    Move.SNOOZE: (frozenset({S.RUNNING}), S.SCHEDULED),
    Move.RELEASE: (HELD, S.PENDING),
    Move.CANCEL: (WAITING | HELD, S.CANCELLED),
    Move.REPLAY: (FINISHED - {S.COMPLETED}, S.PENDING),
}
"""From which states a move may be made, and the state it leads to."""

FENCED: Final = frozenset({Move.START, Move.COMPLETE, Move.RETRY, Move.FAIL, Move.BURY, Move.SNOOZE, Move.RELEASE})
"""The moves of a worker on a job it holds: each matches the claim in the store's own statement."""

EXPIRED: Final = "expired: not started in time"
"""The reason that engines record for a job that had not started by its ``start_by``."""
MAX_ATTEMPTS: Final = 5
"""How many runs a job has unless told otherwise (H2)."""
MAX_CRASHES: Final = 3
"""How many child processes a job may take down, alone in each, before its task's ``on_crash`` applies."""
HOLD_TIME: Final = timedelta(days=36_500)
"""How far ahead a job is scheduled that waits for a person to release it."""

CrashPolicy = Literal["dead_letter", "retry", "fail", "hold"]
"""What becomes of a job that has used up its crashes: a dead letter; another attempt, as after any failure; failed; or
scheduled far ahead, until a person releases it with ``jobs.edit(job, run_at=...)``, cancels or deletes it."""


def can_retry(status: JobStatus, attempts: int, max_attempts: int = MAX_ATTEMPTS) -> bool:
    """Say whether a job in this state has an attempt left (H2)."""
    return status not in {JobStatus.COMPLETED, JobStatus.RUNNING} and attempts < max_attempts


def _storable(text: str) -> str:
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


class Failure(msgspec.Struct, frozen=True):
    """Why a run failed: text only, so that any store can keep it and nothing is ever rebuilt from it."""

    error_type: str
    """The class of the exception, or a word of ours such as ``NoHandler``."""
    message: str
    traceback: str | None = None

    def __post_init__(self) -> None:
        """Make it text that every store can keep: an outcome must never be lost over the wording of an error."""
        for field in ("error_type", "message", "traceback"):
            text = getattr(self, field)
            if text is not None:
                msgspec.structs.force_setattr(self, field, _storable(text))

    def __str__(self) -> str:
        """Show it as one line, as ``last_error`` does."""
        return f"{self.error_type}: {self.message}" if self.message else self.error_type


# What a run gave ------------------------------------------------------------------------------------------------------


class Returned(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The handler came back with a value."""

    result: str | None = None
    """As JSON; None where nothing is to be kept."""


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The handler raised. ``delay`` overrides the job's backoff; ``retryable`` False ends the job at once."""

    failure: Failure
    retryable: bool = True
    delay: timedelta | None = None


class Snoozed(msgspec.Struct, frozen=True, tag=True):
    """The handler asked to be called again later. It does not cost an attempt."""

    delay: timedelta
    is_put_back: bool = False
    """No handler ran: the worker does not have the task."""


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """The handler took the job back."""

    reason: str


class Interrupted(msgspec.Struct, frozen=True, tag=True):
    """The worker gave the job up through no fault of the job. It does not cost an attempt."""


class Crashed(msgspec.Struct, frozen=True, tag=True):
    """The child process died in which the job ran alone, and the crash is counted.

    ``policy`` is what to do now; None: the job has crashes left, and runs again at no cost.
    """

    failure: Failure
    policy: CrashPolicy | None = None


Result = Returned | Raised | Snoozed | Stopped | Interrupted | Crashed


class Commit(Enum):
    """What the store says of a transaction in which a handler completed its job."""

    COMMITTED = "committed"
    LOST = "lost"
    """The job has ended otherwise: it was cancelled, or another run ended it."""
    UNKNOWN = "unknown"
    """The store did not answer. If the transaction was rolled back, the lease runs out and the job runs again."""


class SelfCompleted(msgspec.Struct, frozen=True, tag=True):
    """The handler completed the job in a transaction of its own: there is no outcome to store."""

    commit: Commit
    result: str | None = None
    """As JSON, as the handler gave it."""


# What becomes of the job ----------------------------------------------------------------------------------------------


class Complete(msgspec.Struct, frozen=True, gc=False):
    """It is done."""

    result: str | None = None


class Retry(msgspec.Struct, frozen=True):
    """Try again after ``delay``, counted by the store's clock from when it stores the outcome."""

    delay: timedelta
    failure: Failure


class Fail(msgspec.Struct, frozen=True):
    """It ends here, whatever attempts are left."""

    failure: Failure


class Bury(msgspec.Struct, frozen=True):
    """Its attempts are used up: a dead letter."""

    failure: Failure


class Snooze(msgspec.Struct, frozen=True):
    """Call again after ``delay``; the attempt is given back."""

    delay: timedelta
    is_put_back: bool = False
    """No handler ran: the worker does not have the task."""


class Release(msgspec.Struct, frozen=True):
    """Back to ready at once; the attempt is given back."""


class Cancel(msgspec.Struct, frozen=True):
    """It is taken back."""

    reason: str

    def __post_init__(self) -> None:
        """Make the reason text that every store can keep."""
        msgspec.structs.force_setattr(self, "reason", _storable(self.reason))


Outcome = Complete | Retry | Fail | Bury | Snooze | Release | Cancel

MOVE_OF: Final[Mapping[type[Outcome], Move]] = {
    Complete: Move.COMPLETE,
    Retry: Move.RETRY,
    Fail: Move.FAIL,
    Bury: Move.BURY,
    Snooze: Move.SNOOZE,
    Release: Move.RELEASE,
    Cancel: Move.CANCEL,
}
"""Which move an outcome makes."""


class Run(Protocol):
    """What :func:`decide` needs to know of the job: its counts as they stand after this run has started."""

    @property
    def attempts(self) -> int: ...  # noqa: D102
    @property
    def max_attempts(self) -> int: ...  # noqa: D102
    @property
    def backoff(self) -> Backoff | None: ...  # noqa: D102


def decide(run: Run, result: Result, *, random: Callable[[], float] = _random.random) -> Outcome:
    """Say what becomes of a job, given how its run ended (H3).

    Delays are durations, not moments: the store adds its own clock when it stores the outcome (O6), so that a worker
    whose clock is wrong delays nothing.
    """
    if isinstance(result, Returned):  # ahead of the others, which are few
        return Complete(result.result)
    match result:
        case Raised(failure, retryable=False):
            return Fail(failure)
        case Raised(failure, delay=delay):
            if not can_retry(JobStatus.FAILED, run.attempts, run.max_attempts):
                return Bury(failure)
            if delay is None:
                delay = (run.backoff or DEFAULT_BACKOFF).delay(run.attempts, random=random)
            return Retry(delay, failure)
        case Snoozed(delay, is_put_back):
            return Snooze(delay, is_put_back)
        case Stopped(reason):
            return Cancel(reason)
        case Interrupted() | Crashed(policy=None):
            return Release()
        case Crashed(failure, policy="retry"):
            return decide(run, Raised(failure), random=random)
        case Crashed(failure, policy="fail"):
            return Fail(failure)
        case Crashed(failure, policy="hold"):
            return Retry(HOLD_TIME, failure)
        case Crashed(failure):
            return Bury(failure)
