"""The PGMQ that a database has: as an extension or as plain SQL, of whatever version, told by what is there."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import psycopg

from onward.engines.pgmq.schema import SQL
from onward.engines.pgmq.settings import Manner
from onward.errors import InvalidJob, SchemaTooOld
from onward.pg.plans import Plan, Statement

_NEEDED: Final = frozenset({"create", "send_batch", "read", "archive"})
_SINCE: Final = {"read_grouped": "1.9", "read_grouped_rr": "1.9", "read_grouped_head": "1.11"}

_NONE: Final = (
    "there is no PGMQ in {store}: create extension pgmq, where the server has it; else onward migrate --pgmq, which "
    "installs it as plain SQL"
)
_TOO_OLD: Final = "the PGMQ in {store} is older than 1.5.1 and has no headers: alter extension pgmq update"


@dataclass(frozen=True, slots=True)
class Installation:
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

    def check(self, manner: Manner, store: object) -> None:
        """Refuse ways of reading that this version has not."""
        for missing in sorted(manner.functions - self.functions):
            rule = f"needs PGMQ {_SINCE.get(missing, 'of a later version')}, and the one in {store} has no {missing}()"
            raise InvalidJob("read", missing.removeprefix("read_"), rule)

    def __str__(self) -> str:
        """Name it as people do."""
        return f"PGMQ {self.version}" if self.version else "PGMQ as plain SQL"


def find(store: object) -> Plan[Installation]:
    """Find out what there is, and refuse what is too little."""
    ((functions, version, columns),) = yield Statement(SQL.functions)
    if not frozenset(functions) >= _NEEDED:
        raise SchemaTooOld(_NONE.format(store=store))
    if "headers" not in columns:
        raise SchemaTooOld(_TOO_OLD.format(store=store))
    return Installation(version, frozenset(functions), ", ".join(name for name in columns if name != "headers"))


def install(connection: psycopg.Connection[Any]) -> str | None:
    """Install PGMQ as plain SQL from the ``pgmq`` package; answer its version, or None where there is one already."""
    try:
        folder = files("pgmq").joinpath("sql")
        version = folder.joinpath("VERSION").read_text(encoding="utf-8").strip()
        text = folder.joinpath("pgmq.sql").read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        rule = "needs the package that carries PGMQ's SQL: pip install 'pgmq>=1.1.3'"
        raise InvalidJob("pgmq", "…", rule) from None
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(hashtextextended('onward_pgmq.install', 0))")
        ((there,),) = connection.execute("select to_regclass('pgmq.meta') is not null").fetchall()
        if there:
            return None
        psycopg.ClientCursor(connection).execute(text)  # many statements at once, none of them with parameters
    return version
