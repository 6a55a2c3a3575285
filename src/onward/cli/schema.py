"""``onward migrate``: the store's schema, brought up to date, looked at, or written out for psql and the like (O9)."""

from __future__ import annotations

import sys
from typing import Annotated, Protocol, runtime_checkable

import typer

from onward.app import App
from onward.cli import output
from onward.cli.command import JsonOption, on_app
from onward.cli.errors import CommandError, usage_error
from onward.cli.target import is_missing
from onward.core import core_of
from onward.errors import SchemaTooOld
from onward.service.snapshot import describe_store


@runtime_checkable
class SchemaInstaller(Protocol):
    """An engine on a schema of somebody else's that it can install, when it is asked to and never by itself."""

    async def install(self) -> str | None:
        """Install it; answer its version, or None where there is one already."""
        ...


@on_app(creates_store=True)
async def migrate(
    app: App,
    sql: Annotated[bool, typer.Option("--sql", help="Write the SQL and change nothing.", show_default=False)] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 unless it is up to date.", show_default=False)
    ] = False,
    pgmq: Annotated[
        bool,
        typer.Option("--pgmq", help="Install PGMQ as plain SQL first, where there is none.", show_default=False),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Bring the store's schema up to date. Safe while workers run, and when many do it at once."""
    if sql and check:
        raise usage_error("--sql and --check do not go together")
    if pgmq and (sql or check):
        raise usage_error("--pgmq changes the database: it goes with neither --sql nor --check")
    if sql:
        sys.stdout.write(_script(app))
        return
    if pgmq:
        await _install(app)
    before = await _schema(app)
    if check:
        if before is None:
            raise CommandError(
                f"{_store(app)} is not up to date", effect="workers would bring it up", remedy="onward migrate"
            )
        now = before
    else:
        await app.open()
        now = (await core_of(app).engine.check()).schema or 0
    if json:
        output.show_json({"schema": now, "changed": before != now})
    else:
        output.write(f"{_store(app)}: schema {now}, {'up to date' if before == now else 'brought up to date'}")


async def _install(app: App) -> None:
    engine = core_of(app).engine.inner
    if not isinstance(engine, SchemaInstaller):
        raise usage_error(
            f"--pgmq is for URLs that begin with pgmq+postgresql://, this one names {app.capabilities.engine}"
        )
    version = await engine.install()
    found = "there is a PGMQ already, left as it is" if version is None else f"PGMQ {version} installed as plain SQL"
    sys.stderr.write(f"{found}\n")


async def _schema(app: App) -> int | None:
    """Say which schema the store has; None: an older one than we need, or none."""
    if is_missing(app):
        return None  # looking would make the file
    try:
        return (await core_of(app).engine.check()).schema or 0
    except SchemaTooOld:
        return None


def _script(app: App) -> str:
    written = core_of(app).engine.schema_script()
    if written is None:
        raise CommandError(
            f"{app.capabilities.engine} has a schema of its own, which is not for Onward to write",
            effect="there is no SQL to show",
        )
    return written


def _store(app: App) -> str:
    return f"{app.capabilities.engine} {describe_store(app)}".rstrip()
