"""Usage: charts and sums of runs over the last hour, day, week or month."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from onward.dashboard.charts import Chart
from onward.dashboard.frame import percent
from onward.dashboard.pulse import FAILURES
from onward.dashboard.series import RANGES, Range, latency, percentile, range_of, throughput
from onward.dashboard.visit import Screen, Visit
from onward.dashboard.wording import number, span
from onward.metering import BOUNDS, BUCKETS, Usage, UsageBy

_MOST: Final = 100
_GROUPS: Final = {"queue": "Queue", "type": "Task", "org_id": "Organisation"}


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one queue, task or organisation."""

    name: str
    runs: str
    failures: str
    rate: str
    wait: str
    wait_tail: str
    run: str
    run_tail: str
    total: str


class UsagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage."""

    ranges: tuple[Range, ...]
    current: str
    groups: tuple[tuple[str, str], ...]
    by: str
    charts: tuple[Chart, ...]
    rows: tuple[UsageRow, ...]
    hidden: int
    runs: str
    rate: str
    busy: str
    queue: str
    type: str


async def show(visit: Visit) -> Screen:
    """Show usage."""
    over = range_of(visit.query.get("range", "day" if "range" not in visit.query else ""))
    by = visit.query.get("by", "queue")
    by = by if by in _GROUPS else "queue"
    queue, type = visit.query.get("queue", ""), visit.query.get("type", "")

    async def read() -> tuple[Usage, ...]:
        found = await visit.services.status.usage(
            visit.identity,
            bucket=over.bucket,
            by=[by, UsageBy.OUTCOME],
            since=over.start(visit.now),
            queue=queue or None,
            type=type or None,
        )
        return found.items

    key = ("usage-page", visit.scope, over.name, by, queue, type)
    usage = await visit.reads.get(key, read, fresh_for=2.0) if visit.is_live else await read()
    groups: dict[str, list[Usage]] = {}
    for row in usage:
        groups.setdefault(getattr(row, by) or "", []).append(row)
    ordered = sorted(groups.items(), key=lambda pair: (-sum(row.runs for row in pair[1]), pair[0]))
    runs = sum(row.runs for row in usage)
    failed = sum(row.runs for row in usage if row.outcome in FAILURES)
    page = UsagePage(
        ranges=RANGES,
        current=over.name,
        groups=tuple(_GROUPS.items()),
        by=by,
        charts=(throughput(usage, over, visit.now), latency(usage, over, visit.now)),
        rows=tuple(_row(name, found) for name, found in ordered[:_MOST]),
        hidden=max(0, len(ordered) - _MOST),
        runs=number(runs),
        rate=percent(failed / runs) if runs else "–",
        busy=span(sum(row.run_seconds for row in usage)),
        queue=queue,
        type=type,
    )
    return Screen(template="usage.html", title="Usage", section="usage", page=page)


def _row(name: str, usage: Iterable[Usage]) -> UsageRow:
    found = list(usage)
    runs = sum(row.runs for row in found)
    failures = sum(row.runs for row in found if row.outcome in FAILURES)
    waits = [sum(row.wait_histogram[at] for row in found) for at in range(BUCKETS)]
    spans = [sum(row.run_histogram[at] for row in found) for at in range(BUCKETS)]
    total = sum(row.run_seconds for row in found)
    return UsageRow(
        name=name or "none",
        runs=number(runs),
        failures=number(failures) if failures else "",
        rate=percent(failures / runs) if runs else "–",
        wait=span(sum(row.wait_seconds for row in found) / runs) if runs else "–",
        wait_tail=_tail(waits),
        run=span(total / runs) if runs else "–",
        run_tail=_tail(spans),
        total=span(total),
    )


def _tail(histogram: list[int]) -> str:
    """Write the 95th percentile, as far as the histogram tells it."""
    if not sum(histogram):
        return "–"
    found = percentile(histogram, 0.95)
    return f"> {span(BOUNDS[-1])}" if found is None else f"≤ {span(found)}"
