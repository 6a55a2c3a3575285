"""Job schedulers of Node's: they go on whoever takes their jobs (B1)."""

from __future__ import annotations

from onward import App
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


async def test_a_schedule_by_pattern_and_zone_has_its_next_moment_where_node_would_put_it(
    app: App, node6: NodePeer, name: str
):  # B1
    ran: list[int] = []

    @app.task(name="tick", queue=name)
    async def tick() -> None:
        ran.append(1)

    queue, other = node6.queue(name), node6.queue(f"{name}-theirs")
    repeat = {"pattern": "30 2 * * *", "tz": "Europe/Berlin"}
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
