"""What all services share: the App's engine, its redactor, and the making of audit records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from onward.app import App
from onward.core import core_of
from onward.engine.access import AuditRecord
from onward.engine.checked import CheckedEngine
from onward.engine.values import JobFilter
from onward.errors import InvalidValue
from onward.ids import new_id
from onward.service.identity import Identity
from onward.service.redaction import Redactor

MAX_PAGE: Final = 200
"""Rows of one page (A3, S7)."""


class Store:
    """An App's store, as services use it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.core = core_of(app)
        self._redactor: tuple[int, Redactor] | None = None

    @property
    def redactor(self) -> Redactor:
        """What hides secrets, by the App's settings and those of its tasks."""
        tasks = self.app.tasks
        if self._redactor is None or self._redactor[0] != len(tasks):  # tasks are only ever added
            marks = {name: task.options.redact for name, task in tasks.items()}
            self._redactor = len(tasks), Redactor(self.core.config.redact, tasks=marks)
        return self._redactor[1]

    async def engine(self) -> CheckedEngine:
        """Return the engine, open."""
        return await self.core.opened()


def record(
    identity: Identity,
    action: str,
    *,
    target: str = "",
    which: JobFilter | None = None,
    detail: Mapping[str, Any] | None = None,
    id: str | None = None,
    count: int | None = None,
) -> AuditRecord:
    """Make the audit record of one change (S5). Payloads and secrets do not belong into ``detail``."""
    return AuditRecord(
        id=id or new_id(),
        actor=identity.actor,
        role=identity.role,
        action=action,
        target=target,
        filter=None if which is None else filter_text(which),
        count=count,
        orgs=identity.scope.orgs,
        request_id=identity.request_id,
        detail=None if detail is None else msgspec.json.encode(detail).decode(),
    )


def filter_text(which: JobFilter) -> str:
    """Write a filter as JSON, without the fields that are not given."""
    given = {field: value for field in which.__struct_fields__ if (value := getattr(which, field)) is not None}
    return msgspec.json.encode(given, order="sorted").decode()


def check_page(limit: int) -> int:
    """Refuse a page size that is out of bounds."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidValue("limit", limit, f"must be between 1 and {MAX_PAGE}")
    return limit
