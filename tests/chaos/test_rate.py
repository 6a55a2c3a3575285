"""A rate holds across processes that come and go: never more in any window, and nearly all of it used (P6)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onward.engine.values import Rate
from tests.chaos.rate_run import RateReport, run

MIN_USED = 0.95


def check_rate(report: RateReport) -> None:
    """What must be true of every run."""
    print(f"\n{report}")
    assert report.worst_window <= report.rate.count, report
    assert report.used >= MIN_USED, report
    assert report.started_twice == 0, report


def test_a_rate_holds_while_half_of_the_processes_are_killed(tmp_path):  # P6
    rate = Rate(240, timedelta(seconds=12))
    check_rate(run(tmp_path, rate=rate, processes=6, kills=3, seconds=15))


@pytest.mark.slow
def test_sixteen_processes_keep_to_six_hundred_a_minute_for_two_minutes_while_half_are_killed(tmp_path):  # P6
    rate = Rate(600, timedelta(minutes=1))
    check_rate(run(tmp_path, rate=rate, processes=16, kills=8, seconds=120))
