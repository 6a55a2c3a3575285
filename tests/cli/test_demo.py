from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from onward import Job, JobStatus
from onward.cli.demo.kinds import ATTEMPTS, CRASHER, KINDS, POISON, Kind
from onward.cli.demo.ledger import Entry, Ledger, read
from onward.cli.demo.verification import verify
from tests.cli.conftest import Cli

QUICK = KINDS[0]
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def stored(kind: Kind, state: JobStatus | None = None) -> Job:
    return Job(
        id=f"{kind.name}-1",
        type=kind.name,
        queue=kind.name,
        status=state or kind.final_status,
        created_at=NOW,
        updated_at=NOW,
    )


def wrote(kind: Kind, *, begun: int = 1, done: int = 0) -> list[Entry]:
    id = f"{kind.name}-1"
    return [
        *(Entry(job=id, kind=kind.name, done=False, attempt=1, pid=1) for _ in range(begun)),
        *(Entry(job=id, kind=kind.name, done=True, attempt=1, pid=1) for _ in range(done)),
    ]


def errors(kind: Kind, job: Job | None, entries: Iterable[Entry]) -> tuple[str, ...]:
    return verify({f"{kind.name}-1": kind}, {job.id: job} if job else {}, entries).errors


def test_jobs_that_ended_as_they_must_are_accounted_for():
    assert errors(QUICK, stored(QUICK), wrote(QUICK, done=1)) == ()
    assert errors(POISON, stored(POISON), wrote(POISON, begun=ATTEMPTS)) == ()
    assert errors(CRASHER, stored(CRASHER), wrote(CRASHER, begun=2)) == ()


@pytest.mark.parametrize(
    ("kind", "job", "entries", "message"),
    [
        (QUICK, None, wrote(QUICK, done=1), "is gone from the store"),
        (QUICK, stored(QUICK, JobStatus.PENDING), [], "is pending, and should be completed"),
        (QUICK, stored(QUICK, JobStatus.DEAD_LETTER), wrote(QUICK), "is dead_letter, and should be completed"),
        (QUICK, stored(QUICK), wrote(QUICK), "its work was never done"),
        (POISON, stored(POISON, JobStatus.COMPLETED), wrote(POISON, begun=3, done=1), "should be dead_letter"),
        (POISON, stored(POISON), wrote(POISON, begun=ATTEMPTS - 1), "given up after 2 of 3 runs"),
        (POISON, stored(POISON), wrote(POISON, begun=ATTEMPTS, done=1), "but its work was done"),
    ],
)
def test_a_job_that_is_lost_or_wrong_is_found(kind, job, entries, message):  # X3
    (found,) = errors(kind, job, entries)
    assert message in found


def test_work_that_nobody_enqueued_is_found():
    (found,) = verify({}, {}, wrote(QUICK)).errors
    assert "never enqueued" in found


def test_work_done_twice_is_counted_and_not_called_lost():
    verification = verify({"quick-1": QUICK}, {"quick-1": stored(QUICK)}, wrote(QUICK, begun=2, done=2))
    assert (verification.errors, verification.repeated, verification.runs, verification.jobs) == ((), 1, 2, 1)


def test_the_ledger_keeps_what_several_hands_write(tmp_path):
    path = tmp_path / "ledger"
    first, second = Ledger(path), Ledger(path)
    first.write("a", "quick", 1, done=False)
    second.write("b", "quick", 1, done=False)
    first.write("a", "quick", 1, done=True)
    assert [(entry.job, entry.done) for entry in read(path)] == [("a", False), ("b", False), ("a", True)]
    first.close()
    second.close()


def test_the_demo_loses_nothing_though_workers_are_killed(cli: Cli):  # X3
    result = cli("demo", "--jobs", "40", "--workers", "2", "--json").ok()
    assert result.json["ok"] is True
    assert result.json["jobs"] == sum(kind.number(40) for kind in KINDS)
    assert result.json["errors"] == []
    kinds = {kind["kind"]: kind for kind in result.json["kinds"]}
    assert kinds["poison"]["statuses"] == {"dead_letter": 1}
    assert kinds["crasher"]["statuses"] == {"dead_letter": 1}
    assert kinds["crasher"]["runs"] == 4  # twice in company, twice alone
    assert "a job has killed its process" in result.err
    assert "found out" in result.err


def test_the_demo_refuses_sizes_that_make_no_sense(cli: Cli):
    cli("demo", "--jobs", "1").usage_error("--jobs")
    cli("demo", "--workers", "1").usage_error("--workers")


def test_a_job_unaccounted_for_is_an_exit_code(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A demo that lost a job."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the folder stays, for whoever wants to know why

    class Sad:
        def __init__(self, *_: object, **__: object) -> None: ...

        async def run(self) -> object:
            return verify({"quick-1": QUICK}, {}, [])

    monkeypatch.setattr("onward.cli.demo.runner.DemoRun", Sad)
    result = cli("demo")
    assert result.code == 1
    assert "1 job of 1 NOT accounted for" in result.out
    assert "is gone from the store" in result.out
    assert "workers.log" in result.err
