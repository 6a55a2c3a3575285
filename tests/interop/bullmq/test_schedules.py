"""Job schedulers of Node's: they go on whoever takes their jobs (B1)."""

from __future__ import annotations

from typing import Any

import pytest

from onward import App
from onward.engines.bullmq.cron_pattern import UnreadablePattern
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
