"""Every example in the README and the docs is run, as it stands: the blocks of a page one after the other."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

from onward import App
from onward.service.operations import OPERATIONS

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
EXAMPLES = {page: blocks for page in PAGES if (blocks := _BLOCK.findall(page.read_text()))}


def run_each(codes: list[CodeType], namespace: dict[str, object]) -> None:
    for code in codes:
        exec(code, namespace)


@pytest.mark.parametrize(("page", "blocks"), EXAMPLES.items(), ids=[page.stem for page in EXAMPLES])
async def test_the_examples_of_a_page_run(
    page: Path, blocks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "example"}
    codes = [compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT) for block in blocks]
    if not any(code.co_flags & inspect.CO_COROUTINE for code in codes):  # a page for code without an event loop
        await asyncio.to_thread(run_each, codes, namespace)
        codes = []
    for code in codes:
        running = eval(code, namespace)
        if inspect.isawaitable(running):
            await running
    for value in namespace.values():
        if isinstance(value, App):
            await value.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text()):
        assert (page.parent / link).exists(), link


def test_the_first_screen_has_an_example_of_fifteen_lines_and_both_commands() -> None:
    text = (ROOT / "README.md").read_text()
    first_screen = "\n".join(text.splitlines()[:30])
    assert "make demo" in first_screen
    assert "make test" in first_screen
    assert len(_BLOCK.findall(text)[0].splitlines()) <= 15


def test_the_documentation_has_the_table_of_operations() -> None:  # S3
    page = (ROOT / "docs" / "explain" / "http.md").read_text()
    rows = [
        f"| `{one.name}` | {one.permission or 'none'} | {'yes' if one.changes else 'no'} | {one.orgs} | {one.queues} |"
        for one in OPERATIONS.values()
    ]
    assert [line for line in page.splitlines() if line.startswith("| `") and line.count("|") == 6] == rows


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    build = [sys.executable, "-m", "zensical", "build", "--config-file", "mkdocs.yml", "--strict"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "site" / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    assert "enqueue_many" in reference


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    listed = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(pages)


def test_the_messages_that_troubleshooting_explains_exist() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    headings = re.findall(r"^### `(.+)`$", (ROOT / "docs/guides/troubleshooting.md").read_text(), re.MULTILINE)
    assert len(headings) > 10
    assert [message for message in headings if message not in source] == []
