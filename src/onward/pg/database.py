"""Connects to a database, with the session settings that we need."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onward.errors import (
    InvalidValue,
    StoreUnavailable,
)
from onward.pg.errors import Translated
from onward.pg.timed_connection import TimedAsyncConnection, TimedConnection
from onward.store_url import check_credentials, hide_quoted, hide_secrets

_CONNECT_TIMEOUT: Final = 10
"""Seconds until a server that does not let us in is given up."""
QUERY_TIMEOUT: Final = 30.0
"""Seconds until a server that does not answer is given up. What takes long on a big store says so."""
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
            given: dict[str, Any] = conninfo_to_dict(check_credentials(url))
        except (psycopg.ProgrammingError, UnicodeDecodeError) as error:
            rule = f"is none that PostgreSQL understands: {hide_quoted(str(error))}"
            raise InvalidValue("url", hide_secrets(url), rule) from None
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
