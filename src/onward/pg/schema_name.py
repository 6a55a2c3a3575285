"""The name of a schema of ours, put into texts that are written with its usual one.

In our files a schema is called ``onward``, so that anybody can paste them into a console. It may have another name.
"""

from __future__ import annotations

import re
from typing import Final

from onward.errors import InvalidValue

DEFAULT: Final = "onward"

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
MAX_NAME: Final = 48
"""Characters of a schema's name: PostgreSQL's names have 63, and names that are made from it must fit."""
_SHARED_SCHEMAS: Final = frozenset({"public", "information_schema"})
"""What there is in every database, and is for everybody."""
_SCHEMA_REFERENCE: Final = re.compile(r"\bonward(?=\.[a-z])|(?<=\bschema )onward\b")


def check_schema_name(name: str, *, max_length: int = MAX_NAME) -> str:
    """Refuse a name that would have to be quoted, is too long, or that PostgreSQL keeps for itself."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("pg_"):
        rule = "must be lower-case letters, digits and '_', and not begin with pg_"
        if isinstance(name, str) and _NAME.fullmatch(folded := name.strip('"').lower()) and folded != name:
            rule += f": PostgreSQL has unquoted names in lower case, so try schema={folded}"
        raise InvalidValue("schema", name, rule)
    if len(name) > max_length:
        raise InvalidValue("schema", name, f"must be at most {max_length} characters, this is {len(name)}")
    return name


def check_own_schema_name(name: str, *, max_length: int = MAX_NAME) -> str:
    """Refuse besides what cannot be ours alone: we say there who may do what, with all that there is."""
    if check_schema_name(name, max_length=max_length) in _SHARED_SCHEMAS:
        raise InvalidValue("schema", name, f"is for everybody: {own_schema()}")
    return name


def own_schema(instead_of: str = "") -> str:
    """Say what to do about a schema that cannot be ours."""
    example = DEFAULT if instead_of != DEFAULT else f"{DEFAULT}_jobs"
    return f"give Onward a schema of its own, for example ?schema={example}"


def insert_schema_name(name: str, text: str) -> str:
    """Put a schema's name into a text of ours."""
    return text if name == DEFAULT else _SCHEMA_REFERENCE.sub(f'"{name}"', text)
