"""One queue, from both ends: through the engine, and as Node would find or leave it in Redis."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import redis

from onward.engine.values import Claim, ClaimRequest, Settlement
from onward.engines.bullmq.engine import BullMQEngine
from onward.job import Enqueued, JobRef, NewJob
from onward.lifecycle import Outcome


@dataclass(frozen=True)
class Queue:
    """A queue, with Node's words for what is in it."""

    engine: BullMQEngine
    client: redis.Redis
    prefix: str
    name: str

    def key(self, part: str) -> str:
        """The name of one of its keys."""
        return f"{self.prefix}:{self.name}:{part}"

    async def add(self, **fields: Any) -> Enqueued:
        """Add a job of ours."""
        (made,) = await self.engine.enqueue([NewJob(**{"type": "send", "queue": self.name, **fields})])
        return made

    def add_as_node(self, id: str, *, place: str = "wait", data: str = "{}", opts: Any = None, **fields: Any) -> None:
        """Leave a job as Node's BullMQ does."""
        text = opts if isinstance(opts, str) else json.dumps(opts or {"attempts": 0})
        self.client.hset(self.key("meta"), "opts.maxLenEvents", 10000)
        known: dict[Any, Any] = {"name": "send", "data": data, "opts": text, "timestamp": 1, "delay": 0, "priority": 0}
        self.client.hset(self.key(id), mapping=known | fields)
        if place in {"wait", "paused", "active"}:
            self.client.lpush(self.key(place), id)
        else:
            self.client.zadd(self.key(place), {id: fields.get("priority", 1) * 2**32})

    def job(self, id: str) -> dict[str, str]:
        """Read a job's hash."""
        found: Any = self.client.hgetall(self.key(id))
        return dict(found)

    def events(self) -> list[dict[str, str]]:
        """Read the events there are, without their ids."""
        found: Any = self.client.xrange(self.key("events"))
        return [fields for _, fields in found]

    async def take(self, slots: int = 1) -> tuple[Claim, ...]:
        """Claim jobs."""
        request = ClaimRequest(worker_id="worker-1", queues=(self.name,), slots=slots)
        return (await self.engine.claim(request)).claims

    async def settle(self, claim: Claim, outcome: Outcome) -> bool:
        """Settle a claim, and hear whether it was recorded."""
        return not await self.engine.settle([Settlement(claim, outcome)])

    def ref(self, id: str) -> JobRef:
        """Name a job."""
        return JobRef(self.name, id)
