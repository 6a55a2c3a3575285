"""Names, payloads, errors and arguments that would steer a terminal, through every command that shows them (X6)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onward import App, NewJob
from tests.cli.conftest import Cli
from tests.cli.test_usage import STEERING

PROGRAM = f"""
from onward import App, JobContext

app = App("sqlite:///jobs.db")

@app.task(name={STEERING!r})
def hostile(context: JobContext, x: str) -> None:
    context.log(x)
    context.set_progress(5, x)
    raise ValueError(x)

@app.task
def polite(x: str) -> str:
    return x
"""
COMMANDS = [
    ("jobs", "list"),
    ("jobs", "list", "--type", STEERING),
    ("jobs", "list", "--queue", STEERING),
    ("jobs", "list", "--status", STEERING),
    ("jobs", "list", "--url", f"sqlite:///{STEERING}.db"),
    ("jobs", "list", "--url", f"postgresql://u:{STEERING}@127.0.0.1:1/x"),
    ("jobs", "show", STEERING),
    ("jobs", "cancel", STEERING),
    ("dead", "list"),
    ("dead", "replay", STEERING),
    ("archive", "list"),
    ("queues", "list"),
    ("queues", "pause", STEERING),
    ("batches", "graph", STEERING),
    ("schedules", "run", STEERING),
    ("usage", "--by", "type"),
    ("metrics",),
    ("top", "--once"),
    ("doctor",),
    ("explain", STEERING),
    ("enqueue", STEERING, f"x={STEERING}"),
    ("enqueue", "polite", f"{STEERING}=1"),
    (STEERING,),
]


@pytest.fixture
def hostile(shop: Cli, workdir: Path, on_store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs that ran, failed, and have no task; all their text is hostile."""
    (workdir / "hostile.py").write_text(PROGRAM)
    monkeypatch.setenv("ONWARD_APP", "hostile:app")

    async def fill(app: App) -> list[str]:
        payload = json.dumps({"x": STEERING})
        types = (STEERING, "polite", f"nobody{STEERING}")
        handles = await app.enqueue_many([NewJob(type=each, payload=payload, org_id=STEERING) for each in types])
        return [handle.id for handle in handles]

    ids: list[str] = on_store(fill)
    report = shop("tick", "--json").ok().json
    assert (report["completed"], report["retried"], report["snoozed"]) == (1, 1, 1)
    return ids


@pytest.mark.parametrize("format", [(), ("--json",)], ids=["text", "json"])
def test_no_command_lets_text_of_strangers_steer_a_terminal(shop: Cli, hostile: list[str], format):  # X6
    of_jobs = [words for id_ in hostile for words in (("jobs", "show", id_), ("explain", id_))]
    for words in [*of_jobs, *COMMANDS]:
        result = shop(*words, *format)
        assert "bug in Onward" not in result.err, words
        for text in (result.out, result.err):
            assert all(line.isprintable() for line in text.split("\n")), (words, text)
