"""Finds the connection of SQLAlchemy behind a caller's ``connection=``: a connection, or a session's.

SQLAlchemy is not imported: a caller that passes one of its objects has imported it.
"""

from __future__ import annotations

import sys
from typing import Any


def sync_connection_of(connection: object) -> Any | None:
    """Return the ``sqlalchemy.Connection`` of a connection or a session; None: it is neither."""
    if (orm := sys.modules.get("sqlalchemy.orm")) and isinstance(connection, (orm.Session, orm.scoped_session)):
        connection = connection.connection()
    if (sqlalchemy := sys.modules.get("sqlalchemy")) and isinstance(connection, sqlalchemy.Connection):
        return connection
    return None


async def async_connection_of(connection: object) -> Any | None:
    """Return the ``AsyncConnection`` of an asynchronous connection or session; None: it is neither."""
    sqlalchemy = sys.modules.get("sqlalchemy.ext.asyncio")
    if sqlalchemy is None:
        return None
    if isinstance(connection, (sqlalchemy.AsyncSession, sqlalchemy.async_scoped_session)):
        connection = await connection.connection()
    return connection if isinstance(connection, sqlalchemy.AsyncConnection) else None
