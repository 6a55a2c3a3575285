"""Jobs as CSV and NDJSON."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final

import msgspec

from onward.job import Job

COLUMNS: Final = (
    "id", "queue", "type", "status", "org_id", "priority", "attempts", "max_attempts", "created_at", "started_at",
    "completed_at", "last_error", "payload", "result",
)  # fmt: skip


async def ndjson_chunks(pages: AsyncGenerator[tuple[Job, ...], None]) -> AsyncGenerator[bytes, None]:
    """Write jobs as NDJSON, a chunk for each page."""
    encoder = msgspec.json.Encoder()
    async for page in pages:
        yield encoder.encode_lines(page)


async def csv_chunks(pages: AsyncGenerator[tuple[Job, ...], None]) -> AsyncGenerator[bytes, None]:
    """Write jobs as CSV, a chunk for each page."""
    yield _rows([COLUMNS])
    async for page in pages:
        yield _rows([cell(getattr(job, column)) for column in COLUMNS] for job in page)


def _rows(rows: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def cell(value: Any) -> str:
    """Write a cell that no spreadsheet takes for a formula (X6)."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode().strip('"')
    if isinstance(value, dict | list):
        text = msgspec.json.encode(value).decode()
    return f"'{text}" if text.lstrip(" ")[:1] in {"=", "+", "-", "@", "\t", "\r", "\n", "|", "%"} else text
