"""pg-boss's own verbs from Python, for what Onward's API has no words for.

::

    boss = pgboss_of(app)
    await boss.create_queue("mail", policy="short", dead_letter="mail-failed")
    await boss.send("mail", {"to": "ada"}, singleton_key="ada", expire_in_seconds=60)
    await boss.send_debounced("digest", {"user": 7}, 300, key="7")
    await boss.schedule("report", "0 6 * * *", {"kind": "daily"}, tz="Europe/Berlin")
    await boss.publish("user-created", {"id": 7})

Names are pg-boss's in snake case, and so are the options; times are in seconds, as there. Jobs are the same jobs: a
task of the App whose queue and type are that name runs them, and so does a Node worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from onward.clock import SystemClock, moment_of
from onward.engines.pgboss import admin, enqueue
from onward.engines.pgboss.engine import PgBossEngine
from onward.engines.pgboss.enqueue import SendRequest
from onward.engines.pgboss.filters import is_id
from onward.engines.pgboss.options import QueueOptions, SendOptions, check_supported, options_of, send_request_of
from onward.errors import InvalidValue, Unsupported
from onward.job import Enqueued
from onward.pg.plan_runner import Plan
from onward.validation import check_queue_name, encode_json

POLICIES = ("standard", "short", "singleton", "stately", "exclusive", "key_strict_fifo")


class Schedule(NamedTuple):
    """What is sent by the clock."""

    queue: str
    key: str
    kind: str
    cron: str
    timezone: str
    data: Any
    options: dict[str, Any]


class PgBoss:
    """The verbs of one pg-boss."""

    def __init__(self, engine: PgBossEngine) -> None:
        self._engine = engine
        self._schema = engine.schema
        self._queue_cache = engine.queue_cache

    # Queues

    async def create_queue(self, name: str, **options: Any) -> None:
        """Make a queue; of one that is there, nothing changes. See :class:`QueueOptions`."""
        check_queue_name(name)
        parsed = options_of(QueueOptions, options)
        check_supported(self._schema, parsed)
        if "policy" in options and parsed.policy not in POLICIES:
            raise InvalidValue("policy", parsed.policy, f"must be one of {', '.join(POLICIES)}")
        if parsed.policy in POLICIES[4:] and not self._schema.has(f"policy.{parsed.policy}"):
            note = f"schema {self._schema.probe.version} has nothing to hold it; upgrade pg-boss there"
            raise Unsupported("pg-boss", f"policy {parsed.policy}", note)
        values = {"policy": "standard", **msgspec.to_builtins(parsed)}
        await self._engine.run_plan(lambda: admin.create(self._schema, name, values), atomic=True)
        self._queue_cache.invalidate()

    async def update_queue(self, name: str, **options: Any) -> bool:
        """Change what a queue is told, and answer whether there is one. Its policy cannot be changed."""
        parsed = options_of(QueueOptions, options)
        check_supported(self._schema, parsed)
        for fixed in ("policy", "partition"):
            if getattr(parsed, fixed) is not msgspec.UNSET:
                raise InvalidValue(fixed, getattr(parsed, fixed), "is for good: make another queue")
        values = [name, msgspec.json.encode(parsed).decode()]
        rows = await self._engine.execute("update_queue", values)
        self._queue_cache.invalidate()
        return bool(rows)

    async def delete_queue(self, name: str) -> None:
        """Remove a queue and all its jobs."""
        await self._engine.execute("delete_queue", [name])
        self._queue_cache.invalidate()

    # Jobs

    async def send(
        self, queue: str, data: Any = None, *, connection: object | None = None, **options: Any
    ) -> str | None:
        """Send a job, and answer its id; None: a throttle or a policy refused it. See :class:`SendOptions`."""
        (answer,) = await self.insert(queue, [data], connection=connection, **options)
        return answer

    async def insert(
        self, queue: str, jobs: Sequence[Any], *, connection: object | None = None, **options: Any
    ) -> list[str | None]:
        """Send many jobs with the same options, all or none but those that are refused."""
        parsed = options_of(SendOptions, options)
        check_supported(self._schema, parsed)
        ids = self._engine.ids.generate(len(jobs))
        datas = [None if data is None else encode_json(data, field="data") for data in jobs]
        requests = [send_request_of(queue, data, id, parsed) for data, id in zip(datas, ids, strict=True)]
        answers = await self._engine.run_plan(lambda: self._send(requests), connection=connection)
        if parsed.singleton_next_slot and parsed.singleton_seconds is not None:
            next_slot_requests = [_next_slot(request, parsed.singleton_seconds) for request in requests]
            refused = [at for at, answer in enumerate(answers) if not answer.is_new]
            if refused:
                retried = await self._engine.run_plan(
                    lambda: self._send([next_slot_requests[at] for at in refused]), connection=connection
                )
                for at, answer in zip(refused, retried, strict=True):
                    answers[at] = answer
        return [answer.id if answer.is_new else None for answer in answers]

    async def send_throttled(
        self, queue: str, data: Any, seconds: int, *, key: str | None = None, **options: Any
    ) -> str | None:
        """Send a job, unless one was sent in this slot of so many seconds."""
        return await self.send(queue, data, singleton_seconds=seconds, singleton_key=key, **options)

    async def send_debounced(
        self, queue: str, data: Any, seconds: int, *, key: str | None = None, **options: Any
    ) -> str | None:
        """Send a job; if one was sent in this slot, once more for the next slot, and then no more."""
        return await self.send(
            queue, data, singleton_seconds=seconds, singleton_next_slot=True, singleton_key=key, **options
        )

    def _send(self, requests: list[SendRequest]) -> Plan[list[Enqueued]]:
        return enqueue.send(self._schema, self._queue_cache, requests, notify=self._engine.notifies)

    async def resume(self, queue: str, *ids: str) -> list[str]:
        """Let cancelled jobs wait again; answer which."""
        return await self._move("resume", queue, ids)

    async def retry(self, queue: str, *ids: str) -> list[str]:
        """Give failed jobs one attempt more; answer which."""
        return await self._move("retry", queue, ids)

    async def _move(self, verb: str, queue: str, ids: Sequence[str]) -> list[str]:
        rows = await self._engine.execute(verb, [queue, [id for id in ids if is_id(id)]])
        return [row[0] for row in rows]

    # Schedules

    async def schedule(
        self, queue: str, cron: str, data: Any = None, *, key: str = "", tz: str = "UTC", **options: Any
    ) -> None:
        """Have a job sent by the clock, by any Node instance, or by a worker of ours that supervises."""
        _check_cron(cron, tz)
        parsed = options_of(SendOptions, options)
        if key and not self._schema.has("schedule.key"):
            raise InvalidValue("key", key, "cannot be given: before pg-boss 11 a queue has one schedule")
        await self._engine.run_plan(lambda: self._require_queue(queue))
        kept = {name: value for name, value in msgspec.to_builtins(parsed).items() if value not in (None, False)}
        text = None if data is None else encode_json(data, field="data")
        values = [queue, key, cron, tz, text, msgspec.json.encode({**kept, "tz": tz}).decode()]
        await self._engine.execute("schedule", values)

    async def unschedule(self, queue: str, *, key: str = "") -> bool:
        """Have no more jobs sent by the clock; answer whether there were to be some."""
        return bool(await self._engine.execute("unschedule", [queue, key]))

    async def schedules(self) -> list[Schedule]:
        """List what is sent by the clock."""
        found = []
        for queue, key, kind, cron, timezone, data, options, _ in await self._engine.execute("schedules"):
            parsed = None if data is None else msgspec.json.decode(data)
            found.append(Schedule(queue, key, kind, cron, timezone, parsed, msgspec.json.decode(options or "{}")))
        return found

    # Events

    async def subscribe(self, event: str, queue: str) -> None:
        """Have a queue get a job for each event of a name."""
        await self._engine.run_plan(lambda: self._require_queue(queue))
        await self._engine.execute("subscribe", [event, queue])

    async def unsubscribe(self, event: str, queue: str) -> bool:
        """Have a queue get no more of them; answer whether it got some."""
        return bool(await self._engine.execute("unsubscribe", [event, queue]))

    async def publish(
        self, event: str, data: Any = None, *, connection: object | None = None, **options: Any
    ) -> list[str | None]:
        """Send a job to each queue that has subscribed, and answer their ids."""
        rows = await self._engine.execute("subscribers", [event])
        return [await self.send(row[0], data, connection=connection, **options) for row in rows]

    def _require_queue(self, queue: str) -> Plan[None]:
        yield from self._queue_cache.find([queue])


def _next_slot(request: SendRequest, seconds: int) -> SendRequest:
    """Move a job into the next slot, to start with it."""
    now = SystemClock().micros() / 1e6
    delay = timedelta(seconds=seconds - now % seconds)
    return msgspec.structs.replace(request, singleton_offset=seconds, delay=delay, run_at=None)


def _check_cron(cron: str, tz: str) -> None:
    try:
        zone = ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        raise InvalidValue("tz", tz, "must be a time zone such as Europe/Berlin") from None
    try:
        CronSim(cron, moment_of(0).astimezone(zone))
    except CronSimError as error:
        raise InvalidValue("cron", cron, f"must be five fields of cron: {error}") from None
