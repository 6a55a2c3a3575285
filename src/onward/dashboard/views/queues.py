"""Queues: depth, latency, throughput; pause, limits, retention."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from onward.dashboard import durations
from onward.dashboard.charts import Chart, Line, spark
from onward.dashboard.frame import queue_pill
from onward.dashboard.search import parse
from onward.dashboard.series import RANGES, Range, latency, per_queue, range_of, throughput
from onward.dashboard.views.rows import Row, Tab, rows, tabs
from onward.dashboard.visit import Confirmation, Redirect, Screen, Visit
from onward.dashboard.wording import Moment, Pill, number, shortened, span
from onward.engine.capabilities import Feature
from onward.errors import InvalidValue
from onward.http.names import encode_name
from onward.lifecycle import HELD, JobStatus
from onward.metering import Usage
from onward.service.values import JobQuery, QueueSettingsChange, QueueView, RateView, RetentionChange

_SLOW: Final = 60.0
_MOST: Final = 500
_PERIODS: Final = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "d"}


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queue in a table."""

    name: str
    path: str
    state: Pill
    pending: str
    latency: str
    is_slow: bool
    running: str
    scheduled: str
    bad: str
    limits: str
    spark: Line | None
    runs: str
    can_pause: bool
    is_paused: bool


class QueuesPage(msgspec.Struct, frozen=True, kw_only=True):
    """All queues."""

    rows: tuple[QueueRow, ...]
    total: int
    pattern: str
    order: str
    mistake: str = ""
    hidden: int = 0
    has_usage: bool = True


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a form."""

    name: str
    label: str
    value: str
    hint: str = ""


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    """A queue."""

    name: str
    path: str
    state: Pill
    is_paused: bool
    pause_reason: str
    paused_by: str
    paused_at: Moment | None
    latency: str
    next_permit: Moment | None
    limits: str
    tabs: tuple[Tab, ...]
    jobs: tuple[Row, ...]
    charts: tuple[Chart, ...]
    no_chart: str
    ranges: tuple[Range, ...]
    current: str
    can_pause: bool
    can_configure: bool
    limit_fields: tuple[Field, ...]
    retention_fields: tuple[Field, ...]
    mistake: str = ""
    commands: tuple[str, ...] = ()
    search: str = ""


async def show_all(visit: Visit) -> Screen:
    """List queues. Where there are very many, the busiest, or those of a pattern."""
    pattern, order = visit.query.get("pattern", ""), visit.query.get("order", "busy")
    mistake = ""

    async def read() -> tuple[QueueView, ...]:
        return (await visit.services.queues.list(visit.identity, pattern=pattern or "*")).items

    try:
        found = (
            await visit.reads.get(("queues", visit.scope, pattern), read, fresh_for=1.0)
            if visit.is_live
            else await read()
        )
    except InvalidValue as error:
        found, mistake = (), str(error)
    usage = await hour_of(visit)
    sparks = per_queue(usage or (), RANGES[0], visit.now)
    ordered = sorted(found, key=lambda one: one.name if order == "name" else (-_busy(one), one.name))
    page = QueuesPage(
        rows=tuple(queue_row(visit, one, sparks.get(one.name)) for one in ordered[:_MOST]),
        total=len(found),
        pattern=pattern,
        order=order,
        mistake=mistake,
        hidden=max(0, len(found) - _MOST),
        has_usage=usage is not None,
    )
    return Screen(template="queues.html", title="Queues", section="queues", page=page)


def _busy(queue: QueueView) -> int:
    return sum(queue.counts.get(each, 0) for each in (JobStatus.PENDING, JobStatus.RUNNING, JobStatus.CLAIMED))


async def hour_of(visit: Visit) -> tuple[Usage, ...] | None:
    """Read the usage of the last hour by queue and outcome; None: the store has none, or the caller may not."""
    if not visit.has(Feature.USAGE) or not visit.may("usage.read"):
        return None

    async def read() -> tuple[Usage, ...]:
        over = RANGES[0]
        found = await visit.services.status.usage(
            visit.identity, bucket=over.bucket, by=["queue", "outcome"], since=over.start(visit.now)
        )
        return found.items

    return await visit.reads.get(("hour", visit.scope), read, fresh_for=2.0)


def queue_row(visit: Visit, queue: QueueView, runs: Sequence[float] | None) -> QueueRow:
    """Show a queue in a table."""
    counts = queue.counts
    wait = None if queue.oldest_ready_at is None else max(0.0, (visit.now - queue.oldest_ready_at).total_seconds())
    bad = counts.get(JobStatus.FAILED, 0) + counts.get(JobStatus.DEAD_LETTER, 0)
    return QueueRow(
        name=queue.name,
        path=f"/queues/{encode_name(queue.name)}",
        state=queue_pill(paused=queue.paused),
        pending=number(counts.get(JobStatus.PENDING, 0)),
        latency=span(wait),
        is_slow=wait is not None and wait > _SLOW,
        running=number(sum(counts.get(each, 0) for each in HELD)),
        scheduled=number(counts.get(JobStatus.SCHEDULED, 0)),
        bad=number(bad) if bad else "",
        limits=limits_of(queue),
        spark=spark(runs) if runs else None,
        runs=number(int(sum(runs))) if runs else "",
        can_pause=visit.has(Feature.PAUSE) and visit.may("queues.pause"),
        is_paused=queue.paused,
    )


def limits_of(queue: QueueView) -> str:
    """Write the limits of a queue."""
    limits = []
    if queue.rate is not None:
        limits.append(rate_text(queue.rate))
    if queue.global_concurrency is not None:
        limits.append(f"{queue.global_concurrency} at once")
    return ", ".join(limits)


def rate_text(rate: RateView | None) -> str:
    """Write a rate as it is typed."""
    if rate is None:
        return ""
    unit = _PERIODS.get(rate.period)
    return f"{rate.count}/{unit}" if unit else f"{rate.count}/{durations.write(rate.period)}"


async def show(visit: Visit) -> Screen:
    """Show a queue."""
    return await _screen(visit)


async def _screen(visit: Visit, mistake: str = "") -> Screen:
    services, who, name = visit.services, visit.identity, visit.path["queue"]

    async def read() -> tuple[QueueView, tuple[Row, ...]]:
        queue = await services.queues.get(who, name)
        return queue, rows(visit, (await services.jobs.list(who, JobQuery(queue=(name,)), limit=15)).items)

    queue, jobs = (
        await visit.reads.get(("queue", visit.scope, name), read, fresh_for=0.5) if visit.is_live else await read()
    )
    over = range_of(visit.query.get("range", ""))
    charts: tuple[Chart, ...] = ()
    if visit.has(Feature.USAGE) and visit.may("usage.read"):

        async def usage() -> tuple[Usage, ...]:
            since = over.start(visit.now)
            found = await services.status.usage(who, bucket=over.bucket, by=["outcome"], since=since, queue=name)
            return found.items

        found = await visit.reads.get(("usage", visit.scope, name, over.name), usage, fresh_for=2.0)
        charts = (throughput(found, over, visit.now), latency(found, over, visit.now))
    search = parse("").plus("queue", name)
    wait = None if queue.oldest_ready_at is None else max(0.0, (visit.now - queue.oldest_ready_at).total_seconds())
    page = QueuePage(
        name=name,
        path=f"/queues/{encode_name(name)}",
        state=queue_pill(paused=queue.paused),
        is_paused=queue.paused,
        pause_reason=queue.pause_reason or "",
        paused_by=queue.paused_by or "",
        paused_at=visit.moment(queue.paused_at),
        latency=span(wait),
        next_permit=visit.moment(queue.next_permit_at)
        if queue.next_permit_at and queue.next_permit_at > visit.now
        else None,
        limits=limits_of(queue),
        tabs=tabs(parse(search), queue.counts, visit.capabilities),
        jobs=jobs,
        charts=charts,
        no_chart=visit.capabilities.features[Feature.USAGE].note,
        ranges=RANGES,
        current=over.name,
        can_pause=visit.has(Feature.PAUSE) and visit.may("queues.pause"),
        can_configure=visit.may("queues.configure"),
        limit_fields=_limit_fields(visit, queue),
        retention_fields=_retention_fields(visit, queue),
        mistake=mistake,
        commands=(
            f"onward queues {'resume' if queue.paused else 'pause'} {shlex.quote(name)}",
            f"onward queues configure {shlex.quote(name)} --rate 600/min",
        ),
        search=search,
    )
    return Screen(
        template="queue.html", title=shortened(name, 60), section="queues", page=page, status=400 if mistake else 200
    )


def _limit_fields(visit: Visit, queue: QueueView) -> tuple[Field, ...]:
    fields = []
    if visit.has(Feature.RATE):
        fields.append(
            Field(name="rate", label="Rate", value=rate_text(queue.rate), hint="600/min, 10/s; empty: no limit")
        )
    if visit.has(Feature.CONCURRENCY):
        fields.append(
            Field(name="global_concurrency", label="Running at once", value=_text(queue.global_concurrency),
                  hint="by all workers together; empty: no limit")
        )  # fmt: skip
    if visit.has(Feature.WEIGHT):
        fields.append(
            Field(name="weight", label="Weight", value=str(queue.weight), hint="share of a claim over several queues")
        )
    if visit.has(Feature.QUEUE_DEFAULTS):
        fields.append(
            Field(
                name="max_attempts",
                label="Attempts",
                value=_text(queue.max_attempts),
                hint="for jobs that do not say; empty: 5",
            )
        )
    return _given(visit, fields)


def _retention_fields(visit: Visit, queue: QueueView) -> tuple[Field, ...]:
    if not visit.has(Feature.RETENTION):
        return ()
    kept = queue.retention
    fields = [
        Field(
            name="completed",
            label="Completed",
            value=durations.write(kept.completed),
            hint="7d, 12h; empty: until purged",
        ),
        Field(
            name="failed",
            label="Failed and dead letters",
            value=durations.write(kept.failed),
            hint="empty: until purged",
        ),
        Field(name="cancelled", label="Cancelled", value=durations.write(kept.cancelled), hint="empty: until purged"),
    ]
    if visit.has(Feature.ARCHIVE):
        fields.append(
            Field(
                name="archived",
                label="In the archive",
                value=durations.write(kept.archived),
                hint="from then on; 0s: not at all",
            )
        )
    return _given(visit, fields)


def _given(visit: Visit, fields: Sequence[Field]) -> tuple[Field, ...]:
    form = visit.form
    return tuple(
        msgspec.structs.replace(one, value=form.text(one.name)) if form.has(one.name) else one for one in fields
    )


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


# Actions --------------------------------------------------------------------------------------------------------------


async def pause(visit: Visit) -> Redirect:
    """Pause the queue."""
    name = visit.path["queue"]
    await visit.services.queues.pause(visit.identity, name, reason=visit.form.optional("reason"))
    return Redirect(path=f"/queues/{encode_name(name)}", note="paused")


async def resume(visit: Visit) -> Redirect:
    """Resume the queue."""
    name = visit.path["queue"]
    await visit.services.queues.resume(visit.identity, name)
    return Redirect(path=f"/queues/{encode_name(name)}", note="resumed")


async def configure(visit: Visit) -> Screen | Redirect:
    """Change limits or retention: what the form has and differs."""
    name, form = visit.path["queue"], visit.form
    queue = await visit.services.queues.get(visit.identity, name)
    try:
        fields: dict[str, Any] = {}
        if form.has("rate") and form.text("rate") != rate_text(queue.rate):
            fields["rate"] = form.optional("rate")
        for field in ("global_concurrency", "weight", "max_attempts"):
            if form.has(field) and form.text(field) != _text(getattr(queue, field)):
                fields[field] = form.whole(field)
        kept: dict[str, Any] = {
            field: durations.read(field, form.text(field))
            for field in ("completed", "failed", "cancelled", "archived")
            if form.has(field) and form.text(field) != durations.write(getattr(queue.retention, field))
        }
        if fields.get("weight", 1) is None:
            raise InvalidValue("weight", "", "must be a whole number of at least 1")
        if not fields and not kept:
            return Redirect(path=f"/queues/{encode_name(name)}")
        if _shortens(queue, kept):
            visit.confirm(
                Confirmation(
                    title=f"Keep jobs of {name} for a shorter time?",
                    text="Ended jobs that are older are removed within a minute, and cannot be restored.",
                    verb="Change the retention",
                )
            )
        change = QueueSettingsChange(**fields, retention=RetentionChange(**kept) if kept else UNSET)
        await visit.services.queues.configure(visit.identity, name, change)
    except InvalidValue as error:
        return await _screen(visit, mistake=str(error))
    return Redirect(path=f"/queues/{encode_name(name)}", note="configured")


def _shortens(queue: QueueView, kept: dict[str, Any]) -> bool:
    for field, seconds in kept.items():
        before = getattr(queue.retention, field)
        if seconds is not None and (before is None or seconds < before):
            return True
    return False
