"""Everything that a caller can ask for, as data: name, permission, effect, and what a scoped caller gets.

Routes, the documentation's table and the test that walks every route are made from this table. An operation that is
not in it cannot be called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from onward.errors import InvalidValue, PermissionDenied
from onward.service.identity import Identity, Permission

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Scoped(StrEnum):
    """What an operation does for a caller whose scope is limited."""

    ROWS = "rows"
    """It reads and changes only what is in the scope."""
    REFUSED = "refused"
    """It shows or changes what belongs to all: refused."""
    SAME = "same"
    """It has nothing to do with any organisation or queue."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a caller can ask for."""

    name: str
    permission: Permission | None
    """None: every caller may."""
    summary: str
    changes: bool = False
    """Whether each call leaves exactly one audit record."""
    orgs: Scoped = Scoped.REFUSED
    """What a caller limited to organisations gets."""
    queues: Scoped = Scoped.REFUSED
    """What a caller limited to queues gets."""


def _rows(name: str, permission: Permission, summary: str, *, changes: bool = False) -> Operation:
    return Operation(
        name=name, permission=permission, summary=summary, changes=changes, orgs=Scoped.ROWS, queues=Scoped.ROWS
    )


def _queues(name: str, permission: Permission, summary: str, *, changes: bool = False) -> Operation:
    return Operation(name=name, permission=permission, summary=summary, changes=changes, queues=Scoped.ROWS)


def _whole(name: str, permission: Permission, summary: str, *, changes: bool = False) -> Operation:
    return Operation(name=name, permission=permission, summary=summary, changes=changes)


def _own(name: str, summary: str, *, changes: bool = False) -> Operation:
    return Operation(name=name, permission=None, summary=summary, changes=changes, orgs=Scoped.SAME, queues=Scoped.SAME)


_P = Permission
_TABLE: Final = (
    _rows("jobs.list", _P.READ, "List jobs."),
    _rows("jobs.count", _P.READ, "Count jobs by a field."),
    _rows("jobs.get", _P.READ, "Read a job."),
    _rows("jobs.logs", _P.READ, "Read a job's log lines."),
    _rows("jobs.result", _P.READ, "Wait for a job's result."),
    _rows("jobs.export", _P.READ, "Export jobs as CSV or NDJSON."),
    _whole("jobs.explain", _P.READ, "Say why a job is not running."),
    _rows("jobs.enqueue", _P.ENQUEUE, "Enqueue a job.", changes=True),
    _rows("jobs.enqueue_many", _P.ENQUEUE, "Enqueue jobs, all or none.", changes=True),
    _rows("jobs.cancel", _P.OPERATE, "Cancel a job.", changes=True),
    _rows("jobs.replay", _P.OPERATE, "Replay a job that has ended.", changes=True),
    _rows("jobs.delete", _P.DELETE, "Delete a job.", changes=True),
    _rows("jobs.edit", _P.EDIT, "Edit a waiting job.", changes=True),
    _rows("jobs.reveal", _P.REVEAL, "Read a job without redaction.", changes=True),
    _rows("jobs.cancel_many", _P.OPERATE, "Cancel jobs by filter.", changes=True),
    _rows("jobs.replay_many", _P.OPERATE, "Replay jobs by filter.", changes=True),
    _rows("jobs.delete_many", _P.DELETE, "Delete jobs by filter.", changes=True),
    _rows("dead.list", _P.READ, "List dead letters."),
    _rows("dead.count", _P.READ, "Count dead letters."),
    _rows("dead.replay", _P.OPERATE, "Replay dead letters by filter.", changes=True),
    _rows("dead.purge", _P.DELETE, "Delete dead letters by filter.", changes=True),
    _rows("archive.list", _P.READ, "List archived jobs."),
    _rows("archive.count", _P.READ, "Count archived jobs by a field."),
    _rows("archive.get", _P.READ, "Read an archived job."),
    _rows("archive.purge", _P.DELETE, "Delete archived jobs by filter.", changes=True),
    _rows("operations.list", _P.READ, "List changes by filter."),
    _rows("operations.get", _P.READ, "Read how far a change by filter is."),
    _rows("operations.cancel", _P.OPERATE, "Stop a change by filter.", changes=True),
    _queues("queues.list", _P.READ, "List queues."),
    _queues("queues.get", _P.READ, "Read a queue."),
    _queues("queues.pause", _P.OPERATE, "Pause a queue.", changes=True),
    _queues("queues.resume", _P.OPERATE, "Resume a queue.", changes=True),
    _queues("queues.configure", _P.CONFIGURE, "Change settings of a queue.", changes=True),
    _whole("workers.list", _P.READ, "List workers."),
    _whole("workers.quiet", _P.OPERATE, "Have a worker claim no more jobs.", changes=True),
    _whole("workers.resume", _P.OPERATE, "Have a quiet worker claim jobs again.", changes=True),
    _whole("workers.stop", _P.OPERATE, "Have a worker stop in good order.", changes=True),
    _queues("schedules.list", _P.READ, "List schedules."),
    _queues("schedules.get", _P.READ, "Read a schedule."),
    _queues("schedules.set", _P.CONFIGURE, "Create or change a schedule.", changes=True),
    _queues("schedules.pause", _P.OPERATE, "Pause a schedule.", changes=True),
    _queues("schedules.resume", _P.OPERATE, "Resume a schedule.", changes=True),
    _queues("schedules.run", _P.OPERATE, "Enqueue a schedule's job now.", changes=True),
    _queues("schedules.delete", _P.DELETE, "Delete a schedule.", changes=True),
    _whole("batches.list", _P.READ, "List batches."),
    _whole("batches.get", _P.READ, "Read a batch."),
    _whole("batches.jobs", _P.READ, "List the jobs of a batch."),
    _whole("batches.graph", _P.READ, "Read which jobs of a batch wait for which."),
    _whole("batches.create", _P.ENQUEUE, "Create a batch, or add jobs to it.", changes=True),
    _whole("batches.seal", _P.ENQUEUE, "Seal a batch.", changes=True),
    _whole("batches.pause", _P.OPERATE, "Pause a batch's own queue.", changes=True),
    _whole("batches.resume", _P.OPERATE, "Resume a batch's own queue.", changes=True),
    _whole("batches.cancel", _P.OPERATE, "Cancel a batch.", changes=True),
    _whole("batches.delete", _P.DELETE, "Delete a finished batch.", changes=True),
    _rows("usage.read", _P.READ, "Sum up runs."),
    _rows("events.stream", _P.READ, "Stream events."),
    _whole("metrics.read", _P.READ, "Read metrics for Prometheus."),
    _whole("doctor.read", _P.READ, "Look for problems."),
    _whole("tick.run", _P.OPERATE, "Run maintenance and some jobs in the server.", changes=True),
    _own("health.read", "Read whether the store answers."),
    _own("capabilities.read", "Read what the store can do."),
    _own("session.create", "Exchange a token for a session.", changes=True),
    _own("session.get", "Read the caller's own identity."),
    _own("session.delete", "End the caller's session.", changes=True),
    _whole("tokens.list", _P.TOKENS, "List tokens."),
    _whole("tokens.create", _P.TOKENS, "Create a token.", changes=True),
    _whole("tokens.revoke", _P.TOKENS, "Revoke a token.", changes=True),
    _whole("audit.list", _P.AUDIT, "List audit records."),
)
OPERATIONS: Final[Mapping[str, Operation]] = {operation.name: operation for operation in _TABLE}


def permit(identity: Identity, operation: Operation) -> None:
    """Refuse a caller that may not ask for an operation.

    Raises:
        PermissionDenied: it lacks the permission, or its scope is limited and the operation is about the whole store.
    """
    if operation.permission is not None and operation.permission not in identity.permissions:
        raise PermissionDenied(
            f"{operation.name} needs the permission {operation.permission}, which {identity.actor} does not have",
            remedy=f"use a token whose role or grants include {operation.permission}",
        )
    scope = identity.scope
    if (scope.orgs is not None and operation.orgs is Scoped.REFUSED) or (
        scope.queues is not None and operation.queues is Scoped.REFUSED
    ):
        kind = "organisations" if scope.orgs is not None and operation.orgs is Scoped.REFUSED else "queues"
        raise PermissionDenied(
            f"{operation.name} is about the whole store, and {identity.actor} is limited to {kind}",
            remedy=f"use a token without a limit to {kind}",
        )


Method = Callable[Concatenate[S, Identity, P], Coroutine[Any, Any, R]]


def operation(name: str) -> Callable[[Method[S, P, R]], Method[S, P, R]]:
    """Make a service method of an async function: the caller is checked against the table before it runs."""
    described = find(name)

    def make(function: Method[S, P, R]) -> Method[S, P, R]:
        @functools.wraps(function)
        async def checked(self: S, identity: Identity, /, *args: P.args, **kwargs: P.kwargs) -> R:
            permit(identity, described)
            return await function(self, identity, *args, **kwargs)

        checked.operation = described  # type: ignore[attr-defined]
        return checked

    return make


def find(name: str) -> Operation:
    """Find an operation.

    Raises:
        InvalidValue: the table does not have it.
    """
    if (found := OPERATIONS.get(name) or _plugin_operations.get(name)) is None:
        raise InvalidValue("operation", name, "is not in the table of operations")
    return found


_plugin_operations: Final[dict[str, Operation]] = {}


def add_plugin_operation(operation: Operation) -> None:
    """Add an operation of a plug-in. The same one twice is fine; another one of that name is refused."""
    known = OPERATIONS.get(operation.name) or _plugin_operations.get(operation.name)
    if known is not None and known != operation:
        raise InvalidValue("operation", operation.name, "is taken: prefix it with the plug-in's name")
    _plugin_operations[operation.name] = operation
