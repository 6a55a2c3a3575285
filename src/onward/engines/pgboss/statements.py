"""The statements of this engine, fitted to the pg-boss that is installed.

In our files the schema is called ``pgboss``, the table of a queue ``pgboss.job_common``, ours beside it ``onward``, and
the time ``pgboss.job_now()``: as pg-boss 12 has them, so that anybody can paste a file into a console. A line that ends
in ``-- if job.blocked`` is there only where that column is, one in ``-- unless …`` only where it is not. ``variant.…``
is one that the caller has asked for. For ``-- from jobs.sql`` the text of that file is put in: it is a part of several
statements.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final
from weakref import WeakKeyDictionary

from onward.clock import Clock, moment_of
from onward.engine import migrations
from onward.engine.statements import Statements
from onward.engines.pgboss.schema_probe import SchemaProbe
from onward.pg.companion_store import CompanionSchema
from onward.pg.plan_runner import Statement
from onward.pg.schema_name import check_schema_name, insert_schema_name

DEFAULT: Final = "pgboss"
MAX_NAME: Final = 50
"""Characters of the schema's name: as many as pg-boss allows."""

MIGRATIONS: Final = migrations.load("onward.engines.pgboss")
"""Of what we keep beside it."""

_STATEMENTS: Final = Statements("onward.engines.pgboss")
_CONDITIONAL_LINE: Final = re.compile(r"(.*?) +-- ((?:(?:if|unless) [a-z_.]+ ?)+)")
_INCLUDE: Final = re.compile(r"^-- from (\w+)\.sql$", re.MULTILINE)
_NOW: Final = "pgboss.job_now()"
_TABLE: Final = "pgboss.job_common"
_last_claims: WeakKeyDictionary[Clock, tuple[int, int]] = WeakKeyDictionary()
"""Of a clock that may stand still, the last instant at which a job was claimed, and how many claims came after it."""


class Schema:
    """A schema of pg-boss's, and ours beside it."""

    def __init__(self, name: str = DEFAULT, *, clock: Clock | None = None) -> None:
        """``clock`` None is the database's own, which is right everywhere but in tests."""
        self.name = check_schema_name(name, max_length=MAX_NAME)
        self.companion = CompanionSchema(f"{name}_onward", clock=clock)
        self.channel = f"pgboss_{hashlib.sha224(name.encode()).hexdigest()[:24]}"
        """Where pg-boss tells of new jobs."""
        self._clock = clock
        self._instant, self._created_count = 0, 0
        self._probe: SchemaProbe | None = None
        self._texts: dict[tuple[str, str, str], str] = {}

    @property
    def now_micros(self) -> int | None:
        """The time to go by, in microseconds; None: the database's."""
        return None if self._clock is None else self._clock.micros()

    @property
    def probe(self) -> SchemaProbe:
        """What pg-boss has made."""
        assert self._probe is not None, "it is looked at when the engine is opened"  # noqa: S101
        return self._probe

    def adapt(self, probe: SchemaProbe) -> None:
        """Fit all statements to what is installed, from now on."""
        self._probe = probe
        self._texts = {}

    def statement(
        self, name: str, values: list[Any] | None = None, *, table: str = "job_common", variant: str = ""
    ) -> Statement:
        """Give a statement on the table of a queue."""
        return Statement(self.text(name, table=table, variant=variant), values or ())

    def text(self, name: str, *, table: str = "job_common", variant: str = "") -> str:
        """Find the text of a statement."""
        text = self._texts.get((name, table, variant))
        if text is None:
            text = self._texts[name, table, variant] = self._adapted(getattr(_STATEMENTS, name), table, variant)
        if self._clock is None:
            return text
        return text.replace(_NOW, f"'{moment_of(self._clock.micros()).isoformat()}'::timestamptz")

    def _adapted(self, text: str, table: str, variant: str) -> str:
        lines = []
        for line in _INCLUDE.sub(lambda include: str(getattr(_STATEMENTS, include[1])), text).splitlines():
            conditional = _CONDITIONAL_LINE.fullmatch(line)
            if conditional is None:
                lines.append(line)
            elif self._is_included(conditional[2].split(), f"variant.{variant}"):
                lines.append(conditional[1])
        text = insert_schema_name(self.companion.name, "\n".join(lines)).replace(_TABLE, f'pgboss."{table}"')
        if self._clock is None:
            text = text.replace(_NOW, _NOW if self.has("function.job_now") else "now()")
            return text.replace("pgboss.", f'"{self.name}".')
        return re.sub(r"\bpgboss\.(?!job_now\(\))", f'"{self.name}".', text)

    def _is_included(self, conditions: list[str], variant: str) -> bool:
        return all(
            (name == variant or self.has(name)) is (word == "if")
            for word, name in zip(conditions[::2], conditions[1::2], strict=True)
        )

    def created_offset(self, count: int) -> int:
        """Say how many jobs have come at this instant before so many more. Only a clock that stands still can tell."""
        if self._clock is None:
            return 0
        instant = self._clock.micros()
        if instant != self._instant:
            self._instant, self._created_count = instant, 0
        self._created_count += count
        return self._created_count - count

    def claim_offset(self) -> int:
        """Say by how many microseconds a claim is later than the clock says: no two may begin at one instant."""
        if self._clock is None:
            return 0
        instant, count = _last_claims.get(self._clock, (0, 0))
        count = count + 1 if instant == self._clock.micros() else 0
        _last_claims[self._clock] = self._clock.micros(), count
        return count

    def has(self, name: str) -> bool:
        """Say whether something is installed."""
        return self._probe is not None and self._probe.has(name)
