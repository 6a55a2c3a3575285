"""Every command that changes something leaves a record as ``cli:user@host`` (S5)."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import typer.main

from onward import App, NewJob, Retention
from onward.cli.main import onward
from onward.core import core_of
from onward.engine.values import WorkerInfo
from onward.service.identity import of_command_line
from onward.service.operations import OPERATIONS
from tests.cli.conftest import Cli

OnStore = Callable[[Callable[[App], Awaitable[Any]]], Any]

CHANGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "enqueue": ("jobs.enqueue", ("send_mail", "to=ann")),
    "tick": ("tick.run", ("--limit", "1")),
    "jobs edit": ("jobs.edit", ("{waits}", "--priority", "3")),
    "jobs cancel": ("jobs.cancel", ("{waits}",)),
    "jobs replay": ("jobs.replay", ("{waits}",)),
    "jobs delete": ("jobs.delete", ("{waits}",)),
    "queues pause": ("queues.pause", ("mail", "--yes")),
    "queues resume": ("queues.resume", ("mail", "--yes")),
    "queues configure": ("queues.configure", ("mail", "--weight", "3")),
    "schedules set": ("schedules.set", ("nightly", "send_mail", "to=ann", "--every", "1h")),
    "schedules pause": ("schedules.pause", ("nightly",)),
    "schedules resume": ("schedules.resume", ("nightly",)),
    "schedules run": ("schedules.run", ("nightly",)),
    "schedules delete": ("schedules.delete", ("nightly", "--yes")),
    "batches pause": ("batches.pause", ("cards",)),
    "batches resume": ("batches.resume", ("cards",)),
    "batches seal": ("batches.seal", ("cards",)),
    "batches cancel": ("batches.cancel", ("cards", "--yes")),
    "batches delete": ("batches.delete", ("cards", "--yes")),
    "dead replay": ("dead.replay", ("{dead}",)),
    "dead purge": ("dead.purge", ("{buried}",)),
    "archive purge": ("archive.purge", ("--all", "--yes")),
    "workers quiet": ("workers.quiet", ("w-1",)),
    "workers resume": ("workers.resume", ("w-1",)),
    "workers stop": ("workers.stop", ("w-1", "--yes")),
    "tokens create": ("tokens.create", ("ci",)),
    "tokens revoke": ("tokens.revoke", ("{token}",)),
}
IN_STEPS = {"batches cancel", "archive purge"}
"""Commands that go through many jobs in steps, with a record for each step."""
NO_RECORD = {
    "migrate": "the schema, not what is in it",
    "work": "a worker is a program: its runs are history, not changes by a person",
    "serve": "its requests leave records",
    "dev": "its requests leave records",
    "plugin": "leaves a record where the plug-in says that a command changes something",
    "demo": "a store of its own",
    "version": "no store",
    "doctor": "reads; --confirm-restore says where the store is, and is not about jobs",
}
READS = {
    "top", "explain", "usage", "metrics", "audit", "health", "capabilities", "jobs list", "jobs count", "jobs show",
    "jobs export", "queues list", "schedules list", "schedules show", "batches list", "batches show", "batches graph",
    "dead list", "dead count", "archive list", "archive count", "archive show", "workers list", "tokens list",
}  # fmt: skip


def commands() -> set[str]:
    """Every command, as it is typed; ``bench`` has stores of its own."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[str]:
        if not hasattr(command, "commands"):
            yield " ".join(words)
            return
        for name, inner in command.commands.items():
            yield from walk(inner, (*words, name))

    return {name for name in walk(typer.main.get_command(onward), ()) if not name.startswith("bench")}


def test_every_command_is_known_to_change_something_or_not():  # S5
    assert commands() == CHANGES.keys() | NO_RECORD.keys() | READS
    assert {action for action, _ in CHANGES.values()} <= {name for name, one in OPERATIONS.items() if one.changes}


@pytest.fixture
def names(shop: Cli, on_store: OnStore) -> dict[str, str]:
    async def fill(app: App) -> dict[str, str]:
        @app.task
        def doomed() -> None:
            raise ValueError("never")

        @app.task(queue="old")
        def short() -> None:
            pass

        await app.queues.configure("old", retention=Retention(completed_count=0))
        dead = [await doomed.using(max_attempts=1).enqueue() for _ in range(2)]
        await short.enqueue()
        await app.tick()
        await app.tick()
        later = NewJob(type="send_mail", payload='{"to": "eve"}', delay=timedelta(hours=1))
        await app.batch("cards", queue="cards").add([later])
        worker = WorkerInfo(id="w-1", hostname="here", pool_size=1, version="1")
        await core_of(app).engine.heartbeat(worker, [])
        (waits,) = await app.enqueue_many([later])
        return {"waits": waits.id, "dead": dead[0].id, "buried": dead[1].id}

    return dict(on_store(fill))


def records(shop: Cli) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shop("audit", "--limit", "200", "--json").ok().json["records"]
    return found


def test_every_change_by_command_leaves_a_record_of_its_author(shop: Cli, names: dict[str, str]):  # S5
    names["token"] = shop("tokens", "create", "old", "--json").ok().json["token"]["id"]
    wrong = []
    for command, (action, words) in CHANGES.items():
        before = {one["id"] for one in records(shop)}
        shop(*command.split(), *(word.format(**names) for word in words)).ok()
        made = [(one["actor"], one["role"], one["action"]) for one in records(shop) if one["id"] not in before]
        expected = [(of_command_line().actor, "admin", action)]
        if made != expected and not (command in IN_STEPS and set(made) == set(expected)):
            wrong.append(f"{command}: {made}")
    assert wrong == []


def test_what_a_handler_enqueues_in_a_tick_is_not_the_callers(shop: Cli, workdir):  # S5
    (workdir / "nested.py").write_text(
        'from onward import App\napp = App("sqlite:///jobs.db")\n'
        "@app.task\nasync def inner() -> None: ...\n"
        "@app.task\nasync def outer() -> None:\n    await inner.enqueue()\n"
    )
    shop("enqueue", "outer", "--app", "nested:app").ok()
    del sys.modules["nested"]  # as in another process
    shop("tick", "--app", "nested:app").ok()
    assert [one["action"] for one in records(shop)] == ["tick.run", "jobs.enqueue"]


def test_a_change_that_is_refused_leaves_no_record(shop: Cli, names: dict[str, str]):  # S5
    shop("jobs", "edit", names["waits"]).usage_error("nothing to change")
    shop("jobs", "edit", names["waits"], "--payload", "7").usage_error("no JSON object")
    shop("jobs", "edit", names["waits"], "--payload", '{"nobody": 1}').failed("nobody", code=2)
    shop("workers", "quiet", "w-2").failed("there is no worker w-2", "onward workers list")
    shop("enqueue", "send_mail", "nobody=1").usage_error("nobody")
    assert records(shop) == []
