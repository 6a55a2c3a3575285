"""The command that runs the demo."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from onward.cli import output
from onward.cli.command import DebugOption, JsonOption
from onward.cli.errors import report_errors


def demo(
    jobs: Annotated[int, typer.Option("--jobs", "-n", min=10, max=5000, help="About how many jobs.")] = 300,
    workers: Annotated[int, typer.Option(min=2, max=16, help="Worker processes.")] = 3,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the database, to look around in it.", show_default=False)
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Watch jobs run, fail, retry and survive a killed worker. Nothing needs to be installed for it."""
    from onward.cli.demo.runner import DemoRun  # noqa: PLC0415 - the other commands do not need it
    from onward.cli.demo.view import View, show_verification  # noqa: PLC0415

    with report_errors(debug=debug):
        folder = Path(tempfile.mkdtemp(prefix="onward-demo-"))
        began = time.monotonic()
        try:
            with View() as view:
                demo_run = DemoRun(folder, jobs=jobs, workers=workers, log=view.log, show=view.show)
                verification = asyncio.run(demo_run.run())
            seconds = time.monotonic() - began
            if json:
                lines = [
                    {
                        "kind": result.kind.name,
                        "jobs": result.jobs,
                        "statuses": dict(result.states),
                        "runs": result.runs,
                    }
                    for result in verification.results
                ]
                output.show_json(
                    {
                        "ok": not verification.errors,
                        "jobs": verification.jobs,
                        "kinds": lines,
                        "errors": verification.errors,
                    }
                )
            else:
                show_verification(verification, seconds=seconds)
            if verification.errors:
                keep = True  # there is something to find out
                raise typer.Exit(1)
        finally:
            if keep:
                output.note(f"look around: onward jobs list --url sqlite:///{folder / 'jobs.db'}")
                output.note(f"the workers' log: {folder / 'workers.log'}")
            else:
                shutil.rmtree(folder, ignore_errors=True)
