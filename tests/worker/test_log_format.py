"""How the log reads."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest

from onward.app import App
from onward.worker.log_format import BatchingHandler, JsonFormatter, TextFormatter, configure
from tests.worker.harness import eventually


def record(
    message: str = "job completed", *, raised: BaseException | None = None, **extra: object
) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "onward.job", "levelname": "INFO", "levelno": 20, "msg": message, **extra})
    if raised is not None:
        made.exc_info = (type(raised), raised, raised.__traceback__)
    return made


def test_a_fact_is_one_line_with_its_fields():
    line = TextFormatter().format(record(job_id="7", queue="mail/a", seconds=0.12345678, error="Oops: a b"))
    assert line.endswith('INFO    job completed job_id=7 queue=mail/a seconds=0.123457 error="Oops: a b"')


def test_what_a_job_says_cannot_forge_a_line():
    line = TextFormatter().format(record("job\nfailed", reason='x\n12:00 INFO job completed job_id="1"'))
    assert "\n" not in line


def test_json_is_one_object_a_line():
    entry = json.loads(JsonFormatter().format(record(job_id="7", odd={1, 2}, reason="a\nb")))
    assert entry["message"] == "job completed"
    assert entry["level"] == "info"
    assert entry["logger"] == "onward.job"
    assert entry["job_id"] == "7"
    assert entry["reason"] == "a\nb"


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_traceback_comes_with_its_fact(formatter: logging.Formatter):
    assert "ZeroDivisionError" in formatter.format(record(raised=ZeroDivisionError("by nought")))


def test_configure_sends_the_log_where_it_is_told():
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    try:
        configure("json", level="INFO", stream=stream)
        logging.getLogger("onward.worker").info("worker started", extra={"worker_id": "w"})
        assert json.loads(stream.getvalue())["worker_id"] == "w"
    finally:
        root.handlers[:] = before
        root.setLevel(level)


async def test_lines_of_a_server_are_written_together_and_warnings_at_once():
    class Counting(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            return super().write(text)

    stream = Counting()
    handler = BatchingHandler(stream)
    handler.setFormatter(TextFormatter())
    logger = logging.Logger("onward.test")  # noqa: LOG001 - apart from all others
    logger.addHandler(handler)
    for number in range(10):
        logger.info("line", extra={"number": number})
    assert stream.writes == 0
    await eventually(lambda: stream.writes == 1)  # by the loop's timer
    logger.info("before")
    logger.warning("bad")
    assert stream.writes == 2
    lines = stream.getvalue().splitlines()
    assert [line.rpartition("=")[2] for line in lines[:10]] == [str(number) for number in range(10)]
    assert "before" in lines[10]
    assert "bad" in lines[11]
    logger.info("last")
    handler.flush()  # as the standard library does at the end of the program
    assert "last" in stream.getvalue()
    await asyncio.to_thread(logger.info, "from a thread without a loop")
    assert "from a thread" in stream.getvalue()


async def test_the_life_of_a_job_is_told_with_its_name(app: App, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "onward")

    @app.task
    async def good() -> None: ...

    @app.task(max_attempts=1)
    async def bad() -> None:
        raise RuntimeError("oh no")

    await good.enqueue()
    await bad.enqueue()
    async with app.worker() as worker:
        await eventually(lambda: sum(worker.tally.values()) == 2)
    records = {one.message: one for one in caplog.records}
    assert records["job completed"].task == good.name  # type: ignore[attr-defined]
    assert records["job failed, no attempts left"].error == "RuntimeError: oh no"  # type: ignore[attr-defined]
    assert records["job failed, no attempts left"].attempt == 1  # type: ignore[attr-defined]
    assert records["worker started"].worker_id == records["worker stopped"].worker_id  # type: ignore[attr-defined]
