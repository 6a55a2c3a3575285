"""Which store an App uses: given, configured, from the environment, from pyproject.toml, or overridden for a test."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from onward import App, InvalidValue, JobStatus, Unsupported
from onward.config import url_from
from onward.core import core_of
from onward.engine.capabilities import Feature, absent
from onward.engines.sqlite.engine import SQLiteEngine
from onward.project_file import ProjectSettings, project_settings
from onward.testing import ManualClock, assert_enqueued, drain, inline


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ONWARD_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def path_of(app: App) -> str:
    return str(core_of(app).engine.describe()["path"])


async def test_an_app_without_a_url_resolves_it_at_the_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # X1
    app = App()

    @app.schedule("@hourly")
    @app.task(queue="Mixed-Case", rate="600/min")  # which a foreign store might have
    async def send(to: str = "ann") -> None: ...

    assert "not resolved" in repr(app)
    with pytest.raises(InvalidValue, match=r"ONWARD_URL.*\[tool.onward\]"):
        await send.enqueue("ann")
    monkeypatch.setenv("ONWARD_URL", f"sqlite:///{tmp_path}/jobs.db")
    with pytest.raises(InvalidValue, match="Mixed-Case"):  # and this one cannot, whatever is asked of it
        await app.jobs.list()
    assert not core_of(app).is_bound


async def test_the_first_use_may_be_an_enqueue_a_listing_or_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONWARD_URL", f"sqlite:///{tmp_path}/jobs.db")
    for use in ("enqueue", "list", "tick", "sync"):
        app = App()

        @app.task
        async def send(to: str) -> None: ...

        match use:
            case "enqueue":
                await send.enqueue("ann")
            case "list":
                assert len((await app.jobs.list()).items) == 1
            case "tick":
                assert (await app.tick()).completed == 1
            case "sync":
                await asyncio.to_thread(send.sync.enqueue, "bob")
        assert path_of(app) == f"{tmp_path}/jobs.db"
        await app.close()


async def test_an_app_is_configured_before_its_first_use(tmp_path: Path):
    app = App()

    @app.task
    async def send(to: str) -> None: ...

    app.configure(url="sqlite:///first.db")
    app.configure(url=tmp_path / "second.db")
    await send.enqueue("ann")
    assert path_of(app) == f"{tmp_path}/second.db"
    with pytest.raises(InvalidValue, match=r"has opened its store.*override"):
        app.configure(url="sqlite:///third.db")
    await app.close()
    app.configure(url="sqlite:///third.db")
    assert Path(path_of(app)).name == "third.db"
    with pytest.raises(InvalidValue, match="give one"):
        app.configure()


def test_a_store_that_lacks_what_the_code_needs_is_refused_when_it_is_known(monkeypatch: pytest.MonkeyPatch):  # X1
    app = App()

    @app.schedule("@daily")
    @app.task
    async def report() -> None: ...

    known = SQLiteEngine().capabilities
    lacking = replace(known, features={**known.features, Feature.SCHEDULES: absent("no schedules in this test")})
    with monkeypatch.context() as patched:
        patched.setattr(SQLiteEngine, "capabilities", lacking)
        with pytest.raises(Unsupported, match="no schedules in this test"):
            app.configure(url="sqlite://")
    assert not core_of(app).is_bound
    app.configure(url="sqlite://")


def test_a_path_is_a_sqlite_file(tmp_path: Path):
    odd = tmp_path / "50% of ünïts?.db"
    assert path_of(App(odd)) == str(odd)
    assert Path(path_of(App(Path("jobs.db")))).name == "jobs.db"


def test_the_nearest_project_file_with_a_table_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pyproject.toml").write_text('[tool.onward]\nurl = "sqlite:///from-project.db"\napp = "shop:app"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    monkeypatch.chdir(inner)
    assert project_settings() == ProjectSettings(app="shop:app", url="sqlite:///from-project.db")
    assert url_from({}) == "sqlite:///from-project.db"
    assert url_from({"ONWARD_URL": "sqlite:///from-environment.db"}) == "sqlite:///from-environment.db"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[tool.onward]\nulr = "sqlite://"\n', "ulr"),
        ("[tool.onward]\nurl = 3\n", "int"),
        ("[tool.onward\n", "cannot be read"),
        ('tool = "x"\n', "cannot be read"),
    ],
)
def test_a_project_file_that_is_wrong_is_refused_by_name(tmp_path: Path, text: str, message: str):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InvalidValue, match=message) as refusal:
        App().capabilities  # noqa: B018 - the use that resolves the URL
    assert "pyproject.toml" in str(refusal.value)


# Overriding the store in a test


async def test_within_an_override_an_app_uses_another_store(tmp_path: Path):
    app = App(tmp_path / "real.db")
    clock = ManualClock()

    @app.task
    async def send(to: str) -> str:
        return to

    await send.enqueue("real")
    async with app.override(clock=clock):
        handle = await send.using(delay=3600).enqueue("ann")
        await assert_enqueued(app, send, count=1, arguments={"to": "ann"})
        assert (await drain(app, until_idle=True)).completed == 1
        assert await handle.result() == "ann"
        temporary = path_of(app)
    assert not Path(temporary).exists()  # noqa: ASYNC240 - one look
    assert [job.payload for job in (await app.jobs.list()).items] == [{"to": "real"}]
    assert core_of(app).clock is None
    await app.close()


def test_an_override_goes_without_an_event_loop_and_needs_no_url():
    app = App()

    @app.task
    def send(to: str) -> str:
        return to

    with app.override():
        with inline(app):
            handle = send.sync.enqueue("ann")
        assert handle.info().status is JobStatus.COMPLETED
        seen: list[str] = []
        thread = threading.Thread(target=lambda: seen.append(path_of(app)))
        thread.start()
        thread.join()
        assert seen == [path_of(app)]  # for all threads
        with app.override(url="sqlite:///inner.db"):
            assert Path(path_of(app)).name == "inner.db"
        assert seen == [path_of(app)]
    assert not core_of(app).is_bound
    assert not Path(seen[0]).exists()


async def test_an_override_ends_with_an_exception_too():
    app = App()
    override = app.override()
    with pytest.raises(ValueError, match="mine"):
        async with override:
            raise ValueError("mine")
    assert not core_of(app).is_bound
    with pytest.raises(InvalidValue, match="names no engine"), app.override(url="nosuch://x"):
        pass
    with pytest.raises(RuntimeError, match="not been entered"):
        override.__exit__(None, None, None)


async def test_payloads_are_read_as_the_store_in_use_says():
    app = App("redis://localhost")  # where other programs may add keys of their own

    @app.task
    async def send(to: str) -> None: ...

    def ignores_unknown() -> bool:
        return app.tasks["send"]._handler.arguments.ignores_unknown

    before = ignores_unknown()
    async with app.override():
        within = ignores_unknown()
    assert (before, within, ignores_unknown()) == (True, False, True)
