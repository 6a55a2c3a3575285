"""Looks, and changes nothing.

Redis keeps jobs by where they are, not by when they came: finding reads the ids of all places that a filter allows,
with the time of each, and then as many whole jobs as a page needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from onward.clock import moment_of
from onward.engine.values import GroupBy, JobFilter, LogLine, Page, QueueInfo, WorkerInfo
from onward.engines.bullmq import leases, rows
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import Command, Plan, script
from onward.engines.bullmq.presence import MARK, connection_name
from onward.engines.bullmq.queue_registry import QueueRegistry, is_pattern
from onward.errors import InvalidValue
from onward.job import Job, JobRef
from onward.lifecycle import JobStatus

_MAX_BATCH: Final = 500
"""Jobs read by one script call."""
_STATUS_ALIASES: Final = {JobStatus.CLAIMED: JobStatus.RUNNING, JobStatus.DEAD_LETTER: JobStatus.FAILED}

SortKey = tuple[int, int, str, str]
"""Where a job stands in the list of all: when it came, its number, its id, its queue."""


def get(keys: Keys, ref: JobRef | str) -> Plan[Job | None]:
    """Find one job by its name."""
    if isinstance(ref, str):
        queue, _, id = ref.partition(":")
        ref = JobRef(queue, id)
    jobs = yield from _read(keys, [(0, 0, ref.id, ref.queue)])
    return jobs[0]


def find(
    keys: Keys, registry: QueueRegistry, which: JobFilter, cursor: str | None, limit: int, *, newest_first: bool
) -> Plan[Page[Job]]:
    """List a page of jobs."""
    start = None if cursor is None else _cursor_of(cursor)
    sort_keys = yield from _sort_keys(keys, registry, which)
    sort_keys.sort(reverse=newest_first)
    if start is not None:
        sort_keys = [sort_key for sort_key in sort_keys if (sort_key < start if newest_first else sort_key > start)]
    items: list[Job] = []
    last: SortKey = (0, 0, "", "")
    step = max(limit + 1, 50)
    for first in range(0, len(sort_keys), step):
        some = sort_keys[first : first + step]
        for sort_key, job in zip(some, (yield from _read(keys, some)), strict=True):
            if job is None or not matches(which, job):
                continue
            if len(items) == limit:
                return Page(items=tuple(items), next_cursor=_text_of(last))
            items.append(job)
            last = sort_key
    return Page(items=tuple(items))


def matching(
    keys: Keys, registry: QueueRegistry, which: JobFilter, states: frozenset[JobStatus], limit: int
) -> Plan[list[Job]]:
    """List jobs in some states that a filter lets through, the oldest first."""
    wanted = states if which.status is None else states & {_STATUS_ALIASES.get(state, state) for state in which.status}
    which = msgspec.structs.replace(which, status=wanted)
    page: Page[Job] = yield from find(keys, registry, which, None, limit, newest_first=False)
    return list(page.items)


def count(keys: Keys, registry: QueueRegistry, which: JobFilter, by: GroupBy) -> Plan[Mapping[str, int]]:
    """Count jobs: by the depth of places where that will do, else one by one."""
    if by in {GroupBy.STATUS, GroupBy.QUEUE} and _is_by_location_only(which):
        depths: Counter[str] = Counter()
        wanted = None if which.status is None else {_STATUS_ALIASES.get(state, state) for state in which.status}
        for queue in (yield from queues(keys, registry, which.queues or ("*",))):
            for state, depth in queue.counts.items():
                if wanted is None or state in wanted:
                    depths[state.value if by is GroupBy.STATUS else queue.name] += depth
        return dict(depths)
    found: Counter[str] = Counter()
    sort_keys = yield from _sort_keys(keys, registry, which)
    for first in range(0, len(sort_keys), _MAX_BATCH):
        for job in (yield from _read(keys, sort_keys[first : first + _MAX_BATCH])):
            if job is not None and matches(which, job):
                found[_group(job, by)] += 1
    return dict(found)


def _is_by_location_only(which: JobFilter) -> bool:
    return which == JobFilter(queues=which.queues, status=which.status)


def _group(job: Job, by: GroupBy) -> str:
    match by:
        case GroupBy.STATUS:
            return job.status.value
        case GroupBy.QUEUE:
            return job.queue
        case GroupBy.TYPE:
            return job.type
        case GroupBy.ORG:
            return job.org_id or ""


def queues(keys: Keys, registry: QueueRegistry, patterns: Sequence[str]) -> Plan[list[QueueInfo]]:
    """List queues with their settings and depth."""
    found = yield from _resolve(registry, patterns)
    if not found:
        return []
    listed = []
    for first in range(0, len(found), _MAX_BATCH):
        some = found[first : first + _MAX_BATCH]
        now, *answers = yield [
            script("server_time", keys, [keys.workers]),
            *[script("read_queue", keys, [keys.meta(name)]) for name in some],
        ]
        listed += [
            rows.queue_of(name, answer, int(now)) for name, answer in zip(some, answers, strict=True) if answer[0]
        ]
    return listed


def _resolve(registry: QueueRegistry, patterns: Sequence[str]) -> Plan[list[str]]:
    if any(is_pattern(pattern) for pattern in patterns):
        yield from registry.all_names()
        return (yield from registry.matching(tuple(patterns)))
    return sorted(set(patterns))


def workers(keys: Keys) -> Plan[list[WorkerInfo]]:
    """List workers."""
    now, texts, leader, told = yield [
        script("server_time", keys, [keys.workers]),
        ("HGETALL", keys.workers),
        ("HMGET", keys.leader, "leader", "until"),
        ("HKEYS", keys.worker_commands),
    ]
    leader_id, until = leader
    leader_until = moment_of(int(until)) if until is not None and int(until) > int(now) else None
    found = []
    for id, text in sorted((rows.pairs(texts) if isinstance(texts, list) else texts).items()):
        started, heartbeat, details = text.split(" ", 2)
        info = msgspec.json.decode(details)
        is_leader = leader_until is not None and id == leader_id
        found.append(
            WorkerInfo(
                id=id,
                hostname=info["hostname"],
                pool_size=info["pool_size"],
                version=info["version"],
                queues=tuple(info["queues"]),
                types=tuple(info["types"]),
                started_at=moment_of(int(started)),
                last_heartbeat=moment_of(int(heartbeat)),
                is_leader=is_leader,
                leader_until=leader_until if is_leader else None,
                is_quiet=id in told,
            )
        )
    return found


def has_foreign_workers(keys: Keys, queue: str) -> Plan[bool]:
    """Say whether a BullMQ worker is connected for the queue: its connections carry the queue's name, encoded."""
    (clients,) = yield [("CLIENT", "LIST")]
    name = connection_name(keys.prefix, queue)
    if isinstance(clients, list):
        names = {str(client.get("name", "")) for client in clients}
    else:
        fields = str(clients).split()
        names = {field.removeprefix("name=") for field in fields if field.startswith("name=")}
    is_ours = f"{name}:w:{MARK}"
    return any(each == name or (each.startswith(f"{name}:w:") and not each.startswith(is_ours)) for each in names)


def logs(keys: Keys, ref: JobRef) -> Plan[list[LogLine]]:
    """Read a job's log."""
    key = keys.base(ref.queue) + ref.id
    lines, times = yield [("LRANGE", f"{key}:logs", 0, -1), ("HMGET", key, "processedOn", "timestamp")]
    default = rows.moment(times[0]) or rows.moment(times[1]) or moment_of(0)
    return [leases.log_line_of(line, default) for line in lines]


def matches(which: JobFilter, job: Job) -> bool:
    """Say whether a filter lets a job through; places are looked at before."""
    return (
        (which.types is None or job.type in which.types)
        and (which.ids is None or job.id in which.ids)
        and (which.status is None or job.status in {_STATUS_ALIASES.get(state, state) for state in which.status})
        and (which.org_id is None or job.org_id == which.org_id)
        and (which.orgs is None or job.org_id in which.orgs)
        and (which.worker_id is None or job.worker_id == which.worker_id)
        and (which.error_contains is None or which.error_contains.lower() in (job.last_error or "").lower())
        and (which.created_after is None or job.created_at > which.created_after)
        and (which.created_before is None or job.created_at < which.created_before)
        and (
            which.finished_before is None or (job.completed_at is not None and job.completed_at < which.finished_before)
        )
    )


def _sort_keys(keys: Keys, registry: QueueRegistry, which: JobFilter) -> Plan[list[SortKey]]:
    """Find all jobs where a filter allows them to be, each with its place in the order of arrival."""
    if which.refs is not None:
        ids = [(ref.queue, ref.id) for ref in dict.fromkeys(which.refs)]
        if which.queues is not None:
            allowed = set((yield from _resolve(registry, which.queues)))
            ids = [(queue, id) for queue, id in ids if queue in allowed]
    else:
        ids = yield from _ids(keys, registry, which)
    by_queue: dict[str, list[str]] = {}
    for queue, id in ids:
        by_queue.setdefault(queue, []).append(id)
    sort_keys: list[SortKey] = []
    for queue, own in by_queue.items():
        for first in range(0, len(own), _MAX_BATCH):
            some = own[first : first + _MAX_BATCH]
            (created,) = yield [script("created_at", keys, [keys.meta(queue)], *some)]
            sort_keys += [
                (int(float(created_at)), int(id) if id.isdecimal() else 0, id, queue)
                for id, created_at in zip(some, created, strict=True)
                if created_at
            ]
    return sort_keys


def _ids(keys: Keys, registry: QueueRegistry, which: JobFilter) -> Plan[list[tuple[str, str]]]:
    wanted = None if which.status is None else {_STATUS_ALIASES.get(state, state) for state in which.status}
    locations = [location for location, state in rows.STATUS_BY_LOCATION.items() if wanted is None or state in wanted]
    queues = yield from _resolve(registry, which.queues or ("*",))
    requested = [(queue, location) for queue in queues for location in locations]
    found: dict[tuple[str, str], None] = {}
    for first in range(0, len(requested), _MAX_BATCH):
        some = requested[first : first + _MAX_BATCH]
        commands: list[Command] = [
            ("LRANGE" if location in rows.LIST_LOCATIONS else "ZRANGE", keys.base(queue) + location, 0, -1)
            for queue, location in some
        ]
        for (queue, _), ids in zip(some, (yield commands), strict=True):
            for id in ids:
                found[(queue, id)] = None
    return list(found)


def _read(keys: Keys, sort_keys: Sequence[SortKey]) -> Plan[list[Job | None]]:
    by_queue: dict[str, list[int]] = {}
    for index, sort_key in enumerate(sort_keys):
        by_queue.setdefault(sort_key[3], []).append(index)
    jobs: list[Job | None] = [None] * len(sort_keys)
    requested = list(_chunks(by_queue))
    answers = yield [
        script("read_jobs", keys, [keys.meta(queue)], *[sort_keys[index][2] for index in indexes])
        for queue, indexes in requested
    ]
    for (queue, indexes), found in zip(requested, answers, strict=True):
        for index, answer in zip(indexes, found, strict=True):
            if answer is not None:
                where, score, fields = answer
                jobs[index] = rows.job_of(queue, sort_keys[index][2], where, score, rows.pairs(fields))
    return jobs


def _chunks(by_queue: Mapping[str, list[int]]) -> Iterator[tuple[str, list[int]]]:
    for queue, indexes in by_queue.items():
        for first in range(0, len(indexes), _MAX_BATCH):
            yield queue, indexes[first : first + _MAX_BATCH]


def _text_of(sort_key: SortKey) -> str:
    return msgspec.json.encode(sort_key).decode()


_cursors: msgspec.json.Decoder[SortKey] = msgspec.json.Decoder(SortKey)


def _cursor_of(text: str) -> SortKey:
    try:
        return _cursors.decode(text)
    except msgspec.MsgspecError as error:
        raise InvalidValue("cursor", text, "must be what a page before this one gave") from error


def raw(keys: Keys, ref: JobRef, *fields: str) -> Plan[list[Any]]:
    """Read fields of a job's hash as they are."""
    (values,) = yield [("HMGET", keys.base(ref.queue) + ref.id, *fields)]
    return list(values)
