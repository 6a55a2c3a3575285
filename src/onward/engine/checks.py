"""Checks before a write: whether the values are valid, and whether the engine offers what they ask for.

What must be the same on all engines is written here once (X1): a refusal comes before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec import UNSET

from onward import validation
from onward.engine.access import AccessSession, AccessToken, AuditQuery, AuditRecord
from onward.engine.capabilities import Capabilities, Feature
from onward.engine.values import ClaimRequest, JobChange, JobFilter, QueueChange, Retention, Settlement
from onward.errors import InvalidValue, PayloadTooLarge
from onward.job import NewJob, UniformJobs
from onward.lifecycle import Complete, JobStatus

ROLES: Final = ("viewer", "operator", "admin")
MAX_SCOPES: Final = 1000
"""Permissions, queues or organisations of one token."""
MAX_PAUSE_REASON: Final = 500
"""Characters."""
_MAX_AUDIT_JSON: Final = 65_536
"""Characters of a record's filter and of its detail."""
_MAX_AUDIT_TEXTS: Final = {"actor": 255, "role": 120, "action": 120, "target": 4096, "request_id": 255}
_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class Checks:
    """Refuses what breaks a rule, or what the engine does not offer."""

    def __init__(self, capabilities: Capabilities, *, max_payload: int) -> None:
        self.capabilities = capabilities
        self._max_payload = max_payload
        self._keeps_results = capabilities.has(Feature.RESULTS)
        self._foreign = capabilities.is_shared
        self._checked: tuple[NewJob | None, int] = (None, 0)
        """The template of the last uniform jobs that passed, and how long a payload may be with it."""
        self._checked_audit: tuple[Any, ...] | None = None
        """What the last simple audit record that passed has besides its ids."""
        self._checked_queues: tuple[str, ...] = ()
        """The queues of the last claim request that passed."""

    def jobs(self, jobs: Sequence[NewJob], connection: object | None) -> None:
        """Check new jobs, before they are stored."""
        if connection is not None:
            self.capabilities.require(Feature.TRANSACTIONS)
        if isinstance(jobs, UniformJobs):
            template, room = self._checked
            if template is not jobs.template or max(map(len, jobs.payloads), default=0) > room:
                self._uniform_jobs(jobs)
        else:
            for place, job in enumerate(jobs):
                self.job(job)
                if job.after:
                    validation.check_places(job, place)

    def _uniform_jobs(self, jobs: UniformJobs) -> None:
        """Check one for all, unless a payload is so long that it counts; and of one task after the other, each once."""
        if not jobs:
            return
        self.job(jobs[0])
        validation.check_places(jobs.template, 0)
        room = validation.room_for_payload(jobs.template, self._max_payload)
        self._checked = jobs.template, room
        if max(map(len, jobs.payloads)) > room:
            for job in jobs:
                self.job(job)

    def job(self, job: NewJob) -> None:
        """Check one new job."""
        require = self.capabilities.require
        validation.check_job(job, max_payload=self._max_payload, foreign=self._foreign)
        if job.priority:
            require(Feature.PRIORITY)
        if job.delay or job.run_at is not None:
            require(Feature.DELAY)
        if job.start_by is not None:
            require(Feature.START_BY)
        if job.idempotency_key is not None:
            require(Feature.IDEMPOTENCY)
        if job.throttle is not None or job.debounce is not None:
            require(Feature.THROTTLE)  # first: what was asked for is this, and the key is how it is kept
        if job.dedupe_key is not None:
            require(Feature.DEDUPLICATION)
        if job.org_id is not None:
            require(Feature.ORGANISATIONS)
        if job.batch is not None:
            require(Feature.BATCHES)

    def settlements(self, settlements: Sequence[Settlement], connection: object | None = None) -> None:
        """Check outcomes, before they are recorded."""
        if connection is not None:
            self.capabilities.require(Feature.TRANSACTIONS)
        if not self._keeps_results:
            for settlement in settlements:
                if isinstance(settlement.outcome, Complete) and settlement.outcome.result is not None:
                    self.capabilities.require(Feature.RESULTS)

    def claim_request(self, request: ClaimRequest) -> None:
        """Check what a worker asks for."""
        validation.check_at_least("slots", request.slots, 0)
        validation.check_at_least("prefetch_started", request.prefetch_started, 0)
        validation.check_at_least("prefetch_claimed", request.prefetch_claimed, 0)
        if request.queues is not self._checked_queues:
            for pattern in request.queues:
                validation.check_pattern(pattern, foreign=self._foreign)
                if pattern.endswith("*"):
                    self.capabilities.require(Feature.PATTERNS)
            self._checked_queues = request.queues
        if request.prefetch_claimed:
            self.capabilities.require(Feature.CLAIMED_STATE)
        if request.alone:
            self.capabilities.require(Feature.SUSPECTS)

    def job_filter(self, which: JobFilter) -> None:
        """Check a filter."""
        for id in which.ids or ():
            self.global_id("ids", id)
        for pattern in which.queues or ():
            validation.check_pattern(pattern, foreign=self._foreign)
        if which.status is not None and JobStatus.CANCELLED in which.status:
            self.capabilities.require(Feature.CANCELLED_STATE)
        if which.org_id is not None or which.orgs is not None:
            self.capabilities.require(Feature.ORGANISATIONS)
        if which.batch is not None:
            self.capabilities.require(Feature.BATCHES)
        for field in ("org_id", "batch", "worker_id", "error_contains"):
            text = getattr(which, field)
            if text is not None:
                validation.check_text(field, text)
        for org_id in which.orgs or ():
            validation.check_text("orgs", org_id)
        for type_ in which.types or ():
            validation.check_text("types", type_)
        for field in ("created_after", "created_before", "finished_before"):
            moment = getattr(which, field)
            if moment is not None:
                validation.check_moment(field, moment)

    def global_id(self, field: str, id: str) -> None:
        """Check that an id alone names one job."""
        if not self.capabilities.has_global_ids:
            rule = (
                f"does not name one job: on {self.capabilities.engine} an id is unique only within its queue. "
                'Give "queue:id", a JobRef or the handle'
            )
            raise InvalidValue(field, id, rule)

    def queue_change(self, change: QueueChange) -> None:
        """Check new settings of a queue."""
        require = self.capabilities.require
        if change.paused is not UNSET:
            require(Feature.PAUSE)
        for field, longest in (("pause_reason", MAX_PAUSE_REASON), ("paused_by", _MAX_AUDIT_TEXTS["actor"])):
            text = getattr(change, field)
            if text is not UNSET:
                require(Feature.PAUSE)
                if change.paused is not True:
                    raise InvalidValue(field, text, "can only be given with paused=True")
                _check_short_text(field, text, longest)
        if change.rate is not UNSET:
            if change.rate is not None and change.rate.burst > 1:
                require(Feature.BURST)
            require(Feature.RATE)
        if change.global_concurrency is not UNSET:
            require(Feature.CONCURRENCY)
            if change.global_concurrency is not None:
                validation.check_at_least("global_concurrency", change.global_concurrency, 1)
        if change.weight is not UNSET:
            require(Feature.WEIGHT)
            validation.check_at_least("weight", change.weight, 1)
        if change.lease is not UNSET and change.lease is not None and change.lease < timedelta(seconds=1):
            raise InvalidValue(
                "lease", change.lease, "must be at least a second: a worker beats several times within it"
            )
        if change.max_attempts is not UNSET or change.backoff is not UNSET:
            require(Feature.QUEUE_DEFAULTS)
            if change.max_attempts is not UNSET and change.max_attempts is not None:
                validation.check_at_least("max_attempts", change.max_attempts, 1)
        if change.retention is not UNSET:
            require(Feature.RETENTION)
            if change.retention.archived != Retention().archived:
                require(Feature.ARCHIVE)

    def job_change(self, change: JobChange) -> None:
        """Check what is to be changed of a waiting job."""
        if change.priority is not UNSET:
            validation.check_priority(change.priority)
            self.capabilities.require(Feature.PRIORITY)
        if change.run_at is not UNSET:
            validation.check_moment("run_at", change.run_at)
            self.capabilities.require(Feature.DELAY)
        if change.payload is not UNSET:
            if (size := len(change.payload.encode())) > self._max_payload:
                raise PayloadTooLarge(size, self._max_payload)
            validation.check_json_text("payload", change.payload)
        if change.max_attempts is not UNSET:
            validation.check_at_least("max_attempts", change.max_attempts, 1)

    def access_token(self, token: AccessToken) -> None:
        """Check a token, before it is stored."""
        check_id("id", token.id)
        validation.check_name("name", token.name)
        check_digest("digest", token.digest)
        if token.role not in ROLES:
            raise InvalidValue("role", token.role, f"must be one of {', '.join(ROLES)}")
        _check_scope("permissions", token.permissions, may_be_empty=True)
        _check_scope("queues", token.queues)
        for pattern in token.queues or ():
            validation.check_pattern(pattern, foreign=self._foreign)
        if token.orgs is not None:
            self.capabilities.require(Feature.ORGANISATIONS)
        _check_scope("orgs", token.orgs)
        _check_short_text("created_by", token.created_by, 255)
        for field in ("created_at", "expires_at", "last_used_at", "revoked_at"):
            moment = getattr(token, field)
            if moment is not None or field == "created_at":
                validation.check_moment(field, moment)

    def access_session(self, session: AccessSession) -> None:
        """Check a session, before it is stored."""
        check_digest("digest", session.digest)
        check_id("token_id", session.token_id)
        for field in ("created_at", "last_seen_at", "expires_at"):
            validation.check_moment(field, getattr(session, field))

    def audit_record(self, record: AuditRecord | None) -> None:
        """Check a record, before it is stored; None: there is none."""
        if record is None:
            return
        check_id("audit.id", record.id)
        _check_short_text("audit.request_id", record.request_id, _MAX_AUDIT_TEXTS["request_id"])
        if record.filter is None and record.detail is None and record.count is None:
            # Most records are those of one caller that does one thing again and again.
            known = record.actor, record.role, record.action, record.target, record.orgs
            if known == self._checked_audit:
                return
            self._audit_texts(record)
            self._checked_audit = known
        else:
            self._audit_texts(record)

    @staticmethod
    def _audit_texts(record: AuditRecord) -> None:
        for field, longest in _MAX_AUDIT_TEXTS.items():
            text = getattr(record, field)
            _check_short_text(f"audit.{field}", text, longest)
            if not text and field in ("actor", "action"):
                raise InvalidValue(f"audit.{field}", text, "must be a non-empty string")
        for field in ("filter", "detail"):
            text = getattr(record, field)
            if text is not None:
                _check_short_text(f"audit.{field}", text, _MAX_AUDIT_JSON)
                validation.check_json_text(f"audit.{field}", text)
        if record.count is not None:
            validation.check_at_least("audit.count", record.count, 0)
        _check_scope("audit.orgs", record.orgs, may_be_empty=True)

    def audit_query(self, query: AuditQuery) -> None:
        """Check which records are asked for."""
        for field in ("actor", "action", "target"):
            text = getattr(query, field)
            if text is not None:
                _check_short_text(field, text, _MAX_AUDIT_TEXTS[field])
        for field in ("after", "before"):
            moment = getattr(query, field)
            if moment is not None:
                validation.check_moment(field, moment)


def is_id(text: object) -> bool:
    """Whether a text has the form of a token's id."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def is_digest(text: object) -> bool:
    """Whether a text is a SHA-256 in hexadecimal."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def check_id(field: str, text: str) -> None:
    """Refuse what is not a UUID in its usual form."""
    if not is_id(text):
        raise InvalidValue(field, text, "must be a UUID in lower case, such as onward.ids.new_id() makes")


def check_digest(field: str, text: str) -> None:
    """Refuse what is not a SHA-256 in hexadecimal. The error does not repeat the value: it may be the secret itself."""
    if not is_digest(text):
        raise InvalidValue(field, "…", "must be a SHA-256 in lower-case hexadecimal: the secret itself is never stored")


def _check_short_text(field: str, text: str, longest: int) -> None:
    if not isinstance(text, str):
        raise InvalidValue(field, text, "must be a string")
    if len(text) > longest:
        raise InvalidValue(field, f"{text[:40]}…", f"must be at most {longest:,} characters, this is {len(text):,}")
    validation.check_text(field, text)


def _check_scope(field: str, names: Sequence[str] | None, *, may_be_empty: bool = False) -> None:
    if names is None:
        return
    if isinstance(names, str) or len(names) > MAX_SCOPES or (not names and not may_be_empty):
        least = "" if may_be_empty else "at least one name and "
        raise InvalidValue(field, names, f"must have {least}at most {MAX_SCOPES:,} names; None: no limit")
    for name in names:
        _check_short_text(field, name, 255)
        if not name:
            raise InvalidValue(field, name, "must not contain an empty name")
