"""``onward usage`` and ``onward metrics``: what was run, for whom, and how things stand."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from onward.app import App
from onward.cli import completion, output
from onward.cli.command import JsonOption, on_app
from onward.cli.units import read_duration
from onward.metering import Bucket, UsageBy
from onward.service.wording import duration


@on_app()
async def usage(
    app: App,
    by: Annotated[list[UsageBy] | None, typer.Option(help="What to tell apart; may be given several times.")] = None,
    bucket: Annotated[Bucket, typer.Option(help="Period that each row sums up.")] = Bucket.DAY,
    last: Annotated[
        timedelta | None,
        typer.Option(metavar="DURATION", parser=read_duration, help="How far to look back: 7d.", show_default="all"),
    ] = None,
    org: Annotated[str | None, typer.Option(help="Of this organisation only.", show_default=False)] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", help="Of this queue only.", autocompletion=completion.queues, show_default=False),
    ] = None,
    type: Annotated[
        str | None,
        typer.Option("--type", "-t", help="Of this task only.", autocompletion=completion.tasks, show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Sum up runs. How many there were, how long they waited and took."""
    since = None if last is None else datetime.now(UTC) - last
    usage_rows = await app.usage(
        bucket=bucket.value, by=[field.value for field in by or ()], since=since, org_id=org, queue=queue, type=type
    )
    if json:
        output.show_json({"usage": usage_rows})
        return
    if not usage_rows:
        output.note("nothing has been run yet, or nothing that this asks for")
        return
    shown = [UsageBy(word) for word in dict.fromkeys(by or ())]
    rows = []
    for one in usage_rows:
        began = "" if one.at is None else one.at.strftime("%Y-%m-%d" if bucket is Bucket.DAY else "%Y-%m-%d %H:%M")
        keys = [getattr(one, word) or "" for word in shown]
        rows.append(
            (
                began,
                *keys,
                f"{one.runs}",
                duration(one.wait_seconds / one.runs),
                duration(one.run_seconds / one.runs),
                duration(one.run_seconds),
            )
        )
    output.show_table(
        ("since", *shown, "runs", "avg wait", "avg run", "total run"),
        rows,
        right=("runs", "avg wait", "avg run", "total run"),
    )


@on_app()
async def metrics(app: App) -> None:
    """Write metrics in Prometheus's text format."""
    sys.stdout.write(await app.metrics())
