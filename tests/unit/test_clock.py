"""Time is whole microseconds, exactly, and a manual clock stands still."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.clock import Clock, ManualClock, SystemClock, micros_of, moment_of

moments = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]))


@given(moments.filter(lambda moment: 1 < moment.year < 9999))
def test_a_moment_survives_being_counted(moment):
    assert moment_of(micros_of(moment)) == moment
    assert moment_of(micros_of(moment)).tzinfo is UTC


@given(st.integers(-(10**16), 10**16))
def test_a_count_survives_being_a_moment(micros):
    assert micros_of(moment_of(micros)) == micros


@given(moments, moments)
def test_counts_compare_as_moments_do(one, other):  # O6
    assert (micros_of(one) < micros_of(other)) is (one < other)


def test_a_moment_without_a_time_zone_is_no_moment():
    with pytest.raises(TypeError):
        micros_of(datetime(2030, 1, 1))  # noqa: DTZ001


def test_the_system_clock_tells_the_time_of_day():
    before, told, after = time.time_ns(), SystemClock().micros(), time.time_ns()
    assert before // 1000 <= told <= after // 1000


def test_a_manual_clock_moves_only_when_told_to():
    clock = ManualClock(datetime(2030, 5, 1, tzinfo=UTC))
    told: Clock = clock
    before = told.micros()
    assert told.micros() == before
    clock.advance(timedelta(microseconds=1))
    assert told.micros() == before + 1
    clock.advance(0.5)
    assert told.micros() == before + 500_001
    assert clock.now() == datetime(2030, 5, 1, tzinfo=UTC) + timedelta(microseconds=500_001)


def test_a_manual_clock_does_not_go_back():
    clock = ManualClock()
    with pytest.raises(ValueError, match="forward only"):
        clock.advance(-1)
