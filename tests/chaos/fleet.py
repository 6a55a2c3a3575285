"""Programs of users: modules in a folder, worked on by ``onward work`` and asked about by ``onward``, on one store.

Their handlers keep a :mod:`ledger <tests.chaos.ledger>`; :meth:`Fleet.verify` compares it with what the store says.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from onward import App, Job, JobStatus
from tests.chaos import ledger
from tests.chaos.site import ENDED
from tests.servers.postgres import postgres_url
from tests.worker.harness import eventually

REPOSITORY = Path(__file__).parents[2]
WORK = ("--log", "json", "--lease", "2s", "--leader-lease", "2s", "--grace", "5s")
"""As quick as a worker can be: what takes a lease of 30 s in production should not take that long in a test."""
_numbers = itertools.count()


@dataclass
class Fleet:
    """A store, the folder of the programs, and the processes that were started."""

    folder: Path
    url: str
    app: App
    """By which the test enqueues and looks at the store. It has no tasks."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    # Programs

    def write(self, module: str, source: str) -> None:
        """Write a program, or its next version."""
        (self.folder / f"{module}.py").write_text(source)

    def work(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        """Start ``onward work`` on a program (``module:app``)."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "onward.cli", "work", program, *WORK, *options],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    async def command(self, *words: str, code: int | None = 0) -> str:
        """Run a command of ``onward`` on the store as a process of its own, and answer what it printed.

        ``code``: the exit code that it must have; None: any.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "onward.cli",
            *words,
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert code in {None, process.returncode}, (words, process.returncode, out.decode(), err.decode())
        assert b"Traceback" not in err
        return out.decode()

    async def command_json(self, *words: str, code: int | None = 0) -> Any:
        """Run a command and read the JSON that it prints."""
        return json.loads(await self.command(*words, "--json", code=code))

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(REPOSITORY))))  # mutants come by it
        return os.environ | {"ONWARD_URL": self.url, "PYTHONPATH": path, "COLUMNS": "200"}

    async def stop(self, *processes: subprocess.Popen[bytes]) -> None:
        """Stop processes in good order."""
        for process in processes:
            process.terminate()
        for process in processes:
            assert await asyncio.to_thread(process.wait, 60) == 0
            self.processes.remove(process)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process."""
        process.kill()
        process.wait()
        self.processes.remove(process)

    def close(self) -> None:
        """Kill the processes that still run."""
        for process in [*self.processes]:
            self.kill(process)

    # Jobs

    async def types_served(self) -> set[str]:
        """Collect the tasks of the registered workers."""
        return {type_ for worker in await self.app.workers.list() for type_ in worker.types}

    async def serves(self, *types: str, timeout: float = 60) -> None:
        """Wait until workers with these tasks are registered."""

        async def all_served() -> bool:
            return set(types) <= await self.types_served()

        await eventually(all_served, timeout=timeout)

    async def jobs(self) -> dict[str, Job]:
        """Read all jobs."""
        return {job.id: job async for job in self.app.jobs.iterate()}

    async def ended(self, ids: Iterable[str], *, timeout: float = 110) -> dict[str, Job]:
        """Wait until these jobs have ended, and read them."""
        wanted = set(ids)
        found: dict[str, Job] = {}

        async def all_ended() -> bool:
            now = {id_: job for id_, job in (await self.jobs()).items() if id_ in wanted}
            found.clear()
            found.update(now)
            return len(found) == len(wanted) and all(job.status in ENDED for job in found.values())

        try:
            await eventually(all_ended, timeout=timeout)
        except TimeoutError:
            left = {id_: (job.status, job.last_error) for id_, job in found.items() if job.status not in ENDED}
            raise AssertionError(f"not ended: {left}; gone: {wanted - set(found)}\n{self.log()[-3000:]}") from None
        return found

    def log(self) -> str:
        """Read what the workers have logged."""
        return (self.folder / "log").read_text()

    async def verify(self, expected: Mapping[str, str | None], *, once: bool = True, retried: bool = False) -> None:
        """Compare ledger and store: each job (id: the program that must run it; None: any) completed, at no cost.

        ``once``: no process was killed, so no job may have run twice. ``retried``: attempts may have failed before.
        """
        found, runs = await self.jobs(), ledger.read(self.folder)
        assert set(found) == set(expected), "jobs were lost, or made"
        bad = {id_: (job.type, job.status, job.last_error) for id_, job in found.items() if not _is_completed(job)}
        assert not bad, f"not completed: {bad}"
        assert set(runs) == set(expected), "the ledger and the store have not the same jobs"
        for id_, program in expected.items():
            job, of_job = found[id_], runs[id_]
            assert program is None or {run["by"] for run in of_job} == {program}, "run by the wrong program"
            assert {(run["type"], run["number"]) for run in of_job} == {(job.type, job.payload["number"])}
            assert job.result in of_job, "the result is not that of a run of this job"
            assert len(of_job) == 1 or not once, "run twice"
            assert job.attempts == 1 or retried, "what was no failure has cost an attempt"
        counts = Counter(len(of_job) for of_job in runs.values())
        attempts = Counter(job.attempts for job in found.values())
        print(f"\njobs {len(expected)}: completed {len(found)}, failed 0, lost 0, run by the wrong program 0, ", end="")
        print(f"runs per job {dict(counts)}, attempts {dict(attempts)}")


def _is_completed(job: Job) -> bool:
    return job.status is JobStatus.COMPLETED


@asynccontextmanager
async def fleet_at(url: str, folder: Path) -> AsyncIterator[Fleet]:
    """Open a fleet on a store."""
    async with App(url) as app:
        fleet = Fleet(folder, url, app)
        with closing(fleet):
            yield fleet


@asynccontextmanager
async def database() -> AsyncIterator[str]:
    """Have a database of one's own on this process's PostgreSQL."""
    name = f"fleet_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"create database {name}")
    known = conninfo_to_dict(postgres_url())
    try:
        yield f"postgresql:///{name}?host={known['host']}&user={known['user']}"
    finally:
        with psycopg.connect(postgres_url(), autocommit=True) as connection:
            connection.execute(f"drop database {name} with (force)")
