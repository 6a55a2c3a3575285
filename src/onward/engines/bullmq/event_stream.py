"""Follows BullMQ's streams of events, one for each queue, and tells of them in Onward's words (B7).

A stream is read from a place on, by a connection that is for nothing else, so nothing is missed between two reads, nor
while the server is away. Where "now" is, is settled by one look at the server before anything is waited for: a reader
that asked for "whatever comes next" would miss what comes before its question does.

A cursor says how far each queue's stream was read. A queue that it does not name was read up to the moment at which
the reading began, by the server's clock, since an entry's id is the time at which it was written.

BullMQ writes less than we tell. A retry is a job that left its worker for the line, or for later, and has a failure on
record; who ran a job, how often, and its stack are looked up when its event is read, and are what is known then.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from redis.exceptions import RedisError

from onward.clock import moment_of
from onward.engines.bullmq import job_options, rows
from onward.engines.bullmq.client_factory import Server
from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import AsyncClient, Plan, aexecute, script
from onward.engines.bullmq.queue_registry import QueueRegistry, is_pattern
from onward.errors import InvalidValue, StoreUnavailable
from onward.events import (
    OLDEST,
    Active,
    AnyEvent,
    Completed,
    Failed,
    Progress,
    Retry,
    Stalled,
    Waiting,
)
from onward.job import JobRef

log = logging.getLogger("onward.engines.bullmq")

T = TypeVar("T")

_MAX_ENTRIES: Final = 200
"""Entries of one stream that are read together."""
_MAX_QUEUES: Final = 500
"""Queues that one script call looks at."""
_BLOCK_TIMEOUT: Final = 5.0
_BLOCK_TIMEOUT_FOR_PATTERNS: Final = 1.0
"""Seconds that the server sits on one question; fewer where queues may be made meanwhile that a pattern means."""
_MIN_RETRY_DELAY: Final = 0.05
_MAX_RETRY_DELAY: Final = 5.0
"""Seconds between tries to reach a server that is away."""
_MAX_SEQUENCE: Final = 2**64 - 1
_ID: Final = re.compile(r"\d+-\d+")
_JOB_FIELDS: Final = ("name", "opts", "failedReason", "atm", "pb", "stacktrace")


class RunPlan(Protocol):
    """Drives a plan."""

    def __call__(self, plan: Plan[T]) -> Awaitable[T]:
        """Drive it."""
        ...


class Entry(NamedTuple):
    """One entry of a stream."""

    time: int
    number: int
    queue: str
    id: str
    fields: Mapping[str, str]

    @property
    def job(self) -> JobRef:
        """The job that it is about."""
        return JobRef(self.queue, self.fields.get("jobId", ""))


class StreamPosition:
    """How far the streams have been read."""

    def __init__(self, started_at: str, read_up_to: Mapping[str, str]) -> None:
        self._started_at = started_at
        self._starts: dict[str, str] = {}
        self._read_up_to = dict(read_up_to)

    @classmethod
    def of(cls, cursor: str) -> StreamPosition:
        """Read a cursor."""
        try:
            started_at, read_up_to = _cursors.decode(cursor)
            if all(map(_ID.fullmatch, (started_at, *read_up_to.values()))):
                return cls(started_at, read_up_to)
        except msgspec.MsgspecError:
            pass
        raise InvalidValue("cursor", cursor, "must be the cursor of an event, or events.OLDEST")

    @property
    def read_up_to(self) -> Mapping[str, str]:
        """How far the streams were read of which something has been told."""
        return self._read_up_to

    def set_start(self, queue: str, last: str) -> None:
        """Note where a stream ended when the reading began: exact, where the clock is not."""
        self._starts[queue] = last

    def __getitem__(self, queue: str) -> str:
        """Say after which entry of a queue to go on."""
        return self._read_up_to.get(queue) or self._starts.get(queue) or self._started_at

    def advance(self, entry: Entry) -> None:
        """Note that an entry has been told."""
        self._read_up_to[entry.queue] = entry.id

    @property
    def cursor(self) -> str:
        """Write it down."""
        return msgspec.json.encode((self._started_at, self._read_up_to)).decode()


_cursors: msgspec.json.Decoder[tuple[str, dict[str, str]]] = msgspec.json.Decoder(tuple[str, dict[str, str]])


class EventStream:
    """Reads the streams of one engine's queues."""

    def __init__(self, server: Server, keys: Keys, registry: QueueRegistry, run_plan: RunPlan) -> None:
        self._server = server
        self._keys = keys
        self._registry = registry
        self._run_plan = run_plan

    async def open(
        self, patterns: tuple[str, ...], cursor: str | None, types: frozenset[str] | None
    ) -> AsyncGenerator[AnyEvent, None]:
        """Find the place to begin at, and give what comes after it."""
        queues = await self._run_plan(self._queues(patterns))
        now, bounds = await self._run_plan(self._event_bounds(queues))
        if cursor is None:
            position = StreamPosition(f"{now - 1}-{_MAX_SEQUENCE}", {})
            for queue, (_, last) in bounds.items():
                if last:
                    position.set_start(queue, last)
        elif cursor == OLDEST:
            position = StreamPosition("0-0", {})
        else:
            position = StreamPosition.of(cursor)
            for queue, (first, _) in bounds.items():
                if queue in position.read_up_to and first and _parse_id(position[queue]) < _parse_id(first):
                    raise InvalidValue("cursor", cursor, _TOO_OLD.format(queue=queue))
        return self._events(patterns, position, types)

    async def _events(
        self, patterns: tuple[str, ...], position: StreamPosition, types: frozenset[str] | None
    ) -> AsyncGenerator[AnyEvent, None]:
        previous: dict[str, Entry] = {}
        async for entries in self._entries(patterns, position):
            job_fields = await self._run_plan(self._job_fields(entries, types))
            for entry, following in zip(entries, _next_entries(entries), strict=True):
                events = list(_events_of(entry, previous.get(entry.queue), following, job_fields.get(entry.job, {})))
                wanted = [event for event in events if types is None or event.name in types]
                for event in wanted[:-1]:  # whoever goes on from here hears both again
                    yield msgspec.structs.replace(event, cursor=position.cursor)
                position.advance(entry)
                for event in wanted[-1:]:
                    yield msgspec.structs.replace(event, cursor=position.cursor)
                previous[entry.queue] = entry

    async def _entries(self, patterns: tuple[str, ...], position: StreamPosition) -> AsyncGenerator[list[Entry], None]:
        """Read what comes, in order, through all troubles of the server."""
        retry_delay = _MIN_RETRY_DELAY
        while True:
            client = self._server.async_client(max_connections=1, blocking_timeout=_BLOCK_TIMEOUT)
            try:
                while True:
                    entries = await self._read(client, patterns, position)
                    retry_delay = _MIN_RETRY_DELAY
                    if entries:
                        yield entries
            except (RedisError, OSError, StoreUnavailable) as error:
                log.warning("cannot follow events of %s, tries again: %s", self._server, error)
            finally:
                with suppress(RedisError, OSError):
                    await client.close()
            await asyncio.sleep(retry_delay * (0.5 + random.random()))  # noqa: S311 - jitter
            retry_delay = min(retry_delay * 2, _MAX_RETRY_DELAY)

    async def _read(self, client: AsyncClient, patterns: tuple[str, ...], position: StreamPosition) -> list[Entry]:
        queues = await self._run_plan(self._queues(patterns))
        timeout = _BLOCK_TIMEOUT_FOR_PATTERNS if any(map(is_pattern, patterns)) else _BLOCK_TIMEOUT
        if not queues:
            await asyncio.sleep(timeout)
            return []
        streams = (*map(self._stream, queues), *map(position.__getitem__, queues))
        command = ("XREAD", "COUNT", _MAX_ENTRIES, "BLOCK", int(timeout * 1000), "STREAMS", *streams)
        (answers,) = await aexecute(client, [command])
        found: list[Entry] = []
        for stream, entries in answers or ():
            queue = stream[len(self._keys.root) : -len(":events")]
            if len(entries) == _MAX_ENTRIES:
                await self._check_not_trimmed(queue, position)
            found += [Entry(*_parse_id(id), queue, id, fields) for id, fields in entries]
        found.sort(key=lambda entry: entry[:3])
        return found

    async def _check_not_trimmed(self, queue: str, position: StreamPosition) -> None:
        """Say so if we are so far behind that what we had read last is no longer kept."""
        _, bounds = await self._run_plan(self._event_bounds([queue]))
        if queue in position.read_up_to and _parse_id(position[queue]) < _parse_id(bounds[queue][0]):
            raise InvalidValue("cursor", position[queue], _TOO_OLD.format(queue=queue))

    def _stream(self, queue: str) -> str:
        return f"{self._keys.base(queue)}events"

    def _queues(self, patterns: tuple[str, ...]) -> Plan[list[str]]:
        if any(map(is_pattern, patterns)):
            yield from self._registry.refresh()
        return (yield from self._registry.matching(patterns))

    def _event_bounds(self, queues: Sequence[str]) -> Plan[tuple[int, dict[str, tuple[str, str]]]]:
        """Say what the server's time is, and where streams begin and end."""
        now = 0
        bounds: dict[str, tuple[str, str]] = {}
        for first in range(0, max(len(queues), 1), _MAX_QUEUES):
            some = queues[first : first + _MAX_QUEUES]
            meta_keys = [self._keys.meta(queue) for queue in some] or [self._keys.queues]
            (answer,) = yield [script("event_bounds", self._keys, meta_keys)]
            now = now or int(answer[0])
            bounds.update(zip(some, zip(answer[1::2], answer[2::2], strict=True), strict=False))
        return now, bounds

    def _job_fields(
        self, entries: Sequence[Entry], types: frozenset[str] | None
    ) -> Plan[dict[JobRef, Mapping[str, str | None]]]:
        """Look up what the store knows of jobs beside their events."""
        jobs = list(dict.fromkeys(entry.job for entry in entries if _needs_job_fields(entry, types)))
        answers = yield [("HMGET", self._keys.base(job.queue) + job.id, *_JOB_FIELDS) for job in jobs]
        return {job: dict(zip(_JOB_FIELDS, answer, strict=True)) for job, answer in zip(jobs, answers, strict=True)}


_TOO_OLD: Final = (
    "is too old: of queue {queue}, some events after it are no longer kept (events.OLDEST has what is left)"
)
_NAMES_OF: Final = {
    "waiting": {"waiting"},
    "active": {"active"},
    "progress": {"progress"},
    "stalled": {"stalled"},
    "completed": {"completed"},
    "failed": {"failed"},
    "delayed": {"retry"},
}


def _parse_id(id: str) -> tuple[int, int]:
    time, _, number = id.partition("-")
    return int(time), int(number or 0)


def _needs_job_fields(entry: Entry, types: frozenset[str] | None) -> bool:
    event = entry.fields.get("event", "")
    names = _NAMES_OF.get(event, set())
    if event == "waiting" and entry.fields.get("prev") == "active":
        names = {"waiting", "retry"}
    return bool(names) and (types is None or bool(names & types))


def _next_entries(entries: Sequence[Entry]) -> list[Entry | None]:
    """Give for each entry the one that follows in the same stream."""
    seen: dict[str, Entry] = {}
    found: list[Entry | None] = []
    for entry in reversed(entries):
        found.append(seen.get(entry.queue))
        seen[entry.queue] = entry
    return found[::-1]


def _events_of(
    entry: Entry, previous: Entry | None, following: Entry | None, job_fields: Mapping[str, str | None]
) -> Iterator[AnyEvent]:
    """Say what an entry tells, in our words: nothing, one event, or a retry and that the job waits."""
    fields = entry.fields
    about: dict[str, Any] = {"ref": entry.job, "at": moment_of(entry.time * 1000), "type": job_fields.get("name")}
    about["org_id"] = _org_id(job_fields.get("opts"))
    made = int(job_fields.get("atm") or 0) or None
    has_failed = bool(job_fields.get("failedReason")) and made is not None
    match fields.get("event"):
        case "waiting":
            if has_failed and fields.get("prev") == "active" and not _is_same_job(following, entry, "stalled"):
                yield Retry(**about, attempts=made, delay=0.0)
            yield Waiting(**about)
        case "active":
            yield Active(**about, worker_id=job_fields.get("pb"))
        case "progress":
            value, message = rows.progress_of(fields.get("data"))
            yield Progress(**about, progress=value, message=fields.get("data") if value is None else message)
        case "completed":
            yield Completed(**about, attempts=made, result=rows.value_of(fields.get("returnvalue")))
        case "failed":
            stack = rows.value_of(job_fields.get("stacktrace"))
            lines = tuple(map(str, stack)) if isinstance(stack, list) else ()
            yield Failed(**about, attempts=made, error=fields.get("failedReason", ""), traceback=lines)
        case "stalled":
            yield Stalled(**about)
        case "delayed" if has_failed and not _is_same_job(previous, entry, "added"):
            delay = max(0.0, float(fields.get("delay") or 0) - entry.time) / 1000
            yield Retry(**about, attempts=made, delay=delay)


def _is_same_job(neighbour: Entry | None, entry: Entry, event: str) -> bool:
    """Say whether the entry beside another is about the same job, and of an event."""
    return neighbour is not None and neighbour.job == entry.job and neighbour.fields.get("event") == event


def _org_id(opts: str | None) -> str | None:
    try:
        org_id = None if opts is None else job_options.read(opts).org_id
    except ValueError:  # damaged: the job fails for it when it is claimed
        return None
    return org_id if isinstance(org_id, str) else None
