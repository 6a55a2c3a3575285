"""Schedules: cron in words, next turns, run now, pause, edit."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice

import msgspec
from msgspec import UNSET

from onward.cron import trigger_of
from onward.dashboard import durations
from onward.dashboard.cron_words import words
from onward.dashboard.tree import Node, as_text, has_redacted, tree
from onward.dashboard.visit import Confirmation, Redirect, Screen, Visit
from onward.dashboard.wording import Moment, Pill, span
from onward.errors import InvalidValue, OnwardError, PermissionDenied
from onward.http.names import encode_name
from onward.job import JobRef
from onward.schedule import Missed
from onward.service.values import EnqueueRequest, ScheduleRequest, ScheduleView
from onward.validation import one_of


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule in a table."""

    name: str
    path: str
    type: str
    queue: str
    trigger: str
    words: str
    state: Pill
    next: Moment | None
    last: Moment | None
    is_paused: bool


class SchedulesPage(msgspec.Struct, frozen=True, kw_only=True):
    """All schedules."""

    rows: tuple[ScheduleRow, ...]
    can_operate: bool
    can_set: bool


class SchedulePage(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule."""

    row: ScheduleRow
    org_id: str
    missed: str
    timezone: str
    turns: tuple[Moment, ...]
    payload: Node
    can_operate: bool
    can_set: bool
    can_delete: bool


class ScheduleForm(msgspec.Struct, frozen=True, kw_only=True):
    """A form for a schedule."""

    is_new: bool
    name: str
    type: str
    queue: str
    org_id: str
    cron: str
    timezone: str
    every: str
    missed: str
    payload: str
    policies: tuple[str, ...]
    tasks: tuple[str, ...]
    mistake: str = ""
    action: str


async def show_all(visit: Visit) -> Screen:
    """List schedules."""
    found = (await visit.services.schedules.list(visit.identity)).items
    page = SchedulesPage(
        rows=tuple(_row(visit, one) for one in found),
        can_operate=visit.may("schedules.run"),
        can_set=visit.may("schedules.set"),
    )
    return Screen(template="schedules.html", title="Schedules", section="schedules", page=page)


async def show(visit: Visit) -> Screen:
    """Show a schedule."""
    one = await visit.services.schedules.get(visit.identity, visit.path["name"])
    page = SchedulePage(
        row=_row(visit, one),
        org_id=one.org_id or "",
        missed=one.missed,
        timezone=one.timezone or "UTC",
        turns=_turns(visit, one),
        payload=tree(one.payload),
        can_operate=visit.may("schedules.run"),
        can_set=visit.may("schedules.set"),
        can_delete=visit.may("schedules.delete"),
    )
    return Screen(template="schedule.html", title=one.name, section="schedules", page=page)


def _row(visit: Visit, one: ScheduleView) -> ScheduleRow:
    every = None if one.every is None else span(one.every)
    zone = "" if one.timezone in {None, "UTC"} else f" ({one.timezone})"
    return ScheduleRow(
        name=one.name,
        path=f"/schedules/{encode_name(one.name)}",
        type=one.type,
        queue=one.queue,
        trigger=f"every {every}" if every else f"{one.cron}{zone}",
        words=f"every {every}" if every else words(one.cron or "") + zone,
        state=Pill(word="paused", kind="wait", hollow=True) if one.paused else Pill(word="active", kind="ok"),
        next=visit.moment(one.next_at),
        last=visit.moment(one.last_at),
        is_paused=one.paused,
    )


def _turns(visit: Visit, one: ScheduleView) -> tuple[Moment, ...]:
    if one.next_at is None:
        return ()
    every = None if one.every is None else timedelta(seconds=one.every)
    try:
        trigger = trigger_of(one.cron, every=every, timezone=one.timezone or "UTC")
        turns = [one.next_at, *islice(trigger.after(one.next_at), 4)]
    except OnwardError:  # a time zone that this machine does not know
        turns = [one.next_at]
    return tuple(shown for turn in turns if (shown := visit.moment(turn)) is not None)


async def show_form(visit: Visit) -> Screen:
    """Show the form of a schedule, or of a new one."""
    name = visit.path.get("name")
    one = None if name is None else await visit.services.schedules.get(visit.identity, name)
    return _form(visit, one)


def _form(visit: Visit, one: ScheduleView | None, mistake: str = "") -> Screen:
    form = visit.form if visit.form.pairs else None

    def value(name: str, stored: str | None) -> str:
        return (stored or "") if form is None else form.text(name)

    name = one.name if one is not None else value("name", None)
    page = ScheduleForm(
        is_new=one is None,
        name=name,
        type=value("type", one.type if one else None),
        queue=value("queue", one.queue if one else None),
        org_id=value("org_id", one.org_id if one else None),
        cron=value("cron", one.cron if one else None),
        timezone=value("timezone", (one.timezone if one else None) or "UTC"),
        every=value("every", durations.write(one.every) if one else None),
        missed=value("missed", one.missed if one else Missed.ONCE),
        payload=value("payload", as_text(one.payload) if one else "{}"),
        policies=tuple(Missed),
        tasks=tuple(sorted(visit.services.store.app.tasks)),
        mistake=mistake,
        action="/schedules/new" if one is None else f"/schedules/{encode_name(one.name)}/edit",
    )
    title = "New schedule" if one is None else f"Edit {one.name}"
    return Screen(
        template="schedule_form.html",
        title=title,
        section="schedules",
        page=page,
        is_live=False,
        status=400 if mistake else 200,
    )


async def save(visit: Visit) -> Screen | Redirect:
    """Create a schedule, or change one."""
    form, known = visit.form, visit.path.get("name")
    one = None if known is None else await visit.services.schedules.get(visit.identity, known)
    try:
        name = known or form.text("name")
        payload = form.json("payload")
        if has_redacted(payload):
            raise PermissionDenied(
                "the payload has redacted values, which would be written as they are shown",
                remedy="replace every [redacted] by a value",
            )
        queue = form.text("queue")
        request = ScheduleRequest(
            job=EnqueueRequest(
                type=form.text("type"), payload=payload, queue=queue or UNSET, org_id=form.optional("org_id")
            ),
            cron=form.optional("cron"),
            timezone=form.text("timezone") or "UTC",
            every=durations.read("every", form.text("every")),
            missed=one_of("missed", Missed, form.text("missed") or Missed.ONCE),
        )
        saved = await visit.services.schedules.set(visit.identity, name, request)
    except InvalidValue as error:
        return _form(visit, one, str(error))
    return Redirect(path=f"/schedules/{encode_name(saved.name)}", note="schedule-saved")


async def pause(visit: Visit) -> Redirect:
    """Pause the schedule."""
    await visit.services.schedules.pause(visit.identity, visit.path["name"])
    return Redirect(path=f"/schedules/{encode_name(visit.path['name'])}", note="schedule-paused")


async def resume(visit: Visit) -> Redirect:
    """Resume the schedule."""
    await visit.services.schedules.resume(visit.identity, visit.path["name"])
    return Redirect(path=f"/schedules/{encode_name(visit.path['name'])}", note="schedule-resumed")


async def run(visit: Visit) -> Redirect:
    """Enqueue the schedule's job now."""
    done = await visit.services.schedules.run(visit.identity, visit.path["name"])
    return Redirect(path=visit.job_path(JobRef(done.queue, done.id)), note="schedule-run")


async def delete(visit: Visit) -> Redirect:
    """Delete the schedule."""
    visit.confirm(
        Confirmation(
            title=f"Delete the schedule {visit.path['name']}?",
            text="The jobs that it has enqueued stay. If the app declares it in code, its next start creates it again.",
            verb="Delete the schedule",
        )
    )
    await visit.services.schedules.delete(visit.identity, visit.path["name"])
    return Redirect(path="/schedules", note="schedule-deleted")
