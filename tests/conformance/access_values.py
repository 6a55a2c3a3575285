"""Tokens, sessions and audit records of which only some fields matter."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from onward.engine.access import AccessSession, AccessToken, AuditRecord
from onward.ids import new_id
from tests.conformance.driver import Driver

DAY = timedelta(days=1)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def token(driver: Driver, name: str = "ci", **fields: Any) -> AccessToken:
    given = {
        "id": new_id(),
        "name": name,
        "digest": digest_of(name),
        "role": "operator",
        "created_at": driver.now,
        **fields,
    }
    return AccessToken(**given)


def session(driver: Driver, of: AccessToken, cookie: str = "cookie", **fields: Any) -> AccessSession:
    given = {
        "digest": digest_of(cookie),
        "token_id": of.id,
        "created_at": driver.now,
        "last_seen_at": driver.now,
        "expires_at": driver.now + DAY,
        **fields,
    }
    return AccessSession(**given)


def record(action: str = "jobs.cancel", **fields: Any) -> AuditRecord:
    return AuditRecord(**{"id": new_id(), "actor": "token:ci", "role": "operator", "action": action, **fields})
