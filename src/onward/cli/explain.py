"""``onward explain``: why a job is not running."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from onward.app import App
from onward.cli import screen
from onward.cli.command import JsonOption, on_app
from onward.cli.quantities import duration
from onward.explain import Reason


@on_app()
async def explain(
    app: App, id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")], json: JsonOption = False
) -> None:
    """Say why a job is not running: all that stands in its way, and what to do about it."""
    job = await app.jobs.get(id)
    reasons = await app.jobs.explain(job)
    if json:
        screen.show_json({"id": job.id, "queue": job.queue, "status": job.status, "reasons": reasons})
        return
    screen.say(screen.state(job.status).append(f" {job.type} in {job.queue}", style=""))
    for reason in reasons:
        screen.say(f"- {reason.says}{_until(reason)}")
        if reason.remedy:
            screen.note(f"  {reason.remedy}")


def _until(reason: Reason) -> str:
    if reason.until is None:
        return ""
    left = (reason.until - datetime.now(UTC)).total_seconds()
    return f" (until {reason.until:%Y-%m-%d %H:%M:%S} UTC{f', in {duration(left)}' if left > 0 else ''})"
