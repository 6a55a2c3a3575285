"""How things stand, as Prometheus reads it: the text format, version 0.0.4. Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate, groupby

from onward.engine.values import QueueInfo, WorkerInfo
from onward.lifecycle import JobStatus
from onward.metering import BOUNDS, Usage


def exposition(
    queues: Sequence[QueueInfo], workers: Sequence[WorkerInfo], usage: Sequence[Usage], *, now: datetime | None = None
) -> str:
    """Write it. ``usage`` is told apart by queue, type and outcome."""
    at = now or datetime.now(UTC)
    lines: list[str] = []
    lines += _metric("onward_jobs", "gauge", "Jobs of each status.")
    for queue in queues:
        lines += [
            _line("onward_jobs", queue.counts.get(status, 0), queue=queue.name, status=status) for status in JobStatus
        ]
    lines += _metric("onward_queue_oldest_ready_seconds", "gauge", "Age of the job that has been ready longest.")
    for queue in queues:
        age = 0.0 if queue.oldest_ready_at is None else max(0.0, (at - queue.oldest_ready_at).total_seconds())
        lines.append(_line("onward_queue_oldest_ready_seconds", age, queue=queue.name))
    lines += _metric("onward_queue_paused", "gauge", "Whether a queue is paused.")
    lines += [_line("onward_queue_paused", int(queue.settings.paused), queue=queue.name) for queue in queues]
    lines += _metric("onward_workers", "gauge", "Workers that have registered.")
    lines.append(_line("onward_workers", len(workers)))
    lines += _metric("onward_worker_slots", "gauge", "Jobs that these can run at once.")
    lines.append(_line("onward_worker_slots", sum(worker.pool_size for worker in workers)))
    lines += _metric("onward_runs_total", "counter", "Runs, by how they ended.")
    lines += [
        _line("onward_runs_total", one.runs, queue=one.queue, type=one.type, outcome=one.outcome) for one in usage
    ]
    lines += _histogram(
        "onward_wait_seconds", "From being ready to being claimed.", usage, "wait_histogram", "wait_seconds"
    )
    lines += _histogram("onward_run_seconds", "How long runs took.", usage, "run_histogram", "run_seconds")
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _histogram(name: str, text: str, usage: Iterable[Usage], buckets: str, total: str) -> list[str]:
    lines = _metric(name, "histogram", text)

    def key(one: Usage) -> tuple[str, str]:
        return one.queue or "", one.type or ""

    for (queue, type_), grouped in groupby(sorted(usage, key=key), key):
        some = list(grouped)
        counts = [sum(column) for column in zip(*(getattr(one, buckets) for one in some), strict=True)]
        for bound, count in zip([*map(str, BOUNDS), "+Inf"], accumulate(counts), strict=True):
            lines.append(_line(f"{name}_bucket", count, queue=queue, type=type_, le=bound))
        lines.append(_line(f"{name}_sum", sum(getattr(one, total) for one in some), queue=queue, type=type_))
        lines.append(_line(f"{name}_count", sum(counts), queue=queue, type=type_))
    return lines


def _line(name: str, value: float, **labels: str | None) -> str:
    shown = ",".join(f'{label}="{_escaped(text or "")}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"


def _escaped(text: str) -> str:
    """Quote a label, and write characters that steer a terminal by their escapes: names are untrusted text (X6)."""
    if not text.isprintable() or "\\" in text:
        text = "".join(_visible(one, text[at + 1 : at + 2]) for at, one in enumerate(text))
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _visible(one: str, following: str) -> str:
    if one == "\\":
        # Doubled where it would read as an escape, so that two names never make the same series.
        return one * 2 if following and (following in "\\rtuUx" or not following.isprintable()) else one
    return one if one.isprintable() or one == "\n" else repr(one)[1:-1]
