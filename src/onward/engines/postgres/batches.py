"""Keeps batches, and does what the ends of jobs mean for others.

Whoever ends jobs of a batch leaves news of it in the same statement; :func:`advance` takes the news out and acts on
them, in a transaction of its own: soon after, in the process that ended the jobs, or later, by whoever leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onward.batches.values import BatchInfo, Dependency, NewBatch, batch_of, callback_of, texts_of
from onward.engine.values import JobFilter, Page, Term
from onward.engines.postgres import queries
from onward.engines.postgres.enqueue import enqueue, notification_of
from onward.engines.postgres.filters import is_id
from onward.engines.postgres.statements import Schema
from onward.errors import InvalidValue
from onward.job import Enqueued, Job, JobRef, NewJob
from onward.pg.plan_runner import Plan, Statement
from onward.validation import read_cursor

_MAX_ROWS: Final = 1000
"""News, links and jobs that one step deals with: a short transaction."""


def upsert(
    schema: Schema, batch: NewBatch, jobs: Sequence[NewJob], *, notice: str | None, can_copy: bool
) -> Plan[list[Enqueued]]:
    """Make or change a batch, and add jobs to it."""
    if not (yield Statement(schema.batch_upsert, [schema.now, batch.name, batch.queue, *texts_of(batch.callbacks)])):
        raise InvalidValue("batch", batch.name, "has finished: give the new one another name")
    added: list[Enqueued] = []
    if jobs:
        added = yield from enqueue(schema, jobs, notice=notice, can_copy=can_copy)
    if batch.sealed or batch.stopped:
        yield Statement(schema.batch_seal, [batch.name, batch.sealed, batch.stopped])
    return added


def advance(schema: Schema, term: Term | None = None) -> Plan[tuple[bool | None, int]]:
    """Act on what is new; answer whether there may be more to do, and how many jobs have become ready.

    None: others' transactions hold all that is left, and nobody is told when they end. It is to be asked again, later.
    """
    term_values = [None, None] if term is None else [term.number, term.leader_id]
    ((more, texts, ready),) = yield Statement(
        schema.advance_batches, [schema.now, schema.channel, *term_values, _MAX_ROWS]
    )
    if texts:
        callbacks = [callback_of(text) for text in texts]
        yield from enqueue(schema, callbacks, notice=",".join(sorted(notification_of(callbacks))))
    return more, ready + len(texts)


def batches(schema: Schema, names: Sequence[str] | None, cursor: str | None, limit: int) -> Plan[Page[BatchInfo]]:
    """List batches."""
    wanted = [None if names is None else list(names), None if cursor is None else read_cursor(cursor), limit + 1]
    rows = yield Statement(schema.batches, wanted)
    shown = rows[:limit]
    return Page(
        items=tuple(batch_of(row[:-1]) for row in shown), next_cursor=str(shown[-1][-1]) if len(rows) > limit else None
    )


def delete(schema: Schema, name: str) -> Plan[bool]:
    """Forget a batch that has finished."""
    return bool((yield Statement(schema.batch_delete, [name])))


def dependencies(schema: Schema, name: str) -> Plan[list[Dependency]]:
    """List which jobs of a batch wait for which."""
    return [Dependency(*row) for row in (yield Statement(schema.dependencies, [name]))]


def dependency_jobs(schema: Schema, ref: JobRef) -> Plan[list[Job]]:
    """Read the jobs that a job has waited for."""
    if not is_id(ref.id):
        return []
    ids = [row[0] for row in (yield Statement(schema.dependencies_of_job, [ref.id]))]
    if not ids:
        return []
    page = yield from queries.find(schema, JobFilter(ids=tuple(ids)), None, len(ids), newest_first=True)
    found = {job.id: job for job in page.items}
    return [found[job_id] for job_id in ids if job_id in found]
