"""The guides of the HTTP API: every file is written, every command is run, and every answer is compared."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from onward.service.identity import GRANTABLE, ROLES, Permission
from onward.service.redaction import DEFAULT_KEYS

GUIDES = Path(__file__).parent.parent.parent / "docs" / "guides"
PAGES = ("http", "mounting", "security", "serverless")
_FILE = re.compile(r"^```python (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT = re.compile(r"\b830\d\b")
_MARK = "--- next command ---"
# What differs from run to run.
_VARYING = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "<day>"),
    (re.compile(r"\b0-0-\d{16}-\d+-\d+"), "<cursor>"),
    (re.compile(r" +"), " "),
)


@pytest.mark.timeout(180)
@pytest.mark.skipif(shutil.which("curl") is None, reason="the commands use curl")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_guide_answer_as_shown(page: str, tmp_path: Path) -> None:
    text = (GUIDES / f"{page}.md").read_text()
    if "fastapi" in text:
        pytest.importorskip("fastapi")
    ports = {port: str(_free_port()) for port in sorted(set(_PORT.findall(text)))}
    for name, content in _FILE.findall(text):
        (tmp_path / name).write_text(content)
    steps = [step for block in _CONSOLE.findall(text) for step in _steps(block)]
    answers = _run([_PORT.sub(lambda found: ports[found[0]], command) for command, _ in steps], tmp_path)
    assert len(answers) == len(steps)
    for (command, shown), answer in zip(steps, answers, strict=True):
        expected = ".*".join(map(re.escape, _steady(shown).split("…")))
        assert re.fullmatch(expected, _steady(answer), re.DOTALL), f"{command}\n{answer}"


def test_the_guide_has_the_table_of_roles() -> None:  # S3
    rows = [
        "| "
        + " | ".join(
            [
                f"`{one}`",
                *("yes" if one in permissions else "" for permissions in ROLES.values()),
                "yes" if one in GRANTABLE else "",
            ]
        )
        + " |"
        for one in Permission
    ]
    page = (GUIDES / "security.md").read_text()
    assert "| permission | " + " | ".join(ROLES) + " | can be granted |" in page
    assert "\n".join(rows) in re.sub(r" \| [^|\n]* \|$", " |", page, flags=re.MULTILINE)


def test_the_guide_names_the_keys_that_are_redacted() -> None:  # S6
    page = " ".join((GUIDES / "security.md").read_text().split())
    assert ", ".join(f"`{key}`" for key in DEFAULT_KEYS) in page


def _steps(block: str) -> list[tuple[str, str]]:
    """Read a block: commands begin with ``$``, and the lines up to the next one are the answer."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def _run(commands: list[str], folder: Path) -> list[str]:
    lines = ["trap 'kill $(jobs -p)' EXIT"]
    for command in commands:
        if command.endswith("&"):
            port = re.findall(r"--port (\d+)", command)[0]
            lines.append(f"{command[:-1]} >server-{port}.log 2>&1 &")
            lines.append(f"until (: </dev/tcp/127.0.0.1/{port}) 2>/dev/null; do kill -0 $! || exit 1; sleep 0.1; done")
        else:
            lines.append(command)
        lines.append(f"echo; echo '{_MARK}'")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", "\n".join(lines)],
        cwd=folder,
        env={
            **os.environ,
            "PATH": path,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            output, _ = shell.communicate(timeout=150)
        except BaseException:
            os.killpg(shell.pid, signal.SIGKILL)
            raise
    return output.split(f"{_MARK}\n")[:-1]


def _steady(text: str) -> str:
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
