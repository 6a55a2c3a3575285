"""Where the jobs of a backend are kept: in one of Django's own databases, or wherever a URL says.

Django makes a backend for each thread. What they stand on, an App, is made once for each store and process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.connection import ConnectionDoesNotExist

from onward.app import App
from onward.arguments import nearest
from onward.connection import Connection
from onward.contrib.django.framework import InvalidTaskBackend
from onward.engine.capabilities import Capabilities
from onward.errors import EngineNotIncluded, OnwardError
from onward.own_loop import run_in_own_loop

T = TypeVar("T")

_OPTIONS: Final = ("database", "url", "max_attempts")
_ELSEWHERE: Final = "or keep the jobs elsewhere, by OPTIONS['url']"

_apps: dict[str, App] = {}
_making = threading.Lock()


class Store:
    """The store of one backend, as its settings name it."""

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        """Read the settings; nothing is connected to yet.

        Raises:
            InvalidTaskBackend: they name nothing, or something that is not there.
        """
        self._where = f"TASKS[{alias!r}]['OPTIONS']"
        if not isinstance(options, Mapping):
            raise InvalidTaskBackend(f"{self._where} must be a dictionary, and is {options!r}")
        for name in options:
            if name not in _OPTIONS:
                raise self._wrong(name, f"is no option of Onward's{nearest(str(name), _OPTIONS)}")
        self._url: str | None = options.get("url")
        if self._url is not None and "database" in options:
            raise self._wrong("url", "names a store, and so does 'database': give one of them")
        self.database: str | None = None if self._url is not None else options.get("database", DEFAULT_DB_ALIAS)
        """The alias of the database that holds the jobs; None: they are elsewhere."""
        self.max_attempts: int = options.get("max_attempts", 1)
        """How many runs a task may have: as long as nothing else is said, one, as with Django's own backends."""
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise self._wrong("max_attempts", f"must be a whole number of at least 1, and is {self.max_attempts!r}")
        try:
            self.capabilities: Capabilities = self.app.capabilities
        except OnwardError as error:
            raise self._wrong("database" if self._url is None else "url", f"leads nowhere: {error}") from error

    def _wrong(self, option: str, rule: str) -> ImproperlyConfigured:
        wrong: ImproperlyConfigured = InvalidTaskBackend(f"{self._where}[{option!r}] {rule}")
        return wrong

    @property
    def app(self) -> App:
        """The App on the store. Tests give a database another name on the way: then there is another."""
        url = self.url
        with _making:
            app = _apps.get(url)
            if app is None:
                app = _apps[url] = App(url)
        return app

    @property
    def url(self) -> str:
        """Which store it is."""
        return self._url if self._url is not None else self._url_of_database()

    def _url_of_database(self) -> str:
        try:
            connection = connections[self.database]
        except ConnectionDoesNotExist:
            raise self._wrong(
                "database", f"is {self.database!r}{nearest(str(self.database), list(connections))}"
            ) from None
        if connection.vendor == "postgresql":
            return _postgresql(connection)
        if connection.vendor != "sqlite":
            kind = connection.display_name
            rule = f"is {self.database!r}, which is on {kind}: name one on PostgreSQL or SQLite, {_ELSEWHERE}"
            raise self._wrong("database", rule)
        if connection.is_in_memory_db():
            rule = (
                f"is {self.database!r}, which is in memory, where no worker could see it: give it a file (in tests, "
                f"DATABASES[{self.database!r}]['TEST']['NAME']), {_ELSEWHERE}"
            )
            raise self._wrong("database", rule)
        return f"sqlite:///{quote(str(Path(connection.settings_dict['NAME']).absolute()))}"

    def ask(self, question: Callable[[App], Coroutine[Any, Any, T]]) -> T:
        """Ask the store from plain code, on a connection that is closed again.

        Who serves requests keeps no connection besides Django's own, and tests can drop their database when they end.
        """
        url = self.url  # another thread would have connections of its own

        async def ask() -> T:
            async with App(url) as app:
                return await question(app)

        return run_in_own_loop(ask)

    def connection(self) -> Connection | None:
        """Give the request's own connection, for the job to be stored on; None: the jobs are elsewhere."""
        if self.database is None:
            return None
        connection: Connection = connections[self.database]
        return connection


def _postgresql(connection: Any) -> str:
    """Write down how Django reaches a database, as libpq reads it."""
    try:
        import psycopg  # noqa: PLC0415 - Django may stand on SQLite alone
    except ModuleNotFoundError as error:
        raise EngineNotIncluded("PostgreSQL needs its driver: pip install 'onward[django,postgres]'") from error
    known = {default.keyword.decode() for default in psycopg.pq.Conninfo.get_defaults()}
    given = {
        name: value
        for name, value in connection.get_connection_params().items()
        if name in known and value not in (None, "")
    }
    return f"postgresql:///?{urlencode(given, quote_via=quote)}"
