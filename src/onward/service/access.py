"""Tokens and sessions: credentials are made, recognised and revoked here (S2).

A credential is ``onw_<id>_<secret>``. The store has the digest of the secret alone, so that a copy of the store lets
nobody in. What was read of a token is believed for a second: a busy client costs the store one read a second, and a
revoked token is refused within that time by other processes, and at once by this one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import msgspec

from onward.clock import moment_of
from onward.engine.access import AccessSession, AccessToken
from onward.errors import InvalidValue, NotAuthenticated, NotFound, StoreUnavailable
from onward.ids import new_id
from onward.service.identity import Identity, granted_of, of_token
from onward.service.login_code import TOKEN_NAME, VALID_FOR, CodeCheck, LoginCode, code_digest, new_code
from onward.service.operations import operation
from onward.service.store import Store, record
from onward.service.values import (
    IdentityView,
    NewToken,
    TokenList,
    TokenRequest,
    TokenView,
    duration,
    token_view,
)
from onward.validation import check_name, check_pattern, check_text

T = TypeVar("T")

PREFIX: Final = "onw"
SESSION_IDLE: Final = timedelta(minutes=30)
SESSION_LENGTH: Final = timedelta(hours=12)
UNCHECKED: Final = 60.0
"""Seconds after which a stream of a caller without a token ends: its client reconnects and is authenticated again."""
_BELIEVED: Final = 1.0
"""Seconds that a token or session is not read again."""
_TOUCHED: Final = 60.0
"""Seconds between two notes of a use."""
_REMEMBERED: Final = 10_000
"""Tokens and sessions that a process remembers."""
_REFUSAL: Final = "the credential is not valid: it is unknown, expired or revoked"
_NO_DIGEST: Final = "0" * 64


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session just created."""

    identity: Identity
    secret: str
    """For the cookie."""
    expires_at: datetime

    def __repr__(self) -> str:
        """Leave the secret out of logs and tracebacks."""
        return f"NewSession(identity={self.identity!r}, secret='…')"


class Access:
    """Who may use the server."""

    def __init__(self, store: Store, *, idle: timedelta = SESSION_IDLE, length: timedelta = SESSION_LENGTH) -> None:
        self._store = store
        self._idle = idle
        self._length = length
        self._tokens: dict[str, tuple[float, AccessToken]] = {}
        self._sessions: dict[str, tuple[float, AccessSession, AccessToken]] = {}
        self._touched: dict[str, float] = {}
        self._code: CodeCheck | None = None
        self._revocations = 0
        """Tokens revoked and sessions ended here. What was read before one of them is not remembered."""

    # Authentication

    async def authenticate(self, credential: str) -> Identity:
        """Recognise a token.

        Raises:
            NotAuthenticated: it is unknown, expired or revoked.
        """
        head, _, rest = credential.partition("_")
        token_id, _, secret = rest.partition("_")
        if head != PREFIX or not secret or len(credential) > 200 or not credential.isascii():
            raise NotAuthenticated(_REFUSAL)
        token = await self._token(token_id)
        # An unknown id takes as long as a wrong secret.
        expected = _NO_DIGEST if token is None else token.digest
        if not hmac.compare_digest(digest_of(secret), expected) or token is None:
            raise NotAuthenticated(_REFUSAL)
        identity = self._identity_of(token)
        await self._touch(token.id, session=False)
        return identity

    async def authenticate_session(self, secret: str) -> Identity:
        """Recognise a session by its cookie.

        Raises:
            NotAuthenticated: it is unknown, or it or its token has expired or was revoked.
        """
        if len(secret) > 200 or not secret.isascii():
            raise NotAuthenticated(_REFUSAL)
        digest = digest_of(secret)
        identity = await self._session_identity(digest)
        await self._touch(digest, session=True)
        return identity

    def accept_code(self, code: LoginCode) -> None:
        """Accept a one-time code from now on."""
        self._code = CodeCheck(code)

    async def authenticate_code(self, given: str) -> Identity:
        """Recognise the one-time code, and use it up.

        Raises:
            NotAuthenticated: there is none, or it is wrong, used, expired, or was tried too often.
        """
        check = self._code
        if check is None or not check.take(given, self._now()):
            raise NotAuthenticated(_REFUSAL)
        try:
            engine = await self._store.engine()
            token = await engine.find_token(check.code.token_id)
            # A server that was restarted has forgotten the use; the store has not.
            if token is None or token.last_used_at is not None:
                raise NotAuthenticated(_REFUSAL)
            identity = self._identity_of(token)
            await engine.touch_token(token.id)
        except StoreUnavailable:
            check.give_back()
            raise
        return identity

    async def is_valid(self, identity: Identity) -> bool:
        """Whether the authority that a caller came with still holds; for what lasts longer than a request."""
        try:
            if identity.session is not None:
                await self._session_identity(identity.session)
            elif identity.token_id is not None:
                token = await self._token(identity.token_id)
                if token is None:
                    return False
                self._identity_of(token)
        except NotAuthenticated:
            return False
        return True

    async def _session_identity(self, digest: str) -> Identity:
        known = self._sessions.get(digest)
        if known is None or time.monotonic() - known[0] > _BELIEVED:
            revocations = self._revocations
            found = await (await self._store.engine()).find_session(digest)
            if found is None:
                self._sessions.pop(digest, None)
                raise NotAuthenticated(_REFUSAL)
            known = (time.monotonic(), *found)
            if revocations == self._revocations:
                _remember(self._sessions, digest, known)
        _, session, token = known
        now = self._now()
        if now >= session.expires_at or now - session.last_seen_at >= self._idle:
            raise NotAuthenticated(_REFUSAL)
        return msgspec.structs.replace(self._identity_of(token), session=digest)

    async def _token(self, token_id: str) -> AccessToken | None:
        known = self._tokens.get(token_id)
        if known is not None and time.monotonic() - known[0] <= _BELIEVED:
            return known[1]
        revocations = self._revocations
        token = await (await self._store.engine()).find_token(token_id)
        if token is None:
            self._tokens.pop(token_id, None)
        elif revocations == self._revocations:
            _remember(self._tokens, token_id, (time.monotonic(), token))
        return token

    def _identity_of(self, token: AccessToken) -> Identity:
        if token.revoked_at is not None or (token.expires_at is not None and self._now() >= token.expires_at):
            raise NotAuthenticated(_REFUSAL)
        try:
            return of_token(token)
        except InvalidValue:  # a role of a newer version
            raise NotAuthenticated(_REFUSAL) from None

    async def _touch(self, name: str, *, session: bool) -> None:
        now = time.monotonic()
        if now - self._touched.get(name, -_TOUCHED) < _TOUCHED:
            return
        _remember(self._touched, name, now)
        engine = await self._store.engine()
        try:
            await (engine.touch_session(name) if session else engine.touch_token(name))
        except StoreUnavailable:  # the request itself says so, if it needs the store
            self._touched.pop(name, None)

    def _now(self) -> datetime:
        clock = self._store.core.clock
        return datetime.now(UTC) if clock is None else moment_of(clock.micros())

    # Sessions

    async def login(self, credential: str, *, request_id: str = "") -> NewSession:
        """Exchange a token for a session.

        Raises:
            NotAuthenticated: the token is not valid.
        """
        identity = msgspec.structs.replace(await self.authenticate(credential), request_id=request_id)
        return await self.create_session(identity)

    @operation("session.create")
    async def create_session(self, identity: Identity) -> NewSession:
        """Create a session that has the rights of the caller's token, for as long as the token has them."""
        if identity.token_id is None:
            raise InvalidValue("token", identity.actor, "must be a token: another authority keeps its own sessions")
        secret, now = secrets.token_urlsafe(32), self._now()
        session = AccessSession(
            digest=digest_of(secret),
            token_id=identity.token_id,
            created_at=now,
            last_seen_at=now,
            expires_at=now + self._length,
        )
        audit = record(identity, "session.create", target=identity.token_id)
        await (await self._store.engine()).save_session(session, audit=audit)
        return NewSession(identity=identity, secret=secret, expires_at=session.expires_at)

    @operation("session.get")
    async def whoami(self, identity: Identity) -> IdentityView:
        """Read the caller's own identity."""
        return IdentityView(
            actor=identity.actor,
            role=identity.role,
            permissions=tuple(sorted(identity.permissions)),
            queues=identity.scope.queues,
            orgs=identity.scope.orgs,
        )

    @operation("session.delete")
    async def logout(self, identity: Identity) -> None:
        """End the caller's session."""
        if identity.session is None:
            raise InvalidValue("session", None, "there is none: the request came with another credential")
        audit = record(identity, "session.delete", target=identity.token_id or "")
        await (await self._store.engine()).delete_session(identity.session, audit=audit)
        self._revocations += 1
        self._sessions.pop(identity.session, None)

    # Tokens

    @operation("tokens.create")
    async def create_token(self, identity: Identity, request: TokenRequest) -> NewToken:
        """Create a token. Its secret is in the answer, and nowhere else."""
        check_name("name", request.name)
        for pattern in request.queues or ():
            check_pattern(pattern, foreign=self._store.core.capabilities.is_shared)
        for org in request.orgs or ():
            check_text("orgs", org)
        for field in ("queues", "orgs"):
            if getattr(request, field) == ():
                raise InvalidValue(field, (), "must name at least one, or be null: all")
        expires = None if request.expires_in is None else duration("expires_in", request.expires_in)
        secret, now = secrets.token_urlsafe(32), self._now()
        token = AccessToken(
            id=new_id(),
            name=request.name,
            digest=digest_of(secret),
            role=request.role,
            permissions=tuple(sorted(granted_of(request.permissions))),
            queues=request.queues,
            orgs=request.orgs,
            created_at=now,
            created_by=identity.actor,
            expires_at=None if expires is None else now + expires,
        )
        detail: dict[str, object] = {"name": token.name, "role": token.role, "permissions": token.permissions}
        detail |= {"queues": token.queues, "orgs": token.orgs}
        audit = record(identity, "tokens.create", target=token.id, detail=detail)
        await (await self._store.engine()).save_token(token, audit=audit)
        return NewToken(token=token_view(token), secret=f"{PREFIX}_{token.id}_{secret}")

    async def create_login_code(self, identity: Identity) -> tuple[LoginCode, str]:
        """Create a one-time code and the token that its session rests on. Revoke the token when the server ends."""
        request = TokenRequest(name=TOKEN_NAME, role="admin", expires_in=self._length.total_seconds())
        new, text = await self.create_token(identity, request), new_code()
        code = LoginCode(token_id=new.token.id, digest=code_digest(text), expires_at=self._now() + VALID_FOR)
        return code, text

    @operation("tokens.list")
    async def list_tokens(self, identity: Identity) -> TokenList:
        """List tokens, the newest first; revoked and expired ones too."""
        return TokenList(items=tuple(map(token_view, await (await self._store.engine()).tokens())))

    @operation("tokens.revoke")
    async def revoke_token(self, identity: Identity, token_id: str) -> TokenView:
        """Revoke a token: it and its sessions are refused from now on, and its event streams end.

        Raises:
            NotFound: there is none of that id.
        """
        engine = await self._store.engine()
        if await engine.find_token(token_id) is None:
            raise NotFound(f"token {token_id} not found: it never existed, or has been pruned")
        await engine.revoke_token(token_id, audit=record(identity, "tokens.revoke", target=token_id))
        self._revocations += 1
        self._tokens.pop(token_id, None)
        for digest in [digest for digest, known in self._sessions.items() if known[2].id == token_id]:
            del self._sessions[digest]
        revoked = await engine.find_token(token_id)
        if revoked is None:
            raise NotFound(f"token {token_id} not found: it has just been pruned")
        return token_view(revoked)

    async def has_tokens(self) -> bool:
        """Whether a token exists that would be accepted now. Nobody has the secret of a one-time code's token."""
        now = self._now()
        return any(
            token.name != TOKEN_NAME
            and token.revoked_at is None
            and (token.expires_at is None or now < token.expires_at)
            for token in await (await self._store.engine()).tokens()
        )


def digest_of(secret: str) -> str:
    """Return the digest under which a store keeps a secret of 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _remember(known: dict[str, T], key: str, value: T) -> None:
    if key not in known and len(known) >= _REMEMBERED:
        del known[next(iter(known))]
    known[key] = value
