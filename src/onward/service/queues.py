"""Queues and workers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from onward.arguments import nearest
from onward.engine.values import QueueChange, QueueInfo, WorkerCommand
from onward.errors import InvalidValue, NotFound, PermissionDenied, QueueNotFound
from onward.service.identity import Identity
from onward.service.operations import operation
from onward.service.scopes import sees_queue
from onward.service.store import Store, record
from onward.service.values import (
    Queues as QueueList,
)
from onward.service.values import (
    QueueSettingsChange,
    QueueView,
    WorkerList,
    duration,
    queue_view,
    rate_of,
    retention_of,
)


class Queues:
    """Queues, as a caller may see and change them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @operation("queues.list")
    async def list(self, identity: Identity, *, pattern: str = "*") -> QueueList:
        """List queues with their settings and depth."""
        found = await (await self._store.engine()).queues(pattern)
        return QueueList(items=tuple(queue_view(queue) for queue in found if sees_queue(identity, queue.name)))

    @operation("queues.get")
    async def get(self, identity: Identity, name: str) -> QueueView:
        """Read a queue.

        Raises:
            QueueNotFound: there is none of that name in the caller's scope.
        """
        return queue_view(await self._find(identity, name))

    @operation("queues.pause")
    async def pause(self, identity: Identity, name: str, *, reason: str | None = None) -> QueueView:
        """Start no job of the queue until it is resumed. Running ones go on. The author is the caller."""
        change = QueueChange(paused=True, pause_reason=UNSET if reason is None else reason, paused_by=identity.actor)
        return await self._change(identity, "queues.pause", name, change)

    @operation("queues.resume")
    async def resume(self, identity: Identity, name: str) -> QueueView:
        """Resume a paused queue."""
        return await self._change(identity, "queues.resume", name, QueueChange(paused=False))

    @operation("queues.configure")
    async def configure(self, identity: Identity, name: str, change: QueueSettingsChange) -> QueueView:
        """Change settings of a queue, and create it if there is none."""
        given = [field for field in change.__struct_fields__ if getattr(change, field) is not UNSET]
        if not given:
            raise InvalidValue("settings", {}, f"must have one of {', '.join(change.__struct_fields__)}")
        retention = change.retention
        settings = QueueInfo(name=name).settings
        if retention is not UNSET:
            found = await (await self._store.engine()).queues(name)
            settings = next((queue.settings for queue in found if queue.name == name), settings)
        return await self._change(
            identity,
            "queues.configure",
            name,
            QueueChange(
                rate=rate_of(change.rate),
                global_concurrency=change.global_concurrency,
                weight=change.weight,
                lease=duration("lease", change.lease) if isinstance(change.lease, int | float) else change.lease,
                max_attempts=change.max_attempts,
                backoff=change.backoff,
                retention=retention_of(retention, settings.retention),
            ),
            fields=given,
        )

    async def _change(
        self, identity: Identity, action: str, name: str, change: QueueChange, fields: Sequence[str] | None = None
    ) -> QueueView:
        if action != "queues.configure":
            await self._find(identity, name)  # pausing a mistyped name must not create a queue
        elif not sees_queue(identity, name):
            raise PermissionDenied(f"queue {name} is out of the scope of {identity.actor}")
        audit = record(identity, action, target=name, detail=None if fields is None else {"fields": fields})
        return queue_view(await (await self._store.engine()).configure(name, change, audit=audit))

    async def _find(self, identity: Identity, name: str) -> QueueInfo:
        engine = await self._store.engine()
        if sees_queue(identity, name):
            for queue in await engine.queues(name):
                if queue.name == name:
                    return queue
        known = [queue.name for queue in await engine.queues() if sees_queue(identity, queue.name)]
        raise QueueNotFound(f"there is no queue {name!r}{nearest(name, known)}")


class Workers:
    """The processes that run jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @operation("workers.list")
    async def list(self, identity: Identity) -> WorkerList:
        """List the workers that have registered and not gone."""
        return WorkerList(items=tuple(await (await self._store.engine()).workers()))

    @operation("workers.quiet")
    async def quiet(self, identity: Identity, worker_id: str) -> None:
        """Have a worker claim no more jobs; those that it holds go on."""
        await self._command(identity, "workers.quiet", worker_id, WorkerCommand.QUIET)

    @operation("workers.resume")
    async def resume(self, identity: Identity, worker_id: str) -> None:
        """Have a quiet worker claim jobs again."""
        await self._command(identity, "workers.resume", worker_id, WorkerCommand.RESUME)

    @operation("workers.stop")
    async def stop(self, identity: Identity, worker_id: str) -> None:
        """Have a worker stop in good order, as after SIGTERM."""
        await self._command(identity, "workers.stop", worker_id, WorkerCommand.STOP)

    async def _command(self, identity: Identity, action: str, worker_id: str, command: WorkerCommand) -> None:
        engine = await self._store.engine()
        if all(worker.id != worker_id for worker in await engine.workers()):
            raise NotFound(f"there is no worker {worker_id}: it has gone, or never registered")
        await engine.command_worker(worker_id, command, audit=record(identity, action, target=worker_id))
