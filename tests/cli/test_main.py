from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from onward.cli import completion, output
from onward.cli.errors import to_command_error
from onward.cli.main import onward
from onward.errors import StoreUnavailable
from tests.cli.conftest import Cli

COMMANDS = [
    "work", "tick", "enqueue", "jobs", "queues", "schedules", "batches", "dead", "archive", "top", "explain", "workers",
    "usage", "metrics", "doctor", "health", "migrate", "demo", "bench", "version", "serve", "dev",
]  # fmt: skip


def test_help_names_every_command_and_imports_no_driver_and_no_app(workdir):
    (workdir / "loud.py").write_text("raise SystemExit('the app was imported')\n")
    code = (
        "import sys\n"
        "from onward.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(*(name for name in sys.modules if name.split('.')[0] in {'sqlite3', 'psycopg', 'redis'}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"],
        env={"ONWARD_APP": "loud:app", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    *help, drivers = done.stdout.split("\n")[:-1]
    assert drivers == ""
    for command in COMMANDS:
        assert any(line.split()[:1] == [command] for line in help)


def test_exit_codes_say_what_went_wrong(shop: Cli, workdir):
    (workdir / "text.db").write_text("not a database, " * 100)
    codes = {
        0: [("jobs", "list"), ("--help",), ("doctor",)],
        1: [
            ("jobs", "show", "nope"),
            ("jobs", "cancel", "nope"),
            ("queues", "pause", "nope"),
            ("queues", "configure", "nope", "--weight", "2"),
            ("batches", "show", "nope"),
            ("schedules", "show", "nope"),
            ("health", "--worker"),
            ("migrate", "--check", "--url", "sqlite:///nope.db"),
        ],
        2: [
            ("nope",),
            ("jobs", "list", "--nope"),
            ("jobs", "list", "--status", "nope"),
            ("jobs", "cancel"),
            ("queues", "configure", "mail", "--rate", "often"),
            ("jobs", "list", "--url", "nope://x"),
        ],
        3: [
            ("jobs", "list", "--url", "sqlite:///nope.db"),
            ("jobs", "list", "--url", "sqlite:///text.db"),
            ("doctor", "--url", "sqlite:///text.db"),
            ("health", "--url", "sqlite:///text.db"),
            ("jobs", "list", "--url", "postgresql:///jobs?host=/nowhere"),
            ("jobs", "list", "--url", "redis://localhost:1/0"),
        ],
    }
    for code, commands in codes.items():
        for words in commands:
            result = shop(*words)
            assert result.code == code, (words, result)
            assert "Traceback" not in result.err
    assert "0 ok, 1 failed or not found, 2 wrong usage, 3 store unreachable" in " ".join(shop("--help").out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(cli: Cli, command):
    assert "Usage: onward " in cli(command, "--help").ok().out
    assert "Usage: onward " in cli(command, "-h").ok().out


def test_the_version_is_told(cli: Cli):
    assert cli("version").ok().out.startswith("onward 0.")
    assert cli("--version").ok().out == cli("version").ok().out


@pytest.mark.parametrize(
    "words", [("nope",), ("jobs", "nope"), ("jobs", "list", "--nope"), ("jobs", "show"), ("version", "x")]
)
def test_what_is_no_command_is_refused(cli: Cli, words):
    cli(*words).usage_error("Error")


def test_colour_is_for_terminals_only(shop: Cli, monkeypatch: pytest.MonkeyPatch):
    shop("enqueue", "broken").ok()
    for words in (("jobs", "list"), ("queues", "list"), ("doctor",), ("top", "--once"), ("jobs", "show", "nope")):
        result = shop(*words)
        assert "\x1b" not in result.out + result.err


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert output.stdout().color_system is not None
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.stdout().no_color


def test_text_of_strangers_is_shown_not_sent():
    assert output.escape("a\x1b[2Jb\r\nc\u202e") == "a\\x1b[2Jb\\r\\nc\\u202e"
    assert output.escape("grüße 日本") == "grüße 日本"
    assert output.escape_lines("one\ntwo\x07") == "one\ntwo\\x07"


def test_a_bug_is_called_one_without_a_traceback(shop: Cli, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a surprise")

    monkeypatch.setattr("onward.cli.jobs.show_page", broken)
    result = shop("jobs", "list")
    assert result.code == 1
    assert "RuntimeError: a surprise" in result.err
    assert "bug in Onward" in result.err
    assert "Traceback" not in result.err
    assert "Traceback" in shop("jobs", "list", "--debug").err


@pytest.mark.parametrize(
    ("engine", "start"), [("PostgreSQL", "pg_ctl start"), ("BullMQ", "redis-server"), ("SQLite", "doctor")]
)
def test_an_unreachable_store_is_answered_with_what_to_start(engine, start):
    error = to_command_error(StoreUnavailable("no answer"), engine)
    assert (error.code, error.cause) == (3, "no answer")
    assert start in error.remedy


def test_of_a_store_that_is_there_nobody_is_told_to_start_it():
    error = to_command_error(StoreUnavailable("no such database", remedy="createdb shop"), "PostgreSQL")
    assert (error.cause, error.remedy) == ("no such database", "createdb shop")


def complete(*words: str) -> list[str]:
    """Press the tab key behind some words."""
    typed = " ".join(("onward", *words))
    environment = {"_ONWARD_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words))}
    return CliRunner().invoke(onward, [], env=environment, prog_name="onward").stdout.split()


def test_queues_tasks_and_statuses_are_completed(shop: Cli):
    shop("enqueue", "send_mail", "to=ann").ok()
    assert complete("jobs", "list", "--status", "dead") == ["dead_letter"]
    assert complete("queues", "pause", "ma") == ["mail"]
    assert complete("enqueue", "send") == ["send_mail"]


def test_completion_is_silent_where_it_knows_nothing(cli: Cli, workdir):
    assert complete("queues", "pause", "ma") == []
    assert completion.statuses()
    assert not list(workdir.glob("*.db"))


@pytest.mark.parametrize(
    "group",
    ["", "jobs", "queues", "schedules", "batches", "dead", "archive", "tokens", "bench"],
    ids=lambda group: group or "onward",
)
def test_no_help_text_is_cut_at_eighty_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch, group: str):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    lines = cli(*([group] if group else []), "--help").ok().out.splitlines()
    assert [line for line in lines if line.endswith(("...", "…")) and "Usage:" not in line] == []
