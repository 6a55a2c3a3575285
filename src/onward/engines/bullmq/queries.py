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
from onward.engines.bullmq.commands import Command, Plan, script
from onward.engines.bullmq.keys import Layout
from onward.engines.bullmq.queue_registry import Names, is_pattern
from onward.errors import InvalidJob
from onward.job import Job, JobRef
from onward.lifecycle import State

_MOST: Final = 500
"""Jobs read by one script call."""
_SHOWN: Final = {State.CLAIMED: State.RUNNING, State.DEAD_LETTER: State.FAILED}

Place = tuple[int, int, str, str]
"""Where a job stands in the list of all: when it came, its number, its id, its queue."""


def get(layout: Layout, ref: JobRef | str) -> Plan[Job | None]:
    """Find one job by its name."""
    if isinstance(ref, str):
        queue, _, id = ref.partition(":")
        ref = JobRef(queue, id)
    jobs = yield from _read(layout, [(0, 0, ref.id, ref.queue)])
    return jobs[0]


def find(
    layout: Layout, names: Names, which: JobFilter, after: str | None, limit: int, *, newest_first: bool
) -> Plan[Page[Job]]:
    """List a page of jobs."""
    cursor = None if after is None else _cursor_of(after)
    places = yield from _places(layout, names, which)
    places.sort(reverse=newest_first)
    if cursor is not None:
        places = [place for place in places if (place < cursor if newest_first else place > cursor)]
    items: list[Job] = []
    last: Place = (0, 0, "", "")
    step = max(limit + 1, 50)
    for first in range(0, len(places), step):
        some = places[first : first + step]
        for place, job in zip(some, (yield from _read(layout, some)), strict=True):
            if job is None or not lets_through(which, job):
                continue
            if len(items) == limit:
                return Page(items=tuple(items), after=_text_of(last))
            items.append(job)
            last = place
    return Page(items=tuple(items))


def matching(layout: Layout, names: Names, which: JobFilter, states: frozenset[State], limit: int) -> Plan[list[Job]]:
    """List jobs in some states that a filter lets through, the oldest first."""
    wanted = states if which.states is None else states & {_SHOWN.get(state, state) for state in which.states}
    which = msgspec.structs.replace(which, states=wanted)
    page: Page[Job] = yield from find(layout, names, which, None, limit, newest_first=False)
    return list(page.items)


def count(layout: Layout, names: Names, which: JobFilter, by: GroupBy) -> Plan[Mapping[str, int]]:
    """Count jobs: by the depth of places where that will do, else one by one."""
    if by in {GroupBy.STATE, GroupBy.QUEUE} and _is_about_places(which):
        depths: Counter[str] = Counter()
        wanted = None if which.states is None else {_SHOWN.get(state, state) for state in which.states}
        for queue in (yield from queues(layout, names, which.queues or ("*",))):
            for state, depth in queue.counts.items():
                if wanted is None or state in wanted:
                    depths[state.value if by is GroupBy.STATE else queue.name] += depth
        return dict(depths)
    found: Counter[str] = Counter()
    places = yield from _places(layout, names, which)
    for first in range(0, len(places), _MOST):
        for job in (yield from _read(layout, places[first : first + _MOST])):
            if job is not None and lets_through(which, job):
                found[_group(job, by)] += 1
    return dict(found)


def _is_about_places(which: JobFilter) -> bool:
    return which == JobFilter(queues=which.queues, states=which.states)


def _group(job: Job, by: GroupBy) -> str:
    match by:
        case GroupBy.STATE:
            return job.status.value
        case GroupBy.QUEUE:
            return job.queue
        case GroupBy.TYPE:
            return job.type
        case GroupBy.ORG:
            return job.org_id or ""


def queues(layout: Layout, names: Names, patterns: Sequence[str]) -> Plan[list[QueueInfo]]:
    """List queues with their settings and depth."""
    found = yield from _named(names, patterns)
    if not found:
        return []
    listed = []
    for first in range(0, len(found), _MOST):
        some = found[first : first + _MOST]
        now, *answers = yield [
            script("now", layout, [layout.workers]),
            *[script("queue", layout, [layout.meta(name)]) for name in some],
        ]
        listed += [
            rows.queue_of(name, answer, int(now)) for name, answer in zip(some, answers, strict=True) if answer[0]
        ]
    return listed


def _named(names: Names, patterns: Sequence[str]) -> Plan[list[str]]:
    if any(is_pattern(pattern) for pattern in patterns):
        yield from names.every()
        return (yield from names.matching(tuple(patterns)))
    return sorted(set(patterns))


def workers(layout: Layout) -> Plan[list[WorkerInfo]]:
    """List workers."""
    now, cards, leader = yield [
        script("now", layout, [layout.workers]),
        ("HGETALL", layout.workers),
        ("HMGET", layout.leader, "leader", "until"),
    ]
    leader_id, until = leader
    leads_until = moment_of(int(until)) if until is not None and int(until) > int(now) else None
    found = []
    for id, text in sorted((rows.pairs(cards) if isinstance(cards, list) else cards).items()):
        started, beat, card = text.split(" ", 2)
        said = msgspec.json.decode(card)
        leads = leads_until is not None and id == leader_id
        found.append(
            WorkerInfo(
                id=id,
                hostname=said["hostname"],
                pool_size=said["pool_size"],
                version=said["version"],
                queues=tuple(said["queues"]),
                types=tuple(said["types"]),
                started_at=moment_of(int(started)),
                last_heartbeat=moment_of(int(beat)),
                is_leader=leads,
                leader_until=leads_until if leads else None,
            )
        )
    return found


def log_lines(layout: Layout, ref: JobRef) -> Plan[list[LogLine]]:
    """Read a job's log."""
    key = layout.base(ref.queue) + ref.id
    lines, times = yield [("LRANGE", f"{key}:logs", 0, -1), ("HMGET", key, "processedOn", "timestamp")]
    otherwise = rows.moment(times[0]) or rows.moment(times[1]) or moment_of(0)
    return [leases.line_of(line, otherwise) for line in lines]


def lets_through(which: JobFilter, job: Job) -> bool:
    """Say whether a filter lets a job through; places are looked at before."""
    return (
        (which.types is None or job.type in which.types)
        and (which.ids is None or job.id in which.ids)
        and (which.states is None or job.status in {_SHOWN.get(state, state) for state in which.states})
        and (which.org_id is None or job.org_id == which.org_id)
        and (which.worker_id is None or job.worker_id == which.worker_id)
        and (which.error_contains is None or which.error_contains.lower() in (job.last_error or "").lower())
        and (which.created_after is None or job.created_at > which.created_after)
        and (which.created_before is None or job.created_at < which.created_before)
        and (
            which.finished_before is None or (job.completed_at is not None and job.completed_at < which.finished_before)
        )
    )


def _places(layout: Layout, names: Names, which: JobFilter) -> Plan[list[Place]]:
    """Find all jobs where a filter allows them to be, each with its place in the order of arrival."""
    if which.refs is not None:
        ids = [(ref.queue, ref.id) for ref in dict.fromkeys(which.refs)]
        if which.queues is not None:
            allowed = set((yield from _named(names, which.queues)))
            ids = [(queue, id) for queue, id in ids if queue in allowed]
    else:
        ids = yield from _ids(layout, names, which)
    by_queue: dict[str, list[str]] = {}
    for queue, id in ids:
        by_queue.setdefault(queue, []).append(id)
    places: list[Place] = []
    for queue, own in by_queue.items():
        for first in range(0, len(own), _MOST):
            some = own[first : first + _MOST]
            (stamps,) = yield [script("stamps", layout, [layout.meta(queue)], *some)]
            places += [
                (int(float(stamp)), int(id) if id.isdecimal() else 0, id, queue)
                for id, stamp in zip(some, stamps, strict=True)
                if stamp
            ]
    return places


def _ids(layout: Layout, names: Names, which: JobFilter) -> Plan[list[tuple[str, str]]]:
    wanted = None if which.states is None else {_SHOWN.get(state, state) for state in which.states}
    kinds = [place for place, state in rows.PLACES.items() if wanted is None or state in wanted]
    queues = yield from _named(names, which.queues or ("*",))
    asked = [(queue, place) for queue in queues for place in kinds]
    found: dict[tuple[str, str], None] = {}
    for first in range(0, len(asked), _MOST):
        some = asked[first : first + _MOST]
        commands: list[Command] = [
            ("LRANGE" if place in rows.LISTS else "ZRANGE", layout.base(queue) + place, 0, -1) for queue, place in some
        ]
        for (queue, _), ids in zip(some, (yield commands), strict=True):
            for id in ids:
                found[(queue, id)] = None
    return list(found)


def _read(layout: Layout, places: Sequence[Place]) -> Plan[list[Job | None]]:
    by_queue: dict[str, list[int]] = {}
    for index, place in enumerate(places):
        by_queue.setdefault(place[3], []).append(index)
    jobs: list[Job | None] = [None] * len(places)
    asked = list(_chunks(by_queue))
    answers = yield [
        script("job", layout, [layout.meta(queue)], *[places[index][2] for index in indexes])
        for queue, indexes in asked
    ]
    for (queue, indexes), found in zip(asked, answers, strict=True):
        for index, answer in zip(indexes, found, strict=True):
            if answer is not None:
                where, score, fields = answer
                jobs[index] = rows.job_of(queue, places[index][2], where, score, rows.pairs(fields))
    return jobs


def _chunks(by_queue: Mapping[str, list[int]]) -> Iterator[tuple[str, list[int]]]:
    for queue, indexes in by_queue.items():
        for first in range(0, len(indexes), _MOST):
            yield queue, indexes[first : first + _MOST]


def _text_of(place: Place) -> str:
    return msgspec.json.encode(place).decode()


_cursors: msgspec.json.Decoder[Place] = msgspec.json.Decoder(Place)


def _cursor_of(text: str) -> Place:
    try:
        return _cursors.decode(text)
    except msgspec.MsgspecError as error:
        raise InvalidJob("after", text, "must be what a page before this one gave") from error


def raw(layout: Layout, ref: JobRef, *fields: str) -> Plan[list[Any]]:
    """Read fields of a job's hash as they are."""
    (values,) = yield [("HMGET", layout.base(ref.queue) + ref.id, *fields)]
    return list(values)
