"""Job schedulers of Node's: they go on whoever takes their jobs (B1)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from onward import App, JobContext
from onward.cron import Cron
from onward.engines.bullmq.cron_pattern import UnreadablePattern
from onward.engines.bullmq.engine import BullMQEngine
from onward.engines.bullmq.schedules import next_time
from tests.interop.bullmq.peer import NodePeer
from tests.worker.harness import eventually


async def test_a_schedule_of_nodes_goes_on_where_only_we_work(app: App, either: NodePeer, name: str):  # B1
    ran: list[int] = []

    @app.task(name="tick", queue=name)
    async def tick(a: int) -> None:
        ran.append(a)

    queue = either.queue(name)
    queue("upsertJobScheduler", "often", {"every": 100}, {"name": "tick", "data": {"a": 1}})
    async with app.worker(queues=[name]):
        await eventually(lambda: len(ran) >= 5)
    (known,) = queue("getJobSchedulers")
    assert known["key"] == "often"
    assert known["iterationCount"] >= 5
    assert queue("removeJobScheduler", "often") is True


async def test_a_schedule_is_handed_from_us_to_node_and_back(app: App, either: NodePeer, name: str):  # B1
    ran: list[int] = []

    @app.task(name="tick", queue=name)
    async def tick(a: int) -> None:
        ran.append(a)

    queue = either.queue(name)
    queue("upsertJobScheduler", "often", {"every": 100}, {"name": "tick", "data": {"a": 1}})
    for _ in range(2):
        so_far = len(ran)
        async with app.worker(queues=[name]):
            await eventually(lambda seen=so_far: len(ran) >= seen + 2)
        with either.working(name):
            for _ in range(2):
                await either.receive_async("completed", queue=name)
    queue("removeJobScheduler", "often")


@pytest.mark.parametrize(
    "repeat",
    [
        {"pattern": "30 2 * * *", "tz": "Europe/Berlin"},
        {"pattern": "@daily"},
        {"pattern": "0 9 ? * 5L", "tz": "UTC"},
        {"pattern": "0 0 9 L * ?", "tz": "utc-5:30"},
        {"pattern": "H H(1-5) * * *", "hashSeed": "mail", "tz": "europe/london"},
    ],
    ids=lambda repeat: repeat["pattern"],
)
async def test_a_schedule_by_pattern_and_zone_has_its_next_moment_where_node_would_put_it(
    app: App, node6: NodePeer, name: str, repeat: dict[str, Any]
):  # B1
    ran: list[int] = []

    @app.task(name="tick", queue=name)
    async def tick() -> None:
        ran.append(1)

    queue, other = node6.queue(name), node6.queue(f"{name}-theirs")
    for one in (queue, other):
        one("upsertJobScheduler", "nightly", repeat, {"name": "tick"})
        (due,) = one("getDelayed")
        one.job(due["id"], "promote")
    async with app.worker(queues=[name]):
        await eventually(lambda: len(ran) == 1)
    with node6.working(f"{name}-theirs"):
        await node6.receive_async("completed", queue=f"{name}-theirs")
    (ours,), (theirs,) = queue("getDelayed"), other("getDelayed")
    assert ours["id"] == theirs["id"]
    assert ours["opts"]["repeat"] == theirs["opts"]["repeat"]
    for one in (queue, other):
        one("removeJobScheduler", "nightly")


PATTERNS = [
    "@yearly", "@monthly", "@weekly", "@daily", "@hourly",
    "* * * * *", "*/5 * * * *", "30 2 * * *", "*/20 1-3 * * *", "15 0/3 * * *", "0 30 1 * * *", "*/10 * * * * *",
    "0 0 ? * MON-FRI", "0 0 1 * ?", "0 12 15 * 1", "0 12 */2 * 1", "0 12 L * *", "0 12 * * 5L", "0 12 * * 5#3",
    "0 12 * * 7", "0 12 * feb *", "5 4", "0 0 31 * *", "0 0 29 2 *",
    "often", "61 * * * *", "* * * * * * *", "5-1 * * * *", "*/0 * * * *", "0 0 LW * *", "RRULE:FREQ=DAILY",
]  # fmt: skip
HASHED = ["H * * * *", "H H * * *", "H/15 * * * *", "H(10-20) * * * *", "H(0-30)/7 * * * *", "0 0 H H H", "H H H H H H"]
ZONES = ["UTC", "gmt", "utc+3", "UTC-5:30", "Europe/Berlin", "europe/london", "America/New_York", "Mars/Olympus"]
MOMENTS = [
    1_800_000_000_250,
    # Around the hours in which the clocks of Berlin and New York move, in 2030; not within the repeated hour, in which
    # cron-parser would run a time of day for the second time.
    *(1_901_149_200_000 + minutes * 60_000 for minutes in (-70, -30, 0, 10, 40)),
    *(1_919_293_200_000 + minutes * 60_000 for minutes in (-130, -90, -30)),
    *(1_899_356_400_000 + minutes * 60_000 for minutes in (-30, 10)),
]


@pytest.mark.parametrize("version", ["5", "6"])
def test_patterns_and_zones_come_due_when_nodes_cron_parser_says(request: pytest.FixtureRequest, version: str):  # B1
    node: NodePeer = request.getfixturevalue(f"node{version}")
    patterns = PATTERNS + (HASHED if version == "6" else [])  # cron-parser 4, of BullMQ 5, has no H
    cases: list[dict[str, Any]] = [
        {"pattern": pattern, "tz": zone, "at": at, "hashSeed": "mail:ü"}
        for pattern in patterns
        for zone in ZONES
        for at in MOMENTS
    ]
    for case, theirs in zip(cases, node.request("cron", cases=cases), strict=True):
        try:
            ours: int | str | None = next_time(case["pattern"], case["at"], case["tz"], case["hashSeed"])
        except UnreadablePattern as error:
            ours = str(error)
        if isinstance(theirs, str):
            assert not isinstance(ours, int), (case, theirs)
        else:
            assert ours == theirs, case


# Schedules of Onward's own


async def test_node_lists_a_schedule_of_ours_and_we_list_nodes(app: App, either: NodePeer, name: str):  # B1, X1
    queue = either.queue(name)

    @app.task(name="digest", queue=name)
    async def digest(user: int) -> None: ...

    await app.schedules.set(f"{name}-ours", digest.job(user=7), "30 6 * * mon-fri", timezone="Europe/Berlin")
    daily = {"pattern": "0 7 * * *", "tz": "UTC"}
    queue("upsertJobScheduler", "theirs", daily, {"name": "digest", "data": {"user": 8}})
    queue("upsertJobScheduler", "often", {"every": 500}, {"name": "digest"})
    seen = {known["key"]: known for known in queue("getJobSchedulers")}
    assert seen.keys() == {f"{name}-ours", "theirs", "often"}
    ours = seen[f"{name}-ours"]
    assert (ours["name"], ours["pattern"], ours["tz"]) == ("digest", "30 6 * * mon-fri", "Europe/Berlin")
    assert ours["template"]["data"] == {"user": 7}

    async def listed() -> bool:  # a queue that only Node knows is found within five seconds
        names = {schedule.name for schedule in await app.schedules.list()}
        return {f"{name}-ours", f"{name}/theirs", f"{name}/often"} <= names

    await eventually(listed)
    theirs = await app.schedules.get(f"{name}/theirs")
    assert (theirs.trigger, theirs.job.payload) == (Cron("0 7 * * *", "UTC"), '{"user":8}')
    assert theirs.next_at is not None
    assert round(theirs.next_at.timestamp() * 1000) == seen["theirs"]["next"]
    assert (await app.schedules.get(f"{name}/often")).trigger.length == timedelta(milliseconds=500)  # type: ignore[union-attr]
    for known in seen:
        queue("removeJobScheduler", known)


async def test_a_schedule_of_nodes_is_paused_resumed_and_deleted_from_here(app: App, either: NodePeer, name: str):  # X1
    queue = either.queue(name)
    daily = {"pattern": "0 7 * * *", "tz": "UTC"}
    queue("upsertJobScheduler", "theirs", daily, {"name": "digest", "opts": {"attempts": 4}})
    before = queue("getJobSchedulers")

    async def listed() -> bool:
        return f"{name}/theirs" in {schedule.name for schedule in await app.schedules.list()}

    await eventually(listed)
    assert (await app.schedules.pause(f"{name}/theirs")).paused
    assert queue("getJobSchedulers") == []
    assert queue("getDelayed") == []
    await app.schedules.resume(f"{name}/theirs")
    (after,) = queue("getJobSchedulers")
    assert [{**after, "offset": None}] == [{**known, "offset": None} for known in before]
    await app.schedules.delete(f"{name}/theirs")
    assert queue("getJobSchedulers") == []


async def test_node_and_two_workers_run_each_turn_of_a_schedule_once(
    url: str, app: App, either: NodePeer, name: str
):  # B1, X1
    ran: list[str] = []

    def declare(app: App) -> None:
        @app.schedule(every=timedelta(seconds=1), name=name)
        @app.task(name="tick", queue=name)
        async def tick(context: JobContext) -> None:
            ran.append(context.ref.id)

    declare(app)
    queue = either.queue(name)
    async with App(engine=BullMQEngine(url)) as second:
        declare(second)
        with either.working(name):
            async with app.worker(queues=[name]), second.worker(queues=[name]):
                await eventually(lambda: queue("getCompletedCount") >= 5, timeout=60)
    queue("removeJobScheduler", name)
    done = queue("getCompleted")
    turns = [int(job["id"].rpartition(":")[2]) for job in done]
    assert len(turns) == len(set(turns)) >= 5
    assert {turn % 1000 for turn in turns} == {0}, "counted from 1970, whichever side made the next"
    assert {job["attemptsStarted"] for job in done} == {1}
    assert len(ran) == len(set(ran))
    assert set(ran) <= {job["id"] for job in done}
