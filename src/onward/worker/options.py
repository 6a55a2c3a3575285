"""What a worker is told: which queues, how much at once, how patient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import get_args

from onward import validation
from onward.engine.values import DEFAULT_LEASE
from onward.errors import InvalidValue
from onward.lifecycle import MAX_CRASHES
from onward.worker_options import UNKNOWN_TASK_GRACE, Queues, UnknownTaskPolicy, WriteProcessPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The options of a worker, with their defaults; checked when they are made."""

    queues: Queues = ("*",)
    """Which to serve: all, some, or some with a concurrency of their own (``{"mail/*": 10, "video": 2}``)."""
    tasks: Sequence[str] = ()
    """Which tasks to run, by name; none: all. A worker takes whatever comes next in a queue, so the queues that it
    serves must then be theirs alone."""
    concurrency: int = 100
    """How many jobs may run at once, where ``queues`` does not say it."""
    process_slots: int | None = None
    """How many ``executor="process"`` tasks may run at once; None: one for each processor."""
    lease: timedelta = DEFAULT_LEASE
    """How long the store keeps our jobs for us when it hears nothing, where the queue does not say otherwise."""
    grace: timedelta = timedelta(seconds=25)
    """How long running jobs are waited for at a stop, the time to clean up after a cancellation included (a fifth of
    it, up to 5 s): by default less than the 30 s after which container hosts kill."""
    poll: timedelta = timedelta(seconds=1)
    """How long new work can go unseen when a signal was missed."""
    leader_lease: timedelta = timedelta(seconds=30)
    """How long a leader's term lasts without renewal (O6)."""
    max_crashes: int = MAX_CRASHES
    """How many child processes a suspect may take down before its task's ``on_crash`` applies."""
    unknown_tasks: UnknownTaskPolicy = "wait"
    """Whether a job whose task this worker does not have is put back (``wait``) or fails at once (``fail``)."""
    unknown_task_grace: timedelta = UNKNOWN_TASK_GRACE
    """How long such a job is put back before it fails as NoHandler (O8)."""
    burst: bool = False
    """Stop when there is no job left to run now. Delayed jobs and retries that are not due yet stay."""
    max_jobs: int | None = None
    """Stop after so many runs, for a supervisor to start afresh."""
    max_memory: int | None = None
    """Stop when the process has grown to so many megabytes (MiB), likewise."""
    give_up_after: timedelta | None = None
    """How long the store may stay away before the worker raises; None: for ever."""
    write_process: WriteProcessPolicy = "auto"
    """SQLite: whether a separate process writes for the worker, so that no handler can stop other programs' writes by
    holding Python's global lock. It costs 34 MB, and up to a quarter of the throughput of empty jobs where no processor
    is idle. ``auto``: it starts once a write transaction of the worker has been stopped for a second."""
    health_file: Path | None = None
    """Where to write signs of life, for probes."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for _, concurrency in self.pools:
            validation.check_at_least("concurrency", concurrency, 1)
        for name in ("lease", "poll", "leader_lease"):
            if getattr(self, name) <= timedelta(0):
                raise InvalidValue(name, getattr(self, name), "must be more than 0 seconds")
        validation.check_unknown_tasks(self.unknown_tasks, self.unknown_task_grace)
        if self.write_process not in get_args(WriteProcessPolicy):
            raise InvalidValue("write_process", self.write_process, "must be 'auto', 'always' or 'never'")
        if self.grace < timedelta(0):
            raise InvalidValue("grace", self.grace, "must be 0 seconds or more")
        for name in ("process_slots", "max_crashes", "max_jobs", "max_memory"):
            if getattr(self, name) is not None:
                validation.check_at_least(name, getattr(self, name), 1)

    @property
    def pools(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """The queues that share a concurrency, and that concurrency."""
        if isinstance(self.queues, str) or not self.queues:
            raise InvalidValue(
                "queues", self.queues, "must be a list of names and patterns, or a mapping of them to numbers"
            )
        if isinstance(self.queues, Mapping):
            return tuple(((pattern,), concurrency) for pattern, concurrency in self.queues.items())
        return ((tuple(self.queues), self.concurrency),)

    @property
    def patterns(self) -> tuple[str, ...]:
        """All names and patterns."""
        return tuple(pattern for patterns, _ in self.pools for pattern in patterns)

    @property
    def pool_size(self) -> int:
        """How many jobs may run at once in all."""
        return sum(concurrency for _, concurrency in self.pools)
