"""The page says what the engine says."""

from __future__ import annotations

from onward.engines.pgmq.engine import CAPABILITIES
from tests.engines.matrix import DOCS, put_in


def test_the_table_of_the_page_is_written_from_the_capabilities():  # X1
    page = (DOCS / "pgmq.md").read_text(encoding="utf-8")
    assert "| delay | native |" in page
    assert put_in(page, CAPABILITIES) == page, "write it anew: python -m tests.engines.matrix"
