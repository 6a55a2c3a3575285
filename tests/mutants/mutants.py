"""The planted bugs: one for each promise that a hurried change could break."""

from __future__ import annotations

from typing import Final

from tests.mutants.handles import HANDLES
from tests.mutants.harness import Edit, Mutant

CONFORMANCE: Final = "tests/conformance"
SQLITE: Final = "tests/engines/sqlite"
UNIT: Final = "tests/unit"
OLDER_CLAIM: Final = (
    f"{CONFORMANCE}/test_transitions.py::test_a_move_with_an_older_claim_of_the_same_job_is_always_refused"
)
_SQL: Final = "engines/sqlite/sql"
_PY: Final = "engines/sqlite"
_SCHEMA: Final = "engines/sqlite/migrations/0001_initial.sql"
_THROTTLED: Final = (
    "        found, enqueue_status = transaction.execute(SQL.find_throttled, named).fetchall(), EnqueueStatus.DEDUPED\n"
)

_FENCE = "where seq = :seq and claim_no = :claim_no and "
_MANY_FENCE = "where seq = of_seq and claim_no = of_claim and "
_TERM = (
    "\n   and exists (select 1 from onward_leader where number = :number and leader_id = :leader_id and until > :now)"
)


def _unfenced(statement: str) -> Mutant:
    """A settlement that looks at the job and not at the claim: a zombie ends somebody else's run."""
    return Mutant(
        f"{statement}: the fence is dropped",
        (Edit(f"{_SQL}/{statement}.sql", _FENCE, "where seq = :seq and "),),
        (OLDER_CLAIM,),
    )


def _unfenced_many(statement: str, *tests: str, in_ci: bool = False) -> Mutant:
    return Mutant(
        f"{statement}: the fence is dropped",
        (Edit(f"{_SQL}/{statement}.sql", _MANY_FENCE, "where seq = of_seq and "),),
        tests,
        in_ci=in_ci,
    )


def _without_term(statement: str, tests: str = CONFORMANCE) -> Mutant:
    """A leader's write that any deposed leader can make."""
    return Mutant(
        f"{statement}: without the leader's term",
        (Edit(f"{_SQL}/{statement}.sql", _TERM, ""),),
        (f"{tests}/test_leader.py",),
    )


WORDS: Final = (
    Mutant(
        "lifecycle: one attempt too many",
        (Edit("lifecycle.py", "and attempts < max_attempts", "and attempts <= max_attempts"),),
        (f"{UNIT}/test_lifecycle.py",),
    ),
    Mutant(
        "lifecycle: a completed job can be replayed",
        (Edit("lifecycle.py", "(FINISHED - {S.COMPLETED}, S.PENDING)", "(FINISHED, S.PENDING)"),),
        (f"{UNIT}/test_lifecycle.py",),
    ),
    Mutant(
        "lifecycle: do-not-retry is tried again",
        (
            Edit(
                "lifecycle.py", "case Raised(failure, retryable=False):\n            return Fail(failure)\n        ", ""
            ),
        ),
        (f"{UNIT}/test_lifecycle.py",),
    ),
    Mutant(
        "lifecycle: the handler's own delay is ignored",
        (Edit("lifecycle.py", "if delay is None:", "if delay is None or delay:"),),
        (f"{UNIT}/test_lifecycle.py",),
    ),
    Mutant(
        "backoff: the first wait is already doubled",
        (Edit("backoff.py", "max(attempts - 1, 0)", "max(attempts, 0)"),),
        (f"{UNIT}/test_backoff.py",),
    ),
    Mutant(
        "backoff: the cap is forgotten",
        (Edit("backoff.py", "seconds = min(seconds, self.cap)", "seconds = max(seconds, self.base)"),),
        (f"{UNIT}/test_backoff.py",),
    ),
    Mutant(
        "backoff: jitter may shorten",
        (Edit("backoff.py", "(1 + self.jitter * random())", "(1 + self.jitter * (random() - 0.5))"),),
        (f"{UNIT}/test_backoff.py",),
    ),
    Mutant(
        "keys: sorted as Python sorts, not as JavaScript does",
        (Edit("keys.py", "key=_by_utf16", "key=lambda member: member[0]"),),
        (f"{UNIT}/test_keys.py",),
    ),
    Mutant(
        "keys: parts of a digest run into each other",
        (Edit("keys.py", '        hasher.update(len(encoded).to_bytes(8, "big"))\n', ""),),
        (f"{UNIT}/test_keys.py",),
    ),
    Mutant(
        "rules: a negative priority is taken",
        (Edit("validation.py", "not 0 <= priority <= MAX_PRIORITY", "not priority <= MAX_PRIORITY"),),
        (f"{UNIT}/test_validation.py",),
    ),
    Mutant(
        "rules: characters are counted instead of bytes",
        (Edit("validation.py", "size = len(job.payload.encode())", "size = len(job.payload)"),),
        (f"{UNIT}/test_validation.py",),
    ),
    Mutant(
        "store url: credentials end at the first @",
        (Edit("store_url.py", 'rest.rpartition("@")', 'rest.partition("@")'),),
        (f"{UNIT}/test_store_url.py",),
    ),
    Mutant(
        "store url: the rest of a password in the settings is shown",
        (Edit("store_url.py", 'if "?" in credentials:', "if False:"),),
        ("tests/unit/test_store_url.py",),
    ),
    Mutant(
        "store url: a parser's message shows a part of the password",
        (Edit("store_url.py", 'if any(one in authority.rpartition("@")[0] for one in "[]"):', "if False:"),),
        ("tests/unit/test_store_url.py",),
    ),
    Mutant(
        "store url: an unencoded slash ends the password",
        (Edit("store_url.py", ' or "@" in before_query[len(authority) :]', ""),),
        (f"{UNIT}/test_store_url.py",),
    ),
    Mutant(
        "store url: a driver's message is shown whole",
        (Edit("store_url.py", ", message, maxsplit=1)[0]", ', message + "\\"")[0] + message'),),
        (f"{UNIT}/test_store_url.py",),
    ),
    Mutant(
        "output: JSON steers the terminal",
        (Edit("cli/output.py", "escape_json(shown.decode())", "shown.decode()"),),
        ("tests/cli/test_usage.py",),
    ),
    Mutant(
        "validation: a type of any length",
        (Edit("validation.py", "if len(name) > MAX_TYPE:", "if len(name) < 0:"),),
        (f"{UNIT}/test_validation.py",),
    ),
    Mutant(
        "rules: a pattern takes what merely begins alike",
        (Edit("validation.py", "name.startswith(pattern[:-1])", "name.startswith(pattern[:-2])"),),
        (f"{UNIT}/test_validation.py",),
    ),
    Mutant(
        "checks: only the first job of a bulk is checked",
        (
            Edit(
                "engine/checks.py",
                "            for place, job in enumerate(jobs):\n",
                "            for place, job in enumerate(jobs[:1]):\n",
            ),
        ),
        (f"{CONFORMANCE}/test_enqueue.py",),
    ),
    Mutant(
        "checks: absent keys are not refused",
        (Edit("engine/checks.py", "            require(Feature.IDEMPOTENCY)", "            pass"),),
        (f"{UNIT}/test_checked.py",),
    ),
    Mutant(
        "migrations: a newer store is not refused",
        (Edit("engine/migrations.py", "if newest > len(shipped):", "if newest < 0:"),),
        (f"{UNIT}/test_migrations.py",),
    ),
    Mutant(
        "migrations: an edited step is not noticed",
        (Edit("engine/migrations.py", "checksum is not None and checksum != migration.checksum", "checksum == ''"),),
        (f"{UNIT}/test_migrations.py",),
    ),
)

FENCES: Final = (
    _unfenced_many("complete_many", OLDER_CLAIM, in_ci=True),
    _unfenced_many("start_many", OLDER_CLAIM),
    _unfenced_many("heartbeat_jobs", f"{CONFORMANCE}/test_leases.py"),
    *map(_unfenced, ("retry", "fail", "bury", "snooze", "release")),
    Mutant(
        "cancel_held: the fence is dropped",
        (Edit(f"{_SQL}/cancel_held.sql", _FENCE, "where seq = :seq and "),),
        (f"{CONFORMANCE}/test_transitions.py::test_a_handler_can_take_back_only_the_job_it_holds",),
    ),
    Mutant(
        "report_progress: the fence is dropped",
        (Edit(f"{_SQL}/report_progress.sql", _FENCE, "where seq = :seq and "),),
        (f"{CONFORMANCE}/test_queries.py",),
    ),
    Mutant(
        "complete_many: a job that has not started can complete",
        (Edit(f"{_SQL}/complete_many.sql", "status = 'running'", "status in ('claimed', 'running')"),),
        (f"{CONFORMANCE}/test_transitions.py",),
    ),
    Mutant(
        "claim: a claim has the token of the one before",
        (
            Edit(f"{_SQL}/claim.sql", "claim_no = :claim_no", "claim_no = coalesce(nullif(claim_no, 0), :claim_no)"),
            Edit(f"{_PY}/claims.py", "token=(job.seq, claim_no)", "token=(job.seq, 1)"),
        ),
        (f"{CONFORMANCE}/test_claim.py",),
    ),
    Mutant(
        "restore: a copied file is taken for the one that was confirmed",
        (Edit(f"{_PY}/maintenance.py", "confirmed == database.inode()", "confirmed is not None"),),
        ("tests/engines/sqlite/test_restore.py",),
    ),
    Mutant(
        "claim: the token repeats in a restored file",
        (Edit(f"{_PY}/claims.py", "claim_no = new_claim_no()", "claim_no = transaction.now"),),
        ("tests/engines/sqlite/test_restore.py",),
    ),
)

COUNTING: Final = (
    Mutant(
        "release: the attempt is not given back",
        (Edit(f"{_SQL}/release.sql", "attempts = attempts - (status = 'running'), ", ""),),
        (f"{CONFORMANCE}/test_counting.py",),
    ),
    Mutant(
        "snooze: the attempt is not given back",
        (Edit(f"{_SQL}/snooze.sql", "attempts = attempts - 1,\n", "attempts = attempts,\n"),),
        (f"{CONFORMANCE}/test_counting.py",),
    ),
    Mutant(
        "rescue: the attempt is not given back",
        (Edit(f"{_SQL}/rescue.sql", ", attempts = attempts - (status = 'running'),", ","),),
        (f"{CONFORMANCE}/test_counting.py",),
    ),
    Mutant(
        "rescue: what is lost once is a suspect",
        (Edit(f"{_SQL}/rescue.sql", "(status = 'running' and was_lost)", "status = 'running'"),),
        (f"{CONFORMANCE}/test_counting.py",),
    ),
    Mutant(
        "rescue: what is lost twice is no suspect",
        (Edit(f"{_SQL}/rescue.sql", "was_lost = was_lost or status = 'running'", "was_lost = 0"),),
        (f"{CONFORMANCE}/test_counting.py",),
    ),
    Mutant(
        "retry: a run that ends by itself does not clear a loss",
        (Edit(f"{_SQL}/retry.sql", "was_lost = 0, ", ""),),
        (f"{CONFORMANCE}/test_counting.py",),
    ),
    Mutant(
        "record_crash: a lost claim counts a crash",
        (Edit(f"{_SQL}/record_crash.sql", " and claim_no = :claim_no", " and :claim_no is not null"),),
        (f"{CONFORMANCE}/test_counting.py",),
    ),
    Mutant(
        "start_many: the run is not counted",
        (Edit(f"{_SQL}/start_many.sql", "attempts = attempts + 1, ", ""),),
        (f"{CONFORMANCE}/test_claim.py",),
    ),
    Mutant(
        "claim: a suspect comes among the others",
        (
            Edit(_SCHEMA, "where status = 'pending' and suspect = 0;", "where status = 'pending';"),
            Edit(f"{_SQL}/claim_pick.sql", "and suspect = 0 and", "and"),
        ),
        (f"{CONFORMANCE}/test_counting.py",),
    ),
    Mutant(
        "enqueue: the queue's own attempts are ignored",
        (
            Edit(f"{_SQL}/enqueue.sql", "coalesce(:max_attempts, max_attempts,", "coalesce(:max_attempts,"),
            Edit(f"{_SQL}/enqueue_one.sql", "coalesce(:max_attempts, max_attempts,", "coalesce(:max_attempts,"),
        ),
        (f"{CONFORMANCE}/test_queues.py",),
    ),
)

LEASES: Final = (
    Mutant(
        "heartbeat: the lease is not renewed",
        (Edit(f"{_SQL}/heartbeat_jobs.sql", "set lease_until = :now + lease_us", "set lease_until = lease_until"),),
        (f"{CONFORMANCE}/test_leases.py",),
        in_ci=True,
    ),
    Mutant(
        "rescue: the lease is not looked at",
        (
            Edit(f"{_SQL}/rescue_pick.sql", " and lease_until <= :now limit", " limit"),
            Edit(f"{_SQL}/rescue.sql", " and lease_until <= :now and", " and"),
        ),
        (f"{CONFORMANCE}/test_leases.py",),
    ),
    Mutant(
        "claim: the queue's own lease is ignored",
        (
            Edit(
                f"{_PY}/claims.py",
                "lease_us = queue.lease_us or self._request.lease // MICROSECOND",
                "lease_us = self._request.lease // MICROSECOND",
            ),
        ),
        (f"{CONFORMANCE}/test_leases.py", f"{CONFORMANCE}/test_queues.py"),
    ),
    _without_term("promote"),
    _without_term("expire", SQLITE),
    _without_term("rescue"),
    _without_term("rescue_workers", SQLITE),
    _without_term("prune"),
    Mutant(
        "elect_renew: a leader whose term is over stays",
        (
            Edit(
                f"{_SQL}/elect_renew.sql",
                "number = :number and leader_id = :candidate and until > :now",
                "leader_id = :candidate",
            ),
        ),
        (f"{CONFORMANCE}/test_leader.py",),
    ),
    Mutant(
        "elect: a leader is deposed before its time",
        (Edit(f"{_SQL}/elect.sql", "\n where onward_leader.until <= :now", ""),),
        (f"{CONFORMANCE}/test_leader.py",),
    ),
    Mutant(
        "resign: anybody's term is ended",
        (Edit(f"{_SQL}/resign.sql", "number = :number and leader_id = :leader_id and ", ""),),
        (f"{CONFORMANCE}/test_leader.py",),
    ),
)

ORDER: Final = (
    Mutant(
        "claim_pick: the less urgent first",
        (Edit(f"{_SQL}/claim_pick.sql", "order by priority desc, ready_at", "order by priority, ready_at"),),
        (f"{CONFORMANCE}/test_claim.py",),
    ),
    Mutant(
        "claim_pick: by when they were made, not by when they were ready",
        (Edit(f"{_SQL}/claim_pick.sql", "desc, ready_at, seq", "desc, created_at, seq"),),
        (f"{CONFORMANCE}/test_claim.py",),
    ),
    Mutant(
        "promote: a delayed job has waited since it was made",
        (Edit(f"{_SQL}/promote.sql", "ready_at = next_run_at", "ready_at = created_at"),),
        (f"{CONFORMANCE}/test_claim.py",),
    ),
    Mutant(
        "promote: before its time",
        (Edit(f"{_SQL}/promote_pick.sql", "and next_run_at <= :now ", ""),),
        (f"{CONFORMANCE}/test_promotion.py",),
    ),
    Mutant(
        "claim_pick: start_by is ignored",
        (Edit(f"{_SQL}/claim_pick.sql", " and (start_by is null or start_by > :now)", ""),),
        (f"{CONFORMANCE}/test_promotion.py",),
    ),
    Mutant(
        "start_many: start_by is ignored",
        (Edit(f"{_SQL}/start_many.sql", " and (start_by is null or start_by > :now)", ""),),
        (f"{CONFORMANCE}/test_promotion.py",),
    ),
    Mutant(
        "claims: every claim begins with the first queue",
        (
            Edit(
                f"{_PY}/claims.py",
                "first = self._round_robin.next_name\n        yield from self._page_range",
                'first = ""\n        yield from self._page_range',
            ),
        ),
        (f"{CONFORMANCE}/test_queues.py",),
    ),
    Mutant(
        "claims: weights count for nothing",
        (Edit(f"{_PY}/claims.py", "turn_size(queue.name, queue.weight * turns)", "turn_size(queue.name, turns)"),),
        (f"{CONFORMANCE}/test_queues.py",),
    ),
)

LIMITS: Final = (
    Mutant(
        "claims: the rate's next permit is not advanced",
        (
            Edit(
                f"{_PY}/claims.py",
                '{"name": queue.name, "next_permit_at": queue.next_permit_at}',
                '{"name": queue.name, "next_permit_at": now}',
            ),
        ),
        (f"{CONFORMANCE}/test_limits.py",),
        in_ci=True,
    ),
    Mutant(
        "claims: twice the credit for a late taker",
        (Edit("engine/limits.py", "rate.slack // MICROSECOND // 2", "rate.slack // MICROSECOND"),),
        (f"{CONFORMANCE}/test_limits.py",),
    ),
    Mutant(
        "claims: a handler may start at any time after its permit",
        (
            Edit(
                f"{_PY}/claims.py",
                "start_within = None if rate is None else Pace.of(rate).start_within",
                "start_within = None",
            ),
        ),
        (f"{CONFORMANCE}/test_limits.py",),
    ),
    Mutant(
        "limits: a permit moves away with every look at it",
        (Edit(f"{_PY}/limits.py", "if found is not None and permit_at != found[0]:", "if False:"),),
        ("tests/limits/test_limiter.py",),
        only="changed_rate",
    ),
    Mutant(
        "limits: a key is taken though another is not free",
        (Edit(f"{_PY}/limits.py", "is_free = is_free and due_in <= 0", "is_free = due_in <= 0"),),
        ("tests/limits/test_limiter.py",),
        only="all_or_none",
    ),
    Mutant(
        "limits: permits that were given up take all others of their holder with them",
        (
            Edit(
                f"{_PY}/limits.py",
                "delete from onward_concurrency_permit where key = ? and holder = ?",
                "delete from onward_concurrency_permit where ? <> '' and holder = ?",
            ),
        ),
        ("tests/limits/test_limiter.py",),
        only="given_up and sqlite",
    ),
    Mutant(
        "limits: permits that were denied are given up",
        (Edit("pg/limits/__init__.py", "held if taken else (),", "held,"),),
        ("tests/limits/test_limiter.py",),
        only="given_up and postgres",
        engine="postgres",
    ),
    Mutant(
        "limits: a permit that another has followed is given back",
        (Edit("pg/limits/schema.sql", " and p.next_permit_at = (t.value ->> 1)::bigint", ""),),
        ("tests/limits/test_limiter.py",),
        only="given_up",
        engine="postgres",
    ),
    Mutant(
        "limits: a lease of a clock that went back is never over",
        (
            Edit(
                "pg/limits/schema.sql",
                "where c.key = one.key and c.until > now_at + c.lease;",
                "where false;",
            ),
        ),
        ("tests/limits/test_limiter.py",),
        only="went_back",
        engine="postgres",
    ),
    Mutant(
        "limits: a permit in use is pruned",
        (
            Edit(
                "pg/limits/__init__.py",
                "where next_permit_at <= {_NOW} - $3::bigint",
                "where $3::bigint > {_NOW} - {_NOW}",
            ),
        ),
        ("tests/limits/test_limiter.py",),
        only="pruning",
        engine="postgres",
    ),
    Mutant(
        "limits: a late taker waits for a whole spacing",
        (
            Edit(
                "engine/limits.py",
                "max(permit_at, now - self.credit) + self.spacing\n        return",
                "max(permit_at, now) + self.spacing\n        return",
            ),
        ),
        ("tests/limits/test_pace.py",),
    ),
    Mutant(
        "pgmq limits: permits of jobs that were not there are kept",
        (
            Edit(
                "engines/pgmq/migrations/0005_claims.sql",
                "        perform onward.give_up_permits(permits.token);\n",
                "",
            ),
        ),
        (f"{CONFORMANCE}/test_limits.py",),
        only="empty_queue",
        engine="pgmq",
    ),
    Mutant(
        "pgmq limits: concurrency does not count what is held",
        (Edit("engines/pgmq/migrations/0005_claims.sql", "share, onward.held_count(name))", "share, 0)"),),
        (f"{CONFORMANCE}/test_limits.py",),
        only="held_at_once",
        engine="pgmq",
    ),
    Mutant(
        "pgboss limits: a paused queue gives jobs",
        (
            Edit("engines/pgboss/sql/claim.sql", "q.name = w.name and q.paused", "false"),
            Edit("engines/pgboss/claims.py", "if not queue_cache.settings_of(queue.name).paused", ""),
        ),
        (f"{CONFORMANCE}/test_queues.py",),
        only="pause",
        engine="pgboss",
    ),
    Mutant(
        "pgboss limits: a claim that does not know of a limit takes all the same",
        (
            Edit(
                "engines/pgboss/sql/claim.sql",
                "($8::boolean or not exists (select from onward.queue_limit l where l.queue = w.name))",
                "true",
            ),
        ),
        ("tests/engines/pgboss/test_limits.py",),
        engine="pgboss",
    ),
    Mutant(
        "pgboss limits: permits of jobs that were not there are kept",
        (Edit("engines/pgboss/claims.py", "if count < permitted:", "if False:"),),
        (f"{CONFORMANCE}/test_limits.py",),
        only="empty_queue",
        engine="pgboss",
    ),
    Mutant(
        "values: slots are no further apart than the period over the count",
        (
            Edit(
                "engine/values.py",
                "return (self.period + self.slack) / (self.count - self.burst + 1)",
                "return self.period / self.count",
            ),
        ),
        (f"{UNIT}/test_job.py",),
    ),
    Mutant(
        "claims: concurrency does not count what others hold",
        (
            Edit(
                f"{_PY}/claims.py",
                "queue.global_concurrency - held - already_picked",
                "queue.global_concurrency - already_picked",
            ),
        ),
        (f"{CONFORMANCE}/test_limits.py",),
    ),
    Mutant(
        "claims: limited queues are claimed ahead",
        (
            Edit(
                f"{_PY}/claims.py",
                "self.capacity.left if rate is None and queue.global_concurrency is None else self.capacity.slots",
                "self.capacity.left",
            ),
        ),
        (f"{CONFORMANCE}/test_limits.py",),
    ),
    Mutant(
        "settle: a freed concurrency permit is not seen",
        (Edit(f"{_SQL}/queue_reopen_freed.sql", "where open = 0", "where open = 2"),),
        (f"{CONFORMANCE}/test_limits.py",),
    ),
    Mutant(
        "queues: pause is ignored",
        (
            Edit(f"{_SQL}/queue_ensure_open.sql", "where open = 0 and paused = 0", "where open = 0"),
            Edit(_SCHEMA, "  check (paused = 0 or open = 0),\n", ""),
        ),
        (f"{CONFORMANCE}/test_queues.py",),
    ),
    Mutant(
        "claim_pick_suspect: a suspect of a paused queue is let go",
        (Edit(f"{_SQL}/claim_pick_suspect.sql", " and q.paused = 0", ""),),
        (f"{CONFORMANCE}/test_queues.py", f"{CONFORMANCE}/test_counting.py"),
    ),
    Mutant(
        "claim_next_permit: every limited queue is read through",
        (
            Edit(f"{_SQL}/claim_next_permit.sql", "order by reopens_at limit 32) q", "order by reopens_at) q"),
            Edit(f"{_SQL}/claim_next_permit.sql", "position = 32 or ", ""),
        ),
        (f"{SQLITE}/test_plans.py::test_ten_thousand_limited_queues_of_others_cost_a_claim_little",),
    ),
)

KEYS: Final = (
    Mutant(
        "keys: organisations share idempotency keys",
        (Edit("keys.py", "if org_id is None else digest(type, org_id, key)", ""),),
        (f"{CONFORMANCE}/test_keys.py",),
        only="organisation",
    ),
    Mutant(
        "enqueue: a key is looked up outside the transaction",
        (
            Edit(_SCHEMA, "create unique index onward_job_key", "create index onward_job_key"),
            Edit(
                f"{_SQL}/find_by_key.sql",
                "update onward_job set updated_at = max(:now, updated_at + 1) where key_digest = :digest "
                "returning queue, id",
                "select queue, id from onward_job where key_digest = :digest and :now",
            ),
            Edit(
                f"{_PY}/enqueue.py",
                "            existing = _existing_job(buffer.transaction, job)\n",
                "            import sqlite3\n"
                "            file = buffer.transaction.connection.execute('pragma database_list').fetchone()[2]\n"
                "            outside = sqlite3.connect(file)\n"
                "            existing = _existing_job(Transaction(outside, buffer.transaction.now), job)\n"
                "            outside.close()\n",
            ),
        ),
        (f"{CONFORMANCE}/test_races.py", f"{CONFORMANCE}/test_keys.py"),
    ),
    Mutant(
        "find_by_key: a finished job's key is free again",
        (
            Edit(
                _SCHEMA,
                "on onward_job (key_digest) where key_digest is not null",
                "on onward_job (key_digest) where key_digest is not null and completed_at is null",
            ),
            Edit(f"{_SQL}/find_by_key.sql", "key_digest = :digest", "key_digest = :digest and completed_at is null"),
        ),
        (f"{CONFORMANCE}/test_keys.py",),
    ),
    Mutant(
        "find_by_dedupe: a running job does not stand for its key",
        (
            Edit(_SCHEMA, "create unique index onward_job_dedupe", "create index onward_job_dedupe"),
            Edit(
                f"{_SQL}/find_by_dedupe.sql",
                "and completed_at is null",
                "and completed_at is null and status <> 'running'",
            ),
        ),
        (f"{CONFORMANCE}/test_keys.py",),
    ),
    Mutant(
        "enqueue: the same key of another type is the same job",
        (
            Edit(f"{_PY}/enqueue.py", "idempotency_digest(job.type, ", 'idempotency_digest("", '),
            Edit(f"{_PY}/enqueue.py", "idempotency_digest(columns.type, ", 'idempotency_digest("", '),
        ),
        (f"{CONFORMANCE}/test_keys.py",),
    ),
    Mutant(
        "replay: two jobs may have one dedupe key",
        (
            Edit(_SCHEMA, "create unique index onward_job_dedupe", "create index onward_job_dedupe"),
            Edit(f"{_SQL}/replay.sql", "other.completed_at is null)", "false)"),
        ),
        (f"{CONFORMANCE}/test_keys.py", f"{CONFORMANCE}/test_admin.py"),
    ),
)

BUTTONS: Final = (
    Mutant(
        "cancel: a finished job can be cancelled",
        (
            Edit(f"{_PY}/admin.py", "MOVES[Move.CANCEL][0]", "frozenset(JobStatus)"),
            Edit(
                f"{_SQL}/cancel.sql",
                "where status in ('scheduled', 'blocked', 'pending', 'claimed', 'running') and",
                "where",
            ),
        ),
        (f"{CONFORMANCE}/test_transitions.py",),
    ),
    Mutant(
        "replay: a completed job can be replayed",
        (
            Edit(f"{_PY}/admin.py", "MOVES[Move.REPLAY][0]", "FINISHED"),
            Edit(f"{_SQL}/replay.sql", "and status in ('failed', 'dead_letter', 'cancelled')", ""),
            Edit(f"{_SQL}/replay.sql", "crashes = 0,", "crashes = 0, result = null,"),
        ),
        (f"{CONFORMANCE}/test_transitions.py",),
    ),
    Mutant(
        "replay: with the attempts it had used up",
        (Edit(f"{_SQL}/replay.sql", "attempts = 0, ", ""),),
        (f"{CONFORMANCE}/test_admin.py",),
    ),
    Mutant(
        "delete: a held job can be deleted",
        (
            Edit(f"{_PY}/admin.py", "WAITING | FINISHED", "frozenset(JobStatus)"),
            Edit(f"{_SQL}/delete.sql", "where status not in ('claimed', 'running') and", "where"),
        ),
        (f"{CONFORMANCE}/test_admin.py",),
    ),
    Mutant(
        "prune: what is younger goes too",
        (Edit(f"{_SQL}/prune_by_age.sql", "j.completed_at <= :now - q.keep_completed_us", "j.completed_at <= :now"),),
        (f"{CONFORMANCE}/test_retention.py",),
    ),
    Mutant(
        "prune: one more is kept than was asked for",
        (Edit(f"{_SQL}/prune_by_count.sql", "offset :kept", "offset :kept + 1"),),
        (f"{CONFORMANCE}/test_retention.py",),
    ),
    Mutant(
        "complete_many: the result is lost",
        (Edit(f"{_SQL}/complete_many.sql", "result = of_result", "result = null"),),
        (f"{CONFORMANCE}/test_enqueue.py", f"{CONFORMANCE}/test_transitions.py", f"{CONFORMANCE}/test_races.py"),
    ),
    Mutant(
        "schema: updated_at is not kept for changes by hand",
        (Edit(_SCHEMA, "on onward_job when new.updated_at <= old.updated_at", "on onward_job when false"),),
        (f"{CONFORMANCE}/test_enqueue.py",),
    ),
)

LANES: Final = (
    Mutant(
        "writer: an error in a group is swallowed",
        (
            Edit(
                f"{_PY}/writer.py",
                "            if len(requests) > 1:\n                return False\n",
                "            if len(requests) > 1:\n"
                "                for request in requests:\n"
                "                    request.is_done = True\n"
                "                return True\n",
            ),
        ),
        (f"{SQLITE}/test_group_commit.py",),
        in_ci=True,
    ),
    Mutant(
        "writer: a caller is answered before the commit",
        (
            Edit(
                f"{_PY}/writer.py",
                '            connection.execute("commit")\n',
                "            for request, result in zip(requests, results, strict=True):\n"
                "                request.result, request.is_done = result, True\n"
                "            deliver(requests)\n"
                "            time.sleep(0.05)\n"
                '            connection.execute("commit")\n',
            ),
        ),
        (f"{SQLITE}/test_group_commit.py",),
    ),
    Mutant(
        "request_queue: everybody for himself",
        (Edit(f"{_PY}/request_queue.py", "while len(requests) < MAX_GROUP_SIZE:", "while len(requests) < 1:"),),
        (f"{SQLITE}/test_group_commit.py",),
    ),
    Mutant(
        "writer: a slow disk holds loops up",
        (
            Edit(
                f"{_PY}/writer.py",
                "self._recent_commit_seconds <= _MAX_INLINE_COMMIT_SECONDS\n                    and sum(",
                "sum(",
            ),
        ),
        (f"{SQLITE}/test_inline_writes.py",),
    ),
    Mutant(
        "writer: a loop never has its turn",
        (Edit(f"{_PY}/writer.py", "            self._inline_left -= 1\n", ""),),
        (f"{SQLITE}/test_inline_writes.py",),
    ),
    Mutant(
        "enqueue: a job that waits for its time is added at once",
        (Edit(f"{_PY}/enqueue.py", "        and job.delay is None\n", ""),),
        (f"{SQLITE}/test_inline_writes.py",),
    ),
    Mutant(
        "writer: who goes away leaves a job behind",
        (Edit(f"{_PY}/writer.py", "            turn_requests.remove(request)\n", ""),),
        (f"{SQLITE}/test_inline_writes.py",),
    ),
    Mutant(
        "writer: a loop waits for another program",
        (Edit(f"{_PY}/writer.py", '"pragma busy_timeout = 0"', '"pragma busy_timeout = 200"'),),
        (f"{SQLITE}/test_inline_writes.py",),
    ),
    Mutant(
        "request_queue: heartbeats wait behind other requests",
        (
            Edit(
                f"{_PY}/request_queue.py",
                "(self._urgent if urgent else self._requests).extend(requests)",
                "self._requests.extend(requests)",
            ),
        ),
        (f"{SQLITE}/test_group_commit.py",),
    ),
    Mutant(
        "writer: the log is never cut back",
        (Edit(f"{_PY}/database.py", "if size > WAL_SIZE_LIMIT:", "if size > 1000 * WAL_SIZE_LIMIT:"),),
        (f"{SQLITE}/test_checkpoints.py",),
    ),
    Mutant(
        "writer: a commit tells nobody",
        (Edit(f"{_PY}/writer.py", "        if transaction.wakes_workers:\n            self.on_wake()\n", ""),),
        (f"{SQLITE}/test_file_watcher.py",),
    ),
    Mutant(
        "database: SQLite checkpoints when it likes",
        (Edit(f"{_PY}/database.py", "pragma wal_autocheckpoint = 0", "pragma wal_autocheckpoint = 1000"),),
        (f"{SQLITE}/test_checkpoints.py",),
    ),
    Mutant(
        "database: commits are not flushed",
        (Edit(f"{_PY}/database.py", 'f"pragma synchronous = {self.synchronous}"', '"pragma synchronous = normal"'),),
        (f"{SQLITE}/test_durability.py",),
    ),
    Mutant(
        "database: a network file system is taken",
        (Edit(f"{_PY}/database.py", "if file_system in _NETWORK_FILE_SYSTEMS:", 'if file_system == "none":'),),
        (f"{SQLITE}/test_bad_input.py",),
        only="network",
    ),
    Mutant(
        "file_watcher: the watcher is silent",
        (Edit(f"{_PY}/file_watcher.py", "                    self.notify()\n", ""),),
        (f"{SQLITE}/test_file_watcher.py::test_every_change_at_a_console_is_told",),
    ),
    Mutant(
        "file_watcher: no second look after a notice",
        (Edit(f"{_PY}/file_watcher.py", "for number in range(10)", "for number in range(0)"),),
        (f"{SQLITE}/test_file_watcher.py::test_every_change_of_another_process_is_told",),
    ),
    Mutant(
        "write_lock: anybody takes it at any time",
        (
            Edit(
                f"{_PY}/write_lock.py",
                "        if self._descriptors is None:\n            yield",
                "        if True:\n            yield",
            ),
        ),
        (f"{SQLITE}/test_write_lock.py", f"{SQLITE}/test_checkpoints.py"),
    ),
    Mutant(
        "write_lock: who has just written goes before one that waits",
        (
            Edit(
                f"{_PY}/write_lock.py",
                "                before_wait()\n                fcntl.flock(write, fcntl.LOCK_EX)\n",
                "                fcntl.flock(turn, fcntl.LOCK_UN)\n                before_wait()\n"
                "                fcntl.flock(write, fcntl.LOCK_EX)\n",
            ),
        ),
        (f"{SQLITE}/test_write_lock.py::test_who_has_just_written_does_not_go_before_one_that_waits",),
    ),
    Mutant(
        "fork_safety: connections are carried across a fork",
        (
            Edit(
                f"{_PY}/fork_safety.py",
                "before=_before, after_in_parent=_after_in_parent, after_in_child",
                "after_in_child",
            ),
        ),
        (f"{SQLITE}/test_fork_safety.py",),
    ),
    Mutant(
        "migrations: a step is applied but not recorded",
        (
            Edit(
                f"{_PY}/migrations/__init__.py",
                '"insert into onward_migration values (?, ?, ?, ?)"',
                '"select ?, ?, ?, ?"',
            ),
        ),
        (f"{SQLITE}/test_migrations.py",),
    ),
    Mutant(
        "engine: what fails within the caller's transaction is left there",
        (Edit(f"{_PY}/caller_transaction.py", '        connection.execute("rollback to onward")\n', ""),),
        (f"{SQLITE}/test_bad_input.py",),
        only="within",
    ),
    Mutant(
        "engine: another file's connection is taken",
        (Edit(f"{_PY}/caller_transaction.py", " or not database.path.samefile(theirs)", ""),),
        (f"{SQLITE}/test_bad_input.py",),
        only="connection",
        in_ci=True,
    ),
)

SCHEDULES: Final = (
    Mutant(
        "scheduler: a queue that was dropped keeps other schedules from their turns",
        (Edit("worker/scheduler.py", "except Unsupported as error:", "except KeyError as error:"),),
        ("tests/engines/pgmq/test_schedules.py",),
        engine="pgmq",
    ),
    Mutant(
        "bullmq: Onward's workers count as Node's",
        (Edit("engines/bullmq/queries.py", " and not each.startswith(is_ours)", ""),),
        ("tests/interop/bullmq/test_workers.py",),
        only="",
        engine="bullmq",
    ),
    Mutant(
        "bullmq: a queue that Node closed for a while gives jobs",
        (
            Edit(
                "engines/bullmq/lua/claim.lua",
                "queue.limited, queue.cap, queue.available = true, 0, 0",
                "queue.limited = true",
            ),
        ),
        ("tests/interop/bullmq/test_limits.py",),
        only="closed",
        engine="bullmq",
    ),
    Mutant(
        "bullmq: a handler that lost its job lets it wait for children",
        (
            Edit(
                "engines/bullmq/lua/wait_for_children.lua",
                "if call('GET', key .. ':lock') ~= ARGV[6] then",
                "if false then",
            ),
        ),
        ("tests/interop/bullmq/test_flows.py",),
        only="lost",
        engine="bullmq",
    ),
    Mutant(
        "bullmq: a handler waits although a child has failed",
        (
            Edit(
                "engines/bullmq/lua/wait_for_children.lua",
                "if call('ZCARD', key .. ':unsuccessful') > 0 then",
                "if false then",
            ),
        ),
        ("tests/interop/bullmq/test_flows.py",),
        only="child_has_failed",
        engine="bullmq",
    ),
    Mutant(
        "bullmq: a job that does not exist gets data",
        (Edit("engines/bullmq/lua/update_job.lua", "if call('EXISTS', key) == 0 then", "if false then"),),
        ("tests/interop/bullmq/test_flows.py",),
        only="native_verbs_refuse",
        engine="bullmq",
    ),
    Mutant(
        "bullmq: another database of a cluster is accepted",
        (Edit("engines/bullmq/client_factory.py", 'if self.is_cluster and database != "0":', "if False:"),),
        ("tests/engines/bullmq/test_causes.py",),
        only="other_than_0",
        engine="bullmq",
    ),
    Mutant(
        "bullmq: TLS to a plain port waits for the timeout",
        (
            Edit(
                "engines/bullmq/client_factory.py",
                "if _speaks_tls(host, port) or not _speaks_plain(host, port):",
                "if True:",
            ),
        ),
        ("tests/engines/bullmq/test_causes.py",),
        only="tls and open",
        engine="bullmq",
    ),
    Mutant(
        "bullmq: missing rights to keys are taken for missing commands",
        (Edit("engines/bullmq/client_factory.py", 'if "key" in str(error):', "if False:"),),
        ("tests/engines/bullmq/test_causes.py",),
        only="rights_to_keys",
        engine="bullmq",
    ),
    Mutant(
        "pg: the grants that an error names include the access tokens",
        (Edit("pg/companion_store.py", '; revoke all on {access} from "{{user}}"\'', "'"),),
        ("tests/engines/test_grants.py",),
        only="suffice and pgmq",
        engine="pgmq",
    ),
    Mutant(
        "pg: a schema name that is too long is accepted",
        (Edit("pg/schema_name.py", "if len(name) > max_length:", "if False:"),),
        ("tests/engines/test_grants.py",),
        only="says_why",
        engine="pgboss",
    ),
    Mutant(
        "schedule on PostgreSQL and PGMQ: a turn is fired by all who try",
        (Edit("pg/sql/schedule_fire.sql", " and next_at = onward.to_timestamp($4::bigint)", " and $4::bigint > 0"),),
        (f"{CONFORMANCE}/test_schedule_store.py",),
        only="however_many_try",
        engine="pgmq",
    ),
    Mutant(
        "schedule: an engine's missing policy for missed turns is accepted",
        (Edit("engine/capabilities.py", "            self.require(Feature.MISSED_TURNS)\n", "            pass\n"),),
        (f"{CONFORMANCE}/test_schedule_store.py",),
        only="engine_lacks",
        engine="pgboss",
    ),
    Mutant(
        "schedule: an interval is accepted where there are cron expressions only",
        (Edit("engine/capabilities.py", "            self.require(Feature.INTERVALS)\n", "            pass\n"),),
        ("tests/app/test_schedules.py",),
        only="pgboss",
        engine="pgboss",
    ),
    Mutant(
        "schedule on pg-boss: a turn has no slot",
        (Edit("engines/pgboss/cron.py", "            singleton_seconds=60,\n", ""),),
        (f"{CONFORMANCE}/test_schedule_store.py",),
        only="however_many_workers and pgboss",
        engine="pgboss",
    ),
    Mutant(
        "schedule on pg-boss: Node's schedules are fired unasked",
        (Edit("engines/pgboss/cron.py", " and (supervises or row.is_ours)", ""),),
        ("tests/engines/pgboss/test_cron.py",),
        engine="pgboss",
    ),
    Mutant(
        "schedule on pg-boss: the turn before a schedule was created is fired",
        (Edit("engines/pgboss/cron.py", "since if row.created_on is None else max(since, row.created_on)", "since"),),
        (f"{CONFORMANCE}/test_schedule_store.py",),
        only="before_its_turn",
        engine="pgboss",
    ),
    Mutant(
        "bullmq: a job that is put back takes its marker from Node's worker",
        (
            Edit(
                "engines/bullmq/engine.py",
                "            await self._listener.step_aside(queues)\n",
                "            pass\n",
            ),
        ),
        ("tests/engines/bullmq/test_idle.py",),
        only="leaves_its_marker",
        engine="bullmq",
    ),
    Mutant(
        "schedule on BullMQ: a paused interval is due for all that passed",
        (Edit("engines/bullmq/schedule_store.py", 'if known.schedule.paused and "every"', 'if False and "every"'),),
        (f"{CONFORMANCE}/test_schedule_store.py",),
        only="resumed and bullmq",
        engine="bullmq",
    ),
    Mutant(
        "schedule on BullMQ: one that moves to another queue stays in the first",
        (
            Edit(
                "engines/bullmq/schedule_store.py",
                "if other.is_ours and (other.queue, other.id) != (entry.queue, entry.id):",
                "if False:",
            ),
        ),
        (f"{CONFORMANCE}/test_schedule_store.py",),
        only="leaves_the_first",
        engine="bullmq",
    ),
    Mutant(
        "schedule: a turn is fired by all who try",
        (Edit(f"{_SQL}/schedule_fire.sql", " and next_at = :due and", " and :due and"),),
        (f"{CONFORMANCE}/test_schedule_store.py",),
        in_ci=True,
    ),
    Mutant(
        "schedule: a turn of another trigger is fired",
        (Edit(f"{_SQL}/schedule_fire.sql", " and trigger = :trigger", " and :trigger is not null"),),
        (f"{CONFORMANCE}/test_schedule_store.py",),
    ),
    Mutant(
        "schedule: a new declaration forgets what was missed",
        (Edit(f"{_SQL}/schedule_upsert.sql", "trigger = excluded.trigger then next_at", "false then next_at"),),
        (f"{CONFORMANCE}/test_schedule_store.py",),
    ),
    Mutant(
        "schedule: who is resumed is due for all that passed",
        (Edit(f"{_SQL}/schedule_upsert.sql", "excluded.paused = 0 and paused = 0 and", ""),),
        (f"{CONFORMANCE}/test_schedule_store.py",),
    ),
    Mutant(
        "schedule: missed turns are fired one by one",
        (Edit("schedule.py", "turns = [_latest(schedule.trigger, due, now)]", "turns = [due]"),),
        (f"{UNIT}/test_schedule.py",),
    ),
    Mutant(
        "schedule: jobs of a turn have no key",
        (Edit("schedule.py", 'idempotency_key=f"{schedule.name}@{turn.isoformat()}"', "idempotency_key=None"),),
        (f"{UNIT}/test_schedule.py",),
    ),
    Mutant(
        "cron: what the clocks run through twice comes twice",
        (Edit("cron.py", "if turn > last:", "if True:"),),
        (f"{UNIT}/test_cron.py",),
    ),
    Mutant(
        "cron: what the clocks leap over comes when it would have",
        (Edit("cron.py", "if _wall(turn, zone) != wall:", "if False:"),),
        (f"{UNIT}/test_cron.py",),
    ),
    Mutant(
        "cron: real time stands still while the clocks change",
        (Edit("cron.py", "_wall(moment, zone) - _SECOND\n", "wall\n"),),
        (f"{UNIT}/test_cron.py",),
    ),
    Mutant(
        "scheduler: what was paused by hand goes on",
        (Edit("worker/scheduler.py", "schedule.stopped() if is_paused else ", ""),),
        ("tests/app/test_schedules.py",),
    ),
    Mutant(
        "results: who comes while a watch ends is forgotten",
        (Edit("results.py", "                self._task = None  # it", "                # it"),),
        ("tests/app/test_results.py",),
    ),
)

_BULLMQ: Final = "engines/bullmq"
_BULLMQ_TESTS: Final = "tests/engines/bullmq"
_PARITY: Final = "tests/interop/bullmq/test_parity.py"
_IDLE: Final = f"{_BULLMQ_TESTS}/test_idle.py"
_SHARED: Final = f"{_BULLMQ_TESTS}/test_shared_queues.py"


def _on_bullmq(name: str, edit: Edit, *tests: str, only: str = "") -> Mutant:
    return Mutant(f"bullmq {name}", (edit,), tests, only=only, engine="bullmq")


BULLMQ: Final = (
    _on_bullmq(
        "tick: it runs jobs on a server that may evict them",
        Edit("worker/one_shot.py", "            await self._engine.check_worker()\n", ""),
        f"{_BULLMQ_TESTS}/test_memory.py",
        only="tick",
    ),
    _on_bullmq(
        "presence: a stuck connection delays the heartbeat",
        Edit(f"{_BULLMQ}/presence.py", "self._thread.start()", "self._show_requested()"),
        f"{_BULLMQ_TESTS}/test_presence.py",
    ),
    _on_bullmq(
        "presence: a worker that has ended is shown again",
        Edit(f"{_BULLMQ}/presence.py", "if worker_id in self._hidden:", "if False:"),
        f"{_BULLMQ_TESTS}/test_presence.py",
    ),
    _on_bullmq(
        "claim: a permit moves away with every claim",
        Edit(
            f"{_BULLMQ}/lua/claim.lua",
            "      call('HSET', settings_key(base), 'next_permit_at', int_string(latest))\n",
            "",
        ),
        f"{CONFORMANCE}/test_limits.py",
        only="raised_rate",
    ),
    _on_bullmq(
        "claim: it is not bounded by bytes",
        Edit(f"{_BULLMQ}/lua/claim.lua", "if size > bytes_left and taken > 0 then", "if false then"),
        f"{_BULLMQ_TESTS}/test_claim_size.py",
    ),
    _on_bullmq(
        "claim: a job longer than a claim never comes",
        Edit(f"{_BULLMQ}/lua/claim.lua", "if size > bytes_left and taken > 0 then", "if size > bytes_left then"),
        f"{_BULLMQ_TESTS}/test_claim_size.py",
    ),
    _on_bullmq(
        "claim: what does not fit is lost",
        Edit(f"{_BULLMQ}/lua/claim.lua", "        put_back(base, ids, position, scores)\n", ""),
        f"{_BULLMQ_TESTS}/test_claim_size.py",
    ),
    _on_bullmq(
        "claim: a key that is no hash ends the claim",
        Edit(f"{_BULLMQ}/lua/claim.lua", "redis.pcall('HGETALL', key)", "call('HGETALL', key)"),
        f"{_BULLMQ_TESTS}/test_claim_size.py",
    ),
    _on_bullmq(
        "claim: a number that is none ends the claim",
        Edit(
            f"{_BULLMQ}/rows.py",
            '    except (ValueError, OverflowError) as error:\n        raise UnreadableJob(f"its {name}',
            '    except ZeroDivisionError as error:\n        raise UnreadableJob(f"its {name}',
        ),
        f"{_BULLMQ_TESTS}/test_claim_size.py",
    ),
    _on_bullmq(
        "enqueue: organisations share idempotency keys",
        Edit(f"{_BULLMQ}/lua/lib/queue.lua", "(org and 'org:'", "(false and 'org:'"),
        f"{CONFORMANCE}/test_keys.py",
        only="organisation",
    ),
    _on_bullmq(
        "settle: the fence is dropped",
        Edit(f"{_BULLMQ}/lua/settle.lua", "tokens[n] == token and call(", "call("),
        OLDER_CLAIM,
        only="bullmq",
    ),
    _on_bullmq(
        "schedules: a job that only Node can schedule is consumed",
        Edit(f"{_BULLMQ}/claims.py", "if schedules.repeat_of(opts) is not None:", "if False:"),
        f"{_BULLMQ_TESTS}/test_schedules.py",
    ),
    _on_bullmq(
        "schedules: a damaged job ends its schedule",
        Edit(f"{_BULLMQ}/schedules.py", "if repeat_of(job.opts) is None:", "if False:"),
        f"{_BULLMQ_TESTS}/test_schedules.py",
    ),
    _on_bullmq(
        "schedules: a zone that is no text fails the whole claim",
        Edit(f"{_BULLMQ}/cron_pattern.py", "if name is not None and not isinstance(name, str):", "if False:"),
        f"{_BULLMQ_TESTS}/test_schedules.py",
    ),
    _on_bullmq(
        "schedules: a time beyond the calendar fails the whole claim",
        Edit(f"{_BULLMQ}/schedules.py", "except (OSError, OverflowError, ValueError):", "except KeyError:"),
        f"{_BULLMQ_TESTS}/test_schedules.py",
    ),
    _on_bullmq(
        "prune: jobs of others are looked at again and again, and ours behind them never",
        Edit(f"{_BULLMQ}/lua/prune.lua", "if is_default and #old == left then", "if false then"),
        f"{_BULLMQ_TESTS}/test_shared_queues.py",
    ),
    _on_bullmq(
        "cron_pattern: without a zone a pattern is in UTC",
        Edit(f"{_BULLMQ}/cron_pattern.py", '(name or "local")', '(name or "utc")'),
        f"{_BULLMQ_TESTS}/test_schedules.py",
    ),
    _on_bullmq(
        "claim: a queue that left the registry is not looked after again",
        Edit(f"{_BULLMQ}/lua/claim.lua", "    register(base)\n", ""),
        _SHARED,
    ),
    _on_bullmq(
        "prune: a queue with settings leaves the registry",
        Edit(f"{_BULLMQ}/lua/lib/queue.lua", "local places = {settings_key(base)}", "local places = {}"),
        _SHARED,
    ),
    _on_bullmq(
        "prune: jobs of other clients are removed",
        Edit(f"{_BULLMQ}/lua/prune.lua", "if not is_default or is_ours(id) then", "if true then"),
        _SHARED,
    ),
    _on_bullmq(
        "settle: what Node's workers count is not counted",
        Edit(f"{_BULLMQ}/lua/settle.lua", "if not max_points and call(", "if false and call("),
        _SHARED,
    ),
    _on_bullmq(
        "claim: a limiter without an end limits for ever",
        Edit(f"{_BULLMQ}/lua/claim.lua", "if left == 0 or left == -1 then", "if left == 0 then"),
        _SHARED,
    ),
    _on_bullmq(
        "server: no memory within a script is an unreachable store",
        Edit(f"{_BULLMQ}/client_factory.py", 'if code == "OOM":', "if False:"),
        f"{_BULLMQ_TESTS}/test_memory.py",
    ),
    _on_bullmq(
        "check_worker: jobs may be evicted",
        Edit(f"{_BULLMQ}/engine.py", 'if policy.startswith("allkeys-"):', "if False:"),
        f"{_BULLMQ_TESTS}/test_memory.py",
    ),
    _on_bullmq(
        "split_key: the last colon ends the queue",
        Edit(f"{_BULLMQ}/lua/lib/finish.lua", "if string.sub(key, 1, #root) == root then", "if false then"),
        f"{_BULLMQ_TESTS}/test_native.py::test_a_child_whose_id_has_colons_is_removed_with_its_parent",
    ),
    _on_bullmq(
        "parent_of: the parent field is not read",
        Edit(f"{_BULLMQ}/lua/lib/finish.lua", "== parent_key then", "== '' then"),
        f"{_BULLMQ_TESTS}/test_native.py::test_a_parent_of_another_prefix_is_woken_by_its_last_child",
    ),
    _on_bullmq(
        "settle: who is tried again at once overtakes those whose time has come",
        Edit(f"{_BULLMQ}/lua/settle.lua", "if has_immediate_retry then", "if false then"),
        f"{_PARITY}::test_who_is_tried_again_at_once_stands_behind_those_whose_time_has_come",
    ),
    _on_bullmq(
        "heartbeat: a lock is extended whosever it is",
        Edit(f"{_BULLMQ}/lua/heartbeat.lua", "if call('GET', lock) == ARGV[at + 2] then", "if call('GET', lock) then"),
        f"{CONFORMANCE}/test_leases.py",
        only="bullmq",
    ),
    _on_bullmq(
        "rescue: one look is enough",
        Edit(f"{_BULLMQ}/lua/rescue.lua", "ipairs(call('SMEMBERS', stalled))", "ipairs(call('LRANGE', active, 0, -1))"),
        f"{_BULLMQ_TESTS}/test_errors.py",
    ),
    _on_bullmq(
        "claim: the turn is lost from one go to the next",
        Edit(f"{_BULLMQ}/claims.py", "queues = queues[turn - 1 :] + queues[: turn - 1]\n        rotation", "rotation"),
        f"{CONFORMANCE}/test_queues.py::test_queues_share_one_batch",
        only="bullmq",
    ),
    _on_bullmq(
        "claim: one go is all there is",
        Edit(f"{_BULLMQ}/claims.py", "        if not rotation.has_backlog:\n            break", "        break"),
        f"{CONFORMANCE}/test_queues.py::test_queues_share_one_batch",
        only="bullmq",
    ),
    _on_bullmq(
        "schedule: picking a job up makes no other",
        Edit(f"{_BULLMQ}/engine.py", "if result.scheduled:", "if False:"),
        f"{_BULLMQ_TESTS}/test_errors.py",
    ),
    _on_bullmq(
        "schedule: any job of a scheduler makes another, not the newest alone",
        Edit(
            f"{_BULLMQ}/lua/advance_scheduler.lua",
            "if not last or ARGV[6] ~= 'repeat:' .. scheduler .. ':' .. int_string(last) then",
            "if not last then",
        ),
        f"{_BULLMQ_TESTS}/test_errors.py",
    ),
    _on_bullmq(
        "schedule: one that has ended leaves its job",
        Edit(
            f"{_BULLMQ}/lua/remove_scheduler.lua", "if call('ZREM', base .. 'delayed', id) == 1 then", "if false then"
        ),
        f"{_BULLMQ_TESTS}/test_native.py",
    ),
    _on_bullmq(
        "drain: the next job of a schedule goes too",
        Edit(f"{_BULLMQ}/lua/drain.lua", "if not is_next_of_scheduler(base, id) then", "if true then"),
        f"{_BULLMQ_TESTS}/test_native.py",
    ),
    _on_bullmq(
        "clean: what is held goes too",
        Edit(f"{_BULLMQ}/lua/clean.lua", "if is_free and is_old(id)", "if is_old(id)"),
        f"{_BULLMQ_TESTS}/test_native.py",
    ),
    _on_bullmq(
        "obliterate: jobs that run are no hindrance",
        Edit(f"{_BULLMQ}/lua/obliterate.lua", "elseif ARGV[6] ~= '1' and", "elseif false and"),
        f"{_BULLMQ_TESTS}/test_native.py",
    ),
    _on_bullmq(
        "flow: a parent does not wait",
        Edit(f"{_BULLMQ}/native.py", 'has_children="1" if has_children else ""', 'has_children=""'),
        f"{_BULLMQ_TESTS}/test_native.py",
    ),
    _on_bullmq(
        "debounce: the first stays",
        Edit(
            f"{_BULLMQ}/lua/enqueue.lua",
            "if de.replace and not job.is_parent and call('ZREM', base .. 'delayed', existing) == 1 then",
            "if false then",
        ),
        f"{_BULLMQ_TESTS}/test_native.py",
    ),
    _on_bullmq(
        "events: whatever comes back from a worker is tried again",
        Edit(f"{_BULLMQ}/event_stream.py", 'if has_failed and fields.get("prev")', 'if fields.get("prev")'),
        f"{_BULLMQ_TESTS}/test_events.py",
    ),
    _on_bullmq(
        "events: whatever is put off is tried again",
        Edit(f"{_BULLMQ}/event_stream.py", 'case "delayed" if has_failed and not', 'case "delayed" if not'),
        f"{_BULLMQ_TESTS}/test_events.py",
    ),
    _on_bullmq(
        "events: who stops between two of one entry misses the second",
        Edit(
            f"{_BULLMQ}/event_stream.py",
            "                for event in wanted[:-1]:  # whoever",
            "                position.advance(entry)\n                for event in wanted[:-1]:  # whoever",
        ),
        f"{_BULLMQ_TESTS}/test_events.py",
    ),
    _on_bullmq(
        "events: a cursor older than what is kept is taken",
        Edit(f"{_BULLMQ}/event_stream.py", "first and _parse_id(position[queue]) < _parse_id(first)", "False"),
        f"{_BULLMQ_TESTS}/test_events.py",
    ),
    _on_bullmq(
        "events: who falls behind is not told",
        Edit(f"{_BULLMQ}/event_stream.py", "if len(entries) == _MAX_ENTRIES:", "if False:"),
        f"{_BULLMQ_TESTS}/test_events.py",
    ),
    _on_bullmq(
        "multiplexer: a connection that the server has hung up is asked",
        Edit(
            f"{_BULLMQ}/multiplexer.py",
            "while connection is not None and connection.has_unexpected_input:",
            "while False:",
        ),
        f"{_BULLMQ_TESTS}/test_events.py",
    ),
    _on_bullmq(
        "multiplexer: a replica is asked for ever",
        Edit(f"{_BULLMQ}/multiplexer.py", "self.is_open = False  # no longer", "pass  # no longer"),
        f"{_BULLMQ_TESTS}/test_multiplexer.py",
    ),
    _on_bullmq(
        "multiplexer: a silent server is waited for",
        Edit(f"{_BULLMQ}/multiplexer.py", "if left <= 0:", "if False:"),
        f"{_BULLMQ_TESTS}/test_multiplexer.py",
    ),
    _on_bullmq(
        "multiplexer: half of what goes together may be done",
        Edit(f"{_BULLMQ}/multiplexer.py", "if not isinstance(commands, Atomic) or len(commands) == 1:", "if True:"),
        f"{_BULLMQ_TESTS}/test_multiplexer.py",
    ),
    _on_bullmq(
        "blocking claim: slots reserved for a pipelined claim are asked for as well",
        Edit(
            f"{_BULLMQ}/engine.py", "elif blocking_claim is not None and blocking_claim.reserved_slots:", "elif False:"
        ),
        _IDLE,
    ),
    _on_bullmq(
        "blocking claim: what was claimed is not handed over",
        Edit(f"{_BULLMQ}/engine.py", "if blocking_claim is not None and blocking_claim.has_claims:", "if False:"),
        _IDLE,
    ),
    _on_bullmq(
        "blocking claim: what was claimed is lost with the outcomes that could not be stored",
        Edit(
            f"{_BULLMQ}/engine.py",
            "            settled = await self._exchange(replace(exchange, request=None))\n"
            "            answer = Exchanged(lost=settled.lost, claimed=blocking_claim.take() or Claims())",
            "            taken = blocking_claim.take() or Claims()\n"
            "            settled = await self._exchange(replace(exchange, request=None))\n"
            "            answer = Exchanged(lost=settled.lost, claimed=taken)",
        ),
        _IDLE,
    ),
    _on_bullmq(
        "blocking claim: what nobody comes for stays",
        Edit(
            f"{_BULLMQ}/blocking_claim.py",
            "_PICKUP_TIMEOUT, self._more_requested.set",
            "3600, self._more_requested.set",
        ),
        _IDLE,
    ),
    _on_bullmq(
        "blocking claim: who stops does not wait for what may come yet",
        Edit(f"{_BULLMQ}/blocking_claim.py", "if await self.claim_now():", "if False:"),
        _IDLE,
    ),
    _on_bullmq(
        "blocking claim: what comes to one who stops is kept",
        Edit(
            f"{_BULLMQ}/blocking_claim.py",
            "with suppress(OnwardError):  # the leases will tell\n            await self._release()",
            "pass",
        ),
        _IDLE,
    ),
    _on_bullmq(
        "blocking claim: a claim stays pipelined for a worker that has left",
        Edit(f"{_BULLMQ}/engine.py", "        await self._listener.deregister(worker_id)\n", ""),
        _IDLE,
    ),
    _on_bullmq(
        "blocking claim: a pipelined claim takes from limited queues",
        Edit(
            f"{_BULLMQ}/blocking_claim.py", "replace(request, slots=0, prefetch_started=self.reserved_slots)", "request"
        ),
        _IDLE,
    ),
    _on_bullmq(
        "claim: who waits is not told what a limited queue has",
        Edit(f"{_BULLMQ}/lua/claim.lua", "if queue.limited and ARGV[11] == 'marker' and", "if false and"),
        _IDLE,
    ),
    _on_bullmq(
        "blocking claim: who waits is not told that more may run at once",
        Edit(f"{_BULLMQ}/engine.py", "        await self._listener.claim_now(queue)\n", ""),
        _IDLE,
    ),
    _on_bullmq(
        "blocking claim: a claim is pipelined on a pattern",
        Edit(f"{_BULLMQ}/blocking_claim.py", " and not any(map(is_pattern, queues))", ""),
        _IDLE,
    ),
    _on_bullmq(
        "blocking claim: a claim is pipelined beyond what comes due",
        Edit(
            f"{_BULLMQ}/blocking_claim.py",
            "if self._may_pipeline and not _is_due_soon(found):",
            "if self._may_pipeline:",
        ),
        _IDLE,
    ),
)

_PG: Final = "engines/postgres"
_OF_PG: Final = "tests/engines/postgres"
_MIGRATING: Final = "pg/migrations.py"
MIGRATING: Final = f"{_OF_PG}/test_migrations.py"
_S1: Final = f"{_PG}/migrations/0001_tables.sql"
_S4: Final = f"{_PG}/migrations/0004_claims.sql"
_S6: Final = f"{_PG}/migrations/0006_maintenance.sql"
_S7: Final = f"{_PG}/migrations/0007_partitions.sql"
_GRANTS: Final = f"{_PG}/migrations/0013_grants.sql"
_SQL_API: Final = f"{_OF_PG}/test_sql_api.py"
_UPGRADING: Final = f"{_OF_PG}/test_upgrades.py"
_POST_STATEMENTS: Final = "        for (statement,) in post_statements:\n"
_HELD_BY: Final = "where j.seq between s.seq and s.seq and j.claim_no = s.claim_no"


def _on_postgres(name: str, edit: Edit, *tests: str) -> Mutant:
    return Mutant(f"postgres {name}", (edit,), tests, only="postgres", engine="postgres")


def _unfenced_on_postgres(what: str, rest: str) -> Mutant:
    """Whatever the claim was, the job's run is ended."""
    return _on_postgres(
        f"settle: the fence is dropped from what {what}",
        Edit(f"{_PG}/migrations/0003_settle.sql", _HELD_BY + rest, "where j.seq between s.seq and s.seq" + rest),
        OLDER_CLAIM,
    )


def _termless_alone(what: str, file: str, asked: str, instead: str) -> Mutant:
    """One statement of a leader's upkeep that any deposed leader can make."""
    return _on_postgres(
        f"{what}: without the leader's term", Edit(f"{_PG}/{file}", asked, instead), f"{_OF_PG}/test_terms.py"
    )


def _termless_on_postgres(verb: str, then: str) -> Mutant:
    asked = f"if not onward.is_leader(now_at, {verb}.number, {verb}.leader_id) then"
    return _on_postgres(
        f"{verb}: without the leader's term",
        Edit(f"{_PG}/migrations/0006_maintenance.sql", asked + then, "if false then" + then),
        f"{CONFORMANCE}/test_leader.py",
    )


POSTGRES: Final = (
    _on_postgres(
        "restore: an owner who may not read the cluster's number cannot make a store",
        Edit(
            _S1,
            "pg_control_system() c);\nexception when others then",
            "pg_control_system() c);\nexception when division_by_zero then",
        ),
        f"{_OF_PG}/test_restore.py",
    ),
    _on_postgres(
        "restore: a copy in another database is not noticed",
        Edit(_S1, "substr(one, strpos(one, '/')) = substr(other, strpos(other, '/'))", "one is not null"),
        f"{_OF_PG}/test_restore.py",
    ),
    _on_postgres(
        "restore: a right that comes or goes holds the store",
        Edit(_S1, "(one = other or '?' in (split_part(one, '/', 1), split_part(other, '/', 1)))", "(one = other)"),
        f"{_OF_PG}/test_restore.py",
    ),
    _on_postgres(
        "claim: the size of payloads has no bound",
        Edit(_S4, "where s.size_before < size_left", "where s.size_before < size_left or true"),
        f"{_OF_PG}/test_claim_size.py",
    ),
    _on_postgres(
        "claim_lanes: the size of payloads has no bound",
        Edit(
            _S4,
            "              limit room) s\n              where s.size_before <",
            "              limit room) s\n              where 0 <",
        ),
        f"{_OF_PG}/test_claim_size.py",
    ),
    _on_postgres(
        "claim_queue: the size of payloads has no bound",
        Edit(
            _S4,
            "              limit room) c) s\n              where s.size_before <",
            "              limit room) c) s\n              where 0 <",
        ),
        f"{_OF_PG}/test_claim_size.py",
    ),
    _on_postgres(
        "claim: a claim that was cut short says that there is no more",
        Edit(f"{_PG}/claims.py", "rotation.is_capped) or is_cut_short:", "rotation.is_capped):"),
        f"{_OF_PG}/test_claim_size.py",
    ),
    _on_postgres(
        "claim: a row that cannot be read spoils the claim",
        Edit(f"{_PG}/claims.py", "    except _READ_ERRORS:  # one", "    except ZeroDivisionError:  # one"),
        f"{_OF_PG}/test_claim_size.py",
    ),
    _on_postgres(
        "claim_queue: a row that cannot be read spoils the claim",
        Edit(
            f"{_PG}/claims.py",
            "            claims.append(_claim_from_row(queue, row))\n        except _READ_ERRORS as",
            "            claims.append(_claim_from_row(queue, row))\n        except ZeroDivisionError as",
        ),
        f"{_OF_PG}/test_claim_size.py",
    ),
    _on_postgres(
        "two-phase: a transaction that is to be prepared notifies",
        Edit(f"{_PG}/leases.py", "'off', true)", "'on', true)"),
        f"{_OF_PG}/test_two_phase.py",
    ),
    _on_postgres(
        "two-phase: events of a transaction that is to be prepared notify",
        Edit(f"{_PG}/migrations/0010_events.sql", "(own_schema || '.notify', true)", "(own_schema || '.none', true)"),
        f"{_OF_PG}/test_two_phase.py",
    ),
    _on_postgres(
        "two-phase: a completed job notifies",
        Edit(f"{_PG}/migrations/0003_settle.sql", "perform onward.send_notice(channel,", "perform pg_notify(channel,"),
        f"{_OF_PG}/test_two_phase.py",
    ),
    _on_postgres(
        "rescue: the leases of a clock that went back are believed",
        Edit(
            _S6,
            "  if rescue.since is null then perform onward.shorten_leases(",
            "  if false then perform onward.shorten_leases(",
        ),
        f"{_OF_PG}/test_recovery.py",
    ),
    _on_postgres(
        "rescue: a leader does not notice that the clock went back",
        Edit(f"{_PG}/maintenance.py", "None if has_gone_back else checked_until", "checked_until"),
        f"{_OF_PG}/test_recovery.py",
    ),
    _on_postgres(
        "rescue: a deferred heartbeat of a clock that went back is believed",
        Edit(
            _S6,
            "                          and d.until <= now_at + j.lease + interval '1 second')",
            "                          )",
        ),
        f"{_OF_PG}/test_recovery.py",
    ),
    _on_postgres(
        "archive: the keys of a whole day are removed at once",
        Edit(_S7, "where h.seq > $1 order by h.seq limit $2", "where h.seq > $1 and $2 > 0"),
        f"{_OF_PG}/test_history.py",
    ),
    _on_postgres(
        "archive: a day is read when the archive takes it over",
        Edit(
            _S7, "check (completed_at >= %L and completed_at < %L)", "check (completed_at >= %L or completed_at < %L)"
        ),
        f"{_OF_PG}/test_history.py",
    ),
    _on_postgres(
        "archive: the next leader begins a day anew",
        Edit(_S7, "set seq = greatest(p.seq, excluded.seq), jobs", "set jobs"),
        f"{_OF_PG}/test_history.py::test_a_big_day_is_archived_in_bounded_steps_that_the_next_leader_goes_on_with",
    ),
    _on_postgres(
        "archive: steps do not shrink under a statement timeout",
        Edit(f"{_PG}/maintenance.py", "self.prune_limit(limit) // 2", "self.prune_limit(limit)"),
        f"{_OF_PG}/test_history.py::test_a_day_is_archived_by_a_role_whose_statements_may_take_little_time",
    ),
    _on_postgres(
        "replay: a key that has gone is not restored",
        Edit(f"{_PG}/migrations/0005_admin.sql", "if old.key_digest is not null then", "if false then"),
        f"{_OF_PG}/test_history.py",
    ),
    _on_postgres(
        "delete: the key of a newer job goes too",
        Edit(f"{_PG}/migrations/0005_admin.sql", "k.digest = g.key_digest and k.id = g.id", "k.digest = g.key_digest"),
        f"{_OF_PG}/test_history.py",
    ),
    _on_postgres(
        "settle: a job is completed in a transaction that keeps its snapshot",
        Edit(f"{_PG}/migrations/0003_settle.sql", "in ('repeatable read', 'serializable')", "in ('serializable')"),
        f"{_OF_PG}/test_isolation.py",
    ),
    _on_postgres(
        "settle: a refused isolation level costs an attempt",
        Edit("worker/runner.py", "case _ if run.wrong_isolation is not None:", "case _ if False:"),
        f"{_OF_PG}/test_isolation.py",
    ),
    _on_postgres(
        "restore: a copy is not held",
        Edit("engine/restore.py", "is_held = not home.is_same and home.has_jobs", "is_held = False"),
        f"{_OF_PG}/test_lost_commits.py",
    ),
    _on_postgres(
        "rescue: a queue with a rate stands still after the clock went back",
        Edit(
            _S6, "where s.next_permit_at > now_at + s.spacing", "where false and s.next_permit_at > now_at + s.spacing"
        ),
        f"{_OF_PG}/test_recovery.py",
    ),
    _on_postgres(
        "restore: a copy with schedules alone is not held",
        Edit(
            f"{_PG}/sql/check_home.sql",
            "exists (select from onward.job) or exists (select from onward.schedule s where not s.paused)",
            "exists (select from onward.job)",
        ),
        f"{_OF_PG}/test_lost_commits.py",
    ),
    _on_postgres(
        "settle: a suspect that is put back is cleared",
        Edit(
            f"{_PG}/migrations/0003_settle.sql",
            "suspect = j.suspect and s.move in ('release', 'put_back')",
            "suspect = j.suspect and s.move = 'release'",
        ),
        "tests/conformance/test_counting.py",
    ),
    _on_postgres(
        "restore: only the owner can adopt or confirm a copy",
        Edit(
            f"{_PG}/migrations/0001_tables.sql",
            "onward.confirm_home(only_if_empty boolean) returns void\n  language plpgsql volatile security definer",
            "onward.confirm_home(only_if_empty boolean) returns void\n  language plpgsql volatile",
        ),
        f"{_OF_PG}/test_sql_api.py::test_a_worker_that_owns_nothing_works_on_a_restored_copy",
    ),
    _on_postgres(
        "restore: a server that hides its timeline cannot be worked on",
        Edit(
            f"{_PG}/migrations/0001_tables.sql",
            "left(pg_walfile_name(pg_current_wal_lsn()), 8) end;\nexception when others then\n  return null;\n",
            "left(pg_walfile_name(pg_current_wal_lsn()), 8) end;\n",
        ),
        f"{_OF_PG}/test_lost_commits.py",
    ),
    _on_postgres(
        "restore: where a store is depends on who asks",
        Edit(
            f"{_PG}/migrations/0001_tables.sql",
            "onward.current_home() returns text\n  language plpgsql stable security definer",
            "onward.current_home() returns text\n  language plpgsql stable",
        ),
        f"{_OF_PG}/test_restore.py",
    ),
    _on_postgres(
        "restore: a claim by exchange ignores that the store is held",
        Edit(
            f"{_PG}/engine.py",
            "            return without_claims(await self._exchange(settle_only(exchange)))\n",
            "            pass\n",
        ),
        f"{_OF_PG}/test_lost_commits.py",
    ),
    _on_postgres(
        "claim: the token repeats once recent commits are lost",
        Edit(
            f"{_PG}/migrations/0001_tables.sql",
            "  return ((date_part('epoch', clock_timestamp())",
            "  return 1 + 0 * ((date_part('epoch', clock_timestamp())",
        ),
        f"{_OF_PG}/test_lost_commits.py",
    ),
    _on_postgres(
        "watermark: the clock is read before the transaction has a number",
        Edit(
            f"{_PG}/migrations/0001_tables.sql",
            "case when pg_current_xact_id() is not null then clock_timestamp() end",
            "clock_timestamp()",
        ),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "watermark: that the clock went back is not noticed",
        Edit(
            f"{_PG}/migrations/0006_maintenance.sql",
            "unnest(snapshot_times) t))) > onward.to_timestamp(snapshot_at) then",
            "unnest(snapshot_times) t))) > 'infinity' then",
        ),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "claim: who holds a limited queue waits for others",
        Edit(f"{_PG}/migrations/0004_claims.sql", "if notified_queue is null then\n", "if true then\n"),
        f"{_OF_PG}/test_notified_queues.py",
    ),
    _on_postgres(
        "notified queues: a lane that is there twice counts twice",
        Edit(
            f"{_PG}/migrations/0004_claims.sql",
            "group by l.priority order by",
            "group by l.ctid, l.priority order by",
        ),
        f"{_OF_PG}/test_notified_queues.py",
    ),
    _on_postgres(
        "notified queues: it is lost with a claim that failed",
        Edit(f"{_PG}/claims.py", "            self.needs_full_scan = True\n            raise", "            raise"),
        f"{_OF_PG}/test_notified_queues.py",
    ),
    _on_postgres(
        "notified queues: workers share their way round",
        Edit(f"{_PG}/engine.py", "key = worker_id, queues", 'key = "", queues'),
        f"{_OF_PG}/test_notified_queues.py",
    ),
    _on_postgres(
        "face: names are looked up where the caller says",
        Edit(
            f"{_PG}/migrations/0008_sql_api.sql",
            "returns uuid\n  language plpgsql security definer\n  set search_path = pg_catalog, pg_temp\n",
            "returns uuid\n  language plpgsql security definer\n",
        ),
        f"{_OF_PG}/test_sql_api.py",
    ),
    _on_postgres(
        "face: what no reader can read is taken",
        Edit(f"{_PG}/migrations/0008_sql_api.sql", "payload @? '$.** ? (", "payload @? '$ ? ("),
        f"{_OF_PG}/test_sql_api.py",
    ),
    _on_postgres(
        "listener: who was not notified while its presence had run out does not look",
        Edit("pg/listener.py", "if not await self._probe(connection):", "if await self._probe(connection) is None:"),
        f"{_OF_PG}/test_listener.py::test_a_presence_that_has_run_out_is_renewed_and_all_look_for_what_they_were_not_told",
    ),
    _on_postgres(
        "listener: it does not show that it exists",
        Edit(f"{_PG}/sql/show_listener.sql", "setval('onward.listener_until', (", "coalesce(null, ("),
        f"{_SQL_API}::test_who_may_only_connect_cannot_stop_claims_nor_listeners_nor_migrations",
    ),
    _on_postgres(
        "claims: a stranger's lock is waited for",
        Edit(
            f"{_PG}/migrations/0001_tables.sql",
            "perform from onward.claim_gate for key share;",
            "perform pg_advisory_xact_lock_shared(hashtextextended('onward.claims', 0));",
        ),
        f"{_SQL_API}::test_who_may_only_connect_cannot_stop_claims_nor_listeners_nor_migrations",
    ),
    _on_postgres(
        "face: producers may enqueue deliveries",
        Edit(f"{_PG}/migrations/0008_sql_api.sql", "starts_with(type, 'onward.')", "starts_with(type, 'onward,')"),
        f"{_OF_PG}/test_sql_api.py",
    ),
    _on_postgres(
        "face: a producer cancels the jobs of others",
        Edit(
            f"{_PG}/migrations/0008_sql_api.sql",
            "where j.id = cancel.id and onward.is_own_job(j.producer)",
            "where j.id = cancel.id",
        ),
        f"{_SQL_API}::test_a_producer_can_neither_cancel_nor_learn_of_a_job_that_it_has_not_added",
    ),
    _on_postgres(
        "face: a producer learns the ids of others by their keys",
        Edit(f"{_PG}/migrations/0008_sql_api.sql", "if chosen.status = 'inserted' or ", "if true or "),
        f"{_SQL_API}::test_a_producer_can_neither_cancel_nor_learn_of_a_job_that_it_has_not_added",
    ),
    _on_postgres(
        "face: a producer does not know its own job once that has ended",
        Edit(
            f"{_PG}/migrations/0002_enqueue.sql",
            "queues[no], enqueue_keyed.producer) on conflict",
            "queues[no], null) on conflict",
        ),
        f"{_SQL_API}::test_a_producer_can_neither_cancel_nor_learn_of_a_job_that_it_has_not_added",
    ),
    _on_postgres(
        "face: organisations share idempotency keys",
        Edit(f"{_PG}/migrations/0008_sql_api.sql", "onward.digest(type, org_id, ", "onward.digest(type, "),
        f"{_OF_PG}/test_sql_api.py",
    ),
    _on_postgres(
        "face: a job without an idempotency key takes one",
        Edit(f"{_PG}/migrations/0008_sql_api.sql", "case when idempotency_key is not null then", "case when true then"),
        f"{_OF_PG}/test_sql_api.py",
    ),
    _on_postgres(
        "face: a type of any length",
        Edit(f"{_PG}/migrations/0008_sql_api.sql", "length(type) > 255", "length(type) > 255000000"),
        f"{_OF_PG}/test_sql_api.py",
    ),
    _on_postgres(
        "rights: everybody may call what they can see",
        Edit(
            f"{_PG}/migrations/0013_grants.sql",
            "revoke all on all functions",
            "revoke grant option for all on all functions",
        ),
        f"{_OF_PG}/test_sql_api.py",
    ),
    _on_postgres(
        "tables: a job may be held by nobody",
        Edit(
            f"{_PG}/migrations/0001_tables.sql",
            "check (lease_until is null or worker_id is not null)",
            "check (true)",
        ),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "tables: a job that did not succeed may have no reason",
        Edit(f"{_PG}/migrations/0001_tables.sql", "check (last_error is not null or", "check (true or"),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "view: a dead letter is shown as queued",
        Edit(
            f"{_PG}/migrations/0001_tables.sql",
            "status in ('scheduled', 'blocked', 'pending') then",
            "status in ('scheduled', 'blocked', 'pending', 'dead_letter') then",
        ),
        f"{_OF_PG}/test_lanes.py",
    ),
    _unfenced_on_postgres(
        "is completed", " and j.lease_until is not null and j.started_at is not null\n      returning"
    ),
    _unfenced_on_postgres(
        "ends otherwise", "\n         and j.lease_until is not null and (j.started_at is not null or s.status in"
    ),
    _unfenced_on_postgres(
        "goes on", "\n         and j.lease_until is not null and (j.started_at is not null or s.move ="
    ),
    _on_postgres(
        "watermark: it rises above jobs that cannot be seen yet",
        Edit(
            f"{_PG}/migrations/0006_maintenance.sql",
            "where m.first_xid <= pg_snapshot_xmin(pg_current_snapshot());",
            "where true;",
        ),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "watermark: the latest completed id + 1 is taken for the next id",
        Edit(_S6, "snapshot_xid := pg_current_xact_id();", "snapshot_xid := pg_snapshot_xmax(pg_current_snapshot());"),
        f"{_OF_PG}/test_visibility.py",
    ),
    _on_postgres(
        "watermark: a snapshot holds though the clock has gone back",
        Edit(
            _S6,
            "if greatest(watermark, onward.to_timestamp((select max(t) from unnest(snapshot_times) t))) >",
            "if watermark >",
        ),
        f"{_OF_PG}/test_visibility.py",
    ),
    _on_postgres(
        "watermark: a move whose answer is lost is forgotten",
        Edit(
            f"{_PG}/maintenance.py",
            "        if passes and self.late is None:\n",
            "        if next_ is not None:\n"
            "            yield Statement(schema.move_watermark, [*leader_values, next_])\n"
            "        if passes and self.late is None:\n",
        ),
        f"{_OF_PG}/test_visibility.py",
    ),
    _on_postgres(
        "lanes: one is removed under a transaction that saw it unmarked",
        Edit(_S6, "where l.is_sealed and l.closing <= oldest", "where l.closing <= oldest"),
        f"{_OF_PG}/test_visibility.py",
    ),
    _on_postgres(
        "lanes: only some are scanned below their low mark",
        Edit(
            _S6,
            "            from onward.lane l offset 0) l\n",
            "            from onward.lane l where is_late offset 0) l\n",
        ),
        f"{_OF_PG}/test_visibility.py",
    ),
    _on_postgres(
        "lanes: the minute below the low mark is not scanned",
        Edit(_S6, "coalesce(l.low_mark, watermark) - interval '1 minute'", "coalesce(l.low_mark, watermark)"),
        f"{_OF_PG}/test_visibility.py",
    ),
    _on_postgres(
        "lanes: those that are missing next to each other are opened one at a time",
        Edit(_S6, "j.queue > l.queue and j.queue < l.next and", "false and"),
        f"{_OF_PG}/test_visibility.py",
    ),
    _on_postgres(
        "watermark: lanes where jobs wait get no low mark",
        Edit(
            f"{_PG}/migrations/0006_maintenance.sql",
            "and (f.low_mark is null or f.moved_at < now_at - interval '1 second');",
            "and f.low_mark is not null and f.moved_at < now_at - interval '1 second';",
        ),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "watermark: a low mark stays for ever",
        Edit(
            f"{_PG}/migrations/0006_maintenance.sql",
            "and (f.low_mark is null or f.moved_at < now_at - interval '1 second');",
            "and f.low_mark is null;",
        ),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "watermark: who gives a job back gives it no low mark",
        Edit(
            f"{_PG}/migrations/0002_enqueue.sql",
            "and (l.low_mark is null or l.low_mark > w.since);",
            "and false;",
        ),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "watermark: it is moved without the leader's term",
        Edit(
            f"{_PG}/migrations/0006_maintenance.sql",
            "if not onward.is_leader(now_at, prepare_watermark.number, prepare_watermark.leader_id) then "
            "return; end if;",
            "",
        ),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "lanes: jobs of a long transaction are looked for before it has ended, and not after",
        Edit(
            f"{_PG}/migrations/0006_maintenance.sql",
            "(taken_at, first_xid) where m.first_xid <= oldest;",
            "(taken_at, first_xid);",
        ),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "lanes: the watermark is not known to have gone ahead",
        Edit(f"{_PG}/maintenance.py", "self.late = visible_until or 0  # before the move", "pass  # before the move"),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "lanes: one part is never looked at from its beginning",
        Edit(f"{_PG}/maintenance.py", "self._checks % self._deep_shards)", "self._checks % 40)"),
        f"{_OF_PG}/test_visibility.py",
    ),
    _on_postgres(
        "lanes: a look for jobs without one reads all that wait",
        Edit(f"{_PG}/migrations/0006_maintenance.sql", "j.queue < g.next and", "(j.queue < g.next) is not false and"),
        f"{_OF_PG}/test_plans.py",
    ),
    _on_postgres(
        "lanes: those in use come and go",
        Edit(_S6, "where h.priority = l.priority)\n", "where false)\n"),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "rescue: a claim that was committed late is never found",
        Edit(
            f"{_PG}/maintenance.py",
            "self._checked_until is None or self._checks % self._FULL_CHECK_EVERY == 0",
            "self._checked_until is None",
        ),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "rescue: a leader that hears of work waits all the same",
        Edit(f"{_PG}/maintenance.py", "return not self._is_busy and now <", "return now <"),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "notified queues: what is said of the queue is not heeded",
        Edit(
            f"{_PG}/migrations/0004_claims.sql",
            "and (q.paused or q.global_concurrency is not null or q.spacing is not null\n",
            "and (q.paused or q.spacing is not null\n",
        ),
        f"{_OF_PG}/test_notified_queues.py",
    ),
    _on_postgres(
        "notified queues: the urgent come last",
        Edit(
            f"{_PG}/migrations/0004_claims.sql",
            "order by l.priority desc) l\n               cross",
            "order by l.priority) l\n               cross",
        ),
        f"{_OF_PG}/test_notified_queues.py",
    ),
    _on_postgres(
        "notified queues: word of work somewhere is not heard",
        Edit(f"{_PG}/claims.py", "if name in _ANY_QUEUE:", "if False:"),
        f"{_OF_PG}/test_notified_queues.py",
    ),
    _on_postgres(
        "notified queues: other queues are not asked again",
        Edit(f"{_PG}/claims.py", "or self.next_full_scan_in() <= 0:", "or False:"),
        f"{_OF_PG}/test_notified_queues.py",
    ),
    _on_postgres(
        "notified queues: a lease that nobody looks at",
        Edit(
            f"{_PG}/migrations/0004_claims.sql",
            "insert into onward.lease_batch (until, seqs) select until, array_agg(t.seq) from taken t "
            "having count(*) > 0)",
            "select 1)",
        ),
        f"{_OF_PG}/test_notified_queues.py",
    ),
    _termless_on_postgres("promote", "\n    return next;"),
    _termless_on_postgres("rescue", "\n    return next;"),
    _termless_on_postgres("prune", " return 0; end if;"),
    _on_postgres(
        "claim: a paused queue gives",
        Edit(f"{_PG}/migrations/0004_claims.sql", "where l.since is not null and q.paused is not true", "where true"),
        f"{CONFORMANCE}/test_queues.py",
    ),
    _on_postgres(
        "claim: two who claim wait for each other",
        Edit(
            f"{_PG}/migrations/0004_claims.sql",
            "order by c.ready_at, c.seq limit taken for update skip locked) c) s",
            "order by c.ready_at, c.seq limit taken for update) c) s",
        ),
        f"{_OF_PG}/test_plans.py::test_concurrent_claims_of_unlimited_queues_wait_for_nobody",
    ),
    _on_postgres(
        "enqueue: what was left word of is not told",
        Edit(f"{_PG}/notify_throttle.py", "return _notice_text(pending.union(queues))", "return _notice_text(queues)"),
        f"{_OF_PG}/test_notify_throttle.py",
    ),
    _on_postgres(
        "enqueue: what was seen is relied on for ever",
        Edit(f"{_PG}/enqueue_cache.py", "TTL: Final = 0.25", "TTL: Final = 1e9"),
        f"{_OF_PG}/test_enqueue.py",
    ),
    _on_postgres(
        "enqueue: what a queue says is not looked at by jobs that rely on others",
        Edit(f"{_PG}/enqueue_cache.py", "        if is_plain:\n", "        if True:\n"),
        f"{_OF_PG}/test_enqueue.py",
    ),
    _on_postgres(
        "enqueue: a lane is relied on that was opened in vain",
        Edit(f"{_PG}/enqueue.py", "if cache is None or is_multi_statement(jobs):", "if cache is None:"),
        f"{_OF_PG}/test_enqueue.py",
    ),
    _on_postgres(
        "enqueue: what is told a queue is forgotten by who told it",
        Edit(f"{_PG}/engine.py", "        self._queue_cache.clear()\n", ""),
        f"{_OF_PG}/test_enqueue.py",
    ),
    _on_postgres(
        "enqueue: nobody is told by those who rely on it that nobody listens",
        Edit(f"{_PG}/enqueue.py", "or not (notice is None or cache.has_listener)", ""),
        f"{_OF_PG}/test_notify_throttle.py",
    ),
    _on_postgres(
        "enqueue: those who rely on what was seen say that no events are recorded",
        Edit(f"{_PG}/sql/enqueue_one.sql", "$10::text, not onward.is_recording())", "$10::text, true)"),
        f"{_OF_PG}/test_events.py",
    ),
    _on_postgres(
        "lanes: a claim raises a low mark by what it saw before",
        Edit(f"{_PG}/migrations/0004_claims.sql", "j.ready_at >= low.low_mark and j.ready_at < lane.since", "false"),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "lanes: a low mark that is low enough is relied on and not locked",
        Edit(f"{_PG}/migrations/0002_enqueue.sql", "\n     for update of l;\n", ";\n"),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "watermark: it moves though a lane could not be given its low mark",
        Edit(f"{_PG}/migrations/0006_maintenance.sql", "if lanes.missed > 0 then", "if false then"),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "enqueue: one that says nothing else loses its priority",
        Edit(f"{_PG}/sql/enqueue_plain.sql", "$5::integer", "0"),
        f"{_OF_PG}/test_enqueue.py",
    ),
    _on_postgres(
        "enqueue: what is copied in is as long as it has characters",
        Edit("pg/binary_copy.py", "raw_id, len(written))", "raw_id, len(written.decode()))"),
        f"{_OF_PG}/test_enqueue.py",
    ),
    _on_postgres(
        "enqueue: who is copied in is answered with the id of another",
        Edit(f"{_PG}/enqueue.py", "for job_id in ids]\n    yield", "for job_id in ids[::-1]]\n    yield"),
        f"{_OF_PG}/test_enqueue.py",
    ),
    _on_postgres(
        "enqueue: those who are copied in say that no events are recorded",
        Edit(f"{_PG}/migrations/0002_enqueue.sql", 'collate "C")), not onward.is_recording();', 'collate "C")), true;'),
        f"{_OF_PG}/test_events.py",
    ),
    _on_postgres(
        "enqueue: nobody is told when the commit that was to tell fails",
        Edit(f"{_PG}/notify_throttle.py", 'self._defer(notice.split(","))', "pass"),
        f"{_OF_PG}/test_notify_throttle.py",
    ),
    _on_postgres(
        "single producer: a turn of the loop is not noticed",
        Edit(f"{_PG}/single_producer.py", "call_soon(self._yielded)", "call_soon(id, self)"),
        f"{_OF_PG}/test_single_producer.py::test_who_comes_when_the_loop_has_had_a_turn_waits_for_no_other",
    ),
    _on_postgres(
        "single producer: anybody may use them",
        Edit(f"{_PG}/single_producer.py", "and self._caller() is asyncio.current_task()", ""),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: they cover jobs of other tasks",
        Edit(f"{_PG}/single_producer.py", "jobs.template is self._plan.template and", ""),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: they last, whoever else comes",
        Edit(f"{_PG}/engine.py", "list[Enqueued]]:\n        self._single_producer = None\n", "list[Enqueued]]:\n"),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: they last longer than what was seen",
        Edit(f"{_PG}/single_producer.py", "checks = began >= self._check_at", "checks = False"),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: what was seen again is not relied on",
        Edit(f"{_PG}/single_producer.py", "        if checks:\n            self._checked(began)\n", ""),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: one that was not added counts as added",
        Edit(
            f"{_PG}/single_producer.py",
            "        if not count:\n            self._was_refused(connection, notice)\n            return self._enq",
            "        if False:\n            self._was_refused(connection, notice)\n            return self._enq",
        ),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: one that was not added in time counts as added",
        Edit(
            f"{_PG}/single_producer.py",
            "if not count:\n            self._was_refused(connection, notice)\n            return await self._enqueue",
            "if False:\n            self._was_refused(connection, notice)\n            return await self._enqueue",
        ),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: they are given where a queue says something of its jobs",
        Edit(f"{_PG}/engine.py", " and self._queue_cache.is_fresh(plan.lane):", ":"),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: who looks does not see that somebody listens",
        Edit(
            f"{_PG}/migrations/0002_enqueue.sql",
            "return not found and not onward.has_listener();",
            "return not found;",
        ),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: who looks does not see what a queue says",
        Edit(
            f"{_PG}/migrations/0002_enqueue.sql",
            "return not found and not onward.has_listener();",
            "return not onward.has_listener();",
        ),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: who looks does not see that the lane has gone",
        Edit(f"{_PG}/migrations/0002_enqueue.sql", "  if not found then return false; end if;\n", ""),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: the one who was to tell next does not",
        Edit(
            f"{_PG}/notify_throttle.py",
            "            self._last_notice_at = -math.inf\n            if",
            "            if",
        ),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "tables: what comes by hand is not looked at",
        Edit(f"{_PG}/migrations/0010_events.sql", "  perform onward.validate_job(new);\n", ""),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "tables: what is changed by hand is not looked at",
        Edit(f"{_PG}/migrations/0001_tables.sql", "    perform onward.validate_job(new);\n", ""),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "heartbeat: one odd job costs all others their leases",
        Edit(
            f"{_PG}/migrations/0001_tables.sql",
            "begin\n  if old.has_permit and not new.has_permit then",
            "begin\n  perform onward.validate_job(new);\n  if old.has_permit and not new.has_permit then",
        ),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "enqueue: who is added by hand is not told of",
        Edit(
            f"{_PG}/migrations/0001_tables.sql",
            "skip_checks          boolean     not null default false,",
            "skip_checks          boolean     not null default true,",
        ),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "claim: the asker counts as another",
        Edit(f"{_PG}/migrations/0004_claims.sql", " where w.id <> claim.worker_id) as others", ") as others"),
        f"{_OF_PG}/test_notified_queues.py",
    ),
    _on_postgres(
        "single producer: what a queue is told is not heeded",
        Edit(f"{_PG}/engine.py", "        self._single_producer = None\n        (info,)", "        (info,)"),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: the loop has no turn",
        Edit(f"{_PG}/single_producer.py", "min(monotonic() + _YIELD_INTERVAL, self._expires_at)", "self._expires_at"),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: a connection is looked at for each job",
        Edit(f"{_PG}/single_producer.py", "bool(self._connections.idle) if self._is_yield_scheduled else ", ""),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: a connection is not looked at",
        Edit(f"{_PG}/single_producer.py", " if self._is_yield_scheduled else self._connections.has_healthy()", ""),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "exchange: the right to claim comes after what is settled",
        Edit(
            f"{_PG}/migrations/0004_claims.sql",
            "  if worker_id is not null then nothing :=",
            "  if false then nothing :=",
        ),
        f"{_OF_PG}/test_open_transactions.py",
    ),
    _on_postgres(
        "exchange: somebody's transaction is waited for",
        Edit(f"{_PG}/migrations/0004_claims.sql", "  set lock_timeout = '250ms'\n", ""),
        f"{_OF_PG}/test_open_transactions.py",
    ),
    _on_postgres(
        "exchange: what somebody else holds counts as stored",
        Edit(f"{_PG}/settle.py", "if free else frozenset(), left", "if free else frozenset(), frozenset()"),
        f"{_OF_PG}/test_open_transactions.py",
    ),
    _on_postgres(
        "exchange: what is known to be held is waited for again",
        Edit(f"{_PG}/engine.py", "            self._blocked = left\n", ""),
        f"{_OF_PG}/test_open_transactions.py",
    ),
    _on_postgres(
        "exchange: beside a claim on its way what was not stored is forgotten",
        Edit(
            f"{_PG}/engine.py", "lost=done.lost, busy=done.busy, claimed=received", "lost=done.lost, claimed=received"
        ),
        f"{_OF_PG}/test_open_transactions.py",
    ),
    _on_postgres(
        "queues: all claims wait while a queue cannot be told",
        Edit(f"{_PG}/migrations/0005_admin.sql", "  set lock_timeout = '300ms'\n", ""),
        f"{_OF_PG}/test_open_transactions.py",
    ),
    _on_postgres(
        "sessions: who has given up is waited for by the server",
        Edit(
            "pg/database.py",
            '"client_connection_check_interval": "2s"',
            '"client_connection_check_interval": "0"',
        ),
        f"{_OF_PG}/test_open_transactions.py",
    ),
    _on_postgres(
        "sessions: a server that cannot look is not connected to",
        Edit("pg/database.py", "any(name in str(error) for name in _PREFERRED_SETTINGS)", "False"),
        f"{_OF_PG}/test_sessions.py",
    ),
    _on_postgres(
        "rights: leave is given for what is somebody else's",
        Edit(_GRANTS, "and pg_has_role(proowner, 'usage')", ""),
        MIGRATING,
    ),
    _on_postgres(
        "rights: a policy that is there is made again",
        Edit(
            _GRANTS,
            "continue when exists (select from pg_policy where polrelid = part and",
            "execute format('drop policy if exists %I on %s', format('worker_%s_%s', whose, role)::name, part);\n"
            "    continue when exists (select from pg_policy where polrelid = part and",
        ),
        _SQL_API,
    ),
    _on_postgres(
        "rights: a worker may write which schema this is",
        Edit(_GRANTS, "when relname in ('migration', 'identity') then 'select'", "when false then 'select'"),
        _SQL_API,
    ),
    _on_postgres(
        "rights: every producer may cancel",
        Edit(_GRANTS, "if may_cancel then", "if true then"),
        _SQL_API,
    ),
    _on_postgres(
        "rights: who does not own the schema grants nothing without a word",
        Edit(_GRANTS, "if not pg_has_role(owner, 'usage') then", "if false then"),
        _SQL_API,
    ),
    _on_postgres(
        "rights: leave to work is waited for as long as it takes",
        Edit(
            _GRANTS,
            "set lock_timeout = '500ms'\nas $$\ndeclare\n  own_schema",
            "set lock_timeout = 0\nas $$\ndeclare\n  own_schema",
        ),
        _SQL_API,
    ),
    _on_postgres(
        "rights: the name of a policy is cut to another's",
        Edit(_GRANTS, "format('worker_%s_%s', whose, role)::name", "format('worker_0_%s', role)::name"),
        _SQL_API,
    ),
    _on_postgres(
        "rights: a policy of any role will do",
        Edit(_GRANTS, "whose = any (polroles) and ", ""),
        _SQL_API,
    ),
    _on_postgres(
        "rights: of two that give leave at once one fails",
        Edit(_GRANTS, "  lock table onward.migration in share row exclusive mode;\n", ""),
        _SQL_API,
    ),
    _on_postgres(
        "migrate: workers get no leave for what is new",
        Edit(_MIGRATING, _POST_STATEMENTS + "            connection.execute(statement)\n", ""),
        _UPGRADING,
    ),
    _on_postgres(
        "migrate: the script gives workers no leave for what is new",
        Edit(_MIGRATING, "      if applied > 0 then\n        foreach", "      if false then\n        foreach"),
        _UPGRADING,
    ),
    _on_postgres(
        "migrate: who was allowed is asked when it is gone",
        Edit(
            _MIGRATING,
            _POST_STATEMENTS,
            "        query = insert_schema_name(self._schema, self._post_query)\n"
            "        post_statements = connection.execute(query, [self._schema]).fetchall()\n" + _POST_STATEMENTS,
        ),
        _UPGRADING,
    ),
    _on_postgres(
        "migrate: who has a policy of their own becomes a worker",
        Edit(f"{_PG}/migrations/__init__.py", "and p.polname ~ '^worker_[0-9]+_'", "and p.polname ~ '^worker_'"),
        _UPGRADING,
    ),
    _on_postgres(
        "migrate: who may add jobs may take them back after a step",
        Edit(
            f"{_PG}/migrations/__init__.py",
            "bool_or(p.proname = 'cancel'))",
            "true)",
        ),
        _UPGRADING,
    ),
    _termless_alone(
        "rotate_partitions",
        "migrations/0007_partitions.sql",
        "if not onward.is_leader(now_at, rotate_partitions.number, rotate_partitions.leader_id) then",
        "if false then",
    ),
    _termless_alone(
        "prune_archive",
        "migrations/0006_maintenance.sql",
        "if not onward.is_leader(now_at, prune_archive.number, prune_archive.leader_id) then",
        "if false then",
    ),
    _termless_alone(
        "usage_roll_up",
        "migrations/0012_usage.sql",
        "if not onward.is_leader(now_at, roll_usage.number, roll_usage.leader_id) then",
        "if false then",
    ),
    # Not by leaving the line out: $2 and $3 would have no type, and every test would fail for that.
    _termless_alone(
        "throttle_prune", "sql/throttle_prune.sql", "(select onward.is_leader(", "(select true or onward.is_leader("
    ),
    _termless_alone(
        "batch_prune", "sql/batch_prune.sql", "(select onward.is_leader(", "(select true or onward.is_leader("
    ),
    _termless_alone(
        "move_watermark",
        "migrations/0006_maintenance.sql",
        "if onward.is_leader(coalesce(onward.to_timestamp(move_watermark.now), clock_timestamp()), "
        "move_watermark.number, move_watermark.leader_id) then",
        "if true then",
    ),
    _on_postgres(
        "batches: one that a caller adds to holds up the leader",
        Edit(
            f"{_PG}/migrations/0011_batches.sql",
            "any (page.batches) order by b.name for update skip locked);",
            "any (page.batches) order by b.name for update);",
        ),
        f"{_OF_PG}/test_batches_held.py",
    ),
    _on_postgres(
        "batches: what somebody holds is asked for without a pause",
        Edit(
            f"{_PG}/migrations/0011_batches.sql",
            "  if later and not more then more := null; end if;",
            "  if later then more := true; end if;",
        ),
        f"{_OF_PG}/test_batches_held.py",
    ),
    _on_postgres(
        "leader: a term outlasts a clock that goes back",
        Edit(f"{_PG}/sql/elect.sql", "or l.renewed_at >", "or false and l.renewed_at >"),
        f"{_OF_PG}/test_recovery.py",
    ),
    _on_postgres(
        "leader: a renewed term counts as one from before the clock went back",
        Edit(
            f"{_PG}/sql/elect_renew.sql",
            "renewed_at = coalesce(onward.to_timestamp($1::bigint), clock_timestamp())",
            "renewed_at = renewed_at",
        ),
        f"{_OF_PG}/test_recovery.py",
    ),
    _on_postgres(
        "partitions: a new day has no replica identity",
        Edit(
            f"{_PG}/migrations/0007_partitions.sql",
            "      perform onward.set_replica_identity(format('%I.%I', own_schema, part)::regclass);\n",
            "",
        ),
        f"{_OF_PG}/test_replication.py",
    ),
    _on_postgres(
        "tables: lanes have no replica identity",
        Edit(f"{_PG}/migrations/0001_tables.sql", "alter table onward.lane replica identity full;\n", ""),
        f"{_OF_PG}/test_replication.py",
    ),
    _on_postgres(
        "flows: how a held dependency ends is not asked for",
        Edit(
            f"{_PG}/migrations/0011_batches.sql",
            "from unnest(live) l where l <> all (marked);",
            "from unnest(live) l where false;",
        ),
        f"{_OF_PG}/test_held_rows.py",
    ),
    _on_postgres(
        "flows: a dependency that is locked is asked for once",
        Edit(f"{_PG}/migrations/0011_batches.sql", "     where u.job = any (others);", "     where false;"),
        f"{_OF_PG}/test_held_rows.py",
    ),
    _on_postgres(
        "flows: to name a held job as a dependency locks it",
        Edit(
            f"{_PG}/migrations/0011_batches.sql",
            "  update onward.job j set has_dependents = true, updated_at = j.updated_at + interval '1 microsecond'"
            " where j.id = any (marked);\n",
            "  update onward.job j set has_dependents = true, updated_at = j.updated_at + interval '1 microsecond'"
            " where j.id = any (dependencies);\n",
        ),
        f"{_OF_PG}/test_held_rows.py",
    ),
    _on_postgres(
        "enqueue: a key hit locks the row of a held job",
        Edit(
            f"{_PG}/migrations/0002_enqueue.sql",
            "perform onward.touch_waiting(now_at, met);",
            "update onward.job j set updated_at = now_at where j.id = any (met);",
        ),
        f"{_OF_PG}/test_held_rows.py",
    ),
    _on_postgres(
        "heartbeat: one for a job whose row is locked is forgotten",
        Edit(
            f"{_PG}/migrations/0003_settle.sql",
            "if cardinality(renewed) is distinct from cardinality(seqs) then",
            "if false then",
        ),
        f"{_OF_PG}/test_held_rows.py",
    ),
    _on_postgres(
        "rescue: the heartbeat of an older claim saves a job",
        Edit(_S6, "where d.seq = j.seq and d.claim_no = j.claim_no and", "where d.seq = j.seq and"),
        f"{_OF_PG}/test_held_rows.py",
    ),
    _on_postgres(
        "rescue: a job whose row was locked past its lease is forgotten",
        Edit(_S6, "set until = greatest(still.until, now_at),", "set until = still.until,"),
        f"{_OF_PG}/test_held_rows.py",
    ),
    _on_postgres(
        "caller transaction: what was refused stays in it",
        Edit(
            "pg/caller_transaction.py",
            "            for text in bounds.rollback:",
            "            for text in bounds.rollback[1:]:",
        ),
        f"{_OF_PG}/test_caller_transaction.py",
    ),
    _on_postgres(
        "lanes: a paused queue hides a job of the next that has no lane",
        Edit(_S6, "    union select q.name from onward.queue q where q.paused\n", ""),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "lanes: a look for jobs without one reads all queues",
        Edit(_S6, "create index queue_paused on onward.queue (name) where paused;\n", ""),
        f"{_OF_PG}/test_plans.py",
    ),
    _on_postgres(
        "watermark: low marks stay up when the clock goes back",
        Edit(_S6, "from onward.lane l where l.low_mark > '-infinity';", "from onward.lane l where false;"),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "lanes: a leader waits for one that somebody holds",
        Edit(_S6, "for update of l skip locked) k;", "for update of l) k;"),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "lanes: where somebody holds one, no other is opened",
        Edit(_S6, "having not bool_or(w.is_held);", "having false;"),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "lanes: another is opened each time",
        Edit(_S6, "having not bool_or(w.is_held);", "having true;"),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "promote: it waits for a lane that somebody holds",
        Edit(_S6, "due.queues, due.priorities, null);", "due.queues, due.priorities, due.since);"),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "rescue: what is lost once is a suspect",
        Edit(_S6, "(j.started_at is not null and j.was_lost)", "j.started_at is not null"),
        f"{CONFORMANCE}/test_counting.py",
    ),
    _on_postgres(
        "settle: a run that ends by itself does not clear a loss",
        Edit(
            f"{_PG}/migrations/0003_settle.sql",
            "was_lost = j.was_lost and s.move in ('release', 'put_back')",
            "was_lost = j.was_lost",
        ),
        f"{CONFORMANCE}/test_counting.py",
    ),
    _on_postgres(
        "record_crash: a lost claim counts a crash",
        Edit(f"{_PG}/sql/record_crash.sql", "j.claim_no = $3::bigint", "$3::bigint is not null"),
        f"{CONFORMANCE}/test_counting.py",
    ),
    _on_postgres(
        "rescue: it waits for a lane that somebody holds",
        Edit(
            _S6,
            "returned.queues, returned.priorities, null);",
            "returned.queues, returned.priorities, returned.since);",
        ),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "rescue: it waits for the row of a silent worker",
        Edit(_S6, "\n              for update skip locked));\n  return next;", "));\n  return next;"),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "lanes: to take one away it is waited for who holds it",
        Edit(
            _S6,
            "<= oldest and onward.is_in_shard(shard, 64, l.queue, l.priority) for update skip locked);",
            "<= oldest and onward.is_in_shard(shard, 64, l.queue, l.priority));",
        ),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "lanes: to mark one it is waited for who holds it",
        Edit(
            _S6,
            "where h.priority = l.priority)\n        for update skip locked));",
            "where h.priority = l.priority)));",
        ),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "prune: it waits for a job that somebody holds",
        Edit(
            _S6,
            "                 limit max_rows for update skip locked) h\n        union all",
            "                 limit max_rows) h\n        union all",
        ),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "prune: of those that are too many, it waits for one that somebody holds",
        Edit(_S6, "h.seq = any (over) for update skip locked);", "h.seq = any (over));"),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "archive: it waits for a job that somebody holds",
        Edit(_S6, "order by o.until limit max_rows for update skip locked))", "order by o.until limit max_rows))"),
        f"{_OF_PG}/test_maintenance.py",
    ),
    _on_postgres(
        "lanes: who leads again goes on with what it knew",
        Edit(f"{_PG}/maintenance.py", "if term.number > self._term + 1:", "if False:"),
        f"{_OF_PG}/test_lanes.py",
    ),
    _on_postgres(
        "claim prefetch: it is sent while the worker asks for itself",
        Edit(
            f"{_PG}/claim_on_notify.py",
            "        self._armed.pop(key, None)\n        return self._take(key)\n",
            "        return self._take(key)\n",
        ),
        f"{_OF_PG}/test_claim_on_notify.py",
    ),
    _on_postgres(
        "single producer: one who gets no answer waits for ever",
        Edit(f"{_PG}/single_producer.py", "        connection.query_timeout = self._connections.query_timeout\n", ""),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: nobody is told",
        Edit(
            f"{_PG}/single_producer.py", "notice = self._throttle.notice_for(self._plan.notification)", "notice = None"
        ),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: what takes longer is said twice",
        Edit("pg/timed_connection.py", "        self._pending_results = results\n", ""),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "single producer: a turn that the loop has by itself does not count",
        Edit(
            f"{_PG}/single_producer.py",
            "        self._valid_until = self._expires_at\n",
            "        self._valid_until = min(monotonic() + _YIELD_INTERVAL, self._expires_at)\n",
        ),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "claim prefetch: what nobody asks for is kept",
        Edit(
            f"{_PG}/claim_on_notify.py", "        self.release(self._sent.pop(key))\n", "        self._sent.pop(key)\n"
        ),
        f"{_OF_PG}/test_claim_on_notify.py",
    ),
    _on_postgres(
        "claim prefetch: a worker that leaves keeps it",
        Edit(
            f"{_PG}/claim_on_notify.py",
            "timeout=_ANSWER_TIMEOUT)\n                self.release(sent)\n",
            "timeout=_ANSWER_TIMEOUT)\n",
        ),
        f"{_OF_PG}/test_claim_on_notify.py",
    ),
    _on_postgres(
        "claim prefetch: a worker that leaves is brought more",
        Edit(
            f"{_PG}/claim_on_notify.py",
            "            del self._armed[key]\n        for",
            "            pass\n        for",
        ),
        f"{_OF_PG}/test_claim_on_notify.py",
    ),
    _on_postgres(
        "claim prefetch: news since is forgotten",
        Edit(f"{_PG}/claim_on_notify.py", "elif rotation.notified or rotation.needs_full_scan:", "elif False:"),
        f"{_OF_PG}/test_claim_on_notify.py",
    ),
    _on_postgres(
        "claim prefetch: it brings more than there is room for",
        Edit(f"{_PG}/claim_on_notify.py", "request.slots - len(found.claims)", "request.slots"),
        f"{_OF_PG}/test_claim_on_notify.py",
    ),
    _on_postgres(
        "claim prefetch: it stands for a worker that has enough",
        Edit(f"{_PG}/claim_on_notify.py", "            self._armed.pop(key, None)\n", "            pass\n"),
        f"{_OF_PG}/test_claim_on_notify.py",
    ),
    _on_postgres(
        "claim prefetch: what a cancelled exchange was brought is lost",
        Edit(
            f"{_PG}/claim_on_notify.py",
            "            self._release_rows(sent, rows)\n            return",
            "            return",
        ),
        f"{_OF_PG}/test_claim_on_notify.py",
    ),
    _on_postgres(
        "claim prefetch: what a failed exchange was brought is lost",
        Edit(f"{_PG}/engine.py", "                prefetch.release(sent)\n", ""),
        f"{_OF_PG}/test_claim_on_notify.py",
    ),
    _on_postgres(
        "listening: who waits does not hear of a connection that is lost",
        Edit("pg/listener.py", "            listening.abort_query()\n", "            pass\n"),
        f"{_OF_PG}/test_listener.py",
    ),
    _on_postgres(
        "listening: the server's final error is taken for a result",
        Edit("pg/listener.py", "if self._connection.pgconn.status == ConnStatus.OK:", "if True:"),
        f"{_OF_PG}/test_listener.py",
    ),
    _on_postgres(
        "listening: a connection that is lost is still read",
        Edit("pg/listener.py", "        self.stop_reading()\n        if not", "        if not"),
        f"{_OF_PG}/test_listener.py",
    ),
    _on_postgres(
        "notifying: an error that nobody knows ends it",
        Edit(f"{_PG}/notify_throttle.py", "except Exception as error:", "except OnwardError as error:"),
        f"{_OF_PG}/test_notify_throttle.py",
    ),
    _on_postgres(
        "claim prefetch: an answer is waited for without end",
        Edit("pg/listener.py", "if (query_timeout := self._connection.query_timeout) is not None:", "if False:"),
        f"{_OF_PG}/test_claim_on_notify.py",
    ),
    _on_postgres(
        "single producer: one that takes longer is not counted",
        Edit(
            f"{_PG}/single_producer.py",
            "            async with self._connections.semaphore:  # there is some, since one was idle\n    ",
            "",
        ),
        f"{_OF_PG}/test_single_producer.py",
    ),
    _on_postgres(
        "connections: who sends is told nothing where nothing has come",
        Edit("pg/timed_connection.py", "(yield wanted) or Ready.NONE", "yield wanted"),
        f"{_OF_PG}/test_queries.py",
    ),
    _on_postgres(
        "connections: who is cancelled hears what the driver says to that",
        Edit("pg/timed_connection.py", "except Exception as error:", "except psycopg.Error as error:"),
        f"{_OF_PG}/test_queries.py",
    ),
    _on_postgres(
        "sessions: they write as the database likes it",
        Edit("pg/database.py", "(_CONNECTION_DEFAULTS | given | _FORCED_PARAMETERS)", "(_CONNECTION_DEFAULTS | given)"),
        f"{_OF_PG}/test_sessions.py",
    ),
    _on_postgres(
        "sessions: they begin as the database likes it",
        Edit("pg/database.py", "_options(given, _REQUIRED_SETTINGS, _PREFERRED_SETTINGS)", "{}"),
        f"{_OF_PG}/test_sessions.py",
    ),
    _on_postgres(
        "sessions: what an address says about them is lost",
        Edit("pg/database.py", "or {}), session_options, *", "or {}), *"),
        f"{_OF_PG}/test_sessions.py",
    ),
    _on_postgres(
        "sessions: a pooler's are taken as they are",
        Edit("pg/database.py", 'if value.split(",")[0] != required:', "if False:"),
        f"{_OF_PG}/test_sessions.py",
    ),
    _on_postgres(
        "connections: one that the server has closed is used",
        Edit("pg/timed_connection.py", "and not self._poll.poll(0)", ""),
        f"{_OF_PG}/test_errors.py",
    ),
    _on_postgres(
        "examine: who only writes is not looked at",
        Edit(
            f"{_PG}/sql/vacuum_blockers.sql", "num_nonnulls(backend_xid, backend_xmin) > 0", "backend_xmin is not null"
        ),
        f"{_OF_PG}/test_pinning.py",
    ),
    _on_postgres(
        "examine: a session of another database is accused",
        Edit(f"{_PG}/sql/vacuum_blockers.sql", "datname = current_database() and pid <>", "pid <>"),
        f"{_OF_PG}/test_pinning.py",
    ),
    _on_postgres(
        "examine: an index that cannot be used counts as one that is there",
        Edit(f"{_PG}/sql/server_facts.sql", " and x.indisvalid", ""),
        f"{_OF_PG}/test_diagnostics.py",
    ),
)

# Batches --------------------------------------------------------------------------------------------------------------

_GATHER: Final = f"{CONFORMANCE}/test_batches.py"
_HOLDS: Final = f"{CONFORMANCE}/test_throttle.py"

BATCHES: Final = (
    Mutant(
        "batches: one that is not sealed finishes",
        (Edit(f"{_SQL}/batch_outcome.sql", "select sealed and completed", "select completed"),),
        (_GATHER,),
    ),
    Mutant(
        "batches: a callback is not taken out when it is enqueued",
        (
            Edit(
                f"{_SQL}/batch_take_callbacks.sql",
                "set on_failure = iif(:fails or :finishes, null, on_failure)",
                "set on_failure = on_failure",
            ),
        ),
        (_GATHER,),
    ),
    Mutant(
        "batches: jobs that are cancelled by a button are not told of",
        (
            Edit(
                f"{_PY}/admin.py",
                "        transaction.wakes_workers = True\n        batches.advance(transaction)\n",
                "        transaction.wakes_workers = True\n",
            ),
            Edit(f"{_PY}/maintenance.py", "advance(transaction) if _is_leader(transaction, term) else False", "False"),
        ),
        (_GATHER,),
    ),
    Mutant(
        "batches: a leader that is none goes on with them",
        (
            Edit(
                f"{_PY}/maintenance.py",
                "advance(transaction) if _is_leader(transaction, term) else False",
                "advance(transaction)",
            ),
        ),
        (_GATHER,),
    ),
    Mutant(
        "batches: one that has finished takes jobs",
        (Edit(f"{_SQL}/batch_add_to_total.sql", " and finished_at is null and not stopped", ""),),
        (_GATHER,),
    ),
    Mutant(
        "flows: a job is ready when the first of those it waits for has ended",
        (
            Edit(
                f"{_SQL}/unblock.sql",
                "status = iif(pending_dependencies = ended, 'pending', 'blocked'),\n"
                "       ready_at = iif(pending_dependencies = ended, :now, null)",
                "status = 'pending',\n       ready_at = :now",
            ),
        ),
        (_GATHER,),
    ),
    Mutant(
        "flows: a job that failed counts as one that completed",
        (
            Edit(
                f"{_SQL}/dependencies_unresolved.sql",
                "coalesce(e.status, 'cancelled') = 'completed' or w.on_dependency_failure = 'run'",
                "true",
            ),
        ),
        (_GATHER,),
    ),
    Mutant(
        "flows: what is added after a job that has ended waits for ever",
        (Edit(f"{_PY}/dependencies.py", "    transaction.execute(SQL.batch_event_add_ended, named)\n", ""),),
        (_GATHER,),
    ),
    Mutant(
        "throttle: its period is counted from the last that was turned away",
        (
            Edit(
                f"{_PY}/enqueue.py",
                _THROTTLED,
                _THROTTLED
                + "        transaction.connection.execute('update onward_throttle set until = until + 30000000')\n",
            ),
        ),
        (_HOLDS,),
    ),
    Mutant(
        "debounce: a job that has been tried is replaced",
        (Edit(f"{_SQL}/debounce_replace.sql", " and attempts = 0", ""),),
        (_HOLDS,),
    ),
    _on_postgres(
        "batches: one that has finished calls back again",
        Edit(
            f"{_PG}/migrations/0011_batches.sql",
            "update onward.batch b set finished_at = now_at, on_success = null, on_failure = null, on_finished = null",
            "update onward.batch b set on_success = null, on_failure = null",
        ),
        _GATHER,
    ),
    _on_postgres(
        "flows: one who is followed while it ends is not seen",
        Edit(
            f"{_PG}/migrations/0011_batches.sql",
            "    update onward.job j set has_dependents = true, updated_at",
            "    update onward.job j set has_dependents = false, updated_at",
        ),
        _GATHER,
    ),
    _on_postgres(
        "batches: jobs that end together are counted as one",
        Edit(
            f"{_PG}/migrations/0003_settle.sql",
            "has_dependents then id end, true, count(*) from ended",
            "has_dependents then id end, true, 1 from ended",
        ),
        _GATHER,
    ),
    _on_postgres(
        "throttle: an old throttle holds for ever",
        Edit(
            f"{_PG}/migrations/0002_enqueue.sql",
            "if throttles[no] is not null and existing.until > now_at then",
            "if throttles[no] is not null then",
        ),
        _HOLDS,
    ),
)

RECORDS: Final = f"{CONFORMANCE}/test_event_log.py"
TELLING: Final = "tests/engines/postgres/test_events.py"

EVENTS: Final = (
    Mutant(
        "events: what nobody heard of is not looked for among finished jobs",
        (Edit(f"{_PY}/events.py", "if position.no >= self.on_no:", "if place.no >= 0:"),),
        (RECORDS,),
    ),
    Mutant(
        "events: who comes back from a gap misses the jobs that ended in it with its first event",
        (Edit(f"{_SQL}/event_catch_up.sql", "j.completed_at >= :at and", "j.completed_at > :on_at and"),),
        (RECORDS,),
    ),
    Mutant(
        "events: a cursor of what has been trimmed is taken",
        (Edit(f"{_PY}/events.py", "if position.no < trimmed:", "if False:"),),
        (RECORDS,),
    ),
    Mutant(
        "events: a cursor of what has been pruned is taken",
        (Edit(f"{_PY}/archived_jobs.py", "    transaction.execute(SQL.event_log_mark_pruned, gone)\n", ""),),
        (RECORDS,),
    ),
    Mutant(
        "events: recording never ends",
        (Edit(f"{_PY}/events.py", "log.listened_until < transaction.now", "False"),),
        (RECORDS,),
    ),
    Mutant(
        "events: recording ends although it is to go on always",
        (Edit(f"{_PY}/events.py", "if log.is_on and not log.always and", "if log.is_on and"),),
        (RECORDS,),
    ),
    Mutant(
        "events: a job put off by its handler counts as a retry",
        (Edit(f"{_SQL}/event_trigger_status.sql", "old.status = 'running' and new.attempts = old.attempts", "true"),),
        (RECORDS,),
    ),
    Mutant(
        "events: what dead workers held is given back as if they had",
        (Edit(f"{_SQL}/event_trigger_status.sql", "old.lease_until <= new.updated_at", "false"),),
        (f"{CONFORMANCE}/test_events.py", RECORDS),
    ),
    Mutant(
        "events: a page's last entry is told again",
        (Edit(f"{_SQL}/event_catch_up.sql", "(at, source, number_of) > (", "(at, source, number_of) >= ("),),
        (RECORDS,),
    ),
    Mutant(
        "events: all queues are told of",
        (Edit("engine/event_reader.py", "                    if is_wanted:\n", "                    if True:\n"),),
        (f"{CONFORMANCE}/test_events.py",),
    ),
    _on_postgres(
        "events: a number is taken for a place",
        Edit(
            f"{_PG}/sql/event_read.sql",
            "not pg_visible_in_snapshot(xid, $1::text::pg_snapshot)",
            "xid >= pg_snapshot_xmax($1::text::pg_snapshot)",
        ),
        TELLING,
    ),
    _on_postgres(
        "events: those are not waited for who wrote before",
        Edit(f"{_PG}/events.py", "        while writers:\n", "        while False:\n"),
        TELLING,
    ),
    _on_postgres(
        "events: the middle of a look is taken for its end",
        Edit(
            f"{_PG}/events.py",
            "[position.snapshot, next_snapshot, position.no, wanted, limit]",
            "[position.snapshot, next_snapshot, 0, wanted, limit]",
        ),
        TELLING,
    ),
    _on_postgres(
        "events: a part of a transaction is not known as such",
        Edit(
            f"{_PG}/sql/event_catch_up.sql",
            "pg_snapshot_xmin($1::text::pg_snapshot)::text::bigint as first",
            "pg_snapshot_xmax($1::text::pg_snapshot)::text::bigint + 1000 as first",
        ),
        TELLING,
        RECORDS,
    ),
    _on_postgres(
        "events: a cursor of what has been trimmed is taken",
        Edit(f"{_PG}/events.py", "if first <= self.trimmed_xid:", "if False:"),
        RECORDS,
    ),
    _on_postgres(
        "events: a cursor of what has been pruned is taken",
        Edit(f"{_PG}/events.py", "if self.pruned_at >= max(position.at, position.caught_up_to[0]):", "if False:"),
        RECORDS,
    ),
    _on_postgres(
        "events: recording never ends",
        Edit(f"{_PG}/migrations/0010_events.sql", "log.listened_until < now_at and", "false and"),
        RECORDS,
    ),
    _on_postgres(
        "events: the switch is part of a transaction's view",
        Edit(
            f"{_PG}/migrations/0010_events.sql",
            "return pg_catalog.pg_sequence_last_value('onward.event_switch'::pg_catalog.regclass) is not null;",
            "return (select l.is_complete from onward.event_log l);",
        ),
        TELLING,
    ),
)

MIGRATIONS: Final = (
    _on_postgres(
        "migrate: a schema that is for everybody may be ours",
        Edit("pg/schema_name.py", "max_length=max_length) in _SHARED_SCHEMAS", "max_length=max_length) in ()"),
        MIGRATING,
    ),
    _on_postgres(
        "migrate: a schema that is in use for something else is taken",
        Edit(_MIGRATING, "        if has_objects:", "        if False:"),
        MIGRATING,
    ),
    _on_postgres(
        "migrate: the script takes a schema that is in use for something else",
        Edit(_MIGRATING, "if {has_objects} then", "if false then"),
        MIGRATING,
    ),
    _on_postgres(
        "migrate: the script does not know a later version's schema",
        Edit(_MIGRATING, "if latest > newest then", "if false then"),
        MIGRATING,
    ),
    _on_postgres(
        "migrate: the script does not record a step",
        Edit(_MIGRATING, "values (step.number, step.name, step.checksum);", "select 0, '', '' where false;"),
        MIGRATING,
    ),
    _on_postgres(
        "migrate: a step waits for a table for as long as it takes",
        Edit(_MIGRATING, "lock_timeout = {LOCK_TIMEOUT_MS}", "lock_timeout = 0"),
        f"{_OF_PG}/test_upgrades.py",
    ),
    _on_postgres(
        "migrate: the script waits for a table for as long as it takes",
        Edit(
            _MIGRATING, "set_config('lock_timeout', '{lock_timeout_ms}', true)", "set_config('lock_timeout', '0', true)"
        ),
        f"{_OF_PG}/test_upgrades.py",
    ),
)

HOOKS: Final = "tests/app/test_webhooks.py"


def _of_webhooks(name: str, edit: Edit) -> Mutant:
    return Mutant(f"webhooks: {name}", (edit,), (HOOKS,))


WEBHOOKS: Final = (
    _of_webhooks(
        "an address that only newer Pythons know is public",
        Edit("webhook.py", " and not any(each in network for network in _RESERVED)", ""),
    ),
    _of_webhooks(
        "a timestamp of any length is read",
        Edit("webhook.py", "if not _TIMESTAMP.fullmatch(timestamp) or", "if not timestamp.isdecimal() or"),
    ),
    _of_webhooks(
        "control characters in an address are sent",
        Edit("webhook.py", "if not self.url.isprintable() or any(", "if any("),
    ),
    _of_webhooks(
        "a delivery of any payload is signed",
        Edit(
            "webhook.py",
            "        if not any(hmac.compare_digest(proof",
            "        if False and not any(hmac.compare_digest(proof",
        ),
    ),
    _of_webhooks(
        "a proof holds for every webhook",
        Edit("webhook.py", "msgspec.json.encode([webhook, message],", "msgspec.json.encode([message],"),
    ),
    _of_webhooks(
        "a private address is posted to",
        Edit("webhook.py", "if not is_public(address) and not any(", "if False and not any("),
    ),
    _of_webhooks(
        "only the first address is checked", Edit("webhook.py", "for text in addresses:", "for text in addresses[:1]:")
    ),
    _of_webhooks(
        "the name is resolved once more for the connection",
        Edit("webhook.py", "        address, port, ssl=context,", "        host, port, ssl=context,"),
    ),
    _of_webhooks(
        "an address of IPv4 hides in one of IPv6",
        Edit("webhook.py", "for each in _meant(address)", "for each in [address]"),
    ),
    _of_webhooks(
        "the name is not looked for in the certificate",
        Edit("webhook.py", "server_hostname=host if is_secure", "server_hostname=address if is_secure"),
    ),
    _of_webhooks("the body is not signed", Edit("webhook.py", ".encode() + body, hashlib", ".encode(), hashlib")),
    _of_webhooks(
        "an old message is genuine",
        Edit("webhook.py", "- int(timestamp)) > TOLERANCE", "- int(timestamp)) > TOLERANCE * 1000"),
    ),
    _of_webhooks(
        "a redirect counts as taken", Edit("webhook.py", "if not 200 <= status < 300:", "if not 200 <= status < 400:")
    ),
    _of_webhooks("deliveries are told of", Edit("webhook.py", "own = event.ref.queue == QUEUE or", "own =")),
    _of_webhooks(
        "an event is posted as often as it is told",
        Edit("webhook.py", "idempotency_key=identity_of(webhook, event), ", ""),
    ),
    Mutant(
        "bookmarks: somebody else's is taken",
        (
            Edit(
                f"{_SQL}/event_cursor_acquire.sql",
                " where holder = excluded.holder or until <= :now\n",
                " where true\n",
            ),
        ),
        (f"{CONFORMANCE}/test_event_cursors.py",),
    ),
    Mutant(
        "bookmarks: who lost it puts it further on",
        (Edit(f"{_SQL}/event_cursor_commit.sql", " and holder = :holder", ""),),
        (f"{CONFORMANCE}/test_event_cursors.py",),
    ),
)

_TRACED: Final = (
    f"{CONFORMANCE}/test_enqueue.py::test_what_tracing_sends_along_comes_with_the_claim_and_with_each_later_one"
)


def _of_traces(name: str, edit: Edit) -> Mutant:
    return Mutant(f"traces: {name}", (edit,), ("tests/contrib/test_otel.py",))


TRACES: Final = (
    Mutant(
        "traces: jobs that differ lose them",
        (
            Edit(
                "engines/postgres/migrations/0002_enqueue.sql",
                "j.pending_dependencies, j.on_dependency_failure, j.trace",
                "j.pending_dependencies, j.on_failure, null",
            ),
        ),
        (_TRACED,),
        engine="postgres",
    ),
    Mutant(
        "traces: a job with nothing else unusual comes without",
        (
            Edit(
                "engines/postgres/migrations/0004_claims.sql",
                " or t.backoff is not null or t.trace is not null)",
                " or t.backoff is not null)",
            ),
        ),
        (_TRACED,),
        engine="postgres",
    ),
    Mutant(
        "traces: those of Node are not read",
        (Edit("engines/bullmq/job_options.py", 'options.get("tm")', 'options.get("telemetry")'),),
        (_TRACED,),
        engine="bullmq",
    ),
    _of_traces(
        "jobs of a batch begin anew",
        Edit("engine/checked.py", "store.save_batch(batch, passage.jobs,", "store.save_batch(batch, jobs,"),
    ),
    _of_traces(
        "baggage stays behind",
        Edit("contrib/otel.py", "    token = attach(parent)\n", "    token = attach(Context())\n"),
    ),
    _of_traces(
        "the headers are those of who asked",
        Edit(
            "contrib/otel.py",
            "            answers = yield _with_headers(jobs, _current_headers())\n",
            "            pass\n        answers = yield _with_headers(jobs, _current_headers())\n        if True:\n",
        ),
    ),
    _of_traces(
        "a snooze is an error", Edit("contrib/otel.py", "except (Snooze, Cancel, asyncio", "except (Cancel, asyncio")
    ),
    _of_traces(
        "an app is traced twice",
        Edit(
            "contrib/otel.py",
            "for each in app.enqueue_middleware):\n        return\n",
            "for each in ()):\n        return\n",
        ),
    ),
)


def _of_archive(name: str, edit: Edit, engine: str = "sqlite", tests: str = f"{CONFORMANCE}/test_archive.py") -> Mutant:
    return Mutant(f"archive: {name}", (edit,), (tests,), engine=engine)


_HISTORY_TESTS: Final = "tests/engines/postgres/test_history.py"
_MAINTENANCE: Final = "engines/postgres/migrations/0006_maintenance.sql"
_PARTITIONS: Final = "engines/postgres/migrations/0007_partitions.sql"

ARCHIVE: Final = (
    _of_archive("nothing is", Edit(f"{_PY}/archived_jobs.py", "    transaction.execute(SQL.archive, gone)\n", "")),
    _of_archive(
        "nothing ever leaves it",
        Edit(f"{_SQL}/archive_prune.sql", "and until <= :now order", "and until < 0 order"),
    ),
    _of_archive(
        "without the leader's term",
        Edit(f"{_SQL}/archive.sql", "number = :number and leader_id = :leader_id and ", ""),
    ),
    _of_archive(
        "it is emptied too soon",
        Edit(f"{_SQL}/archive.sql", ":now + q.keep_archived_us,", "j.completed_at + q.keep_archived_us,"),
    ),
    _of_archive(
        "nothing is, one by one",
        Edit(_MAINTENANCE, "     where q.keep_archived is distinct from interval '0'),", "     where false),"),
        "postgres",
    ),
    _of_archive(
        "days go while others keep them",
        Edit(_PARTITIONS, "      continue when waits;\n", ""),
        "postgres",
        _HISTORY_TESTS,
    ),
    _of_archive(
        "days are never dropped",
        Edit(_PARTITIONS, "      execute format('drop table %s', day_part);\n", "      null;\n"),
        "postgres",
        _HISTORY_TESTS,
    ),
    _of_archive(
        "days go row by row",
        Edit(_MAINTENANCE, "where not r.by_day and h.queue", "where h.queue"),
        "postgres",
        _HISTORY_TESTS,
    ),
)

_STOP: Final = "tests/worker/test_stop.py"

STOPPING: Final = (
    Mutant(
        "stop: a worker that is cancelled cuts its round trip",
        (Edit("worker/worker.py", "                running.force_stop()\n", "                running.cancel()\n"),),
        (f"{CONFORMANCE}/test_workers.py",),
    ),
    Mutant(
        "stop: the outcomes of a round trip that was cut are dropped",
        (
            Edit(
                "worker/claimer.py",
                "            self._settler.requeue(settlements)\n            raise\n",
                "            raise\n",
            ),
        ),
        (f"{_STOP}::test_a_loop_that_ends_under_a_worker_loses_no_outcome",),
    ),
    Mutant(
        "stop: a second cancellation changes nothing",
        (Edit("worker/running_worker.py", "        if self._is_force_stopped:", "        if False:"),),
        (_STOP,),
        only="second_cancellation",
    ),
    Mutant(
        "stop: a worker that is cancelled waits for its grace",
        (Edit("worker/running_worker.py", "        self._grace_deadline.bring_forward(0)\n", ""),),
        (_STOP,),
        only="cancelled",
    ),
    Mutant(
        "worker: an outcome that was not stored counts as stored",
        (Edit("worker/claimer.py", "        if answer.busy:\n", "        if not answer:\n"),),
        ("tests/worker/test_claimer.py",),
        only="somebody_else_holds",
    ),
    Mutant(
        "worker: outcomes leave by themselves though others work",
        (
            Edit(
                "worker/claimer.py",
                "self._split_threshold is None or self._has_shared_load:",
                "self._split_threshold is None:",
            ),
        ),
        ("tests/worker/test_claimer.py",),
        only="others_work",
    ),
    Mutant(
        "worker: slots run away from the store by a whole exchange",
        (Edit("worker/claimer.py", "unsent = len(self._settler)", "unsent = max(len(self._settler) - 1000, 0)"),),
        ("tests/worker/test_claimer.py",),
        only="run_away",
    ),
    Mutant(
        "worker: a start that was not made counts as made",
        (Edit("worker/claimer.py", "if held.claim.token in answer.busy:", "if not answer:"),),
        ("tests/worker/test_claimer.py",),
        only="somebody_else_holds",
    ),
    Mutant(
        "worker: a deferred outcome is not sent again",
        (Edit("worker/claimer.py", "if now >= self._settler.deferred_until:", "if now < 0:"),),
        ("tests/worker/test_claimer.py",),
        only="somebody_else_holds",
    ),
    Mutant(
        "worker: closing does not wait for deferred outcomes",
        (Edit("worker/claimer.py", " or self._settler.deferred_until < math.inf\n", "\n"),),
        ("tests/worker/test_claimer.py",),
        only="somebody_else_holds",
    ),
    Mutant(
        "isolation: a suspect runs in the worker's own process",
        (
            Edit(
                "worker/running_worker.py",
                "pool = Pool(self._isolated_runner, size=size",
                "pool = Pool(self._runner, size=size",
            ),
        ),
        ("tests/worker/test_quarantine.py",),
        only="each_in_its_own",
    ),
    Mutant(
        "isolation: a child that dies is not counted",
        (Edit("worker/isolation.py", "            await self._engine.record_crash(claim)\n", "            pass\n"),),
        ("tests/worker/test_quarantine.py",),
        only="is_buried",
    ),
    Mutant(
        "isolation: a job that crashes is never buried",
        (Edit("worker/isolation.py", "if crashes >= self._max_crashes:", "if crashes > self._max_crashes + 99:"),),
        ("tests/worker/test_quarantine.py",),
        only="is_buried",
    ),
    Mutant(
        "isolation: a child that cannot be started is a crash",
        (
            Edit(
                "worker/isolation.py",
                "        except ProcessDied as error:",
                "        except (ProcessDied, StartFailed) as error:",
            ),
        ),
        ("tests/worker/test_quarantine.py",),
        only="no_crash",
    ),
    Mutant(
        "isolation: a crash that was not counted is held against the job",
        (
            Edit(
                "worker/isolation.py",
                "            return Interrupted()  # not counted, so not held against it\n",
                "            pass\n",
            ),
        ),
        ("tests/worker/test_quarantine.py",),
        only="cannot_be_counted",
    ),
    Mutant(
        "isolation: a cancelled suspect runs on",
        (
            Edit(
                "worker/running_worker.py",
                "                self._isolated_runner.cancel(token)\n",
                "                pass\n",
            ),
        ),
        ("tests/worker/test_quarantine.py",),
        only="cancelled_suspect",
    ),
    Mutant(
        "claimer: suspects are asked for at every hint",
        (
            Edit(
                "worker/claimer.py",
                "_SUSPECT_WAKE_INTERVALS: Final = (0.05, 5.0)",
                "_SUSPECT_WAKE_INTERVALS: Final = (0.0, 0.0)",
            ),
        ),
        ("tests/worker/test_claimer.py",),
        only="only_when_some_wait",
    ),
    Mutant(
        "slots: a woken zombie starts handlers of claims it has lost",
        (
            Edit(
                "worker/slot_pool.py",
                "if now - held.requested_at > self.lease and now - self.confirmed_at() > self.lease:",
                "if False:",
            ),
        ),
        ("tests/worker/test_slot_pool.py",),
        only="may_be_lost",
    ),
    Mutant(
        "slots: a claim that heartbeats have kept is given back",
        (Edit("worker/slot_pool.py", " and now - self.confirmed_at() > self.lease:", ":"),),
        ("tests/worker/test_slot_pool.py",),
        only="may_be_lost",
    ),
    Mutant(
        "heartbeat: a lease that ran out is not explained",
        (Edit("worker/heartbeat.py", "                self._warn_if_late(sent_at)\n", "                pass\n"),),
        ("tests/worker/test_heartbeat.py",),
        only="names_the_cause",
    ),
    Mutant(
        "supervisor: a child that cannot work is started again",
        (Edit("worker/supervisor.py", "if (pid, code) in self._final_exits:", "if False:"),),
        ("tests/worker/test_supervisor.py",),
        only="cannot_work",
    ),
    Mutant(
        "supervisor: an exit code alone stops the worker for good",
        (Edit("worker/supervisor.py", "if (pid, code) in self._final_exits:", "if 0 < code < 10:"),),
        ("tests/worker/test_supervisor.py",),
        only="exit_code_alone",
    ),
    Mutant(
        "stop: a handler that swallows its cancellation outlasts the grace",
        (
            Edit(
                "worker/running_worker.py",
                "self._options.grace.total_seconds() - self._clean_up_seconds\n",
                "self._options.grace.total_seconds()\n",
            ),
        ),
        ("tests/worker/test_stop.py",),
        only="swallows",
    ),
)

PROCESSES: Final = (
    Mutant(
        "process: the moment of a snooze is lost on the way",
        (Edit("worker/remote_error.py", "None if later is None else later.until", "None"),),
        ("tests/worker/test_processes.py",),
        only="moment_of_a_snooze",
    ),
    Mutant(
        "process: an exception of a child is raised by its name only",
        (Edit("worker/remote_error.py", "not issubclass(kind, (Exception, SystemExit))", "issubclass(kind, object)"),),
        ("tests/worker/test_processes.py",),
        only="keeps_class",
    ),
    Mutant(
        "process: a call that was answered kills the child it had",
        (Edit("worker/processes.py", "                    child = None\n", ""),),
        ("tests/worker/test_processes.py",),
        only="answered_does_not_kill",
    ),
    Mutant(
        "threads: a call answered as it is given up takes a thread away",
        (Edit("worker/threads.py", "if future.cancelled() and not call.is_delivered:", "if future.cancelled():"),),
        ("tests/worker/test_threads.py",),
        only="answered_as_it_is_given_up",
    ),
)

SQLITE_FILES: Final = (
    Mutant(
        "sqlite: jobs are acknowledged into a file that is gone",
        (
            Edit(
                f"{_PY}/writer.py",
                "error = None if self.database.file_id() == self._file_id else self._file_changed()",
                "error = None",
            ),
        ),
        (f"{SQLITE}/test_file_changes.py",),
    ),
    Mutant(
        "sqlite: an empty database takes the place of one that was removed",
        (Edit(f"{_PY}/database.py", "if self.must_exist and not self.path.exists():", "if False:"),),
        (f"{SQLITE}/test_file_changes.py",),
    ),
    Mutant(
        "sqlite: a lock that the system refuses is not left to the thread",
        (Edit(f"{_PY}/writer.py", "except OSError:  # the thread", "except BlockingIOError:  # the thread"),),
        (f"{SQLITE}/test_file_changes.py",),
        only="refuses",
    ),
    Mutant(
        "sqlite: closing waits for another process's lock",
        (Edit(f"{_PY}/writer.py", "                self._is_stuck = True\n", ""),),
        (f"{SQLITE}/test_write_lock.py",),
        only="closing",
    ),
    Mutant(
        "sqlite: a worker waits for a read-only store",
        (
            Edit(
                f"{_PY}/database.py",
                "error_type.is_permanent or error_type is StoreReadOnly",
                "error_type.is_permanent",
            ),
        ),
        (f"{SQLITE}/test_bad_input.py",),
        only="read_only",
    ),
    Mutant(
        "sqlite: a read-only mount is a file that cannot be opened",
        (Edit(f"{_PY}/database.py", "== sqlite3.SQLITE_CANTOPEN and database.is_read_only", "< 0"),),
        (f"{SQLITE}/test_bad_input.py",),
        only="read_only_mount",
    ),
    Mutant(
        "worker: a store that only a person can mend is asked again and again",
        (Edit("worker/claimer.py", "if isinstance(error, StoreUnavailable) and error.is_permanent:", "if False:"),),
        ("tests/worker/test_stop.py",),
        only="person_can_mend_its_store",
    ),
    Mutant(
        "sqlite: a dead leader keeps its term when the clock is set back",
        (Edit(f"{_SQL}/elect.sql", "    or onward_leader.renewed_at > :now + 1000000\n", ""),),
        (f"{SQLITE}/test_clock.py",),
    ),
    Mutant(
        "sqlite: leases outlast a clock that is set back",
        (Edit(f"{_PY}/maintenance.py", "    execute(SQL.rescue_clamp_leases, named)\n", ""),),
        (f"{SQLITE}/test_clock.py",),
    ),
    Mutant(
        "sqlite: a deposed leader shortens leases",
        (
            Edit(
                f"{_SQL}/rescue_clamp_leases.sql",
                "where number = :number and leader_id = :leader_id and until > :now)",
                "where :number and :leader_id <> '')",
            ),
        ),
        (f"{SQLITE}/test_clock.py",),
    ),
    Mutant(
        "sqlite: dead workers outlast a clock that is set back",
        (Edit(f"{_PY}/maintenance.py", "    execute(SQL.rescue_clamp_workers, named)\n", ""),),
        (f"{SQLITE}/test_clock.py",),
    ),
    Mutant(
        "sqlite: who sets the journal mode of a new file second is refused",
        (
            Edit(
                f"{_PY}/database.py",
                "if not is_busy(error) or time.monotonic() > deadline:",
                "if error:",
            ),
        ),
        (f"{SQLITE}/test_migrations.py",),
        only="refuse_each_other",
    ),
    Mutant(
        "sqlite: the limit of a rate permit moves away with every claim",
        (
            Edit(
                f"{_PY}/claims.py",
                '= clamped\n        transaction.execute(SQL.queue_set_next_permit, {"name": queue.name, ',
                '= clamped\n        dict({"name": queue.name, ',
            ),
        ),
        (f"{SQLITE}/test_clock.py",),
    ),
    Mutant(
        "sqlite: a limited queue stays closed when the clock is set back",
        (Edit(f"{_PY}/maintenance.py", " + execute(SQL.queue_reopen_late, named).rowcount", ""),),
        (f"{SQLITE}/test_clock.py",),
    ),
    Mutant(
        "sqlite: whoever lets go of an event cursor may take another's when the clock is set back",
        (Edit(f"{_SQL}/event_cursor_acquire.sql", "(:until > :now and until", "(until"),),
        (f"{SQLITE}/test_clock.py",),
    ),
    Mutant(
        "sqlite: events pile up between two prunes",
        (Edit(f"{_PY}/maintenance.py", "has_old_events = events.remove_old(transaction)", "has_old_events = False"),),
        (f"{SQLITE}/test_event_trim.py",),
    ),
    Mutant(
        "postgres: events pile up between two prunes",
        (Edit("engines/postgres/engine.py", 'if self._event_settings[0] == "all":', "if False:"),),
        ("tests/engines/postgres/test_events.py",),
        only="trims_events",
        engine="postgres",
    ),
    Mutant(
        "sqlite: lock files that root makes belong to root",
        (Edit(f"{_PY}/write_lock.py", "if os.geteuid() == 0:", "if False:"),),
        (f"{SQLITE}/test_file_changes.py",),
        only="lock_files",
    ),
    Mutant(
        "sqlite: everyone may lock a new database",
        (Edit(f"{_PY}/write_lock.py", "os.O_EXCL, 0o600)", "os.O_EXCL, 0o644)"),),
        (f"{SQLITE}/test_file_changes.py",),
        only="lock_files",
    ),
    Mutant(
        "worker: one failure at the end keeps it on the list",
        (
            Edit(
                "worker/running_worker.py",
                "            await step()\n        except StoreUnavailable:",
                "            await step()\n        except Exception:",
            ),
        ),
        ("tests/worker/test_stop.py",),
        only="at_the_end",
    ),
    Mutant(
        "worker: outcomes that cannot be stored together at the end are lost",
        (
            Edit(
                "worker/claimer.py",
                "            except StoreUnavailable:\n                raise\n            except",
                "            except Exception:\n                raise\n            except",
            ),
        ),
        ("tests/worker/test_claimer.py",),
        only="at_the_end",
    ),
    Mutant(
        "sqlite: a waiter is named as the holder of the lock",
        (
            Edit(f"{_PY}/write_lock.py", 'if fields[1] == "FLOCK" and', 'if "FLOCK" in fields and'),
            Edit(f"{_PY}/write_lock.py", "fields[5].rpartition", "fields[-3].rpartition"),
            Edit(
                f"{_PY}/write_lock.py",
                "int(fields[4]) > 0:\n                return int(fields[4])",
                "int(fields[-4]) > 0:\n                return int(fields[-4])",
            ),
        ),
        (f"{SQLITE}/test_write_lock.py",),
        only="holder",
    ),
    Mutant(
        "sqlite: a transaction that keeps others from writing is not logged",
        (Edit(f"{_PY}/writer.py", "if held > _LONG_HOLD_SECONDS:", "if False:"),),
        (f"{SQLITE}/test_write_lock.py",),
        only="logged",
    ),
    Mutant(
        "sqlite: a wait for another program counts as a hold of ours",
        (Edit(f"{_PY}/writer.py", "            self._write_lock.restart_hold()\n", ""),),
        (f"{SQLITE}/test_write_lock.py",),
        only="another_program",
    ),
    Mutant(
        "write process: the worker settles by itself",
        (
            Edit(
                f"{_PY}/writer.py",
                "            return await self.write_process.run(request)\n        request.loop",
                "            pass\n        request.loop",
            ),
        ),
        (f"{SQLITE}/test_write_process.py",),
        only="through_a_write_process",
    ),
    Mutant(
        "write process: what was started from a thread is written by the worker itself",
        (
            Edit(
                f"{_PY}/writer.py",
                "            return self.write_process.run_sync(request)\n",
                "            pass\n",
            ),
        ),
        (f"{SQLITE}/test_write_process.py",),
        only="loops_and_threads",
    ),
    Mutant(
        "write process: a worker asks for none",
        (
            Edit(
                "worker/running_worker.py",
                'if self._options.write_process != "never":',
                'if self._options.write_process == "never":',
            ),
        ),
        (f"{SQLITE}/test_write_process.py",),
        only="holds_the_gil",
    ),
    Mutant(
        "write process: an unknown policy is accepted",
        (Edit("worker/options.py", "if self.write_process not in get_args(WriteProcessPolicy):", "if False:"),),
        ("tests/worker/test_worker.py",),
        only="refused_by_name",
    ),
    Mutant(
        "write process: none starts on demand",
        (Edit(f"{_PY}/engine.py", "            self._isolates_on_demand = True\n", "            pass\n"),),
        (f"{SQLITE}/test_write_process.py",),
        only="held_for_too_long",
    ),
    Mutant(
        "write process: a program that only enqueues starts one",
        (
            Edit(
                f"{_PY}/engine.py",
                "        starts, self._isolates_on_demand = self._isolates_on_demand, False\n",
                "        starts = True\n"
                "        self._writer.write_process = WriteProcess(self.database, self._watcher.notify)\n",
            ),
        ),
        (f"{SQLITE}/test_write_process.py",),
        only="without_handlers",
    ),
    Mutant(
        "write process: it uses another clock than the engine",
        (Edit(f"{_PY}/engine.py", "not isinstance(self._clock, SystemClock) or ", ""),),
        (f"{SQLITE}/test_write_process.py",),
        only="cannot_read",
    ),
    Mutant(
        "write process: a signal for the whole group ends it",
        (
            Edit(
                f"{_PY}/write_process_main.py",
                "    for number in (signal.SIGINT, signal.SIGTERM):\n",
                "    for number in ():\n",
            ),
        ),
        (f"{SQLITE}/test_write_process.py",),
        only="whole_group",
    ),
    Mutant(
        "write process: a forked child uses its parent's channels",
        (
            Edit(
                f"{_PY}/write_process.py",
                "        self.is_ready = False\n        self._closed.set()\n        self._process = None\n",
                "        self._process = None\n",
            ),
        ),
        (f"{SQLITE}/test_write_process.py",),
        only="forked_child",
    ),
    Mutant(
        "write process: closing does not wait for what was asked",
        (
            Edit(
                f"{_PY}/write_process.py",
                "        while self._has_requests() and time.monotonic() < deadline:\n",
                "        while False:\n",
            ),
        ),
        (f"{SQLITE}/test_write_process.py",),
        only="closing_waits",
    ),
    Mutant(
        "write process: nobody is woken for what it has made ready",
        (Edit(f"{_PY}/write_process.py", "        if wakes_workers:\n", "        if False:\n"),),
        (f"{SQLITE}/test_write_process.py",),
        only="wakes_this_process",
    ),
    Mutant(
        "write process: a settlement loses its queue on the way",
        (Edit(f"{_PY}/write_messages.py", "_bare_claim((seq, claim_no), queue)", '_bare_claim((seq, claim_no), "")'),),
        (f"{SQLITE}/test_write_process.py",),
        only="through_a_write_process",
    ),
    Mutant(
        "tick: a cancellation reaches what it waits for",
        (Edit("worker/one_shot.py", "await asyncio.shield(work)", "await work"),),
        ("tests/app/test_tick.py",),
        only="cancelled_tick",
    ),
    Mutant(
        "tick: handlers start after it was cancelled",
        (
            Edit(
                "worker/one_shot.py",
                " or self._is_stopping:\n            return Interrupted()",
                ":\n            return Interrupted()",
            ),
        ),
        ("tests/app/test_tick.py",),
        only="no_further_handlers",
    ),
    Mutant(
        "results: a wait outlasts the app",
        (Edit("core.py", "        self.results.close()\n", ""),),
        ("tests/app/test_results.py",),
        only="app_is_closed",
    ),
    Mutant(
        "supervisor: a process that ends in good order is started again at once, always",
        (Edit("worker/supervisor.py", "if child.failures > 1 else 0.0", "if child.failures > 1 and code else 0.0"),),
        ("tests/worker/test_supervisor.py",),
        only="less_and_less_often",
    ),
    Mutant(
        "claim: payloads of any size are taken at once",
        (Edit(f"{_PY}/claims.py", "if size > self._size_left and (jobs or self.picked):", "if size < 0:"),),
        (f"{SQLITE}/test_claim_size.py",),
    ),
    Mutant(
        "claim: a queue is closed when its payloads are too long for one claim",
        (Edit(f"{_PY}/claims.py", "if self.is_cut_short:  # the queue stays open", "if not wanted:"),),
        (f"{SQLITE}/test_claim_size.py",),
    ),
    Mutant(
        "claim: after a failure as much is asked for again",
        (
            Edit(
                "worker/claimer.py", "if request is not None and not isinstance(error, StoreUnavailable):", "if False:"
            ),
        ),
        ("tests/worker/test_claimer.py",),
        only="too_large",
    ),
    Mutant(
        "claim: an unreadable row stops its queue",
        (
            Edit(
                f"{_PY}/claims.py",
                "if not is_unreadable(error) or not _fail_unreadable_jobs(transaction, named):",
                "if error:",
            ),
        ),
        (f"{SQLITE}/test_claim_size.py",),
    ),
    Mutant(
        "schema: a payload that is not JSON is let in",
        (Edit(_SCHEMA, "  check (json_valid(payload)),\n", ""),),
        (f"{SQLITE}/test_claim_size.py",),
    ),
    Mutant(
        "sqlite: a transaction is begun on an autocommit connection",
        (Edit(f"{_PY}/caller_transaction.py", "control == LEGACY_TRANSACTION_CONTROL and ", ""),),
        (f"{SQLITE}/test_caller_transaction.py",),
    ),
    Mutant(
        "sqlite: a refused enqueue leaves its begin open",
        (Edit(f"{_PY}/caller_transaction.py", "is_whole=is_outermost", "is_whole=False"),),
        (f"{SQLITE}/test_caller_transaction.py",),
    ),
    Mutant(
        "sqlite: a symbolic link is taken for the file",
        (Edit(f"{_PY}/database.py", "Path(os.path.realpath(path))", "Path(path).absolute()"),),
        (f"{SQLITE}/test_checkpoints.py",),
        only="symbolic_link",
    ),
    Mutant(
        "sqlite: an application's block whose commit fails keeps the lock",
        (
            Edit(
                f"{_PY}/application_connection.py",
                "must leave the lock\n            self.rollback()\n",
                "must leave the lock\n",
            ),
        ),
        (f"{SQLITE}/test_application_connection.py",),
        only="commit_fails",
    ),
    Mutant(
        "sqlite: a read that names a write takes the lock",
        (
            Edit(
                f"{_PY}/application_connection.py",
                "return _WRITES.search(_QUOTED.sub(\"''\", sql)) is not None",
                "return True",
            ),
        ),
        (f"{SQLITE}/test_application_connection.py",),
        only="looks_like_a_write",
    ),
    Mutant(
        "write process: one that does not answer is waited for without end",
        (
            Edit(
                f"{_PY}/write_process.py",
                "            channel.settimeout(self._database.busy_timeout + _RESPONSE_TIMEOUT)\n",
                "",
            ),
        ),
        (f"{SQLITE}/test_write_process.py",),
        only="does_not_answer",
    ),
    Mutant(
        "sqlite: an application writes without the write lock",
        (
            Edit(
                f"{_PY}/application_connection.py",
                "        if takes_turn:\n            self._acquire()\n",
                "",
            ),
        ),
        (f"{SQLITE}/test_application_connection.py",),
        only="holds_the_lock",
    ),
    Mutant(
        "sqlite: an application's transaction begins deferred",
        (Edit(f"{_PY}/application_connection.py", '_DEFERRED.sub("begin immediate", sql, count=1)', "sql"),),
        (f"{SQLITE}/test_application_connection.py",),
        only="explicit_transaction",
    ),
    Mutant(
        "sqlite: an application never checkpoints",
        (Edit(f"{_PY}/application_connection.py", "                self._checkpoint()\n", "                pass\n"),),
        (f"{SQLITE}/test_application_connection.py",),
        only="log_short",
    ),
    Mutant(
        "sqlite: an application's failed statement keeps the lock",
        (
            Edit(
                f"{_PY}/application_connection.py",
                "            if began and is_atomic and self.in_transaction:",
                "            if False:",
            ),
        ),
        (f"{SQLITE}/test_application_connection.py",),
        only="fails_leaves_no_lock",
    ),
    Mutant(
        "sqlite: a forked child keeps its parent's write lock",
        (Edit(f"{_PY}/application_connection.py", "        self._turn.forget()\n", "        pass\n"),),
        (f"{SQLITE}/test_application_connection.py",),
        only="forked",
    ),
    Mutant(
        "sqlite: a wait for the write lock that was given up keeps it",
        (
            Edit(
                f"{_PY}/write_turn.py",
                "            held.__exit__(None, None, None)\n            self._lock.close()\n",
                "            _Wait.kept = held  # type: ignore[attr-defined]\n",
            ),
        ),
        (f"{SQLITE}/test_application_connection.py",),
        only="waits_too_long_is_told",
    ),
    Mutant(
        "sqlite: sqlalchemy does not know of the transaction",
        (Edit(f"{_PY}/caller_transaction.py", "if not connection.in_transaction():", "if False:"),),
        (f"{SQLITE}/test_application_connection.py",),
        only="transaction_of_sqlalchemy",
    ),
)

TASKS: Final = (
    Mutant(
        "unknown tasks: the grace period never ends",
        (Edit("worker/unknown_tasks.py", "if recorded.elapsed >= self._grace and not is_served:", "if False:"),),
        ("tests/app/test_tick.py",),
        only="grace_is_over",
    ),
    Mutant(
        "unknown tasks: failed although a live worker has the task",
        (Edit("worker/unknown_tasks.py", "elapsed >= self._grace and not is_served", "elapsed >= self._grace"),),
        ("tests/app/test_tick.py",),
        only="last_worker_that_has_the_task",
    ),
    Mutant(
        "unknown tasks: the grace period counts while a live worker has the task",
        (Edit("worker/unknown_tasks.py", "if is_served != self.is_served or (at", "if (at"),),
        ("tests/app/test_tick.py",),
        only="last_worker_that_has_the_task",
    ),
    Mutant(
        "unknown tasks: the grace period counts while the job is not put back",
        (Edit("worker/unknown_tasks.py", " or (at - self.last_at) * MICROSECOND > _MAX_GAP", ""),),
        ("tests/app/test_tick.py",),
        only="grace_begins_again",
    ),
    Mutant(
        "unknown tasks: a job fails by an old list of workers",
        (Edit("worker/unknown_tasks.py", "if age >= _UNSERVED_TTL and not (", "if age >= _SERVED_TTL and not ("),),
        (f"{CONFORMANCE}/test_unknown_tasks.py",),
        only="just_registered and bullmq",
        engine="bullmq",
    ),
    Mutant(
        "unknown tasks: every snooze counts as a put-back on PGMQ",
        (Edit("engines/pgmq/headers.py", "            if is_put_back:\n", "            if True:\n"),),
        ("tests/engines/pgmq/test_messages.py",),
        only="only_put_backs_count",
        engine="pgmq",
    ),
    Mutant(
        "unknown tasks: put back without a limit on PGMQ",
        (Edit("engines/pgmq/engine.py", "    max_put_backs=2,\n", "    max_put_backs=3,\n"),),
        (f"{CONFORMANCE}/test_unknown_tasks.py",),
        only="pgmq",
        engine="pgmq",
    ),
    Mutant(
        "unknown tasks: put back on BullMQ although no worker may have the task",
        (Edit("worker/unknown_tasks.py", "if capabilities.put_back_needs_peer and not is_served:", "if False:"),),
        (f"{CONFORMANCE}/test_unknown_tasks.py",),
        only="bullmq",
        engine="bullmq",
    ),
    Mutant(
        "threads: one that could not be started is counted",
        (
            Edit(
                "worker/threads.py",
                "        except RuntimeError as error:  # the system's",
                "        except RuntimeError as error:\n            self._threads += 1  # the system's",
            ),
        ),
        ("tests/worker/test_threads.py",),
        only="tries_again",
    ),
    Mutant(
        "threads: a handler that never began costs an attempt",
        (
            Edit(
                "worker/runner.py",
                "                return Snoozed(_START_RETRY_DELAY)\n",
                "                return self._failed(handler, run, error)\n",
            ),
        ),
        ("tests/worker/test_worker.py",),
        only="costs_no_attempt",
    ),
    Mutant(
        "processes: a child that was never ready has run the job",
        (
            Edit(
                "worker/processes.py",
                "            if not self._is_ready and not self._is_killed:",
                "            if False:",
            ),
        ),
        ("tests/worker/test_processes.py",),
        only="before_it_is_ready",
    ),
    Mutant(
        "schedules: one by interval is declared where there are none",
        (Edit("declarations.py", "        capabilities.check_trigger(self.trigger)\n", ""),),
        ("tests/app/test_schedules.py",),
        only="interval_is_refused",
    ),
    Mutant(
        "payload: one that does not validate is failed at once",
        (
            Edit(
                "worker/runner.py",
                "_sanitize(str(error), _MAX_MESSAGE_LENGTH)))\n        run = ",
                "_sanitize(str(error), _MAX_MESSAGE_LENGTH)), retryable=False)\n        run = ",
            ),
        ),
        ("tests/app/test_runner.py",),
        only="retried_by_policy",
    ),
    Mutant(
        "payload: an argument that a producer misspelt is ignored with the rest",
        (
            Edit(
                "arguments.py",
                "self._decoder_of(fields, strict=extra is None)",
                "self._decoder_of(fields, strict=False)",
            ),
        ),
        ("tests/app/test_runner.py",),
        only="unknown_keys",
    ),
    Mutant(
        "payload: an escaped backslash is taken for half a character",
        (Edit("surrogates.py", "[0-9a-fA-F]{2})|.)", "[0-9a-fA-F]{2}))"),),
        ("tests/app/test_runner.py",),
        only="half_a_character",
    ),
    Mutant(
        "names: a bare id reaches into every queue",
        (Edit("engine/checks.py", "if not self.capabilities.has_global_ids:", "if False:"),),
        (f"{CONFORMANCE}/test_names.py",),
        only="bullmq",
        engine="bullmq",
    ),
    Mutant(
        "names: a prefix that several jobs have is taken for the first",
        (Edit("cli/bulk.py", "    if len(found) > 1:\n        names", "    if False:\n        names"),),
        ("tests/cli/test_jobs.py",),
        only="prefix",
    ),
    Mutant(
        "cli: explain shows the name of a task as it is",
        (Edit("cli/explain.py", 'output.escape(f" {job.type} in {job.queue}")', 'f" {job.type} in {job.queue}"'),),
        ("tests/cli/test_hostile_input.py",),
    ),
    Mutant(
        "cli: a remedy is written as it is",
        (Edit("cli/output.py", '(("  try: ", "bold"), escape_lines(remedy))', '(("  try: ", "bold"), remedy)'),),
        ("tests/cli/test_hostile_input.py",),
    ),
    Mutant(
        "names: the id of a job that is gone reaches one that begins alike",
        (Edit("cli/bulk.py", "_UUID.fullmatch(id) is not None and ", ""),),
        ("tests/interop/test_foreign_stores.py",),
        only="begins_alike",
        engine="pgmq",
    ),
)

_PGMQ_SQL: Final = "engines/pgmq/migrations"
_PGMQ_TESTS: Final = "tests/engines/pgmq"


def _on_pgmq(name: str, edit: Edit, *tests: str) -> Mutant:
    return Mutant(f"pgmq {name}", (edit,), tests, engine="pgmq")


PGMQ: Final = (
    _on_pgmq(
        "claim: it is not bounded by bytes",
        Edit(f"{_PGMQ_SQL}/0005_claims.sql", "from picked) <= $10::bigint", "from picked) >= 0"),
        f"{_PGMQ_TESTS}/test_claim_size.py",
    ),
    _on_pgmq(
        "claim: grouped reads are not bounded by bytes",
        Edit(
            f"{_PGMQ_SQL}/0005_claims.sql",
            "       where c.upto <= $3 or c.upto = c.size\n    )",
            "       where true\n    )",
        ),
        f"{_PGMQ_TESTS}/test_claim_size.py",
    ),
    _on_pgmq(
        "claim: each queue adds a long message",
        Edit(f"{_PGMQ_SQL}/0005_claims.sql", "is_full := is_full or bytes_left <= 0;", ""),
        f"{_PGMQ_TESTS}/test_claim_size.py",
    ),
    _on_pgmq(
        "claim: an unreadable message is left as it is",
        Edit("engines/pgmq/claims.py", "    if unreadable:\n", "    if False:\n"),
        f"{_PGMQ_TESTS}/test_claim_size.py",
    ),
    _on_pgmq(
        "doctor: who blocks a queue is not named",
        Edit(
            "engines/pgmq/sql/claim_blockers.sql",
            "::regclass, true from pgmq.meta m)",
            "::regclass, false from pgmq.meta m)",
        ),
        f"{_PGMQ_TESTS}/test_locks.py",
    ),
    _on_pgmq(
        "locks: a stranger holds up settings",
        Edit(
            f"{_PGMQ_SQL}/0006_admin.sql",
            "lock table onward.queue in share row exclusive mode;",
            "perform pg_advisory_xact_lock(hashtextextended('onward_pgmq.configure', 0));",
        ),
        f"{_PGMQ_TESTS}/test_locks.py",
    ),
    _on_pgmq(
        "rescue: what is lost once is a suspect",
        Edit(f"{_PGMQ_SQL}/0005_claims.sql", "where s.queue = name and s.losses >= 2", "where s.queue = name"),
        f"{CONFORMANCE}/test_counting.py",
    ),
    _on_pgmq(
        "fence: a token repeats when a queue is created again",
        Edit(
            f"{_PGMQ_SQL}/0004_settle.sql",
            "case when columns like '%last_read_at%' then 'last_read_at' else 'enqueued_at' end",
            "case when columns like '%last_read_at%' then 'enqueued_at' else 'enqueued_at' end",
        ),
        f"{_PGMQ_TESTS}/test_messages.py",
    ),
    _on_pgmq(
        "settle: a dropped queue fails the outcomes of all queues",
        Edit(f"{_PGMQ_SQL}/0004_settle.sql", "if not onward.has_tables(part.queue) then", "if false then"),
        f"{_PGMQ_TESTS}/test_messages.py",
    ),
    _on_pgmq(
        "leases: a dropped queue fails the heartbeat of all queues",
        Edit(f"{_PGMQ_SQL}/0007_leases.sql", "if not onward.has_tables(part.queue) then", "if false then"),
        f"{_PGMQ_TESTS}/test_messages.py",
    ),
    _on_pgmq(
        "headers: those of another message count",
        Edit(
            f"{_PGMQ_SQL}/0002_headers.sql",
            "when not headers -> 'onward' ? 'message' then",
            "when true then",
        ),
        f"{_PGMQ_TESTS}/test_messages.py",
    ),
    _on_pgmq(
        "groups: a message runs beside a later one of its group",
        Edit(f"{_PGMQ_SQL}/0005_claims.sql", "having not bool_or(m.read_ct > 0 and", "having not bool_or(false and"),
        f"{_PGMQ_TESTS}/test_queries.py",
    ),
    _on_pgmq(
        "groups: a group goes on past a message that waits to be retried",
        Edit(
            f"{_PGMQ_SQL}/0005_claims.sql",
            "      select min(m.msg_id) as msg_id from pgmq.%1$I m\n",
            "      select min(m.msg_id) as msg_id from pgmq.%1$I m where m.vt <= clock_timestamp()\n",
        ),
        f"{_PGMQ_TESTS}/test_queries.py",
    ),
)

PGBOSS: Final = (
    Mutant(
        "pgboss claim: it is not bounded by bytes",
        (Edit("engines/pgboss/sql/claim.sql", "from found) <= $7::bigint", "from found) >= 0"),),
        ("tests/engines/pgboss/test_claim_size.py",),
        engine="pgboss",
    ),
    Mutant(
        "pgboss claim: a payload longer than a claim never comes",
        (Edit("engines/pgboss/sql/claim.sql", "or c.upto = c.size", ""),),
        ("tests/engines/pgboss/test_claim_size.py",),
        engine="pgboss",
    ),
    Mutant(
        "pgboss claim: an unreadable job is left as it is",
        (Edit("engines/pgboss/claims.py", "        if unreadable:\n", "        if False:\n"),),
        ("tests/engines/pgboss/test_claim_size.py",),
        engine="pgboss",
    ),
    Mutant(
        "pgboss keys: two add a job with the same key at once",
        (
            Edit(
                "engines/pgboss/migrations/0001_tables.sql",
                "on conflict do nothing;\n  delete from onward.key_lock",
                "limit 0;\n  delete from onward.key_lock",
            ),
        ),
        ("tests/engines/pgboss/test_locks.py",),
        engine="pgboss",
    ),
    Mutant(
        "pgboss keys: the lock of a key is left behind",
        (Edit("engines/pgboss/migrations/0001_tables.sql", "where key = any (keys);", "where false;"),),
        ("tests/engines/pgboss/test_locks.py",),
        engine="pgboss",
    ),
    Mutant(
        "pgboss doctor: who blocks the table of a queue is not named",
        (
            Edit(
                "engines/pgboss/sql/claim_blockers.sql",
                "pg_partition_tree('pgboss.job') t)",
                "pg_partition_tree('pgboss.queue') t)",
            ),
        ),
        ("tests/engines/pgboss/test_locks.py",),
        engine="pgboss",
    ),
    Mutant(
        "pgboss settle: a snoozed job keeps its keep_until",
        (
            Edit(
                "engines/pgboss/sql/settle.sql",
                "then greatest(j.keep_until, pgboss.job_now()",
                "then least(j.keep_until, pgboss.job_now()",
            ),
        ),
        ("tests/engines/pgboss/test_leases.py",),
        only="snoozed_job",
        engine="pgboss",
    ),
    Mutant(
        "pgboss settle: a failed job is kept longer than pg-boss would keep it",
        (
            Edit(
                "engines/pgboss/sql/settle.sql",
                "keep_until = case when e.state = 'retry' and e.released and",
                "keep_until = case when e.state = 'retry' and",
            ),
        ),
        ("tests/engines/pgboss/test_leases.py",),
        only="kept_no_longer",
        engine="pgboss",
    ),
    Mutant(
        "leases: a job's own heartbeat interval is not kept to",
        (
            Edit(
                "worker/heartbeat_interval.py",
                "for claim in claims if claim.heartbeat_within is not None",
                "for claim in claims if False",
            ),
        ),
        ("tests/worker/test_heartbeat.py",),
    ),
)

_ACCESS_TESTS: Final = f"{CONFORMANCE}/test_access.py"

ACCESS: Final = (
    Mutant(
        "access: the record is written after the change has been committed",
        (
            Edit(
                f"{_PY}/engine.py",
                "        return await self._writer.run(access.Audited(work, audit, count), *args)\n",
                "        result = await self._writer.run(work, *args)\n"
                "        if audit is not None:\n"
                "            await self._writer.run(access.record, [access.counted(audit, count(result))])\n"
                "        return result\n",
            ),
        ),
        (f"{_ACCESS_TESTS}::test_there_is_no_change_without_a_record",),
    ),
    Mutant(
        "access: an enqueue forgets its record",
        (Edit(f"{_PY}/enqueue.py", "    access.record(transaction, records)\n", ""),),
        (f"{_ACCESS_TESTS}::test_audited_enqueues_that_come_together_each_have_their_record",),
    ),
    Mutant(
        "access: the digest of a session is not compared",
        (Edit(f"{_SQL}/session_find.sql", "where s.digest = :digest", "where :digest is not null"),),
        (f"{_ACCESS_TESTS}::test_a_session_is_found_by_its_digest_alone",),
    ),
    Mutant(
        "access: a revoked token is still found valid",
        (Edit(f"{_SQL}/token_revoke.sql", "set revoked_at = :now", "set revoked_at = null"),),
        (f"{_ACCESS_TESTS}::test_a_revoked_token_is_invalid_and_its_sessions_end",),
    ),
    Mutant(
        "access: the sessions of a revoked token go on",
        (
            Edit(
                f"{_PY}/access.py",
                '    transaction.execute(SQL.session_delete_of_token, {"id": token_id})\n',
                "",
            ),
        ),
        (f"{_ACCESS_TESTS}::test_a_revoked_token_is_invalid_and_its_sessions_end",),
    ),
    Mutant(
        "access: a revoked token gets a session",
        (Edit(f"{_SQL}/session_add.sql", " and revoked_at is null", ""),),
        (f"{_ACCESS_TESTS}::test_a_revoked_token_gets_no_session",),
    ),
    Mutant(
        "access: the filter by organisations is ignored",
        (
            Edit(
                f"{_PY}/filters.py",
                'add("org_id in (select value from json_each(:orgs))", orgs=json_text(which.orgs))',
                "pass",
            ),
        ),
        (f"{_ACCESS_TESTS}::test_a_change_by_organisations_reaches_no_further_than_a_list",),
    ),
    Mutant(
        "access: records are removed before thirty days have passed",
        (Edit(f"{_PY}/access.py", "max(keep_audit, MIN_AUDIT_RETENTION)", "keep_audit"),),
        (f"{_ACCESS_TESTS}::test_no_retention_removes_records_of_the_last_thirty_days",),
    ),
    *[
        Mutant(
            f"{engine} access: the record of a change is not in its transaction",
            (Edit("pg/access.py" if engine in {"pgboss", "pgmq"} else f"engines/{engine}/engine.py", old, new),),
            (f"{_ACCESS_TESTS}::test_there_is_no_change_without_a_record",),
            engine=engine,
        )
        for engine, old, new in (
            (
                "postgres",
                "lambda: self._access.audited(plan(), audit, count), atomic=True",
                "lambda: self._access.audited(plan(), audit, count), atomic=False",
            ),
            (
                "pgboss",
                "lambda: self._access.audited(plan(), audit, count), atomic=True",
                "lambda: self._access.audited(plan(), audit, count), atomic=False",
            ),
            (
                "pgmq",
                "lambda: self._access.audited(plan(), audit, count), atomic=True",
                "lambda: self._access.audited(plan(), audit, count), atomic=False",
            ),
            (
                "bullmq",
                (
                    "        is_new = await self.run_plan(access.record(self.keys, replace(audit, count=None)))\n"
                    "        result = await change()\n"
                ),
                (
                    "        result = await change()\n"
                    "        is_new = await self.run_plan(access.record(self.keys, replace(audit, count=None)))\n"
                ),
            ),
        )
    ],
    *[
        Mutant(
            f"{engine} access: the filter by organisations is ignored",
            (Edit(f"engines/{engine}/{file}", old, new),),
            (f"{_ACCESS_TESTS}::test_a_change_by_organisations_reaches_no_further_than_a_list",),
            engine=engine,
        )
        for engine, file, old, new in (
            ("postgres", "filters.py", 'self.add("org_id = any ({}::text[])", list(which.orgs))', "pass"),
            ("pgboss", "filters.py", "if which.orgs is not None:", "if which.orgs is None and which.orgs:"),
            ("pgmq", "queries.py", 'self.add("org_id = any ({}::text[])", list(which.orgs))', "pass"),
            ("bullmq", "queries.py", "        and (which.orgs is None or job.org_id in which.orgs)\n", ""),
        )
    ],
    *[
        Mutant(
            f"{engine} access: {name}",
            (Edit(file, old, new),),
            (f"{_ACCESS_TESTS}::{test}",),
            engine=engine,
        )
        for engine, name, file, old, new, test in (
            (
                "pgboss",
                "the digest of a session is not compared",
                "pg/sql/session_find.sql",
                "where s.digest = $1::text",
                "where $1::text is not null",
                "test_a_session_is_found_by_its_digest_alone",
            ),
            (
                "postgres",
                "a revoked token is still found valid",
                "pg/sql/token_revoke.sql",
                "set revoked_at = coalesce($1::timestamptz, clock_timestamp())",
                "set revoked_at = nullif($1::timestamptz, $1::timestamptz)",
                "test_a_revoked_token_is_invalid_and_its_sessions_end",
            ),
            (
                "pgmq",
                "a revoked token gets a session",
                "pg/sql/session_add.sql",
                " and revoked_at is null",
                "",
                "test_a_revoked_token_gets_no_session",
            ),
            (
                "pgmq",
                "records are removed before thirty days have passed",
                "pg/sql/audit_prune.sql",
                "greatest($2::interval, interval '30 days')",
                "$2::interval",
                "test_no_retention_removes_records_of_the_last_thirty_days",
            ),
            (
                "bullmq",
                "a revoked token is still found valid",
                "engines/bullmq/lua/token_revoke.lua",
                "  is_new = call('HSETNX', KEYS[2], ARGV[5], int_string(micros))",
                "  is_new = 1",
                "test_a_revoked_token_is_invalid_and_its_sessions_end",
            ),
            (
                "bullmq",
                "a revoked token gets a session",
                "engines/bullmq/lua/session_add.lua",
                " or call('HEXISTS', KEYS[2], ARGV[5]) == 1",
                "",
                "test_a_revoked_token_gets_no_session",
            ),
            (
                "bullmq",
                "records are removed before thirty days have passed",
                "engines/bullmq/access.py",
                "max(keep_audit, MIN_AUDIT_RETENTION)",
                "keep_audit",
                "test_no_retention_removes_records_of_the_last_thirty_days",
            ),
        )
    ],
    Mutant(
        "postgres access: the server's role may prune records of the last thirty days",
        (Edit("engines/postgres/migrations/0013_grants.sql", "greatest(kept, interval '30 days')", "kept"),),
        ("tests/engines/postgres/test_sql_api.py::test_a_server_cannot_prune_records_of_the_last_thirty_days",),
        engine="postgres",
    ),
    Mutant(
        "postgres access: workers may read tokens",
        (
            Edit(
                "engines/postgres/migrations/0013_grants.sql",
                "relname not in ('token', 'session', 'audit', 'audit_no_seq') and",
                "relname not in ('session', 'audit', 'audit_no_seq') and",
            ),
        ),
        ("tests/engines/postgres/test_sql_api.py::test_a_role_may_do_what_it_was_allowed_and_nothing_else",),
        engine="postgres",
    ),
    Mutant(
        "postgres access: the server's role may change records",
        (
            Edit(
                "engines/postgres/migrations/0013_grants.sql",
                "grant select, insert on onward.audit to",
                "grant select, insert, update, delete on onward.audit to",
            ),
        ),
        ("tests/engines/postgres/test_sql_api.py::test_a_role_may_do_what_it_was_allowed_and_nothing_else",),
        engine="postgres",
    ),
    Mutant(
        "postgres access: audited enqueues are written one by one",
        (
            Edit(
                "engines/postgres/engine.py",
                "return await self._audited_coalescers.current().enqueue(audited_jobs)",
                "return await self._enqueue_audited_now(audited_jobs)",
            ),
        ),
        ("tests/engines/postgres/test_audited_enqueue.py",),
        engine="postgres",
    ),
)

SERVICE: Final = "tests/service"
HTTP_TESTS: Final = "tests/http"
SERVER: Final = (
    Mutant(
        "service: a permission is not checked",
        (
            Edit(
                "service/operations.py",
                "if operation.permission is not None and operation.permission not in identity.permissions:",
                "if False:",
            ),
        ),
        (f"{SERVICE}/test_operations.py",),
        in_ci=True,
    ),
    Mutant(
        "service: a limited caller may ask about the whole store",
        (
            Edit(
                "service/operations.py",
                "scope.orgs is not None and operation.orgs is Scoped.REFUSED) or (",
                "False) or (",
            ),
        ),
        (f"{SERVICE}/test_operations.py",),
    ),
    Mutant(
        "service: organisations do not narrow a filter",
        (
            Edit(
                "service/scopes.py",
                "which = msgspec.structs.replace(which, orgs=allowed)",
                "pass",
            ),
        ),
        (f"{SERVICE}/test_scopes.py",),
    ),
    Mutant(
        "service: queues do not narrow a filter",
        (Edit("service/scopes.py", "which = msgspec.structs.replace(which, queues=both)", "pass"),),
        (f"{SERVICE}/test_scopes.py",),
    ),
    Mutant(
        "service: one job is found whoever asks",
        (
            Edit(
                "service/jobs.py",
                "if job is None or not sees(identity, job.queue, job.org_id):",
                "if job is None:",
            ),
        ),
        (f"{SERVICE}/test_scopes.py",),
    ),
    Mutant(
        "service: a dedupe key finds another organisation's job",
        (Edit("service/new_jobs.py", 'prefix = "" if orgs is None else', 'prefix = "" if True else'),),
        (f"{SERVICE}/test_scopes.py::test_a_key_of_another_organisation_finds_nothing",),
    ),
    Mutant(
        "service: a job is shown unredacted",
        (
            Edit(
                "service/jobs.py",
                "return self._store.redactor.job(await self._find(identity, name))",
                "return await self._find(identity, name)",
            ),
        ),
        (f"{SERVICE}/test_redaction.py",),
    ),
    Mutant(
        "service: secrets show in error texts",
        (Edit("service/redaction.py", "last_error=text(job.last_error),", "last_error=job.last_error,"),),
        (f"{SERVICE}/test_redaction.py",),
    ),
    Mutant(
        "service: a dedupe key shows the payload",
        (Edit("service/redaction.py", "dedupe_key=self._dedupe_key(job, keys, text),", "dedupe_key=job.dedupe_key,"),),
        (f"{SERVICE}/test_redaction.py",),
    ),
    Mutant(
        "service: to reveal leaves no record",
        (
            Edit(
                "service/jobs.py",
                "await (await self._store.engine()).record_audit("
                'record(identity, "jobs.reveal", target=str(job.ref), count=1))',
                "pass",
            ),
        ),
        (f"{SERVICE}/test_redaction.py::test_to_reveal_is_a_permission_and_leaves_a_record",),
    ),
    Mutant(
        "service: a cancellation leaves no record",
        (
            Edit(
                "service/jobs.py",
                "cancel(which, reason=reason, limit=1, audit=audit)",
                "cancel(which, reason=reason, limit=1)",
            ),
        ),
        (f"{HTTP_TESTS}/test_rules.py::test_every_change_leaves_exactly_one_record",),
    ),
    Mutant(
        "service: a revoked token is valid",
        (Edit("service/access.py", "if token.revoked_at is not None or (", "if ("),),
        (f"{SERVICE}/test_access.py",),
    ),
    Mutant(
        "service: an idle session stays",
        (
            Edit(
                "service/access.py",
                "if now >= session.expires_at or now - session.last_seen_at >= self._idle:",
                "if now >= session.expires_at:",
            ),
        ),
        (f"{SERVICE}/test_access.py",),
    ),
    Mutant(
        "service: a change by filter can be replayed by anybody",
        (Edit("service/jobs.py", "        refuse_reserved(self._store, job)\n", ""),),
        (f"{SERVICE}/test_bulk.py",),
    ),
    Mutant(
        "bulk operation: the filter is not frozen",
        (
            Edit(
                "bulk_operation.py",
                'frozen = {"created_before": now if which',
                'frozen = {"created_before": which.created_before if which',
            ),
        ),
        (f"{SERVICE}/test_bulk.py",),
    ),
    Mutant(
        "bulk operation: a continued run forgets its count",
        (Edit("bulk_operation.py", "changed = changed_so_far(await engine.get(context.ref))", "changed = 0"),),
        (f"{SERVICE}/test_bulk.py",),
    ),
    Mutant(
        "bulk operation: a retried run on pg-boss forgets its count",
        (
            Edit(
                "bulk_operation.py",
                "changed = max(0, plan.matching - await count(engine, plan.verb, plan.which))",
                "changed = 0",
            ),
        ),
        (f"{SERVICE}/test_bulk.py",),
        engine="pgboss",
    ),
    Mutant(
        "bulk operation: a worker forges its record",
        (Edit("engines/postgres/migrations/0013_grants.sql", "   where r.value ->> 'id' = record\n", ""),),
        ("tests/engines/postgres/test_operation_record.py",),
        engine="postgres",
    ),
    Mutant(
        "bulk operation: a worker cannot complete its record",
        (Edit("pg/access.py", "if operation is not None and self._access.has_roles:", "if False:"),),
        ("tests/engines/postgres/test_operation_record.py",),
        engine="postgres",
    ),
    Mutant(
        "http: a cookie alone suffices",
        (
            Edit(
                "http/authentication.py",
                "            check_origin(request)\n            return identity",
                "            return identity",
            ),
        ),
        (f"{HTTP_TESTS}/test_security.py::test_a_change_by_cookie_must_come_from_a_page_of_ours",),
        in_ci=True,
    ),
    Mutant(
        "login code: a code works twice",
        (Edit("service/login_code.py", "        self._is_used = True\n", ""),),
        (f"{HTTP_TESTS}/test_login_code.py::test_a_code_is_exchanged_for_the_session_of_an_admin_once",),
    ),
    Mutant(
        "login code: a code works again after a restart",
        (Edit("service/access.py", "if token is None or token.last_used_at is not None:", "if token is None:"),),
        (f"{HTTP_TESTS}/test_login_code.py::test_a_code_is_exchanged_for_the_session_of_an_admin_once",),
    ),
    Mutant(
        "login code: the code is in the log",
        (
            Edit(
                "service/login_code.py", 'log.warning("login code refused"', 'log.warning(f"login code {given} refused"'
            ),
        ),
        (f"{HTTP_TESTS}/test_login_code.py::test_a_code_is_exchanged_for_the_session_of_an_admin_once",),
    ),
    Mutant(
        "login code: it can be tried for ever",
        (Edit("service/login_code.py", "            self._attempts += 1\n", ""),),
        (f"{HTTP_TESTS}/test_login_code.py::test_a_code_is_refused_after_its_time_and_after_too_many_attempts",),
    ),
    Mutant(
        "http: any host is answered",
        (Edit("http/application.py", "            check_host(request, self._hosts)\n", ""),),
        (f"{HTTP_TESTS}/test_security.py::test_a_rebound_name_is_refused",),
    ),
    Mutant(
        "http: a proxy is believed from anywhere",
        (Edit("http/authentication.py", "return any(address in network for network in proxy", "return bool(proxy"),),
        (f"{HTTP_TESTS}/test_security.py::test_a_proxy_is_believed_from_listed_peers_only",),
    ),
    Mutant(
        "http: a cookie behind a proxy goes over plain HTTP",
        (Edit("http/authentication.py", 'return proxy is not None and said == ["https"]', "return False"),),
        (f"{HTTP_TESTS}/test_security.py::test_a_cookie_is_secure_where_a_listed_proxy_has_tls",),
    ),
    Mutant(
        "service: the actor of a change by filter is redacted",
        (Edit("service/redaction.py", "if job.type == bulk_operation.TYPE:", "if False:"),),
        (f"{SERVICE}/test_bulk.py::test_an_export_names_the_actor_of_a_change_by_filter",),
    ),
    Mutant(
        "cli audit: enqueue leaves no record",
        (Edit("cli/enqueue.py", '@on_app(creates_store=True, action="jobs.enqueue")', "@on_app(creates_store=True)"),),
        ("tests/cli/test_audited.py",),
    ),
    Mutant(
        "cli audit: tick leaves no record",
        (
            Edit(
                "cli/work.py",
                'await (await core_of(app).opened()).record_audit(record(of_command_line(), "tick.run"))',
                "pass",
            ),
        ),
        ("tests/cli/test_audited.py",),
    ),
    Mutant(
        "http: a tick runs by cookie",
        (Edit("http/routes/status.py", "bearer_only=True", "bearer_only=False"),),
        (f"{HTTP_TESTS}/test_security.py::test_a_session_ends_by_logging_out",),
    ),
    Mutant(
        "http: a body of any size is read",
        (Edit("http/bodies.py", "                if size > limit:", "                if False:"),),
        (f"{HTTP_TESTS}/test_bad_input.py::test_a_body_that_is_too_large_is_refused_while_it_is_read",),
    ),
    Mutant(
        "http: a change stops with its client",
        (
            Edit(
                "http/application.py",
                "return await asyncio.shield(asyncio.ensure_future(found.handle(call)))",
                "return await found.handle(call)",
            ),
        ),
        (f"{HTTP_TESTS}/test_rules.py::test_a_change_is_finished_and_recorded_when_the_client_goes_away",),
    ),
    Mutant(
        "http: a cell is a formula",
        (Edit("service/export.py", """return f"'{text}" if""", """return f"{text}" if"""),),
        (f"{HTTP_TESTS}/test_jobs_api.py",),
    ),
    Mutant(
        "http: a revoked token keeps its streams",
        (Edit("http/routes/events.py", "if not await services.access.is_valid(identity):  # S2", "if False:  # S2"),),
        (f"{HTTP_TESTS}/test_events_api.py::test_revoking_a_token_ends_its_streams",),
    ),
    Mutant(
        "sqlite: a lookup blocks the loop however slow the disk is",
        (
            Edit(
                f"{_PY}/writer.py",
                "        if self._recent_lookup_seconds > _MAX_INLINE_COMMIT_SECONDS:\n",
                "        if False:\n",
            ),
        ),
        (f"{SQLITE}/test_lookups.py",),
    ),
    Mutant(
        "sqlite: a failed read fails all that share its transaction",
        (
            Edit(
                f"{_PY}/writer.py",
                "            if len(requests) > 1:\n",
                "            if len(requests) > 1 and self.writes:\n",
            ),
        ),
        (f"{SQLITE}/test_lookups.py",),
    ),
    Mutant(
        "service: every event stream has a subscription of its own",
        (
            Edit(
                "service/events.py",
                "if (hub := self._hubs.get(loop)) is None:",
                "if True:",
            ),
        ),
        (f"{HTTP_TESTS}/test_store_load.py::test_many_event_streams_ask_the_store_no_more_than_one",),
    ),
    Mutant(
        "http: head and body are sent apart",
        (
            Edit(
                "http/serving.py",
                "            if self._timer is None:\n                self._timer = self._loop.call_soon(self.send)",
                "            self.send()",
            ),
        ),
        (f"{HTTP_TESTS}/test_store_load.py::test_an_answer_is_sent_by_one_call_and_an_event_is_not_held_back",),
    ),
    Mutant(
        "http: an event is held back until the answer ends",
        (
            Edit(
                "http/serving.py",
                "                self._timer = self._loop.call_soon(self.send)",
                "                pass",
            ),
        ),
        (f"{HTTP_TESTS}/test_store_load.py::test_an_answer_is_sent_by_one_call_and_an_event_is_not_held_back",),
    ),
    Mutant(
        "log: a warning waits for its batch",
        (Edit("worker/log_format.py", "record.levelno >= logging.WARNING or ", ""),),
        ("tests/worker/test_log_format.py::test_lines_of_a_server_are_written_together_and_warnings_at_once",),
    ),
    Mutant(
        "http: a token in a path is logged",
        (Edit("http/access_log.py", "if PREFIX in path else path)", "if False else path)"),),
        (f"{HTTP_TESTS}/test_canaries.py",),
    ),
    Mutant(
        "service: the progress of a job shows its secrets",
        (Edit("service/redaction.py", "progress_message=text(job.progress_message),", ""),),
        (f"{HTTP_TESTS}/test_canaries.py",),
    ),
    Mutant(
        "http: a page of another origin may change everything",
        (
            Edit(
                "http/authentication.py",
                "            check_origin(request)\n            return identity",
                "            return identity",
            ),
        ),
        (f"{HTTP_TESTS}/test_cross_site.py::test_a_page_of_another_site_changes_nothing",),
    ),
    Mutant(
        "openapi: a field that need not be sent is promised",
        (Edit("http/openapi.py", '        each.pop("default", None)', "        pass"),),
        (f"{HTTP_TESTS}/test_typescript.py",),
    ),
    Mutant(
        "http: a server listens anywhere without TLS",
        (Edit("http/binding.py", "if not has_tls and not behind_proxy:", "if False:"),),
        (f"{HTTP_TESTS}/test_serve.py::test_no_server_is_open_by_accident",),
    ),
    Mutant(
        "tick: it goes on after its time",
        (
            Edit(
                "worker/one_shot.py",
                "        self._is_timed_out = True\n        self._stop()",
                "        self._is_timed_out = True",
            ),
        ),
        (f"{HTTP_TESTS}/test_jobs_api.py::test_a_tick_is_bounded_in_time",),
    ),
)

_ALERT_TESTS: Final = "tests/worker/test_alerts.py"

ALERTS: Final = (
    Mutant(
        "alerts: any job of a rule's queue is its state",
        (Edit("worker/alerts.py", ", types=(TASK,))", ")"),),
        ("tests/worker/test_alerts.py::test_only_deliveries_are_the_state_of_a_rule_and_no_caller_changes_them",),
    ),
    Mutant(
        "alerts: a caller enqueues into a rule's queue",
        (Edit("service/new_jobs.py", " or alert.is_delivery_queue(job.queue)", ""),),
        ("tests/worker/test_alerts.py::test_only_deliveries_are_the_state_of_a_rule_and_no_caller_changes_them",),
    ),
    Mutant(
        "alerts: a caller changes a delivery",
        (Edit("service/jobs.py", "if alert.is_delivery_queue(job.queue):", "if False:"),),
        ("tests/worker/test_alerts.py::test_only_deliveries_are_the_state_of_a_rule_and_no_caller_changes_them",),
    ),
    Mutant(
        "alert: it is delivered at each evaluation",
        (
            Edit(
                "worker/alerts.py",
                "if measured.is_firing is not state.is_firing and not is_early:",
                "if measured.is_firing:",
            ),
        ),
        (_ALERT_TESTS,),
    ),
    Mutant(
        "alert: two leaders deliver twice",
        (Edit("webhook.py", "using(queue=rule.queue, idempotency_key=key,", "using(queue=rule.queue,"),),
        (_ALERT_TESTS,),
    ),
    Mutant(
        "alert: a value about the threshold floods the receiver",
        (Edit("worker/alerts.py", "and not is_early:", ":"),),
        (_ALERT_TESTS,),
    ),
    Mutant(
        "alert: a rule looks at deliveries",
        (Edit("alert.py", "if queue is None or queue.startswith(_OWN):", "if queue is None:"),),
        (_ALERT_TESTS,),
    ),
    Mutant(
        "alert: its events are posted to webhooks",
        (Edit("webhook.py", 'or event.ref.queue.startswith(f"{alert.QUEUES}/")', ""),),
        (_ALERT_TESTS,),
    ),
    Mutant(
        "alert: it is declared where nothing can be delivered",
        (
            Edit(
                "app.py",
                "        for feature in (Feature.WEBHOOKS, Feature.USAGE, Feature.LEADER, Feature.SCHEDULES):\n"
                "            self._core.require(feature)\n",
                "",
            ),
        ),
        (_ALERT_TESTS,),
        engine="pgboss",
    ),
    Mutant(
        "alert: a tick evaluates no rule",
        (Edit("worker/one_shot.py", "if self._alerts is not None and not self._is_stopping:", "if False:"),),
        (_ALERT_TESTS,),
    ),
)

_PAUSE_TESTS: Final = f"{CONFORMANCE}/test_queues.py"

PAUSES: Final = (
    Mutant(
        "pause: the reason stays when the queue is resumed",
        (
            Edit(
                f"{_PY}/admin.py",
                '        columns |= dict.fromkeys(("pause_reason", "paused_by", "paused_at"))\n',
                '        columns |= dict.fromkeys(("paused_at",))\n',
            ),
        ),
        (f"{_PAUSE_TESTS}::test_nothing_of_a_pause_is_left_when_the_queue_is_resumed",),
    ),
    Mutant(
        "pause: pausing again moves the time",
        (Edit(f"{_PY}/admin.py", "paused_at = coalesce(paused_at, :paused_at)", "paused_at = :paused_at"),),
        (f"{_PAUSE_TESTS}::test_a_pause_has_a_reason_an_author_and_a_time",),
    ),
    Mutant(
        "pause: a reason is taken without a pause",
        (Edit("engine/checks.py", "if change.paused is not True:", "if change.paused is not change.paused:"),),
        (f"{_PAUSE_TESTS}::test_a_reason_without_a_pause_is_refused",),
    ),
    Mutant(
        "pause: the author of an audited pause is not kept",
        (Edit("engine/checked.py", "change = msgspec.structs.replace(change, paused_by=audit.actor)", "pass"),),
        (f"{_PAUSE_TESTS}::test_the_author_of_a_pause_is_the_actor_of_its_record",),
    ),
    Mutant(
        "bullmq pause: the reason stays when the queue is resumed",
        (
            Edit(
                "engines/bullmq/lua/configure.lua",
                "if ARGV[5] == '0' or ARGV[5] == '1' and not was_paused then",
                "if false then",
            ),
        ),
        (f"{_PAUSE_TESTS}::test_nothing_of_a_pause_is_left_when_the_queue_is_resumed",),
        engine="bullmq",
    ),
)

_COMMAND_TESTS: Final = f"{CONFORMANCE}/test_worker_commands.py"

WORKER_COMMANDS: Final = (
    Mutant(
        "isolation: a suspect that no child can run is never found",
        (Edit("worker/isolation.py", "        if claim.crashes >= self._max_crashes:", "        if False:"),),
        ("tests/worker/test_quarantine.py",),
        only="no_child",
    ),
    Mutant(
        "bullmq: who gives way takes the marker from others",
        (Edit("engines/bullmq/engine.py", " and not request.gives_way:", ":"),),
        ("tests/engines/bullmq/test_idle.py",),
        only="gives_way",
        engine="bullmq",
    ),
    Mutant(
        "claimer: who cannot run a job claims it again at once",
        (Edit("worker/claimer.py", "asyncio.get_running_loop().time() + _HEAD_START", "0.0"),),
        ("tests/worker/test_claimer.py",),
    ),
    Mutant(
        "worker command: a quiet worker claims on",
        (Edit("worker/claimer.py", "(self._closed or self._is_quiet)", "(self._closed)"),),
        ("tests/worker/test_worker_commands.py",),
    ),
    Mutant(
        "worker command: a resumed worker stays quiet",
        (
            Edit(
                "worker/running_worker.py",
                "is_quiet=command is not None",
                "is_quiet=self._command is not None or bool(command)",
            ),
            Edit(
                "worker/running_worker.py",
                "            self._command = command\n",
                "            self._command = command or self._command\n",
            ),
        ),
        ("tests/worker/test_worker_commands.py",),
    ),
    Mutant(
        "worker command: stop is not obeyed",
        (Edit("worker/running_worker.py", "if command is WorkerCommand.STOP:", "if command is WorkerCommand.RESUME:"),),
        ("tests/worker/test_worker_commands.py",),
    ),
    Mutant(
        "worker command: another worker is told too",
        (Edit(f"{_SQL}/worker_command.sql", " where id = :id", " where :id is not null"),),
        (_COMMAND_TESTS,),
    ),
    Mutant(
        "postgres worker command: the answer to a heartbeat leaves it out",
        (Edit("engines/postgres/migrations/0003_settle.sql", "if told is not null then", "if false then"),),
        (_COMMAND_TESTS,),
        engine="postgres",
    ),
    Mutant(
        "pgmq worker command: the answer with claims leaves it out",
        (
            Edit(
                "engines/pgmq/leases.py",
                "HeartbeatReply(lost=frozenset(lost), cancelled=cancelled, command=command)",
                "HeartbeatReply(lost=frozenset(lost), cancelled=cancelled)",
            ),
        ),
        (_COMMAND_TESTS,),
        engine="pgmq",
    ),
    Mutant(
        "bullmq worker command: it outlives the worker",
        (Edit("engines/bullmq/lua/remove_dead_workers.lua", "      call('HDEL', KEYS[2], known[at])\n", ""),),
        (_COMMAND_TESTS,),
        engine="bullmq",
    ),
)

_CHOICE: Final = "tests/app/test_store_choice.py"
_BLUEPRINT: Final = "tests/app/test_blueprint.py"
_ENQUEUE_MIDDLEWARE: Final = "tests/app/test_enqueue_middleware.py"
_LIMITED: Final = "tests/app/test_declared_limits.py"
_BURST: Final = "tests/worker/test_burst.py"


def _of_application(name: str, edit: Edit, tests: str, only: str = "") -> Mutant:
    return Mutant(f"application: {name}", (edit,), (tests,), only=only)


APPLICATIONS: Final = (
    _of_application(
        "half a blueprint is included",
        Edit(
            "app.py",
            "                for name in blueprint.tasks:\n                    self._refuse_taken(name)\n",
            "                pass\n",
        ),
        _BLUEPRINT,
    ),
    _of_application(
        "tasks that come after the include are lost",
        Edit("blueprint.py", "            includer._include_task(task)", "            del includer"),
        _BLUEPRINT,
    ),
    _of_application(
        "packages that cannot be imported are passed over",
        Edit("discovery.py", ", onerror=_raise)", ")"),
        _BLUEPRINT,
    ),
    _of_application(
        "a store in use is replaced",
        Edit("app.py", "        if self._core.is_open:\n", "        if False:\n"),
        _CHOICE,
    ),
    _of_application(
        "a store that lacks what the code needs is taken",
        Edit("core.py", "            checked.capabilities.require(feature)\n", "            pass\n"),
        _CHOICE,
    ),
    _of_application(
        "names of queues are not checked when the store is known",
        Edit(
            "core.py",
            "            check_queue_template(task.options.queue, foreign=checked.capabilities.is_shared)\n",
            "            pass\n",
        ),
        _CHOICE,
    ),
    _of_application(
        "an override stays",
        Edit("core.py", "        self._core.replace(self._previous)\n", ""),
        _CHOICE,
    ),
    _of_application(
        "payloads are read as another store has them",
        Edit(
            "core.py", "            for task in self.tasks.values():\n                self._adapt(task, binding)\n", ""
        ),
        _CHOICE,
    ),
    _of_application(
        "a misspelt key of the project file is passed over",
        Edit("project_file.py", "frozen=True, forbid_unknown_fields=True", "frozen=True"),
        _CHOICE,
    ),
    _of_application(
        "a middleware drops jobs",
        Edit("engine/checked.py", "passed is None or len(passed) != len(passage.jobs)", "passed is None"),
        _ENQUEUE_MIDDLEWARE,
    ),
    _of_application(
        "a middleware swallows the error of the store",
        Edit(
            "engine/checked.py",
            "            steps.throw(error)\n        raise\n",
            "            steps.throw(error)\n        return\n",
        ),
        _ENQUEUE_MIDDLEWARE,
    ),
    _of_application(
        "a payload by name need not fit the task",
        Edit("core.py", "            handler.arguments.decode(encoded)\n", "            pass\n"),
        _ENQUEUE_MIDDLEWARE,
    ),
    _of_application(
        "an inline enqueue within a run opens its resources again",
        Edit("core.py", "elif current is not None and current[0] is self and current[1] is loop:", "elif False:"),
        "tests/app/test_lifespan.py",
    ),
    _of_application(
        "resources of one event loop are used on another",
        Edit("core.py", "current[0] is self and current[1] is loop:", "current[0] is self:"),
        "tests/app/test_lifespan.py",
    ),
    _of_application(
        "a process is given the value of a lifespan that it does not have",
        Edit("worker/processes.py", ", on_note=send_report, state=ELSEWHERE)", ", on_note=send_report)"),
        "tests/worker/test_processes.py",
        "lifespan",
    ),
    _of_application(
        "an enqueue replaces an operator's limit",
        Edit("engine/checked.py", "else QueueSettings(), replaces=False)", "else QueueSettings(), replaces=True)"),
        _LIMITED,
    ),
    _of_application(
        "a worker that starts leaves an older limit",
        Edit("worker/limit_keeper.py", "replaces=self._replaces and not self._is_started", "replaces=False"),
        _LIMITED,
    ),
    _of_application(
        "a template stands for several parts of a path",
        Edit("engine/declared_limits.py", '"[^/]+".join', '".+".join'),
        _LIMITED,
    ),
    _of_application(
        "an enqueue fails where limits cannot be set",
        Edit(
            "engine/checked.py",
            "                if isinstance(error, StoreUnavailable):\n                    continue\n",
            "                raise\n",
        ),
        _LIMITED,
    ),
    _of_application(
        "limits that a busy store did not take count as set",
        Edit(
            "engine/checked.py",
            "                if isinstance(error, StoreUnavailable):\n",
            "                if False:\n",
        ),
        _LIMITED,
    ),
    _of_application(
        "limits are set for jobs as they were before the middleware",
        Edit("engine/checked.py", "(declared := self._limits_of(passage.jobs))", "(declared := self._limits_of(jobs))"),
        _LIMITED,
    ),
    _of_application(
        "a queue that refuses its limits keeps all others from theirs",
        Edit("engine/checked.py", "            except StoreUnavailable:\n", "            except OnwardError:\n"),
        _LIMITED,
    ),
    _of_application(
        "a tick replaces an operator's limit",
        Edit("worker/one_shot.py", "else limits, replaces=False)", "else limits, replaces=True)"),
        _LIMITED,
    ),
    _of_application(
        "a commit that the store did not confirm calls a hook",
        Edit("worker/runner.py", "SelfCompleted(Commit.UNKNOWN)", "SelfCompleted(Commit.COMMITTED)"),
        "tests/worker/test_hooks.py",
        "not_known_to_be_completed",
    ),
    _of_application(
        "a job that ended otherwise calls the hook of a completed one",
        Edit("worker/runner.py", "SelfCompleted(Commit.LOST)", "SelfCompleted(Commit.COMMITTED)"),
        "tests/worker/test_hooks.py",
        "not_known_to_be_completed",
    ),
    _of_application(
        "middleware that fails after the enqueue refuses a stored job",
        Edit("engine/checked.py", "        if passage.can_roll_back:\n", "        if True:\n"),
        "tests/app/test_enqueue_middleware.py",
    ),
    _of_application(
        "a burst ends while a rate holds jobs back",
        Edit("worker/claimer.py", "not claimed.claims and claimed.retry_after is None", "not claimed.claims"),
        _BURST,
    ),
    _of_application(
        "a burst ends while jobs run",
        Edit(
            "worker/claimer.py", "return self._found_nothing and self.is_drained and", "return self._found_nothing and"
        ),
        _BURST,
    ),
    _of_application(
        "explain speaks of attempts where processes have died",
        Edit("explain.py", "crashed = job.crashes > 0 and", "crashed = False and"),
        "tests/app/test_explain.py",
    ),
    _of_application(
        "one word for errors leaves out dead letters",
        Edit(
            "cli/command.py",
            "UNSUCCESSFUL: Final = frozenset({JobStatus.FAILED, JobStatus.DEAD_LETTER})",
            "UNSUCCESSFUL: Final = frozenset({JobStatus.FAILED})",
        ),
        "tests/cli/test_jobs.py",
        "one_word",
    ),
)

_PAGES: Final = "tests/dashboard"
_FORMS: Final = "tests/http/test_pages.py"
DASHBOARD: Final = (
    Mutant(
        "dashboard: an unsafe action asks no question",
        (Edit("dashboard/visit.py", 'if not self.form.has("confirmed"):', "if False:"),),
        (f"{_PAGES}/test_actions.py::test_a_job_is_cancelled_after_a_question",),
    ),
    Mutant(
        "dashboard: text is not escaped",
        (Edit("dashboard/site.py", "autoescape=True", "autoescape=False"),),
        (f"{_PAGES}/test_hostile_text.py::test_no_text_of_the_corpus_becomes_markup_or_script",),
    ),
    Mutant(
        "dashboard: characters that reverse text are shown as they are",
        (Edit("dashboard/site.py", "            finalize=visible,\n", ""),),
        (f"{_PAGES}/test_hostile_text.py::test_text_that_reverses_other_text_is_made_visible",),
    ),
    Mutant(
        "dashboard: a login leads to another site",
        (Edit("dashboard/site.py", 'return path if is_local and "\\\\" not in path else "/"', "return path"),),
        (f"{_PAGES}/test_parts.py",),
    ),
    Mutant(
        "dashboard: another site's page logs a browser in",
        (
            Edit(
                "dashboard/site.py",
                "                check_origin(request)\n                self._authenticator",
                "                self._authenticator",
            ),
        ),
        (f"{_PAGES}/test_actions.py::test_another_site_cannot_send_a_form",),
    ),
    Mutant(
        "dashboard: a copy is made of what is shown, not of what is stored",
        (
            Edit(
                "dashboard/views/job.py", "return restored(payload, original.payload, shown.payload)", "return payload"
            ),
        ),
        (f"{_PAGES}/test_actions.py::test_a_copy_takes_redacted_values_only_from_those_who_may_see_them",),
    ),
    Mutant(
        "dashboard: a stream outlives its token",
        (Edit("dashboard/live.py", "if not await self._is_valid(identity):", "if False:"),),
        (f"{_PAGES}/test_live.py::test_a_stream_ends_with_its_token",),
    ),
    Mutant(
        "dashboard: viewers do not share a read",
        (Edit("dashboard/reads.py", "if found.task is not None and _is_running(found)", "if False"),),
        (f"{_PAGES}/test_parts.py",),
    ),
    Mutant(
        "dashboard: the store is read while nobody looks",
        (
            Edit(
                "dashboard/pulse.py",
                "            self._loop.cancel()\n            self._loop = None\n",
                "            pass\n",
            ),
        ),
        (f"{_PAGES}/test_live.py::test_tabs_share_one_stream_and_nobody_watching_reads_nothing",),
    ),
    Mutant(
        "dashboard: an update takes a selection away",
        (Edit("dashboard/static/live.js", "return selection && !selection.isCollapsed", "return false && selection"),),
        (f"{_PAGES}/test_live.py::test_an_update_keeps_focus_selection_typed_text_and_checked_boxes",),
    ),
    Mutant(
        "dashboard: a state that the engine does not have is offered",
        (Edit("dashboard/views/rows.py", "        absent.add(JobStatus.CANCELLED)\n", "        pass\n"),),
        (f"{_PAGES}/test_engines.py",),
    ),
    Mutant(
        "dashboard: every form may be as large as a payload",
        (Edit("dashboard/site.py", "FormKind.SMALL: _SMALL_FORM,", "FormKind.SMALL: 2**26,"),),
        (f"{_FORMS}::test_a_large_form_of_an_unknown_caller_is_refused",),
    ),
    Mutant(
        "dashboard: a form with a payload is read before the permission is checked",
        (Edit("dashboard/site.py", 'if request.method == "POST" and page.operation:', "if False:"),),
        (f"{_FORMS}::test_a_form_with_a_payload_is_read_with_the_permission_only_and_parsed_in_a_thread",),
    ),
    Mutant(
        "dashboard: the answer of a form reloads itself",
        (Edit("dashboard/site.py", "screen.is_live and request.method in _SAFE", "screen.is_live"),),
        (f"{_FORMS}::test_the_answer_of_a_form_does_not_reload_itself",),
    ),
    Mutant(
        "dashboard: a tree has no bound",
        (Edit("dashboard/tree.py", "if self._left <= 0:", "if False:"),),
        (f"{_PAGES}/test_parts.py",),
    ),
)

MUTANTS: Final = (
    *APPLICATIONS,
    *SERVER,
    *ALERTS,
    *DASHBOARD,
    *ACCESS,
    *PAUSES,
    *WORKER_COMMANDS,
    *PROCESSES,
    *SQLITE_FILES,
    *WORDS,
    *FENCES,
    *COUNTING,
    *LEASES,
    *ORDER,
    *LIMITS,
    *KEYS,
    *BUTTONS,
    *LANES,
    *SCHEDULES,
    *BULLMQ,
    *PGBOSS,
    *POSTGRES,
    *PGMQ,
    *MIGRATIONS,
    *BATCHES,
    *EVENTS,
    *WEBHOOKS,
    *TRACES,
    *ARCHIVE,
    *STOPPING,
    *TASKS,
    *HANDLES,
)
