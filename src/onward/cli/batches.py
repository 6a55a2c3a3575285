"""``onward batches``: look at sets of jobs, draw them, and press their buttons."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from onward.app import App
from onward.batches.resources import Batch
from onward.batches.values import BatchInfo
from onward.cli import bulk, completion, graph, output
from onward.cli.command import JsonOption, YesOption, list_by_default, on_app
from onward.cli.errors import refusal
from onward.errors import InvalidValue
from onward.job import Job
from onward.service.wording import count, duration

batches = typer.Typer(help="Look at batches and flows, pause, resume and cancel them.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", autocompletion=completion.batches)]
_MAX_JOBS: Final = 2000
"""Jobs of a flow that are drawn at most."""


class Format(StrEnum):
    """How a flow is drawn."""

    TREE = "tree"
    MERMAID = "mermaid"
    SVG = "svg"


@batches.command("list")
@on_app()
async def list_batches(
    app: App,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many to show.")] = 20,
    json: JsonOption = False,
) -> None:
    """List batches, the newest first."""
    found = (await app.batches.list(limit=limit)).items
    if not found and not json:
        output.note("no batches yet: app.batch(…) makes one, and so does app.flow(…)")
        return
    _show(found, json=json)


list_by_default(batches, list_batches)


@batches.command("show")
@on_app()
async def show_batch(app: App, name: NameArgument, json: JsonOption = False) -> None:
    """Show how a batch stands."""
    _show([await (await _find(app, name)).info()], json=json)


@batches.command()
@on_app(action="batches.pause")
async def pause(app: App, name: NameArgument) -> None:
    """Start none of its jobs, where it has a queue of its own."""
    try:
        await (await _find(app, name)).pause()
    except InvalidValue as error:
        raise refusal(str(error)) from None
    output.note(f"{name} is paused; running jobs continue")


@batches.command()
@on_app(action="batches.resume")
async def resume(app: App, name: NameArgument) -> None:
    """Go on with a batch that was paused."""
    await (await _find(app, name)).resume()
    output.note(f"{name} is resumed")


@batches.command()
@on_app(action="batches.seal")
async def seal(app: App, name: NameArgument) -> None:
    """Seal a batch. Only its own jobs may add more; it finishes when all have ended."""
    await (await _find(app, name)).seal()
    output.note(f"{name} is sealed")


@batches.command()
@on_app(action="batches.cancel")
async def cancel(app: App, name: NameArgument, yes: YesOption = False) -> None:
    """Cancel the open jobs of a batch. Nothing can be added to it any more."""
    batch = await _find(app, name)
    info = await batch.info()
    bulk.confirm(f"{count(info.total - info.ended, 'job')} of the batch {name} will be cancelled", yes=yes)
    output.note(f"{count(await batch.cancel(), 'job')} of {name} cancelled")


@batches.command()
@on_app(action="batches.delete")
async def delete(app: App, name: NameArgument, yes: YesOption = False) -> None:
    """Delete a finished batch. Its jobs stay for as long as their queue keeps them."""
    await _find(app, name)
    bulk.confirm(f"the batch {name} will be deleted", yes=yes)
    try:
        await app.batches.delete(name)
    except InvalidValue as error:
        raise refusal(str(error), remedy=f"onward batches cancel {name}") from None
    output.note(f"{name} is deleted; its jobs stay for as long as their queue keeps them")


@batches.command("graph")
@on_app()
async def show_graph(
    app: App,
    name: NameArgument,
    format: Annotated[Format, typer.Option("--as", help="How to draw it.")] = Format.TREE,
    json: JsonOption = False,
) -> None:
    """Draw the dependencies of a flow. As a tree, as Mermaid, or as SVG."""
    batch = await _find(app, name)
    jobs = await _jobs(batch)
    dependencies = await batch.dependencies()
    if json:
        output.show_json({"batch": await batch.info(), "jobs": jobs, "dependencies": dependencies})
        return
    drawn = graph.graph_of(jobs, dependencies)
    match format:
        case Format.MERMAID:
            output.write(graph.mermaid_of(drawn).rstrip())
        case Format.SVG:
            output.write(graph.svg_of(drawn).rstrip())
        case Format.TREE:
            for line, job in graph.lines_of(drawn):
                output.write(Text.assemble(output.escape(line), "  ", output.styled(job.status)))
    if len(jobs) == _MAX_JOBS:
        output.note(f"only the first {_MAX_JOBS} jobs are drawn")


async def _jobs(batch: Batch) -> list[Job]:
    jobs: list[Job] = []
    cursor: str | None = None
    while len(jobs) < _MAX_JOBS:
        page = await batch.jobs(cursor=cursor, limit=min(500, _MAX_JOBS - len(jobs)))
        jobs += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    return jobs


async def _find(app: App, name: str) -> Batch:
    try:
        return await app.batches.get(name)
    except InvalidValue as error:
        raise refusal(
            f"there is no batch {name!r}{error.rule.removeprefix('there is no such batch')}",
            remedy="onward batches list",
        ) from None


def _show(found: tuple[BatchInfo, ...] | list[BatchInfo], *, json: bool) -> None:
    if json:
        output.show_json({"batches": [{**msgspec.structs.asdict(one), "progress": one.progress} for one in found]})
        return
    now = datetime.now(UTC)
    output.show_table(
        ("batch", "status", "progress", "total", "completed", "failed", "cancelled", "age"),
        [
            (
                one.name,
                "finished" if one.is_finished else "open" if not one.sealed else "running",
                f"{one.progress} %",
                output.number(one.total),
                output.number(one.completed, "green"),
                output.number(one.failed, "red"),
                output.number(one.cancelled),
                duration(now - one.created_at),
            )
            for one in found
        ],
        right=("progress", "total", "completed", "failed", "cancelled", "age"),
    )
