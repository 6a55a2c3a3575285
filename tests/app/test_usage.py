"""What was run, as a person asks for it, and as Prometheus does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from onward import App, InvalidValue, JobContext, Snooze
from onward.engine.values import QueueInfo, QueueSettings
from onward.lifecycle import JobStatus
from onward.metering import Usage
from onward.prometheus import exposition


@pytest.fixture
def shop(app: App) -> App:
    @app.task(queue="mail", max_attempts=1)
    async def send(to: str) -> None:
        if to == "nobody":
            raise ValueError(to)
        if to == "later":
            raise Snooze(3600)

    @app.task(queue="mail")
    def sort(context: JobContext) -> None: ...

    return app


async def test_a_tick_leaves_a_record_of_every_run(shop: App):  # H8
    send = shop.tasks["send"]
    for to, org_id in (("ann", "acme"), ("bob", "acme"), ("nobody", "acme"), ("later", None)):
        await send.using(org_id=org_id).enqueue(to=to)
    await shop.tasks["sort"].enqueue()
    await shop.tick()
    told = await shop.usage(by=["org_id", "type", "outcome"])
    assert {(one.org_id, one.type, one.outcome): one.runs for one in told} == {
        ("acme", "send", "completed"): 2,
        ("acme", "send", "dead_letter"): 1,
        (None, "send", "snoozed"): 1,
        (None, "sort", "completed"): 1,
    }
    (all_,) = await shop.usage(bucket="all", org_id="acme")
    assert (all_.runs, all_.attempts, sum(all_.run_histogram)) == (3, 3, 3)


async def test_a_worker_leaves_a_record_of_every_run_by_its_end(shop: App):  # H8
    handles = await shop.tasks["send"].enqueue_many([{"to": f"{number}"} for number in range(30)])
    async with shop.worker():
        for handle in handles:
            await handle.result(timeout=30)
    (day,) = await shop.usage()
    assert (day.runs, sum(day.wait_histogram)) == (30, 30)
    assert day.at is not None


async def test_what_no_usage_is_told_by_is_refused(shop: App):
    with pytest.raises(InvalidValue, match="one of org_id, queue, type, outcome"):
        await shop.usage(by=["colour"])  # type: ignore[list-item]
    with pytest.raises(InvalidValue, match="one of minute, day, all"):
        await shop.usage(bucket="hour")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="time zone"):
        await shop.usage(since=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point


async def test_metrics_are_read_by_prometheus(shop: App):
    await shop.tasks["send"].enqueue_many([{"to": "ann"}] * 3)
    await shop.tick(limit=2)
    families = {family.name: family for family in text_string_to_metric_families(await shop.metrics())}
    assert {sample.labels["status"]: sample.value for sample in families["onward_jobs"].samples if sample.value} == {
        "pending": 1,
        "completed": 2,
    }
    (runs,) = families["onward_runs"].samples
    assert (runs.labels, runs.value) == ({"queue": "mail", "type": "send", "outcome": "completed"}, 2)
    counted = {sample.name: sample.value for sample in families["onward_run_seconds"].samples}
    assert counted["onward_run_seconds_count"] == 2
    assert families["onward_run_seconds"].type == "histogram"


def test_labels_of_strangers_break_no_line():
    now = datetime(2030, 1, 1, tzinfo=UTC)
    name = 'a"b\\c\nd'
    queue = QueueInfo(
        name=name,
        settings=QueueSettings(paused=True),
        counts={JobStatus.PENDING: 4},
        oldest_ready_at=now - timedelta(seconds=90),
    )
    text = exposition([queue], [], [Usage(queue=name, type="t", outcome="completed", runs=1)], now=now)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (age,) = families["onward_queue_oldest_ready_seconds"].samples
    assert (age.labels, age.value) == ({"queue": name}, 90)
    assert families["onward_queue_paused"].samples[0].value == 1
