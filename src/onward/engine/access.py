"""Who may use the server, and what they have changed: the values of :class:`~onward.engine.contract.AccessStore`.

Secrets never reach a store: tokens and sessions are kept by the SHA-256 digest of a random secret of 256 bits, which
needs no slow hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from onward.job import Enqueued, EnqueueStatus

MIN_AUDIT_RETENTION: Final = timedelta(days=30)
"""Records younger than this are kept, whatever retention is asked for: an intruder cannot remove the traces (S5)."""
TOUCH_INTERVAL: Final = timedelta(minutes=1)
"""How exact the times of last use are."""
PRUNE_LIMIT: Final = 1000
"""Rows of a kind that one call removes."""


class AccessToken(msgspec.Struct, frozen=True, kw_only=True):
    """A credential as the store has it (S2)."""

    id: str
    """A UUIDv7. It is the public half of the credential, and names it in lists and audit records."""
    name: str
    """What people call it: ``ci``, ``grafana``."""
    digest: str
    """The SHA-256 of the secret half, in hexadecimal."""
    role: str
    """``viewer``, ``operator`` or ``admin``."""
    permissions: tuple[str, ...] = ()
    """Granted on top of the role's own: ``reveal``, ``edit``, ``enqueue``, ``delete``."""
    queues: tuple[str, ...] | None = None
    """Patterns of the queues it may use; None: all."""
    orgs: tuple[str, ...] | None = None
    """Organisations it may see and change; None: all, and what belongs to none."""
    created_at: datetime
    created_by: str = ""
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute: a use is not a write."""
    revoked_at: datetime | None = None


class AccessSession(msgspec.Struct, frozen=True, kw_only=True):
    """A browser's login. It has the rights of its token, for as long as the token has them."""

    digest: str
    """The SHA-256 of the cookie's secret, in hexadecimal."""
    token_id: str
    created_at: datetime
    last_seen_at: datetime
    """To the minute."""
    expires_at: datetime
    """However much it is used."""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One change that a person or a program made through the server or the command line (S5)."""

    id: str
    """A UUIDv7. A record is written once, however often it is sent."""
    at: datetime | None = None
    """By the store's clock; None: not written yet."""
    actor: str
    """``token:<name>``, ``cli:<user>@<host>``, ``user:<name>`` of the host application."""
    role: str
    action: str
    """The operation's name: ``jobs.cancel``, ``queues.pause``."""
    target: str = ""
    """The name of what was changed: a job, a queue, a schedule, a token."""
    filter: str | None = None
    """Which jobs, as JSON, where a filter chose them."""
    count: int | None = None
    """How many were changed. The engine sets it where the verb that carries the record knows it."""
    orgs: tuple[str, ...] | None = None
    """The organisations that the actor was limited to."""
    request_id: str = ""
    detail: str | None = None
    """What else is worth knowing, as JSON, without payloads and secrets."""


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which records: every field given must hold."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    after: datetime | None = None
    before: datetime | None = None


def counted(record: AuditRecord, count: int) -> AuditRecord:
    """Set how many were changed."""
    return msgspec.structs.replace(record, count=count)


def enqueued_count(answers: Sequence[Enqueued]) -> int:
    """Count the jobs that an enqueue has added or changed."""
    unchanged = (EnqueueStatus.SAME_KEY, EnqueueStatus.DEDUPED)
    return sum(answer.enqueue_status not in unchanged for answer in answers)


def batch_count(answers: Sequence[Enqueued], *, has_jobs: bool) -> int:
    """Count what saving a batch has changed: the jobs that it adds, or the batch itself."""
    return enqueued_count(answers) if has_jobs else 1
