"""``onward usage`` and ``onward metrics``: what was run, for whom, and how things stand."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from onward.app import App
from onward.cli import completion, output
from onward.cli.command import JsonOption, on_app
from onward.cli.units import duration, read_duration
from onward.metering import Span, UsageBy


@on_app()
async def usage(
    app: App,
    by: Annotated[list[UsageBy] | None, typer.Option(help="What to tell apart; may be given several times.")] = None,
    span: Annotated[Span, typer.Option(help="Of how long a time each sum is.")] = Span.DAY,
    last: Annotated[
        timedelta | None,
        typer.Option(metavar="DURATION", parser=read_duration, help="How far to look back: 7d.", show_default="all"),
    ] = None,
    org: Annotated[str | None, typer.Option(help="Of this organisation only.", show_default=False)] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", help="Of this queue only.", autocompletion=completion.queues, show_default=False),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Of this task only.", autocompletion=completion.tasks, show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Sum up what was run: how many runs, how long they waited and took."""
    since = None if last is None else datetime.now(UTC) - last
    told = await app.usage(span=span, by=by or (), since=since, org_id=org, queue=queue, type=task)
    if json:
        output.show_json({"usage": told})
        return
    if not told:
        output.note("nothing has been run yet, or nothing that this asks for")
        return
    shown = [UsageBy(word) for word in dict.fromkeys(by or ())]
    rows = []
    for one in told:
        began = "" if one.at is None else one.at.strftime("%Y-%m-%d" if span is Span.DAY else "%Y-%m-%d %H:%M")
        keys = [getattr(one, word) or "" for word in shown]
        rows.append(
            (
                began,
                *keys,
                f"{one.runs}",
                duration(one.waited / one.runs),
                duration(one.took / one.runs),
                duration(one.took),
            )
        )
    output.show_table(
        ("since", *shown, "runs", "waited", "took", "in all"), rows, right=("runs", "waited", "took", "in all")
    )


@on_app()
async def metrics(app: App) -> None:
    """Tell how things stand, as Prometheus reads it."""
    sys.stdout.write(await app.metrics())
