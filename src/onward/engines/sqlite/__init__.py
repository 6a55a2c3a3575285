"""SQLite: the embedded default. One file, no server, several processes on one machine."""

from onward.engines.sqlite.engine import SQLiteEngine

__all__ = ["SQLiteEngine"]
