"""Lua scripts kept as files, one per verb; each says in its header what it takes, what it answers, and what it uses.

A script runs in the server as one step: nobody sees half of it. What several need stands in ``lua/lib`` and is put
before those that name it (``-- uses: queue finish``), since Redis scripts cannot load one another. Redis knows a script
by its hash; a server that was restarted or has failed over does not know it, and is told (:mod:`.plan_runner`).
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import Final, NamedTuple

_USES = re.compile(r"^-- uses: (.*)$", re.MULTILINE)


class Script(NamedTuple):
    """One script, whole."""

    name: str
    text: str
    sha: str


def _load() -> dict[str, Script]:
    folder = files("onward.engines.bullmq").joinpath("lua")
    library = {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in folder.joinpath("lib").iterdir()
        if entry.name.endswith(".lua")
    }
    found = {}
    for entry in folder.iterdir():
        if entry.name.endswith(".lua"):
            text = entry.read_text(encoding="utf-8")
            uses = _USES.search(text)
            used = uses[1].split() if uses else []
            source = "\n".join(_without_comments(part) for part in [*(library[f"{name}.lua"] for name in used), text])
            name = entry.name.removesuffix(".lua")
            sha = hashlib.sha1(source.encode()).hexdigest()  # noqa: S324 - as Redis names it
            found[name] = Script(name, source, sha)
    return found


def _without_comments(text: str) -> str:
    """Leave comments out: a server that must be told the scripts anew is told less."""
    return "\n".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))


SCRIPTS: Final = _load()
