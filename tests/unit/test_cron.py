"""When turns come, against an oracle that looks at every minute."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onward.cron import Cron, Interval, trigger_of
from onward.errors import InvalidValue

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)

# Two days around each change of the clocks: by an hour, by half an hour, at midnight.
CHANGES = {
    "Europe/Berlin": (datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)),
    "America/New_York": (datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 11, 1, 6, tzinfo=UTC)),
    "Australia/Lord_Howe": (datetime(2026, 10, 3, 15, 30, tzinfo=UTC), datetime(2026, 4, 4, 15, tzinfo=UTC)),
    "Africa/Cairo": (datetime(2026, 4, 23, 22, tzinfo=UTC), datetime(2026, 10, 29, 21, tzinfo=UTC)),
    "UTC": (datetime(2026, 3, 29, tzinfo=UTC),),
}


def values(field: str, low: int, high: int) -> set[int]:
    """Read a field: stars, numbers, ranges, steps and lists of them."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = low, high
        else:
            begins, _, ends = span.partition("-")
            first, last = int(begins), int(ends or begins)
        found.update(range(first, last + 1, int(step or 1)))
    return found


def turns(expression: str, zone: ZoneInfo, begin: datetime, end: datetime) -> list[datetime]:
    """Look at every minute there is, and at every minute that a clock on the wall could show."""
    minute, hour, day, month, weekday = expression.split()
    minutes, hours = values(minute, 0, 59), values(hour, 0, 23)
    days, months = values(day, 1, 31), values(month, 1, 12)
    weekdays = {number % 7 for number in values(weekday, 0, 7)}

    def shows(wall: datetime) -> bool:
        in_month, in_week = wall.day in days, wall.isoweekday() % 7 in weekdays
        is_day = in_month and in_week if day[0] == "*" or weekday[0] == "*" else in_month or in_week
        return wall.minute in minutes and wall.hour in hours and wall.month in months and is_day

    if minute[0] == "*" or hour[0] == "*" or zone.key == "UTC":  # follows real time
        real = ranged(begin, end)
        return [moment for moment in real if moment > begin and shows(moment.astimezone(zone))]
    found = set()
    for wall in ranged(
        begin.astimezone(zone).replace(tzinfo=None) - timedelta(days=1), end.replace(tzinfo=None) + timedelta(days=1)
    ):
        if shows(wall):
            moment = wall.replace(tzinfo=zone)
            while moment.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != moment.replace(tzinfo=None):
                moment += MINUTE  # leapt over: as soon as the clocks have
            found.add(moment.astimezone(UTC))  # the first time, where there are two
    return sorted(moment for moment in found if begin < moment <= end)


def ranged(begin: datetime, end: datetime) -> Iterator[datetime]:
    """Every minute from the first whole one on."""
    moment = begin.replace(second=0, microsecond=0)
    while moment <= end:
        yield moment
        moment += MINUTE


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> str:
    kind = draw(st.sampled_from(["*", "step", "one", "range", "list"]))
    numbers = st.integers(low, high)
    if kind == "*":
        return "*"
    if kind == "step":
        return f"*/{draw(st.integers(1, high))}"
    if kind == "one":
        return str(draw(numbers))
    if kind == "range":
        first, last = sorted((draw(numbers), draw(numbers)))
        return f"{first}-{last}"
    return ",".join(map(str, sorted(draw(st.sets(numbers, min_size=1, max_size=3)))))


expressions = st.builds(
    "{} {} {} * {}".format, fields(0, 59), fields(0, 5), st.sampled_from(["*", "*", "1-31", "29"]), fields(0, 6)
)
moments = st.sampled_from([(zone, change) for zone, changes in CHANGES.items() for change in changes])


@settings(max_examples=300, deadline=None)
@given(expressions, moments, st.integers(0, 48 * 3600))
@example("30 2 * * *", ("Europe/Berlin", CHANGES["Europe/Berlin"][0]), 0)
@example("30 2 * * *", ("Europe/Berlin", CHANGES["Europe/Berlin"][1]), 25 * 3600 + 900)
@example("0,30 2-3 * * *", ("Europe/Berlin", CHANGES["Europe/Berlin"][0]), 0)
@example("*/15 * * * *", ("America/New_York", CHANGES["America/New_York"][1]), 0)
@example("0 0 * * *", ("Africa/Cairo", CHANGES["Africa/Cairo"][0]), 0)
@example("* */2 * * *", ("Australia/Lord_Howe", CHANGES["Australia/Lord_Howe"][1]), 0)
@example("15 2 * * *", ("Australia/Lord_Howe", CHANGES["Australia/Lord_Howe"][0]), 0)
def test_turns_come_as_a_look_at_every_minute_says(expression: str, place: tuple[str, datetime], seconds: int):
    zone, change = place
    begin = change - timedelta(hours=30) + timedelta(seconds=seconds)
    end = change + timedelta(hours=30)
    told = list(takewhile(lambda turn: turn <= end, Cron(expression, zone).after(begin)))
    assert told == turns(expression, ZoneInfo(zone), begin, end)
    assert all(earlier < later for earlier, later in pairwise(told)), "each comes once"


@pytest.mark.parametrize(
    ("expression", "turn"),
    [
        ("30 6 * * mon-fri", "2026-11-16T06:30"),
        ("0 12 1 jan *", "2027-01-01T12:00"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("0 9 L * *", "2026-11-30T09:00"),
    ],
)
def test_an_expression_says_when(expression, turn):
    after = datetime(2026, 11, 15, 20, tzinfo=UTC)
    assert next(Cron(expression).after(after)) == datetime.fromisoformat(turn).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("trigger", "timezone", "field", "message"),
    [
        ("61 * * * *", "UTC", "cron", "cannot be read"),
        ("* * * *", "UTC", "cron", "five fields"),
        ("* * * * * *", "UTC", "cron", "give a timedelta"),
        ("0 0 31 2 *", "UTC", "cron", "cannot be read"),
        ("0 0 * * *", "Mars/Olympus", "timezone", "Europe/Berlin"),
        ("0 0 * * *", "../etc/passwd", "timezone", "Europe/Berlin"),
        (timedelta(0), "UTC", "every", "at least a second"),
        (timedelta(minutes=5), "Europe/Berlin", "timezone", "cron expression"),
        (300, "UTC", "every", "timedelta"),
    ],
)
def test_what_cannot_be_a_trigger_is_refused(trigger, timezone, field, message):
    with pytest.raises(InvalidValue, match=re.escape(message)) as refused:
        if isinstance(trigger, str):
            trigger_of(trigger, timezone=timezone)
        else:
            trigger_of(every=trigger, timezone=timezone)
    assert refused.value.field == field


ANY_TIME = st.timedeltas(-3650 * DAY, 40_000 * DAY).map(lambda since: datetime(1970, 1, 1, tzinfo=UTC) + since)


@given(
    st.timedeltas(timedelta(seconds=1), timedelta(days=400)),
    ANY_TIME,
    ANY_TIME,
)
def test_intervals_are_counted_from_their_beginning(length: timedelta, since: datetime, after: datetime):
    first, second = islice(Interval(length, since).after(after), 2)
    assert second - first == length
    assert first > after
    assert first >= since
    assert first - length <= after or first == since
    assert (first - since) % length == timedelta(0)


def test_all_who_declare_an_interval_agree_on_its_turns():
    after = datetime(2026, 11, 15, 20, 1, 7, tzinfo=UTC)
    assert next(trigger_of(every=timedelta(minutes=5)).after(after)) == datetime(2026, 11, 15, 20, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("word", "fields"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        (" @Daily ", "0 0 * * *"),
    ],
)
def test_words_of_cron_are_written_out(word: str, fields: str):
    assert trigger_of(word, timezone="Europe/Berlin") == Cron(fields, "Europe/Berlin")
    assert Cron(word).expression == fields


@pytest.mark.parametrize("word", ["@reboot", "@dayly"])
def test_a_word_that_is_none_is_refused_with_those_there_are(word: str):
    with pytest.raises(InvalidValue, match="@hourly, @daily"):
        trigger_of(word)
