"""Opens an engine by its URL. A driver is imported when an engine of its kind is asked for, and not before.

=============================  ==========  =============================================================
URL                            engine
=============================  ==========  =============================================================
``sqlite:///jobs.db``          SQLite      a file, here relative; ``sqlite:////var/jobs.db`` is absolute
``sqlite://``                  SQLite      a private temporary file, gone when it is closed
``postgresql://host/db``       PostgreSQL  as libpq reads it; ``?schema=onward`` is the schema of the jobs
``redis://host:6379/0``        BullMQ      also ``rediss://`` and ``unix:///path``; ``?prefix=bull``
``pgboss+postgresql://…``      pg-boss     ``?schema=pgboss`` is where it is; ``supervise=on`` where no Node runs
``pgmq+postgresql://…``        PGMQ        as for PostgreSQL; its settings are in docs/engines/pgmq.md
=============================  ==========  =============================================================

Settings of an engine stand behind a question mark: ``sqlite:///jobs.db?synchronous=normal``. SQLite and PostgreSQL also
have ``events=all|listened`` and ``max_events=10000`` (docs/guides/events.md).
"""

from __future__ import annotations

import difflib
from typing import Any, Final, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from onward.clock import Clock
from onward.engine.capabilities import Feature
from onward.engine.contract import Engine
from onward.engine.event_reader import Events
from onward.errors import EngineNotIncluded, InvalidValue
from onward.store_url import check_credentials, hide_secrets
from onward.validation import read_number

_REDIS: Final = ("redis", "rediss", "unix")
_SCHEMES: Final = ("sqlite", "postgresql", *_REDIS, "pgboss+postgresql", "pgmq+postgresql")
_FILE_RULE: Final = "must be sqlite:///file.db (relative), sqlite:////dir/file.db (absolute) or sqlite:// (temporary)"


def open_engine(url: str, *, clock: Clock | None = None, events: Events | None = None) -> Engine:
    """Make the engine that a URL names. Nothing is connected to yet.

    ``clock`` is for tests, and for engines that keep their own time: SQLite does, servers have a clock themselves.
    ``events`` says when a store that keeps a record of events does so; one that always does need not be told.

    Raises:
        InvalidValue: the URL names nothing that could be opened.
        EngineNotIncluded: the engine is not in this version.
        Unsupported: it was told of events, and has none.
    """
    engine = _open(url, clock, events)
    if events is not None:
        engine.capabilities.require(Feature.EVENTS)
    return engine


def _open(url: str, clock: Clock | None, events: Events | None) -> Engine:
    scheme, found, _ = url.partition("://") if isinstance(url, str) else ("", "", "")
    scheme = scheme.lower()
    if not found:
        raise InvalidValue("url", hide_secrets(str(url)), "must be a URL such as sqlite:///jobs.db")
    if scheme == "sqlite":
        return _open_sqlite(url, clock, events)
    check_credentials(url)
    if scheme in {"postgresql", "postgres"}:
        return _open_postgres(url, clock, events)
    if scheme in {"pgboss+postgresql", "pgboss+postgres"}:
        return _open_pgboss(url, clock)
    if scheme in {"pgmq+postgresql", "pgmq+postgres"}:
        return _open_pgmq(url)
    if scheme in _REDIS:
        return _open_bullmq(url, clock)
    close = difflib.get_close_matches(scheme, _SCHEMES, n=1)
    hint = f"did you mean {close[0]}://?" if close else f"there are {', '.join(f'{each}://' for each in _SCHEMES)}"
    raise InvalidValue("url", f"{scheme}://…", f"names no engine of ours: {hint}")  # the rest may hold a password


def _record(settings: dict[str, str], events: Events | None) -> dict[str, Any]:
    """Take what a URL says of the record of events out of its settings; what was said beside it counts more."""
    said, kept = settings.pop("events", None), settings.pop("max_events", None)
    max_events = None if kept is None else read_number(kept)
    if kept is not None and max_events is None:
        raise InvalidValue("url", f"max_events={kept}", "must be a whole number of at least 1")
    return {"events": events or said, "max_events": max_events}


def _open_sqlite(url: str, clock: Clock | None, events: Events | None) -> Engine:
    from onward.engines.sqlite.database import Synchronous  # noqa: PLC0415 - see the module's first sentence
    from onward.engines.sqlite.engine import SQLiteEngine  # noqa: PLC0415

    try:
        parts = urlsplit(url)
    except ValueError:  # its message may quote a part of a password
        raise InvalidValue("url", hide_secrets(url), _FILE_RULE) from None
    if parts.netloc or parts.fragment:
        raise InvalidValue("url", hide_secrets(url), _FILE_RULE)
    path = unquote(parts.path.removeprefix("/")) or None
    if path is not None and (path.endswith("/") or ":memory:" in path):
        raise InvalidValue(
            "url", hide_secrets(url), f"{_FILE_RULE}: jobs in memory would be lost, and no other process could see them"
        )
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    synchronous = settings.pop("synchronous", "full")
    record = _record(settings, events)
    for name in settings:
        rule = "is no setting of SQLite: there are synchronous=full|normal, events=all|listened and max_events=10000"
        raise InvalidValue("url", name, rule)
    return SQLiteEngine(path, clock=clock, synchronous=cast("Synchronous", synchronous), **record)


_POSTGRES: Final = frozenset({"schema", "notify", "listen_url", "query_timeout", "events", "max_events"})


def _open_postgres(url: str, clock: Clock | None, events: Events | None) -> Engine:
    try:
        from onward.engines.postgres.engine import PostgresEngine  # noqa: PLC0415 - see the module's first sentence
        from onward.engines.postgres.statements import DEFAULT  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("psycopg"):
            raise
        raise EngineNotIncluded("PostgreSQL needs its driver: pip install 'onward[postgres]'") from error

    address, _, query = url.partition("?")
    asked = parse_qsl(query, keep_blank_values=True)
    # Ours are taken out, the rest is libpq's: sslmode, target_session_attrs and the like.
    ours = {name: value for name, value in asked if name in _POSTGRES}
    rest = urlencode([(name, value) for name, value in asked if name not in ours], quote_via=quote)
    record = _record(ours, events)
    notify = ours.get("notify", "on")
    if notify not in {"on", "off"}:
        raise InvalidValue("url", f"notify={notify}", "must be on or off")
    query_timeout = ours.get("query_timeout", "30")
    if not read_number(query_timeout):
        raise InvalidValue("url", f"query_timeout={query_timeout}", "must be seconds, 1 or more")
    return PostgresEngine(
        f"{address}?{rest}",
        schema=ours.get("schema", DEFAULT),
        notify=notify == "on",
        listen_url=ours.get("listen_url"),
        query_timeout=float(query_timeout),
        clock=clock,
        **record,
    )


def _open_pgmq(url: str) -> Engine:
    try:
        from onward.engines.pgmq.engine import PGMQEngine  # noqa: PLC0415 - see the module's first sentence
        from onward.engines.pgmq.settings import PgmqSettings, from_url  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("psycopg"):
            raise
        raise EngineNotIncluded("PGMQ needs PostgreSQL's driver: pip install 'onward[postgres]'") from error

    address, _, query = url.removeprefix("pgmq+").partition("?")
    ours, rest = from_url(parse_qsl(query, keep_blank_values=True))
    notify = ours.pop("notify", "on")
    if notify not in {"on", "off"}:
        raise InvalidValue("url", f"notify={notify}", "must be on or off")
    listen_url = ours.pop("listen_url", None)
    return PGMQEngine(
        f"{address}?{urlencode(rest, quote_via=quote)}",
        settings=PgmqSettings(**ours),
        notify=notify == "on",
        listen_url=listen_url,
    )


def _open_bullmq(url: str, clock: Clock | None) -> Engine:
    try:
        from onward.engines.bullmq.engine import BullMQEngine  # noqa: PLC0415 - see the module's first sentence
        from onward.engines.bullmq.keys import DEFAULT_PREFIX  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("redis"):
            raise
        raise EngineNotIncluded("BullMQ needs a driver for Redis: pip install 'onward[redis]'") from error

    address, _, query = url.partition("?")
    asked = parse_qsl(query, keep_blank_values=True)
    # Ours are taken out, the rest is the driver's: ssl_ca_certs, db and the like.
    ours = {name: value for name, value in asked if name in {"prefix", "prioritized", "metrics", "eviction"}}
    rest = urlencode([(name, value) for name, value in asked if name not in ours], quote_via=quote)
    metrics = read_number(ours.get("metrics", "0"))
    if metrics is None:
        raise InvalidValue("url", f"metrics={ours['metrics']}", "must be a number of minutes")
    if (eviction := ours.get("eviction", "refuse")) not in {"refuse", "allow"}:
        raise InvalidValue("url", f"eviction={eviction}", "must be refuse or allow")
    return BullMQEngine(
        f"{address}?{rest}" if rest else address,
        prefix=ours.get("prefix", DEFAULT_PREFIX),
        prioritized=[name for name in ours.get("prioritized", "").split(",") if name],
        metrics=metrics,
        allow_eviction=eviction == "allow",
        clock=clock,
    )


def _open_pgboss(url: str, clock: Clock | None) -> Engine:
    try:
        from onward.engines.pgboss.engine import PgBossEngine  # noqa: PLC0415 - see the module's first sentence
        from onward.engines.pgboss.statements import DEFAULT  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("psycopg"):
            raise
        raise EngineNotIncluded("pg-boss needs PostgreSQL's driver: pip install 'onward[postgres]'") from error

    address, _, query = url.partition("+")[2].partition("?")
    asked = parse_qsl(query, keep_blank_values=True)
    ours = {name: value for name, value in asked if name in {"schema", "notify", "supervise", "listen_url"}}
    rest = urlencode([(name, value) for name, value in asked if name not in ours], quote_via=quote)
    for name in ("notify", "supervise"):
        if (told := ours.get(name, "on")) not in {"on", "off"}:
            raise InvalidValue("url", f"{name}={told}", "must be on or off")
    return PgBossEngine(
        f"{address}?{rest}",
        schema=ours.get("schema", DEFAULT),
        notify=ours.get("notify", "on") == "on",
        supervise=ours.get("supervise", "off") == "on",
        listen_url=ours.get("listen_url"),
        clock=clock,
    )
