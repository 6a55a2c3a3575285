"""``onward doctor``: looks for what is wrong, says it in plain words, and says what to do.

What it looks for is in :mod:`onward.service.doctor`. The exit code is 1 if there is a problem, and 3 if the store
cannot be reached.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Annotated

import typer
from rich.text import Text

from onward.app import App
from onward.cli import output
from onward.cli.command import JsonOption, on_app
from onward.cli.errors import EXIT_FAILED, EXIT_STORE_UNREACHABLE, to_command_error
from onward.cli.units import read_duration
from onward.core import core_of
from onward.errors import OnwardError, StoreUnavailable
from onward.lifecycle import HELD, WAITING, JobStatus
from onward.service.doctor import MAX_WAIT, MEGABYTE, Finding, Level, examine
from onward.service.snapshot import Snapshot, describe_store, take_snapshot
from onward.service.wording import count, duration


@on_app(checks_store=False)
async def doctor(
    app: App,
    max_wait: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION",
            parser=read_duration,
            help="A ready job that has waited longer is a problem; 5m.",
            show_default=False,
        ),
    ] = None,
    confirm_restore: Annotated[
        bool,
        typer.Option("--confirm-restore", help="Run the jobs of a restored or copied store here."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Look for problems and remedies. Exits 1 on a problem, 3 if the store is unreachable."""
    snapshot: Snapshot | None = None
    code = EXIT_FAILED
    try:
        if confirm_restore:
            async with app:
                await core_of(app).engine.confirm_restore()
        snapshot = await take_snapshot(app, with_types=True)
        found = list(examine(snapshot, app.capabilities, max_wait=MAX_WAIT if max_wait is None else max_wait))
    except OnwardError as error:
        failure = to_command_error(error, app.capabilities.engine)
        code = EXIT_STORE_UNREACHABLE if isinstance(error, StoreUnavailable) else EXIT_FAILED
        found = [Finding(Level.PROBLEM, failure.cause, "" if failure.remedy == "onward doctor" else failure.remedy)]
    ok = not any(finding.level is Level.PROBLEM for finding in found)
    if json:
        output.show_json({"ok": ok, "store": _facts(app, snapshot), "findings": found})
    else:
        _show(app, snapshot, found)
    if not ok:
        raise typer.Exit(code)


def _facts(app: App, snapshot: Snapshot | None) -> dict[str, object]:
    known: dict[str, object] = dict(core_of(app).engine.describe())
    if snapshot is not None:
        leader = next((worker.id for worker in snapshot.live_workers if worker.is_leader), None)
        oldest = snapshot.oldest_ready
        known |= {
            "server": snapshot.info.server,
            "schema": snapshot.info.schema,
            "durability": snapshot.info.durability,
            "wal_bytes": snapshot.wal_bytes,
            "free_bytes": snapshot.free_bytes,
            "queues": len(snapshot.queues),
            "workers": len(snapshot.live_workers),
            "leader": leader,
            "waiting": snapshot.count(*WAITING),
            "running": snapshot.count(*HELD),
            "dead": snapshot.count(JobStatus.DEAD_LETTER),
            "oldest_ready_seconds": None if oldest is None else snapshot.wait_seconds(oldest).total_seconds(),
        }
    return known


def _show(app: App, snapshot: Snapshot | None, found: list[Finding]) -> None:
    console = output.stdout()
    facts = _facts(app, snapshot)

    def fact(name: str, value: object) -> None:
        if value not in (None, ""):
            console.print(Text.assemble((f"{name:>12}  ", "dim"), output.escape(value)))

    fact("store", f"{facts.get('server') or facts.get('engine', app.capabilities.engine)} {describe_store(app)}")
    if snapshot is not None:
        fact("durability", facts["durability"])
        schema = facts["schema"]
        fact("schema", "not ours" if schema is None else f"{schema}, up to date")
        if snapshot.wal_bytes is not None and snapshot.free_bytes is not None:
            log, free = snapshot.wal_bytes / MEGABYTE, snapshot.free_bytes // MEGABYTE
            fact("file", f"write-ahead log {log:.1f} MB, {free} MB free on its disk")
        leader = facts["leader"]
        fact("workers", f"{len(snapshot.live_workers)}{f', leader {leader}' if leader else ''}")
        waiting, running = snapshot.count(*WAITING), snapshot.count(*HELD)
        fact("jobs", f"{waiting} wait, {running} run, {snapshot.count(JobStatus.DEAD_LETTER)} dead")
        oldest = snapshot.oldest_ready
        fact(
            "oldest ready", "none" if oldest is None else f"{duration(snapshot.wait_seconds(oldest))}, in {oldest.name}"
        )
    console.print()
    for finding in found:
        console.print(Text.assemble(output.styled(finding.level), ": ", output.escape(finding.message)))
        if finding.remedy:
            console.print(Text.assemble(("    try: ", "bold"), output.escape(finding.remedy)))
    levels = Counter(finding.level for finding in found)
    if not levels[Level.PROBLEM]:
        warnings = levels[Level.WARNING]
        summary = f"no problem, and {count(warnings, 'warning')}" if warnings else "nothing is wrong"
        console.print(output.styled("ok"), Text(summary), sep=": ")
