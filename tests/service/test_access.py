"""Tokens and sessions (S2)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest

from onward.engine.access import AuditQuery
from onward.errors import InvalidValue, NotAuthenticated
from onward.service.access import SESSION_IDLE, SESSION_LENGTH
from onward.service.identity import Permission, Role
from onward.service.services import Services
from onward.service.values import TokenRequest
from tests.service.conftest import ADMIN


async def test_a_token_lets_its_holder_in_with_its_role_and_scope(services):  # S2
    new = await services.access.create_token(
        ADMIN, TokenRequest(name="ci", role="operator", permissions=("reveal",), queues=("mail/*",), orgs=("a",))
    )
    identity = await services.access.authenticate(new.secret)
    assert (identity.actor, identity.role) == ("token:ci", Role.OPERATOR)
    assert Permission.REVEAL in identity.permissions
    assert (identity.scope.queues, identity.scope.orgs) == (("mail/*",), ("a",))
    assert new.secret not in repr(new)
    listed = await services.access.list_tokens(ADMIN)
    assert new.secret.rpartition("_")[2] not in msgspec.json.encode(listed).decode()
    assert listed.items[0].last_used_at is not None


@pytest.mark.parametrize("ends", ["revoke", "logout"])
async def test_a_lookup_that_began_before_a_revocation_is_not_remembered(services, monkeypatch, ends):  # S2
    access = services.access
    new = await access.create_token(ADMIN, TokenRequest(name="ci"))
    session = await access.login(new.secret)
    identity = await access.authenticate_session(session.secret)
    access._tokens.clear()
    access._sessions.clear()
    engine = await access._store.engine()
    read, gate = asyncio.Event(), asyncio.Event()
    real_session, real_token = engine.find_session, engine.find_token

    async def find_session(digest):
        found = await real_session(digest)
        read.set()
        await gate.wait()
        return found

    async def find_token(token_id):
        found = await real_token(token_id)
        await gate.wait()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(engine, "find_session", find_session)
        early = [asyncio.create_task(access.authenticate_session(session.secret))]
        if ends == "revoke":
            patch.setattr(engine, "find_token", find_token)
            early.append(asyncio.create_task(access.authenticate(new.secret)))
        async with asyncio.timeout(30):
            await read.wait()
        patch.setattr(engine, "find_token", real_token)
        await (access.revoke_token(ADMIN, new.token.id) if ends == "revoke" else access.logout(identity))
        gate.set()
        await asyncio.gather(*early, return_exceptions=True)
    with pytest.raises(NotAuthenticated):
        await access.authenticate_session(session.secret)
    if ends == "revoke":
        with pytest.raises(NotAuthenticated):
            await access.authenticate(new.secret)


async def test_a_wrong_credential_is_refused(services):  # S2
    new = await services.access.create_token(ADMIN, TokenRequest(name="ci"))
    other = await services.access.create_token(ADMIN, TokenRequest(name="other"))
    _, token_id, secret = new.secret.split("_", 2)
    other_id = other.secret.split("_", 2)[1]
    for wrong in (
        "",
        "onw",
        "onw__",
        secret,
        new.secret + "x",
        new.secret[:-1],
        f"onw_{other_id}_{secret}",
        f"onx_{token_id}_{secret}",
        f"onw_{token_id}_",
        f"onw_{token_id}_ä",
        new.secret + "x" * 1000,
    ):
        with pytest.raises(NotAuthenticated):
            await services.access.authenticate(wrong)


async def test_an_expired_or_revoked_token_is_refused_with_its_sessions(app, services, store):  # S2
    new = await services.access.create_token(ADMIN, TokenRequest(name="short", expires_in=60))
    session = await services.access.login(new.secret)
    await store.advance(timedelta(seconds=61))
    with pytest.raises(NotAuthenticated):
        await services.access.authenticate(new.secret)
    with pytest.raises(NotAuthenticated):
        await services.access.authenticate_session(session.secret)
    long = await services.access.create_token(ADMIN, TokenRequest(name="long"))
    session = await services.access.login(long.secret)
    identity = await services.access.authenticate_session(session.secret)
    assert await services.access.is_valid(identity)
    await services.access.revoke_token(ADMIN, long.token.id)
    assert not await services.access.is_valid(identity)
    for attempt in (
        services.access.authenticate(long.secret),
        services.access.authenticate_session(session.secret),
        Services(app).access.authenticate(long.secret),
    ):
        with pytest.raises(NotAuthenticated):
            await attempt
    assert not await services.access.has_tokens()


async def test_a_session_ends_when_idle_and_after_its_length(app, services, store):  # S2
    new = await services.access.create_token(ADMIN, TokenRequest(name="web", expires_in=None))
    session = await services.access.login(new.secret)
    await store.advance(SESSION_IDLE + timedelta(seconds=1))
    with pytest.raises(NotAuthenticated):
        await services.access.authenticate_session(session.secret)
    session = await services.access.login(new.secret)
    for _ in range(SESSION_LENGTH // timedelta(minutes=20) - 1):
        await store.advance(timedelta(minutes=20))
        await Services(app).access.authenticate_session(session.secret)
    await store.advance(timedelta(minutes=21))
    with pytest.raises(NotAuthenticated):
        await Services(app).access.authenticate_session(session.secret)


async def test_logging_out_ends_the_session(services):  # S2
    new = await services.access.create_token(ADMIN, TokenRequest(name="web"))
    session = await services.access.login(new.secret)
    identity = await services.access.authenticate_session(session.secret)
    await services.access.logout(identity)
    with pytest.raises(NotAuthenticated):
        await services.access.authenticate_session(session.secret)
    actions = [one.action for one in (await services.audit.list(ADMIN, AuditQuery())).items]
    assert actions == ["session.delete", "session.create", "tokens.create"]


@pytest.mark.parametrize(
    "request_",
    [
        TokenRequest(name=""),
        TokenRequest(name="x", permissions=("tokens",)),
        TokenRequest(name="x", queues=("",)),
        TokenRequest(name="x", queues=()),
        TokenRequest(name="x", orgs=()),
        TokenRequest(name="x", expires_in=-1),
    ],
)
async def test_a_token_that_makes_no_sense_is_refused(services, request_):
    with pytest.raises(InvalidValue):
        await services.access.create_token(ADMIN, request_)
    assert not await services.access.has_tokens()
