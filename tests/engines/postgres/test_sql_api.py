"""For everybody who speaks SQL: adding jobs and taking them back by two functions, and nothing else without leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onward.engine.access import AuditQuery
from onward.engine.checked import CheckedEngine
from onward.engine.values import JobFilter
from onward.engines.postgres.engine import PostgresEngine
from onward.keys import digest
from onward.lifecycle import Complete, JobStatus
from tests.conformance.access_values import digest_of, record, session, token
from tests.conformance.driver import PAST_LEASE, Driver, new_job
from tests.conformance.postgres_case import PostgresStore


@contextmanager
def as_role(store: PostgresStore, role: str) -> Iterator[psycopg.Connection[Any]]:
    """Speak SQL as somebody else."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"set role {role}")
        yield connection


@pytest.fixture
def role(store: PostgresStore, driver: Driver) -> Iterator[str]:
    """A role that may do nothing yet."""
    name = f"role_{store.schema}"
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"create role {name} login")
        yield name
        connection.execute(f"drop owned by {name}")
        connection.execute(f"drop role {name}")


@pytest.fixture
def other_role(store: PostgresStore, driver: Driver) -> Iterator[str]:
    """Another role that may do nothing yet."""
    name = f"other_{store.schema}"
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"create role {name} login")
        yield name
        connection.execute(f"drop owned by {name}")
        connection.execute(f"drop role {name}")


def call(store: PostgresStore, function: str, *values: object) -> Any:
    with psycopg.connect(store.url) as connection:
        found = connection.execute(f"select {store.schema}.{function}", values).fetchone()
        assert found is not None
        return found[0]


async def test_a_job_added_with_sql_is_a_job_like_any_other(driver: Driver, store: PostgresStore):  # X4
    id = call(
        store,
        """enqueue('send', payload => '{"to": "ada"}', queue => 'mail/acme', priority => 3, org_id => 'acme',
                   max_attempts => 2)""",
    )
    assert UUID(str(id)).version == 7
    (job,) = await driver.jobs()
    assert (job.id, job.type, job.queue, job.org_id) == (str(id), "send", "mail/acme", "acme")
    assert (job.payload, job.priority, job.max_attempts, job.status) == ({"to": "ada"}, 3, 2, JobStatus.PENDING)
    claim = await driver.take_one("mail/*")
    assert await driver.end(claim, Complete())


async def test_the_shortest_call_is_enough_and_ids_rise(driver: Driver, store: PostgresStore):
    ids = [str(call(store, "enqueue('send')")) for _ in range(3)]
    assert [job.id for job in await driver.jobs()] == ids
    assert [ref.id for ref in await driver.taken()] == ids


async def test_times_of_sql_are_kept(driver: Driver, store: PostgresStore):
    call(store, "enqueue('send', delay => '1 hour', queue => 'a')")
    call(store, "enqueue('send', run_at => '2099-01-01', start_by => '2099-02-01', queue => 'b')")
    later, much_later = await driver.jobs()
    assert (later.status, much_later.status) == (JobStatus.SCHEDULED, JobStatus.SCHEDULED)
    assert later.next_run_at is not None
    assert later.next_run_at - later.created_at == timedelta(hours=1)
    assert much_later.next_run_at is not None
    assert much_later.next_run_at.year == 2099
    assert much_later.start_by is not None


async def test_keys_mean_the_same_in_sql_and_in_python(driver: Driver, store: PostgresStore):  # O4, H5
    first = await driver.enqueue(type="charge", idempotency_key="naïve – 東京", dedupe_key="d" * 5000)
    again = "enqueue('charge', idempotency_key => %s)"
    assert str(call(store, again, "naïve – 東京")) == first.id
    assert str(call(store, "enqueue('other', dedupe_key => %s)", "d" * 5000)) == first.id
    assert str(call(store, "enqueue('refund', idempotency_key => %s)", "naïve – 東京")) != first.id
    assert len(await driver.jobs()) == 2
    for parts in (["a"], ["a", "bc"], ["ab", "c"], ["", "é"]):
        assert call(store, "digest(variadic %s::text[])", parts) == digest(*parts)


async def test_keys_of_organisations_mean_the_same_in_sql_and_in_python(driver: Driver, store: PostgresStore):  # O4
    first = await driver.enqueue(type="charge", org_id="acme", idempotency_key="k")
    again = "enqueue('charge', org_id => %s, idempotency_key => 'k')"
    assert str(call(store, again, "acme")) == first.id
    assert len({str(call(store, again, org)) for org in ("acme", "globex", None)}) == 3


async def test_jobs_of_one_type_with_different_dedupe_keys_are_different(driver: Driver, store: PostgresStore):  # H5
    ids = {call(store, "enqueue('send', dedupe_key => %s)", key) for key in ("a", "b", "a")}
    assert len(ids) == len(await driver.jobs()) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("''", "type"),
        ("E' \\t\\n'", "type"),
        ("null", "type"),
        ("repeat('t', 256)", "type"),
        ("'onward.webhook'", "type .* workers only"),
        ("'onward.anything'", "type .* workers only"),
        ("'x', queue => 'onward/webhooks'", "queue .* workers only"),
        ("'x', queue => 'onward'", "queue .* workers only"),
        ("'x', payload => null", "payload"),
        ("'x', queue => 'Mail'", "queue"),
        ("'x', queue => 'a//b'", "queue"),
        ("'x', queue => 'a; drop table job'", "queue"),
        ("'x', queue => repeat('a', 121)", "queue"),
        ("'x', priority => -1", "priority"),
        ("'x', priority => 1000001", "priority"),
        ("'x', delay => '-1 second'", "delay"),
        ("'x', delay => '1 second', run_at => now()", "not both"),
        ("'x', delay => '101 years'", "delay"),
        ("'x', run_at => 'infinity'", "years"),
        ("'x', run_at => '20000-01-01'", "years"),
        ("'x', start_by => '20000-01-01'", "years"),
        ("'x', start_by => '0001-12-31 BC'", "years"),
        ("'x', max_attempts => 0", "max_attempts"),
        ("'x', idempotency_key => ''", "keys"),
        ("'x', payload => '{\"a\": [1, {\"b\": -9007199254740993}]}'", "2.53"),
        ("'x', payload => '1e400'", "2.53"),
        ("'x', payload => (repeat('[', 101) || repeat(']', 101))::jsonb", "nested"),
        ("'x', payload => to_jsonb(repeat('x', 12900000))", "12.3 MB exceeds limit of 10.0 MB"),
        ("'x', idempotency_key => repeat('x', 12900000)", "12.3 MB exceeds limit of 10.0 MB"),
    ],
)
async def test_sql_is_held_to_the_same_rules(
    driver: Driver, store: PostgresStore, arguments: str, words: str
):  # B3, B4
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=words):
        call(store, f"enqueue({arguments})")
    assert await driver.jobs() == ()


async def test_what_is_just_within_the_rules_is_taken_and_comes_back(driver: Driver, store: PostgresStore):  # B4
    deep = "[" * 100 + "9007199254740992" + "]" * 100
    call(store, "enqueue('x', payload => %s, run_at => '9898-12-31', start_by => '0002-01-02')", deep)
    call(store, "enqueue('x', payload => '{\"a\": [0.1, null, \"1e400\"]}', delay => '99 years')")
    first, second = await driver.jobs()
    assert msgspec.json.encode(first.payload).decode() == deep
    assert second.payload == {"a": [0.1, None, "1e400"]}


async def test_a_trigger_of_the_users_can_add_jobs_and_they_vanish_with_its_transaction(
    driver: Driver, store: PostgresStore
):  # X4, G6
    table = f"orders_{store.schema}"
    with psycopg.connect(store.url) as connection:
        connection.execute(f"create table {table} (id int)")
        connection.execute(
            f"""create function {table}_added() returns trigger language plpgsql as $$
                begin
                  perform {store.schema}.enqueue('ship', to_jsonb(new), idempotency_key => new.id::text);
                  return new;
                end $$"""
        )
        connection.execute(
            f"create trigger added after insert on {table} for each row execute function {table}_added()"
        )
        connection.commit()
        connection.execute(f"insert into {table} values (1), (2)")
        connection.rollback()
        assert await driver.jobs() == ()
        connection.execute(f"insert into {table} values (1), (2), (1)")
        connection.commit()
        assert [job.payload for job in await driver.jobs()] == [{"id": 1}, {"id": 2}]
        connection.execute(f"drop table {table}")
        connection.execute(f"drop function {table}_added")


async def test_sql_takes_back_what_is_not_over(driver: Driver, store: PostgresStore):
    ref = await driver.add()
    claim = await driver.take_one()
    assert call(store, "cancel(%s, 'ordered twice')", ref.id) is True
    assert call(store, "cancel(%s)", ref.id) is False
    job = await driver.job(ref)
    assert (job.status, job.last_error) == (JobStatus.CANCELLED, "ordered twice")
    assert not await driver.end(claim, Complete())
    assert call(store, "cancel(gen_random_uuid())") is False


# Who may do what ------------------------------------------------------------------------------------------------------


async def test_a_role_without_leave_sees_and_does_nothing(driver: Driver, store: PostgresStore, role: str):  # G8
    await driver.add()
    forbidden = psycopg.errors.InsufficientPrivilege
    with as_role(store, role) as connection:
        for statement in (
            "select * from onward.job",
            "select * from onward.jobs",
            "select onward.enqueue('x')",
            "select onward.prune(null, 1, 'x', 1)",
            "select nextval('onward.job_seq')",
            "select onward.allow_worker(current_role)",
            "select onward.allow_server(current_role)",
            "select onward.prune_audit('1 day', 1)",
            "select * from onward.token",
            "select * from onward.session",
            "select * from onward.audit",
        ):
            with pytest.raises(forbidden):
                connection.execute(statement.replace("onward.", f"{store.schema}."))


async def test_a_producer_adds_and_takes_back_and_that_is_all(driver: Driver, store: PostgresStore, role: str):  # G8
    call(store, f"allow_producer('{role}', may_cancel => true)")
    with as_role(store, role) as connection:
        ((id,),) = connection.execute(f"select {store.schema}.enqueue('send', idempotency_key => 'k')").fetchall()
        assert connection.execute(f"select {store.schema}.cancel(%s)", [id]).fetchall() == [(True,)]
        for statement in (
            "select * from onward.job",
            "insert into onward.job (type) values ('x')",
            "delete from onward.history",
            "select * from onward.claim(null, 'w', array[''], array['~'], 1, 0, 0, 1000, '', 0)",
            f"select onward.enqueue_uniform(null, '{{}}', '[]', 'q', 't', 0{', null' * 12})",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.replace("onward.", f"{store.schema}."))
    assert await driver.state((await driver.jobs())[0].ref) is JobStatus.CANCELLED


async def test_a_producer_can_neither_cancel_nor_learn_of_a_job_that_it_has_not_added(
    driver: Driver, store: PostgresStore, role: str, other_role: str
):  # G8, O4
    for each in (role, other_role):
        call(store, f"allow_producer('{each}', may_cancel => true)")
    enqueue = f"select {store.schema}.enqueue('send', idempotency_key => %s, dedupe_key => %s)"
    cancel = f"select {store.schema}.cancel(%s)"
    by_python = await driver.enqueue(type="send", idempotency_key="of python", dedupe_key="p")
    with as_role(store, other_role) as other:
        ((by_other,),) = other.execute(enqueue, ["of another", "o"]).fetchall()
    with as_role(store, role) as producer:
        for key, dedupe_key in (("of python", None), ("of another", None), (None, "p"), (None, "o")):
            assert producer.execute(enqueue, [key, dedupe_key]).fetchall() == [(None,)]
        for id in (by_python.id, by_other):
            assert producer.execute(cancel, [id]).fetchall() == [(False,)]
        ((own,),) = producer.execute(enqueue, ["own", "d"]).fetchall()
        assert producer.execute(enqueue, ["own", None]).fetchall() == [(own,)]
        assert producer.execute(enqueue, [None, "d"]).fetchall() == [(own,)]
        assert producer.execute(cancel, [own]).fetchall() == [(True,)]
        assert producer.execute(enqueue, ["own", None]).fetchall() == [(own,)]  # it has ended, and its key holds
    assert [job.status for job in await driver.jobs()].count(JobStatus.CANCELLED) == 1
    assert call(store, "enqueue('send', idempotency_key => 'of another')") == by_other  # the owner may know
    assert call(store, "cancel(%s)", by_other) is True


async def test_a_member_of_the_role_that_added_a_job_may_cancel_it(
    driver: Driver, store: PostgresStore, role: str, other_role: str
):  # G8
    for each in (role, other_role):
        call(store, f"allow_producer('{each}', may_cancel => true)")
    with as_role(store, role) as producer:
        ((id,),) = producer.execute(f"select {store.schema}.enqueue('send')").fetchall()
    with psycopg.connect(store.url, autocommit=True) as owner:
        owner.execute(f"grant {role} to {other_role}")
    with as_role(store, other_role) as member:
        assert member.execute(f"select {store.schema}.cancel(%s)", [id]).fetchall() == [(True,)]


async def test_a_producer_cannot_make_our_functions_run_something_of_its_own(
    driver: Driver, store: PostgresStore, role: str
):  # G8
    call(store, f"allow_producer('{role}', true)")
    trap = f"trap_{store.schema}"
    with psycopg.connect(store.url, autocommit=True) as owner:
        owner.execute(f"create schema {trap} authorization {role}")
    with as_role(store, role) as connection:
        for function in ("btrim(text, text)", "concat(text, text, text, text)", "octet_length(text)", "length(text)"):
            connection.execute(
                f"""create function {trap}.{function} returns text language plpgsql as
                    $$ begin raise exception 'it runs as %', current_user; end $$"""
            )
        connection.execute("create temp table job (like pg_class)")
        connection.execute(f"set search_path = {trap}, pg_temp, pg_catalog")
        with pytest.raises(psycopg.errors.RaiseException, match="it runs as"):
            connection.execute("select btrim('a', 'b')")  # so it would be run
        connection.execute(f"select {store.schema}.enqueue('send', queue => 'q')")
        connection.execute(f"select {store.schema}.cancel(gen_random_uuid())")
    assert len(await driver.jobs()) == 1


async def test_what_runs_with_the_owners_rights_says_where_names_are_looked_up(
    driver: Driver, store: PostgresStore
):  # G8
    with psycopg.connect(store.url) as connection:
        loose = connection.execute(
            """select proname from pg_proc where pronamespace = %s::regnamespace and prosecdef
                and not coalesce('search_path=pg_catalog, pg_temp' = any(proconfig), false)""",
            [store.schema],
        ).fetchall()
    assert loose == [("is_recording_in_trigger",)]  # it has no name without its schema, and is asked for each statement


ALLOWED = """
    select proname, 'execute' from pg_proc
     where pronamespace = %(schema)s::regnamespace and has_function_privilege(%(role)s, oid, 'execute')
    union
    select c.relname, p.word from pg_class c
      cross join unnest('{select,insert,update,delete,truncate,references,trigger}'::text[]) p (word)
     where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p', 'v')
       and case when p.word in ('delete', 'truncate', 'trigger') then has_table_privilege(%(role)s, c.oid, p.word)
                else has_any_column_privilege(%(role)s, c.oid, p.word) end
    union
    select c.relname, p.word from pg_class c cross join unnest('{usage,select,update}'::text[]) p (word)
     where c.relnamespace = %(schema)s::regnamespace and c.relkind = 'S'
       and has_sequence_privilege(%(role)s, c.oid, p.word)
    union
    select '', p.word from unnest('{usage,create}'::text[]) p (word)
     where has_schema_privilege(%(role)s, %(schema)s, p.word)
"""
"""Every function, table, view and sequence, with all that a role may do to it."""


def allowed(store: PostgresStore, role: str) -> set[tuple[str, str]]:
    with psycopg.connect(store.url) as connection:
        return set(connection.execute(ALLOWED, {"schema": store.schema, "role": role}).fetchall())


async def test_a_role_may_do_what_it_was_allowed_and_nothing_else(
    driver: Driver, store: PostgresStore, role: str
):  # G8
    assert allowed(store, role) == set()
    call(store, f"allow_producer('{role}')")
    assert allowed(store, role) == {("", "usage"), ("enqueue", "execute")}
    call(store, f"allow_producer('{role}', may_cancel => true)")
    assert allowed(store, role) == {("", "usage"), ("enqueue", "execute"), ("cancel", "execute")}
    call(store, f"allow_worker('{role}')")
    of_worker = allowed(store, role)
    for table in ("migration", "identity"):
        assert {word for name, word in of_worker if name == table} == {"select"}, table
    assert {word for name, word in of_worker if name == "claim_gate"} == {"select", "update"}
    assert {word for name, word in of_worker if name == "job"} == {"select", "insert", "update", "delete"}
    owners_alone = {"allow_worker", "allow_producer", "allow_server", "check_owner"}
    of_server = {"token", "session", "audit", "audit_no_seq", "prune_audit"}
    assert not {name for name, _ in of_worker} & (owners_alone | of_server)
    assert not {word for _, word in of_worker} & {"truncate", "references", "trigger", "create"}
    assert not [name for name, _ in of_worker if name.startswith("history_day_2")]
    call(store, f"allow_server('{role}')")
    assert allowed(store, role) - of_worker == {
        *[(name, word) for name in ("token", "session") for word in ("select", "insert", "update", "delete")],
        *[("audit", word) for word in ("select", "insert")],
        ("prune_audit", "execute"),
    }


async def test_a_server_adds_and_reads_records_and_changes_none(driver: Driver, store: PostgresStore, role: str):  # S5
    call(store, f"allow_server('{role}')")
    call(store, f"allow_server('{role}')")
    engine = PostgresEngine(make_conninfo(store.url, options=f"-c role={role}"), schema=store.schema, clock=store.clock)
    await engine.open()
    server = Driver(store, CheckedEngine(engine))
    try:
        await server.engine.enqueue([new_job()], audit=record())
        await server.engine.enqueue([new_job(idempotency_key="k")], audit=record())
        await server.engine.cancel(JobFilter(), audit=record())
        given = token(server)
        await server.engine.save_token(given, audit=record())
        await server.engine.save_session(session(server, given))
        assert await server.engine.find_session(digest_of("cookie")) == (session(server, given), given)
        await server.engine.touch_token(given.id)
        assert await server.engine.revoke_token(given.id, audit=record())
        assert len((await server.engine.audit(AuditQuery())).items) == 5
    finally:
        await engine.close()
    with as_role(store, role) as connection:
        for statement in (
            "update onward.audit set actor = 'nobody'",
            "delete from onward.audit",
            "truncate onward.audit",
            "alter table onward.audit disable row level security",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.replace("onward.", f"{store.schema}."))


async def test_a_server_cannot_prune_records_of_the_last_thirty_days(
    driver: Driver, store: PostgresStore, role: str
):  # S5
    call(store, f"allow_server('{role}')")
    for _ in range(3):
        await driver.engine.record_audit(record())
    with psycopg.connect(store.url, autocommit=True) as owner:
        ages = "update {0}.audit set at = clock_timestamp() - no * interval '29 days' + interval '1 hour'"
        owner.execute(ages.format(store.schema))
    with as_role(store, role) as connection:
        for kept in ("0 days", "-100 years"):
            connection.execute(f"select {store.schema}.prune_audit('{kept}', 1000)")
        assert connection.execute(f"select no from {store.schema}.audit").fetchall() == [(1,)]
    engine = PostgresEngine(make_conninfo(store.url, options=f"-c role={role}"), schema=store.schema)
    await engine.open()
    try:
        assert await engine.prune_access(keep_audit=timedelta(0), keep_sessions=timedelta(0)) == 0
        assert len((await engine.audit(AuditQuery())).items) == 1
    finally:
        await engine.close()


async def test_a_worker_sees_neither_tokens_nor_sessions_nor_records(
    driver: Driver, store: PostgresStore, role: str
):  # S2, S5
    call(store, f"allow_producer('{role}', may_cancel => true)")
    call(store, f"allow_worker('{role}')")
    await driver.engine.save_token(token(driver), audit=record())
    with as_role(store, role) as connection:
        for table in ("token", "session", "audit"):
            for statement in ("select count(*) from {}", "insert into {} default values", "delete from {}"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement.format(f"{store.schema}.{table}"))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"select {store.schema}.prune_audit('1 day', 1)")


CALLS = """
    select p.proname, format('select from %%I.%%I(%%s)', %(schema)s::text, p.proname,
             (select string_agg(format('null::%%s', format_type(a.type, null)), ', ' order by a.no)
                from unnest(p.proargtypes::oid[]) with ordinality a (type, no)))
      from pg_proc p
     where p.pronamespace = %(schema)s::regnamespace and p.prokind = 'f' and p.prorettype <> 'trigger'::regtype
       and not p.proisstrict
"""
"""A call of every function but the strict ones: PostgreSQL does not call those for a null."""
READS = """
    select relkind, oid::regclass::text from pg_class
     where relnamespace = %(schema)s::regnamespace and relkind in ('r', 'p', 'v', 'S')
"""


@pytest.mark.parametrize("may_cancel", [False, True])
async def test_a_producer_that_walks_over_everything_is_refused_everywhere_else(
    driver: Driver, store: PostgresStore, role: str, may_cancel: bool
):  # G8
    call(store, f"allow_producer('{role}', may_cancel => {may_cancel})")
    with psycopg.connect(store.url) as owner:
        calls = owner.execute(CALLS, {"schema": store.schema}).fetchall()
        relations = owner.execute(READS, {"schema": store.schema}).fetchall()
    assert len(calls) > 50
    assert len(relations) > 20
    open_to_it = {"enqueue", "cancel"} if may_cancel else {"enqueue"}
    statements = [text for name, text in calls if name not in open_to_it]
    for kind, relation in relations:
        statements += [f"select from {relation}"]
        if kind == "S":
            statements += [f"select nextval('{relation}')", f"select setval('{relation}', 1)"]
        elif kind != "v":
            statements += [f"delete from {relation}", f"insert into {relation} default values"]
    with as_role(store, role) as producer:
        for statement in statements:
            try:
                producer.execute(statement)
            except psycopg.errors.InsufficientPrivilege:
                continue
            pytest.fail(statement)


async def test_who_does_not_own_the_schema_cannot_allow_anything_and_is_told(
    driver: Driver, store: PostgresStore, role: str
):  # G8
    with psycopg.connect(store.url, autocommit=True) as owner:
        owner.execute(f"grant usage on schema {store.schema} to {role}")
        owner.execute(f"grant execute on all functions in schema {store.schema} to {role}")
    with as_role(store, role) as connection:
        for function in ("allow_producer", "allow_worker", "allow_server"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"may allow roles here, and you are {role}"):
                connection.execute(f"select {store.schema}.{function}('{role}')")


async def test_a_worker_cannot_write_what_says_which_schema_this_is(
    driver: Driver, store: PostgresStore, role: str
):  # G8, O9
    call(store, f"allow_worker('{role}')")
    with as_role(store, role) as connection:
        for statement in ("delete from onward.migration", "update onward.identity set id = gen_random_uuid()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.replace("onward.", f"{store.schema}."))


async def test_who_may_only_connect_cannot_stop_claims_nor_listeners_nor_migrations(
    driver: Driver, store: PostgresStore, role: str
):  # G8
    names = [f'"{store.schema}".claims', f"{store.schema}.migration", "onward.claims", store.schema]
    with as_role(store, role) as stranger:
        for name in names:
            for seed in (0, 1):
                stranger.execute("select pg_advisory_lock(hashtextextended(%s, %s))", [name, seed])
        for mode in ("row share", "exclusive", "access exclusive"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), stranger.transaction():
                stranger.execute(f"lock table {store.schema}.claim_gate in {mode} mode")
        await driver.add()
        assert call(store, "has_listener()") is False  # so that enqueues do not notify for nothing
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            stranger.execute(f"select setval('{store.schema}.listener_until', 2000000000)")
        async with asyncio.timeout(20):
            async with aclosing(driver.engine.signals(["q"])) as signals:  # type: ignore[type-var]
                await anext(signals)  # it listens
                assert call(store, "has_listener()") is True
                await driver.add(queue="q")
                await anext(signals)
            await driver.take_one()
            await driver.set("q", weight=2)
            await asyncio.to_thread(allow_within, store, role)


async def test_no_stranger_can_hold_up_the_first_migration(store: PostgresStore):  # G8, O9
    with psycopg.connect(store.url, autocommit=True) as stranger:
        stranger.execute("select pg_advisory_lock(hashtextextended(%s, 0))", [f"{store.schema}.migration"])
        async with asyncio.timeout(60):
            assert await asyncio.gather(store.connect(), store.connect())


async def test_a_worker_that_owns_nothing_can_do_all_that_workers_do(
    driver: Driver, store: PostgresStore, role: str
):  # G8
    await driver.add()
    call(store, f"allow_worker('{role}')")
    address = make_conninfo(store.url, options=f"-c role={role}")
    engine = PostgresEngine(address, schema=store.schema, clock=store.clock)
    await engine.open()
    worker = Driver(store, engine)  # type: ignore[arg-type]
    try:
        claim = await worker.take_one()
        await worker.beat(claim)
        assert await worker.engine.report(claim, progress=5, lines=["half"])
        assert await worker.end(claim, Complete('"done"'))
        await worker.engine.enqueue([new_job(idempotency_key="k", dedupe_key="d", delay=timedelta(seconds=1))])
        await worker.wait(1)
        await worker.take_one()
        await worker.advance(PAST_LEASE)
        assert (await worker.rescue()).changed == 1
        await worker.set("q", global_concurrency=2)
        await worker.advance(timedelta(days=9))
        assert (await worker.prune()).changed == 1
        assert [job.status for job in await worker.jobs()] == [JobStatus.PENDING]
        with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(store.url) as connection:
            connection.execute(f"set role {role}")
            connection.execute(f"drop table {store.schema}.job")
    finally:
        await engine.close()


@pytest.mark.parametrize("jobs", [0, 2])
async def test_a_worker_that_owns_nothing_works_on_a_restored_copy(
    driver: Driver, store: PostgresStore, role: str, jobs: int
):  # G8, X3
    call(store, f"allow_worker('{role}')")
    await driver.add_many(jobs)
    with psycopg.connect(store.url) as connection:
        connection.execute(f"update {store.schema}.identity set home = 'elsewhere'")
    engine = PostgresEngine(make_conninfo(store.url, options=f"-c role={role}"), schema=store.schema, clock=store.clock)
    await engine.open()
    worker = Driver(store, engine)  # type: ignore[arg-type]
    try:
        assert await worker.take() == ()
        if jobs:
            await engine.confirm_restore()
        else:
            await driver.add()
        assert len(await worker.take(slots=10)) == max(jobs, 1)
    finally:
        await engine.close()


@contextmanager
def looking_for_long(store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has read the jobs, and does not end."""
    with psycopg.connect(store.url, application_name="a_report") as connection:
        connection.execute(f"select count(*) from {store.schema}.job")
        yield connection
        connection.rollback()


def allow_within(store: PostgresStore, role: str) -> None:
    """Let a role work, and do not wait for that without end."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("set statement_timeout = '10s'")
        connection.execute(f"select {store.schema}.allow_worker(%s::name)", [role])


def policies_of(store: PostgresStore, role: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(store.url) as connection:
        asked = """select c.relname, p.oid from pg_policy p join pg_class c on c.oid = p.polrelid
                    where c.relnamespace = %s::regnamespace and %s::regrole = any (p.polroles) order by 1"""
        return connection.execute(asked, [store.schema, role]).fetchall()


async def test_who_may_work_already_is_allowed_again_while_somebody_reads(
    driver: Driver, store: PostgresStore, role: str
):  # O9, G8
    allow_within(store, role)
    before = policies_of(store, role)
    assert "job" in [table for table, _ in before]
    with looking_for_long(store):
        allow_within(store, role)
        assert (await driver.enqueue()).is_new
    assert policies_of(store, role) == before


async def test_who_cannot_be_allowed_to_work_while_somebody_reads_is_told_who_that_is(
    driver: Driver, store: PostgresStore, role: str
):  # O9, G8
    with looking_for_long(store) as reader:
        named = f"session {reader.info.backend_pid} a_report holds .*job"
        with pytest.raises(
            psycopg.errors.LockNotAvailable, match=f"{role} was not allowed to work: {named}.*try again"
        ):
            allow_within(store, role)
        assert (await driver.enqueue()).is_new
    assert policies_of(store, role) == []
    allow_within(store, role)
    assert policies_of(store, role) != []


async def test_a_role_may_be_allowed_to_work_by_several_at_once(driver: Driver, store: PostgresStore, role: str):  # G8
    await asyncio.gather(*(asyncio.to_thread(allow_within, store, role) for _ in range(4)))
    tables = [table for table, _ in policies_of(store, role)]
    assert "job" in tables
    assert len(tables) == len(set(tables))


async def test_roles_whose_names_begin_alike_do_not_take_each_others_leave(driver: Driver, store: PostgresStore):  # G8
    await driver.add()
    stem = f"role_{store.schema}".ljust(60, "x")
    first, second, third = f"{stem}a", f"{stem}b", f"{stem}c"
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"create role {first}")
        connection.execute(f"create role {second}")
        try:
            allow_within(store, first)
            allow_within(store, second)
            connection.execute(f"alter role {first} rename to {third}")
            connection.execute(f"create role {first}")  # another one, by the same name
            allow_within(store, first)
            for each in (first, second, third):
                with as_role(store, each) as worker:
                    assert worker.execute(f"select count(*) from {store.schema}.job").fetchall() == [(1,)]
        finally:
            for (each,) in connection.execute("select rolname from pg_roles where starts_with(rolname, %s)", [stem]):
                connection.execute(f"drop owned by {each}")
                connection.execute(f"drop role {each}")


async def test_row_level_security_is_on_for_every_table(driver: Driver, store: PostgresStore):  # G8
    await driver.prune()  # makes days
    with psycopg.connect(store.url) as connection:
        bare = connection.execute(
            "select relname from pg_class where relnamespace = %s::regnamespace and relkind in ('r', 'p')"
            " and not relrowsecurity",
            [store.schema],
        ).fetchall()
    assert bare == []
