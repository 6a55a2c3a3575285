"""The list of jobs: search, tabs, keyset paging, and changes of the selected or of all matching."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from onward.dashboard.search import QUALIFIERS, Search, parse
from onward.dashboard.views.rows import Row, Tab, rows, states_of, statuses, tabs
from onward.dashboard.visit import PAGE_SIZE, Confirmation, Redirect, Screen, Visit
from onward.dashboard.wording import number
from onward.engine.capabilities import Feature
from onward.errors import Conflict, InvalidValue, JobNotFound
from onward.http.names import encode_name
from onward.job import JobRef
from onward.lifecycle import JobStatus
from onward.service.jobs import Name
from onward.service.values import BulkOperation, JobQuery, Selection
from onward.service.wording import count as counted

_COUNTS_FOR: Final = 2.0
_WAIT: Final = 0.15
"""Seconds that a page waits for counts; they come with the next update."""


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """A change of many jobs."""

    name: str
    label: str
    is_dangerous: bool = False


class JobsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The list of jobs."""

    search: str
    chips: tuple[tuple[str, str], ...]
    """Each term, and the search without it."""
    mistake: str = ""
    tabs: tuple[Tab, ...] = ()
    rows: tuple[Row, ...] = ()
    newer: bool = False
    older: str | None = None
    verbs: tuple[Verb, ...] = ()
    total: str = ""
    is_filtered: bool = False
    has_orgs: bool = True
    export: str = ""
    can_enqueue: bool = False
    suggestions: tuple[str, ...] = ()
    action: str = "/jobs"
    empty: str = ""


async def show(visit: Visit) -> Screen | Redirect:
    """Show the list."""
    line = visit.query.get("q", "")
    try:
        search = parse(line)
        if search.id is not None:
            return await _find(visit, search)
        page = await _page(visit, search)
    except InvalidValue as error:
        search = Search()
        page = JobsPage(search=line, chips=(), mistake=str(error), tabs=tabs(search, None, visit.capabilities))
    return Screen(template="jobs.html", title="Jobs", section="jobs", page=page)


async def _find(visit: Visit, search: Search) -> Redirect | Screen:
    """Open the job that a search names; a word that is no id is the name of a task."""
    word = search.id or ""
    name: Name = JobRef.parse(word) or word
    try:
        if isinstance(name, JobRef) or visit.capabilities.has_global_ids:
            job = await visit.services.jobs.get(visit.identity, name)
            return Redirect(path=visit.job_path(job))
    except (JobNotFound, InvalidValue):
        pass
    rest = search.without("", "id")
    if any(term.qualifier == "id" for term in search.terms):
        page = JobsPage(
            search=search.text,
            chips=search.chips,
            mistake=f"No job has the id {word}. It never existed, was deleted, or has been pruned.",
            tabs=tabs(rest, None, visit.capabilities),
        )
        return Screen(template="jobs.html", title="Jobs", section="jobs", page=page)
    return Redirect(path="/jobs?" + urlencode({"q": rest.plus("type", word)}))


async def _page(visit: Visit, search: Search) -> JobsPage:
    services, who = visit.services, visit.identity
    found = await services.jobs.list(who, search.query, cursor=visit.cursor, limit=PAGE_SIZE)
    rest = search.without("state")

    async def count() -> dict[str, int]:
        return dict((await services.jobs.count(who, rest.query)).counts)

    # By the text: an age such as after:2h is another time in each query.
    key = ("counts", visit.scope, rest.text)
    counts = await visit.reads.soon(key, count, fresh_for=_COUNTS_FOR, wait=_WAIT)
    by_status = None if counts is None else statuses(counts)
    total = None if by_status is None else _total(by_status, search.states)
    return JobsPage(
        search=search.text,
        chips=search.chips,
        tabs=tabs(search, by_status, visit.capabilities),
        rows=rows(visit, found.items),
        newer=visit.cursor is not None,
        older=found.next_cursor,
        verbs=verbs(visit),
        total="" if total is None else number(total),
        is_filtered=bool(search.terms),
        has_orgs=visit.has(Feature.ORGANISATIONS),
        export=_export(search),
        can_enqueue=visit.may("jobs.enqueue"),
        suggestions=_suggestions(visit),
    )


def verbs(visit: Visit) -> tuple[Verb, ...]:
    """List the changes that the caller may make, and the store can."""
    found = []
    if visit.may("jobs.replay_many") and visit.has(Feature.REPLAY):
        found.append(Verb(name="replay", label="Replay"))
    if visit.may("jobs.cancel_many"):
        found.append(Verb(name="cancel", label="Cancel…", is_dangerous=True))
    if visit.may("jobs.delete_many"):
        found.append(Verb(name="delete", label="Delete…", is_dangerous=True))
    return tuple(found)


def _suggestions(visit: Visit) -> tuple[str, ...]:
    words = [f"{name}:" for name in QUALIFIERS if name != "state"]
    words += [f"state:{status}" for status in states_of(visit.capabilities)]
    words += [f"type:{name}" for name in sorted(visit.services.store.app.tasks)[:50]]
    return tuple(words)


def _total(counts: dict[JobStatus, int], states: tuple[JobStatus, ...]) -> int:
    return sum(total for status, total in counts.items() if not states or status in states)


def _export(search: Search) -> str:
    query: JobQuery = search.query
    pairs: list[tuple[str, str]] = [("format", "csv")]
    for name in ("queue", "type", "status"):
        pairs += [(name, str(value)) for value in getattr(query, name)]
    for name in ("org_id", "batch", "worker_id", "error_contains"):
        if (value := getattr(query, name)) is not None:
            pairs.append((name, value))
    for name in ("created_after", "created_before"):
        if (at := getattr(query, name)) is not None:
            pairs.append((name, at.isoformat()))
    return "/api/v1/jobs/export?" + urlencode(pairs)


# Changes of many ------------------------------------------------------------------------------------------------------

_PAST: Final = {"replay": "replayed", "cancel": "cancelled", "delete": "deleted"}


async def change(visit: Visit) -> Redirect:
    """Change the selected jobs, or store a change of all that match."""
    verb = visit.form.text("verb")
    if verb not in _PAST:
        raise InvalidValue("verb", verb, f"must be one of {', '.join(_PAST)}")
    if visit.form.text("which") == "all":
        return await _change_all(visit, verb)
    return await change_selected(visit, verb, back="/jobs")


async def change_selected(visit: Visit, verb: str, *, back: str) -> Redirect:
    """Change each of the selected jobs."""
    refs = [ref for text in visit.form.all("job")[:200] if (ref := JobRef.parse(text)) is not None]
    if not refs:
        raise InvalidValue("job", "", "select at least one job, or choose all matching")
    if verb != "replay":
        visit.confirm(
            Confirmation(
                title=f"{verb.capitalize()} {counted(len(refs), 'job')}?",
                text="Running handlers are stopped." if verb == "cancel" else "Deleted jobs cannot be restored.",
                verb=f"{verb.capitalize()} {counted(len(refs), 'job')}",
            )
        )
    jobs = visit.services.jobs
    calls: dict[str, Callable[..., Awaitable[Any]]] = {
        "replay": jobs.replay,
        "cancel": jobs.cancel,
        "delete": jobs.delete,
    }
    done = 0
    for ref in refs:
        try:
            await calls[verb](visit.identity, ref)
            done += 1
        except (Conflict, JobNotFound):
            continue
    query = visit.form.text("q")
    path = back + (f"?{urlencode({'q': query})}" if query else "")
    return Redirect(path=path, note="some" if done == len(refs) else "partly" if done else "none")


async def _change_all(visit: Visit, verb: str) -> Redirect:
    search = parse(visit.form.text("q"))
    if search.id is not None:
        raise InvalidValue("search", search.id, "names one job: open it to change it")
    bulk = visit.services.bulk
    calls = {"replay": bulk.replay, "cancel": bulk.cancel, "delete": bulk.delete}
    return await change_matching(visit, verb, search.query, calls[verb])


async def change_matching(
    visit: Visit, verb: str, query: JobQuery, call: Callable[..., Awaitable[BulkOperation]]
) -> Redirect:
    """Count the jobs that match, ask, and store the operation (A5)."""
    is_all = query == JobQuery()
    chosen = Selection(filter=None if is_all else query, all=is_all, dry_run=True)
    matching = (await call(visit.identity, chosen)).matching
    if not matching:
        return Redirect(path="/operations", note="operation-empty")
    visit.confirm(
        Confirmation(
            title=f"{verb.capitalize()} {counted(matching, 'job')}?",
            text=("They are all jobs of the store." if is_all else f"They match {visit.form.text('q') or 'the list'}.")
            + " Jobs that are enqueued from now on are not touched. The operation runs in the background and can be "
            "stopped; what it has changed stays changed.",
            verb=f"{verb.capitalize()} {counted(matching, 'job')}",
            is_dangerous=verb != "replay",
        )
    )
    stored = await call(visit.identity, msgspec.structs.replace(chosen, dry_run=False))
    if stored.id is None:
        return Redirect(path="/operations", note="operation-empty")
    return Redirect(path=f"/operations/{encode_name(stored.id)}")
