"""What one worker does for all: each write matches the leader's term in its own statement."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from onward.clock import MICROSECOND, moment_of
from onward.engine.restore import Home
from onward.engine.values import MaintenanceResult, Term
from onward.engines.sqlite import archived_jobs, batches, events
from onward.engines.sqlite.database import Database
from onward.engines.sqlite.enqueue import default_retention, ensure_queues_open
from onward.engines.sqlite.rows import json_text
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.engines.sqlite.usage import roll_up
from onward.lifecycle import JobStatus

_decode = msgspec.json.decode


def elect(transaction: Transaction, candidate: str, lease: timedelta, current_term: Term | None) -> Term | None:
    """Become or stay leader."""
    execute = transaction.execute
    named: dict[str, Any] = {"candidate": candidate, "lease_us": lease // MICROSECOND, "now": transaction.now}
    if current_term is not None:
        done = execute(SQL.elect_renew, named | {"number": current_term.number})
    else:
        done = execute(SQL.elect, named)
    if done.rowcount != 1:
        return None
    number, leader_id, until = execute(SQL.leader).fetchone()
    return Term(number, leader_id, moment_of(until))


def resign(transaction: Transaction, term: Term) -> None:
    """End a term before its time."""
    transaction.execute(SQL.resign, _named(transaction, term))


def promote(transaction: Transaction, term: Term, limit: int) -> MaintenanceResult:
    """Make due jobs ready; cancel expired ones."""
    execute, named = transaction.execute, _named(transaction, term)
    expired = execute(SQL.expire, named | {"limit": limit}).rowcount
    due = _decode(execute(SQL.promote_pick, {"limit": limit, "now": transaction.now}).fetchone()[0])
    promoted = 0
    if due:
        promoted = execute(SQL.promote, named | {"seqs": json_text([seq for seq, _ in due])}).rowcount
    queues = {queue for _, queue in due} if promoted else set()
    if queues:
        ensure_queues_open(transaction, queues)
    next_at = execute(SQL.promote_next, {"now": transaction.now}).fetchone()[0]
    has_batch_events = batches.advance(transaction) if _is_leader(transaction, term) else False
    return MaintenanceResult(
        changed=promoted + expired,
        queues=frozenset(queues),
        more=has_batch_events or limit in {promoted, expired},
        next_in=None if next_at is None else max(0, next_at - transaction.now) / 1e6,
    )


def rescue(transaction: Transaction, term: Term, lease: timedelta, limit: int) -> MaintenanceResult:
    """Give back what dead workers held; forget the workers; open queues that were filled by hand."""
    execute, named = transaction.execute, _named(transaction, term)
    expired = _decode(execute(SQL.rescue_pick, {"limit": limit, "now": transaction.now}).fetchone()[0])
    rescued = 0
    if expired:
        rescued = execute(SQL.rescue, named | {"seqs": json_text([seq for seq, _ in expired])}).rowcount
    execute(SQL.rescue_clamp_leases, named)
    execute(SQL.rescue_clamp_workers, named)
    execute(SQL.rescue_workers, named | {"timeout_us": lease // MICROSECOND})
    queues = {queue for _, queue in expired} if rescued else set()
    if queues:
        ensure_queues_open(transaction, queues)
    execute(SQL.queue_create_missing, named | default_retention())
    reopened = execute(SQL.queue_reopen_missed, named).rowcount + execute(SQL.queue_reopen_late, named).rowcount
    if reopened:
        transaction.wakes_workers = True
    # As often as this: a busy store adds many events between two prunes.
    has_old_events = events.remove_old(transaction)
    return MaintenanceResult(changed=rescued, queues=frozenset(queues), more=has_old_events or len(expired) == limit)


def prune(transaction: Transaction, term: Term, limit: int) -> MaintenanceResult:
    """Remove finished jobs that are no longer kept."""
    execute, named = transaction.execute, _named(transaction, term)
    seqs: list[int] = _decode(execute(SQL.prune_by_age, {"limit": limit, "now": transaction.now}).fetchone()[0])
    for name, completed, failed in execute(SQL.prune_counted).fetchall():
        for statuses, kept in (
            ((JobStatus.COMPLETED,), completed),
            ((JobStatus.FAILED, JobStatus.DEAD_LETTER), failed),
        ):
            if kept is not None and len(seqs) < limit:
                wanted = {"name": name, "statuses": json_text(statuses), "kept": kept, "limit": limit - len(seqs)}
                seqs += _decode(execute(SQL.prune_by_count, wanted).fetchone()[0])
    pruned = archived_jobs.archive(transaction, seqs, named) if seqs else 0
    archive_pruned = archived_jobs.prune(transaction, limit, named)
    batches_pruned = batches.prune(transaction, limit) if _is_leader(transaction, term) else 0
    roll_up(transaction, term)
    throttles_pruned = execute(SQL.throttle_prune, named | {"limit": limit}).rowcount
    return MaintenanceResult(
        changed=pruned,
        more=(pruned > 0 and len(seqs) >= limit) or limit in {archive_pruned, batches_pruned, throttles_pruned},
    )


def _is_leader(transaction: Transaction, term: Term) -> bool:
    number, leader_id, until = transaction.execute(SQL.leader).fetchone() or (0, "", 0)
    return (number, leader_id) == (term.number, term.leader_id) and until > transaction.now


def _named(transaction: Transaction, term: Term) -> dict[str, Any]:
    return {"number": term.number, "leader_id": term.leader_id, "now": transaction.now}


def home(transaction: Transaction, database: Database) -> Home:
    """Say whether the jobs are in the file that was confirmed. A file that nobody has worked on is its own."""
    confirmed, has_jobs = transaction.execute(SQL.home).fetchone()
    is_same = confirmed == database.inode()
    return Home(
        is_same or confirmed is None,
        has_jobs=bool(has_jobs),
        needs_adoption=not is_same and (confirmed is None or not has_jobs),
    )


def confirm_home(transaction: Transaction, inode: str) -> None:
    """Have the jobs of the file with this inode run."""
    transaction.execute(SQL.home_confirm, {"home": inode})
