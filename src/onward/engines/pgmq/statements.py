"""The schema of ours beside PGMQ's: the statements of this engine with its name put in."""

from __future__ import annotations

from typing import Final

from onward.engine import migrations
from onward.engine.statements import Statements
from onward.pg.schema_name import insert_schema_name

NAME: Final = "onward_pgmq"
CHANNEL: Final = "onward_pgmq"
"""Where changes are told."""

MIGRATIONS: Final = migrations.load("onward.engines.pgmq")

_STATEMENTS: Final = Statements("onward.engines.pgmq")


class _SchemaStatements:
    def __init__(self) -> None:
        self._texts = {each: insert_schema_name(NAME, getattr(_STATEMENTS, each)) for each in _STATEMENTS.names()}

    def __getattr__(self, name: str) -> str:
        """Find a statement: ``SQL.settle`` is ``sql/settle.sql``."""
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(name) from None


SQL: Final = _SchemaStatements()
"""The statements, ready to be executed."""


def with_schema_name(text: str) -> str:
    """Put our schema's name into a text that is made up on the way."""
    return insert_schema_name(NAME, text)
