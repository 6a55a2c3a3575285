"""What is written, and where: results to the standard output, everything else to the standard error.

On a terminal results are tables with colour; through a pipe they are plain aligned columns, one row a line, never cut;
with ``--json`` they are JSON. Text that comes out of a store was written by strangers: control characters are shown,
never sent to the terminal, and markup in it means nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onward.lifecycle import JobStatus

STYLES: Final[Mapping[str, str]] = {
    JobStatus.SCHEDULED: "cyan",
    JobStatus.BLOCKED: "cyan",
    JobStatus.PENDING: "yellow",
    JobStatus.CLAIMED: "blue",
    JobStatus.RUNNING: "bold blue",
    JobStatus.COMPLETED: "green",
    JobStatus.FAILED: "red",
    JobStatus.DEAD_LETTER: "bold red",
    JobStatus.CANCELLED: "dim",
    "ok": "green",
    "note": "cyan",
    "warning": "yellow",
    "problem": "bold red",
}

Cell = str | Text

_SHRINKABLE: Final = frozenset({"details", "queues", "limits", "what it does"})
"""Columns that may be cut when a line is too long."""
_MIN_WIDTH: Final = 6
_DROPPABLE: Final = ("age", "oldest", "attempts", "scheduled")
"""Columns that are left out, in this order, where a line would still be too long."""


def stdout() -> Console:
    """Give the console of results. Made anew each time: a test, or a redirect, may have changed the streams."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def stderr() -> Console:
    """Give the console of everything that is not a result."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def escape(text: object) -> str:
    """Make text that cannot steer a terminal: whatever is not printable is shown by its escape."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in shown)


def escape_lines(text: str) -> str:
    """Do the same to text of several lines."""
    return "\n".join(escape(line) for line in text.splitlines())


def styled(word: str) -> Text:
    """Show a status, or a verdict, in its colour."""
    return Text(word, style=STYLES.get(word, ""))


def number(amount: int, style: str = "") -> Text:
    """Show a count; on a terminal, nothing is shown as little as can be."""
    if not amount and sys.stdout.isatty():
        return Text("·", style="dim")
    return Text(str(amount), style=style)


def write(text: Cell = "", *, style: str = "") -> None:
    """Write a line of the result."""
    stdout().print(text if isinstance(text, Text) else Text(text), style=style)


def note(text: Cell, *, style: str = "dim") -> None:
    """Write a line beside the result."""
    stderr().print(text if isinstance(text, Text) else Text(text), style=style)


def warn(text: str, remedy: str = "") -> None:
    """Write a warning, and what to do about it."""
    console = stderr()
    console.print(Text.assemble(("warning: ", "bold yellow"), escape_lines(text)))
    if remedy:
        console.print(Text.assemble(("    try: ", "dim"), escape_lines(remedy)))


def print_error(cause: str, effect: str = "", remedy: str = "") -> None:
    """Write what went wrong, what that means, and what to do."""
    console = stderr()
    console.print(Text.assemble(("error: ", "bold red"), escape_lines(cause)))
    if effect:
        console.print(Text(f"       {escape_lines(effect)}"))
    if remedy:
        console.print(Text.assemble(("  try: ", "bold"), escape_lines(remedy)))


def show_json(value: Any) -> None:
    """Write a value as JSON, durations in seconds: indented on a terminal, on one line through a pipe."""
    plain = msgspec.to_builtins(value, builtin_types=(timedelta,), enc_hook=str)
    text = msgspec.json.encode(_durations_as_seconds(plain))
    shown = msgspec.json.format(text, indent=2 if sys.stdout.isatty() else 0) if text else text
    # Not through rich: it would wrap long lines.
    sys.stdout.write(escape_json(shown.decode()) + "\n")
    sys.stdout.flush()


def escape_json(text: str) -> str:
    """Write what is not printable by JSON's own escapes: JSON lets DEL, C1 and bidi controls stand as they are (X6)."""
    return (
        "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)
        if not text.isprintable()
        else text
    )


def _durations_as_seconds(value: Any) -> Any:
    match value:
        case dict():
            return {key: _durations_as_seconds(one) for key, one in value.items()}
        case list() | tuple():
            return [_durations_as_seconds(one) for one in value]
        case timedelta():
            seconds = value.total_seconds()
            return int(seconds) if seconds.is_integer() else seconds
        case _:
            return value


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: Iterable[str] = ()) -> None:
    """Write rows under their headings; the columns named in ``right`` are numbers."""
    cells = [[one if isinstance(one, Text) else Text(escape(one)) for one in row] for row in rows]
    numbers = frozenset(right)
    if sys.stdout.isatty():
        stdout().print(table(columns, cells, right=numbers))
        return
    widths = [max([len(name), *(row[at].cell_len for row in cells)]) for at, name in enumerate(columns)]
    for row in ([Text(name) for name in columns], *cells):
        padded = (
            one.plain.rjust(width) if name in numbers else one.plain.ljust(width)
            for one, width, name in zip(row, widths, columns, strict=True)
        )
        sys.stdout.write("  ".join(padded).rstrip() + "\n")
    sys.stdout.flush()


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: Iterable[str] = (), width: int | None = None
) -> Table:
    """Lay rows out for a terminal of a certain width.

    Only the column that can spare it is cut, and if that is not enough the least important ones are left out: names and
    ids must be whole.
    """
    numbers = frozenset(right)
    cells = [[one if isinstance(one, Text) else Text(escape(one)) for one in row] for row in rows]
    columns = list(columns)
    widths = [max([len(name), *(row[at].cell_len for row in cells)]) for at, name in enumerate(columns)]
    available = stdout().width if width is None else width
    for name in _DROPPABLE:
        least = [min(each, _MIN_WIDTH) if columns[at] in _SHRINKABLE else each for at, each in enumerate(widths)]
        if name in columns and sum(least) + 2 * (len(columns) - 1) > available:
            at = columns.index(name)
            columns, widths = columns[:at] + columns[at + 1 :], widths[:at] + widths[at + 1 :]
            cells = [row[:at] + row[at + 1 :] for row in cells]
    rendered = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    shrinkable = next((at for at, name in enumerate(columns) if name in _SHRINKABLE), len(columns) - 1)
    max_width = available - sum(widths) + widths[shrinkable] - 2 * (len(columns) - 1)
    for at, name in enumerate(columns):
        rendered.add_column(
            name,
            justify="right" if name in numbers else "left",
            overflow="ellipsis" if at == shrinkable else "fold",
            no_wrap=True,
            max_width=max(max_width, _MIN_WIDTH) if at == shrinkable else None,
        )
    for row in cells:
        rendered.add_row(*row)
    return rendered
