"""No lock of ours can be taken by a role that may only connect: an advisory lock can."""

from __future__ import annotations

from pathlib import Path

import onward


def test_no_statement_of_ours_takes_an_advisory_lock():  # G8
    sources = [path for path in Path(onward.__file__).parent.rglob("*") if path.suffix in {".py", ".sql"}]
    assert len(sources) > 100
    assert [path.name for path in sources if "advisory_" in path.read_text(encoding="utf-8")] == []
