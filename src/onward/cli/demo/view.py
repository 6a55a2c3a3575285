"""How the demo looks: a log that stays, above a live table; through a pipe, the log and a count."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onward.cli import output
from onward.cli.demo import workers
from onward.cli.demo.kinds import KINDS
from onward.cli.demo.runner import DemoState, LogEntry
from onward.cli.demo.verification import Verification
from onward.lifecycle import FINISHED, HELD, JobStatus
from onward.service.wording import count

_COUNT_INTERVAL: Final = 1.0
"""Seconds between two counts when there is no live table."""


class View:
    """Shows the log and the state, for the length of a block."""

    def __init__(self) -> None:
        self._console: Console = output.stderr() if not sys.stdout.isatty() else output.stdout()
        self._live: Live | None = None
        self._counted_at = 0.0

    def __enter__(self) -> Self:
        """Begin."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True, refresh_per_second=10)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the live table; the log stays."""
        if self._live is not None:
            self._live.stop()

    def log(self, entry: LogEntry) -> None:
        """Add an entry to the log."""
        style = "bold red" if entry.is_failure else ""
        self._console.print(Text.assemble((f"{entry.at:5.1f} s  ", "dim"), (entry.text, style)))

    def show(self, state: DemoState) -> None:
        """Show a state."""
        if self._live is not None:
            self._live.update(_render(state))
        elif state.elapsed - self._counted_at >= _COUNT_INTERVAL:
            self._counted_at = state.elapsed
            running = sum(state.count(kind, *HELD) for kind in KINDS)
            self.log(LogEntry(state.elapsed, f"{state.ended} of {state.jobs} jobs have ended, {running} run"))


def _render(state: DemoState) -> RenderableType:
    bar = ProgressBar(total=max(state.jobs, 1), completed=state.ended, width=40)
    total = Table.grid(padding=(0, 2))
    total.add_row(Text(f"{state.elapsed:5.1f} s"), bar, Text(f"{state.ended} of {state.jobs} jobs have ended"))
    return Group(Text(), _kinds(state), Text(), _workers(state), Text(), total)


def _kinds(state: DemoState) -> Table:
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "left", "right", "right", "right", "right", "right"):
        table.add_column(justify=justify)
    heads = ("kind", "what it does", "", "done", "running", "ready", "later", "dead")
    table.add_row(*(Text(head, style="bold") for head in heads))
    for kind in KINDS:
        ended = state.count(kind, *FINISHED)
        total = sum((state.queues[kind.name].counts if kind.name in state.queues else {}).values())
        colour = "red" if kind.final_status is JobStatus.DEAD_LETTER else "green"
        table.add_row(
            Text(kind.name),
            Text(kind.description, style="dim"),
            ProgressBar(total=max(total, 1), completed=ended, width=16, complete_style=colour, finished_style=colour),
            Text(f"{ended}/{total}"),
            _number(state.count(kind, *HELD), JobStatus.RUNNING),
            _number(state.count(kind, JobStatus.PENDING), JobStatus.PENDING),
            _number(state.count(kind, JobStatus.SCHEDULED), JobStatus.SCHEDULED),
            _number(state.count(kind, JobStatus.DEAD_LETTER), JobStatus.DEAD_LETTER),
        )
    return table


def _number(amount: int, state: JobStatus) -> Text:
    return Text(str(amount), style=output.STYLES[state]) if amount else Text("·", style="dim")


def _workers(state: DemoState) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(head, style="bold") for head in ("worker", "", "held jobs")))
    for worker in state.workers:
        held = [job for job in state.held if job.worker_id == worker.id]
        if worker.id in state.killed:
            status = Text("killed", style="bold red")
        else:
            status = Text("leader" if worker.is_leader else "", style="green")
        slots = "■" * len(held) + "□" * max(0, workers.CONCURRENCY - len(held))
        progress_text = ", ".join(f"{job.type} {job.progress} %" for job in held if job.progress is not None)
        style = "red" if worker.id in state.killed else "blue"
        line = Text.assemble((slots, style), "  ", (progress_text, "dim"))
        table.add_row(Text(str(workers.pid_of(worker))), status, line)
    return table


def show_verification(verification: Verification, *, seconds: float) -> None:
    """Write the summary."""
    rows: list[list[Text | str]] = []
    for result in verification.results:
        fine = result.as_expected == result.jobs
        rows.append(
            [
                result.kind.name,
                result.kind.description,
                str(result.jobs),
                output.number(result.states.get(JobStatus.COMPLETED, 0), output.STYLES[JobStatus.COMPLETED]),
                output.number(result.states.get(JobStatus.DEAD_LETTER, 0), output.STYLES[JobStatus.DEAD_LETTER]),
                str(result.runs),
                Text("as expected", style="green") if fine else Text("NOT as expected", style="bold red"),
            ]
        )
    columns = ("kind", "what it does", "jobs", "completed", "dead letter", "runs", "")
    output.write()
    output.show_table(columns, rows, right=("jobs", "completed", "dead letter", "runs"))
    output.write()
    for text, style in _verdict(verification, seconds):
        output.write(text, style=style)


def _verdict(verification: Verification, seconds: float) -> list[tuple[str, str]]:
    if verification.errors:
        errors = [(f"  {one}", "red") for one in verification.errors[:20]]
        return [
            (f"{count(len(verification.errors), 'job')} of {verification.jobs} NOT accounted for:", "bold red"),
            *errors,
        ]
    buried = sum(result.states.get(JobStatus.DEAD_LETTER, 0) for result in verification.results)
    took = f"{verification.runs} runs in {seconds:.1f} s"
    repeated = ""
    if verification.repeated:
        repeated = (
            f" {count(verification.repeated, 'job')} done twice: the worker was killed before it stored the result."
        )
    return [
        (f"All {verification.jobs} jobs are accounted for, none was lost.", "bold green"),
        (f"{verification.jobs - buried} completed, {buried} dead letters, as expected; {took}.{repeated}", ""),
    ]
