"""The verbs of the queue: all that a store must be able to do, cut where the queue's own words are.

Roles, so that each caller depends on the narrowest. Batches are the primitive. The contract has no behaviour: an
engine implements a verb or declares the feature absent in its capabilities, and there is nothing between. Six roles
every engine has; :class:`ScheduleStore` those that declare schedules, :class:`BatchStore` those that declare batches,
:class:`UsageStore` those that declare usage, :class:`ArchiveStore` those that declare one, :class:`EventCursors` those
that declare webhooks, :class:`ForeignWorkers` those that set ``put_back_needs_peer``.

Not here, on purpose: retry policy (:func:`onward.lifecycle.decide`), when a schedule is due again
(:func:`onward.schedule.firing_of`), validation and refusals (:mod:`onward.engine.checked`), telemetry, connections.

Time is the store's: leases, due times and rates are compared on its clock, and callers pass durations.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from onward.batches.values import BatchInfo, Dependency, NewBatch
from onward.engine.access import AccessSession, AccessToken, AuditQuery, AuditRecord
from onward.engine.capabilities import Capabilities
from onward.engine.values import (
    Changed,
    Claim,
    ClaimRequest,
    Claims,
    DueSchedules,
    EngineInfo,
    Exchange,
    Exchanged,
    GroupBy,
    HeartbeatReply,
    JobChange,
    JobFilter,
    LogLine,
    MaintenanceResult,
    Page,
    QueueChange,
    QueueInfo,
    Settlement,
    Signal,
    Term,
    Token,
    WorkerCommand,
    WorkerInfo,
)
from onward.events import AnyEvent, EventPage
from onward.job import Enqueued, Job, JobRef, NewJob
from onward.metering import Usage, UsageQuery
from onward.schedule import Firing, Schedule


class Producer(Protocol):
    """Puts jobs in."""

    async def enqueue(
        self, jobs: Sequence[NewJob], *, connection: object | None = None, audit: AuditRecord | None = None
    ) -> list[Enqueued]:
        """Store jobs, all or none, and answer for each which job stands for it now.

        Durable when it returns. With ``connection``, a connection of the caller's, the jobs are part of the caller's
        transaction: they exist if and only if it commits. ``audit``: see :class:`AccessStore`.
        """
        ...

    def enqueue_sync(self, jobs: Sequence[NewJob], *, connection: object | None = None) -> list[Enqueued]:
        """Do the same from code without an event loop."""
        ...


class Consumer(Protocol):
    """Takes jobs, keeps them, and says how they ended. Every write names the claim it rests on."""

    async def claim(self, request: ClaimRequest) -> Claims:
        """Take ready jobs: the higher priority first, then the longer ready; fair across the queues that match."""
        ...

    async def start(self, claims: Sequence[Claim]) -> frozenset[Token]:
        """Record that the handlers of claimed jobs start now, and answer which claims are lost."""
        ...

    async def settle(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """Record how runs ended, and answer which claims were lost: their outcomes were not recorded."""
        ...

    def settle_sync(self, settlements: Sequence[Settlement], *, connection: object | None = None) -> frozenset[Token]:
        """Do the same from code without an event loop."""
        ...

    async def exchange(self, exchange: Exchange) -> Exchanged:
        """Settle, start and claim in one round trip."""
        ...

    async def heartbeat(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """Register the worker or say it is alive, extend the leases of what it holds, and answer what it has lost.

        Called from a thread of its own too: see :meth:`heartbeat_sync`.
        """
        ...

    def heartbeat_sync(self, worker: WorkerInfo, claims: Sequence[Claim]) -> HeartbeatReply:
        """Do the same from a thread, so that a handler which blocks the loop does not lose its jobs."""
        ...

    async def deregister(self, worker_id: str) -> None:
        """Take the worker off the list. Touches no job."""
        ...

    async def report(
        self, claim: Claim, *, progress: int | None = None, message: str | None = None, lines: Sequence[str] = ()
    ) -> bool:
        """Store progress and log lines of a job that is held, and answer whether it is."""
        ...

    async def record_crash(self, claim: Claim) -> bool:
        """Set a suspect's ``crashes`` to one more than its claim has, and answer whether it is held. Idempotent."""
        ...

    def signals(self, queues: Sequence[str]) -> AsyncIterator[Signal]:
        """Tell when something changes that a worker of these queues may care for. Hints: polling must do without."""
        ...


class Reader(Protocol):
    """Looks, and changes nothing."""

    async def get(self, ref: JobRef | str) -> Job | None:
        """Find one job by its name, or by its id where ids are global."""
        ...

    async def find(
        self, which: JobFilter, *, cursor: str | None = None, limit: int = 50, newest_first: bool = True
    ) -> Page[Job]:
        """List jobs by when they were created."""
        ...

    async def count(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """Count jobs."""
        ...

    async def queues(self, pattern: str = "*") -> list[QueueInfo]:
        """List queues with their settings and depth."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """List the workers that have registered and not gone."""
        ...

    async def logs(self, ref: JobRef) -> list[LogLine]:
        """Read what a job's handler has written."""
        ...

    async def events(
        self, queues: Sequence[str], *, cursor: str | None = None, types: frozenset[str] | None = None
    ) -> AsyncGenerator[AnyEvent, None]:
        """Begin to tell what happens to jobs, in the order of commit, without an end.

        When it returns, it has begun: what is committed from then on is told of. With ``cursor``, that of an
        event, or ``OLDEST``, all that came after that is told first. An event may come twice to whoever goes on from a
        cursor, and none is left out; a cursor older than what the store keeps is refused. ``types`` are the words of
        events; None: all.
        """
        ...


class Admin(Protocol):
    """The buttons that people press. Guarded like every other move; what may not be moved stays."""

    async def cancel(
        self, which: JobFilter, *, reason: str = "cancelled", limit: int = 1000, audit: AuditRecord | None = None
    ) -> list[Changed]:
        """Take jobs back. A running one is taken from its worker, which learns of it with its next pulse."""
        ...

    async def replay(self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None) -> list[Changed]:
        """Give failed, buried and cancelled jobs a new life: ready now, with all their attempts."""
        ...

    async def delete(self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None) -> list[Changed]:
        """Remove jobs and their keys. A held job stays."""
        ...

    async def edit(self, ref: JobRef, change: JobChange, *, audit: AuditRecord | None = None) -> Job | None:
        """Change a job that waits, and answer what it is now; None: there is none, or it does not wait."""
        ...

    async def configure(self, queue: str, change: QueueChange, *, audit: AuditRecord | None = None) -> QueueInfo:
        """Change what a queue is told to do; makes the queue if there is none."""
        ...

    async def command_worker(self, worker_id: str, command: WorkerCommand, *, audit: AuditRecord | None = None) -> bool:
        """Tell a worker to claim no more jobs, to claim again, or to stop; answer whether it is registered.

        The worker learns of it with the answer to its next heartbeat, within a quarter of its lease.
        """
        ...


class Maintenance(Protocol):
    """What one worker does for all. Each write matches the leader's term in its own statement (O6)."""

    async def elect(self, candidate: str, *, lease: timedelta, current_term: Term | None = None) -> Term | None:
        """Become leader if there is none, or stay it: renewing matches the exact term. None: somebody else leads."""
        ...

    async def resign(self, term: Term) -> None:
        """Give a term up; of any other term, nothing happens."""
        ...

    async def promote(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """Make what is due ready, cancel what has expired before it started, go on with batches left undone."""
        ...

    async def rescue(self, term: Term, *, lease: timedelta, max_crashes: int, limit: int = 1000) -> MaintenanceResult:
        """Give back jobs whose lease has run out, looking at nothing but the lease; forget workers gone silent.

        A job whose lease has run out so in two runs in a row is a suspect from then on. ``max_crashes`` bounds how
        often that may happen to a job on engines without suspects.
        """
        ...

    async def prune(self, term: Term, *, limit: int = 1000) -> MaintenanceResult:
        """Archive finished jobs that their queue no longer keeps, remove what was archived long enough; roll usage up.

        ``changed`` counts those that are no longer kept.
        """
        ...


class ScheduleStore(Protocol):
    """Keeps what is enqueued again and again."""

    async def schedules(self) -> list[Schedule]:
        """List all schedules, by name."""
        ...

    async def save_schedule(self, schedule: Schedule, *, audit: AuditRecord | None = None) -> Schedule:
        """Make a schedule, or change the one of that name, and answer what it is now.

        One that goes on in the same trigger keeps its next turn: what it has missed is not forgotten.
        """
        ...

    async def delete_schedule(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """Remove a schedule. The jobs that it made stay."""
        ...

    async def due_schedules(self, *, limit: int = 100) -> DueSchedules:
        """List the schedules whose turn has come, by the store's clock."""
        ...

    async def fire(self, schedule: Schedule, firing: Firing) -> list[Enqueued] | None:
        """Add the jobs of a turn and set the next one, in one transaction.

        None, and nothing is done: the next turn is no longer the one that ``schedule`` says, since somebody else has
        fired or changed it.
        """
        ...


class BatchStore(Protocol):
    """Keeps sets of jobs, some of which may wait for others.

    What the end of a job means for its batch and for those that wait for it is done with it or soon after, by whoever
    ended it; what was left undone by a crash, :meth:`Maintenance.promote` goes on with.
    """

    async def save_batch(
        self,
        batch: NewBatch,
        jobs: Sequence[NewJob] = (),
        *,
        connection: object | None = None,
        audit: AuditRecord | None = None,
    ) -> list[Enqueued]:
        """Make a batch, or change the one of that name, and add jobs to it, all in one transaction."""
        ...

    async def batches(
        self, *, names: Sequence[str] | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[BatchInfo]:
        """List batches, the newest first."""
        ...

    async def delete_batch(self, name: str, *, audit: AuditRecord | None = None) -> bool:
        """Forget a batch that has finished. Its jobs stay."""
        ...

    async def dependencies(self, name: str) -> list[Dependency]:
        """List which jobs of a batch wait for which."""
        ...

    async def dependency_jobs(self, ref: JobRef) -> list[Job]:
        """Read the jobs that a job has waited for, in the order in which it named them; those still kept."""
        ...


class UsageStore(Protocol):
    """Keeps the account of what was run."""

    async def record_usage(self, usage: Sequence[Usage]) -> None:
        """Add counts of runs to those of the present minute."""
        ...

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """Sum up runs, the oldest span first."""
        ...


class ArchiveStore(Protocol):
    """Keeps ended jobs for a while after their queue no longer does."""

    async def archived(self, which: JobFilter, *, cursor: str | None = None, limit: int = 50) -> Page[Job]:
        """List archived jobs, the last one first."""
        ...

    async def count_archived(self, which: JobFilter, *, by: GroupBy) -> Mapping[str, int]:
        """Count archived jobs."""
        ...

    async def purge_archived(
        self, which: JobFilter, *, limit: int = 1000, audit: AuditRecord | None = None
    ) -> list[Changed]:
        """Remove archived jobs before their time, and answer which."""
        ...


class EventCursors(Protocol):
    """Lets events be read on by whoever is there, for something that must hear of each of them."""

    async def acquire_cursor(self, name: str, holder: str, *, lease: timedelta, anew: bool = False) -> str | None:
        """Hold a bookmark for a while, and answer the cursor that it stands at; None: somebody else holds it.

        One that is new stands at now, and so does one that is put there ``anew``. While it is held, events are
        recorded.
        """
        ...

    async def read_events(
        self, queues: Sequence[str], *, cursor: str, types: frozenset[str] | None = None, limit: int = 500
    ) -> EventPage:
        """Read what came after a cursor, and wait for nothing. A cursor older than what the store keeps is refused."""
        ...

    async def commit_cursor(self, name: str, holder: str, cursor: str) -> bool:
        """Put a bookmark further on, and answer whether it is still held by who does."""
        ...


class AccessStore(Protocol):
    """Keeps who may use the server, and what they have changed. Out of reach for producers and workers (S2, S5).

    A verb that takes ``audit`` writes that record in the transaction of its change, and not without it. On Redis, which
    has no such transaction, the record is written first: there may be a record of a change that failed, and never a
    change without a record. Where nothing was changed, the record is written all the same, with a count of 0.
    The engine sets the count: of jobs that the verb has added or changed, else 1 for a change and 0 for none.
    """

    async def save_token(self, token: AccessToken, *, audit: AuditRecord | None = None) -> None:
        """Add a token.

        Raises:
            InvalidValue: there is a token with this id.
        """
        ...

    async def tokens(self) -> list[AccessToken]:
        """List all tokens, the newest first; revoked and expired ones too, until they are pruned."""
        ...

    async def find_token(self, token_id: str) -> AccessToken | None:
        """Read a token, valid or not."""
        ...

    async def revoke_token(self, token_id: str, *, audit: AuditRecord | None = None) -> bool:
        """Make a token invalid from now on and end its sessions; answer whether it was valid."""
        ...

    async def touch_token(self, token_id: str) -> None:
        """Note that a token was used now, unless that was noted less than a minute ago."""
        ...

    async def save_session(self, session: AccessSession, *, audit: AuditRecord | None = None) -> None:
        """Add a session.

        Raises:
            InvalidValue: its token does not exist or is revoked, or there is a session with this digest.
        """
        ...

    async def find_session(self, digest: str) -> tuple[AccessSession, AccessToken] | None:
        """Read a session and the token it rests on, valid or not."""
        ...

    async def touch_session(self, digest: str) -> None:
        """Note that a session was used now, unless that was noted less than a minute ago."""
        ...

    async def delete_session(self, digest: str, *, audit: AuditRecord | None = None) -> bool:
        """End a session, and answer whether there was one."""
        ...

    async def record_audit(self, record: AuditRecord, *, operation: JobRef | None = None) -> bool:
        """Write a record of a change that no verb carries, and answer whether it is new.

        ``operation``: the job of the change by filter that it ends (A5). A store with roles writes this one for a
        worker too, which may write no other: as the job has it, with the count of ``record``.
        """
        ...

    async def audit(self, query: AuditQuery, *, cursor: str | None = None, limit: int = 50) -> Page[AuditRecord]:
        """List records, the newest first."""
        ...

    async def prune_access(self, *, keep_audit: timedelta, keep_sessions: timedelta) -> int:
        """Remove records older than ``keep_audit``, and sessions, expired and revoked tokens as long after their end.

        At least 30 days of records stay, whatever is asked for. Bounded: call again while it answers more than 0.
        """
        ...


class ForeignWorkers(Protocol):
    """Finds workers of other programs, on engines whose ``put_back_needs_peer`` is set."""

    async def has_foreign_workers(self, queue: str) -> bool:
        """Say whether a worker of another program serves the queue now; True if that cannot be known."""
        ...


@runtime_checkable
class WorkerCheck(Protocol):
    """An engine on a server whose settings may lose jobs: a worker asks before it claims the first."""

    async def check_worker(self) -> None:
        """Check that a worker may start.

        Raises:
            StoreMisconfigured: the server would lose jobs.
        """
        ...


@runtime_checkable
class WriteIsolation(Protocol):
    """An engine whose write lock belongs to a process, which a handler may stop while it holds the lock."""

    async def isolate_writes(self, *, on_demand: bool) -> None:
        """Have all writes of this process made by a process that runs no handlers, until the engine is closed.

        ``on_demand``: only once this process has held the write lock for too long. Idempotent.
        """
        ...


class Engine(Producer, Consumer, Reader, Admin, Maintenance, AccessStore, Protocol):
    """A store that holds jobs."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    async def open(self) -> None:
        """Connect, and bring the schema up to date where it is ours. Safe when many do so at once."""
        ...

    async def close(self) -> None:
        """Let go of everything. Twice is fine."""
        ...

    async def confirm_restore(self) -> None:
        """Have the jobs of a restored or copied store run where it is now; nothing on engines that cannot tell one."""
        ...

    async def check(self) -> EngineInfo:
        """Say what it stands on; raises what ``open`` would."""
        ...

    def schema_script(self) -> str | None:
        """Write the whole schema as SQL to be applied by hand; None where the schema is not ours."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Say which store this is, without secrets, for logs and errors."""
        ...
