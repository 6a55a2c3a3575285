"""Where the rounds take place: stores like the one that the URL names, empty, on the same disk.

The store at the URL itself is not touched: it may have somebody's jobs in it.
"""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from onward.app import App
from onward.errors import InvalidJob


class Ground:
    """Empty SQLite databases in a folder beside the one that the URL names; they go when the block ends."""

    def __init__(self, url: str) -> None:
        app = App(url)  # connects to nothing; refuses what is no URL of ours
        self.engine = app.capabilities.engine
        if self.engine != "SQLite":
            raise InvalidJob("url", url, f"there is no bare baseline for {self.engine} yet: give sqlite:///file.db")
        self._query = url.partition("?")[2]
        self._beside = None if url.partition("?")[0] == "sqlite://" else Path(app.engine.describe()["path"]).parent
        self._folder = Path()
        self._numbers = count(1)

    def __enter__(self) -> Self:
        """Make the folder."""
        if self._beside is not None and not self._beside.is_dir():
            raise InvalidJob("url", str(self._beside), "is no folder: make it first, the benchmark takes place in it")
        self._folder = Path(tempfile.mkdtemp(prefix="onward-bench-", dir=self._beside))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def fresh(self) -> str:
        """Give the URL of an empty store."""
        path = quote(str(self._folder / f"{next(self._numbers)}.db"))
        return f"sqlite:///{path}" + (f"?{self._query}" if self._query else "")

    def fresh_bare(self) -> tuple[Path, str]:
        """Give the path of a database for the bare side, which is not there yet, and how durable it is to be."""
        durable = "normal" if "synchronous=normal" in self._query else "full"
        return self._folder / f"{next(self._numbers)}.db", durable

    def remove(self, url: str) -> None:
        """Remove a store that has served, so that a long run does not fill the disk."""
        name = url.partition("?")[0].rpartition("/")[2]
        for file in self._folder.glob(f"{name}*"):
            file.unlink(missing_ok=True)
