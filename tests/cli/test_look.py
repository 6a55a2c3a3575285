"""Workers, health, top."""

from __future__ import annotations

import io
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from onward import App, JobStatus, QueueInfo, WorkerInfo
from onward.cli.top import frame, rates_of
from onward.cli.worker_command import health_file_for
from onward.engine.values import EngineInfo
from onward.service.snapshot import Snapshot
from onward.worker.health import HealthRecorder
from tests.cli.conftest import Cli

NOW = datetime(2030, 1, 1, tzinfo=UTC)


async def register(app: App, id: str = "vm-1-a", hostname: str | None = None) -> None:
    hostname = hostname or socket.gethostname()
    info = WorkerInfo(id=id, hostname=hostname, pool_size=4, version="1", types=("send_mail",))
    await app._core.engine.heartbeat(info, [])


def test_workers_are_listed(shop: Cli, on_store):  # O5
    assert "no workers" in shop("workers", "list").ok().err
    on_store(register)
    lines = shop("workers", "list").ok().out.splitlines()
    assert lines[1].split()[:4] == ["vm-1-a", "live", "*", "4"]
    message = shop("workers", "list", "--json").ok().json
    assert message["workers"][0]["id"] == "vm-1-a"
    assert message["silent"] == []


def test_a_store_that_answers_is_healthy(shop: Cli):
    assert shop("health").ok().out.startswith("ok: SQLite")
    assert shop("health", "--json").ok().json["ok"] is True
    assert shop("health", "--json").ok().json["message"].startswith("SQLite")


def test_health_can_ask_for_a_worker_on_this_machine(shop: Cli, on_store):
    shop("health", "--worker").failed("no worker on", "onward workers")
    on_store(lambda app: register(app, "far-1-a", "elsewhere"))
    shop("health", "--worker").failed("no worker on")
    on_store(register)
    assert "1 worker here" in shop("health", "--worker").ok().out
    shop("health", "--worker", "--max-age", "0s").failed("no worker on")


def test_ill_health_is_an_exit_code_and_json(cli: Cli, workdir: Path):
    (workdir / "text.db").write_text("not a database, " * 100)
    cli("health", "--url", "sqlite:///text.db").unreachable("not an SQLite database")
    message = cli("health", "--url", "sqlite:///text.db", "--json")
    assert (message.code, message.json["ok"]) == (3, False)
    assert "not an SQLite database" in message.json["message"]
    cli("health", "--url", "sqlite:///nope.db").unreachable("there is no database")
    cli("health").usage_error("which store?")


def test_health_can_ask_a_file_instead_of_the_store(cli: Cli, workdir: Path):
    file = workdir / "health.json"
    cli("health", "--file", str(file)).failed("no worker writes it")
    HealthRecorder("vm-1-a", poll_interval=timedelta(seconds=1), file=file).record_heartbeat()
    assert "1 worker beats and polls" in cli("health", "--file", str(file)).ok().out
    cli("health", "--file", str(file), "--max-age", "0s").failed("last successful")
    cli("health", "--file", str(file), "--worker").usage_error("do not go together")


def test_every_process_of_several_must_be_healthy(cli: Cli, workdir: Path):
    file = workdir / "health"
    for place in "01":
        HealthRecorder(
            f"vm-{place}-a", poll_interval=timedelta(seconds=1), file=health_file_for(file, place)
        ).record_heartbeat()
    (workdir / "health-0.4711").touch()  # a draft that a killed process left behind
    assert "2 workers beat and poll" in cli("health", "--file", str(file)).ok().out
    health_file_for(file, "1").write_text("{}")
    cli("health", "--file", str(file)).failed("health-1")


def test_one_frame_can_be_piped(shop: Cli, on_store):
    shop("enqueue", "send_mail", "to=ann").ok()
    on_store(register)
    result = shop("top", "--once").ok()
    assert "ready 1" in result.out
    assert "mail" in result.out
    assert "vm-1-a" in result.out
    assert "\x1b" not in result.out
    assert shop("top").ok().out.count("per s –") == 1  # nobody could see it move


def test_top_needs_a_store(cli: Cli):
    cli("top", "--once").usage_error("which store?")
    cli("top", "--once", "--url", "sqlite:///nope.db").unreachable("there is no database")


def snapshot(seconds: float, **completed: int) -> Snapshot:
    return Snapshot(
        at=NOW + timedelta(seconds=seconds),
        info=EngineInfo(engine="Any", server="Any 1"),
        lease=timedelta(seconds=30),
        queues=tuple(QueueInfo(name=name, counts={JobStatus.COMPLETED: count}) for name, count in completed.items()),
    )


def test_rates_are_what_has_ended_between_two_snapshots():
    assert rates_of([snapshot(0, mail=10), snapshot(2, mail=30, video=4)]) == {"mail": 10.0, "video": 2.0}
    assert rates_of([snapshot(0, mail=10)]) == {}
    assert rates_of([snapshot(0, mail=10), snapshot(1, mail=3)]) == {"mail": 0.0}  # retention has taken some away


def test_a_frame_fits_its_screen():
    crowd = snapshot(1, **{f"queue-{number:03}": number for number in range(200)})
    crowd = msgspec.structs.replace(
        crowd,
        workers=tuple(
            WorkerInfo(id=f"vm-{number}-a", hostname="vm", pool_size=1, version="1", last_heartbeat=NOW, started_at=NOW)
            for number in range(50)
        ),
    )
    console = Console(width=120, height=30, file=io.StringIO())
    with console.capture() as captured:
        console.print(frame([snapshot(0), crowd], height=30, error_text="the store is away"))
    lines = captured.get().splitlines()
    assert len(lines) <= 30
    assert "queue-199" in captured.get()  # the busiest first
    assert "more queues" in captured.get()
    assert "more workers" in captured.get()
    assert "the store is away" in captured.get()


def test_a_frame_names_tasks_that_no_live_worker_has():  # O8
    live = WorkerInfo(id="vm-1-a", hostname="vm", pool_size=1, version="1", types=("send",), last_heartbeat=NOW)
    now = msgspec.structs.replace(snapshot(1), workers=(live,), waiting_types={"send": 2, "send_all": 3})
    console = Console(width=120, height=30, file=io.StringIO())
    with console.capture() as captured:
        console.print(frame([now], height=30))
    assert "no worker has a task 'send_all', and 3 jobs wait" in captured.get()
    assert "'send'," not in captured.get()


@pytest.mark.parametrize("words", [("top", "--interval", "x"), ("workers", "--nope"), ("health", "--max-age", "x")])
def test_what_means_nothing_is_refused(shop: Cli, words):
    shop(*words).usage_error("Error")
