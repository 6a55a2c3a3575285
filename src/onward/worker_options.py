"""The keywords of ``app.worker(…)`` and ``app.work(…)``, apart from the worker itself: naming them loads no worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal, TypedDict

Queues = Sequence[str] | Mapping[str, int]
"""Names and patterns; as a mapping, each with the number of its jobs that may run at once in this worker."""


UnknownTaskPolicy = Literal["wait", "fail"]
"""What a worker does with a job whose task it does not have: put it back for another worker, or fail it at once."""

UNKNOWN_TASK_GRACE: Final = timedelta(hours=1)
"""How long such a job is put back, at no cost, before it fails as NoHandler (O8)."""

WriteProcessPolicy = Literal["auto", "always", "never"]
"""Whether a separate process writes to SQLite for a worker: from its start, or once a handler has held Python's global
lock while the worker held the write lock (``auto``)."""


class WorkerOptions(TypedDict, total=False):
    """The options of a worker. What is not given has the default of ``onward.worker.options.WorkerSettings``."""

    queues: Queues
    """Which to serve: all, some, or some with a concurrency of their own (``{"mail/*": 10, "video": 2}``)."""
    tasks: Sequence[str]
    """Which tasks to run, by name; none: all."""
    concurrency: int
    """How many jobs may run at once in this worker, where ``queues`` does not say it; 100."""
    process_slots: int | None
    """How many ``executor="process"`` tasks may run at once; None: one for each processor."""
    lease: timedelta
    """Job lease, renewed by heartbeats; 30 s."""
    grace: timedelta
    """How long to wait for running jobs at a stop; 25 s."""
    poll: timedelta
    """Polling interval behind notifications; 1 s."""
    leader_lease: timedelta
    """Length of a leader's term without renewal; 30 s."""
    max_crashes: int
    """How many child processes a suspect may take down before its task's ``on_crash`` applies; 3."""
    unknown_tasks: UnknownTaskPolicy
    """Whether a job whose task this worker does not have is put back (``wait``) or fails at once (``fail``)."""
    unknown_task_grace: timedelta
    """How long such a job is put back before it fails; 1 h."""
    burst: bool
    """Stop when there is no job left to run now. Delayed jobs and retries that are not due yet stay."""
    max_jobs: int | None
    """Stop after this many runs."""
    max_memory: int | None
    """Stop when the process has grown to this many megabytes (MiB)."""
    give_up_after: timedelta | None
    """Raise when the store has been unreachable for this long; None: never."""
    write_process: WriteProcessPolicy
    """SQLite: whether a separate process writes for the worker, so that no handler can stop other programs' writes by
    holding Python's global lock; ``auto``: once that has happened."""
    health_file: Path | None
    """Where to write heartbeats for probes."""
