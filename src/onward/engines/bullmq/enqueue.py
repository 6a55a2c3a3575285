"""Puts jobs in: plain ones of one queue by the hot path, all others by the full script, each call all or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from onward.clock import micros_of
from onward.engines.bullmq import job_options, rows
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import Atomic, Command, Plan, script
from onward.engines.bullmq.queue_registry import QueueRegistry
from onward.errors import InvalidValue
from onward.job import Enqueued, EnqueueStatus, JobRef, NewJob, UniformJobs
from onward.validation import matches

MAX_BATCH: Final = 200
"""Jobs that one script call adds: about five milliseconds of Redis."""
_ZERO: Final = timedelta(0)
_ENQUEUE_STATUSES: Final = {
    "inserted": EnqueueStatus.INSERTED,
    "same_key": EnqueueStatus.SAME_KEY,
    "deduped": EnqueueStatus.DEDUPED,
}
_encode = msgspec.json.encode


class Prioritized:
    """The queues in which jobs have priorities, by names and patterns."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = frozenset(patterns)

    def __contains__(self, queue: str) -> bool:
        """Say whether a queue is one of them."""
        return bool(self.patterns) and any(matches(pattern, queue) for pattern in self.patterns)


def queues_of(jobs: Sequence[NewJob]) -> set[str]:
    """Say which queues jobs are for."""
    return {jobs.template.queue} if isinstance(jobs, UniformJobs) else {job.queue for job in jobs}


def is_plain(job: NewJob) -> bool:
    """Say whether a job has nothing but a name, data and options."""
    return not job.delay and job.run_at is None and job.idempotency_key is None and job.dedupe_key is None


def enqueue(
    keys: Keys, registry: QueueRegistry, jobs: Sequence[NewJob], prioritized: Prioritized
) -> Plan[list[Enqueued]]:
    """Store jobs."""
    queues = queues_of(jobs)
    yield from registry.check(queues)
    different = [jobs.template] if isinstance(jobs, UniformJobs) else jobs
    for job in different:
        if job.priority and job.queue not in prioritized:
            raise InvalidValue("priority", job.priority, NOT_PRIORITIZED.format(queue=job.queue))
    if len(queues) == 1 and all(map(is_plain, different)):
        return (yield from _enqueue_plain(keys, jobs, is_prioritized=jobs[0].queue in prioritized))
    return (yield from _enqueue_full(keys, jobs, prioritized))


NOT_PRIORITIZED: Final = (
    "BullMQ counts the other way, and runs jobs without a priority first: name the queue in the URL, "
    "?prioritized={queue}, and all its jobs are put in order"
)


def _enqueue_plain(keys: Keys, jobs: Sequence[NewJob], *, is_prioritized: bool) -> Plan[list[Enqueued]]:
    queue = jobs[0].queue
    key = [keys.meta(queue)]
    commands: list[Command] = []
    if isinstance(jobs, UniformJobs):
        opts = job_options.write(jobs.template, is_prioritized=is_prioritized)
        priority = job_options.to_bullmq_priority(jobs.template.priority) if is_prioritized else 0
        for first in range(0, len(jobs), MAX_BATCH):
            payloads = jobs.payloads[first : first + MAX_BATCH]
            commands.append(script("enqueue_plain", keys, key, jobs.template.type, opts, priority, *payloads))
        return _enqueued_in_order(queue, commands, (yield Atomic(commands)))
    for some in _chunks_by_priority(jobs) if is_prioritized else _chunks(jobs):
        head = some[0]
        opts = job_options.write(head, is_prioritized=is_prioritized)
        priority = job_options.to_bullmq_priority(head.priority) if is_prioritized else 0
        if all(
            job.type == head.type and (job is head or job_options.write(job, is_prioritized=is_prioritized) == opts)
            for job in some
        ):
            payloads = [job.payload for job in some]
            commands.append(script("enqueue_plain", keys, key, head.type, opts, priority, *payloads))
        else:
            flat = [
                value
                for job in some
                for value in (job.type, job_options.write(job, is_prioritized=is_prioritized), job.payload)
            ]
            commands.append(script("enqueue_plain", keys, key, "", "", priority, *flat))
    return _enqueued_in_order(queue, commands, (yield Atomic(commands)))


def _enqueued_in_order(queue: str, commands: Sequence[Command], firsts: Sequence[int]) -> list[Enqueued]:
    made: list[Enqueued] = []
    for number, command in zip(firsts, commands, strict=True):
        count = _count_of(command)
        made += [Enqueued(JobRef(queue, str(number + n))) for n in range(count)]
    return made


def _count_of(command: Command) -> int:
    # EVALSHA, sha, 1, key, four that all share, name, options, priority, then the jobs.
    rest = len(command) - 11
    return rest if command[8] else rest // 3


def _chunks(jobs: Sequence[NewJob]) -> list[Sequence[NewJob]]:
    return [jobs[first : first + MAX_BATCH] for first in range(0, len(jobs), MAX_BATCH)]


def _chunks_by_priority(jobs: Sequence[NewJob]) -> list[Sequence[NewJob]]:
    """Part jobs where the priority changes, so that they keep their order."""
    parts: list[list[NewJob]] = []
    for job in jobs:
        if parts and parts[-1][0].priority == job.priority and len(parts[-1]) < MAX_BATCH:
            parts[-1].append(job)
        else:
            parts.append([job])
    return list(parts)


def _enqueue_full(keys: Keys, jobs: Sequence[NewJob], prioritized: Prioritized) -> Plan[list[Enqueued]]:
    answers = yield from add(keys, [_row(job, is_prioritized=job.queue in prioritized) for job in jobs])
    return [_enqueued(job, answer) for job, answer in zip(jobs, answers, strict=True)]


class EnqueueRow(NamedTuple):
    """A job as ``lua/enqueue.lua`` takes it."""

    queue: str
    name: str
    data: str
    opts: str
    delay: int = 0
    due: int | str = ""
    priority: int = 0
    deduplication: str = ""
    id: str = ""
    lifo: str = ""
    key: str = ""
    parent: str = ""
    scheduler: str = ""
    has_children: str = ""


def _row(job: NewJob, *, is_prioritized: bool) -> EnqueueRow:
    return EnqueueRow(
        job.queue,
        job.type,
        job.payload,
        job_options.write(job, is_prioritized=is_prioritized),
        delay=rows.milliseconds(job.delay or _ZERO),
        due="" if job.run_at is None else -(-micros_of(job.run_at) // 1000),
        priority=job_options.to_bullmq_priority(job.priority) if is_prioritized else 0,
        deduplication="" if job.dedupe_key is None else _encode({"id": job.dedupe_key}).decode(),
        key=job.idempotency_key or "",
    )


def add(keys: Keys, jobs: Sequence[EnqueueRow]) -> Plan[list[Any]]:
    """Add jobs of any kind, all or none.

    Raises:
        InvalidValue: one of them cannot have its parent.
    """
    commands = []
    # Parents are looked for before anything is written, which one call can promise and several cannot.
    chunk_size = len(jobs) if any(job.parent for job in jobs) else MAX_BATCH
    for first in range(0, len(jobs), chunk_size):
        numbers: dict[str, int] = {}
        flat: list[Any] = []
        for job in jobs[first : first + chunk_size]:
            flat += [numbers.setdefault(job.queue, len(numbers) + 1), *job[1:]]
        commands.append(script("enqueue", keys, [keys.meta(queue) for queue in numbers], len(numbers), *flat))
    answers = [answer for some in (yield Atomic(commands)) for answer in some]
    if answers and answers[0][0] == "refused":
        _, number, reason = answers[0]
        raise InvalidValue("parent", jobs[int(number)].parent, f"cannot be: {reason}")
    return answers


def _enqueued(job: NewJob, answer: Sequence[str]) -> Enqueued:
    kind = answer[0]
    if kind == "same_key":
        return Enqueued(JobRef(answer[1], answer[2]), EnqueueStatus.SAME_KEY)
    return Enqueued(JobRef(job.queue, answer[1]), _ENQUEUE_STATUSES[kind])
