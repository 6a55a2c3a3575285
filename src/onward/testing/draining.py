"""Runs what waits, until nothing does."""

from __future__ import annotations

from datetime import timedelta

from onward.app import App
from onward.clock import MICROSECOND, ManualClock
from onward.core import core_of
from onward.errors import InvalidValue
from onward.worker.one_shot import TickReport


async def drain(app: App, *, until_idle: bool = False, limit: int = 10_000) -> TickReport:
    """Run every job that is ready, in this process, and those that they enqueue, and say what came of it.

    With ``until_idle`` the App's :class:`ManualClock` is moved to whatever is due next (delays, retries, snoozes,
    rates), again and again, until nothing waits for its time any more.

    Raises:
        InvalidValue: ``until_idle`` without a ManualClock.
        RuntimeError: ``limit`` jobs have been run, and there are more: something enqueues itself.
    """
    clock = core_of(app).clock
    if until_idle and not isinstance(clock, ManualClock):
        raise InvalidValue(
            "until_idle", until_idle, 'moves the clock: give the App one, App("sqlite://", clock=ManualClock())'
        )
    await app.open()
    total = TickReport()
    steps = 0
    async with core_of(app).alive() as state:
        ticker = core_of(app).ticker(state=state)
        while True:
            report = await ticker.tick(limit)
            total.add(report)
            if total.claimed >= limit or steps >= limit:
                raise RuntimeError(f"{total.claimed} jobs run and no end: does one enqueue or snooze itself for ever?")
            if report.claimed:
                continue
            if ticker.next_in is None or not isinstance(clock, ManualClock) or not until_idle:
                return total
            steps += 1
            clock.advance(timedelta(seconds=ticker.next_in) + MICROSECOND)
