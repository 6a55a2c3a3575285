"""``onward tokens`` and ``onward audit``: who may use the server, and what was changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer

from onward.app import App
from onward.cli import output
from onward.cli.command import CursorOption, JsonOption, LimitOption, list_by_default, on_app
from onward.cli.units import age, read_optional_duration
from onward.engine.access import AuditQuery
from onward.service.identity import of_command_line
from onward.service.services import Services
from onward.service.values import TokenRequest, TokenView

tokens = typer.Typer(help="Create, list and revoke tokens of the server.")

_EXPIRES = timedelta(days=90)


@tokens.command()
@on_app(creates_store=True)
async def create(
    app: App,
    name: Annotated[str, typer.Argument(help="What people call it: ci, grafana.")],
    role: Annotated[Literal["viewer", "operator", "admin"], typer.Option(help="Its role.")] = "viewer",
    permission: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="On top: reveal, edit, enqueue, delete.", show_default=False),
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Only these queues.", show_default=False)
    ] = None,
    org: Annotated[
        list[str] | None, typer.Option(metavar="ORG", help="Only these organisations.", show_default=False)
    ] = None,
    expires: Annotated[str, typer.Option(metavar="DURATION", help="How long it is valid, or none: for ever.")] = "90d",
    json: JsonOption = False,
) -> None:
    """Create a token, and show its secret once."""
    length = read_optional_duration(expires)
    request = TokenRequest(
        name=name,
        role=role,
        permissions=tuple(permission or ()),
        queues=tuple(queue) if queue else None,
        orgs=tuple(org) if org else None,
        expires_in=None if length is None else length.total_seconds(),
    )
    new = await Services(app).access.create_token(of_command_line(), request)
    if json:
        output.show_json({"token": new.token, "secret": new.secret})
        return
    output.write(new.secret)
    output.note(f"token {new.token.id}; this is the only time that its secret is shown")


@tokens.command("list")
@on_app()
async def list_tokens(app: App, json: JsonOption = False) -> None:
    """List tokens, the newest first."""
    found = (await Services(app).access.list_tokens(of_command_line())).items
    if json:
        output.show_json({"tokens": found})
        return
    if not found:
        output.note("no tokens: create one with onward tokens create NAME")
        return
    output.show_table(
        ("id", "name", "role", "status", "queues", "organisations", "last used"),
        [
            (
                token.id,
                token.name,
                " +".join((token.role, *token.permissions)),
                _status(token),
                "all" if token.queues is None else " ".join(token.queues),
                "all" if token.orgs is None else " ".join(token.orgs),
                age(token.last_used_at),
            )
            for token in found
        ],
    )


list_by_default(tokens, list_tokens)


def _status(token: TokenView) -> str:
    if token.revoked_at is not None:
        return "revoked"
    if token.expires_at is None:
        return "valid"
    return "expired" if token.expires_at <= datetime.now(UTC) else f"until {token.expires_at:%Y-%m-%d}"


@tokens.command()
@on_app()
async def revoke(
    app: App, id: Annotated[str, typer.Argument(help="The token's id.")], json: JsonOption = False
) -> None:
    """Revoke a token; its sessions and event streams end."""
    token = await Services(app).access.revoke_token(of_command_line(), id)
    if json:
        output.show_json({"token": token})
    else:
        output.write(f"token {output.escape(token.name)} is revoked")


@on_app()
async def audit(
    app: App,
    actor: Annotated[str | None, typer.Option(metavar="ACTOR", help="By this actor.", show_default=False)] = None,
    action: Annotated[
        str | None, typer.Option(metavar="OPERATION", help="Of this operation: jobs.cancel.", show_default=False)
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="About this.", show_default=False)] = None,
    limit: LimitOption = 50,
    cursor: CursorOption = None,
    json: JsonOption = False,
) -> None:
    """List audit records, the newest first. Changes through the server and the command line."""
    query = AuditQuery(actor=actor, action=action, target=target)
    page = await Services(app).audit.list(of_command_line(), query, cursor=cursor, limit=limit)
    if json:
        output.show_json({"records": page.items, "next_cursor": page.next_cursor})
        return
    if not page.items:
        output.note("no records")
        return
    output.show_table(
        ("at", "actor", "role", "action", "target", "count", "details"),
        [
            (
                f"{one.at.astimezone():%Y-%m-%d %H:%M:%S}" if one.at else "",
                one.actor,
                one.role,
                one.action,
                one.target,
                "" if one.count is None else str(one.count),
                one.filter or one.detail or "",
            )
            for one in page.items
        ],
        right=("count",),
    )
    if page.next_cursor is not None:
        output.note(f"more records: --cursor {page.next_cursor}")
