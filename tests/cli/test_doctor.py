from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from onward import App, JobStatus, QueueInfo, Rate, WorkerInfo
from onward.engine.capabilities import NATIVE, Capabilities, Feature
from onward.engine.values import EngineInfo, QueueSettings
from onward.engines.sqlite.migrations import MIGRATIONS
from onward.service.doctor import MAX_WAL_BYTES, MIN_FREE_BYTES, Finding, Level, examine
from onward.service.snapshot import Snapshot
from tests.cli.conftest import Cli

NOW = datetime(2030, 1, 1, tzinfo=UTC)
CAPABILITIES = Capabilities(engine="Any", features=dict.fromkeys(Feature, NATIVE), status_aliases={})


def snapshot(**known: Any) -> Snapshot:
    """A store in which everything is well, but for what is said."""
    well: dict[str, Any] = {
        "at": NOW,
        "info": EngineInfo(engine="Any", server="Any 1"),
        "lease": timedelta(seconds=30),
        "queues": (queue("mail", pending=3),),
        "workers": (worker("vm-1-a", is_leader=True),),
        "waiting_types": {"send_mail": 3},
        "path": "jobs.db",
        "wal_bytes": 1000,
        "free_bytes": 10**12,
    }
    return Snapshot(**(well | known))


def queue(name: str, *, wait_seconds: float = 1.0, settings: QueueSettings | None = None, **counts: int) -> QueueInfo:
    return QueueInfo(
        name=name,
        counts={JobStatus(state): count for state, count in counts.items()},
        oldest_ready_at=NOW - timedelta(seconds=wait_seconds) if counts.get("pending") else None,
        settings=settings or QueueSettings(),
    )


def worker(id: str, *, silent: float = 1.0, is_leader: bool = False, **known: Any) -> WorkerInfo:
    well: dict[str, Any] = {
        "hostname": "vm",
        "pool_size": 10,
        "version": "1",
        "types": ("send_mail",),
        "started_at": NOW - timedelta(hours=1),
    }
    beat = NOW - timedelta(seconds=silent)
    return WorkerInfo(id=id, last_heartbeat=beat, is_leader=is_leader, **(well | known))


def found(snapshot: Snapshot) -> list[Finding]:
    return list(examine(snapshot, CAPABILITIES))


def test_where_everything_is_well_nothing_is_found():
    assert found(snapshot()) == []


@pytest.mark.parametrize(
    ("known", "level", "message", "remedy"),
    [
        ({"workers": ()}, Level.PROBLEM, "no worker is there, and 3 jobs wait", "onward work"),
        (
            {"workers": (worker("vm-1-a", is_leader=True), worker("vm-2-b", silent=31))},
            Level.PROBLEM,
            "worker vm-2-b has been silent for 31 s",
            "onward tick",
        ),
        ({"workers": (worker("vm-1-a"),)}, Level.PROBLEM, "no worker leads", "logs"),
        (
            {"queues": (queue("mail", pending=2, settings=QueueSettings(paused=True)),)},
            Level.WARNING,
            "queue mail is paused, and 2 jobs wait",
            "onward queues resume mail",
        ),
        (
            {"workers": (worker("vm-1-a", is_leader=True, queues=("video/*",)),)},
            Level.PROBLEM,
            "no worker serves queue mail, and 3 jobs wait in it; the workers serve video/*",
            "--queues mail",
        ),
        (
            {"waiting_types": {"send_mial": 1}},
            Level.PROBLEM,
            "no worker has a task 'send_mial', and 1 job waits for it",
            "deploy",
        ),
        (
            {"queues": (queue("mail", pending=1, wait_seconds=301),)},
            Level.PROBLEM,
            "the oldest ready job, in queue mail, has waited 5 min",
            "add workers",
        ),
        (
            {"queues": (queue("mail", pending=1, wait_seconds=301, settings=QueueSettings(rate=Rate(1))),)},
            Level.WARNING,
            "the queue is limited",
            "onward queues configure mail",
        ),
        (
            {"wal_bytes": MAX_WAL_BYTES + 1},
            Level.WARNING,
            "write-ahead log of jobs.db has grown to 64 MB",
            "lsof jobs.db",
        ),
        ({"free_bytes": MIN_FREE_BYTES - 1}, Level.PROBLEM, "only 199 MB are left", "free some space"),
        ({"queues": (queue("mail", dead_letter=2),)}, Level.WARNING, "2 dead letters", "onward dead list"),
        (
            {"info": EngineInfo(engine="Any", server="Any 1", warnings=("beware",))},
            Level.WARNING,
            "beware",
            "",
        ),
        (
            {"info": EngineInfo(engine="Any", server="Any 1", problems=("nothing is kept",))},
            Level.PROBLEM,
            "nothing is kept",
            "",
        ),
        (
            {"workers": (worker("vm-1-a", is_leader=True), worker("vm-2-b", version="2"))},
            Level.NOTE,
            "several versions are at work: 1, 2",
            "",
        ),
    ],
)
def test_what_is_wrong_is_found_and_only_that(known, level, message, remedy):
    (finding,) = found(snapshot(**known))
    assert finding.level is level
    assert message in finding.message
    assert remedy in finding.remedy


def test_a_worker_that_has_just_started_need_not_lead_yet():
    young = worker("vm-1-a", started_at=NOW - timedelta(seconds=1))
    assert found(snapshot(workers=(young,))) == []


def test_the_work_of_a_paused_queue_is_not_held_against_its_age():
    old = queue("mail", pending=1, wait_seconds=9999, settings=QueueSettings(paused=True))
    assert [finding.level for finding in found(snapshot(queues=(old,)))] == [Level.WARNING]


def test_the_worst_comes_first():
    levels = [finding.level for finding in found(snapshot(free_bytes=1, wal_bytes=MAX_WAL_BYTES + 1))]
    assert levels == [Level.PROBLEM, Level.WARNING]


def test_an_idle_store_is_well(shop: Cli):
    result = shop("doctor").ok()
    assert ("ok: nothing is wrong" in result.out) is ("warning: " not in result.out)  # of an old SQLite, perhaps
    assert "survives a power cut" in result.out  # X3
    message = shop("doctor", "--json").ok().json
    assert message["ok"] is True
    assert message["store"]["engine"] == "SQLite"
    assert message["store"]["schema"] == len(MIGRATIONS)
    assert message["store"]["durability"].endswith("(synchronous=full)")
    assert {"wal_bytes", "free_bytes", "leader", "workers", "oldest_ready_seconds"} <= message["store"].keys()


def test_where_there_are_warnings_it_is_not_said_that_nothing_is_wrong(shop: Cli):
    shop("enqueue", "doomed").ok()
    shop("tick").ok()
    result = shop("doctor").ok().out
    assert "1 dead letter waits" in result
    assert "nothing is wrong" not in result
    assert "ok: no problem, and " in result


def test_work_that_nobody_does_is_a_problem(shop: Cli):
    shop("enqueue", "send_mail", "to=ann").ok()
    result = shop("doctor")
    assert result.code == 1
    assert "no worker is there, and 1 job waits" in result.out
    assert "onward tick" in result.out
    message = shop("doctor", "--json")
    assert message.code == 1
    assert message.json["ok"] is False
    assert message.json["findings"][0]["level"] == "problem"
    assert "no worker is there" in message.json["findings"][0]["message"]


def test_a_worker_gone_silent_is_found_in_the_store(shop: Cli, on_store, monkeypatch: pytest.MonkeyPatch):
    async def register(app: App) -> None:
        await app._core.engine.heartbeat(WorkerInfo(id="vm-1-a", hostname="vm", pool_size=1, version="1"), [])

    on_store(register)
    shop("doctor").ok()
    assert shop("workers", "list", "--json").ok().json["silent"] == []
    monkeypatch.setattr("onward.service.snapshot.is_silent", lambda *_: True)
    assert "vm-1-a has been silent" in shop("doctor").out


def test_a_restored_file_is_a_problem_until_it_is_confirmed(shop: Cli, workdir: Path):  # X3
    shop("tick").ok()  # by this the file is known
    shop("enqueue", "send_mail", "to=ann").ok()
    with sqlite3.connect(workdir / "jobs.db") as old, sqlite3.connect(workdir / "backup.db") as new:
        old.backup(new)
    for file in workdir.glob("jobs.db*"):
        file.unlink()
    (workdir / "backup.db").rename(workdir / "jobs.db")
    assert shop("tick", "--json").ok().json["claimed"] == 0
    assert "restored or copied" in shop("doctor").out
    assert "restored or copied" not in shop("doctor", "--confirm-restore").out
    assert shop("tick", "--json").ok().json["claimed"] == 1


def test_a_store_that_is_away_is_a_finding(cli: Cli, workdir):
    (workdir / "text.db").write_text("not a database, " * 100)
    result = cli("doctor", "--url", "sqlite:///text.db")
    assert result.code == 3
    assert "not an SQLite database" in result.out
    assert "Traceback" not in result.err
    message = cli("doctor", "--url", "sqlite:///text.db", "--json")
    assert (message.code, message.json["ok"]) == (3, False)


def test_the_doctor_needs_a_store(cli: Cli):
    cli("doctor").usage_error("which store?")
    cli("doctor", "--url", "sqlite:///nope.db").unreachable("there is no database")
    cli("doctor", "--url", "sqlite:///nope.db", "--max-wait", "x").usage_error("no duration")
