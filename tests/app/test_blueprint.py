"""Tasks without an App: declared in a blueprint, included later."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from onward import App, InvalidValue, JobContext, JobStatus, Tasks, Unsupported
from onward.engine.capabilities import Feature, absent
from onward.engines.sqlite.engine import SQLiteEngine
from onward.testing import ManualClock, assert_enqueued, drain

SQLITE = SQLiteEngine().capabilities


async def test_a_blueprint_gives_its_tasks_a_prefix_and_a_queue(app: App):  # X1
    tasks = Tasks(prefix="mail", queue="mail/{org_id}")

    @tasks.task
    async def send(to: str) -> str:
        return to.upper()

    @tasks.task(queue="bulk", name="newsletter")
    def write(context: JobContext, count: int) -> int:
        return count + context.attempt

    app.include(tasks)
    assert list(app.tasks) == ["mail.send", "mail.newsletter"]
    sent = await send.using(org_id="acme").enqueue(to="ann")
    written = await write.enqueue(2)
    assert (sent.ref.queue, written.ref.queue) == ("mail/acme", "bulk")
    assert (await drain(app)).completed == 2
    assert (await sent.result(), await written.result()) == ("ANN", 3)
    assert (await send("bob"), write(5)) == ("BOB", 6)


async def test_before_it_is_included_a_task_can_be_called_and_not_enqueued(app: App):  # X1
    tasks = Tasks(prefix="mail")

    @tasks.task
    async def send(to: str) -> str:
        return to

    urgent = send.using(priority=5)
    assert await send("ann") == "ann"
    assert send.job("ann").type == "mail.send"
    with pytest.raises(InvalidValue, match=r"app\.include"):
        await send.enqueue("ann")
    app.include(tasks)
    handle = await urgent.enqueue("ann")  # a copy that was made before knows the App too
    assert (await handle.info()).priority == 5


async def test_tasks_and_schedules_that_come_after_the_include_are_added(app: App):
    tasks = Tasks(prefix="report")
    app.include(tasks)
    app.include(tasks)

    @tasks.schedule("@daily", arguments={"days": 1})
    @tasks.task
    async def daily(days: int) -> None: ...

    assert list(app.tasks) == ["report.daily"]
    await app.tick()
    assert [(schedule.name, str(schedule.trigger)) for schedule in await app.schedules.list()] == [
        ("report.daily", "0 0 * * *")
    ]
    with pytest.raises(InvalidValue, match="taken"):
        tasks.task(name="daily")(lambda: None)


async def test_a_name_that_is_taken_refuses_the_whole_blueprint(app: App):
    @app.task(name="mail.send")
    async def other() -> None: ...

    tasks = Tasks(prefix="mail")

    @tasks.task
    async def write() -> None: ...

    @tasks.task
    async def send() -> None: ...

    with pytest.raises(InvalidValue, match=r"taken by .*other"):
        app.include(tasks)
    assert list(app.tasks) == ["mail.send"]
    with pytest.raises(InvalidValue, match=r"onward\.Tasks"):
        app.include(app)  # type: ignore[arg-type]


async def test_of_several_apps_the_last_one_gets_the_jobs(clock: ManualClock):
    tasks = Tasks()

    @tasks.task
    async def send(to: str) -> None: ...

    async with App("sqlite://", clock=clock) as first, App("sqlite://", clock=clock) as second:
        first.include(tasks)
        second.include(tasks)
        await send.enqueue("ann")
        await assert_enqueued(second, send, count=1)
        await first.tasks["send"].enqueue("bob")
        await assert_enqueued(first, send, count=1, arguments={"to": "bob"})


def test_what_a_blueprint_needs_and_the_store_lacks_is_refused_when_it_is_included(
    monkeypatch: pytest.MonkeyPatch,
):  # X1
    tasks = Tasks()

    @tasks.task(rate="10/min")
    async def send() -> None: ...

    lacking = replace(SQLITE, features={**SQLITE.features, Feature.RATE: absent("no rates in this test")})
    monkeypatch.setattr(SQLiteEngine, "capabilities", lacking)
    app = App("sqlite://")
    with pytest.raises(Unsupported, match="no rates in this test"):
        app.include(tasks)
    assert list(app.tasks) == []


def test_bad_names_are_refused():
    with pytest.raises(InvalidValue, match="prefix"):
        Tasks(prefix=" ")
    with pytest.raises(InvalidValue, match="queue"):
        Tasks(queue="{user}")
    with pytest.raises(TypeError, match="'quee'"):
        Tasks().task(quee="mail")  # type: ignore[call-overload]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    root = tmp_path / "found_shop"
    for folder in (root, root / "mail", root / "billing", root / "billing" / "tasks"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    text = "from onward import Tasks\n\n{0} = Tasks(prefix='{0}')\n\n@{0}.task\ndef run() -> None: ...\n"
    (root / "mail" / "tasks.py").write_text(text.format("mail"))
    (root / "mail" / "other.py").write_text("raise RuntimeError('not a module of tasks')\n")
    (root / "billing" / "tasks" / "invoices.py").write_text(text.format("invoices"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "found_shop"
    for name in [name for name in sys.modules if name.partition(".")[0] == "found_shop"]:
        del sys.modules[name]


def test_modules_called_tasks_are_discovered_at_any_depth(app: App, package: str):
    assert len(app.discover(package)) == 2
    assert sorted(app.tasks) == ["invoices.run", "mail.run"]
    app.discover(f"{package}.mail.tasks")  # again, by the name of the module
    assert len(app.tasks) == 2
    with pytest.raises(InvalidValue, match="no module called 'jobs'"):
        app.discover(package, module="jobs")
    with pytest.raises(RuntimeError, match="not a module of tasks"):
        app.discover(package, module="other")


def test_a_package_that_cannot_be_imported_is_not_passed_over(app: App, package: str, tmp_path: Path):
    (tmp_path / package / "mail" / "__init__.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        app.discover(package)


async def test_a_job_of_a_discovered_task_is_run(app: App, package: str):
    app.discover(package)
    handle = await app.tasks["mail.run"].enqueue()
    await drain(app)
    assert (await handle.info()).status is JobStatus.COMPLETED
