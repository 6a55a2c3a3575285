"""BullMQ's own verbs from Python, for what Onward's API has no words for.

::

    bullmq = bullmq_of(app)
    await bullmq.add("mail", "send", {"to": "ada"}, lifo=True, job_id="order-7")
    await bullmq.add("digest", "send", {"user": 7}, delay=5000,
                     deduplication=Deduplication(id="7", ttl=5000, extend=True, replace=True))
    await bullmq.add_flow(Flow("report", "sum", children=[Flow("pages", "render", {"n": n}) for n in range(3)]))
    await bullmq.upsert_job_scheduler("report", "daily", pattern="0 6 * * *", tz="Europe/Berlin", name="sum")
    await bullmq.clean("mail", grace=3_600_000, state="failed")

Names are BullMQ's in snake case, and so are the options; times are in milliseconds, as there. A job is as Node would
have added it: with Node's defaults, and its priorities as BullMQ counts. Jobs are the same jobs: a task of the App
whose queue and name are these runs them, and so does a Node worker.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from onward.engine.values import Claim, QueueChange
from onward.engines.bullmq import enqueue, rows, schedules
from onward.engines.bullmq.engine import BullMQEngine
from onward.engines.bullmq.enqueue import EnqueueRow
from onward.engines.bullmq.native_options import BackoffOptions, Deduplication, JobOptions, KeepJobs, Repeat, options_of
from onward.engines.bullmq.plan_runner import Plan, script
from onward.errors import ClaimLost, InvalidValue, JobNotFound, PayloadTooLarge
from onward.job import Enqueued, EnqueueStatus, JobRef
from onward.validation import MAX_PAYLOAD, check_at_least, check_text, encode_json

__all__ = ["BackoffOptions", "BullMQ", "Deduplication", "Flow", "JobNode", "KeepJobs", "Scheduler"]

JobState = Literal["completed", "failed", "waiting", "active", "delayed", "prioritized", "paused"]
JOB_STATES: Final = ("completed", "failed", "waiting", "active", "delayed", "prioritized", "paused")
_BATCH_SIZE: Final = 500
"""Jobs that one script call removes: a few milliseconds of Redis."""


class Flow(msgspec.Struct, frozen=True):
    """A job with the jobs that it waits for, each with its own."""

    queue: str
    name: str
    data: Any = None
    children: Sequence[Flow] = ()
    options: dict[str, Any] = {}
    """See :class:`~onward.engines.bullmq.native_options.JobOptions`."""


class JobNode(NamedTuple):
    """A flow that was added: the job, and those that it waits for."""

    ref: JobRef
    children: tuple[JobNode, ...] = ()


class Scheduler(NamedTuple):
    """What makes jobs by the clock."""

    id: str
    name: str
    next: int
    """When its next job is due, in milliseconds since 1970."""
    iteration_count: int
    """How many jobs it has made."""
    every: int | None
    pattern: str | None
    tz: str | None
    data: Any


class HandlerAccess(NamedTuple):
    """What is known of handlers above the engine."""

    claim_of: Callable[[Any], Claim]
    """Reads the claim of a handler's context."""
    do_not_retry: Callable[[str], Exception]
    """Makes the exception that fails a job for good."""


class BullMQ:
    """The verbs of one BullMQ."""

    def __init__(
        self,
        engine: BullMQEngine,
        *,
        max_payload: int = MAX_PAYLOAD,
        handlers: HandlerAccess | None = None,
    ) -> None:
        """``handlers``: for :meth:`wait_for_children`."""
        self._engine = engine
        self._keys = engine.keys
        self._prefix = engine.keys.prefix
        self._max_payload = max_payload
        self._handlers = handlers

    def _script(self, name: str, queue: str, *values: Any) -> Plan[Any]:
        return _command(*script(name, self._keys, [self._keys.meta(queue)], *values))

    # Jobs

    async def add(self, queue: str, name: str, data: Any = None, **options: Any) -> Enqueued:
        """Add a job, and answer which one stands for it now.

        ``options`` are those of :class:`~onward.engines.bullmq.native_options.JobOptions`.
        """
        (answer,) = await self.add_bulk(queue, [(name, data, options)])
        return answer

    async def add_bulk(self, queue: str, jobs: Iterable[tuple[str, Any, dict[str, Any]]]) -> list[Enqueued]:
        """Add many jobs to a queue, each a name, data and options, all or none."""
        made = [self._row(queue, name, data, options_of(JobOptions, options)) for name, data, options in jobs]
        return [_enqueued(job.queue, answer) for job, answer in zip(made, await self._add(made), strict=True)]

    async def add_flow(self, flow: Flow) -> JobNode:
        """Add a job that waits for others, at any depth, all or none."""
        made: list[EnqueueRow] = []
        tree = self._build_tree(flow, None, made)
        await self._add(made)
        return tree

    def _build_tree(self, flow: Flow, parent: JobRef | None, made: list[EnqueueRow]) -> JobNode:
        given = {"job_id": str(uuid.uuid4()), **flow.options}
        if parent is not None:
            given["parent"] = parent
        options = options_of(JobOptions, given)
        if flow.children and options.deduplication is not None:
            raise InvalidValue("deduplication", options.deduplication.id, "cannot be said of a job with children")
        ref = JobRef(flow.queue, str(options.job_id))
        made.append(self._row(flow.queue, flow.name, flow.data, options, has_children=bool(flow.children)))
        # In a flow an id that nobody has asked for stands nowhere but in the job's name.
        if "job_id" not in flow.options:
            made[-1] = made[-1]._replace(opts=msgspec.structs.replace(options, job_id=None).text(self._prefix))
        return JobNode(ref, tuple(self._build_tree(child, ref, made) for child in flow.children))

    def _row(self, queue: str, name: str, data: Any, options: JobOptions, *, has_children: bool = False) -> EnqueueRow:
        if not isinstance(name, str) or not name.strip():
            raise InvalidValue("name", name, "must be a non-empty string")
        check_text("name", name)
        text, opts = encode_json({} if data is None else data, field="data"), options.text(self._prefix)
        if (size := len(text.encode()) + len(opts.encode())) > self._max_payload:
            raise PayloadTooLarge(size, self._max_payload)
        return EnqueueRow(
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

    async def _add(self, jobs: Sequence[EnqueueRow]) -> list[Any]:
        if not jobs:
            return []
        queues = {job.queue for job in jobs}

        def plan() -> Plan[list[Any]]:
            yield from self._engine.registry.check(queues)
            return (yield from enqueue.add(self._keys, jobs))

        answers = await self._engine.run_plan(plan())
        self._engine.notify(queues)
        return answers

    async def update_data(self, ref: JobRef, data: Any) -> None:
        """Replace a job's data, as Node's ``job.updateData``: its next attempt has it.

        Raises:
            JobNotFound: there is no such job.
        """
        await self._update(ref, "data", encode_json(data, field="data", max_size=self._max_payload))

    async def update_progress(self, ref: JobRef, progress: Any) -> None:
        """Store a job's progress, any JSON value, as Node's ``job.updateProgress``; listeners get an event.

        Raises:
            JobNotFound: there is no such job.
        """
        await self._update(ref, "progress", encode_json(progress, field="progress", max_size=self._max_payload))

    async def _update(self, ref: JobRef, field: str, text: str) -> None:
        if not await self._engine.run_plan(self._script("update_job", ref.queue, ref.id, field, text)):
            raise JobNotFound(f"there is no job {ref}")

    async def progress(self, ref: JobRef) -> Any:
        """Read a job's progress as it was stored: a number, an object, a list or a string; None: none was stored."""
        key = f"{self._keys.base(ref.queue)}{ref.id}"
        return rows.value_of(await self._engine.run_plan(_command("HGET", key, "progress")))

    # Children

    async def children_values(self, ref: JobRef) -> dict[str, Any]:
        """Read what a job's children have returned, by their keys (``bull:queue:id``), as ``job.getChildrenValues``."""
        found = await self._children(ref, "processed")
        return {key: rows.value_of(text) for key, text in found.items()}

    async def ignored_children_failures(self, ref: JobRef) -> dict[str, str]:
        """Read why children failed whose failure was ignored, by their keys, as ``job.getIgnoredChildrenFailures``."""
        return await self._children(ref, "failed")

    async def _children(self, ref: JobRef, kind: str) -> dict[str, str]:
        key = f"{self._keys.base(ref.queue)}{ref.id}:{kind}"
        fields = await self._engine.run_plan(_command("HGETALL", key))
        return fields if isinstance(fields, dict) else rows.pairs(fields)

    async def wait_for_children(self, context: Any) -> bool:
        """Let the job that a handler runs wait for its children; True: it waits, and the handler must return at once.

        The last child makes the job ready, and its handler runs from the start, at no cost of an attempt: keep in the
        data where to go on (:meth:`update_data`). False: no child is pending.

        Args:
            context: what the handler was given.

        Raises:
            ClaimLost: the job is no longer this handler's.
            DoNotRetry: a child has failed, and its failure was to fail the parent.
        """
        if self._handlers is None:
            raise InvalidValue("context", context, "can only be used with bullmq_of(app)")
        claim = self._handlers.claim_of(context)
        queue, id, token, _ = claim.token
        answer = await self._engine.run_plan(self._script("wait_for_children", str(queue), id, token))
        if answer == "lost":
            raise ClaimLost(f"job {claim.ref} is no longer held by this worker")
        if answer == "failed":
            raise self._handlers.do_not_retry(f"a child of job {claim.ref} has failed")
        return bool(answer == "waiting")

    async def remove_deduplication_key(self, queue: str, id: str) -> bool:
        """Let another job of a deduplication id in from now on; answer whether there was one that stood for it."""
        base = self._keys.base(queue)
        return bool(await self._engine.run_plan(_command("DEL", f"{base}de:{id}")))

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

        ``repeat`` is as :class:`~onward.engines.bullmq.native_options.Repeat` says, ``options`` are those of its jobs.
        Whoever picks a job of a scheduler up, in Python or Node, makes the next.
        """
        if not isinstance(id, str) or not id or ":" in check_text("id", id):
            raise InvalidValue("id", id, "must be a non-empty string without ':', which parts BullMQ's keys")
        job_options, repeat_options = options_of(JobOptions, options or {}), options_of(Repeat, repeat)
        for field in ("job_id", "delay", "parent"):
            if getattr(job_options, field):
                raise InvalidValue(
                    field, getattr(job_options, field), "cannot be said of a scheduler's jobs: it has its own"
                )
        job = self._row(queue, name or id, data, job_options)

        def plan() -> Plan[Any]:
            yield from self._engine.registry.check([queue])
            return (
                yield from schedules.upsert(
                    self._keys, queue, id, repeat_options, job, job_options.members(self._prefix)
                )
            )

        answer = await self._engine.run_plan(plan())
        if not answer[0]:
            raise InvalidValue("id", id, f"cannot be: {answer[1]}")
        self._engine.notify({queue})
        return Enqueued(JobRef(queue, str(answer[0])))

    async def remove_job_scheduler(self, queue: str, id: str) -> bool:
        """Have no more jobs made by the clock; answer whether there were to be some."""
        return bool(await self._engine.run_plan(self._script("remove_scheduler", queue, id)))

    async def job_schedulers(self, queue: str) -> list[Scheduler]:
        """List what makes jobs by the clock, the next first."""
        return await self._engine.run_plan(self._schedulers(queue))

    def _schedulers(self, queue: str) -> Plan[list[Scheduler]]:
        base = self._keys.base(queue)
        (ids,) = yield [("ZRANGE", f"{base}repeat", 0, -1)]
        commands = [
            command for id in ids for command in (("ZSCORE", f"{base}repeat", id), ("HGETALL", f"{base}repeat:{id}"))
        ]
        answers = yield commands
        found = []
        for id, due, fields in zip(ids, answers[::2], answers[1::2], strict=True):
            settings = fields if isinstance(fields, dict) else rows.pairs(fields)
            every, iteration_count = settings.get("every"), settings.get("ic")
            found.append(
                Scheduler(
                    id=id,
                    name=settings.get("name", id),
                    next=int(float(due or 0)),
                    iteration_count=int(iteration_count or 0),
                    every=None if every is None else int(float(every)),
                    pattern=settings.get("pattern"),
                    tz=settings.get("tz"),
                    data=rows.value_of(settings.get("data", "{}")),
                )
            )
        return found

    # Queues

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        """Remove all jobs that wait, and with ``delayed`` those whose time has not come; answer how many.

        Jobs that are active or have ended stay, and so do the next jobs of schedulers.
        """
        locations = ["wait", "paused", *(["delayed"] if delayed else []), "prioritized"]
        removed = 0
        while True:
            some = int(await self._engine.run_plan(self._script("drain", queue, _BATCH_SIZE, *locations)))
            removed += some
            if some < _BATCH_SIZE:
                return removed

    async def clean(self, queue: str, *, grace: int = 0, limit: int = 0, state: JobState = "completed") -> list[str]:
        """Remove jobs that have been in a state for longer than ``grace``, at most ``limit`` (0: all); say which."""
        if state not in JOB_STATES:
            raise InvalidValue("state", state, f"must be one of {', '.join(JOB_STATES)}")
        check_at_least("grace", grace, 0)
        check_at_least("limit", limit, 0)
        location = "wait" if state == "waiting" else state
        return await self._engine.run_plan(self._clean(queue, location, grace, limit))

    def _clean(self, queue: str, location: str, grace: int, limit: int) -> Plan[list[str]]:
        (now,) = yield [script("server_time", self._keys, [self._keys.workers])]
        latest, skipped = int(now) // 1000 - grace, 0
        cleaned: list[str] = []
        while True:
            batch = min(_BATCH_SIZE, limit - len(cleaned)) if limit else _BATCH_SIZE
            seen, *some = yield from self._script("clean", queue, location, latest, batch, skipped)
            cleaned += some
            skipped += int(seen) - len(some)
            # With a limit BullMQ looks at no more jobs than that, old enough or not.
            if int(seen) < batch or (limit and (len(some) < batch or len(cleaned) == limit)):
                return cleaned

    async def obliterate(self, queue: str, *, force: bool = False) -> None:
        """Remove a queue with all that was ever in it. It is paused first, and stays so if jobs are active.

        Raises:
            InvalidValue: jobs are active, and it was not told to ``force`` it.
        """
        await self._engine.configure(queue, QueueChange(paused=True))
        while True:
            outcome = await self._engine.run_plan(self._script("obliterate", queue, _BATCH_SIZE, "1" if force else ""))
            if outcome == "done":
                return
            if outcome == "active":
                raise InvalidValue("queue", queue, "has active jobs: wait for them, or say force=True")

    # Events

    async def set_max_events(self, queue: str, count: int) -> None:
        """Keep about so many events of a queue from now on; BullMQ's own default is 10 000."""
        check_at_least("count", count, 0)
        meta = self._keys.meta(queue)
        await self._engine.run_plan(_command("HSET", meta, "opts.maxLenEvents", count))

    async def trim_events(self, queue: str, count: int) -> int:
        """Remove events until about so many are left, the oldest first; answer how many went."""
        check_at_least("count", count, 0)
        return int(
            await self._engine.run_plan(_command("XTRIM", f"{self._keys.base(queue)}events", "MAXLEN", "~", count))
        )


def _enqueued(queue: str, answer: Sequence[str]) -> Enqueued:
    enqueue_status = {"duplicated": EnqueueStatus.SAME_KEY, "deduped": EnqueueStatus.DEDUPED}.get(
        answer[0], EnqueueStatus.INSERTED
    )
    return Enqueued(JobRef(queue, answer[1]), enqueue_status)


def _command(*command: Any) -> Plan[Any]:
    (answer,) = yield [command]
    return answer
