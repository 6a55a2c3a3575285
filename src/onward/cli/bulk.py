"""Actions on many jobs at once: count them, ask, act in batches, say how many it were.

Nothing that a filter chose is touched before a person, or ``--yes``, has said so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import typer

from onward.cli import output
from onward.cli.errors import usage_error
from onward.engine.capabilities import Capabilities
from onward.engine.values import Changed, JobFilter
from onward.errors import InvalidValue, JobNotFound
from onward.handle import JobHandle
from onward.job import Job, JobRef
from onward.lifecycle import JobStatus
from onward.resources import Archive, Jobs
from onward.service.wording import count

_PAGE: Final = 500
_MAX_COMPARED: Final = 10_000
"""Jobs that a prefix is compared with: a mistyped id must not read a million."""
_MAX_CANDIDATES: Final = 5
"""Jobs named where a prefix is not unique."""
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""Ids of which no whole one is the beginning of another."""

Act = Callable[[JobFilter | JobRef | str], Awaitable[list[Changed]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to be done to jobs."""

    name: str
    past_tense: str
    """``cancelled``."""
    sources: frozenset[JobStatus]
    """States in which it can be done."""
    act: Act
    resource: Jobs | Archive
    """Where they are looked for."""


def name_of(job: Job | JobHandle[Any], capabilities: Capabilities) -> str:
    """Write the name of a job as every command accepts it: its id, or queue:id where ids are not global."""
    return job.id if capabilities.has_global_ids else str(job.ref)


async def find_job(resource: Jobs | Archive, text: str) -> Job:
    """Find the job that a person has named by id, by queue:id, or by any prefix of a UUID that only one job has.

    Other ids are compared whole: ``mail:1`` may be a job that is gone, and must not reach ``mail:12``.

    Raises:
        JobNotFound: there is none.
        CommandError: several jobs begin so, or there are too many jobs to compare.
    """
    try:
        return await resource.get(text)
    except (JobNotFound, InvalidValue) as error:
        not_found = error
    ref = JobRef.parse(text)
    which = JobFilter() if ref is None else JobFilter(queues=(ref.queue,))
    prefix = text if ref is None else ref.id
    found: list[Job] = []
    compared, cursor = 0, None
    while len(found) < _MAX_CANDIDATES:
        page = await resource.list(which, cursor=cursor, limit=_PAGE)
        found += [job for job in page.items if job.id == prefix or (prefix and _is_cut(prefix, job.id))]
        compared, cursor = compared + len(page.items), page.next_cursor
        if cursor is None:
            break
        if compared >= _MAX_COMPARED:
            if len(found) > 1:
                break
            raise usage_error(
                f"{text!r} is no whole name, and there are more than {_MAX_COMPARED:,} jobs to compare it with",
                remedy="give the whole id, with its queue where ids are not global: queue:id",
            )
    if not found:
        raise not_found
    if len(found) > 1:
        names = ", ".join(str(job.ref) for job in found[:_MAX_CANDIDATES])
        raise usage_error(f"{text!r} names several jobs: {names}", remedy="give one of these names")
    return found[0]


def _is_cut(prefix: str, id: str) -> bool:
    return _UUID.fullmatch(id) is not None and id.startswith(prefix)


async def run(
    action: Action,
    ids: Sequence[str],
    job_filter: JobFilter,
    *,
    everything: bool,
    yes: bool,
    dry_run: bool,
    json: bool,
) -> None:
    """Run an action on the jobs named, or to those that a filter chooses."""
    if ids and job_filter != JobFilter():
        raise usage_error("give ids or filters, not both")
    if ids:
        await _run_each(action, ids, dry_run=dry_run, json=json)
    elif job_filter == JobFilter() and not everything:
        raise usage_error(
            f"which jobs shall be {action.past_tense}? none were named", remedy="give ids, or filters, or --all"
        )
    else:
        await _run_all(action, job_filter, yes=yes, dry_run=dry_run, json=json)


async def _run_each(action: Action, ids: Sequence[str], *, dry_run: bool, json: bool) -> None:
    changed: list[Changed] = []
    refused = 0
    for id in ids:
        try:
            job = await find_job(action.resource, id)
        except JobNotFound as error:
            refused += 1
            output.print_error(str(error), remedy="onward jobs list")
            continue
        if dry_run:
            done = [Changed(job.ref, job.status)] if job.status in action.sources else []
        else:
            done = await action.act(job.ref)
        changed += done
        if not done:
            refused += 1
            await _explain_refusal(action, job.ref)
    _report(action, changed, dry_run=dry_run, json=json)
    if refused:
        raise typer.Exit(1)


async def _explain_refusal(action: Action, name: JobRef) -> None:
    try:
        job = await action.resource.get(name)
    except JobNotFound as error:
        output.print_error(str(error), remedy="onward jobs list")
    else:
        states = ", ".join(sorted(action.sources))
        output.print_error(
            f"job {name} is {job.status}: only jobs that are {states} can be {action.past_tense}",
            effect="it stays as it is",
            remedy=f"onward jobs show {name}",
        )


async def _run_all(action: Action, job_filter: JobFilter, *, yes: bool, dry_run: bool, json: bool) -> None:
    states = action.sources if job_filter.status is None else action.sources & job_filter.status
    job_filter = msgspec.structs.replace(job_filter, status=states)
    matching = sum((await action.resource.count(job_filter)).values()) if states else 0
    if dry_run or not matching:
        if json:
            output.show_json({"action": action.name, "changed": 0, "matching": matching, "jobs": []})
        else:
            output.write(
                f"{count(matching, 'job')} would be {action.past_tense}"
                if matching
                else f"no job to be {action.past_tense}"
            )
        return
    confirm(f"{count(matching, 'job')} will be {action.past_tense}", yes=yes)
    changed: list[Changed] = []
    # Those that come to match meanwhile were not agreed to: no more rounds than the count asks for.
    while len(changed) < matching and (some := await action.act(job_filter)):
        changed += some
    _report(action, changed, dry_run=False, json=json)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is done to many; without somebody to ask, ``--yes`` must have been given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage_error(f"{question}, and there is nobody to ask", remedy="the same command with --yes")
    if not typer.confirm(f"{question}. Go on?", err=True):
        output.note("nothing was done")
        raise typer.Exit(1)


def _report(action: Action, changed: Collection[Changed], *, dry_run: bool, json: bool) -> None:
    if json:
        jobs = [{"queue": one.ref.queue, "id": one.ref.id, "before": one.before} for one in changed]
        amount = {"changed": 0, "matching": len(jobs)} if dry_run else {"changed": len(jobs)}
        output.show_json({"action": action.name, **amount, "jobs": jobs})
    elif changed:
        output.write(f"{count(len(changed), 'job')} {'would be ' if dry_run else ''}{action.past_tense}")
