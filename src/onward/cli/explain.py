"""``onward explain``: why a job is not running."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from onward.app import App
from onward.cli import bulk, output
from onward.cli.command import JsonOption, on_app
from onward.explain import Reason
from onward.service.wording import duration


@on_app()
async def explain(
    app: App, id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")], json: JsonOption = False
) -> None:
    """Say why a job is not running. Names every obstacle, and what to do about it."""
    job = await bulk.find_job(app.jobs, id)
    reasons = await app.jobs.explain(job)
    if json:
        output.show_json({"id": job.id, "queue": job.queue, "status": job.status, "reasons": list(map(_json, reasons))})
        return
    output.write(output.styled(job.status).append(output.escape(f" {job.type} in {job.queue}"), style=""))
    for reason in reasons:
        output.write(output.escape(f"- {reason.message}{_until(reason)}"))
        if reason.remedy:
            output.note(output.escape(f"  {reason.remedy}"))


def _json(reason: Reason) -> dict[str, object]:
    code = reason.code.value.replace(" ", "_")
    return {"code": code, "message": reason.message, "until": reason.until, "remedy": reason.remedy}


def _until(reason: Reason) -> str:
    if reason.until is None:
        return ""
    left = (reason.until - datetime.now(UTC)).total_seconds()
    return f" (until {reason.until:%Y-%m-%d %H:%M:%S} UTC{f', in {duration(left)}' if left > 0 else ''})"
