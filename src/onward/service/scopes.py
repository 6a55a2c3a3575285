"""Narrows what a caller asks for to what it may see, so that the store itself leaves out the rest (S3, H9)."""

from __future__ import annotations

import msgspec

from onward.engine.values import JobFilter
from onward.errors import PermissionDenied
from onward.service.identity import Identity, Permission
from onward.validation import matches


def narrow(identity: Identity, which: JobFilter) -> JobFilter | None:
    """Make the filter that a caller may use of the one it has given; None: nothing can match.

    Raises:
        PermissionDenied: the filter searches text that the caller sees only redacted.
    """
    if which.error_contains is not None and not identity.may(Permission.REVEAL):
        # S6: a search in unredacted text finds a secret letter by letter.
        raise PermissionDenied(
            "error_contains searches error texts without redaction, which needs the permission reveal",
            remedy="use a token with the permission reveal, or filter by status, queue or type",
        )
    orgs, queues = identity.scope.orgs, identity.scope.queues
    if orgs is not None:
        allowed = orgs if which.orgs is None else tuple(org for org in which.orgs if org in orgs)
        if which.org_id is not None:
            allowed = tuple(org for org in allowed if org == which.org_id)
        if not allowed:
            return None
        which = msgspec.structs.replace(which, orgs=allowed)
    if queues is not None:
        both = queues if which.queues is None else intersection(queues, which.queues)
        if not both:
            return None
        which = msgspec.structs.replace(which, queues=both)
    return which


def intersection(some: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Return patterns that match the queues which both sets of patterns match."""
    found: dict[str, None] = {}
    for one in some:
        for other in others:
            if covers(one, other):
                found[other] = None
            elif covers(other, one):
                found[one] = None
    return tuple(found)


def covers(pattern: str, other: str) -> bool:
    """Whether a pattern matches every queue that another one matches."""
    if pattern in {"*", other}:
        return True
    return pattern.endswith("/*") and other.startswith(pattern[:-1])


def sees_queue(identity: Identity, queue: str) -> bool:
    """Whether a queue is in the caller's scope."""
    queues = identity.scope.queues
    return queues is None or any(matches(pattern, queue) for pattern in queues)


def sees(identity: Identity, queue: str, org_id: str | None) -> bool:
    """Whether a job of this queue and organisation is in the caller's scope."""
    orgs = identity.scope.orgs
    return (orgs is None or org_id in orgs) and sees_queue(identity, queue)
