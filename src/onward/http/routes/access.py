"""Sessions, tokens, and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from onward.engine.access import AuditQuery
from onward.http.authentication import session_cookie
from onward.http.endpoints import Call, Reply, endpoint
from onward.service.values import AuditPage, IdentityView, NewToken, TokenList, TokenRequest, TokenView


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token, or the one-time code that the server has printed, to exchange for a session."""

    token: str | None = None
    code: str | None = None

    def __post_init__(self) -> None:
        """Refuse both and neither."""
        if (self.token is None) == (self.code is None):
            raise ValueError("give either a token or a code")

    def __repr__(self) -> str:
        """Leave the secret out of logs and tracebacks."""
        return "Login(…)"


class AuditParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which records, and which page of them."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    after: datetime | None = None
    before: datetime | None = None
    cursor: str | None = None
    limit: int = 50


async def login(call: Call) -> Reply:
    session = await call.services.access.create_session(call.identity)
    view = await call.services.access.whoami(session.identity)
    cookie = session_cookie(call.request, session.secret, proxy=call.settings.trusted_proxy)
    return Reply(value=view, status=201, headers={"Set-Cookie": cookie})


async def whoami(call: Call) -> IdentityView:
    return await call.services.access.whoami(call.identity)


async def logout(call: Call) -> Reply:
    await call.services.access.logout(call.identity)
    cookie = session_cookie(call.request, "", proxy=call.settings.trusted_proxy, age=0)
    return Reply(status=204, headers={"Set-Cookie": cookie})


async def list_tokens(call: Call) -> TokenList:
    return await call.services.access.list_tokens(call.identity)


async def create_token(call: Call) -> NewToken:
    return await call.services.access.create_token(call.identity, call.body)


async def revoke_token(call: Call) -> TokenView:
    return await call.services.access.revoke_token(call.identity, call.path["id"])


async def list_audit(call: Call) -> AuditPage:
    asked: AuditParameters = call.query
    query = AuditQuery(
        actor=asked.actor, action=asked.action, target=asked.target, after=asked.after, before=asked.before
    )
    return await call.services.audit.list(call.identity, query, cursor=asked.cursor, limit=asked.limit)


ENDPOINTS: Final = (
    endpoint("POST", "/session", "session.create", login, body=Login, returns=IdentityView, status=201),
    endpoint("GET", "/session", "session.get", whoami, returns=IdentityView),
    endpoint("DELETE", "/session", "session.delete", logout, status=204),
    endpoint("GET", "/tokens", "tokens.list", list_tokens, returns=TokenList),
    endpoint("POST", "/tokens", "tokens.create", create_token, body=TokenRequest, returns=NewToken, status=201),
    endpoint("DELETE", "/tokens/{id}", "tokens.revoke", revoke_token, returns=TokenView),
    endpoint("GET", "/audit", "audit.list", list_audit, query=AuditParameters, returns=AuditPage),
)
