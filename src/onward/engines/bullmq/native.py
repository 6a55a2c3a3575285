"""BullMQ's own verbs from Python, for what Onward's API has no words for.

::

    bull = bull_of(app)
    await bull.add("mail", "send", {"to": "ada"}, lifo=True, job_id="order-7")
    await bull.add("digest", "send", {"user": 7}, delay=5000,
                   deduplication=Deduplication(id="7", ttl=5000, extend=True, replace=True))
    await bull.add_flow(Flow("report", "sum", children=[Flow("pages", "render", {"n": n}) for n in range(3)]))
    await bull.upsert_job_scheduler("report", "daily", pattern="0 6 * * *", tz="Europe/Berlin", name="sum")
    await bull.clean("mail", grace=3_600_000, state="failed")

Names are BullMQ's in snake case, and so are the options; times are in milliseconds, as there. A job is as Node would
have added it: with Node's defaults, and its priorities as BullMQ counts. Jobs are the same jobs: a task of the App
whose queue and name are these runs them, and so does a Node worker.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from onward.engine.values import QueueChange
from onward.engines.bullmq import enqueue, rows, schedules
from onward.engines.bullmq.commands import Plan, script
from onward.engines.bullmq.engine import BullMQEngine
from onward.engines.bullmq.enqueue import Adding
from onward.engines.bullmq.node_options import BackoffOptions, Deduplication, JobOptions, Keep, Repeat, options_of
from onward.errors import InvalidJob, PayloadTooLarge
from onward.job import Enqueued, EnqueueStatus, JobRef
from onward.validation import MAX_PAYLOAD, check_at_least, check_text, encode_json

__all__ = ["BackoffOptions", "Bull", "Deduplication", "Flow", "Keep", "Node", "Scheduler", "bull_of"]

Place = Literal["completed", "failed", "waiting", "active", "delayed", "prioritized", "paused"]
PLACES: Final = ("completed", "failed", "waiting", "active", "delayed", "prioritized", "paused")
_AT_ONCE: Final = 500
"""Jobs that one script call removes: a few milliseconds of Redis."""


class Flow(msgspec.Struct, frozen=True):
    """A job with the jobs that it waits for, each with its own."""

    queue: str
    name: str
    data: Any = None
    children: Sequence[Flow] = ()
    options: dict[str, Any] = {}
    """See :class:`~onward.engines.bullmq.node_options.JobOptions`."""


class Node(NamedTuple):
    """A flow that was added: the job, and those that it waits for."""

    ref: JobRef
    children: tuple[Node, ...] = ()


class Scheduler(NamedTuple):
    """What makes jobs by the clock."""

    id: str
    name: str
    next: int
    """When its next job is due, in milliseconds since 1970."""
    made: int
    """How many jobs it has made."""
    every: int | None
    pattern: str | None
    tz: str | None
    data: Any


def bull_of(app: Any) -> Bull:
    """Give the verbs of the BullMQ that an App is on."""
    engine = getattr(app, "engine", app)
    engine = getattr(engine, "inner", engine)
    if not isinstance(engine, BullMQEngine):
        raise InvalidJob("app", app, "must be on BullMQ: redis://…")
    return Bull(engine, max_payload=getattr(app, "max_payload", MAX_PAYLOAD))


class Bull:
    """The verbs of one BullMQ."""

    def __init__(self, engine: BullMQEngine, *, max_payload: int = MAX_PAYLOAD) -> None:
        self._engine = engine
        self._layout = engine.layout
        self._prefix = engine.layout.prefix
        self._max_payload = max_payload

    def _script(self, name: str, queue: str, *values: Any) -> Plan[Any]:
        return _command(*script(name, self._layout, [self._layout.meta(queue)], *values))

    # Jobs

    async def add(self, queue: str, name: str, data: Any = None, **options: Any) -> Enqueued:
        """Add a job, and answer which one stands for it now.

        ``options`` are those of :class:`~onward.engines.bullmq.node_options.JobOptions`.
        """
        (answer,) = await self.add_bulk(queue, [(name, data, options)])
        return answer

    async def add_bulk(self, queue: str, jobs: Iterable[tuple[str, Any, dict[str, Any]]]) -> list[Enqueued]:
        """Add many jobs to a queue, each a name, data and options, all or none."""
        made = [self._adding(queue, name, data, options_of(JobOptions, options)) for name, data, options in jobs]
        return [_enqueued(job.queue, answer) for job, answer in zip(made, await self._add(made), strict=True)]

    async def add_flow(self, flow: Flow) -> Node:
        """Add a job that waits for others, at any depth, all or none."""
        made: list[Adding] = []
        tree = self._grow(flow, None, made)
        await self._add(made)
        return tree

    def _grow(self, flow: Flow, parent: JobRef | None, made: list[Adding]) -> Node:
        given = {"job_id": str(uuid.uuid4()), **flow.options}
        if parent is not None:
            given["parent"] = parent
        options = options_of(JobOptions, given)
        if flow.children and options.deduplication is not None:
            raise InvalidJob("deduplication", options.deduplication.id, "cannot be said of a job with children")
        ref = JobRef(flow.queue, str(options.job_id))
        made.append(self._adding(flow.queue, flow.name, flow.data, options, has_children=bool(flow.children)))
        # In a flow an id that nobody has asked for stands nowhere but in the job's name.
        if "job_id" not in flow.options:
            made[-1] = made[-1]._replace(opts=msgspec.structs.replace(options, job_id=None).text(self._prefix))
        return Node(ref, tuple(self._grow(child, ref, made) for child in flow.children))

    def _adding(self, queue: str, name: str, data: Any, options: JobOptions, *, has_children: bool = False) -> Adding:
        if not isinstance(name, str) or not name.strip():
            raise InvalidJob("name", name, "must be a non-empty string")
        check_text("name", name)
        text, opts = encode_json({} if data is None else data, field="data"), options.text(self._prefix)
        if (size := len(text.encode()) + len(opts.encode())) > self._max_payload:
            raise PayloadTooLarge(size, self._max_payload)
        return Adding(
            queue,
            name,
            text,
            opts,
            delay=options.delay,
            priority=options.priority,
            deduplication=options.deduplication_text,
            id=options.job_id or "",
            lifo="1" if options.lifo else "",
            parent=options.parent_text(self._prefix),
            has_children="1" if has_children else "",
        )

    async def _add(self, jobs: Sequence[Adding]) -> list[Any]:
        if not jobs:
            return []
        queues = {job.queue for job in jobs}

        def plan() -> Plan[list[Any]]:
            yield from self._engine.names.check(queues)
            return (yield from enqueue.add(self._layout, jobs))

        answers = await self._engine.ask(plan())
        self._engine.tell(queues)
        return answers

    async def remove_deduplication_key(self, queue: str, id: str) -> bool:
        """Let another job of a deduplication id in from now on; answer whether there was one that stood for it."""
        base = self._layout.base(queue)
        return bool(await self._engine.ask(_command("DEL", f"{base}de:{id}")))

    # Schedulers

    async def upsert_job_scheduler(
        self,
        queue: str,
        id: str,
        *,
        name: str | None = None,
        data: Any = None,
        options: dict[str, Any] | None = None,
        **repeat: Any,
    ) -> Enqueued:
        """Have jobs made by the clock, or change how; answer the first one.

        ``repeat`` is as :class:`~onward.engines.bullmq.node_options.Repeat` says, ``options`` are those of its jobs.
        Whoever picks a job of a scheduler up, in Python or Node, makes the next.
        """
        if not isinstance(id, str) or not id or ":" in check_text("id", id):
            raise InvalidJob("id", id, "must be a non-empty string without ':', which parts BullMQ's keys")
        told, when = options_of(JobOptions, options or {}), options_of(Repeat, repeat)
        for field in ("job_id", "delay", "parent"):
            if getattr(told, field):
                raise InvalidJob(field, getattr(told, field), "cannot be said of a scheduler's jobs: it has its own")
        job = self._adding(queue, name or id, data, told)

        def plan() -> Plan[Any]:
            yield from self._engine.names.check([queue])
            return (yield from schedules.begin(self._layout, queue, id, when, job, told.members(self._prefix)))

        answer = await self._engine.ask(plan())
        if not answer[0]:
            raise InvalidJob("id", id, f"cannot be: {answer[1]}")
        self._engine.tell({queue})
        return Enqueued(JobRef(queue, str(answer[0])))

    async def remove_job_scheduler(self, queue: str, id: str) -> bool:
        """Have no more jobs made by the clock; answer whether there were to be some."""
        return bool(await self._engine.ask(self._script("unschedule", queue, id)))

    async def job_schedulers(self, queue: str) -> list[Scheduler]:
        """List what makes jobs by the clock, the next first."""
        return await self._engine.ask(self._schedulers(queue))

    def _schedulers(self, queue: str) -> Plan[list[Scheduler]]:
        base = self._layout.base(queue)
        (ids,) = yield [("ZRANGE", f"{base}repeat", 0, -1)]
        asked = [
            command for id in ids for command in (("ZSCORE", f"{base}repeat", id), ("HGETALL", f"{base}repeat:{id}"))
        ]
        answers = yield asked
        found = []
        for id, due, fields in zip(ids, answers[::2], answers[1::2], strict=True):
            said = fields if isinstance(fields, dict) else rows.pairs(fields)
            every, made = said.get("every"), said.get("ic")
            found.append(
                Scheduler(
                    id=id,
                    name=said.get("name", id),
                    next=int(float(due or 0)),
                    made=int(made or 0),
                    every=None if every is None else int(float(every)),
                    pattern=said.get("pattern"),
                    tz=said.get("tz"),
                    data=rows.value_of(said.get("data", "{}")),
                )
            )
        return found

    # Queues

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        """Remove all jobs that wait, and with ``delayed`` those whose time has not come; answer how many.

        Jobs that are active or have ended stay, and so do the next jobs of schedulers.
        """
        places = ["wait", "paused", *(["delayed"] if delayed else []), "prioritized"]
        removed = 0
        while True:
            some = int(await self._engine.ask(self._script("drain", queue, _AT_ONCE, *places)))
            removed += some
            if some < _AT_ONCE:
                return removed

    async def clean(self, queue: str, *, grace: int = 0, limit: int = 0, state: Place = "completed") -> list[str]:
        """Remove jobs that have been in a state for longer than ``grace``, at most ``limit`` (0: all); say which."""
        if state not in PLACES:
            raise InvalidJob("state", state, f"must be one of {', '.join(PLACES)}")
        check_at_least("grace", grace, 0)
        check_at_least("limit", limit, 0)
        place = "wait" if state == "waiting" else state
        return await self._engine.ask(self._clean(queue, place, grace, limit))

    def _clean(self, queue: str, place: str, grace: int, limit: int) -> Plan[list[str]]:
        (now,) = yield [script("now", self._layout, [self._layout.workers])]
        latest, passed = int(now) // 1000 - grace, 0
        cleaned: list[str] = []
        while True:
            most = min(_AT_ONCE, limit - len(cleaned)) if limit else _AT_ONCE
            seen, *some = yield from self._script("clean", queue, place, latest, most, passed)
            cleaned += some
            passed += int(seen) - len(some)
            # With a limit BullMQ looks at no more jobs than that, old enough or not.
            if int(seen) < most or (limit and (len(some) < most or len(cleaned) == limit)):
                return cleaned

    async def obliterate(self, queue: str, *, force: bool = False) -> None:
        """Remove a queue with all that was ever in it. It is paused first, and stays so if jobs are active.

        Raises:
            InvalidJob: jobs are active, and it was not told to ``force`` it.
        """
        await self._engine.configure(queue, QueueChange(paused=True))
        while True:
            said = await self._engine.ask(self._script("obliterate", queue, _AT_ONCE, "1" if force else ""))
            if said == "done":
                return
            if said == "active":
                raise InvalidJob("queue", queue, "has active jobs: wait for them, or say force=True")

    # Events

    async def keep_events(self, queue: str, count: int) -> None:
        """Keep about so many events of a queue from now on; BullMQ's own default is 10 000."""
        check_at_least("count", count, 0)
        meta = self._layout.meta(queue)
        await self._engine.ask(_command("HSET", meta, "opts.maxLenEvents", count))

    async def trim_events(self, queue: str, count: int) -> int:
        """Remove events until about so many are left, the oldest first; answer how many went."""
        check_at_least("count", count, 0)
        return int(await self._engine.ask(_command("XTRIM", f"{self._layout.base(queue)}events", "MAXLEN", "~", count)))


def _enqueued(queue: str, answer: Sequence[str]) -> Enqueued:
    enqueue_status = {"duplicated": EnqueueStatus.SAME_KEY, "deduped": EnqueueStatus.DEDUPED}.get(
        answer[0], EnqueueStatus.INSERTED
    )
    return Enqueued(JobRef(queue, answer[1]), enqueue_status)


def _command(*command: Any) -> Plan[Any]:
    (answer,) = yield [command]
    return answer
