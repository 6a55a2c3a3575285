"""Statements kept as files: one per verb and store, written out, so that anyone can paste one into a console.

A file opens with comment lines that say what it does, its parameters, and the index it relies on. They are cut off
when it is loaded; the rest is handed to the store as it is. The one thing ever put in is the quoted schema name, where
a store has schemas.
"""

from __future__ import annotations

from importlib.resources import files


class Statements:
    """The statements of one engine, by the name of their file."""

    def __init__(self, package: str) -> None:
        self._texts = {
            entry.name.removesuffix(".sql"): _without_header(entry.read_text(encoding="utf-8"))
            for entry in files(package).joinpath("sql").iterdir()
            if entry.name.endswith(".sql")
        }

    def __getattr__(self, name: str) -> str:
        """Find a statement: ``SQL.claim`` is ``sql/claim.sql``."""
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(name) from None

    def names(self) -> frozenset[str]:
        """All the statements there are."""
        return frozenset(self._texts)


def _without_header(text: str) -> str:
    lines = text.splitlines()
    while lines and (lines[0].startswith("--") or not lines[0].strip()):
        del lines[0]
    return "\n".join(lines).strip()
