"""Tokens, the audit log, logging out."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import msgspec

from onward.dashboard import durations
from onward.dashboard.visit import PAGE_SIZE, Confirmation, Redirect, Screen, Visit
from onward.dashboard.wording import Moment, Pill, listed, number, shortened
from onward.engine.access import AuditQuery
from onward.errors import InvalidValue
from onward.http.authentication import session_cookie
from onward.service.identity import GRANTABLE, Role
from onward.service.values import TokenRequest, TokenView
from onward.validation import one_of

_DEFAULT_EXPIRY: Final = "90d"


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A token in a table."""

    id: str
    name: str
    role: str
    permissions: str
    scope: str
    state: Pill
    created: Moment | None
    created_by: str
    expires: Moment | None
    used: Moment | None
    is_valid: bool


class TokensPage(msgspec.Struct, frozen=True, kw_only=True):
    """All tokens, and the form for a new one."""

    rows: tuple[TokenRow, ...]
    roles: tuple[str, ...]
    grantable: tuple[str, ...]
    secret: str = ""
    """Of the token just created: shown once."""
    mistake: str = ""
    name: str = ""
    role: str = "viewer"
    granted: tuple[str, ...] = ()
    queues: str = ""
    orgs: str = ""
    expires_in: str = _DEFAULT_EXPIRY
    own: str = ""
    """The id of the token that the caller uses."""


async def show_tokens(visit: Visit) -> Screen:
    """List tokens."""
    return await _tokens(visit)


async def _tokens(visit: Visit, *, secret: str = "", mistake: str = "") -> Screen:
    found = (await visit.services.access.list_tokens(visit.identity)).items
    form, common = visit.form, {"rows": tuple(_token(visit, one) for one in found)}
    keep = bool(mistake)
    page = TokensPage(
        **common,
        roles=tuple(Role),
        grantable=tuple(sorted(GRANTABLE)),
        secret=secret,
        mistake=mistake,
        name=form.text("name") if keep else "",
        role=form.text("role") if keep else "viewer",
        granted=form.all("permission") if keep else (),
        queues=form.text("queues") if keep else "",
        orgs=form.text("orgs") if keep else "",
        expires_in=form.text("expires_in") if keep else _DEFAULT_EXPIRY,
        own=visit.identity.token_id or "",
    )
    return Screen(
        template="tokens.html",
        title="Tokens",
        section="tokens",
        page=page,
        is_live=False,
        status=400 if mistake else 200,
    )


async def create_token(visit: Visit) -> Screen:
    """Create a token, and show its secret once."""
    form = visit.form
    try:
        role = one_of("role", Role, form.text("role"))
        request = TokenRequest(
            name=form.text("name"),
            role=role.value,
            permissions=form.all("permission"),
            queues=_names(form.text("queues")),
            orgs=_names(form.text("orgs")),
            expires_in=durations.read("expires_in", form.text("expires_in")),
        )
        new = await visit.services.access.create_token(visit.identity, request)
    except InvalidValue as error:
        return await _tokens(visit, mistake=str(error))
    return await _tokens(visit, secret=new.secret)


async def revoke_token(visit: Visit) -> Redirect:
    """Revoke a token."""
    id = visit.path["id"]
    visit.confirm(
        Confirmation(
            title="Revoke this token?",
            text="It and its sessions are refused from now on. A revoked token cannot be restored."
            + (" It is the token that you use now: you will be logged out." if id == visit.identity.token_id else ""),
            verb="Revoke the token",
        )
    )
    await visit.services.access.revoke_token(visit.identity, id)
    return Redirect(path="/tokens", note="revoked")


def _names(text: str) -> tuple[str, ...] | None:
    """Read names between commas; a name may have spaces."""
    return tuple(name for part in text.split(",") if (name := part.strip())) or None


def _token(visit: Visit, one: TokenView) -> TokenRow:
    if one.revoked_at is not None:
        state = Pill(word="revoked", kind="idle", hollow=True)
    elif one.expires_at is not None and one.expires_at <= visit.now:
        state = Pill(word="expired", kind="idle")
    else:
        state = Pill(word="valid", kind="ok")
    limits = [f"queues {listed(one.queues)}"] if one.queues is not None else []
    limits += [f"organisations {listed(one.orgs)}"] if one.orgs is not None else []
    return TokenRow(
        id=one.id,
        name=one.name,
        role=one.role,
        permissions=listed(one.permissions, "") if one.permissions else "",
        scope="; ".join(limits) or "everything",
        state=state,
        created=visit.moment(one.created_at),
        created_by=one.created_by,
        expires=visit.moment(one.expires_at),
        used=visit.moment(one.last_used_at),
        is_valid=state.word == "valid",
    )


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """An audit record in a table."""

    at: Moment | None
    actor: str
    role: str
    action: str
    target: str
    filter: str
    count: str
    detail: str
    request_id: str


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """The audit log."""

    rows: tuple[AuditRow, ...]
    actor: str
    action: str
    target: str
    older: str | None
    newer: bool
    base: str
    """The query of this list, without the page."""
    is_filtered: bool


async def show_audit(visit: Visit) -> Screen:
    """List audit records."""
    actor, action, target = (visit.query.get(name, "").strip() for name in ("actor", "action", "target"))
    query = AuditQuery(actor=actor or None, action=action or None, target=target or None)
    found = await visit.services.audit.list(visit.identity, query, cursor=visit.cursor, limit=PAGE_SIZE)
    given = {name: value for name, value in (("actor", actor), ("action", action), ("target", target)) if value}
    page = AuditPage(
        rows=tuple(
            AuditRow(
                at=visit.moment(one.at),
                actor=one.actor,
                role=one.role,
                action=one.action,
                target=one.target,
                filter=shortened(one.filter, 300) if one.filter else "",
                count="–" if one.count is None else number(one.count),
                detail=shortened(one.detail, 300) if one.detail else "",
                request_id=one.request_id,
            )
            for one in found.items
        ),
        actor=actor,
        action=action,
        target=target,
        older=found.next_cursor,
        newer=visit.cursor is not None,
        base=urlencode(given),
        is_filtered=bool(given),
    )
    return Screen(template="audit.html", title="Audit log", section="audit", page=page)


async def log_out(visit: Visit) -> Redirect:
    """End the session."""
    await visit.services.access.logout(visit.identity)
    return Redirect(path="/login", note="logged-out", cookies=(session_cookie(visit.request, "", age=0),))
