"""Dead letters and the archive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from onward.dashboard.search import Search, parse
from onward.dashboard.views.job import path_of
from onward.dashboard.views.jobs import Verb, change_matching, change_selected
from onward.dashboard.views.rows import Row, row, rows
from onward.dashboard.visit import PAGE_SIZE, Redirect, Screen, Visit
from onward.dashboard.wording import number
from onward.engine.capabilities import Feature
from onward.errors import InvalidValue
from onward.service.values import BulkOperation, JobQuery


class EndedPage(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that have ended, and what can be done with all that match."""

    heading: str
    path: str
    search: str
    chips: tuple[tuple[str, str], ...]
    mistake: str = ""
    rows: tuple[Row, ...] = ()
    total: str = ""
    by_queue: tuple[tuple[str, str, str], ...] = ()
    """Queue, count, search."""
    newer: bool = False
    older: str | None = None
    verbs: tuple[Verb, ...] = ()
    can_select: bool = True
    is_filtered: bool = False
    has_orgs: bool = True
    note: str = ""


async def show_dead(visit: Visit) -> Screen:
    """List dead letters."""
    line, services, who = visit.query.get("q", ""), visit.services, visit.identity
    common: dict[str, Any] = {"heading": "Dead letters", "path": "/dead", "search": line}
    try:
        search = _search(line)
        found = await services.dead.list(who, search.query, cursor=visit.cursor, limit=PAGE_SIZE)

        async def count() -> dict[str, int]:
            return dict((await services.dead.count(who, search.query, by="queue")).counts)

        counts = await visit.reads.soon(("dead", visit.scope, search.text), count, fresh_for=2.0, wait=0.15)
    except InvalidValue as error:
        page = EndedPage(**common, chips=(), mistake=str(error))
        return Screen(template="ended.html", title="Dead letters", section="dead", page=page)
    verbs = []
    if visit.may("dead.replay") and visit.has(Feature.REPLAY):
        verbs.append(Verb(name="replay", label="Replay"))
    if visit.may("dead.purge"):
        verbs.append(Verb(name="delete", label="Purge…", is_dangerous=True))
    most = sorted((counts or {}).items(), key=lambda pair: (-pair[1], pair[0]))[:12]
    page = EndedPage(
        **{**common, "search": search.text},
        chips=search.chips,
        rows=rows(visit, found.items),
        total="" if counts is None else number(sum(counts.values())),
        by_queue=tuple(
            (name, number(total), search.without("queue").plus("queue", name)) for name, total in most if name
        ),
        newer=visit.cursor is not None,
        older=found.next_cursor,
        verbs=tuple(verbs),
        is_filtered=bool(search.terms),
        has_orgs=visit.has(Feature.ORGANISATIONS),
        note="Jobs whose attempts are used up. They stay until they are replayed or purged.",
    )
    return Screen(template="ended.html", title="Dead letters", section="dead", page=page)


async def show_archive(visit: Visit) -> Screen:
    """List archived jobs."""
    line = visit.query.get("q", "")
    common: dict[str, Any] = {"heading": "Archive", "path": "/archive", "search": line, "can_select": False}
    try:
        search = _search(line)
        found = await visit.services.archive.list(visit.identity, search.query, cursor=visit.cursor, limit=PAGE_SIZE)
    except InvalidValue as error:
        page = EndedPage(**common, chips=(), mistake=str(error))
        return Screen(template="ended.html", title="Archive", section="archive", page=page)
    verbs = (Verb(name="purge", label="Purge all matching…", is_dangerous=True),) if visit.may("archive.purge") else ()
    page = EndedPage(
        **{**common, "search": search.text},
        chips=search.chips,
        rows=tuple(row(visit, job, path=path_of(visit, job)) for job in found.items),
        newer=visit.cursor is not None,
        older=found.next_cursor,
        verbs=verbs,
        is_filtered=bool(search.terms),
        has_orgs=visit.has(Feature.ORGANISATIONS),
        note="Ended jobs that their queue's retention has moved out of the way. They go when their time is up.",
    )
    return Screen(template="ended.html", title="Archive", section="archive", page=page)


async def change_dead(visit: Visit) -> Redirect:
    """Replay or purge dead letters: the selected, or all that match."""
    verb, bulk = visit.form.text("verb"), visit.services.bulk
    calls: dict[str, Callable[..., Awaitable[BulkOperation]]] = {"replay": bulk.replay_dead, "delete": bulk.purge_dead}
    if verb not in calls:
        raise InvalidValue("verb", verb, f"must be one of {', '.join(calls)}")
    if visit.form.text("which") == "all":
        return await change_matching(visit, verb, _query(visit), calls[verb])
    return await change_selected(visit, verb, back="/dead")


async def change_archive(visit: Visit) -> Redirect:
    """Purge archived jobs that match."""
    return await change_matching(visit, "purge", _query(visit), visit.services.bulk.purge_archive)


def _query(visit: Visit) -> JobQuery:
    return _search(visit.form.text("q")).query


def _search(line: str) -> Search:
    search = parse(line)
    if search.id is not None:
        raise InvalidValue("search", search.id, "use a qualifier: queue:, type:, org:, error:, after:, before:")
    return search
