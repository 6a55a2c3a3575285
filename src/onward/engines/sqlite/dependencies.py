"""Joins new jobs to their batch, and to the jobs that they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.engines.sqlite.rows import json_text
from onward.engines.sqlite.statements import SQL
from onward.engines.sqlite.transaction import Transaction
from onward.errors import InvalidValue


def add_to_total(transaction: Transaction, batch: str, number: int) -> None:
    """Count jobs that were added to a batch."""
    if not transaction.execute(SQL.batch_add_to_total, {"name": batch, "number": number}).rowcount:
        raise InvalidValue("batch", batch, "is not there, or has finished or been stopped: make it with app.batch(…)")


def add(transaction: Transaction, batch: str, jobs: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Let jobs wait for others: each is given with the ids of those."""
    rows = [(job, position, depends_on) for job, after in jobs for position, depends_on in enumerate(after)]
    named: dict[str, Any] = {"dependencies": json_text(rows), "batch": batch}
    unknown = transaction.execute(SQL.dependency_unknown, named).fetchone()
    if unknown is not None:
        raise InvalidValue("after", unknown[0], f"there is no such job in the batch {batch}")
    transaction.execute(SQL.dependency_add, named)
    transaction.execute(SQL.dependency_mark_jobs, named)
    transaction.execute(SQL.batch_event_add_ended, named)
