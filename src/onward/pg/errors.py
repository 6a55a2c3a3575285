"""Translates psycopg's errors into ours, each with what to do about it."""

from __future__ import annotations

import re
import shlex
from types import TracebackType
from typing import Final

import psycopg
from psycopg import errors as pg

from onward.errors import (
    OnwardError,
    SchemaTooOld,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

RETRYABLE: Final = (pg.DeadlockDetected, pg.SerializationFailure)
"""What a statement ends with that the database gave up in favour of another's. It has changed nothing then."""


class Translated:
    """A block out of which the store's errors come as ours. It keeps nothing, so one serves all verbs."""

    __slots__ = ("_grant_hint", "_store")

    def __init__(self, store: object, grant_hint: str) -> None:
        self._store = store
        self._grant_hint = grant_hint

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say in our words what went wrong."""
        if (
            isinstance(error, psycopg.Error)
            and (ours := translate(error, str(self._store), self._grant_hint)) is not None
        ):
            raise ours from error


Meaning = tuple[type[OnwardError], str, str]
"""What an error is to us, why it came about where it does not say so itself, and what to do."""

_TOO_MANY_CONNECTIONS: Final = (
    StoreBusy,
    "it has no connection left",
    "close some, raise max_connections, or put PgBouncer in front of it",
)
_STARTING_OR_STOPPING: Final = (StoreUnavailable, "it is being stopped or started", "try again when it is up")
_AUTHENTICATION_FAILED: Final = (
    StoreUnavailable,
    "it refused the user or the password",
    "check both in the URL, and pg_hba.conf",
)
_UNKNOWN_USER: Final = (StoreUnavailable, "it does not know this user", "make it first: {createuser}")
_UNKNOWN_DATABASE: Final = (StoreUnavailable, "there is no such database", "make it first: {createdb}")
_UNKNOWN_HOST: Final = (StoreUnavailable, "there is no such host", "check the URL")

_BY_ERROR_CLASS: Final[tuple[tuple[tuple[type[psycopg.Error], ...], Meaning], ...]] = (
    (
        (pg.UndefinedTable, pg.UndefinedFunction, pg.InvalidSchemaName, pg.UndefinedColumn, pg.UndefinedObject),
        (SchemaTooOld, "its schema is missing or too old", "open the app once, or run: onward migrate"),
    ),
    (
        (pg.ReadOnlySqlTransaction,),
        (
            StoreReadOnly,
            "a standby, or default_transaction_read_only is on",
            "connect to the primary: target_session_attrs=read-write",
        ),
    ),
    ((pg.DiskFull, pg.OutOfMemory), (StoreFull, "it has no space left", "free some, nothing was written")),
    ((pg.TooManyConnections,), _TOO_MANY_CONNECTIONS),
    (
        (pg.LockNotAvailable, pg.QueryCanceled),
        (StoreBusy, "it took too long", "see who holds it up with: onward doctor"),
    ),
    (RETRYABLE, (StoreBusy, "others were writing the same jobs", "try again")),
    ((pg.InvalidPassword, pg.InvalidAuthorizationSpecification), _AUTHENTICATION_FAILED),
    ((pg.InvalidCatalogName,), _UNKNOWN_DATABASE),
    (
        (pg.InsufficientPrivilege,),
        (
            StoreUnavailable,
            "the user may not do this",
            "let its owner run onward migrate, and {grant_hint}",
        ),
    ),
    ((pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow), _STARTING_OR_STOPPING),
)

# Errors of a connection that never came about have no code, only words: libpq's and the driver's own, or the server's.
_BY_CLIENT_MESSAGE: Final[tuple[tuple[str, Meaning], ...]] = (
    (
        "has not answered",
        (StoreUnavailable, "", "see whether the network loses answers; if it is only slow: query_timeout="),
    ),
    ("could not translate host name", _UNKNOWN_HOST),
    ("failed to resolve host", _UNKNOWN_HOST),
)
_BY_SERVER_MESSAGE: Final[tuple[tuple[str, Meaning], ...]] = (
    ("authentication failed", _AUTHENTICATION_FAILED),
    (
        "pg_hba.conf",
        (StoreUnavailable, "it does not let this user in from here", "add a line to pg_hba.conf, and have it reloaded"),
    ),
    ("not permitted to log in", (StoreUnavailable, "", 'let it: alter role "{user}" login')),
    ("permission denied", (StoreUnavailable, "", 'let it: grant connect on database "{database}" to "{user}"')),
    ("not currently accepting", (StoreUnavailable, "", 'alter database "{database}" allow_connections true')),
    ("too many", _TOO_MANY_CONNECTIONS),
    ("remaining connection slots", _TOO_MANY_CONNECTIONS),
    ("the database system is", _STARTING_OR_STOPPING),
    ('role "', _UNKNOWN_USER),
    ("no such user", _UNKNOWN_USER),
    ('database "', _UNKNOWN_DATABASE),
    ("no such database", _UNKNOWN_DATABASE),
)
_SERVER_MESSAGE: Final = re.compile(r"\b\w+:  (.*)")
"""What the server says stands behind how bad it is, in its language; libpq puts two blanks between."""


def translate(error: psycopg.Error, store: str, grant_hint: str = "") -> OnwardError | None:
    """Say in our words what a store's error means; None: it is a mistake of ours, and must not be hidden."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    meaning = next((meaning for kinds, meaning in _BY_ERROR_CLASS if isinstance(error, kinds)), None)
    if meaning is None:
        if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return None
        meaning = _connection_failure(error, first) if error.sqlstate is None else (StoreUnavailable, "", "see its log")
    kind, why, remedy = meaning
    cause, remedy = f"{store}: {first}{why and f': {why}'}", remedy.format_map(_names(error, grant_hint))
    return kind(cause, remedy=remedy) if issubclass(kind, StoreUnavailable) else kind(f"{cause}; {remedy}")


def _connection_failure(error: psycopg.Error, first: str) -> Meaning:
    """Find out why there is no connection."""
    server_message = _SERVER_MESSAGE.search(first)
    if server_message is None:
        if error.pgconn is not None and error.pgconn.needs_password:
            return StoreUnavailable, "it wants a password", "put one into the URL, PGPASSWORD or ~/.pgpass"
        unreachable = (StoreUnavailable, "is it running, and is the address right?", "")
        return next((meaning for words, meaning in _BY_CLIENT_MESSAGE if words in first), unreachable)
    for words, meaning in _BY_SERVER_MESSAGE:
        if words in server_message[1]:
            return meaning
    # It may not speak English. Whatever it speaks, it names what it does not know.
    names = _names(error, "")
    named = [each for each in ("database", "user") if re.search(rf"\W{re.escape(names[each])}\W", server_message[1])]
    if named == ["database"]:
        return _UNKNOWN_DATABASE
    if named == ["user"]:
        return _AUTHENTICATION_FAILED if error.pgconn is not None and error.pgconn.used_password else _UNKNOWN_USER
    return StoreUnavailable, "", "check the user, the password and the database in the URL"


def _names(error: psycopg.Error, grant_hint: str) -> dict[str, str]:
    """Say whom the connection is for, and how they are made."""
    pgconn = error.pgconn
    given = (pgconn.db, pgconn.user, pgconn.host, pgconn.port) if pgconn is not None else (b"NAME", b"NAME", b"", b"")
    database, user, host, port = (each.decode() for each in given)
    where = [*(["-h", host] if host else []), *(["-p", port] if port not in {"", "5432"} else [])]
    return {
        "database": database,
        "user": user,
        "grant_hint": grant_hint,
        "createdb": shlex.join(["createdb", *where, database]),
        "createuser": shlex.join(["createuser", *where, user]),
    }
