"""Foreign stores through ``onward`` as a user runs it, filled by Node and by SQL: ids, payloads and names."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from onward import Job, JobStatus
from tests.chaos import ledger
from tests.chaos.fleet import Fleet, fleet_at
from tests.interop.stores import STORES, BullMQ, Store
from tests.worker.harness import eventually

QUEUES = ("billing", "mail", "images")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Each foreign store in turn."""
    with STORES[request.param]() as store:
        yield store


@pytest.fixture
async def fleet(store: Store, tmp_path: Path) -> AsyncIterator[Fleet]:
    """``onward`` on it."""
    async with fleet_at(store.url, tmp_path) as fleet:
        yield fleet


async def statuses(fleet: Fleet) -> dict[tuple[str, str], JobStatus]:
    return {(job.queue, job.id): job.status async for job in fleet.app.jobs.iterate()}


# Ids ------------------------------------------------------------------------------------------------------------------


async def test_a_name_that_a_list_prints_reaches_one_job_in_every_command(fleet: Fleet, store: Store):  # O2
    for queue in QUEUES:
        store.make_queue(queue)
    ids = {queue: store.send(queue, {"number": 1}) for queue in QUEUES}
    assert (len(set(ids.values())) == 1) == store.counts_by_queue
    listed = await fleet.command_json("jobs", "list")
    table = await fleet.command("jobs", "list")
    names = {
        job["queue"]: f"{job['queue']}:{job['id']}" if store.counts_by_queue else job["id"] for job in listed["jobs"]
    }
    assert set(names) == set(QUEUES)
    before = await statuses(fleet)
    for name in names.values():
        assert name in table, "the list prints what other commands accept"
    assert (await fleet.command_json("jobs", "show", names["mail"]))["queue"] == "mail"
    if store.counts_by_queue:
        await fleet.command("jobs", "cancel", "1", code=2)
    assert await statuses(fleet) == before
    await fleet.command("jobs", "cancel", names["billing"])
    after = await statuses(fleet)
    changed = {queue for queue, id_ in ids.items() if after.get((queue, id_)) != before[queue, id_]}
    assert changed == {"billing"}
    await fleet.command("jobs", "delete", f"mail:{ids['mail']}")
    assert {queue for queue, _ in await statuses(fleet)} - {"billing"} == {"images"}


async def test_the_whole_id_of_a_job_that_is_gone_does_not_reach_one_that_begins_alike(
    fleet: Fleet, store: Store
):  # O2
    store.make_queue("mail")
    ids = [store.send("mail", {"number": number}) for number in range(12)]
    for id_ in ids[:11]:
        await fleet.app.jobs.delete(f"mail:{id_}")
    if store.counts_by_queue:
        assert ids[11] == "12"
        await fleet.command("jobs", "delete", "mail:1", code=1)
        await fleet.command("jobs", "delete", "1", code=2)
    assert [id_ for _, id_ in await statuses(fleet)] == [ids[11]]
    await fleet.command("jobs", "delete", ids[11])
    assert await statuses(fleet) == {}


# Payloads -------------------------------------------------------------------------------------------------------------

PROGRAM = """
from typing import Any

from onward import App, JobContext
from tests.chaos.ledger import record

app = App(lease=5)

@app.task(queue="mail")
async def mail(context: JobContext, number: int, to: str = "nobody") -> list[object]:
    record(context, "mail", number)
    return [number, to, context.payload]

@app.task(queue="raw", whole_payload=True)
async def raw(context: JobContext, payload: Any) -> dict[str, object]:
    record(context, "raw", 0)
    return {"payload": payload}
"""
FITTING: list[tuple[dict[str, Any], list[Any]]] = [
    ({"number": 1}, [1, "nobody", {"number": 1}]),
    (
        {"number": 2, "unknown": {"deep": [1]}, "user-id": 7},
        [2, "nobody", {"number": 2, "unknown": {"deep": [1]}, "user-id": 7}],
    ),
    (
        {"number": 3, "to": "größe \u202e\x1b[2J"},
        [3, "größe \u202e\x1b[2J", {"number": 3, "to": "größe \u202e\x1b[2J"}],
    ),
]
UNFITTING: list[Any] = [{"to": "ann"}, {"number": "one"}, "text", [1, 2], 7]
ANY: list[Any] = [{"a": 1}, {}, [1, "two", None], "text", 7.5, True, [], ""]


async def test_payloads_of_others_run_or_fail_by_policy_and_the_worker_goes_on(
    fleet: Fleet, store: Store
):  # B1, X1, O8
    for queue in ("mail", "raw"):
        store.make_queue(queue)
    is_object_only = type(store).__name__ == "PgBoss"  # whose client refuses everything else
    fitting = {store.send("mail", data): expected for data, expected in FITTING}
    unfitting = [store.send("mail", data) for data in UNFITTING if isinstance(data, dict) or not is_object_only]
    anything = {store.send("raw", data): data for data in ANY if isinstance(data, dict) or not is_object_only}
    if not is_object_only:
        anything[store.send("raw", None)] = None
    if store.has_lone_surrogates:
        anything[store.send("raw", {"cut": "emoji \ud83d"})] = {"cut": "emoji \ufffd"}
        fitting[store.send("mail", {"number": 9, "to": "\ude00"})] = [9, "\ufffd", {"number": 9, "to": "\ufffd"}]
    fleet.write("program", PROGRAM)
    worker = fleet.work("program:app", "--queues", "mail,raw")
    found = await ended(fleet, len(fitting) + len(unfitting) + len(anything))
    for id_, expected in fitting.items():
        assert (found["mail", id_].status, found["mail", id_].result) == (JobStatus.COMPLETED, expected)
    for id_, data in anything.items():
        assert (found["raw", id_].status, found["raw", id_].result) == (JobStatus.COMPLETED, {"payload": data})
    for id_ in unfitting:
        job = found["mail", id_]
        assert job.status in {JobStatus.FAILED, JobStatus.DEAD_LETTER}
        assert "InvalidPayload" in str(job.last_error) or "payload" in str(job.last_error)
        assert job.attempts > 1 or job.max_attempts == 1, "what does not validate is retried by policy"
    assert set(ledger.read(fleet.folder)) == set(fitting) | set(anything)
    shown = await fleet.command("jobs", "list", "--limit", "100")
    assert all(line.isprintable() for line in shown.splitlines())
    shown = await fleet.command("jobs", "show", f"mail:{next(reversed(fitting))}", "--json")
    assert all(line.isprintable() for line in shown.splitlines())
    await fleet.stop(worker)


async def ended(fleet: Fleet, jobs: int, *, timeout: float = 60) -> dict[tuple[str, str], Job]:
    found: dict[tuple[str, str], Job] = {}

    async def all_ended() -> bool:
        now = {(job.queue, job.id): job async for job in fleet.app.jobs.iterate()}
        found.clear()
        found.update(now)
        over = {JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.DEAD_LETTER}
        return len(found) == jobs and {job.status for job in found.values()} <= over

    await eventually(all_ended, timeout=timeout)
    return found


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
async def test_a_job_of_a_name_that_only_node_knows_is_left_to_nodes_worker(tmp_path: Path):  # O8
    with BullMQ.opened() as store:
        async with fleet_at(store.url, tmp_path) as fleet:
            fleet.write("program", PROGRAM)
            with store.peer.working("mail"):
                fleet.work("program:app", "--queues", "mail")
                await fleet.serves("mail")
                ids = [store.send("mail", {"number": number}, type="only-node") for number in range(6)]
                found = await ended(fleet, len(ids), timeout=300)
            assert {job.status for job in found.values()} == {JobStatus.COMPLETED}
            assert ledger.read(fleet.folder) == {}
            assert {re.sub(r"\d+$", "", job.type) for job in found.values()} == {"only-node"}
