"""The buttons that people press: cancel, replay, delete, edit, configure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from onward.clock import micros_of
from onward.engine.values import Changed, JobChange, JobFilter, QueueChange, QueueInfo
from onward.engines.bullmq import job_options, queries, rows
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import Plan, script
from onward.engines.bullmq.queue_registry import QueueRegistry
from onward.job import Job, JobRef
from onward.lifecycle import FINISHED, HELD, WAITING, JobStatus


def cancel(keys: Keys, registry: QueueRegistry, which: JobFilter, limit: int) -> Plan[list[Changed]]:
    """Take jobs back: BullMQ has no such state, so they are removed."""
    jobs = yield from queries.matching(keys, registry, which, WAITING | HELD, limit)
    answers = yield from _run_for_each("cancel", keys, jobs)
    return [Changed(job.ref, rows.STATUS_BY_LOCATION.get(str(was), job.status)) for job, was in answers if was]


def delete(keys: Keys, registry: QueueRegistry, which: JobFilter, limit: int) -> Plan[list[Changed]]:
    """Remove jobs that nobody holds."""
    jobs = yield from queries.matching(keys, registry, which, WAITING | FINISHED, limit)
    answers = yield from _run_for_each("delete", keys, jobs)
    return [Changed(job.ref, rows.STATUS_BY_LOCATION.get(str(was), job.status)) for job, was in answers if was]


def replay(keys: Keys, registry: QueueRegistry, which: JobFilter, limit: int) -> Plan[list[Changed]]:
    """Give failed jobs a new life."""
    jobs = yield from queries.matching(keys, registry, which, frozenset({JobStatus.FAILED}), limit)
    answers = yield from _run_for_each("replay", keys, jobs)
    return [Changed(job.ref, JobStatus.FAILED) for job, done in answers if done]


def _run_for_each(verb: str, keys: Keys, jobs: Sequence[Job]) -> Plan[list[tuple[Job, object]]]:
    by_queue: dict[str, list[Job]] = {}
    for job in jobs:
        by_queue.setdefault(job.queue, []).append(job)
    done: dict[JobRef, object] = {}
    for queue, own in by_queue.items():
        for first in range(0, len(own), 200):
            some = own[first : first + 200]
            (answers,) = yield [script(verb, keys, [keys.meta(queue)], *[job.id for job in some])]
            done.update(zip([job.ref for job in some], answers, strict=True))
    return [(job, done[job.ref]) for job in jobs]


def edit(keys: Keys, ref: JobRef, change: JobChange, *, is_prioritized: bool) -> Plan[Job | None]:
    """Change a job that waits, as often as it takes for nobody else to have changed it meanwhile."""
    while True:
        (text,) = yield from queries.raw(keys, ref, "opts")
        if text is None:
            return None
        members: dict[str, object] = {}
        priority = ""
        if change.max_attempts is not UNSET:
            members["attempts"] = change.max_attempts
        if change.priority is not UNSET and is_prioritized:
            members["priority"] = job_options.to_bullmq_priority(change.priority)
            priority = str(members["priority"])
        (answer,) = yield [
            script(
                "edit",
                keys,
                [keys.meta(ref.queue)],
                ref.id,
                text,
                job_options.changed(text, **members) if members else "",
                "" if change.payload is UNSET else change.payload,
                priority,
                "" if change.run_at is UNSET else -(-micros_of(change.run_at) // 1000),
            )
        ]
        if answer == 0:
            return None
        if answer == 1:
            return (yield from queries.get(keys, ref))


def configure(keys: Keys, registry: QueueRegistry, queue: str, change: QueueChange) -> Plan[QueueInfo]:
    """Change a queue's settings: what Node knows stands in its meta, the rest among our own keys."""
    yield from registry.check([queue])
    meta: dict[str, str] = {}
    own: dict[str, str] = {}
    if change.global_concurrency is not UNSET:
        meta["concurrency"] = "" if change.global_concurrency is None else str(change.global_concurrency)
    if change.rate is not UNSET:
        rate = change.rate
        meta["max"] = "" if rate is None else str(rate.count)
        meta["duration"] = "" if rate is None else str(rows.milliseconds(rate.period))
        own.update(rows.rate_fields(rate))
    if change.weight is not UNSET:
        own["weight"] = str(change.weight)
    if change.lease is not UNSET:
        own["lease"] = "" if change.lease is None else str(rows.milliseconds(change.lease))
    if change.retention is not UNSET:
        own.update(rows.retention_fields(change.retention))
    for field in ("pause_reason", "paused_by"):
        if (text := getattr(change, field)) is not UNSET:
            own[field] = text
    paused = "" if change.paused is UNSET else str(int(change.paused))
    flat = [part for fields in (meta, own) for item in fields.items() for part in item]
    key = [keys.meta(queue)]
    _, now, answer = yield [
        script("configure", keys, key, paused, len(meta), *flat),
        script("server_time", keys, [keys.workers]),
        script("read_queue", keys, key),
    ]
    return rows.queue_of(queue, answer, int(now))
