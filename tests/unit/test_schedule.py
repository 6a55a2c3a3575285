"""What is to be done for a schedule whose turn has come."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from onward.cron import Cron, Interval, Trigger
from onward.errors import InvalidValue
from onward.job import NewJob
from onward.schedule import MAX_MISSED, Missed, Schedule, firing_of
from onward.validation import one_of

DUE = datetime(2026, 11, 15, 20, 0, tzinfo=UTC)
HOURLY = Cron("0 * * * *")
JOB = NewJob(type="digest", payload='{"user":1}', queue="mail", priority=3)


def schedule(missed: Missed = Missed.ONCE, trigger: Trigger = HOURLY, **fields: Any) -> Schedule:
    made = Schedule(name="digest", job=JOB, trigger=trigger, missed=missed, next_at=DUE)
    return msgspec.structs.replace(made, **fields)


@pytest.mark.parametrize("missed", Missed)
def test_a_turn_that_comes_in_time_makes_one_job(missed):
    firing = firing_of(schedule(missed), DUE + timedelta(seconds=1))
    (job,) = firing.jobs
    assert (job.type, job.payload, job.queue, job.priority) == ("digest", '{"user":1}', "mail", 3)
    assert job.idempotency_key == "digest@2026-11-15T20:00:00+00:00"
    assert (firing.last_at, firing.next_at) == (DUE, DUE + timedelta(hours=1))


@pytest.mark.parametrize(
    ("missed", "turns"),
    [(Missed.SKIP, []), (Missed.ONCE, ["23:00"]), (Missed.ALL, ["20:00", "21:00", "22:00", "23:00"])],
)
def test_turns_that_were_missed_are_made_up_for_as_was_said(missed, turns):
    firing = firing_of(schedule(missed), DUE + timedelta(hours=3, minutes=30))
    assert [job.idempotency_key for job in firing.jobs] == [f"digest@2026-11-15T{turn}:00+00:00" for turn in turns]
    assert firing.last_at == DUE + timedelta(hours=3)
    assert firing.next_at == DUE + timedelta(hours=4)


def test_who_skips_still_fires_a_turn_that_is_only_just_past():
    firing = firing_of(schedule(Missed.SKIP), DUE + timedelta(hours=3, seconds=59))
    assert [job.idempotency_key for job in firing.jobs] == ["digest@2026-11-15T23:00:00+00:00"]


def test_a_long_absence_is_made_up_for_in_parts():
    every_minute = schedule(Missed.ALL, Interval(timedelta(minutes=1)))
    now = DUE + timedelta(minutes=MAX_MISSED + 10)
    first = firing_of(every_minute, now)
    assert len(first.jobs) == MAX_MISSED
    assert first.next_at == DUE + timedelta(minutes=MAX_MISSED)
    rest = firing_of(schedule(Missed.ALL, Interval(timedelta(minutes=1)), next_at=first.next_at), now)
    assert len(rest.jobs) == 11
    assert rest.next_at > now


@pytest.mark.parametrize("missed", [Missed.ONCE, Missed.SKIP])
@pytest.mark.parametrize("trigger", [Cron("* * * * *"), Interval(timedelta(seconds=1)), Cron("0 0 1 1 *")])
def test_after_years_the_last_turn_is_found_without_going_through_all(missed, trigger):
    looked: list[datetime] = []

    class Counted:
        def after(self, moment: datetime) -> Iterator[datetime]:
            for turn in trigger.after(moment):
                looked.append(turn)
                yield turn

    now = DUE + timedelta(days=3 * 365, seconds=30)
    firing = firing_of(schedule(missed, Counted()), now)  # type: ignore[arg-type]
    assert len(looked) < 10_000
    assert firing.last_at <= now < firing.next_at
    assert next(trigger.after(firing.last_at)) == firing.next_at


def test_what_is_not_due_is_not_fired():
    with pytest.raises(InvalidValue, match="is due at"):
        firing_of(schedule(), DUE - timedelta(seconds=1))
    with pytest.raises(InvalidValue, match="is due at"):
        firing_of(schedule(next_at=None, paused=True), DUE)


def test_a_policy_that_there_is_not_is_refused():
    assert one_of("missed", Missed, "all") is Missed.ALL
    with pytest.raises(InvalidValue, match="skip, once, all"):
        one_of("missed", Missed, "twice")
