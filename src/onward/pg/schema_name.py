"""The name of a schema of ours, put into texts that are written with its usual one.

In our files a schema is called ``onward``, so that anybody can paste them into a console. It may have another name.
"""

from __future__ import annotations

import re
from typing import Final

from onward.errors import InvalidValue

DEFAULT: Final = "onward"

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_SHARED_SCHEMAS: Final = frozenset({"public", "information_schema"})
"""What there is in every database, and is for everybody."""
_SCHEMA_REFERENCE: Final = re.compile(r"\bonward(?=\.[a-z])|(?<=\bschema )onward\b")


def check_schema_name(name: str) -> str:
    """Refuse a name that would have to be quoted, or that PostgreSQL keeps for itself."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("pg_"):
        raise InvalidValue("schema", name, "must be lower-case letters, digits and '_', and not begin with pg_")
    return name


def check_own_schema_name(name: str) -> str:
    """Refuse besides what cannot be ours alone: we say there who may do what, with all that there is."""
    if check_schema_name(name) in _SHARED_SCHEMAS:
        raise InvalidValue("schema", name, f"is for everybody: {own_schema()}")
    return name


def own_schema(instead_of: str = "") -> str:
    """Say what to do about a schema that cannot be ours."""
    example = DEFAULT if instead_of != DEFAULT else f"{DEFAULT}_jobs"
    return f"give Onward a schema of its own, for example ?schema={example}"


def insert_schema_name(name: str, text: str) -> str:
    """Put a schema's name into a text of ours."""
    return text if name == DEFAULT else _SCHEMA_REFERENCE.sub(f'"{name}"', text)
