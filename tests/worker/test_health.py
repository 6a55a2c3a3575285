"""Signs of life for probes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec

from onward import WorkerOptions
from onward.app import App
from onward.worker.health import Health, HealthRecorder, check_health
from tests.worker.conftest import FaultyEngine
from tests.worker.harness import eventually

MINUTE = timedelta(minutes=1)


def write_health(path: Path, *, heartbeat_at: float, polled_at: float) -> Path:
    health = Health(worker_id="w", pid=1, heartbeat_at=heartbeat_at, polled_at=polled_at, poll_interval=1.0)
    path.write_bytes(msgspec.json.encode(health))
    return path


def test_a_worker_that_beats_and_polls_is_well(tmp_path: Path):
    assert check_health(write_health(tmp_path / "h", heartbeat_at=990, polled_at=995), max_age=MINUTE, now=1000) is None


def test_a_worker_that_beats_but_does_not_poll_is_not(tmp_path: Path):
    problem = check_health(write_health(tmp_path / "h", heartbeat_at=1000, polled_at=900), max_age=MINUTE, now=1000)
    assert problem == "worker w: its last successful poll was 100 s ago"


def test_a_worker_that_polls_but_does_not_beat_is_not(tmp_path: Path):
    problem = check_health(write_health(tmp_path / "h", heartbeat_at=900, polled_at=1000), max_age=MINUTE, now=1000)
    assert problem == "worker w: its last successful heartbeat was 100 s ago"


def test_no_file_and_no_sense_are_told_apart(tmp_path: Path):
    assert "does not exist" in (check_health(tmp_path / "none", max_age=MINUTE) or "")
    (tmp_path / "torn").write_text("{")
    assert "cannot be read" in (check_health(tmp_path / "torn", max_age=MINUTE) or "")


async def test_a_worker_writes_its_file_while_it_runs_and_removes_it_when_it_stops(app: App, tmp_path: Path):
    file = tmp_path / "health.json"
    async with app.worker(health_file=file, lease=timedelta(seconds=1)) as worker:
        await eventually(file.exists)
        health = msgspec.json.decode(file.read_bytes(), type=Health)
        assert health.worker_id == worker.worker_id
        assert check_health(file, max_age=MINUTE) is None
    assert not file.exists()


async def test_polls_that_do_not_succeed_show(app: App, store: FaultyEngine, tmp_path: Path):
    file = tmp_path / "health.json"

    def polled_at() -> float:
        return msgspec.json.decode(file.read_bytes(), type=Health).polled_at

    options: WorkerOptions = {"health_file": file, "lease": timedelta(seconds=0.4), "poll": timedelta(seconds=0.05)}
    async with app.worker(**options):
        await eventually(file.exists)
        store.failing_exchanges = 1_000_000  # beats succeed, exchanges do not
        await eventually(lambda: len(store.exchanges) > 3)
        heartbeats = len(store.heartbeats)
        await eventually(
            lambda: len(store.heartbeats) > heartbeats + 2
        )  # what had succeeded before has been written by now
        before, heartbeats = polled_at(), len(store.heartbeats)
        await eventually(lambda: len(store.heartbeats) > heartbeats + 3)
        assert polled_at() == before
        store.failing_exchanges = 0
        await eventually(lambda: polled_at() > before)


async def test_a_file_that_cannot_be_written_does_not_stop_the_heartbeat(app: App, store: FaultyEngine, tmp_path: Path):
    options: WorkerOptions = {
        "health_file": tmp_path / "no such directory" / "health.json",
        "lease": timedelta(seconds=0.4),
    }
    async with app.worker(**options):
        await eventually(lambda: len(store.heartbeats) > 3)


def test_without_a_file_nothing_is_written(tmp_path: Path):
    recorder = HealthRecorder("w", poll_interval=MINUTE)
    recorder.record_poll()
    recorder.record_heartbeat()
    recorder.remove()
    assert list(tmp_path.iterdir()) == []
