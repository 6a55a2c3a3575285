"""By which a store is known: a connection that leads to another is refused before anything is written there."""

from __future__ import annotations

from onward.errors import InvalidValue, SchemaTooOld
from onward.pg.plan_runner import Plan, Statement
from onward.pg.schema_name import insert_schema_name

Identity = tuple[str, str]
"""The database's name, and what was drawn by lot when the schema was made."""


def identity_of(schema: str) -> Plan[Identity]:
    """Read by what the store is known whose schema has this name."""
    text = "select current_database()::text, id::text from onward.identity"
    ((database, store_id),) = yield Statement(insert_schema_name(schema, text))
    return database, store_id


def same_store(schema: str, identity: Identity, store: object) -> Plan[None]:
    """Refuse a connection that leads elsewhere."""
    # Asked in two steps: a statement that fails would spoil the caller's transaction.
    ((exists,),) = yield Statement("select to_regclass($1::text) is not null", [f'"{schema}".identity'])
    if not exists:
        message = f"there is no schema {schema} where this connection leads to; the jobs are in {store}"
        raise SchemaTooOld(message)
    theirs = yield from identity_of(schema)
    if theirs != identity:
        raise InvalidValue("connection", theirs[0], f"must be a connection to {store}, where the jobs are kept")
