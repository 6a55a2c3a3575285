"""One schema of a database: the statements of this engine with its name put in, and the clock that they go by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onward.clock import Clock
from onward.engine.statements import Statements
from onward.pg.schema_name import DEFAULT, check_own_schema_name, insert_schema_name

__all__ = ["DEFAULT", "Schema"]

_STATEMENTS: Final = Statements("onward.engines.postgres")


class Schema:
    """Where the jobs of one store are."""

    def __init__(self, name: str = DEFAULT, *, clock: Clock | None = None) -> None:
        """``clock`` None is the database's own, which is right everywhere but in tests."""
        self.name = check_own_schema_name(name)
        self._clock = clock
        vars(self).update({each: self.insert_schema_name(getattr(_STATEMENTS, each)) for each in _STATEMENTS.names()})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str:
            """Find a statement: ``schema.claim`` is ``sql/claim.sql``."""

    @property
    def now(self) -> int | None:
        """The time to go by; None: the database's."""
        return None if self._clock is None else self._clock.micros()

    @property
    def channel(self) -> str:
        """Where changes are told."""
        return self.name

    def insert_schema_name(self, text: str) -> str:
        """Put the schema's name into a text of ours."""
        return insert_schema_name(self.name, text)
