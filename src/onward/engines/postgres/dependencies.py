"""Joins new jobs to their batch, and to the jobs that they wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from onward.engines.postgres.filters import is_id
from onward.engines.postgres.schema import Schema
from onward.errors import InvalidJob
from onward.job import Enqueued, NewJob, UniformJobs
from onward.pg import arrays
from onward.pg.plans import Plan, Statement


def join(schema: Schema, jobs: Sequence[NewJob], added: Sequence[Enqueued]) -> Plan[None]:
    """Count the jobs that were added into their batches, and let those wait that come after others."""
    counts: Counter[str] = Counter()
    links: dict[str, list[tuple[str, int, str]]] = {}
    if isinstance(jobs, UniformJobs) and jobs.template.batch is not None and not jobs.template.after:
        counts[jobs.template.batch] = sum(answer.is_new for answer in added)
        jobs = ()
    for job, answer in zip(jobs, added, strict=False):
        if job.batch is None or not answer.is_new:
            continue
        counts[job.batch] += 1
        for place, parent in enumerate(dict.fromkeys(job.after)):
            parent_id = added[parent].id if isinstance(parent, int) else parent
            if not is_id(parent_id):
                raise _unknown(parent_id, job.batch)
            links.setdefault(job.batch, []).append((answer.id, place, parent_id))
    for batch, number in sorted(counts.items()):
        if not (yield Statement(schema.batch_add_to_total, [batch, number])):
            rule = "is not there, or has finished or been stopped: make it with app.batch(…)"
            raise InvalidJob("batch", batch, rule)
    for batch, rows in links.items():
        children, places, parents = zip(*rows, strict=True)
        values = [batch, arrays.words(children), arrays.numbers(places), arrays.words(parents)]
        for (unknown,) in (yield Statement(schema.add_dependencies, values)):
            raise _unknown(unknown, batch)


def _unknown(parent: str, batch: str) -> InvalidJob:
    return InvalidJob("after", parent, f"there is no such job in the batch {batch}")
