"""The database: how to reach it, and what its errors mean."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onward.errors import (
    InvalidValue,
    OnwardError,
    SchemaTooOld,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from onward.pg.connection import TimedAsyncConnection, TimedConnection

_CONNECT_TIMEOUT: Final = 10
"""Seconds until a server that does not let us in is given up."""
QUERY_TIMEOUT: Final = 30.0
"""Seconds until a server that does not answer is given up. What takes long on a big store says so."""
RETRYABLE: Final = (pg.DeadlockDetected, pg.SerializationFailure)
"""What a statement ends with that the database gave up in favour of another's. It has changed nothing then."""
_PREPARE_THRESHOLD: Final = 2
_CONNECTION_DEFAULTS: Final = {
    "connect_timeout": str(_CONNECT_TIMEOUT),
    "application_name": "onward",
    # A connection whose other end has gone without a word is found out within half a minute.
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
_FORCED_PARAMETERS: Final = {"client_encoding": "utf8"}
"""What an address cannot change: jobs that are copied in are written so."""
_REQUIRED_SETTINGS: Final = {
    # Statements look twice, and have to see the second time what others have committed since.
    "default_transaction_isolation": "read committed",
    # The driver reads times and intervals in no other style.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    # Patterns in functions of the schema have backslashes.
    "standard_conforming_strings": "on",
}
"""What our sessions have to have, whatever is set for the role, the database or the server. It is said with the first
message of a connection, so it costs nothing."""
_PREFERRED_SETTINGS: Final = {
    # Who gives up waiting closes the connection. Else the server would find that out when it has an answer, and until
    # then a statement that waits for a lock keeps those that it has: so may a whole store stand still.
    "client_connection_check_interval": "2s",
    # To compile a statement takes a hundred times as long as any of ours, and the server's guess that it pays goes by
    # costs that say by which index to go.
    "jit": "off",
}
"""What our sessions had better have. Not every server can, and what an address says about it holds."""
_SETTINGS_QUERY: Final = ", ".join(
    ["select pg_backend_pid()", *(f"current_setting('{name}')" for name in _REQUIRED_SETTINGS)]
)
_OPTIONS_REJECTED: Final = ("startup parameter", "command-line options")
"""By which poolers say that a session cannot be told anything with the first message: PgBouncer, Amazon's proxy."""


class Database:
    """One PostgreSQL database, by its address."""

    def __init__(
        self, url: str, *, query_timeout: float = QUERY_TIMEOUT, grant_hint: str = "grant the role what it needs"
    ) -> None:
        """``grant_hint``: how its owner lets a role do what it may not."""
        try:
            given: dict[str, Any] = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            # libpq's message may quote a part of the URL; the password is not among what it quotes.
            raise InvalidValue("url", "postgresql://…", f"is none that PostgreSQL understands: {error}") from None
        self._parameters = given
        self.query_timeout = query_timeout
        """Seconds to wait for an answer."""
        self._translated = Translated(self, grant_hint.format(user=given.get("user") or "NAME"))
        self._plain_conninfo = make_conninfo(**(_CONNECTION_DEFAULTS | given | _FORCED_PARAMETERS))
        """For sessions that are as they are."""
        self._required_conninfo = make_conninfo(self._plain_conninfo, **_options(given, _REQUIRED_SETTINGS))
        """For sessions that are as they must be, if not as we wish."""
        self._conninfo = make_conninfo(self._plain_conninfo, **_options(given, _REQUIRED_SETTINGS, _PREFERRED_SETTINGS))
        self.is_pooled = True
        """Whether a pooler stands in between, so that nothing may depend on the session; until it is known, yes."""

    def __str__(self) -> str:
        """Name it as errors do: without a password."""
        shown = " ".join(
            f"{name}={self._parameters[name]}"
            for name in ("host", "port", "dbname", "user")
            if name in self._parameters
        )
        return f"PostgreSQL ({shown or 'at its default address'})"

    @property
    def address(self) -> dict[str, Any]:
        """Where it is, without secrets."""
        return {name: self._parameters.get(name) for name in ("host", "port", "dbname", "user")}

    def connect(self) -> TimedConnection:
        """Open a connection for plain code."""
        options: dict[str, Any] = {
            "autocommit": True,
            "cursor_factory": psycopg.RawCursor,
            "prepare_threshold": self._prepare_threshold,
        }
        with self.translated():
            try:
                connection = TimedConnection.connect(self._conninfo, **options)
            except psycopg.OperationalError as error:
                connection = TimedConnection.connect(self._fallback_conninfo(error), **options)
        connection.query_timeout = self.query_timeout
        return connection

    async def aconnect(self) -> TimedAsyncConnection:
        """Open a connection for an event loop."""
        options: dict[str, Any] = {
            "autocommit": True,
            "cursor_factory": psycopg.AsyncRawCursor,
            "prepare_threshold": self._prepare_threshold,
        }
        with self.translated():
            try:
                connection = await TimedAsyncConnection.connect(self._conninfo, **options)
            except psycopg.OperationalError as error:
                connection = await TimedAsyncConnection.connect(self._fallback_conninfo(error), **options)
        connection.query_timeout = self.query_timeout
        return connection

    def _fallback_conninfo(self, error: psycopg.OperationalError) -> str:
        """Say how to connect, now and from now on, if a pooler or the server lets less be said about a session."""
        if any(words in str(error) for words in _OPTIONS_REJECTED):
            self._conninfo = self._plain_conninfo
        elif any(name in str(error) for name in _PREFERRED_SETTINGS):
            self._conninfo = self._required_conninfo
        else:
            raise error
        return self._conninfo

    @property
    def _prepare_threshold(self) -> int | None:
        """After how many times a statement is prepared; never, where the next one may go to another session."""
        return None if self.is_pooled else _PREPARE_THRESHOLD

    def detect_settings(self, connection: psycopg.Connection[Any]) -> None:
        """Find out whether a pooler stands in between: the session says another name than the connection was given.

        Such a session may not be as it has to be, since the pooler was not told or has not passed it on; it is refused.
        """
        ((pid, *found),) = connection.execute(_SETTINGS_QUERY).fetchall()
        self.is_pooled = pid != connection.info.backend_pid
        for (name, required), value in zip(_REQUIRED_SETTINGS.items(), found, strict=True):
            if value.split(",")[0] != required:
                cause = f"{self}: {name} is {value}, and could not be set for the session; Onward needs {required}"
                role = connection.info.user
                raise StoreUnavailable(cause, remedy=f"alter role \"{role}\" set {name} = '{required}'")

    def translated(self) -> Translated:
        """Let the store's errors out as ours."""
        return self._translated


def _options(
    given: Mapping[str, Any], required: Mapping[str, str], preferred: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Put what our sessions have to have behind what an address says about them, and what we wish before it.

    But only if what it says is for the server to read.
    """
    session_options = given.get("options") or os.environ.get("PGOPTIONS", "")
    if (session_options and not session_options.startswith("-")) or "service" in given or "PGSERVICE" in os.environ:
        return {}  # it is for a proxy, or in a file that libpq reads
    return {
        "options": " ".join(filter(None, [*_option_flags(preferred or {}), session_options, *_option_flags(required)]))
    }


def _option_flags(settings: Mapping[str, str]) -> list[str]:
    return ["-c {}={}".format(name, value.replace(" ", r"\ ")) for name, value in settings.items()]


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
