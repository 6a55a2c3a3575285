"""Node sees Onward's workers (B1)."""

from __future__ import annotations

from onward import App
from tests.interop.bullmq.peer import NodePeer
from tests.worker.harness import eventually


async def test_node_lists_our_workers_while_they_run(app: App, either: NodePeer, name: str):  # B1
    queue, other = either.queue(name), either.queue(f"{name}-other")

    @app.task(name="send", queue=name)
    async def send() -> None: ...

    async with app.worker(queues=[name, f"{name}-other"]):
        await eventually(lambda: len(other("getWorkers")) == 1)
        (ours,) = await app.workers.list()
        for each in (queue, other):
            assert [worker["rawname"].rpartition("@")[2] for worker in each("getWorkers")] == [ours.id]
            assert each("getWorkersCount") == 1
        assert not await app._core.engine.has_foreign_workers(name), "it is ours, and has no other tasks"
        with either.working(name):
            await eventually(lambda: queue("getWorkersCount") == 2)
            assert await app._core.engine.has_foreign_workers(name)
    await eventually(lambda: queue("getWorkersCount") == 0)
