"""What we keep beside a schema of somebody else's: who works, who leads, how long a queue's jobs are kept.

pg-boss and PGMQ have no place for these, and their schemas are not ours to change. So they are in a small schema of our
own beside it, which each engine makes by migrations of its own. Whoever drops it loses no job.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from onward.clock import Clock, moment_of
from onward.engine.statements import Statements
from onward.engine.values import Term, WorkerCommand, WorkerInfo
from onward.pg.plan_runner import Plan, Statement
from onward.pg.schema_name import check_own_schema_name, insert_schema_name

_STATEMENTS: Final = Statements("onward.pg")
MAX_COMPANION_NAME: Final = 63
"""Characters of its name, as many as PostgreSQL's names have: no other names are made from it."""


def grant_hint(foreign: str, own: str) -> str:
    """Write the grants that a worker's role needs on a foreign schema and on ours beside it; ``{user}`` is the role.

    Tokens, sessions and audit records stay out of its reach (S5).
    """
    names, access = f'"{foreign}", "{own}"', ", ".join(f'"{own}".{table}' for table in ("token", "session", "audit"))
    return (
        f'then: grant usage on schema {names} to "{{user}}"; grant select, insert, update, delete on all tables in '
        f'schema {names} to "{{user}}"; grant usage on all sequences in schema {names} to "{{user}}"; grant execute on '
        f'all functions in schema {names} to "{{user}}"; revoke all on {access} from "{{user}}"'
    )


class CompanionSchema:
    """A schema of ours, by its name."""

    def __init__(self, name: str, *, clock: Clock | None = None) -> None:
        """``clock`` None is the database's own, which is right everywhere but in tests."""
        self.name = check_own_schema_name(name, max_length=MAX_COMPANION_NAME)
        self._clock = clock
        self._texts = {each: insert_schema_name(name, getattr(_STATEMENTS, each)) for each in _STATEMENTS.names()}

    @property
    def now(self) -> datetime | None:
        """The time to go by; None: the database's."""
        return None if self._clock is None else moment_of(self._clock.micros())

    # Who leads

    def elect(self, candidate: str, lease: timedelta, current_term: Term | None) -> Plan[Term | None]:
        """Become or stay leader."""
        values = [self.now, candidate, lease]
        if current_term is None:
            rows = yield Statement(self._texts["elect"], values)
        else:
            rows = yield Statement(self._texts["renew_term"], [*values, current_term.number])
        return Term(*rows[0]) if rows else None

    def resign(self, term: Term) -> Plan[None]:
        """End a term before its time."""
        yield Statement(self._texts["resign"], [self.now, term.number, term.leader_id])

    # Who works

    def heartbeat(self, worker: WorkerInfo) -> Plan[WorkerCommand | None]:
        """Register a worker, or say that it is alive; answer what it has been told."""
        fields = [worker.id, worker.hostname, worker.pool_size, worker.version, list(worker.queues), list(worker.types)]
        ((told,),) = yield Statement(self._texts["heartbeat"], [self.now, *fields])
        return None if told is None else WorkerCommand(told)

    def command_worker(self, worker_id: str, command: WorkerCommand) -> Plan[bool]:
        """Tell a worker what to do, and answer whether it is registered."""
        told = None if command is WorkerCommand.RESUME else command.value
        return bool((yield Statement(self._texts["worker_command"], [worker_id, told])))

    def deregister(self, worker_id: str) -> Plan[None]:
        """Take a worker off the list."""
        yield Statement(self._texts["deregister"], [worker_id])

    def delete_silent_workers(self, term: Term, silent_for: timedelta) -> Plan[None]:
        """Take workers off the list that have been silent for too long."""
        yield Statement(self._texts["delete_silent_workers"], [self.now, term.number, term.leader_id, silent_for])

    def workers(self) -> Plan[list[WorkerInfo]]:
        """List workers."""
        return [
            WorkerInfo(
                id=row[0],
                hostname=row[1],
                pool_size=row[2],
                version=row[3],
                queues=tuple(row[4]),
                types=tuple(row[5]),
                started_at=row[6],
                last_heartbeat=row[7],
                is_leader=row[8] is not None,
                leader_until=row[8],
                is_quiet=row[9] is not None,
            )
            for row in (yield Statement(self._texts["workers"], [self.now]))
        ]

    # How long a queue's jobs are kept

    def set_lease(self, queue: str, lease: timedelta | None) -> Plan[None]:
        """Give a queue a lease of its own, or none."""
        yield Statement(self._texts["set_lease"], [queue, lease])
