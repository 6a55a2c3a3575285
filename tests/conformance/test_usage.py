"""Every run is counted, and the counts are rolled up (H8)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from onward.engine.capabilities import Feature
from onward.engine.values import Claim, Settlement
from onward.job import JobRef
from onward.lifecycle import Bury, Complete, Outcome, Release, Retry, Snooze
from onward.metering import BOUNDS, Bucket, Meter, Usage, UsageBy, UsageQuery
from tests.conformance.cases import BOOM, needs
from tests.conformance.driver import Driver

pytestmark = needs(Feature.USAGE)

DAY = timedelta(days=1)
EVERYTHING = frozenset(UsageBy)


def claim(queue: str = "mail", type: str = "send", org_id: str | None = "acme", wait_seconds: float = 0.2) -> Claim:
    return Claim(
        ref=JobRef(queue, "1"),
        token=(1, 1),
        type=type,
        payload="{}",
        attempts=1,
        started=True,
        org_id=org_id,
        wait_seconds=wait_seconds,
    )


def metered(*runs: tuple[Claim, Outcome, float]) -> list[Usage]:
    meter = Meter()
    meter.add(Settlement(*run) for run in runs)
    return meter.take()


async def told(driver: Driver, **query: Any) -> list[Usage]:
    return await driver.engine.usage(UsageQuery(**query))


async def tomorrow(driver: Driver, days: int = 1) -> None:
    await driver.advance(timedelta(days=days))
    await driver.prune()


async def test_runs_are_summed_up_by_what_is_asked(driver: Driver):  # H8
    done = (claim(), Complete(), 0.03)
    await driver.engine.record_usage(metered(done, done, (claim(org_id=None), Complete(), 7.0)))
    await driver.engine.record_usage(metered((claim(queue="video"), Retry(timedelta(0), BOOM), 400.0)))
    (all_,) = await told(driver, bucket=Bucket.ALL)
    assert (all_.at, all_.org_id, all_.queue, all_.runs, all_.attempts) == (None, None, None, 4, 4)
    assert round(all_.run_seconds, 6) == 407.06
    assert round(all_.wait_seconds, 6) == 0.8
    by_org = {one.org_id: one.runs for one in await told(driver, bucket=Bucket.ALL, by=frozenset({UsageBy.ORG}))}
    assert by_org == {None: 1, "acme": 3}
    by_all = {(one.org_id, one.queue, one.type, one.outcome): one.runs for one in await told(driver, by=EVERYTHING)}
    assert by_all == {
        ("acme", "mail", "send", "completed"): 2,
        ("acme", "video", "send", "retried"): 1,
        (None, "mail", "send", "completed"): 1,
    }


async def test_how_long_runs_waited_and_took_is_kept_as_histograms(driver: Driver):  # H8
    runs = [(claim(wait_seconds=bound), Complete(), bound + 0.001) for bound in BOUNDS]
    await driver.engine.record_usage(metered(*runs))
    (all_,) = await told(driver, bucket=Bucket.ALL)
    assert all_.wait_histogram == [*[1] * len(BOUNDS), 0]
    assert all_.run_histogram == [0, *[1] * len(BOUNDS)]


async def test_what_is_narrowed_leaves_the_others_out(driver: Driver):  # H8, H9
    await driver.engine.record_usage(
        metered((claim(), Complete(), 1), (claim(org_id="other"), Complete(), 1), (claim(queue="video"), Complete(), 1))
    )
    for narrowed, runs in (({"org_id": "acme"}, 2), ({"queue": "video"}, 1), ({"type": "send", "org_id": "other"}, 1)):
        (found,) = await told(driver, bucket=Bucket.ALL, **narrowed)
        assert found.runs == runs
    assert await told(driver, bucket=Bucket.ALL, org_id="nobody") == []


async def test_minutes_and_days_are_told_apart(driver: Driver):  # H8
    for _ in range(3):
        await driver.engine.record_usage(metered((claim(), Complete(), 1)))
        await driver.advance(40)
    minutes = await told(driver, bucket=Bucket.MINUTE)
    assert sum(one.runs for one in minutes) == 3
    assert len(minutes) == 2
    assert all(one.at is not None and one.at.second == one.at.microsecond == 0 for one in minutes)
    (day,) = await told(driver, bucket=Bucket.DAY)
    assert day.runs == 3
    midnight = driver.now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    assert day.at == midnight
    first, second = minutes
    assert [one.runs for one in await told(driver, bucket=Bucket.ALL, since=second.at)] == [second.runs]
    assert [one.runs for one in await told(driver, bucket=Bucket.ALL, until=second.at)] == [first.runs]


async def test_rolling_up_changes_no_sum(driver: Driver):  # H8
    for number in range(50):
        org = f"org-{number % 3}"
        await driver.engine.record_usage(metered((claim(org_id=org), Complete(), 0.1), (claim(), Bury(BOOM), 2.0)))
    await driver.advance(61)
    by_org = await told(driver, by=EVERYTHING)
    await driver.prune()
    assert await told(driver, by=EVERYTHING) == by_org
    await tomorrow(driver, 3)
    assert await told(driver, by=EVERYTHING) == by_org
    (day,) = await told(driver, bucket=Bucket.ALL)
    assert day.runs == 100


async def test_after_two_days_minutes_are_told_by_the_day(driver: Driver):  # H8
    for _ in range(5):
        await driver.engine.record_usage(metered((claim(), Complete(), 1)))
        await driver.advance(60)
    await driver.prune()
    assert len(await told(driver, bucket=Bucket.MINUTE)) == 5
    await tomorrow(driver, 3)
    (one,) = await told(driver, bucket=Bucket.MINUTE)
    assert one.runs == 5
    assert isinstance(one.at, datetime)


async def test_only_a_leader_rolls_up(driver: Driver):  # O6
    await driver.engine.record_usage(metered((claim(), Complete(), 1)))
    term = await driver.lead()
    await driver.advance(3 * DAY)
    before = await told(driver, bucket=Bucket.MINUTE)
    await driver.engine.prune(term)
    assert await told(driver, bucket=Bucket.MINUTE) == before


def test_a_run_that_was_given_back_is_none_and_a_snooze_costs_no_attempt():  # H8, Counting
    (snoozed,) = metered((claim(), Snooze(timedelta(0)), 1.0), (claim(), Release(), 1.0))
    assert (snoozed.outcome, snoozed.runs, snoozed.attempts) == ("snoozed", 1, 0)


def test_what_could_not_be_handed_over_is_kept():  # H8
    meter = Meter()
    meter.add([Settlement(claim(), Complete(), 1.0)])
    taken = meter.take()
    meter.add([Settlement(claim(), Complete(), 2.0)])
    meter.put_back(taken)
    (one,) = meter.take()
    assert (one.runs, one.run_seconds, sum(one.run_histogram)) == (2, 3.0, 2)
    assert meter.take() == []


def test_runs_of_one_kind_that_took_differently_long_go_where_they_belong():  # H8
    (usage,) = metered(*((claim(wait_seconds=each), Complete(), each * 10) for each in (0.001, 0.02, 0.02, 999.0)))
    assert (usage.wait_histogram[0], usage.wait_histogram[1], usage.wait_histogram[-1]) == (1, 2, 1)
    assert (usage.run_histogram[0], usage.run_histogram[3], usage.run_histogram[-1]) == (1, 2, 1)
    assert usage.runs == sum(usage.wait_histogram) == sum(usage.run_histogram) == 4
