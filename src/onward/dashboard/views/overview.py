"""The first page: what is wrong, what runs, what waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

from onward.dashboard.charts import Chart
from onward.dashboard.frame import oldest_wait, percent
from onward.dashboard.pulse import Beat
from onward.dashboard.series import RANGES, per_queue, throughput
from onward.dashboard.views.queues import QueueRow, hour_of, queue_row
from onward.dashboard.views.rows import Row, rows
from onward.dashboard.visit import Screen, Visit
from onward.dashboard.wording import number, span
from onward.engine.capabilities import Feature
from onward.http.names import encode_name
from onward.lifecycle import HELD, JobStatus
from onward.metering import Usage
from onward.service.doctor import Finding, Level
from onward.service.values import JobQuery

_BUSIEST: Final = 8
_FAILED: Final = 4
_SLOW: Final = 60.0


class Stat(msgspec.Struct, frozen=True, kw_only=True):
    """A number at the top of the page."""

    label: str
    value: str
    aside: str = ""
    path: str = ""
    kind: str = ""
    """``warn`` or ``bad``: it deserves a look."""


class OverviewPage(msgspec.Struct, frozen=True, kw_only=True):
    """The first page."""

    findings: tuple[Finding, ...]
    stats: tuple[Stat, ...]
    chart: Chart | None
    no_chart: str
    queues: tuple[QueueRow, ...] | None
    queue_total: int
    failures: tuple[Row, ...]
    is_new: bool
    """The store has no job and no worker yet."""


async def show(visit: Visit) -> Screen:
    """Show the first page."""
    services, who = visit.services, visit.identity
    beat = await visit.pulse.current() or Beat(at=visit.now)
    usage, minutes = await hour_of(visit), RANGES[0]
    states = frozenset(map(visit.capabilities.shown, (JobStatus.DEAD_LETTER, JobStatus.FAILED)))
    recent = JobQuery(status=tuple(sorted(states)))

    async def read_failures() -> tuple[Row, ...]:
        return rows(visit, (await services.jobs.list(who, recent, limit=_FAILED)).items)

    failures = await visit.reads.get(("failures", visit.scope), read_failures, fresh_for=0.5)
    sparks = per_queue(usage or (), minutes, visit.now)
    busiest = sorted(beat.queues or (), key=lambda one: (-sum(one.counts.get(each, 0) for each in _OPEN), one.name))
    page = OverviewPage(
        findings=await _findings(visit),
        stats=_stats(visit, beat, usage),
        chart=None if usage is None else throughput(usage, minutes, visit.now),
        no_chart=visit.capabilities.features[Feature.USAGE].note,
        queues=None
        if beat.queues is None
        else tuple(queue_row(visit, one, sparks.get(one.name)) for one in busiest[:_BUSIEST]),
        queue_total=len(beat.queues or ()),
        failures=failures,
        is_new=not any(beat.counts.values()) and not beat.workers,
    )
    return Screen(template="overview.html", title="Overview", section="overview", page=page)


_OPEN: Final = (JobStatus.PENDING, JobStatus.RUNNING, JobStatus.CLAIMED, JobStatus.SCHEDULED)


async def _findings(visit: Visit) -> tuple[Finding, ...]:
    if not visit.may("doctor.read"):
        return ()

    async def read() -> tuple[Finding, ...]:
        found = (await visit.services.status.doctor(visit.identity)).findings
        return tuple(one for one in found if one.level is Level.PROBLEM)

    return await visit.reads.soon(("doctor", visit.scope), read, fresh_for=5.0, wait=0.5) or ()


def _stats(visit: Visit, beat: Beat, usage: tuple[Usage, ...] | None) -> tuple[Stat, ...]:
    stats = []
    if usage is not None:
        recent = sum(row.runs for row in usage if row.at and visit.now - row.at <= timedelta(minutes=5))
        stats.append(
            Stat(label="Runs", value=f"{number(round(recent / 5, 1) if recent < 50 else recent // 5)}/min",
                 aside=f"{number(beat.runs)} last hour", path="/usage")
        )  # fmt: skip
    slots = sum(worker.pool_size for worker in beat.workers or ())
    running = beat.count(*HELD)
    stats.append(
        Stat(label="Running", value=number(running), aside=f"of {number(slots)} slots" if beat.workers is not None
             else "jobs", path="/jobs?q=state:running,claimed")
    )  # fmt: skip
    scheduled = f"{number(beat.count(JobStatus.SCHEDULED))} scheduled"
    waiting = number(beat.count(JobStatus.PENDING))
    stats.append(Stat(label="Pending", value=waiting, aside=scheduled, path="/jobs?q=state:pending"))
    if beat.queues is not None:
        wait, queue = oldest_wait(beat), beat.oldest_ready
        stats.append(
            Stat(label="Oldest ready job", value=span(wait) if wait is not None else "none",
                 aside=queue.name if queue else "nothing waits",
                 path=f"/queues/{encode_name(queue.name)}" if queue else "/queues",
                 kind="warn" if wait is not None and wait > _SLOW else "")
        )  # fmt: skip
    if usage is not None:
        rate = beat.failure_rate
        stats.append(
            Stat(label="Failure rate", value="–" if rate is None else percent(rate), aside="of runs, last hour",
                 path="/usage", kind="bad" if rate is not None and rate >= 0.05 else "")
        )  # fmt: skip
    dead = beat.count(visit.capabilities.shown(JobStatus.DEAD_LETTER))
    stats.append(Stat(label="Dead letters", value=number(dead), aside="until purged", path="/dead",
                      kind="bad" if dead else ""))  # fmt: skip
    if usage is None and beat.workers is not None:
        stats.append(Stat(label="Workers", value=number(len(beat.workers)), path="/workers"))
    return tuple(stats)
