"""Numbered migrations: which there are, which a store has, and which are to come.

An engine ships its steps as ``migrations/0001_name.sql`` and keeps in the store, for each one applied, its number and
the checksum of its text. It takes the store's own lock, asks :func:`plan` what is missing, and applies that in the same
transaction that records it: so ten workers may start at once, and a crash half-way leaves the old schema.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from onward.errors import SchemaChanged, SchemaTooNew

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_INCLUDE = re.compile(r"^-- include (\S+) (\S+)$", re.MULTILINE)
"""``-- include onward.pg.limits schema.sql``: a step that several schemas have is written once."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of a schema."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The digest of the text, by which an applied step is known to be this one."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def load(package: str) -> tuple[Migration, ...]:
    """Read the steps that a package ships, in order; the numbers must run from 1 without a gap."""
    found = [
        Migration(int(match[1]), match[2], _with_includes(entry.read_text(encoding="utf-8")))
        for entry in files(package).joinpath("migrations").iterdir()
        if (match := _FILE.fullmatch(entry.name))
    ]
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        message = f"migrations of {package} are not numbered 1 to {len(found)}"
        raise RuntimeError(message)
    return tuple(found)


def _with_includes(text: str) -> str:
    return _INCLUDE.sub(lambda found: files(found[1]).joinpath(found[2]).read_text(encoding="utf-8"), text)


def plan(shipped: Sequence[Migration], applied: Mapping[int, str], *, store: str) -> Sequence[Migration]:
    """Say which steps a store still needs, given the checksums of those that it has.

    Raises:
        SchemaTooNew: the store has steps that this version does not know.
        SchemaChanged: a step that the store has is not the one shipped.
    """
    newest = max(applied, default=0)
    if newest > len(shipped):
        message = (
            f"{store} has schema {newest}, this version of Onward knows {len(shipped)}: "
            "upgrade Onward here, or point it at another store"
        )
        raise SchemaTooNew(message)
    for migration in shipped:
        checksum = applied.get(migration.number)
        if checksum is not None and checksum != migration.checksum:
            message = (
                f"{store} applied another migration {migration.number:04}_{migration.name} than this version ships: "
                "it was made by a development version, or was edited; restore the file or start from a fresh store"
            )
            raise SchemaChanged(message)
    return [migration for migration in shipped if migration.number not in applied]
