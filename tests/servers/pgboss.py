"""The real pg-boss for tests: its schema, made by its own SQL, and a live instance of it, spoken to line by line."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.servers.node import NodePackages, node_packages

NEWEST: Final = "12"
VERSIONS: Final = ("12", "11", "10")
"""The newest of each of these is tried."""
_SCRIPT: Final = Path(__file__).with_name("pgboss.js")
_SCHEMA_PLACEHOLDER: Final = "pgboss_here"
"""Stands for the schema in the SQL that pg-boss writes."""


@cache
def pgboss_packages(version: str = NEWEST) -> NodePackages:
    """Give the newest pg-boss of a version."""
    # 12.38 asks for an rrule-temporal that not every registry has; it is for rules of repetition, which we do not use.
    return node_packages(f"pg-boss@{version}", instead=("rrule-temporal@2",))


@cache
def _construction_sql(version: str) -> str:
    program = pgboss_packages(version).start(_SCRIPT, "plans", _SCHEMA_PLACEHOLDER, stdout=subprocess.PIPE)
    written, _ = program.communicate()
    assert program.returncode == 0, "pg-boss did not write its SQL"
    return written


def make_schema(url: str, schema: str, version: str = NEWEST) -> None:
    """Make pg-boss's tables, by its own SQL."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        connection.execute(_construction_sql(version).replace(_SCHEMA_PLACEHOLDER, schema))


def drop_schema(url: str, schema: str) -> None:
    """Take pg-boss's tables away, and ours beside them."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        connection.execute(f"drop schema if exists {schema} cascade")
        connection.execute(f"drop schema if exists {schema}_onward cascade")


class NodePgBoss:
    """A live pg-boss in Node. Each of its verbs is a method here: ``boss.send("mail", {"to": "ada"})``."""

    def __init__(self, url: str, schema: str, version: str = NEWEST, **options: Any) -> None:
        self._program = pgboss_packages(version).start(
            _SCRIPT, "serve", node_url(url), schema, json.dumps(options), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._read_reply() == "ready", "pg-boss did not start"

    def __getattr__(self, verb: str) -> Any:
        """Say a verb of pg-boss's, and hear the answer."""

        def call(*given: Any) -> Any:
            assert self._program.stdin is not None
            self._program.stdin.write(f"{json.dumps([verb, *given])}\n")
            self._program.stdin.flush()
            reply = self._read_reply()
            if "error" in reply:
                raise RuntimeError(reply["error"])
            return reply.get("answer")

        return call

    def _read_reply(self) -> Any:
        assert self._program.stdout is not None
        line = self._program.stdout.readline()
        assert line, "pg-boss has ended"
        return json.loads(line)

    def job(self, queue: str, id: str) -> dict[str, Any]:
        """Read a job as Node sees it; some versions answer with a list."""
        found = self.getJobById(queue, id)
        return cast("dict[str, Any]", found[0] if isinstance(found, list) else found)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop it."""
        if self._program.poll() is None:
            self._program.kill() if self._program.stdin is None else self._request_stop()
        self._program.wait(timeout=30)
        for pipe in (self._program.stdin, self._program.stdout):
            if pipe is not None:
                pipe.close()

    def _request_stop(self) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write('["stop"]\n')
        self._program.stdin.flush()

    def kill(self) -> None:
        """End it without a word."""
        self._program.kill()


def node_url(url: str) -> str:
    """Write an address as Node's driver wants it: a socket's folder stands in the query."""
    known = conninfo_to_dict(url)
    return f"postgres://{known['user']}@/{known.get('dbname', 'postgres')}?host={known['host']}"
