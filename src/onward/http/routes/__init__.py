"""The routes, a module for each resource."""

from __future__ import annotations

from onward.http.endpoints import Endpoint
from onward.http.routes import access, batches, ended, events, jobs, queues, schedules, status


def all_endpoints() -> list[Endpoint]:
    """Return every route of Onward. The busiest come first: they are matched in this order."""
    return [
        *jobs.ENDPOINTS,
        *queues.ENDPOINTS,
        *events.ENDPOINTS,
        *ended.ENDPOINTS,
        *schedules.ENDPOINTS,
        *batches.ENDPOINTS,
        *status.ENDPOINTS,
        *access.ENDPOINTS,
    ]
