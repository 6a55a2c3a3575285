"""What survives a crash of the server, as its settings say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Durability(NamedTuple):
    """The settings that it depends on, as they are in force for our sessions."""

    fsync: str
    full_page_writes: str
    synchronous_commit: str

    def __str__(self) -> str:
        """Say it in plain words."""
        if self.fsync == "off" or self.full_page_writes == "off":
            return "a crash of the server's machine may lose or corrupt everything (fsync or full_page_writes is off)"
        if self.synchronous_commit == "off":
            return "a crash of the server may lose the last moments, and corrupts nothing (synchronous_commit=off)"
        return f"every acknowledged job survives a crash of the server (synchronous_commit={self.synchronous_commit})"

    def problems(self) -> Iterator[str]:
        """Say what nobody who wants to keep their jobs can mean, with the remedy."""
        if self.fsync == "off":
            yield (
                "fsync is off: a crash of the server's machine may lose or corrupt everything. "
                "As its administrator: alter system set fsync = on; select pg_reload_conf()"
            )

    def warnings(self) -> Iterator[str]:
        """Say what may be meant so, with the remedy if it is not."""
        if self.full_page_writes == "off":
            yield (
                "full_page_writes is off: a crash of the server's machine may corrupt everything, unless its file "
                "system never writes half a page, as ZFS. If it is another: alter system set full_page_writes = on; "
                "select pg_reload_conf()"
            )
        if self.synchronous_commit == "off":
            yield (
                "synchronous_commit is off: a crash of the server may lose jobs of the last moments that it has "
                "accepted, and outcomes, so that these jobs run again. If that is not meant: set synchronous_commit = "
                "on where it is turned off (the server, the database, the role or the URL)"
            )
