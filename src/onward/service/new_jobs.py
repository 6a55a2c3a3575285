"""Makes jobs of what callers send, within what they may enqueue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from msgspec import UNSET

from onward import alert, bulk_operation
from onward.arguments import nearest
from onward.errors import InvalidValue, PermissionDenied
from onward.job import NewJob, UniformJobs
from onward.service.identity import Identity
from onward.service.scopes import sees
from onward.service.store import Store
from onward.service.values import EnqueueRequest, duration
from onward.validation import encode_json

_RESERVED = "onward."
"""Types that begin so are Onward's own: a job of them acts with rights that its sender may not have."""
_DURATIONS = ("delay", "throttle", "debounce")
_SAME = ("run_at", "start_by", "idempotency_key")
_UNLESS_UNSET = ("queue", "priority", "max_attempts", "backoff", "dedupe")


def new_job(store: Store, identity: Identity, request: EnqueueRequest, *, field: str = "") -> NewJob:
    """Make a job of a request; as :func:`one_new_job`."""
    return one_new_job(store, identity, request, field=field)[0]


def one_new_job(store: Store, identity: Identity, request: EnqueueRequest, *, field: str = "") -> Sequence[NewJob]:
    """Make a job of a request: of the App's task, or where the App has none, as it was sent.

    It is a sequence of one, as its task made it: a template that was checked for one such job is not checked again.

    Raises:
        InvalidValue: it breaks a rule; ``field`` says which of several requests it is.
        PermissionDenied: its queue or organisation is out of the caller's scope.
    """
    try:
        jobs = _one_job(store, identity, request)
    except InvalidValue as error:
        if field:
            error.field = f"{field}.{error.field}"
        raise
    job = jobs.template if isinstance(jobs, UniformJobs) else jobs[0]
    reserved = bulk_operation.queue_of(store.core.capabilities)
    if job.type.startswith(_RESERVED) or job.queue == reserved or alert.is_delivery_queue(job.queue):
        raise PermissionDenied(f"{job.type} in {job.queue} is reserved for Onward itself")
    if not sees(identity, job.queue, job.org_id):
        raise PermissionDenied(
            f"a job of queue {job.queue} and organisation {job.org_id} is out of the scope of {identity.actor}",
            remedy="give a queue and an org_id that the token is for",
        )
    return jobs


def _one_job(store: Store, identity: Identity, request: EnqueueRequest) -> Sequence[NewJob]:
    options = _options(identity, request)
    task = store.app.tasks.get(request.type)
    if task is not None:
        call: Any = request.payload
        if task.options.whole_payload:
            call = (request.payload,)
        elif not isinstance(request.payload, dict):
            raise InvalidValue("payload", request.payload, "must be an object: the task's arguments by name")
        return (task.using(**options) if options else task).jobs([call])
    if store.app.tasks and not store.core.catch_all:
        rule = f"is not a task of this app{nearest(request.type, store.app.tasks)}"
        raise InvalidValue("type", request.type, rule)
    if options.pop("dedupe", None):
        raise InvalidValue("dedupe", "true", "needs a task that this app has: give dedupe_key instead")
    payload = encode_json(request.payload, max_size=store.core.max_payload)
    return [NewJob(type=request.type, payload=payload, **options)]


def _options(identity: Identity, request: EnqueueRequest) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for field in _UNLESS_UNSET:
        if (value := getattr(request, field)) is not UNSET:
            options[field] = value
    for field in _SAME:
        if (value := getattr(request, field)) is not None:
            options[field] = value
    for field in _DURATIONS:
        if (seconds := getattr(request, field)) is not None:
            options[field] = duration(field, seconds)
    if options.get("delay") == timedelta(0):
        del options["delay"]
    orgs, org_id = identity.scope.orgs, request.org_id
    if orgs is not None and org_id is None and len(orgs) == 1:
        org_id = orgs[0]
    if org_id is not None:
        options["org_id"] = org_id
    if request.dedupe_key is not None:
        # A store compares keys alone. One organisation must neither find nor replace another's job by its key.
        prefix = "" if orgs is None else f"{request.type}::{org_id}::key::"
        options["dedupe_key"] = prefix + request.dedupe_key
    return options
