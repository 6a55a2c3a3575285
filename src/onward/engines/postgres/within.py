"""The caller's own transaction: a plan is driven on whatever connection the caller has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from onward.engines.postgres.plans import Execute, Row, Statement


def executor(connection: psycopg.Connection[Any]) -> Execute:
    """Execute statements on a psycopg connection, whatever its own cursors and rows are like."""

    def execute(statement: Statement) -> Sequence[Row]:
        with psycopg.RawCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(statement.text, statement.values or None)
            return cursor.fetchall() if cursor.description is not None else []

    return execute
