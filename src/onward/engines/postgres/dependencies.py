"""Joins new jobs to their batch, and to the jobs that they wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from onward.engines.postgres.filters import is_id
from onward.engines.postgres.statements import Schema
from onward.errors import InvalidValue
from onward.job import Enqueued, NewJob, UniformJobs
from onward.pg import arrays
from onward.pg.plan_runner import Plan, Statement


def add_to_batches(schema: Schema, jobs: Sequence[NewJob], added: Sequence[Enqueued]) -> Plan[None]:
    """Count the jobs that were added into their batches, and let those wait that come after others."""
    counts: Counter[str] = Counter()
    dependencies: dict[str, list[tuple[str, int, str]]] = {}
    if isinstance(jobs, UniformJobs) and jobs.template.batch is not None and not jobs.template.after:
        counts[jobs.template.batch] = sum(answer.is_new for answer in added)
        jobs = ()
    for job, answer in zip(jobs, added, strict=False):
        if job.batch is None or not answer.is_new:
            continue
        counts[job.batch] += 1
        for position, depends_on in enumerate(dict.fromkeys(job.after)):
            depends_on_id = added[depends_on].id if isinstance(depends_on, int) else depends_on
            if not is_id(depends_on_id):
                raise _unknown(depends_on_id, job.batch)
            dependencies.setdefault(job.batch, []).append((answer.id, position, depends_on_id))
    for batch, number in sorted(counts.items()):
        if not (yield Statement(schema.batch_add_to_total, [batch, number])):
            rule = "is not there, or has finished or been stopped: make it with app.batch(…)"
            raise InvalidValue("batch", batch, rule)
    for batch, rows in dependencies.items():
        waiting, positions, depended_on = zip(*rows, strict=True)
        values = [batch, arrays.words(waiting), arrays.numbers(positions), arrays.words(depended_on)]
        for (unknown,) in (yield Statement(schema.add_dependencies, values)):
            raise _unknown(unknown, batch)


def _unknown(depends_on: str, batch: str) -> InvalidValue:
    return InvalidValue("after", depends_on, f"there is no such job in the batch {batch}")
