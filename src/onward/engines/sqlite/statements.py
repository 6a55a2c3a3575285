"""The statements of this engine, as they stand in ``sql/``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final, Self

from onward.engine import statements

_NAME: Final = re.compile(r":(\w+)")


class Statement(str):
    """A statement as it was written, and the same with numbers for its names.

    For each parameter that has a name, sqlite3 lets go of Python's global lock and takes it back: for seventeen of them
    that took longer than the insert they were for.
    """

    __slots__ = ("numbered", "values")

    numbered: str
    values: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """Puts named values in order."""

    def __new__(cls, text: str) -> Self:
        """Number the parameters."""
        statement = super().__new__(cls, text)
        names = list(dict.fromkeys(_NAME.findall(text)))
        statement.numbered = _NAME.sub(lambda name: f"?{names.index(name[1]) + 1}", text)
        if len(names) > 1:
            statement.values = itemgetter(*names)
        else:
            statement.values = lambda named: tuple(named[name] for name in names)
        return statement


class _Statements(statements.Statements):
    def __init__(self) -> None:
        super().__init__("onward.engines.sqlite")
        self._numbered = {name: Statement(text) for name, text in self._texts.items()}

    def __getattr__(self, name: str) -> Statement:
        try:
            return self._numbered[name]
        except KeyError:
            raise AttributeError(name) from None


SQL: Final = _Statements()
