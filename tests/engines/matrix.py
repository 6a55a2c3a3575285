"""The table of an engine's page, written from what the engine says of itself.

A page has it between two comments. ``python -m tests.engines.matrix`` writes all of them anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from onward.engine.capabilities import Capabilities, Level
from tests.conformance.cases import CASES

DOCS: Final = Path(__file__).parents[2] / "docs" / "engines"

_BETWEEN: Final = re.compile(r"(<!-- capabilities -->\n).*?(<!-- /capabilities -->)", re.DOTALL)


def table_of(capabilities: Capabilities) -> str:
    """Write what is native, emulated and absent, with the notes that users see."""
    lines = ["| feature | | how, or why not |", "|---|---|---|"]
    for level in Level:
        lines += [
            f"| {feature} | {level} | {support.note} |"
            for feature, support in sorted(capabilities.features.items())
            if support.level is level
        ]
    lines += [f"| the state {state} | shown as {shown} | |" for state, shown in capabilities.status_aliases.items()]
    return "\n".join(lines) + "\n"


def put_in(page: str, capabilities: Capabilities) -> str:
    """Put the table into a page."""
    return _BETWEEN.sub(lambda found: found[1] + table_of(capabilities) + found[2], page)


if __name__ == "__main__":
    for case in CASES:
        path = DOCS / f"{case.name}.md"
        if path.exists():
            path.write_text(put_in(path.read_text(encoding="utf-8"), case.capabilities), encoding="utf-8")
