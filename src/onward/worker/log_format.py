"""How a worker's log reads: one line for each fact, the facts as fields.

Everything is logged with the standard library, under ``onward``; the fields are extras of the record, so that any other
formatter finds them too. :func:`configure` is for programs that Onward itself starts; inside an application, the
application's own set-up holds.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import msgspec

LogFormat = Literal["text", "json"]

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_BATCH_SECONDS: Final = 0.05
_MAX_BATCH: Final = 1000
"""Lines that are kept at most."""
_encoder: Final = msgspec.json.Encoder(enc_hook=str)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Find the extras of a record."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and name[:1] != "_"}


class TextFormatter(logging.Formatter):
    """``12:00:00.123 INFO job completed job_id=… queue=mail``."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one line, and below it the traceback if there is one."""
        at = datetime.fromtimestamp(record.created).astimezone()
        parts = [f"{at:%H:%M:%S}.{int(record.msecs):03d} {record.levelname:<7} {_escape(record.getMessage())}"]
        parts.extend(f"{name}={_quoted(value)}" for name, value in fields_of(record).items())
        line = " ".join(parts)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one object; the traceback is a field."""
        entry: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update(fields_of(record))
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return _encoder.encode(entry).decode()


class BatchingHandler(logging.StreamHandler[TextIO]):
    """Writes the lines of a twentieth of a second together, if an event loop is running.

    Each write lets another thread take Python's global lock, and a busy event loop waits long to have it back: a write
    for each request would halve the rate of a server. A warning or an error is written at once, with what came before.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []
        self._flushed_by: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line, and see to it that it is written."""
        try:
            self._lines.append(self.format(record))
        except Exception:  # noqa: BLE001 - as every handler of the standard library does
            self.handleError(record)
            return
        loop = None if record.levelno >= logging.WARNING or len(self._lines) >= _MAX_BATCH else _running_loop()
        if loop is None:
            self.flush()
        elif loop is not self._flushed_by:
            self._flushed_by = loop
            loop.call_later(_BATCH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what is kept."""
        with self.lock or nullcontext():
            lines, self._lines, self._flushed_by = self._lines, [], None
            if lines and not self.stream.closed:
                self.stream.write("\n".join(lines) + "\n")
                super().flush()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def configure(
    format: LogFormat = "text",
    *,
    level: int | str = logging.INFO,
    stream: TextIO | None = None,
    is_batched: bool = False,
) -> None:
    """Send the log of this program to ``stream`` (the standard error), in the form asked for.

    ``is_batched``: lines may be written up to 50 ms late, for a server with a line for each request.
    """
    handler = (BatchingHandler if is_batched else logging.StreamHandler)(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _escape(text: str) -> str:
    """Keep a fact on its line: what a job calls itself must not be able to forge another."""
    return text if text.isprintable() else repr(text)[1:-1]


def _quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if text and text.isprintable() and not set(text) & {" ", '"', "="} else _encoder.encode(text).decode()
