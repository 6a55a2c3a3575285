"""Verbs on many jobs at once: count them, ask, act in batches, say how many it were.

Nothing that a filter chose is touched before a person, or ``--yes``, has said so.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec
import typer

from onward.cli import output
from onward.cli.errors import usage
from onward.cli.units import count
from onward.engine.values import Changed, JobFilter
from onward.errors import JobNotFound
from onward.job import JobRef
from onward.lifecycle import State
from onward.resources import Archive, Jobs

Act = Callable[[JobFilter | JobRef | str], Awaitable[list[Changed]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """Something to be done to jobs."""

    name: str
    done: str
    """``cancelled``."""
    sources: frozenset[State]
    """States in which it can be done."""
    act: Act
    among: Jobs | Archive
    """Where they are looked for."""


def name_of(text: str) -> JobRef | str:
    """Read the name of a job: its id, or queue:id where ids are not global."""
    queue, found, id = text.rpartition(":")
    return JobRef(queue, id) if found else text


async def do(
    verb: Verb,
    ids: Sequence[str],
    which: JobFilter,
    *,
    everything: bool,
    yes: bool,
    dry_run: bool,
    json: bool,
) -> None:
    """Do a verb to the jobs named, or to those that a filter chooses."""
    if ids and which != JobFilter():
        raise usage("give ids or filters, not both")
    if ids:
        await _do_each(verb, ids, dry_run=dry_run, json=json)
    elif which == JobFilter() and not everything:
        raise usage(f"which jobs shall be {verb.done}? none were named", remedy="give ids, or filters, or --all")
    else:
        await _do_all(verb, which, yes=yes, dry_run=dry_run, json=json)


async def _do_each(verb: Verb, ids: Sequence[str], *, dry_run: bool, json: bool) -> None:
    changed: list[Changed] = []
    refused = 0
    for id in ids:
        name = name_of(id)
        if dry_run:
            job = await verb.among.get(name)
            done = [Changed(job.ref, job.status)] if job.status in verb.sources else []
        else:
            done = await verb.act(name)
        changed += done
        if not done:
            refused += 1
            await _say_why(verb, name)
    _report(verb, changed, dry_run=dry_run, json=json)
    if refused:
        raise typer.Exit(1)


async def _say_why(verb: Verb, name: JobRef | str) -> None:
    try:
        job = await verb.among.get(name)
    except JobNotFound as error:
        output.complain(str(error), remedy="onward jobs list")
    else:
        states = ", ".join(sorted(verb.sources))
        output.complain(
            f"job {job.id} is {job.status}: only jobs that are {states} can be {verb.done}",
            effect="it stays as it is",
            remedy=f"onward jobs show {job.id}",
        )


async def _do_all(verb: Verb, which: JobFilter, *, yes: bool, dry_run: bool, json: bool) -> None:
    states = verb.sources if which.states is None else verb.sources & which.states
    which = msgspec.structs.replace(which, states=states)
    matching = sum((await verb.among.count(which)).values()) if states else 0
    if dry_run or not matching:
        if json:
            output.show_json({"verb": verb.name, "changed": 0, "matching": matching, "jobs": []})
        else:
            output.say(f"{count(matching, 'job')} would be {verb.done}" if matching else f"no job to be {verb.done}")
        return
    agree(f"{count(matching, 'job')} will be {verb.done}", yes=yes)
    changed: list[Changed] = []
    # Those that come to match meanwhile were not agreed to: no more rounds than the count asks for.
    while len(changed) < matching and (some := await verb.act(which)):
        changed += some
    _report(verb, changed, dry_run=False, json=json)


def agree(sentence: str, *, yes: bool) -> None:
    """Ask before something is done to many; without somebody to ask, ``--yes`` must have been given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage(f"{sentence}, and there is nobody to ask", remedy="the same command with --yes")
    if not typer.confirm(f"{sentence}. Go on?", err=True):
        output.note("nothing was done")
        raise typer.Exit(1)


def _report(verb: Verb, changed: Collection[Changed], *, dry_run: bool, json: bool) -> None:
    if json:
        jobs = [{"queue": one.ref.queue, "id": one.ref.id, "before": one.before} for one in changed]
        amount = {"changed": 0, "matching": len(jobs)} if dry_run else {"changed": len(jobs)}
        output.show_json({"verb": verb.name, **amount, "jobs": jobs})
    elif changed:
        output.say(f"{count(len(changed), 'job')} {'would be ' if dry_run else ''}{verb.done}")
