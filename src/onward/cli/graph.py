"""Draws a flow: as a tree for the terminal, as Mermaid for a document, as SVG for a page. Pure: text in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

import msgspec

from onward.batches.values import Dependency
from onward.job import Job
from onward.lifecycle import JobStatus

_MARKS: Final[Mapping[JobStatus, str]] = {
    JobStatus.COMPLETED: "✓",
    JobStatus.FAILED: "✗",
    JobStatus.DEAD_LETTER: "✗",
    JobStatus.CANCELLED: "–",
    JobStatus.RUNNING: "▶",
    JobStatus.CLAIMED: "▶",
    JobStatus.PENDING: "●",
    JobStatus.SCHEDULED: "◷",
    JobStatus.BLOCKED: "○",
}
_COLOURS: Final[Mapping[JobStatus, str]] = {
    JobStatus.COMPLETED: "#2da44e",
    JobStatus.FAILED: "#cf222e",
    JobStatus.DEAD_LETTER: "#cf222e",
    JobStatus.CANCELLED: "#8c959f",
    JobStatus.RUNNING: "#0969da",
    JobStatus.CLAIMED: "#0969da",
    JobStatus.PENDING: "#bf8700",
    JobStatus.SCHEDULED: "#1b7c83",
    JobStatus.BLOCKED: "#6e7781",
}
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 168, 40, 64, 20, 16


class Graph(msgspec.Struct, frozen=True):
    """The jobs of a flow, each with those that it waits for, parents before children."""

    jobs: tuple[Job, ...]
    parents: Mapping[str, tuple[str, ...]]

    @property
    def layers(self) -> dict[str, int]:
        """Say how many steps each job is from the beginning."""
        layers: dict[str, int] = {}
        for job in self.jobs:
            layers[job.id] = max((layers[parent] + 1 for parent in self.parents[job.id]), default=0)
        return layers


def graph_of(jobs: Sequence[Job], dependencies: Sequence[Dependency]) -> Graph:
    """Sort jobs topologically; dependencies on jobs that have been pruned are left out."""
    known = {job.id: job for job in jobs}
    parents: dict[str, list[str]] = {job_id: [] for job_id in known}
    children: dict[str, list[str]] = {job_id: [] for job_id in known}
    for one in dependencies:
        if one.depends_on in known and one.job in known:
            parents[one.job].append(one.depends_on)
            children[one.depends_on].append(one.job)
    missing = {job_id: len(above) for job_id, above in parents.items()}
    ready = [job_id for job_id in reversed(known) if not missing[job_id]]
    order: list[Job] = []
    while ready:
        job_id = ready.pop()
        order.append(known[job_id])
        for child in reversed(children[job_id]):
            missing[child] -= 1
            if not missing[child]:
                ready.append(child)
    return Graph(tuple(order), {job_id: tuple(above) for job_id, above in parents.items()})


def short(job_id: str) -> str:
    """Name a job by the end of its id, which is what tells neighbours apart."""
    return job_id[-6:]


def lines_of(graph: Graph) -> list[tuple[str, Job]]:
    """Draw a tree: each job below the last of those that it waits for, with the others named behind it.

    Ids are whole where a job has its line, because commands take them; elsewhere their end is enough.
    """
    position = {job.id: number for number, job in enumerate(graph.jobs)}
    above = {job.id: max(graph.parents[job.id], key=position.__getitem__, default=None) for job in graph.jobs}
    types = {job.id: job.type for job in graph.jobs}
    below: dict[str | None, list[Job]] = {}
    for job in graph.jobs:
        below.setdefault(above[job.id], []).append(job)
    drawn: list[tuple[str, Job]] = []
    waiting = [("", "", job) for job in reversed(below.get(None, []))]
    while waiting:  # no recursion: a chain may have ten thousand links
        stem, branch, job = waiting.pop()
        others = [parent for parent in graph.parents[job.id] if parent != above[job.id]]
        also = f"  also after {', '.join(f'{types[other]} …{short(other)}' for other in others)}" if others else ""
        drawn.append((f"{stem}{branch}{_MARKS[job.status]} {job.type} {job.id}{also}", job))
        inner = stem + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
        children = below.get(job.id, [])
        for number, child in reversed(list(enumerate(children))):
            waiting.append((inner, "└─ " if number == len(children) - 1 else "├─ ", child))
    return drawn


def mermaid_of(graph: Graph) -> str:
    """Write it as a Mermaid flowchart."""
    names = {job.id: f"j{number}" for number, job in enumerate(graph.jobs)}
    lines = ["flowchart LR"]
    for job in graph.jobs:
        label = f"{job.type}<br/>{job.status}".replace('"', "#quot;")
        lines.append(f'  {names[job.id]}["{label}"]:::{job.status}')
    lines += [f"  {names[parent]} --> {names[job.id]}" for job in graph.jobs for parent in graph.parents[job.id]]
    shown = sorted({job.status for job in graph.jobs})
    lines += [f"  classDef {state} stroke:{_COLOURS[state]},stroke-width:2px" for state in shown]
    return "\n".join(lines) + "\n"


def svg_of(graph: Graph) -> str:
    """Draw it as SVG: the beginning at the left, each job right of all that it waits for."""
    layers = graph.layers
    rows: dict[int, int] = {}
    at: dict[str, tuple[int, int]] = {}
    for job in graph.jobs:
        layer = layers[job.id]
        row = rows[layer] = rows.get(layer, -1) + 1
        at[job.id] = (_MARGIN + layer * (_WIDTH + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y))
    width = 2 * _MARGIN + (max(rows, default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X
    height = 2 * _MARGIN + (max(rows.values(), default=0) + 1) * (_HEIGHT + _GAP_Y) - _GAP_Y
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="12">']
    for job in graph.jobs:
        x, y = at[job.id]
        for parent in graph.parents[job.id]:
            left, top = at[parent][0] + _WIDTH, at[parent][1] + _HEIGHT // 2
            middle = (left + x) // 2
            parts.append(
                f'<path d="M{left} {top} C{middle} {top} {middle} {y + _HEIGHT // 2} {x} {y + _HEIGHT // 2}"'
                ' fill="none" stroke="#8c959f"/>'
            )
    for job in graph.jobs:
        x, y = at[job.id]
        parts.append(
            f'<g transform="translate({x} {y})"><title>{escape(f"{job.ref}: {job.status}")}</title>'
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#ffffff" stroke="{_COLOURS[job.status]}"'
            f' stroke-width="2"/><text x="10" y="17" fill="#1f2328">{escape(_cut(job.type))}</text>'
            f'<text x="10" y="32" fill="{_COLOURS[job.status]}">{job.status} {short(job.id)}</text></g>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cut(text: str, max_length: int = 22) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
