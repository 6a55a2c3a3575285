"""How the demo looks: a story that stays, above a picture that moves; through a pipe, the story and a count."""

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
from onward.cli.demo.story import Scene, Sentence
from onward.cli.demo.verification import Account
from onward.cli.units import count
from onward.lifecycle import FINISHED, HELD, State

_PLAIN_EVERY: Final = 1.0
"""Seconds between two counts when nobody can see the picture move."""


class View:
    """Shows the story, for the length of a block."""

    def __init__(self) -> None:
        self._console: Console = output.errors() if not sys.stdout.isatty() else output.output()
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
        """Take the picture away; the story stays."""
        if self._live is not None:
            self._live.stop()

    def tell(self, sentence: Sentence) -> None:
        """Add a sentence to the story."""
        style = "bold red" if sentence.bad else ""
        self._console.print(Text.assemble((f"{sentence.at:5.1f} s  ", "dim"), (sentence.text, style)))

    def show(self, scene: Scene) -> None:
        """Show a scene."""
        if self._live is not None:
            self._live.update(_picture(scene))
        elif scene.elapsed - self._counted_at >= _PLAIN_EVERY:
            self._counted_at = scene.elapsed
            running = sum(scene.count(kind, *HELD) for kind in KINDS)
            self.tell(Sentence(scene.elapsed, f"{scene.ended} of {scene.jobs} jobs have ended, {running} run"))


def _picture(scene: Scene) -> RenderableType:
    bar = ProgressBar(total=max(scene.jobs, 1), completed=scene.ended, width=40)
    total = Table.grid(padding=(0, 2))
    total.add_row(Text(f"{scene.elapsed:5.1f} s"), bar, Text(f"{scene.ended} of {scene.jobs} jobs have ended"))
    return Group(Text(), _kinds(scene), Text(), _workers(scene), Text(), total)


def _kinds(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "left", "right", "right", "right", "right", "right"):
        table.add_column(justify=justify)
    heads = ("kind", "what it does", "", "done", "running", "ready", "later", "dead")
    table.add_row(*(Text(head, style="bold") for head in heads))
    for kind in KINDS:
        ended = scene.count(kind, *FINISHED)
        total = sum((scene.queues[kind.name].counts if kind.name in scene.queues else {}).values())
        colour = "red" if kind.ends is State.DEAD_LETTER else "green"
        table.add_row(
            Text(kind.name),
            Text(kind.what, style="dim"),
            ProgressBar(total=max(total, 1), completed=ended, width=16, complete_style=colour, finished_style=colour),
            Text(f"{ended}/{total}"),
            _number(scene.count(kind, *HELD), State.RUNNING),
            _number(scene.count(kind, State.PENDING), State.PENDING),
            _number(scene.count(kind, State.SCHEDULED), State.SCHEDULED),
            _number(scene.count(kind, State.DEAD_LETTER), State.DEAD_LETTER),
        )
    return table


def _number(amount: int, state: State) -> Text:
    return Text(str(amount), style=output.STYLES[state]) if amount else Text("·", style="dim")


def _workers(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(head, style="bold") for head in ("worker", "", "in its hands")))
    for worker in scene.workers:
        hands = [job for job in scene.held if job.worker_id == worker.id]
        if worker.id in scene.killed:
            standing = Text("killed", style="bold red")
        else:
            standing = Text("leads" if worker.is_leader else "", style="green")
        slots = "■" * len(hands) + "□" * max(0, workers.AT_ONCE - len(hands))
        told = ", ".join(f"{job.type} {job.progress} %" for job in hands if job.progress is not None)
        style = "red" if worker.id in scene.killed else "blue"
        line = Text.assemble((slots, style), "  ", (told, "dim"))
        table.add_row(Text(str(workers.pid_of(worker))), standing, line)
    return table


def show_account(account: Account, *, seconds: float) -> None:
    """Write the summary."""
    rows: list[list[Text | str]] = []
    for line in account.lines:
        fine = line.as_planned == line.jobs
        rows.append(
            [
                line.kind.name,
                line.kind.what,
                str(line.jobs),
                output.number(line.states.get(State.COMPLETED, 0), output.STYLES[State.COMPLETED]),
                output.number(line.states.get(State.DEAD_LETTER, 0), output.STYLES[State.DEAD_LETTER]),
                str(line.runs),
                Text("as it must be", style="green") if fine else Text("NOT as it must be", style="bold red"),
            ]
        )
    columns = ("kind", "what it does", "jobs", "completed", "dead letter", "runs", "")
    output.say()
    output.show_table(columns, rows, right=("jobs", "completed", "dead letter", "runs"))
    output.say()
    for sentence, style in _verdict(account, seconds):
        output.say(sentence, style=style)


def _verdict(account: Account, seconds: float) -> list[tuple[str, str]]:
    if account.amiss:
        amiss = [(f"  {one}", "red") for one in account.amiss[:20]]
        return [(f"{count(len(account.amiss), 'job')} of {account.jobs} NOT accounted for:", "bold red"), *amiss]
    buried = sum(line.states.get(State.DEAD_LETTER, 0) for line in account.lines)
    took = f"{account.runs} runs in {seconds:.1f} s"
    repeated = ""
    if account.repeated:
        repeated = f" {count(account.repeated, 'job')} worked twice: killed when done, before it could be said."
    return [
        (f"All {account.jobs} jobs are accounted for, none was lost.", "bold green"),
        (f"{account.jobs - buried} completed, {buried} dead letters, as they must be; {took}.{repeated}", ""),
    ]
