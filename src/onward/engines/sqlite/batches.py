"""Keeps batches, and lets jobs wait for each other.

Triggers note what is to be thought through; :func:`advance` does so, at the end of the transaction that ended a job.
Its steps are bounded: what a stopped batch of a million jobs asks for is done a part at a time, by whoever comes next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from onward.batches.values import BATCH_KEPT, BatchInfo, Dependency, NewBatch, batch_of, callback_of, texts_of
from onward.clock import MICROSECOND
from onward.engine.values import Page
from onward.engines.sqlite import enqueue, queries
from onward.engines.sqlite.rows import json_text
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.errors import InvalidValue
from onward.job import Enqueued, Job, JobRef, NewJob, OnDependencyFailure
from onward.validation import read_cursor

_EVENTS_PER_STEP: Final = 100
_MAX_CHANGED_JOBS: Final = 2000
"""Jobs of others that the end of some may change in one transaction."""
_decode = msgspec.json.decode


def save(transaction: Transaction, batch: NewBatch, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Make or change a batch, and add jobs to it."""
    execute = transaction.execute
    success, failure, finished = texts_of(batch.callbacks)
    named = {
        "name": batch.name,
        "queue": batch.queue,
        "on_success": success,
        "on_failure": failure,
        "on_finished": finished,
        "now": transaction.now,
    }
    if not execute(SQL.batch_upsert, named).fetchall():
        raise InvalidValue("batch", batch.name, "has finished: give the new one another name")
    added = enqueue.enqueue(transaction, jobs) if jobs else []
    if batch.sealed or batch.stopped:
        execute(SQL.batch_seal, {"name": batch.name, "sealed": batch.sealed, "stopped": batch.stopped})
    advance(transaction)
    return added


def batches(transaction: Transaction, names: Sequence[str] | None, cursor: str | None, limit: int) -> Page[BatchInfo]:
    """List batches."""
    wanted = {
        "names": None if names is None else json_text(names),
        "before": None if cursor is None else read_cursor(cursor),
        "limit": limit + 1,
    }
    rows = transaction.execute(SQL.batches, wanted).fetchall()
    shown = rows[:limit]
    return Page(
        items=tuple(batch_of(row[:-1]) for row in shown), next_cursor=str(shown[-1][-1]) if len(rows) > limit else None
    )


def delete(transaction: Transaction, name: str) -> bool:
    """Forget a batch that has finished."""
    if not transaction.execute(SQL.batch_delete, {"name": name}).rowcount:
        return False
    transaction.execute(SQL.batch_delete_dependencies, {"name": name})
    return True


def prune(transaction: Transaction, limit: int) -> int:
    """Forget batches that finished long ago; answer how many."""
    expired = {"before": transaction.now - BATCH_KEPT // MICROSECOND, "limit": limit}
    names = [name for (name,) in transaction.execute(SQL.batch_expired, expired).fetchall()]
    return sum(delete(transaction, name) for name in names)


def dependencies(transaction: Transaction, name: str) -> list[Dependency]:
    """List which jobs of a batch wait for which."""
    return [Dependency(*row) for row in transaction.execute(SQL.dependencies, {"batch": name}).fetchall()]


def dependency_jobs(transaction: Transaction, ref: JobRef) -> list[Job]:
    """Read the jobs that a job has waited for."""
    ids = [row[0] for row in transaction.execute(SQL.dependencies_of_job, {"job": ref.id}).fetchall()]
    found = [queries.get(transaction, job_id) for job_id in ids]
    return [job for job in found if job is not None]


def advance(transaction: Transaction) -> bool:
    """Do what the ends of jobs mean for others; answer whether there is more to do."""
    changed = 0
    while batch_events := transaction.execute(SQL.batch_events, {"limit": _EVENTS_PER_STEP}).fetchall():
        if changed >= _MAX_CHANGED_JOBS:
            return True
        ended = [(no, job) for no, _, job, _ in batch_events if job is not None]
        done = [no for no, _, job, _ in batch_events if job is None]
        if ended:
            resolved = _resolve_dependencies(transaction, [job for _, job in ended])
            changed += resolved
            if resolved < _MAX_CHANGED_JOBS:
                done += [no for no, _ in ended]
        stopping = {batch for _, batch, _, stops in batch_events if stops}
        for name in dict.fromkeys(batch for _, batch, job, _ in batch_events if job is None):
            changed += _cancel_unstarted(transaction, name) if name in stopping else _finish_if_due(transaction, name)
        transaction.execute(SQL.batch_events_delete, {"numbers": json_text(done)})
        transaction.wakes_workers = True
    return False


def _resolve_dependencies(transaction: Transaction, ended: Sequence[str]) -> int:
    """Tell those that wait for jobs how these have ended; answer how many were told."""
    execute = transaction.execute
    resolved = execute(SQL.dependencies_unresolved, {"jobs": json_text(ended), "limit": _MAX_CHANGED_JOBS}).fetchall()
    if not resolved:
        return 0
    execute(SQL.dependencies_resolve, {"dependencies": json_text([(job, position) for job, position, *_ in resolved])})
    satisfied = Counter(seq for _, _, seq, _, is_satisfied, _ in resolved if is_satisfied)
    named = {"jobs": json_text(list(satisfied.items())), "now": transaction.now}
    ready = {queue for (queue,) in execute(SQL.unblock, named).fetchall() if queue is not None}
    if ready:
        enqueue.ensure_queues_open(transaction, ready)
    skipped = {
        seq
        for _, _, seq, _, is_satisfied, policy in resolved
        if not is_satisfied and policy == OnDependencyFailure.SKIP
    }
    _cancel(transaction, list(skipped), "cancelled: a job that it waited for did not complete")
    for batch in {
        batch
        for _, _, _, batch, is_satisfied, policy in resolved
        if not is_satisfied and policy == OnDependencyFailure.CANCEL
    }:
        execute(SQL.batch_seal, {"name": batch, "sealed": False, "stopped": True})
    return len(resolved)


def _cancel_unstarted(transaction: Transaction, name: str) -> int:
    """Cancel what has not started of a batch, or a part of it; answer how many jobs that were."""
    execute = transaction.execute
    unstarted: list[int] = _decode(
        execute(SQL.batch_unstarted, {"name": name, "limit": _MAX_CHANGED_JOBS}).fetchone()[0]
    )
    if not unstarted:
        return _finish_if_due(transaction, name)
    _cancel(transaction, unstarted, "cancelled: its batch was stopped before it started")
    execute(SQL.batch_event_add_stop, {"name": name})
    return len(unstarted)


def _finish_if_due(transaction: Transaction, name: str) -> int:
    """Do what is due for a batch as it stands; answer how many jobs that has changed."""
    execute = transaction.execute
    outcome = execute(SQL.batch_outcome, {"name": name}).fetchone()
    if outcome is None:
        return 0
    finishes, succeeds, fails, on_success, on_failure, on_finished = outcome
    if not finishes and not fails:
        return 0
    execute(SQL.batch_take_callbacks, {"name": name, "fails": fails, "finishes": finishes, "now": transaction.now})
    due = [on_failure] if fails else []
    if finishes:
        due += [on_success, on_finished] if succeeds else [on_finished]
    jobs = [callback_of(text) for text in due if text is not None]
    if jobs:
        enqueue.enqueue(transaction, jobs)
    return len(jobs)


def _cancel(transaction: Transaction, seqs: Sequence[int], reason: str) -> None:
    if seqs:
        transaction.execute(SQL.cancel, {"seqs": json_text(seqs), "last_error": reason, "now": transaction.now})
