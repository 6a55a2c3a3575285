"""The PGMQ that a database has: as an extension or as plain SQL, of whatever version, told by what is there."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import psycopg

from onward.engines.pgmq.settings import PgmqSettings
from onward.engines.pgmq.statements import SQL
from onward.errors import InvalidValue, SchemaTooOld
from onward.pg.migrations import CREATED_MEANWHILE
from onward.pg.plan_runner import Plan, Statement

_REQUIRED_FUNCTIONS: Final = frozenset({"create", "send_batch", "read", "archive"})
_AVAILABLE_SINCE: Final = {"read_grouped": "1.9", "read_grouped_rr": "1.9", "read_grouped_head": "1.11"}

_NOT_INSTALLED: Final = (
    "there is no PGMQ in {store}: run `create extension pgmq`, where the server has it; else `pip install pgmq` and "
    "`onward migrate --pgmq`, which installs it as plain SQL"
)
_TOO_OLD: Final = "the PGMQ in {store} is older than 1.5.1 and has no headers: alter extension pgmq update"


@dataclass(frozen=True, slots=True)
class SchemaProbe:
    """What there is of PGMQ."""

    version: str | None
    """None where it was installed as plain SQL, which leaves no version."""
    functions: frozenset[str]
    columns: str
    """Those of a message, headers aside, as SQL lists them."""

    @property
    def notifies(self) -> bool:
        """Whether it can tell of new messages."""
        return "enable_notify_insert" in self.functions

    def check(self, settings: PgmqSettings, store: object) -> None:
        """Refuse ways of reading that this version has not."""
        for missing in sorted(settings.functions - self.functions):
            since = _AVAILABLE_SINCE.get(missing, "of a later version")
            rule = f"needs PGMQ {since}, and the one in {store} has no {missing}()"
            raise InvalidValue("read", missing.removeprefix("read_"), rule)

    def __str__(self) -> str:
        """Name it as people do."""
        return f"PGMQ {self.version}" if self.version else "PGMQ as plain SQL"


def probe(store: object) -> Plan[SchemaProbe]:
    """Find out what there is, and refuse what is too little."""
    ((functions, version, columns),) = yield Statement(SQL.probe)
    if not frozenset(functions) >= _REQUIRED_FUNCTIONS:
        raise SchemaTooOld(_NOT_INSTALLED.format(store=store))
    if "headers" not in columns:
        raise SchemaTooOld(_TOO_OLD.format(store=store))
    return SchemaProbe(version, frozenset(functions), ", ".join(name for name in columns if name != "headers"))


def install(connection: psycopg.Connection[Any]) -> str | None:
    """Install PGMQ as plain SQL from the ``pgmq`` package; answer its version, or None where there is one already."""
    try:
        folder = files("pgmq").joinpath("sql")
        version = folder.joinpath("VERSION").read_text(encoding="utf-8").strip()
        text = folder.joinpath("pgmq.sql").read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        rule = "needs the package that carries PGMQ's SQL: pip install 'pgmq>=1.1.3'"
        raise InvalidValue("pgmq", "…", rule) from None
    while True:
        try:
            with connection.transaction():
                ((exists,),) = connection.execute("select to_regclass('pgmq.meta') is not null").fetchall()
                if exists:
                    return None
                psycopg.ClientCursor(connection).execute(text)  # many statements at once, without parameters
        except CREATED_MEANWHILE:  # it has waited for another that did the same, and whose transaction has ended
            continue
        return version
