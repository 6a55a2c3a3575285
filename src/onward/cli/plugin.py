"""``onward plugin``: commands that an application has added (see :mod:`onward.service.plugins`)."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from onward.app import App
from onward.arguments import nearest
from onward.cli.command import AppOption, DebugOption
from onward.cli.errors import report_errors, usage_error
from onward.cli.target import find_app
from onward.core import core_of
from onward.service.identity import of_command_line
from onward.service.plugins import Plugin, PluginCommand
from onward.service.store import record


def plugin(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The plug-in.")],
    command: Annotated[str, typer.Argument(help="Its command.")],
    app: AppOption = None,
    debug: DebugOption = False,
) -> None:
    """Run a command that the app has added."""
    with report_errors(debug=debug):
        found = find_app(app, None, needs_tasks=True)
        chosen = _find(found, name, command)
        if chosen.changes:
            asyncio.run(_record(found, f"{name}.{command}"))
        runner = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        runner.command()(chosen.function)
        runner(args=context.args, prog_name=f"onward plugin {name} {command}", standalone_mode=True)


def _find(app: App, name: str, command: str) -> PluginCommand:
    plugins = {one.name: one for one in core_of(app).plugins if isinstance(one, Plugin)}
    if name not in plugins:
        raise usage_error(f"the app has no plug-in {name!r}{nearest(name, plugins)}")
    commands = plugins[name].commands
    if command not in commands:
        raise usage_error(f"the plug-in {name} has no command {command!r}{nearest(command, commands)}")
    return commands[command]


async def _record(app: App, action: str) -> None:
    """Write the audit record first: no record, no change (S5)."""
    try:
        engine = await core_of(app).opened()
        await engine.record_audit(record(of_command_line(), action))
    finally:
        await app.close()
