"""The formula: in no window more than the count, and nearly all of it while there is work (P6)."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st

from onward.limits import Pace, Rate

RATES = st.builds(
    lambda count, period, burst: Rate(count, timedelta(microseconds=period), 1 + burst % count),
    st.integers(1, 40),
    st.integers(10_000, 90_000_000),
    st.integers(0, 40),
)
FRACTIONS = st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=200)
START = 1_000_000_000_000


def worst_window(starts: list[int], period: int) -> int:
    """Count the most starts that a half-open window of the period holds."""
    starts = sorted(starts)
    return max((sum(first <= one < first + period for one in starts) for first in starts), default=0)


@given(RATES, FRACTIONS, FRACTIONS)
def test_no_window_holds_more_than_the_count(rate: Rate, waits: list[float], delays: list[float]):  # P6
    """Takers come at any time; each uses its permit as late as it may."""
    pace, period = Pace.of(rate), rate.period // timedelta(microseconds=1)
    now, permit_at, starts = START, 0, []
    for wait, delay in zip(waits, delays * len(waits), strict=False):
        now += int(wait * 3 * pace.spacing)
        for _ in range(pace.free(permit_at, now, 5)):
            permit_at = pace.take(permit_at, now)
            starts.append(now + int(delay * pace.credit))
    assert worst_window(starts, period) <= rate.count


@given(RATES.filter(lambda rate: rate.burst == 1), st.floats(0, 1))
@example(Rate(40, timedelta(minutes=1)), 0.9)
@settings(max_examples=50)
def test_a_taker_that_comes_when_a_permit_is_due_uses_the_rate(rate: Rate, lateness: float):  # P6
    """Also one that comes late each time, within the credit."""
    pace, period = Pace.of(rate), rate.period // timedelta(microseconds=1)
    now, permit_at, taken, periods = START, 0, 0, 20
    while now < START + periods * period:
        count = pace.free(permit_at, now, 3)
        permit_at = pace.take(permit_at, now, count)
        taken += count
        now = max(pace.due_at(permit_at, now), now) + int(lateness * min(pace.credit, pace.spacing))
    assert taken >= 0.95 * rate.count * periods - 1


@given(RATES, st.integers(-(10**12), 10**12), st.integers(0, 5))
def test_a_clock_that_went_anywhere_never_delays_more_than_a_burst_and_a_permit(
    rate: Rate, shift: int, count: int
):  # P6
    pace = Pace.of(rate)
    permit_at = pace.take(0, START, count)
    now = START + shift
    assert pace.due_at(permit_at, now) <= now + pace.spacing
    assert pace.take(permit_at, now) <= now + 2 * pace.spacing + pace.reach


@given(RATES, st.integers(0, 10**9), st.integers(0, 8))
def test_what_is_free_can_be_taken(rate: Rate, ahead: int, wanted: int):
    pace = Pace.of(rate)
    permit_at = START + ahead
    free = pace.free(permit_at, START, wanted)
    one_by_one = pace.clamp(permit_at, START)
    for _ in range(free):
        assert pace.due_at(one_by_one, START) <= START
        one_by_one = pace.take(one_by_one, START)
    assert pace.take(permit_at, START, free) == one_by_one
    assert free == wanted or pace.due_at(one_by_one, START) > START
