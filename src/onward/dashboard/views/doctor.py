"""Doctor: what is wrong with the store, and what it can do."""

from __future__ import annotations

import msgspec

from onward.dashboard.visit import Screen, Visit
from onward.dashboard.wording import Pill
from onward.engine.capabilities import Level as SupportLevel
from onward.service.doctor import Level

_KINDS = {Level.PROBLEM: "bad", Level.WARNING: "wait", Level.NOTE: "idle"}


class FindingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A finding."""

    level: Pill
    message: str
    remedy: str


class FeatureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A feature of the store."""

    name: str
    level: Pill
    note: str


class DoctorPage(msgspec.Struct, frozen=True, kw_only=True):
    """What the doctor says."""

    is_ok: bool
    findings: tuple[FindingRow, ...]
    engine: str
    features: tuple[FeatureRow, ...]


async def show(visit: Visit) -> Screen:
    """Show what the doctor says."""
    found = await visit.services.status.doctor(visit.identity)
    can = await visit.services.status.capabilities(visit.identity)
    levels = {SupportLevel.NATIVE: "ok", SupportLevel.EMULATED: "busy", SupportLevel.ABSENT: "idle"}
    page = DoctorPage(
        is_ok=found.ok,
        findings=tuple(
            FindingRow(level=Pill(word=one.level, kind=_KINDS[one.level]), message=one.message, remedy=one.remedy)
            for one in found.findings
        ),
        engine=can.engine,
        features=tuple(
            FeatureRow(name=name, level=Pill(word=one.level, kind=levels[SupportLevel(one.level)]), note=one.note)
            for name, one in can.features.items()
        ),
    )
    return Screen(template="doctor.html", title="Doctor", section="doctor", page=page)
