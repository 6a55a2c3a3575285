from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from onward.cli.reload import changes, modification_times
from onward.cli.work import read_queues
from onward.cli.worker_command import Settings, WorkerCommand
from tests.cli.conftest import SHOP, Cli

Spawn = Callable[..., "subprocess.Popen[str]"]


def eventually(happens: Callable[[], object], what: str, *, seconds: float = 60.0) -> None:
    """Wait for something in another process."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, f"{what} has not come about"
        time.sleep(0.05)


def test_a_tick_promotes_runs_and_reports(shop: Cli):  # H7
    shop("enqueue", "send_mail", "to=ann").ok()
    shop("enqueue", "broken").ok()
    shop("enqueue", "send_mail", "to=bob", "--delay", "1ms").ok()
    report = shop("tick", "--json").ok().json
    assert report["ok"] is True
    assert (report["claimed"], report["completed"], report["failed"], report["promoted"]) == (3, 2, 1, 1)
    assert shop("tick").ok().out == "0 jobs run\n"


def test_a_tick_runs_at_most_so_many(shop: Cli):  # H7
    for _ in range(3):
        shop("enqueue", "send_mail", "to=ann").ok()
    assert shop("tick", "--limit", "2").ok().out == "2 jobs run, 2 completed\n"
    shop("tick", "--limit", "0").usage_error("--limit")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["*"], ["*"]),
        (["mail/*,video"], ["mail/*", "video"]),
        (["mail/*", "video"], ["mail/*", "video"]),
        (["mail/*,video=2"], {"mail/*": 7, "video": 2}),
    ],
)
def test_queues_are_read_with_their_shares(texts, expected):
    assert read_queues(texts, 7) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--queues", "Not A Queue"), "must be a queue name"),
        (("--queues", "video=many"), "video=2"),
        (("--queues", ","), "no queue was named"),
        (("--concurrency", "0"), "--concurrency"),
        (("--processes", "0"), "--processes"),
        (("--process-slots", "0"), "--process-slots"),
        (("--tasks", "send_mial"), "did you mean 'send_mail'?"),
        (("--only", "send_mail"), "--only"),
        (("--max-memory", "0"), "--max-memory"),
        (("--write-process", "sometimes"), "--write-process"),
        (("--lease", "0s"), "more than 0"),
        (("--lease", "x"), "no duration"),
        (("--log", "xml"), "--log"),
        (("shop:app", "--app", "shop:app"), "given twice"),
        (("--burst", "--reload"), "leave one of them out"),
    ],
)
def test_a_worker_told_nonsense_does_not_start(shop: Cli, words, message):
    shop("work", *words).usage_error(message)


@pytest.mark.parametrize("options", [("--burst",), ("--burst", "--processes", "2", "--uvloop")])
def test_a_burst_ends_when_no_job_is_left(shop: Cli, workdir: Path, options: tuple[str, ...]):
    pytest.importorskip("uvloop")
    for number in range(3):
        shop("enqueue", "send_mail", f"to=a{number}").ok()
    (workdir / "which.py").write_text(
        "import asyncio\nfrom shop import app\n\n@app.task\nasync def loop() -> str:\n"
        "    return type(asyncio.get_running_loop()).__module__\n"
    )
    shop("enqueue", "loop", "--app", "which:app").ok()
    command = [sys.executable, "-m", "onward.cli", "work", "--app", "which:app", *options]
    done = subprocess.run(command, cwd=workdir, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    jobs = shop("jobs", "list", "--json").ok().json["jobs"]
    assert {job["status"] for job in jobs} == {"completed"}
    assert "no jobs left" in done.stderr
    (loop,) = [job["result"] for job in jobs if job["type"] == "loop"]
    assert loop.startswith("uvloop") == ("--uvloop" in options)


def test_a_worker_warns_of_queues_that_do_not_exist(shop: Cli, workdir: Path):
    shop("enqueue", "send_mail", "to=ann").ok()
    command = [sys.executable, "-m", "onward.cli", "work", "--app", "shop:app", "--burst", "--queues"]
    done = subprocess.run(
        [*command, "mial,mail,video/*,video/acme,other/*"],
        cwd=workdir,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    warnings = [line.partition("WARNING ")[2] for line in done.stderr.splitlines() if "does not exist" in line]
    assert len(warnings) == 2
    assert warnings[0].startswith("queue 'mial' does not exist and no task uses it: did you mean 'mail'?")
    assert warnings[1].startswith("queue 'other/*' does not exist")


def test_uvloop_is_asked_for_where_it_is_not_installed(shop: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    shop("work", "--uvloop").usage_error("pip install 'onward[uvloop]'")


def test_several_processes_are_not_started_for_an_app_that_cannot_be_imported(shop: Cli, workdir: Path):
    (workdir / "sick.py").write_text("raise RuntimeError('no settings')\n")
    shop("work", "--app", "sick", "--processes", "2").failed("importing sick failed")


def test_a_worker_process_imports_no_command_line():
    code = "import onward.cli.worker_command, sys; print(*{'typer', 'rich', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "\n"


def test_a_worker_command_arrives_as_it_was_given():
    settings = Settings(
        queues={"mail/*": 3},
        tasks=["send"],
        process_slots=2,
        lease=timedelta(milliseconds=1500),
        health_file="health",
        max_memory=2**30,
        write_process="always",
    )
    command = WorkerCommand(app="shop:app", processes=3, log_format="json", settings=settings)
    assert msgspec.json.decode(command.argv[-1], type=WorkerCommand) == command
    assert settings.given() == {
        "queues": {"mail/*": 3},
        "tasks": ["send"],
        "process_slots": 2,
        "lease": timedelta(milliseconds=1500),
        "health_file": Path("health"),
        "max_memory": 2**30,
        "write_process": "always",
    }


def test_an_app_that_breaks_after_the_start_is_told_in_the_log(workdir: Path):
    (workdir / "sick.py").write_text("raise RuntimeError('no settings')\n")
    command = WorkerCommand(app="sick:app", log_format="json")
    done = subprocess.run(command.argv, cwd=workdir, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    message = json.loads(done.stderr)
    assert message["level"] == "critical"
    assert "importing sick failed" in message["message"]


def test_a_worker_runs_jobs_and_stops_in_good_order(shop: Cli, spawn: Spawn):  # X3
    worker = spawn("work", "shop:app", "--log", "json", "--grace", "5s")
    result = shop("enqueue", "send_mail", "to=ann", "count=2", "--wait", "--timeout", "60s").ok()
    assert json.loads(result.out) == "2 to ann"
    failed = shop("enqueue", "broken", "--wait", "--timeout", "60s")
    failed.failed("ended as failed", "onward jobs show")
    message = shop("enqueue", "broken", "--wait", "--timeout", "60s", "--json")
    assert message.code == 1
    assert message.json["status"] == "failed"
    assert message.json["error"].startswith("DoNotRetry")
    shop("enqueue", "unheard_of", "--url", "sqlite:///jobs.db").ok()
    assert "1 worker here" in shop("health", "--worker").ok().out
    worker.terminate()
    out, err = worker.communicate(timeout=60)
    assert (worker.returncode, out) == (0, "")
    lines = [json.loads(line) for line in err.splitlines()]
    store = next(line for line in lines if line["message"] == "store")
    assert "survives a power cut" in store["durability"]
    assert {"worker started", "job completed", "worker stopped"} <= {line["message"] for line in lines}
    assert shop("workers", "--json").ok().json["workers"] == []


def test_a_warning_is_given_for_a_task_that_no_worker_has(shop: Cli, spawn: Spawn):
    spawn("work", "shop:app", "--queues", "mail")
    eventually(lambda: shop("workers", "--json").json["workers"], "a worker")
    result = shop("enqueue", "send_mial", "--queue", "mail", "--url", "sqlite:///jobs.db").ok()
    assert "did you mean 'send_mail'?" in result.err
    result = shop("enqueue", "send_mail", "to=ann", "--queue", "other").ok()
    assert "no worker serves the queue other" in result.err


def test_a_job_that_ends_its_process_does_not_end_a_lone_worker(shop: Cli, spawn: Spawn, workdir: Path):  # Counting
    (workdir / "deadly.py").write_text(
        "import os\n"
        "from onward import App\n"
        "app = App('sqlite:///deadly.db')\n"
        "@app.task\n"
        "def crash() -> None:\n"
        "    os._exit(0)\n"
        "@app.task\n"
        "def work() -> None: ...\n"
    )
    words = ("--app", "deadly", "--lease", "1s", "--leader-lease", "1s", "--log", "json")
    worker = spawn("work", *words, "-p", "1")
    shop("enqueue", "crash", "--app", "deadly").ok()
    dead = ("jobs", "list", "--app", "deadly", "--status", "dead_letter", "--json")
    eventually(lambda: shop(*dead).ok().json["jobs"], "the dead letter", seconds=90)
    shop("enqueue", "work", "--app", "deadly").ok()
    done = ("jobs", "list", "--app", "deadly", "--status", "completed", "--json")
    eventually(lambda: shop(*done).ok().json["jobs"], "the next job")
    worker.terminate()
    assert worker.wait(60) == 0


def test_several_processes_live_and_end_together(shop: Cli, spawn: Spawn):
    words = ("--processes", "2", "--queues", "mail,video/*=3", "--lease", "2s", "--health-file", "health")
    supervisor = spawn("work", "shop:app", *words)

    def workers() -> list[dict[str, object]]:
        listed: list[dict[str, object]] = shop("workers", "--json").ok().json["workers"]
        return listed

    eventually(lambda: len(workers()) == 2, "two workers")
    assert {worker["pool_size"] for worker in workers()} == {103}
    eventually(lambda: shop("health", "--file", "health").code == 0, "signs of life")
    assert "2 workers beat and poll" in shop("health", "--file", "health").ok().out
    victim = int(str(workers()[0]["id"]).split("-")[-2])
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: len([one for one in workers() if f"-{victim}-" not in str(one["id"])]) == 2, "a new worker")
    supervisor.send_signal(signal.SIGINT)
    supervisor.communicate(timeout=60)
    assert supervisor.returncode == 0


def test_a_changed_source_file_starts_the_worker_afresh(shop: Cli, spawn: Spawn, workdir: Path):
    reloader = spawn("work", "shop:app", "--reload")
    assert shop("enqueue", "send_mail", "to=ann", "--wait", "--timeout", "60s").ok().json == "1 to ann"
    (workdir / "shop.py").write_text("this is no python\n")
    eventually(
        lambda: not shop("workers", "--json", "--url", "sqlite:///jobs.db").json["workers"], "the broken worker's end"
    )
    (workdir / "shop.py").write_text(SHOP.replace("{count} to {to}", "again {count} to {to}"))
    assert shop("enqueue", "send_mail", "to=ann", "--wait", "--timeout", "60s").ok().json == "again 1 to ann"
    reloader.terminate()
    reloader.communicate(timeout=60)
    assert reloader.returncode == 0


def test_changes_are_seen_in_source_files_only(workdir: Path):
    (workdir / ".venv").mkdir()
    (workdir / "env").mkdir()
    (workdir / "env" / "pyvenv.cfg").touch()
    before = modification_times(workdir)
    for name in (".venv/a.py", "env/b.py", "notes.txt"):
        (workdir / name).touch()
    assert changes(before, modification_times(workdir)) == set()
    (workdir / "new.py").touch()
    assert changes(before, modification_times(workdir)) == {str(workdir / "new.py")}
    before = modification_times(workdir)
    os.utime(workdir / "shop.py", ns=(1, 1))
    (workdir / "new.py").unlink()
    assert changes(before, modification_times(workdir)) == {str(workdir / "new.py"), str(workdir / "shop.py")}
