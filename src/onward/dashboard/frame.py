"""What surrounds every page: navigation with health at a glance, the caller, the theme."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from onward.dashboard.callers import is_permitted
from onward.dashboard.pulse import Beat, Pulse
from onward.dashboard.wording import Moment, Pill, moment, number, shortened, span
from onward.engine.capabilities import Capabilities, Feature
from onward.job import JobRef
from onward.lifecycle import FINISHED, JobStatus
from onward.service.identity import Identity
from onward.service.services import Services
from onward.service.snapshot import describe_store

_SLOW: Final = 60.0
"""Seconds after which the oldest ready job is worth a colour."""
_FAILING: Final = 0.05


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the navigation."""

    name: str
    label: str
    path: str
    key: str
    """Pressed after ``g``."""
    count: str = ""
    is_bad: bool = False
    is_current: bool = False


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the health at a glance."""

    label: str
    value: str
    kind: str = "idle"
    path: str = ""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The surroundings of a page."""

    title: str
    section: str
    root: str
    static: str
    theme: str
    here: str
    note: str = ""
    actor: str = ""
    role: str = ""
    has_session: bool = False
    groups: tuple[tuple[Entry, ...], ...] = ()
    signs: tuple[Sign, ...] = ()
    store: str = ""
    engine: str = ""
    is_live: bool = False
    watch: tuple[str, ...] = ()
    lost: str = ""
    """Why the store cannot be read; empty: it can."""
    seen: Moment | None = None
    """When the store was last read."""


def make_public_frame(**common: Any) -> Frame:
    """Make the frame of a page for callers that are not known."""
    return Frame(**common)


def make_frame(
    services: Services, identity: Identity, pulse: Pulse, *, watch: tuple[JobRef, ...], is_live: bool, **common: Any
) -> Frame:
    """Make the frame of a page."""
    capabilities = services.store.core.capabilities
    beat = pulse.beat
    is_whole = identity.scope.orgs is None and identity.scope.queues is None
    return Frame(
        actor=identity.actor,
        role=identity.role,
        has_session=identity.session is not None,
        groups=_groups(identity, capabilities, beat, common["section"]),
        signs=_signs(services, beat, pulse.failed),
        store=shortened(describe_store(services.store.app), 60) if is_whole else "",
        engine=capabilities.engine,
        is_live=is_live,
        watch=tuple(map(str, watch)),
        lost=pulse.failed or "",
        seen=None if beat is None else moment(beat.at),
        **common,
    )


def _groups(
    identity: Identity, capabilities: Capabilities, beat: Beat | None, section: str
) -> tuple[tuple[Entry, ...], ...]:
    counts = {} if beat is None else _counts(beat, capabilities)

    def group(*entries: tuple[str, str, str, str, str, Feature | None]) -> tuple[Entry, ...]:
        return tuple(
            Entry(
                name=name,
                label=label,
                path=path,
                key=key,
                count=counts.get(name, ""),
                is_bad=name == "dead" and bool(counts.get(name)),
                is_current=name == section,
            )
            for name, label, path, key, operation, feature in entries
            if is_permitted(identity, operation) and (feature is None or capabilities.has(feature))
        )

    return (
        group(
            ("overview", "Overview", "/", "o", "session.get", None),
            ("jobs", "Jobs", "/jobs", "j", "jobs.list", None),
            ("queues", "Queues", "/queues", "q", "queues.list", None),
            ("workers", "Workers", "/workers", "w", "workers.list", None),
            ("schedules", "Schedules", "/schedules", "s", "schedules.list", Feature.SCHEDULES),
            ("batches", "Batches", "/batches", "b", "batches.list", Feature.BATCHES),
            ("dead", "Dead letters", "/dead", "d", "dead.list", None),
        ),
        group(
            ("archive", "Archive", "/archive", "a", "archive.list", Feature.ARCHIVE),
            ("usage", "Usage", "/usage", "u", "usage.read", Feature.USAGE),
            ("operations", "Operations", "/operations", "p", "operations.list", None),
        ),
        group(
            ("audit", "Audit log", "/audit", "l", "audit.list", None),
            ("tokens", "Tokens", "/tokens", "t", "tokens.list", None),
            ("doctor", "Doctor", "/doctor", "h", "doctor.read", None),
        ),
    )


def _counts(beat: Beat, capabilities: Capabilities) -> dict[str, str]:
    unfinished = beat.count(*(frozenset(JobStatus) - FINISHED))
    dead = beat.count(capabilities.shown(JobStatus.DEAD_LETTER))
    return {
        "jobs": number(unfinished) if unfinished else "",
        "queues": number(len(beat.queues)) if beat.queues else "",
        "workers": number(len(beat.workers)) if beat.workers else "",
        "dead": number(dead) if dead else "",
    }


def _signs(services: Services, beat: Beat | None, failed: str | None) -> tuple[Sign, ...]:
    if failed is not None:
        return (Sign(label="Store", value="does not answer", kind="bad"),)
    if beat is None:
        return (Sign(label="Store", value="is being read"),)
    signs = [Sign(label="Store", value="answers", kind="ok")]
    if beat.workers is not None:
        live = beat.live_workers(services.store.core.config.lease)
        leader = next((one for one in live if one.is_leader), None)
        if services.store.core.capabilities.has(Feature.LEADER):
            kind = "ok" if leader is not None else "bad" if live else "idle"
            signs.append(Sign(label="Leader", value=_host(leader.hostname) if leader else "none", kind=kind))
        waits = beat.count(JobStatus.PENDING) > 0
        kind = "ok" if live else "bad" if waits else "idle"
        signs.append(Sign(label="Workers", value=number(len(live)), kind=kind, path="/workers"))
    if beat.queues is not None:
        wait = oldest_wait(beat)
        kind = "idle" if wait is None else "wait" if wait > _SLOW else "ok"
        signs.append(
            Sign(label="Oldest ready", value="none" if wait is None else span(wait), kind=kind, path="/queues")
        )
    if beat.failure_rate is not None:
        kind = "bad" if beat.failure_rate >= _FAILING else "ok"
        signs.append(Sign(label="Failures, 1 h", value=percent(beat.failure_rate), kind=kind, path="/usage"))
    return tuple(signs)


def oldest_wait(beat: Beat) -> float | None:
    """Return the seconds that the oldest ready job has waited."""
    queue = beat.oldest_ready
    if queue is None or queue.oldest_ready_at is None:
        return None
    return max(0.0, (datetime.now(UTC) - queue.oldest_ready_at).total_seconds())


def percent(share: float) -> str:
    """Write a share in percent."""
    text = f"{share * 100:.2f}" if share < 0.1 else f"{share * 100:.0f}"
    return f"{text if share else '0'}\N{NO-BREAK SPACE}%"


def queue_pill(paused: bool) -> Pill:  # noqa: FBT001
    """Show whether a queue is paused."""
    return Pill(word="paused", kind="wait", hollow=True) if paused else Pill(word="active", kind="ok")


def _host(name: str) -> str:
    return shortened(name, 18)
