"""Usage, metrics, capabilities, health, doctor, tick."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from onward.http.endpoints import Call, Reply, endpoint
from onward.service.status import Diagnosis, Health
from onward.service.values import CapabilitiesView, UsageRows
from onward.worker.one_shot import TickReport

METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


class UsageParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs, and how to sum them up."""

    bucket: Literal["minute", "day", "all"] = "day"
    by: tuple[Literal["org_id", "queue", "type", "outcome"], ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    org_id: str | None = None
    queue: str | None = None
    type: str | None = None


class TickParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one tick may do."""

    limit: int = 100
    timeout: float = 25.0
    """Seconds."""


async def usage(call: Call) -> UsageRows:
    query: UsageParameters = call.query
    return await call.services.status.usage(
        call.identity,
        bucket=query.bucket,
        by=query.by,
        since=query.since,
        until=query.until,
        org_id=query.org_id,
        queue=query.queue,
        type=query.type,
    )


async def metrics(call: Call) -> Reply:
    return Reply(text=await call.services.status.metrics(call.identity), media_type=METRICS)


async def capabilities(call: Call) -> CapabilitiesView:
    return await call.services.status.capabilities(call.identity)


async def health(call: Call) -> Reply:
    state = await call.services.status.health(call.identity)
    return Reply(value=state, status=200 if state.ok else 503)


async def doctor(call: Call) -> Diagnosis:
    return await call.services.status.doctor(call.identity)


async def tick(call: Call) -> TickReport:
    return await call.services.status.tick(call.identity, limit=call.query.limit, timeout=call.query.timeout)


ENDPOINTS: Final = (
    endpoint("GET", "/usage", "usage.read", usage, query=UsageParameters, returns=UsageRows),
    endpoint("GET", "/metrics", "metrics.read", metrics, returns=str, media_types=("text/plain",)),
    endpoint("GET", "/capabilities", "capabilities.read", capabilities, returns=CapabilitiesView),
    endpoint("GET", "/health", "health.read", health, returns=Health),
    endpoint("GET", "/doctor", "doctor.read", doctor, returns=Diagnosis),
    endpoint("POST", "/tick", "tick.run", tick, query=TickParameters, returns=TickReport),
    # Schedulers of serverless hosts send GET (A6). No cookie counts: a link must not run jobs.
    endpoint("GET", "/tick", "tick.run", tick, query=TickParameters, returns=TickReport, bearer_only=True,
             id_suffix=".get"),
)  # fmt: skip
