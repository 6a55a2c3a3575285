from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer

from onward import Backoff, Rate
from onward.cli.units import (
    age,
    describe_backoff,
    rate,
    read_backoff,
    read_datetime,
    read_duration,
    read_limit,
    read_optional_duration,
    read_rate,
)
from onward.service.wording import count, duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("500ms", 0.5),
        ("5m", 300),
        ("5min", 300),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1.5 h", 5400),
    ],
)
def test_durations_are_read(text, seconds):
    assert read_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "5x", "-5s", "h", "5m later", "9" * 30 + "d"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(typer.BadParameter):
        read_duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("600/min", Rate(600)),
        ("10/s", Rate(10, timedelta(seconds=1))),
        ("5/10s", Rate(5, timedelta(seconds=10))),
        ("1000/h", Rate(1000, timedelta(hours=1))),
        ("7/day", Rate(7, timedelta(days=1))),
        ("none", None),
    ],
)
def test_rates_are_read(text, expected):
    assert read_rate(text) == expected


@pytest.mark.parametrize("text", ["", "600", "600/", "/min", "0/s", "1/0s", "1/2 years", "-1/s"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(typer.BadParameter):
        read_rate(text)


def test_rates_are_written_as_they_are_typed():
    for text in ("600/min", "10/s", "5/10s", "1000/h", "7/d"):
        assert rate(read_rate(text)) == text
    assert rate(None) == ""


def test_limits_are_read():
    assert read_limit("10") == 10
    assert read_limit("none") is None
    for text in ("0", "-1", "many", "1.5"):
        with pytest.raises(typer.BadParameter):
            read_limit(text)


@pytest.mark.parametrize(
    ("text", "backoff", "shown"),
    [
        ("30s", Backoff.fixed(30), "30 s"),
        ("2s..10m", Backoff.exponential(2, cap=600), "2.0 s, × 2 up to 10 min"),
        ("none", None, ""),
    ],
)
def test_backoffs_are_read_and_written(text, backoff, shown):
    assert read_backoff(text) == backoff
    if backoff is not None:
        assert describe_backoff(backoff) == shown


def test_what_cannot_be_typed_of_a_backoff_is_written_too():
    assert describe_backoff(Backoff.exponential(1, factor=3, cap=None, jitter=0.2)) == "1.0 s, × 3, jitter 20%"


@pytest.mark.parametrize("text", ["", "soon", "0s", "1s..", "..1m", "1s..0s"])
def test_what_is_no_backoff_is_refused(text):
    with pytest.raises(typer.BadParameter):
        read_backoff(text)


def test_a_duration_can_be_taken_away():
    assert read_optional_duration("5m") == timedelta(minutes=5)
    assert read_optional_duration("none") is None


def test_moments_always_have_a_time_zone():
    assert read_datetime("2030-01-31T12:00+02:00") == datetime(2030, 1, 31, 10, tzinfo=UTC)
    assert read_datetime("2030-01-31").tzinfo is not None
    with pytest.raises(typer.BadParameter):
        read_datetime("tomorrow")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (9.5, "9.5 s"), (42, "42 s"), (119, "119 s"), (300, "5 min"), (7300, "2 h"), (9e5, "10 d")],
)
def test_durations_are_written_in_their_largest_unit(seconds, shown):
    assert duration(seconds) == shown
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert age(now - timedelta(seconds=seconds), now) == f"{shown} ago"
    assert age(now + timedelta(seconds=seconds), now) == f"in {shown}"
    assert age(None) == ""


def test_things_are_counted():
    assert [count(number, "job") for number in (0, 1, 2500)] == ["0 jobs", "1 job", "2 500 jobs"]
    assert [count(number, "job", "wait") for number in (1, 2)] == ["1 job waits", "2 jobs wait"]
