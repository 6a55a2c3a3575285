"""What a doctor should know of the server: gathered by a few commands, judged by pure functions, with a remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from onward.engines.bullmq.keys import Keys
from onward.engines.bullmq.plan_runner import Plan, script

_MIN_VERSION: Final = (6, 2)
"""LPOS and sets with an end by the millisecond; BullMQ itself asks for 6.2."""


class Facts(NamedTuple):
    """What a server says of itself."""

    server: str
    version: tuple[int, ...]
    policy: str
    maxmemory: int
    has_append_only: bool
    fsync: str
    has_snapshots: bool
    has_failed_snapshot: bool
    role: str
    now: int

    @property
    def durability(self) -> str:
        """What survives a power cut, in plain words."""
        if self.has_append_only and self.fsync == "always":
            return "every acknowledged job survives a crash of the server (appendonly yes, appendfsync always)"
        if self.has_append_only:
            return f"a crash of the server may lose the last second or so (appendonly yes, appendfsync {self.fsync})"
        if self.has_snapshots:
            return "a crash of the server loses all since the last snapshot, often minutes (appendonly no)"
        return "a crash or restart of the server loses everything (appendonly no, save off)"


def eviction_policy() -> Plan[str]:
    """Read what the server does when its memory is short. INFO, since managed servers refuse CONFIG."""
    (info,) = yield [("INFO", "memory")]
    fields: Mapping[str, Any] = info if isinstance(info, dict) else _parsed(str(info))
    return str(fields.get("maxmemory_policy", "noeviction"))


def collect(keys: Keys) -> Plan[Facts]:
    """Ask the server."""
    (info,) = yield [("INFO",)]
    (now,) = yield [script("server_time", keys, [keys.workers])]
    fields: Mapping[str, Any] = info if isinstance(info, dict) else _parsed(str(info))
    settings: dict[str, str] = {}
    for name in ("appendfsync", "save"):
        (found,) = yield [("CONFIG", "GET", name)]
        settings.update(found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True)))
    is_valkey = "valkey_version" in fields
    version = str(fields.get("valkey_version") or fields.get("redis_version", "0"))
    return Facts(
        server=f"{'Valkey' if is_valkey else 'Redis'} {version}",
        version=tuple(int(part) for part in str(fields.get("redis_version", "0")).split(".") if part.isdecimal()),
        policy=str(fields.get("maxmemory_policy", "noeviction")),
        maxmemory=int(fields.get("maxmemory", 0)),
        has_append_only=str(fields.get("aof_enabled", 0)) == "1",
        fsync=settings.get("appendfsync", "everysec"),
        has_snapshots=bool(settings.get("save", "")),
        has_failed_snapshot=str(fields.get("rdb_last_bgsave_status", "ok")) != "ok",
        role=str(fields.get("role", "master")),
        now=int(now),
    )


def _parsed(text: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def warnings(facts: Facts) -> Iterator[str]:
    """Say what may lose jobs, and what to do about it."""
    if facts.policy != "noeviction":
        yield (
            f"the server removes keys when memory is short (maxmemory-policy {facts.policy}), and jobs are keys: "
            "set maxmemory-policy noeviction"
        )
    if not facts.has_append_only and not facts.has_snapshots:
        yield "nothing is written to disk: a restart loses every job; set appendonly yes"
    elif not facts.has_append_only:
        yield "jobs are written to disk only now and then (save): a crash loses the latest; set appendonly yes"
    if facts.has_failed_snapshot:
        yield "the last snapshot could not be written: is the disk full, or not writable?"
    if facts.version < _MIN_VERSION:
        yield f"{facts.server} is too old for BullMQ: it needs 6.2 or newer"
    if facts.role != "master":
        yield "this is a replica, which takes no jobs: give the address of the master, or of the sentinels"
