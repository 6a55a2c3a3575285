"""What a caller may ask for, and which callers see the same."""

from __future__ import annotations

from typing import Any

from onward.errors import PermissionDenied
from onward.service.identity import Identity
from onward.service.operations import find, permit


def is_permitted(identity: Identity, operation: str) -> bool:
    """Whether a caller may ask for an operation."""
    try:
        permit(identity, find(operation))
    except PermissionDenied:
        return False
    return True


def scope_key(identity: Identity) -> tuple[Any, ...]:
    """Return what decides what a caller sees: callers with the same key can share what was read."""
    return (identity.scope.queues, identity.scope.orgs, identity.permissions, identity.role)
