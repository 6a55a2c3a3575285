"""Dead letters and the archive, to read. What changes them goes by filter: see :mod:`onward.service.bulk`."""

from __future__ import annotations

import msgspec

from onward.engine.values import GroupBy, JobFilter
from onward.errors import InvalidValue, JobNotFound
from onward.job import Job, JobRef
from onward.lifecycle import JobStatus
from onward.service.identity import Identity
from onward.service.jobs import Name
from onward.service.operations import operation
from onward.service.scopes import narrow
from onward.service.store import Store, check_page
from onward.service.values import Counts, JobPage, JobQuery
from onward.validation import one_of


class DeadLetters:
    """Jobs whose attempts are used up."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @operation("dead.list")
    async def list(self, identity: Identity, which: JobQuery, *, cursor: str | None = None, limit: int = 50) -> JobPage:
        """List dead letters, the newest first."""
        check_page(limit)
        narrowed = narrow(identity, self._dead(which))
        if narrowed is None:
            return JobPage(items=())
        page = await (await self._store.engine()).find(narrowed, cursor=cursor, limit=limit)
        return JobPage(items=tuple(map(self._store.redactor.job, page.items)), next_cursor=page.next_cursor)

    @operation("dead.count")
    async def count(self, identity: Identity, which: JobQuery, *, by: str = "queue") -> Counts:
        """Count dead letters."""
        field = one_of("by", GroupBy, by)
        narrowed = narrow(identity, self._dead(which))
        counts = {} if narrowed is None else dict(await (await self._store.engine()).count(narrowed, by=field))
        return Counts(by=field, counts=counts, total=sum(counts.values()))

    def _dead(self, which: JobQuery) -> JobFilter:
        if which.status:
            raise InvalidValue("status", list(which.status), "must not be given: it is dead_letter")
        # An engine that cannot tell dead letters from other failures shows those too (O1).
        status = self._store.core.capabilities.shown(JobStatus.DEAD_LETTER)
        return msgspec.structs.replace(which.filter(), status=frozenset({status}))


class Archive:
    """Ended jobs that their queue's retention has moved to the archive."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @operation("archive.list")
    async def list(self, identity: Identity, which: JobQuery, *, cursor: str | None = None, limit: int = 50) -> JobPage:
        """List archived jobs, the latest first."""
        check_page(limit)
        narrowed = narrow(identity, which.filter())
        if narrowed is None:
            return JobPage(items=())
        page = await (await self._store.engine()).archived(narrowed, cursor=cursor, limit=limit)
        return JobPage(items=tuple(map(self._store.redactor.job, page.items)), next_cursor=page.next_cursor)

    @operation("archive.count")
    async def count(self, identity: Identity, which: JobQuery, *, by: str = "status") -> Counts:
        """Count archived jobs by status, queue, type or organisation."""
        field = one_of("by", GroupBy, by)
        narrowed = narrow(identity, which.filter())
        engine = await self._store.engine()
        counts = {} if narrowed is None else dict(await engine.count_archived(narrowed, by=field))
        return Counts(by=field, counts=counts, total=sum(counts.values()))

    @operation("archive.get")
    async def get(self, identity: Identity, name: Name) -> Job:
        """Read an archived job."""
        engine = await self._store.engine()
        named = engine.name_of(name) if isinstance(name, str) else name
        asked = JobFilter(refs=(named,)) if isinstance(named, JobRef) else JobFilter(ids=(named,))
        which = narrow(identity, asked)
        found = () if which is None else (await engine.archived(which, limit=1)).items
        if not found:
            raise JobNotFound(f"job {name} is not in the archive: it is still live, or has been pruned")
        return self._store.redactor.job(found[0])
