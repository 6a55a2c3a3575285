"""``onward capabilities``: what the store can do."""

from __future__ import annotations

from onward.app import App
from onward.cli import output
from onward.cli.command import JsonOption, on_app
from onward.service.values import capabilities_view


@on_app(creates_store=True)
async def capabilities(app: App, json: JsonOption = False) -> None:
    """Say what the store can do. Each feature is native, emulated or absent, and why."""
    found = capabilities_view(app.capabilities)
    if json:
        output.show_json(found)
        return
    rows = [(name, output.styled(one.level), one.note) for name, one in found.features.items()]
    output.show_table((found.engine, "level", "note"), rows)
