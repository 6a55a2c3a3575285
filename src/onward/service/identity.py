"""Who calls: an actor with a role, permissions, and the part of the store that it may use (S3)."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

from onward.engine.access import AccessToken
from onward.errors import InvalidValue
from onward.validation import check_text, one_of


class Permission(StrEnum):
    """What an operation needs."""

    READ = "read"
    OPERATE = "operate"
    """Cancel, replay, pause, resume, run a schedule."""
    ENQUEUE = "enqueue"
    REVEAL = "reveal"
    """Read values that are redacted; each use is audited."""
    EDIT = "edit"
    DELETE = "delete"
    CONFIGURE = "configure"
    """Change settings of queues, and schedules."""
    TOKENS = "tokens"
    AUDIT = "audit"


class Role(StrEnum):
    """A set of permissions with a name."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


ROLES: Final[dict[Role, frozenset[Permission]]] = {
    Role.VIEWER: frozenset({Permission.READ}),
    Role.OPERATOR: frozenset({Permission.READ, Permission.OPERATE, Permission.ENQUEUE}),
    Role.ADMIN: frozenset(Permission),
}
GRANTABLE: Final = frozenset({Permission.REVEAL, Permission.EDIT, Permission.ENQUEUE, Permission.DELETE})
"""What a token can have on top of its role."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the store that a caller may use."""

    queues: tuple[str, ...] | None = None
    """Names and patterns; None: all."""
    orgs: tuple[str, ...] | None = None
    """Organisations; None: all, and jobs of none."""


EVERYTHING: Final = Scope()


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A caller."""

    actor: str
    """As audit records name it: ``token:<name>``, ``cli:<user>@<host>``, ``user:<name>``."""
    role: Role
    permissions: frozenset[Permission]
    scope: Scope = EVERYTHING
    token_id: str | None = None
    """The token that it rests on; None: another authority vouches for the caller."""
    session: str | None = None
    """The digest of the session that it came with; None: no session."""
    request_id: str = ""
    """The request that it makes now."""

    @property
    def has_credential(self) -> bool:
        """Whether it came with a token or a session, which the store can be asked for again."""
        return self.session is not None or self.token_id is not None

    @property
    def stream_owner(self) -> str:
        """The caller whose open streams are counted together (S7)."""
        return self.token_id or self.actor

    def may(self, permission: Permission) -> bool:
        """Whether the caller has a permission."""
        return permission in self.permissions


@lru_cache(maxsize=1000)
def of_token(token: AccessToken) -> Identity:
    """Make the identity of a token, as far as this version knows its role and permissions."""
    role = one_of("role", Role, token.role)
    granted = GRANTABLE.intersection(token.permissions)
    return Identity(
        actor=f"token:{token.name}",
        role=role,
        permissions=ROLES[role] | granted,
        scope=Scope(queues=token.queues, orgs=token.orgs),
        token_id=token.id,
    )


def of_user(
    name: str,
    *,
    role: Role | str = Role.VIEWER,
    permissions: Iterable[Permission | str] = (),
    queues: Iterable[str] | None = None,
    orgs: Iterable[str] | None = None,
) -> Identity:
    """Make the identity of a user whom the host application has authenticated, or a trusted proxy.

    Raises:
        InvalidValue: the role or a permission does not exist, or cannot be granted.
    """
    word = one_of("role", Role, role)
    return Identity(
        actor=f"user:{check_text('user', name)}",
        role=word,
        permissions=ROLES[word] | granted_of(permissions),
        scope=Scope(queues=None if queues is None else tuple(queues), orgs=None if orgs is None else tuple(orgs)),
    )


def of_command_line() -> Identity:
    """Make the identity of the person at this machine's command line, who has the store's own credentials."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for this user id, as in many containers
        user = "unknown"
    return Identity(actor=f"cli:{user}@{socket.gethostname()}", role=Role.ADMIN, permissions=ROLES[Role.ADMIN])


def granted_of(permissions: Iterable[Permission | str]) -> frozenset[Permission]:
    """Read permissions that are granted on top of a role.

    Raises:
        InvalidValue: one does not exist, or comes only with a role.
    """
    granted = frozenset(one_of("permissions", Permission, word) for word in permissions)
    if beyond := granted - GRANTABLE:
        rule = f"comes only with a role; grant {', '.join(sorted(GRANTABLE))}"
        raise InvalidValue("permissions", min(beyond), rule)
    return granted
