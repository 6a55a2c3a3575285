from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import SHOP, Cli


def test_an_app_is_named_by_module_and_name(cli: Cli):
    for named in ("shop:app", "shop", "shop.py", "shop.py:app", "./shop.py:app"):
        cli("enqueue", "send_mail", "to=ann", "--app", named).ok()


def test_an_app_in_a_package_is_found(cli: Cli, workdir: Path):
    (workdir / "pack").mkdir()
    (workdir / "pack" / "inner.py").write_text(SHOP)
    cli("enqueue", "send_mail", "to=ann", "--app", "pack.inner:app").ok()
    cli("enqueue", "send_mail", "to=ann", "--app", "pack/inner.py:app").ok()


def test_options_come_before_the_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch):  # X1
    monkeypatch.setenv("ONWARD_URL", "sqlite:///other.db")
    monkeypatch.setenv("ONWARD_APP", "shop:app")
    assert "jobs.db" in cli("migrate").ok().out
    assert "third.db" in cli("migrate", "--url", "sqlite:///third.db").ok().out
    monkeypatch.delenv("ONWARD_APP")
    assert "other.db" in cli("migrate").ok().out


def test_an_app_without_a_url_takes_the_one_given(cli: Cli, workdir: Path):
    (workdir / "open_shop.py").write_text(SHOP.replace('App("sqlite:///jobs.db")', "App()"))
    words = ("--app", "open_shop:app", "--url", "sqlite:///given.db")
    cli("enqueue", "send_mail", "to=ann", *words).ok()
    assert "1 job run" in cli("tick", *words).ok().out
    assert (workdir / "given.db").exists()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("shopp:app", "did you mean 'shop'?"),
        ("shop:aap", "did you mean 'app'?"),
        ("shop:other", "is a int, not an onward.App"),
        ("no.such.place:app", "there is no module 'no'"),
        (":app", "names no app"),
    ],
)
def test_an_app_that_is_not_there_is_answered_with_what_is(cli: Cli, named, message):
    cli("jobs", "list", "--app", named).usage_error(message)


def test_an_app_that_cannot_be_imported_is_told_with_its_place(cli: Cli, workdir: Path):
    (workdir / "sick.py").write_text("import shop\n\nraise RuntimeError('no settings')\n")
    cli("tick", "--app", "sick").failed(
        "importing sick failed: RuntimeError: no settings", "sick.py, line 3", "--debug"
    )
    (workdir / "needy.py").write_text("import not_installed_anywhere\n")
    cli("tick", "--app", "needy").failed("importing needy failed: ModuleNotFoundError", "not_installed_anywhere")
    (workdir / "leaving.py").write_text("raise SystemExit(0)\n")
    cli("tick", "--app", "leaving").failed("importing leaving failed: SystemExit")


def test_debug_shows_the_traceback(cli: Cli, workdir: Path):
    (workdir / "sick.py").write_text("raise RuntimeError('no settings')\n")
    result = cli("tick", "--app", "sick", "--debug")
    assert result.code == 1
    assert "Traceback" in result.err
    assert "RuntimeError: no settings" in result.err


def test_neither_app_nor_url_is_answered_with_both_ways(cli: Cli):
    cli("jobs", "list").usage_error("which store?", "--url", "ONWARD_APP")
    for words in (("work",), ("tick",)):
        cli(*words, "--url", "sqlite:///jobs.db").usage_error("which app?", "ONWARD_APP")


def test_an_app_that_names_its_store_cannot_be_given_another(cli: Cli):
    cli("tick", "--app", "shop", "--url", "sqlite:///another.db").usage_error("names its own store", "leave --url out")


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("redis://me:secret@localhost:1/0", 3, "start Redis"),
        ("sqlit:///jobs.db", 2, "did you mean sqlite://?"),
        ("jobs.db", 2, "must be a URL"),
        ("sqlite:///no/such/folder/jobs.db", 3, "the folder"),
    ],
)
def test_a_store_that_cannot_be_opened_is_told_with_the_remedy(cli: Cli, url, code, message):
    result = cli("migrate", "--url", url).failed(message, code=code)
    assert "secret" not in result.err


def test_what_an_engine_cannot_do_is_refused_with_its_reason(cli: Cli, workdir: Path):  # X1
    (workdir / "limited.py").write_text(
        "from dataclasses import replace\n"
        "from onward import App\n"
        "from onward.engine.capabilities import Feature, absent\n"
        "from onward.engines.sqlite.engine import CAPABILITIES, SQLiteEngine\n"
        "lacks = {feature: absent('its store has no such thing') for feature in (Feature.PAUSE, Feature.LOG_LINES)}\n"
        "class Limited(SQLiteEngine):\n"
        "    capabilities = replace(CAPABILITIES, features={**CAPABILITIES.features, **lacks})\n"
        "app = App(engine=Limited('jobs.db'))\n"
        "@app.task\n"
        "def note() -> None: ...\n"
    )
    on = ("--app", "limited")
    id = cli("enqueue", "note", *on).ok().out.strip()
    cli("queues", "pause", "default", *on).failed("does not offer pause", "its store has no such thing")
    assert cli("queues", "list", "--json", *on).ok().json["queues"][0]["settings"]["paused"] is False
    assert "1 completed" in cli("tick", *on).ok().out
    assert cli("jobs", "show", id, "--json", *on).ok().json["log"] == []


def test_a_file_that_is_no_database_is_told(cli: Cli, workdir: Path):
    (workdir / "text.db").write_text("not a database, " * 100)
    cli("jobs", "list", "--url", "sqlite:///text.db").unreachable("not an SQLite database", "try:")


FACTORY = (
    SHOP.replace('app = App("sqlite:///jobs.db")', "from onward import Tasks\n\napp = Tasks()")
    + """

def create_app() -> App:
    made = App("sqlite:///made.db")
    made.include(app)
    return made

def create_nothing() -> int:
    return 3

def create_failing() -> App:
    raise RuntimeError("no settings")
"""
)


def test_an_app_is_made_by_a_factory(cli: Cli, workdir: Path):  # X1
    (workdir / "made_shop.py").write_text(FACTORY)
    words = ("--app", "made_shop:create_app()")
    cli("enqueue", "send_mail", "to=ann", *words).ok()
    assert "1 job run, 1 completed" in cli("tick", *words).ok().out
    assert (workdir / "made.db").exists()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("create_app", "--app 'made_shop:create_app()'"),
        ("create_nothing()", "is a int, not an onward.App"),
        ("create_app2()", "has no 'create_app2()'"),
        ("other()", "is not a function"),
    ],
)
def test_a_factory_that_makes_no_app_is_refused(cli: Cli, workdir: Path, named: str, message: str):
    (workdir / "made_shop.py").write_text(FACTORY)
    cli("tick", "--app", f"made_shop:{named}").usage_error(message)


def test_a_factory_that_fails_is_told_with_its_place(cli: Cli, workdir: Path):
    (workdir / "made_shop.py").write_text(FACTORY)
    cli("tick", "--app", "made_shop:create_failing()").failed(
        "made_shop:create_failing() failed: RuntimeError: no settings", "made_shop.py, line"
    )


def test_the_project_file_names_app_and_store(cli: Cli, workdir: Path, monkeypatch: pytest.MonkeyPatch):  # X1
    (workdir / "pyproject.toml").write_text('[tool.onward]\napp = "shop:app"\n')
    cli("enqueue", "send_mail", "to=ann").ok()
    (workdir / "inner").mkdir()
    monkeypatch.syspath_prepend(str(workdir))
    assert "1 job run" in cli("tick").ok().out
    assert "jobs.db" in cli("migrate").ok().out
    monkeypatch.setenv("ONWARD_APP", "nowhere:app")  # the environment comes before the file
    cli("tick").usage_error("there is no module 'nowhere'")
    monkeypatch.delenv("ONWARD_APP")
    (workdir / "pyproject.toml").write_text('[tool.onward]\nurl = "sqlite:///of-project.db"\n')
    assert "of-project.db" in cli("migrate").ok().out
    (workdir / "pyproject.toml").write_text('[tool.onward]\napi = "shop:app"\n')
    cli("migrate").usage_error("api", "[tool.onward] has app and url")
