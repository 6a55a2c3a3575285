"""Changes by filter: how far they are, and what they did."""

from __future__ import annotations

import msgspec

from onward.dashboard.visit import PAGE_SIZE, Confirmation, Redirect, Screen, Visit
from onward.dashboard.wording import Moment, Pill, number, pill
from onward.http.names import encode_name
from onward.lifecycle import FINISHED
from onward.service.values import BulkOperation
from onward.service.wording import count


class OperationRow(msgspec.Struct, frozen=True, kw_only=True):
    """A change by filter."""

    id: str
    path: str
    action: str
    status: Pill
    is_finished: bool
    progress: int
    changed: str
    matching: str
    skipped: str
    actor: str
    error: str
    created: Moment | None
    ended: Moment | None


class OperationsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Changes by filter, the newest first."""

    rows: tuple[OperationRow, ...]
    older: str | None
    newer: bool


class OperationPage(msgspec.Struct, frozen=True, kw_only=True):
    """One change by filter."""

    operation: OperationRow
    can_stop: bool


async def show_all(visit: Visit) -> Screen:
    """List operations."""
    found = await visit.services.bulk.list(visit.identity, cursor=visit.cursor, limit=PAGE_SIZE)
    page = OperationsPage(
        rows=tuple(_row(visit, one) for one in found.items),
        older=found.next_cursor,
        newer=visit.cursor is not None,
    )
    return Screen(template="operations.html", title="Operations", section="operations", page=page)


async def show(visit: Visit) -> Screen:
    """Show an operation."""
    found = await visit.services.bulk.get(visit.identity, visit.path["id"])
    shown = _row(visit, found)
    page = OperationPage(operation=shown, can_stop=not shown.is_finished and visit.may("operations.cancel"))
    return Screen(template="operation.html", title=shown.action, section="operations", page=page)


async def stop(visit: Visit) -> Redirect:
    """Stop an operation."""
    id = visit.path["id"]
    found = await visit.services.bulk.get(visit.identity, id)
    visit.confirm(
        Confirmation(
            title="Stop this operation?",
            text=f"It has changed {count(found.changed, 'job')} of {number(found.matching)}. They stay changed.",
            verb="Stop it",
        )
    )
    await visit.services.bulk.stop(visit.identity, id)
    return Redirect(path=f"/operations/{encode_name(id)}", note="operation-cancelled")


def _row(visit: Visit, one: BulkOperation) -> OperationRow:
    is_finished = one.status is None or one.status in FINISHED
    left = max(0, one.matching - one.changed)
    return OperationRow(
        id=one.id or "",
        path=f"/operations/{encode_name(one.id)}" if one.id else "",
        action=one.action,
        status=Pill(word="done", kind="ok") if one.status is None else pill(one.status),
        is_finished=is_finished,
        progress=one.progress or 0,
        changed=number(one.changed),
        matching=number(one.matching),
        skipped=number(left) if is_finished and left else "",
        actor=one.actor,
        error=one.error or "",
        created=visit.moment(one.created_at),
        ended=visit.moment(one.completed_at),
    )
